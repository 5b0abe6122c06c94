"""Which of the finalists of a task is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.best import TaskComparisons
from tunewright.graph.task import Axis, Stage, Task, Tensor, canonical
from tunewright.search_space.measurement import NOISE, Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.known_times import KnownTimes
from tunewright.tuner.models.assembly import Assembly, CallRange, TaskChain
from tunewright.tuner.search.confirmation import COMPARED_AGAIN, HEAD_START, Confirmation
from tunewright.tuner.search.context import JobContext
from tunewright.tuner.search.regression import Regression
from tunewright.tuner.search.search_rule import SearchRule, _chain_neighbours
from tunewright.tuner.search.task_state import TaskState
from tunewright.workers.measure.cache_flush import LASTING_S
from tunewright.workers.pool import ReferenceFailed

DEFAULT, OTHER, *OTHERS = (Schedule("tiled", 1, (("a", number),)) for number in range(3 + COMPARED_AGAIN))

TARGET = replace(detect(1), l2_bytes=1 << 20, l3_bytes=32 << 20)


def scaled(count: int) -> Task:
    """Products of as many elements with constants."""
    x, w, y = (
        Tensor("x", (count,), DType.F32),
        Tensor("w", (count,), DType.F32, constant=True),
        Tensor("y", (count,), DType.F32),
    )
    at = (Var("i"),)
    return canonical(
        "Mul", [x, w], [y], [], [Stage("y", (Axis("i", count),), Load("x", at, DType.F32) * Load("w", at, DType.F32))]
    )


def confirming(task: Task, occurrences: int) -> tuple[Confirmation, TaskState]:
    """Of a model that is one task, so many times."""
    context, state = one_task(task, occurrences)
    return Confirmation(context, None, SearchRule(context)), state


def one_task(task: Task, occurrences: int, target: Target = TARGET) -> tuple[JobContext, TaskState]:
    state = TaskState(task, occurrences, DEFAULT, (), cast("Any", None))
    nobody = cast("Any", None)
    context = JobContext(nobody, nobody, nobody, target, nobody, [state], Assembly((occurrences,)), Counter())
    return context, state


def ok(cold_s: float, warm_s: float | None = None) -> Measurement:
    return Measurement(Status.OK, (cold_s,), cold_s, cold_s, cold_s, warm_s=warm_s)


def chosen(found: tuple[Confirmation, TaskState], default: Measurement, other: Measurement) -> Schedule | None:
    one, state = found
    choice = one._choice(state, [(DEFAULT, default), (OTHER, other)])
    return choice and choice[0]


@pytest.mark.parametrize(
    ("constants", "occurrences", "by_warm"),
    [
        (1 << 10, 1, True),  # the second-level cache keeps them from run to run
        (1 << 10, 500, False),  # but not those of such a model
        (1 << 19, 1, True),  # they are in the last-level cache, as they are where the task runs alone
        (1 << 19, 20, False),
    ],
)
def test_finalists_are_judged_as_they_run_in_the_model(constants: int, occurrences: int, by_warm: bool) -> None:
    default, other = ok(2e-4, warm_s=1e-4), ok(1.9e-4, warm_s=1.5e-4)
    expected = DEFAULT if by_warm else OTHER
    assert chosen(confirming(scaled(constants), occurrences), default, other) == expected


def spread(median_s: float, part: float, **more: Any) -> Measurement:
    """Five samples whose interval is that part of their median."""
    samples_s = tuple(median_s * (1 + part * n / 4) for n in range(-2, 3))
    return Measurement(Status.OK, samples_s, median_s, samples_s[0], samples_s[-1], **more)


@pytest.mark.parametrize("by_warm", [False, True])
@pytest.mark.parametrize(("wide", "other"), [(0, 1), (1, 0)])
def test_times_that_lie_far_apart_are_marked(wide: int, other: int, by_warm: bool) -> None:
    """So is a gain of which the default's lie apart alone. What counts is what they are judged by."""
    one, state = confirming(scaled(1 << 10), 1 if by_warm else 500)
    parts = {wide: 0.12, other: 0.05}

    def timed(number: int, median_s: float) -> Measurement:
        counts, not_counting = spread(median_s, parts[number]), spread(median_s, 0.0 if wide == number else 0.5)
        cold, warm = (not_counting, counts) if by_warm else (counts, not_counting)
        return replace(cold, warm_s=median_s, warm_samples_s=warm.samples_s)

    report = one._report(state, [(DEFAULT, timed(0, 2e-4)), (OTHER, timed(1, 1e-4))])
    assert report.noise == "times of one and the same schedule lie 12% apart"
    assert report.best_interval_s == pytest.approx((1e-4 * (1 - parts[1] / 2), 1e-4 * (1 + parts[1] / 2)))
    choice = one._choice(state, [(DEFAULT, timed(0, 2e-4)), (OTHER, timed(1, 1e-4))])
    assert choice is not None and choice[1].provenance[NOISE] == report.noise
    told = KnownTimes.of_confirmation(Measurement.from_json(choice[1].to_json()), TARGET)  # of what is stored
    assert told.to_json().items() <= report.to_json().items()


