"""What a job makes of its measurements, with a pool that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Self

import pytest

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.jobs import Budget, JobSpec, JobTask, Lease
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.errors import Refused
from tunewright.tuner.job import TuningJob
from tunewright.tuner.lookup import Match, lookup
from tunewright.tuner.model import Model, open_model
from tunewright.tuner.report import Report
from tunewright.tuner.session import InferenceSession
from tunewright.tuner.settings import settings
from tunewright.tuner.tenure import Tenure
from tunewright.tuner.whole_model import Timing, time_sessions
from tunewright.workers.pool import DeviceState, ReferenceFailed

from .conftest import small_model

TARGET = detect(1)
FAILED = Measurement(Status.CRASH, error="signal 11")

Outcome = Callable[[Candidate], Measurement]


def took(time_s: float) -> Measurement:
    return Measurement(Status.OK, (time_s,) * 5, time_s, time_s, time_s)


class Told:
    """A pool that measures nothing. The same outcome whether alone or compared, unless `compared` says another."""

    def __init__(self, outcome: Outcome, compared: Outcome | None = None) -> None:
        self._outcome, self._compared = outcome, compared or outcome
        self.comparisons: list[list[Schedule]] = []

    def measure(
        self, candidates: Sequence[Candidate], limit_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        yield from ((candidate, self._outcome(candidate)) for candidate in candidates)

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        self.comparisons.append([candidate.schedule for candidate in candidates])
        return [self._compared(candidate) for candidate in candidates]

    def devices(self) -> list[DeviceState]:
        return []

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[SqlStore]:
    with open_store("sqlite://") as opened:
        yield opened


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


def spec_of(network: Model, store: SqlStore, seed: int = 0, target: Target = TARGET) -> JobSpec:
    store.add_target(target)
    for task in tasks(network):
        store.add_task(task)
    uses = tuple(JobTask(key, count) for key, (_, count) in network.tasks.items())
    return JobSpec(network.sha256, target.key, uses, {"seed": seed})


def leased(network: Model, store: SqlStore, trials: int = 12, seed: int = 0) -> Lease:
    lease = store.jobs.open(spec_of(network, store, seed), network.label, Budget(trials), "me", 30.0)
    assert lease is not None
    return lease


def job(network: Model, store: SqlStore, pool: Told, trials: int = 12, timing: Timing | None = None) -> Report:
    with Tenure(store.jobs, leased(network, store, trials), 30.0) as tenure:
        return work(network, store, pool, tenure, timing)


def work(network: Model, store: SqlStore, pool: Told, tenure: Tenure, timing: Timing | None = None) -> Report:
    found = store.jobs.get(tenure.lease.job_id)
    return TuningJob(found, list(network.tasks.values()), TARGET, store, pool, tenure, timing=timing).run()


def is_default(candidate: Candidate) -> bool:
    return candidate.schedule == default_schedule(candidate.task, candidate.target)


def by_key(candidate: Candidate) -> Measurement:
    """The default takes 1 ms, every other schedule less, each its own time."""
    return took(1e-3 if is_default(candidate) else 1e-4 + int(candidate.schedule.key[:4], 16) * 1e-9)


def tasks(network: Model) -> list[Task]:
    return [task for task, _ in network.tasks.values()]


def test_the_best_are_compared_and_the_winner_is_used(network: Model, store: SqlStore) -> None:
    def compared(candidate: Candidate) -> Measurement:
        return took(2e-3) if is_default(candidate) else took(1.0 - by_key(candidate).samples_s[0])

    pool = Told(by_key, compared)
    report = job(network, store, pool)
    assert len(pool.comparisons) == len(report.tasks) == 2
    found = lookup(store, tasks(network), TARGET)
    for task, schedules in zip(report.tasks, pool.comparisons, strict=True):
        records = store.records(task.key, TARGET.key)
        fastest = sorted(records, key=lambda record: record.measurement.median_s or 0)[:3]
        assert schedules[1:] == [record.schedule for record in fastest]
        # All are slower than the default beside each other, so it is what is used.
        assert found[task.key].schedule == schedules[0] == Schedule.from_json(task.schedule)
        assert found[task.key].confirmed and found[task.key].match == Match.EXACT
        assert task.best_s == task.default_s == found[task.key].expected_s == 2e-3


def test_what_fails_when_compared_is_not_used(network: Model, store: SqlStore) -> None:
    fails: set[str] = set()

    def compared(candidate: Candidate) -> Measurement:
        return FAILED if candidate.schedule.key in fails else by_key(candidate)

    pool = Told(by_key, compared)
    for task in tasks(network):
        fails |= {schedule.key for schedule in (default_schedule(task, TARGET),)}
    report = job(network, store, pool, timing=partial(time_sessions, network, TARGET, settings().objects))
    assert report.default_s is None
    assert report.tuned_s is not None and report.tuned_s > 0
    for task_report in report.tasks:
        assert task_report.default_s is None
        assert task_report.schedule != default_schedule(network.tasks[task_report.key][0], TARGET).to_json()
    fails |= {schedule.key for schedules in pool.comparisons for schedule in schedules}
    before = lookup(store, tasks(network), TARGET)
    job(network, store, pool, 4)
    for key, one in lookup(store, tasks(network), TARGET).items():
        assert one.schedule.key not in fails
        assert one.schedule != before[key].schedule


def test_faster_trials_after_a_comparison_are_used(network: Model, store: SqlStore) -> None:
    job(network, store, Told(by_key))
    [first, *_] = tasks(network)
    known = {record.schedule.key for record in store.records(first.key, TARGET.key)}
    [space, *_] = spaces(first, TARGET)
    fresh = next(s for s in map(space.schedule, space.points) if s.key not in known)
    store.record(Record(first.key, TARGET.key, fresh, took(1e-9)))
    found = lookup(store, [first], TARGET)[first.key]
    assert (found.schedule, found.confirmed) == (fresh, False)


def test_a_job_on_which_nothing_works(network: Model, store: SqlStore) -> None:
    report = job(network, store, Told(lambda candidate: FAILED))
    assert report.default_s is None and report.tuned_s is None
    assert report.failed == {"crash": 12}
    assert [task.best_s for task in report.tasks] == [None, None]


def test_a_task_without_a_reference_leaves_the_others(network: Model, store: SqlStore, caplog) -> None:
    [first, second] = tasks(network)

    def outcome(candidate: Candidate) -> Measurement:
        if candidate.task.key == first.key:
            raise ReferenceFailed(first.key, "its reference takes too long")
        return by_key(candidate)

    report = job(network, store, Told(outcome))
    assert [task.trials > 1 for task in report.tasks] == [False, True]
    assert caplog.messages == ["not tuned: its reference takes too long"]
    assert lookup(store, [second], TARGET)[second.key].confirmed


def test_a_default_that_fails_is_replaced(network: Model, store: SqlStore) -> None:
    store.add_target(TARGET)
    for task in tasks(network):
        store.add_task(task)
        store.record(Record(task.key, TARGET.key, default_schedule(task, TARGET), FAILED))
    found = lookup(store, tasks(network), TARGET)
    for one in found.values():
        assert one.match == Match.UNTRIED
        assert one.schedule != default_schedule(one.task, TARGET)
    assert lookup(store, tasks(network), TARGET) == found
    with InferenceSession.of_found(network, TARGET, found) as session:
        assert (session.coverage().tuned, session.coverage().untuned) == (0, 2)
        assert session.schedules == {key: one.schedule for key, one in found.items()}


def test_a_task_without_any_schedule_is_refused(network: Model, store: SqlStore, monkeypatch) -> None:
    monkeypatch.setattr("tunewright.tuner.lookup.found.DRAWN", 3)
    store.add_target(TARGET)
    for task in tasks(network):
        store.add_task(task)
    for _ in range(20):
        found = lookup(store, tasks(network), TARGET)
        for key, one in found.items():
            store.record(Record(key, TARGET.key, one.schedule, FAILED))
    assert {one.match for one in found.values()} == {Match.NONE}
    with pytest.raises(Refused, match="its default and all else that was tried fail"):
        InferenceSession.of_found(network, TARGET, found)
