"""The predictor: nobody waits for it, it learns beside the work, and what it picks may be run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tunewright.db.errors import StoreError
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.sketches import default_schedule, holds, spaces
from tunewright.tuner.lookup import Ladder, Match, predictor
from tunewright.tuner.lookup.predictor import Predictor

from .test_lookup import FAR, NEAR, NEARER, TARGET, TASK


@pytest.fixture
def store() -> Iterator[SqlStore]:
    """Many trials of three tasks: the more a schedule's digest, the slower."""
    with open_store("sqlite://") as opened:
        opened.add_target(TARGET)
        for task in (NEAR, NEARER, FAR):
            opened.add_task(task)
            [space, *_] = spaces(task, TARGET)
            for row in space.sample(60, np.random.default_rng(0)):
                schedule = space.schedule(row)
                time_s = 1e-3 * (1 + sum(value for _, value in schedule.values) % 50)
                measurement = Measurement(Status.OK, (time_s,), time_s, time_s, time_s, 0.0)
                opened.record(Record(task.key, TARGET.key, schedule, measurement))
        yield opened


def fitted(store: SqlStore) -> Predictor:
    one = Predictor(store)
    one.pick(TASK, TARGET, set())
    one.wait(60.0)
    return one


def test_it_never_holds_up_an_answer(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(predictor, "GROWTH_TRIALS", 10)
    real = predictor._fitted

    def slow(examples):
        go_on.wait(60.0)
        return real(examples)

    monkeypatch.setattr(predictor, "_fitted", slow)
    one = Predictor(store)
    started_s = time.monotonic()
    assert one.pick(TASK, TARGET, set()) is None
    assert time.monotonic() - started_s < 1.0
    go_on.set()
    one.wait(60.0)
    assert one.pick(TASK, TARGET, set()) is not None


def test_picks_are_legal_and_stay_the_same(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "GROWTH_TRIALS", 10)
    one = fitted(store)
    picked = one.pick(TASK, TARGET, set())
    assert picked is not None and holds(TASK, TARGET, picked) and picked != default_schedule(TASK, TARGET)
    assert one.pick(TASK, TARGET, set()) == picked
    assert fitted(store).pick(TASK, TARGET, set()) == picked
    another = one.pick(TASK, TARGET, {picked.key})
    assert another != picked


def test_the_ladder_uses_it(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "GROWTH_TRIALS", 10)
    monkeypatch.setattr("tunewright.tuner.lookup.ladder.FARTHEST", -1.0)
    one = fitted(store)
    assert Ladder(store, one).find([TASK], TARGET)[TASK.key].match is Match.PREDICTED
    assert Ladder(store).find([TASK], TARGET)[TASK.key].match is Match.DEFAULT


def test_it_is_fitted_anew_as_trials_are_added(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    monkeypatch.setattr(predictor, "GROWTH_TRIALS", 10)
    monkeypatch.setattr(predictor, "_fitted", lambda examples: fits.append(len(examples)))
    monkeypatch.setattr(predictor, "PAUSE_S", 0.0)
    one = fitted(store)
    one.pick(TASK, TARGET, set())
    one.wait(60.0)
    assert len(fits) == 1
    monkeypatch.setattr(predictor, "GROWTH", 1.0)
    monkeypatch.setattr(predictor, "GROWTH_TRIALS", 0)
    one.pick(TASK, TARGET, set())
    one.wait(60.0)
    assert len(fits) == 2


def test_too_few_trials_make_no_model() -> None:
    with open_store("sqlite://") as empty:
        assert fitted(empty).pick(TASK, TARGET, set()) is None


def test_a_database_that_is_away_is_no_failure(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def away():
        raise StoreError("it is away")

    monkeypatch.setattr(store.known, "marks", away)
    assert fitted(store).pick(TASK, TARGET, set()) is None
