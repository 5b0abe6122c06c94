"""What a job tries first of a task."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.host import machine
from tunewright.codegen.target import Target
from tunewright.costmodel.model import AnalyticModel
from tunewright.db.best import TaskComparisons
from tunewright.db.job import SearchBudget
from tunewright.db.store import Store
from tunewright.search_space.measurement import DEFAULT_INTERVAL, NOISE, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.tuner import known_times
from tunewright.tuner.known_times import KnownTimes, is_current
from tunewright.tuner.models.assembly import Assembly
from tunewright.tuner.search.context import recall
from tunewright.tuner.search.progress import Progress
from tunewright.tuner.search.stage import JobStage
from tunewright.tuner.search.task_state import (
    FEWEST_FINALISTS,
    MOST_FINALISTS,
    OF_EACH,
    WITHIN,
    TaskState,
    finalist_count,
)  # fmt: skip

from ..search_space.test_winograd import conv
from .test_lookup import TARGET, TASK


def state_of(*known: Schedule) -> TaskState:
    records = [Record(TASK.key, TARGET.key, schedule, measured()) for schedule in known]
    return TaskState.of(TASK, 1, TARGET, records, AnalyticModel(), strategy="evolutionary", seed=0)


def measured(time_s: float = 1e-3) -> Measurement:
    return Measurement(Status.OK, (time_s,), time_s, time_s, time_s)


def others(count: int) -> list[Schedule]:
    """Points of the first space that are not its default."""
    space = spaces(TASK, TARGET)[0]
    return [s for s in map(space.schedule, space.points) if s != space.default][:count]


def test_the_default_comes_first_and_then_what_is_borrowed() -> None:
    state, borrowed = state_of(), others(2)
    state.borrowed = list(borrowed)
    asked = state.ask(6)
    assert asked[:3] == [state.default, *borrowed]
    assert len({schedule.key for schedule in asked}) == len(asked)
    assert state.borrowed == []


def record(schedule: Schedule, measurement: Measurement) -> Record:
    return Record(TASK.key, TARGET.key, schedule, measurement)


@pytest.mark.parametrize(("is_warm", "default_s"), [(False, 8e-4), (True, 1e-3)])
def test_what_was_confirmed_is_told_until_something_faster_is_found(is_warm: bool, default_s: float) -> None:
    """The default's one trial may be of a bad moment; but trials never have constants in the caches."""
    state, [first, second, third] = state_of(), others(3)
    state.tell(state.default, measured())
    state.tell(first, measured(9e-4))
    assert (state.times.default_s, state.times.best_s, state.times.is_confirmed) == (1e-3, 9e-4, False)
    interval_s = "7.9e-4 8.1e-4"
    provenance = {**machine(), NOISE: "it was busy", DEFAULT_INTERVAL: interval_s}
    winner = replace(measured(7e-4), incumbent_s=8e-4, warm_s=7e-4 if is_warm else 5e-4, provenance=provenance)
    confirmed = record(first, winner)
    compared = TaskComparisons(confirmed, confirmed)
    state.recall(compared, confirmed, TARGET)
    assert state.times == KnownTimes.of_confirmation(winner, TARGET)
    assert not state.improves(measured(9.5e-4)) and not state.improves(measured(7e-4))
    state.tell(second, measured(9.5e-4))  # faster than no trial, or than all others
    state.tell(others(4)[3], measured(8e-4))
    assert state.times == KnownTimes.of_confirmation(winner, TARGET) and state.known_s == 7e-4
    assert state.improves(measured(6e-4))
    state.tell(third, measured(6e-4))
    for _ in range(2):
        told = state.times
        assert (told.default_s, told.best_s, told.is_confirmed) == (default_s, 6e-4, False)
        assert told.noise == ("" if is_warm else "it was busy") and told.is_default_confirmed is not is_warm
        assert told.default_interval_s == (None if is_warm else (7.9e-4, 8.1e-4))
        sums = Progress(JobStage.SEARCHING, 4, SearchBudget(9), 1.0, [state], Assembly((1,)))
        assert (sums.is_tried, sums.is_default_tried) == (True, is_warm)
        state.recall(compared, record(third, measured(6e-4)), TARGET)  # as when the next job begins


