"""Curves: how a job got on, from made-up events and from those of a job in a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.db.job import Event, EventKind
from tunewright.db.store import Store
from tunewright.tuner.explain.curves import ENDS, Improvement, Speedup, active_s, improvements, speedups
from tunewright.tuner.models.model import Model, open_model

from .conftest import small_model
from .fake_pool import FakePool, by_key, job

BEGIN = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)


def events_of(*told: tuple[float, EventKind, dict[str, object]]) -> list[Event]:
    """Events, each so many seconds after the first moment."""
    return [
        Event(1, number, kind, dict(data), BEGIN + timedelta(seconds=at_s))
        for number, (at_s, kind, data) in enumerate(told, start=1)
    ]


def improved(at_s: float, trial: int, best_ms: float, task: str = "a") -> tuple[float, EventKind, dict[str, object]]:
    data: dict[str, object] = {"task_key": task, "op": "Conv", "best_ms": best_ms, "default_ms": 4.0, "trial": trial}
    return at_s, EventKind.IMPROVED, data


def progress(at_s: float, trials: int, speedup: float | None) -> tuple[float, EventKind, dict[str, object]]:
    return at_s, EventKind.PROGRESS, {"trials": trials, "speedup": speedup}


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def test_pauses_take_no_time() -> None:
    events = events_of(
        (0, EventKind.QUEUED, {}),
        (10, EventKind.STARTED, {}),
        improved(13, 4, 3.0),
        (20, EventKind.PAUSED, {}),
        (500, EventKind.RESUMED, {}),
        (600, EventKind.STARTED, {}),
        improved(605, 9, 2.0),
        improved(607, 11, 1.0, "b"),
        (610, EventKind.SUCCEEDED, {}),
    )
    assert improvements(events) == {
        "a": [Improvement(5, 3.0, 3e-3, default_s=4e-3), Improvement(10, 15.0, 2e-3, default_s=4e-3)],
        "b": [Improvement(12, 17.0, 1e-3, default_s=4e-3)],
    }
    assert [active_s(events, at(s)) for s in (0, 10, 15, 20, 300, 600, 606, 10_000)] == [0, 0, 5, 10, 10, 10, 16, 20]


def test_a_process_that_went_away_has_worked_until_its_last_word() -> None:
    events = events_of(
        (0, EventKind.STARTED, {}),
        progress(8, 3, 1.5),
        (9, EventKind.CHANGED, {"priority": 3}),  # not its word
        (5000, EventKind.LOST, {}),
        (5000, EventKind.STARTED, {}),
        improved(5002, 4, 3.0),
    )
    assert improvements(events)["a"] == [Improvement(5, 10.0, 3e-3, default_s=4e-3)]
    assert active_s(events, at(5003)) == 11.0
    assert active_s(events, at(1000)) == 8.0


def test_a_job_that_never_began_has_no_curves() -> None:
    events = events_of((0, EventKind.QUEUED, {}), (9, EventKind.CANCELLED, {}))
    assert (improvements(events), speedups(events), active_s(events, at(99))) == ({}, [], 0.0)
    assert (improvements([]), speedups([]), active_s([], at(9))) == ({}, [], 0.0)


@pytest.mark.parametrize("odd", [None, "1", -1.0, float("nan"), 0, True, []])
def test_events_without_usable_numbers_are_passed_over(odd: object) -> None:
    at_s, kind, data = improved(1.0, 1, 3.0)
    events = events_of(
        (0.0, EventKind.STARTED, {}), (at_s, kind, data | {"best_ms": odd}), (2.0, kind, {}), improved(3.0, 2, 2.0),
        (4.0, EventKind.PROGRESS, {"trials": 3, "speedup": odd}), progress(5.0, 4, 2.0),
    )  # fmt: skip
    assert improvements(events) == {"a": [Improvement(3, 3.0, 2e-3, default_s=4e-3)]}
    assert speedups(events) == [Speedup(4, 5.0, 2.0)]


def test_a_clock_that_goes_back_turns_no_curve_back() -> None:
    events = events_of((0, EventKind.STARTED, {}), improved(5, 1, 3.0), improved(4, 2, 2.0), improved(6, 3, 1.0))
    assert [one.at_s for one in improvements(events)["a"]] == [5.0, 5.0, 6.0]


spells = st.lists(
    st.tuples(
        st.integers(0, 1000),  # seconds that nobody is at it
        st.lists(st.integers(0, 50), min_size=1, max_size=5),  # seconds from one word of a process to its next
        st.sampled_from([*sorted(ENDS), EventKind.LOST]),
    ),
    max_size=5,
)


@given(spells, st.lists(st.integers(0, 6000), max_size=8))
def test_only_work_counts(spells: list[tuple[int, list[int], EventKind]], moments: list[int]) -> None:
    told: list[tuple[float, EventKind, dict[str, object]]] = []
    now, worked, expected, trial = 0, 0, [], 0
    for idle_s, steps_s, end in spells:
        now += idle_s
        told.append((now, EventKind.STARTED, {}))
        for step_s in steps_s:
            now, worked, trial = now + step_s, worked + step_s, trial + 1
            told.append(improved(now, trial, 100.0 / trial))
            expected.append(worked)
        now += 7
        worked += 7 if end is not EventKind.LOST else 0
        told.append((now, end, {}))
    events = events_of(*told)
    assert [one.at_s for one in improvements(events).get("a", [])] == expected
    assert active_s(events, at(now)) == worked
    shown = [active_s(events, at(moment)) for moment in sorted(moments)]
    assert all(0 <= after - before <= right - left for (before, after), (left, right) in zip(
        pairwise(shown), pairwise(sorted(moments)), strict=True))  # fmt: skip


@given(st.lists(st.sampled_from([None, 1.0, 1.5, 2.0]) | st.floats(0.5, 4.0), max_size=60), st.integers(2, 40))
def test_the_whole_models_curve_is_thinned_and_nowhere_far_off(values: list[float | None], most: int) -> None:
    events = events_of((0, EventKind.STARTED, {}), *(progress(n, n, value) for n, value in enumerate(values, start=1)))
    every = [Speedup(n, float(n), value) for n, value in enumerate(values, start=1) if value is not None]
    kept = speedups(events, most)
    assert len(kept) <= most
    assert kept[:1] == every[:1] and kept[-1:] == every[-1:]
    assert [one for one in every if one in kept] == kept
    changes = [right for left, right in pairwise(every) if left.speedup != right.speedup]
    if len(changes) + 2 <= most:
        assert set(changes) <= set(kept)
    # As a step curve, what is kept tells of each that is not kept, but for less than some factor.
    off = [
        abs(log(one.speedup / max((k for k in kept if k.trials <= one.trials), key=lambda k: k.trials).speedup))
        for one in every
    ]
    apart = [abs(log(right.speedup / left.speedup)) for left, right in pairwise(kept[:-1])]
    assert max(off, default=0.0) <= min(apart, default=max(off, default=0.0))


def test_a_day_of_progress_makes_few_points() -> None:
    told = (progress(n, n, 4.0 - 3.0 * 0.9999**n) for n in range(1, 20_000))
    kept = speedups(events_of((0, EventKind.STARTED, {}), *told))
    assert 50 < len(kept) <= 300
    assert all(right.speedup > left.speedup for left, right in pairwise(kept))


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


def test_curves_of_a_job(network: Model, store: Store) -> None:
    report = job(network, store, FakePool(by_key), trials=20)
    events = store.jobs.events(report.job_id)
    trials = store.jobs.trials(report.job_id)
    found = improvements(events)
    assert found.keys() == {task.key for task in report.tasks}
    for task in report.tasks:
        curve = found[task.key]
        assert all(a.trial < b.trial and a.at_s <= b.at_s and a.best_s > b.best_s for a, b in pairwise(curve))
        for one in curve:  # it is that trial, of that task
            trial = trials[one.trial - 1]
            assert trial.record.task_key == task.key
            assert trial.record.measurement.median_s == pytest.approx(one.best_s)
        fastest = min(t.record.measurement.median_s or 1.0 for t in trials if t.record.task_key == task.key)
        assert curve[-1].best_s == pytest.approx(fastest)
    worked_s = active_s(events, events[-1].created_at)
    assert max(one.at_s for curve in found.values() for one in curve) <= worked_s
    assert worked_s == (events[-1].created_at - events[1].created_at).total_seconds()
    whole = speedups(events)
    assert whole and whole[-1].trials == 20 and whole[-1].speedup > 1.0
