"""The predictor: nobody waits for it, it learns beside the work, and what it picks may be run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunewright.costmodel.validation import MEDIAN_OF_NORMAL, is_held_out
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.errors import StoreError
from tunewright.db.store import Store, open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.sketches import default_schedule, holds, spaces
from tunewright.tuner.lookup import experience, predictor
from tunewright.tuner.lookup.experience import learn, newest_snapshot
from tunewright.tuner.lookup.ladder import Ladder
from tunewright.tuner.lookup.predictor import FixedPredictor, Predictor, pick_by, predict
from tunewright.tuner.lookup.result import Basis, Match, read
from tunewright.tuner.search.learning import Learning

from .test_lookup import FAR, NEAR, NEARER, TARGET, TASK, product

HELD_OUT = product(64, 64, 96)


def add_trials(store: Store, count: int, seed: int = 0, tasks: Sequence[Task] = (NEAR, NEARER, FAR, HELD_OUT)) -> None:
    """The larger the sum of a schedule's values, the slower. One of the tasks is held out."""
    for task in tasks:
        store.add_task(task)
        [space, *_] = spaces(task, TARGET)
        for row in space.sample(count, np.random.default_rng(seed)):
            schedule = space.schedule(row)
            time_s = 1e-3 * (1 + sum(value for _, value in schedule.values) % 50)
            measurement = Measurement(Status.OK, (time_s,), time_s, time_s, time_s, 0.0)
            store.record(Record(task.key, TARGET.key, schedule, measurement))


@pytest.fixture
def store(store: Store) -> Store:
    store.add_target(TARGET)
    add_trials(store, 60)
    return store


def fitted(store: Store) -> Predictor:
    one = Predictor(store)
    one.pick(TASK, TARGET, set())
    one.wait(60.0)
    return one


def test_it_never_holds_up_an_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(*arguments):
        go_on.wait(60.0)
        return learn(*arguments)

    monkeypatch.setattr(predictor, "learn", slow)
    one = Predictor(store)
    started_s = time.monotonic()
    assert one.pick(TASK, TARGET, set()) is None
    assert time.monotonic() - started_s < 1.0
    go_on.set()
    one.wait(60.0)
    assert one.pick(TASK, TARGET, set()) is not None


def test_picks_are_legal_and_stay_the_same(store: Store) -> None:
    one = fitted(store)
    picked = one.pick(TASK, TARGET, set())
    assert picked is not None and holds(TASK, TARGET, picked.schedule) and picked.time_s > 0
    assert picked.schedule != default_schedule(TASK, TARGET)
    assert one.pick(TASK, TARGET, set()) == picked
    assert fitted(store).pick(TASK, TARGET, set()) == picked
    another = one.pick(TASK, TARGET, {picked.schedule.key})
    assert another is not None and another.schedule != picked.schedule


def test_the_default_stays_unless_another_is_clearly_faster(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "CLEAR", {"cpu": 100.0})
    assert fitted(store).pick(TASK, TARGET, set()) is None
    default = default_schedule(TASK, TARGET)
    assert fitted(store).pick(TASK, TARGET, {default.key}) is not None


@pytest.mark.parametrize("of_session", [False, True])
def test_it_is_better_than_what_is_clearly_slower(store: Store, of_session: bool) -> None:
    learn(store, "cpu")
    one = FixedPredictor(store) if of_session else fitted(store)
    model = XGBModel(experience.proven_experience(store, "cpu").learned)
    [space, *_] = spaces(TASK, TARGET)
    drawn = space.sample(200, np.random.default_rng(3))
    order = np.argsort(model.score(TASK, TARGET, space, drawn))
    slow, fast = space.schedule(drawn[order[0]]), one.pick(TASK, TARGET, set())
    best = fast.schedule if fast is not None else default_schedule(TASK, TARGET)
    better = one.better(TASK, TARGET, set(), slow)
    assert better is not None and better.schedule == best and better.time_s > 0
    assert one.better(TASK, TARGET, set(), slow) == better
    assert one.better(TASK, TARGET, set(), best) is None