def test_what_else_was_busy_is_told_beside_it() -> None:
    one, state = confirming(scaled(1 << 10), 500)
    report = one._report(state, [(DEFAULT, spread(1e-4, 0.2, provenance={NOISE: "others"}))])
    assert report.noise == "others; times of one and the same schedule lie 20% apart"


def test_few_samples_have_no_interval() -> None:
    one, state = confirming(scaled(1 << 10), 500)
    report = one._report(state, [(DEFAULT, ok(1e-4))], False)
    assert report.default_interval_s is report.best_interval_s is None


def test_long_runs_are_judged_as_trials_are() -> None:
    assert chosen(confirming(scaled(1 << 10), 1), ok(1e-2, warm_s=0.8e-2), ok(0.9e-2, warm_s=0.9e-2)) == OTHER


def test_times_with_cold_caches_are_not_held_against_warm_ones() -> None:
    """One of the two is long, the other is not."""
    one = confirming(scaled(1 << 10), 1)
    assert chosen(one, ok(2.1e-3, warm_s=1.6e-3), ok(1.95e-3, warm_s=1.7e-3)) == DEFAULT
    assert chosen(one, ok(2.1e-3), ok(1.95e-3, warm_s=2.2e-3)) == OTHER


@pytest.mark.parametrize(
    ("cold_s", "target", "expected"),
    [
        (1e-3, TARGET, True),
        (LASTING_S, TARGET, False),
        (1e-3, replace(TARGET, l2_bytes=1 << 10, l3_bytes=1 << 10), False),
    ],
)
def test_some_of_each_sketch_are_finalists_where_times_are_judged_warm(
    cold_s: float, target: Target, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, state = one_task(scaled(1 << 10), 1, target)
    state.best = DEFAULT, ok(cold_s)
    asked = []
    monkeypatch.setattr(TaskState, "finalists", lambda *args, of_each_sketch: asked.append(of_each_sketch))
    SearchRule(context).finalists(state, None)
    assert asked == [expected]


def test_tasks_that_may_stand_for_each_other_are_settled_together() -> None:
    chains = ((TaskChain((0, 1), (CallRange(0, 2, 2),)), 1), (TaskChain((2, 3), (CallRange(0, 2, 4),)), 1))
    nobody = cast("Any", None)
    context = JobContext(nobody, nobody, nobody, TARGET, nobody, [], Assembly((1,) * 6, chains), Counter())
    assert _chain_neighbours(context, {5}) == set()
    assert _chain_neighbours(context, {0}) == {1, 2}
    assert _chain_neighbours(context, {0, 1, 2}) == {3, 4}


def test_the_default_has_to_be_beaten() -> None:
    found = confirming(scaled(1 << 10), 1)
    assert chosen(found, ok(1e-3), ok((1 - HEAD_START / 2) * 1e-3)) == DEFAULT
    assert chosen(found, ok(1e-3), ok((1 - 2 * HEAD_START) * 1e-3)) == OTHER
    assert chosen(found, Measurement(Status.CRASH), ok(1.0)) == OTHER
    assert found[0]._choice(found[1], []) is None


class ToldPool:
    """Compares as it is told to: what each schedule comes to, and in which comparison the reference fails."""

    def __init__(self, outcomes: dict[Schedule, Measurement], failing: int | None = None) -> None:
        self.compared: list[list[Schedule]] = []
        self._outcomes, self._failing = outcomes, failing

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        if len(self.compared) == self._failing:
            raise ReferenceFailed("task", "no memory")
        self.compared.append([candidate.schedule for candidate in candidates])
        return [self._outcomes[candidate.schedule] for candidate in candidates]


class EmptyStore:
    """Nothing was confirmed before; `confirmed` is what is now."""

    def __init__(self) -> None:
        self.confirmed: list[Measurement] = []

    def confirmations(self, keys: object, target_key: str) -> dict[str, Any]:
        return {}

    comparisons = confirmations

    def confirm(self, record: Any, lease: object, events: object) -> None:
        self.confirmed.append(record.measurement)


ALL = (DEFAULT, OTHER, *OTHERS)


def confirmed(pool: ToldPool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Schedule], list[Measurement]]:
    """Of a task all of whose schedules are finalists: what may be chosen in the end, and what the database has then."""
    task, nobody, store = scaled(1 << 10), cast("Any", None), EmptyStore()
    state = TaskState(task, 1, DEFAULT, (), nobody)
    keeper = cast("Any", SimpleNamespace(lease=None))
    context = JobContext(
        nobody, cast("Any", store), cast("Any", pool), TARGET, keeper, [state], Assembly((1,)), Counter()
    )
    finalists = [(schedule, ok((1 + n) * 1e-3)) for n, schedule in enumerate(ALL)]
    monkeypatch.setattr(TaskState, "finalists", lambda *args, of_each_sketch: finalists)
    compared, _ = Confirmation(context, None, SearchRule(context))._compare_finalists(state)
    return [schedule for schedule, _ in compared], store.confirmed