def test_of_comparisons_that_were_taken_back_the_default_holds() -> None:
    """The best is that of the newest that stands, which was not beside it; what failed tells of nothing."""
    older, newer = (
        record(schedule, replace(measured(time_s), incumbent_s=2 * time_s, provenance=machine()))
        for schedule, time_s in zip(others(2), (7e-4, 6e-4), strict=True)
    )
    failed = record(others(2)[1], Measurement(Status.CRASH))
    both = KnownTimes.of_comparisons(TaskComparisons(older, newer), TARGET)
    assert both is not None
    assert (both.default_s, both.best_s, both.is_confirmed, both.is_apart) == (1.2e-3, 7e-4, True, True)
    alone = KnownTimes.of_comparisons(TaskComparisons(None, newer), TARGET)
    assert alone is not None and (alone.default_s, alone.best_s, alone.is_confirmed) == (1.2e-3, None, False)
    stands = KnownTimes.of_comparisons(TaskComparisons(older, failed), TARGET)
    assert stands == KnownTimes.of_confirmation(older.measurement, TARGET)
    assert KnownTimes.of_comparisons(TaskComparisons(failed, failed), TARGET) is None
    assert KnownTimes.of_comparisons(TaskComparisons(None, failed), TARGET) is None


def test_a_default_that_was_taken_back_is_told_no_longer() -> None:
    state, [winner] = state_of(), others(1)
    state.tell(state.default, Measurement(Status.VOIDED))
    state.tell(winner, measured())
    confirmed = record(winner, replace(measured(), incumbent_s=2e-3, provenance=machine()))
    state.recall(TaskComparisons(confirmed, confirmed), confirmed, TARGET)
    assert (state.times.default_s, state.times.best_s, state.times.is_confirmed) == (None, 1e-3, True)


@pytest.mark.parametrize("seed", range(20))
def test_a_job_goes_by_the_rule_of_the_database(seed: int, store: Store) -> None:
    """Whatever is tried and confirmed, in whatever order: while the job goes on, and as another begins."""
    store.add_target(TARGET)
    store.add_task(TASK)
    state, chance, best_s = state_of(), random.Random(seed), None
    for schedule in [state.default, *others(12)]:
        outcome = measured(chance.randint(1, 9) * 1e-4) if chance.random() < 0.8 else Measurement(Status.CRASH)
        improves = state.improves(outcome)
        store.record(record(schedule, outcome))
        state.tell(schedule, outcome)
        assert improves == (best_of(store) != best_s)
        if chance.random() < 0.4:
            kept = replace(measured(chance.randint(1, 9) * 1e-4), incumbent_s=5e-4, provenance=machine())
            winner = chance.choice([s for s, m in state.measured.values() if m.status is Status.OK] or [None])
            if winner is not None:
                store.confirm(record(winner, kept if chance.random() < 0.9 else Measurement(Status.CRASH)))
                recall(store, TARGET, [state])
        best_s = best_of(store)
        fresh = TaskState.of(
            TASK, 1, TARGET, store.records(TASK.key, TARGET.key), AnalyticModel(), strategy="random", seed=0
        )
        recall(store, TARGET, [fresh])
        assert state.times.best_s == fresh.times.best_s == best_s
        assert state.times == fresh.times


def best_of(store: Store) -> float | None:
    best = store.best(TASK.key, TARGET.key)
    return best.measurement.median_s if best else None


def test_a_confirmation_tells_whether_its_default_can_be_held_against_trials() -> None:
    """Where constants were not close by, and the code is of the compiler at hand: it may have another default."""
    stored = replace(measured(), incumbent_s=2e-3, warm_s=5e-4, provenance=machine())
    told = KnownTimes.of_confirmation(stored, TARGET)
    assert (told.default_s, told.best_s, told.is_confirmed, told.is_as_trials) == (2e-3, 1e-3, True, True)
    assert not KnownTimes.of_confirmation(replace(stored, warm_s=1e-3), TARGET).is_as_trials
    assert not KnownTimes.of_confirmation(replace(stored, provenance={}), TARGET).is_as_trials


@pytest.mark.parametrize("text", ["", "1e-3", "1e-3 2e-3 3e-3", "2e-3 1e-3", "0 1e-3", "1e-3 inf", "nan nan", "a b"])
def test_an_interval_beside_a_confirmation_may_be_any_text(text: str) -> None:
    """It comes with imports; what older versions confirmed has none."""
    stored = replace(measured(), incumbent_s=2e-3, provenance={DEFAULT_INTERVAL: text})
    assert KnownTimes.of_confirmation(stored, TARGET).default_interval_s is None


def test_one_at_a_time() -> None:
    state, borrowed = state_of(), others(2)
    state.borrowed = list(borrowed)
    found = []
    for _ in range(4):
        [schedule] = state.ask(1)
        state.tell(schedule, measured())
        found.append(schedule)
    assert found[:3] == [state.default, *borrowed]
    assert found[3] not in found[:3]


def test_what_is_borrowed_and_measured_already_is_not_tried_again() -> None:
    [borrowed] = others(1)
    state = state_of(spaces(TASK, TARGET)[0].default, borrowed)
    state.borrowed = [borrowed]
    asked = state.ask(4)
    assert len(asked) == 4 and borrowed not in asked