def test_a_default_that_fails_is_better_than_nothing_else(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = fitted(store)
    monkeypatch.setattr(predictor, "pick_by", lambda *_: None)
    default, other = default_schedule(TASK, TARGET), spaces(TASK, TARGET)[0]
    rival = other.schedule(other.sample(5, np.random.default_rng(0))[0])
    assert one.better(TASK, TARGET, {default.key}, rival) is None


def test_of_sketches_that_it_knows_nothing_of_there_is_no_pick(store: Store) -> None:
    learn(store, "cpu")
    learned = experience.proven_experience(store, "cpu").learned
    assert learned is not None and learned.sketches is not None
    model, known = XGBModel(learned), [space for space in spaces(TASK, TARGET) if learned.knows(space)]
    assert [space.sketch for space in known] == [spaces(TASK, TARGET)[0].sketch]
    picked = pick_by(model, TASK, TARGET, ())
    assert picked is not None and picked.schedule.sketch == known[0].sketch
    stranger = XGBModel(replace(learned, sketches=frozenset({"another 1"})))
    assert pick_by(stranger, TASK, TARGET, ()) is None
    assert pick_by(stranger, TASK, TARGET, {default_schedule(TASK, TARGET).key}) is None


def test_the_ladder_uses_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunewright.tuner.lookup.ladder.FARTHEST", -1.0)
    one = fitted(store)
    found = Ladder(store, one).find([TASK], TARGET)[TASK.key]
    assert (found.match, found.basis) == (Match.PREDICTED, Basis.PREDICTED)
    assert found.expected_s is not None and found.expected_s > 0
    again = read(TASK, TARGET, found.to_json())
    assert (again.match, again.schedule) == (Match.PREDICTED, found.schedule)
    assert again.expected_s == pytest.approx(found.expected_s)
    assert Ladder(store).find([TASK], TARGET)[TASK.key].match is Match.DEFAULT


def test_a_session_picks_by_what_is_known_now(store: Store) -> None:
    assert FixedPredictor(None).pick(TASK, TARGET, set()) is None
    assert FixedPredictor(store).pick(TASK, TARGET, set()) is None
    learn(store, "cpu")
    assert FixedPredictor(store).pick(TASK, TARGET, set()) == fitted(store).pick(TASK, TARGET, set()) is not None


def test_what_was_learned_is_kept_with_how_good_it_is(store: Store) -> None:
    assert newest_snapshot(store, "cpu") is None
    made = learn(store, "cpu")
    assert made is not None and made.trials == store.newest_trial() == made.newest_trial_id
    assert made.metrics.keys() == {"held_out", "below"}
    assert all(figures["tasks"] == 1 and figures["trials"] == 60 for figures in made.metrics.values())
    again = newest_snapshot(store, "cpu")
    assert again is not None and again.sha256 == made.sha256
    assert learn(store, "cpu") is None


def test_it_learns_again_as_trials_are_added(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "PAUSE_S", 0.0)
    one = fitted(store)
    first = newest_snapshot(store, "cpu")
    add_trials(store, 60, seed=1)
    one.pick(TASK, TARGET, set())
    one.wait(60.0)
    second = newest_snapshot(store, "cpu")
    assert first is not None and second is not None and second.trials > first.trials


def test_it_sees_what_another_process_has_learned(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = fitted(store)
    before = one.pick(TASK, TARGET, set())
    add_trials(store, 60, seed=1)
    assert learn(store, "cpu") is not None  # as a job does when it begins: nothing is left to learn then
    monkeypatch.setattr(predictor, "PAUSE_S", 0.0)
    one.pick(TASK, TARGET, set())
    one.wait(60.0)
    monkeypatch.setattr(predictor, "PAUSE_S", 60.0)
    assert one.pick(TASK, TARGET, set()) == FixedPredictor(store).pick(TASK, TARGET, set()) != before


def test_a_model_is_made_anew_only_where_more_is_known(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = fitted(store)
    made: list[object] = []
    monkeypatch.setattr(predictor, "PAUSE_S", 0.0)
    monkeypatch.setattr(predictor, "XGBModel", made.append)
    one.pick(TASK, TARGET, set())
    one.wait(60.0)
    assert made == []


def test_lookups_pick_by_no_snapshot_of_unknown_worth() -> None:
    """There are no tasks to judge it by. A job begins with it nevertheless: it measures what it picks."""
    assert is_held_out(HELD_OUT.key) and not any(is_held_out(task.key) for task in (NEAR, NEARER, FAR))
    with open_store("sqlite://") as unjudged:
        unjudged.add_target(TARGET)
        add_trials(unjudged, 60, tasks=(NEAR, NEARER, FAR))
        made = learn(unjudged, "cpu")
        assert made is not None and made.metrics == {"held_out": None, "below": None}
        assert FixedPredictor(unjudged).pick(TASK, TARGET, set()) is None
        assert fitted(unjudged).pick(TASK, TARGET, set()) is None
        assert predict(unjudged, TASK, TARGET, default_schedule(TASK, TARGET)) is None
        assert Learning(unjudged, TARGET, {TASK.key}, seed=0).costs.ready


GOOD: dict[str, Any] = {"pairwise": 0.8, "peak_1": 0.9}
BETTER: dict[str, Any] = {"pairwise": 0.85, "peak_1": 0.9}


@pytest.mark.parametrize(
    ("metrics", "proven"),
    [
        ({"held_out": BETTER, "below": GOOD}, True),
        ({"held_out": GOOD, "below": GOOD}, True),
        ({"held_out": GOOD, "below": BETTER}, False),
        ({"held_out": {**BETTER, "peak_1": 0.8}, "below": GOOD}, False),
        ({"held_out": {**BETTER, "pairwise": None}, "below": GOOD}, False),
        ({"held_out": BETTER}, False),
        ({"held_out": None, "below": None}, False),
    ],
    ids=["better", "as good", "worse", "worse at its pick", "not told apart", "never compared", "nothing held out"],
)
def test_lookups_pick_by_what_is_no_worse_than_the_base_model(
    store: Store, monkeypatch: pytest.MonkeyPatch, metrics: dict[str, Any], proven: bool
) -> None:
    monkeypatch.setattr(experience, "_metrics", lambda trials, below: metrics)
    learn(store, "cpu")
    assert (FixedPredictor(store).pick(TASK, TARGET, set()) is not None) == proven


@pytest.mark.slow
def test_a_prediction_is_no_surer_than_the_model_was_on_tasks_held_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = default_schedule(NEAR, TARGET)
    metrics = {"held_out": BETTER | {"time_error": 1.0}, "below": GOOD}
    monkeypatch.setattr(experience, "_metrics", lambda trials, below: metrics)
    learn(store, "cpu")
    said = predict(store, NEAR, TARGET, default)  # of whose trials it has learned
    assert said is not None and said.deviation == pytest.approx(1 / MEDIAN_OF_NORMAL)
    metrics["held_out"]["time_error"] = None
    add_trials(store, 60, seed=1)
    learn(store, "cpu")
    surer = predict(store, NEAR, TARGET, default)
    assert surer is not None and surer.deviation < 1


def test_a_snapshot_above_another_base_model_is_not_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(store, "cpu")
    other = type("Base", (), {"sha256": "0" * 64, "learned": None})
    monkeypatch.setattr(experience, "base", lambda kind: other)
    assert newest_snapshot(store, "cpu") is None


def test_a_snapshot_in_another_form_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(store, "cpu")
    assert experience.experience(store, "cpu").learned is not None
    monkeypatch.setattr("tunewright.costmodel.layered_model.FORM", 0)
    assert experience.experience(store, "cpu").learned is None
    assert newest_snapshot(store, "cpu") is None


@pytest.mark.slow
def test_what_is_in_a_snapshot_in_another_form_is_learned_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(store, "cpu")
    monkeypatch.setattr("tunewright.costmodel.layered_model.FORM", 0)
    made = learn(store, "cpu")  # though no trial was added
    assert made is not None and made.trials == 240
    assert experience.experience(store, "cpu").snapshot == newest_snapshot(store, "cpu") is not None
    assert learn(store, "cpu") is None


def test_too_few_trials_make_no_model() -> None:
    with open_store("sqlite://") as empty:
        assert fitted(empty).pick(TASK, TARGET, set()) is None


def test_a_database_that_is_away_is_no_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def away():
        raise StoreError("it is away")

    monkeypatch.setattr(store, "newest_trial", away)
    assert fitted(store).pick(TASK, TARGET, set()) is None