def test_of_many_finalists_the_best_of_a_first_comparison_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is always among them."""
    pool = ToldPool({schedule: ok((100 - n) * 1e-3, (100 - n) * 1e-3) for n, schedule in enumerate(ALL)})
    left, kept = confirmed(pool, monkeypatch)
    assert left == [DEFAULT, *ALL[-COMPARED_AGAIN:]]
    assert pool.compared == [list(ALL), left]
    assert [m.median_s for m in kept] == [pytest.approx((101 - len(ALL)) * 1e-3)]


def test_what_failed_in_a_first_comparison_is_not_chosen_where_there_is_no_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = {schedule: ok(1e-3, 1e-3) for schedule in ALL} | {OTHER: Measurement(Status.WRONG_RESULT)}
    left, kept = confirmed(ToldPool(outcomes, failing=1), monkeypatch)
    assert left == [schedule for schedule in ALL if schedule != OTHER] and kept == []


def test_where_nothing_works_any_more_the_database_comes_to_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    left, kept = confirmed(ToldPool(dict.fromkeys(ALL, Measurement(Status.CRASH))), monkeypatch)
    assert left == list(ALL) and [m.status for m in kept] == [Status.CRASH]


def comparisons(standing: Measurement | None, newest: Measurement | None = None) -> TaskComparisons:
    """Of a task that was confirmed before: the newest stands, unless another one is given."""
    before = None if standing is None else Record("t", TARGET.key, OTHER, standing)
    newest_record = before if newest is None else Record("t", TARGET.key, DEFAULT, newest)
    assert newest_record is not None
    return TaskComparisons(before, newest_record)


def test_slower_than_before_beyond_both_intervals_is_a_regression() -> None:
    before = spread(1e-3, 0.02, provenance={"llvm": "21", "system": "Linux", NOISE: ""})
    now = spread(1.2e-3, 0.02, provenance={"llvm": "22", "system": "Linux", "gpu": "H100"})
    event = Regression.between(comparisons(before), now)
    assert event is not None
    assert event.event("k", "Conv").data == {
        "task_key": "k",
        "op": "Conv",
        "before_ms": 1.0,
        "before_interval_ms": [pytest.approx(0.99), pytest.approx(1.01)],
        "now_ms": pytest.approx(1.2),
        "now_interval_ms": [pytest.approx(1.188), pytest.approx(1.212)],
        "before": {"llvm": "21"},
        "now": {"gpu": "H100", "llvm": "22"},
    }


SLOWER = spread(1.2e-3, 0.02)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, SLOWER),  # it was never confirmed
        (comparisons(spread(1.2e-3, 0.02)), spread(1e-3, 0.02)),  # it became faster
        (comparisons(spread(1.19e-3, 0.02)), SLOWER),  # the intervals overlap
        (comparisons(spread(1e-3, 0.02, provenance={NOISE: "others"})), SLOWER),
        (comparisons(spread(1e-3, 0.02)), spread(1.2e-3, 0.02, provenance={NOISE: "others"})),
        (comparisons(ok(1e-3)), SLOWER),  # too few samples for an interval
        (comparisons(spread(1e-3, 0.02)), ok(1.2e-3)),
        (comparisons(spread(1e-3, 0.02, warm_s=1e-3)), SLOWER),  # with warm caches, as another model has them
        (comparisons(Measurement(Status.CRASH)), SLOWER),
        (comparisons(spread(1e-3, 0.02)), Measurement(Status.CRASH)),
        (comparisons(None, spread(1e-3, 0.02)), SLOWER),  # it was taken back
        (comparisons(spread(9e-4, 0.02), spread(1e-3, 0.02)), SLOWER),  # so was the last one, and this is of before
    ],
)
def test_what_is_no_regression(before: TaskComparisons | None, now: Measurement) -> None:
    assert Regression.between(before, now) is None