@pytest.mark.parametrize("of_each", [False, True])
def test_where_trials_do_not_tell_which_sketch_is_fastest_some_of_each_are_finalists(of_each: bool) -> None:
    task = conv(8, 8, 16, 16)
    state = TaskState.of(task, 1, TARGET, [], AnalyticModel(), strategy="evolutionary", seed=0)
    first, second, third = (
        [s for s in map(space.schedule, space.points[:20]) if s != state.default] for space in state.spaces[:3]
    )
    slower = (1.5, 1.01 * WITHIN)  # times the first sketch, the third of which is too slow
    for n in range(FEWEST_FINALISTS + OF_EACH + 1):
        state.tell(first[n], timed(1e-3 + n * 1e-6))
        state.tell(second[n], timed(slower[0] * 1e-3 + n * 1e-6))
        state.tell(third[n], timed(slower[1] * 1e-3 + n * 1e-6))
    expected = first[:FEWEST_FINALISTS] + (second[:OF_EACH] if of_each else [])
    assert [s for s, _ in state.finalists(TARGET, None, of_each_sketch=of_each)] == expected


@pytest.mark.parametrize(
    "trials, count",
    [(0, FEWEST_FINALISTS), (36, FEWEST_FINALISTS), (100, 10), (576, MOST_FINALISTS), (9999, MOST_FINALISTS)],
)
def test_of_more_trials_more_are_finalists(trials: int, count: int) -> None:
    assert finalist_count(TASK, trials) == count


@pytest.mark.parametrize("channels, count", [(128, MOST_FINALISTS), (1024, 7), (4096, FEWEST_FINALISTS)])
def test_there_are_as_many_finalists_as_their_constants_leave_room_for(channels: int, count: int) -> None:
    task = conv(4, 4, channels, channels)
    data, *weights = task.inputs
    task = replace(task, inputs=(data, *(replace(tensor, constant=True) for tensor in weights)))
    assert finalist_count(task, 9999) == count


def test_as_many_are_finalists_as_the_root_of_those_that_worked() -> None:
    *known, crashed, wrong = others(102)
    state = state_of()
    for schedule, status in ((crashed, Status.CRASH), (wrong, Status.WRONG_RESULT)):
        state.tell(schedule, Measurement(status, error="it fails"))
    for n, schedule in enumerate(known):
        state.tell(schedule, timed(1e-3 + n * 1e-6))
    assert [s for s, _ in state.finalists(TARGET, None, of_each_sketch=False)] == known[:10]


def timed(time_s: float) -> Measurement:
    return Measurement(Status.OK, (time_s,), time_s, time_s, time_s, provenance=machine())


@pytest.fixture
def nvrtc_at_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """The version that NVRTC is of from then on; "" where there is none."""

    def use(version: str) -> None:
        def told() -> str:
            if not version:
                raise nvrtc.NoCompiler("there is none")
            return version

        known_times.present_versions.cache_clear()
        monkeypatch.setattr(nvrtc, "version", told)

    yield use
    known_times.present_versions.cache_clear()


def test_code_of_a_gpu_is_as_new_as_the_compiler_of_gpus(nvrtc_at_hand: Callable[[str], None]) -> None:
    gpu, known = Target.of_gpu(KNOWN["sm_90a"]), machine()
    nvrtc_at_hand("13.5")
    assert is_current(known | {"nvrtc": "13.5", "llvm": "1.0"}, gpu)
    assert not is_current(known | {"nvrtc": "13.4"}, gpu)
    assert not is_current(known, gpu)


def test_another_driver_makes_what_was_tuned_stale(
    nvrtc_at_hand: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is none, as on the head of a cluster, its version says nothing."""
    gpu, known = Target.of_gpu(KNOWN["sm_90a"]), machine() | {"nvrtc": "13.5"}
    for driver, before, expected in (("13.1", "13.0", False), ("13.0", "13.0", True), ("", "13.0", True)):
        nvrtc_at_hand("13.5")
        monkeypatch.setattr(known_times, "driver_version", lambda driver=driver: driver)
        assert is_current(known | {"driver": before}, gpu) is expected
    assert known_times.versions_of(known | {"driver": "13.0", "gpu": "H200"}, gpu.kind) == {
        "tunewright": known["tunewright"], "nvrtc": "13.5", "driver": "13.0",
    }  # fmt: skip
    assert not is_current(known | {"nvrtc": "13.5", "tunewright": "0"}, gpu)
    assert is_current(known, TARGET) and not is_current(known | {"llvm": "1.0"}, TARGET)
    nvrtc_at_hand("")  # nodes of a cluster compile
    assert is_current(known | {"nvrtc": "13.4"}, gpu) and not is_current(known | {"tunewright": "0"}, gpu)
