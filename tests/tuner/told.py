"""A pool that says what the test wants, and jobs to run on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Self

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.jobs import Budget, JobSpec, JobTask, Lease
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.jobs.job import TuningJob
from tunewright.tuner.jobs.report import Report
from tunewright.tuner.jobs.tenure import Tenure
from tunewright.tuner.jobs.whole_model import Timing
from tunewright.tuner.models.model import Model
from tunewright.workers.pool import DeviceState

LEASE_S = 30.0

TARGET = detect(1)
FAILED = Measurement(Status.CRASH, error="signal 11")

Outcome = Callable[[Candidate], Measurement]


def took(time_s: float) -> Measurement:
    return Measurement(Status.OK, (time_s,) * 5, time_s, time_s, time_s)


class Opened:
    """What is opened, and has nothing to close."""

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Told(Opened):
    """A pool that measures nothing. The same outcome whether alone or compared, unless `compared` says another."""

    def __init__(self, outcome: Outcome, compared: Outcome | None = None) -> None:
        self._outcome, self._compared = outcome, compared or outcome
        self.comparisons: list[list[Schedule]] = []

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        yield from ((candidate, self._outcome(candidate)) for candidate in candidates)

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        self.comparisons.append([candidate.schedule for candidate in candidates])
        return [self._compared(candidate) for candidate in candidates]

    def devices(self) -> list[DeviceState]:
        return []


def is_default(candidate: Candidate) -> bool:
    return candidate.schedule == default_schedule(candidate.task, candidate.target)


def by_key(candidate: Candidate) -> Measurement:
    """The default takes 1 ms, every other schedule less, each its own time."""
    return took(1e-3 if is_default(candidate) else 1e-4 + int(candidate.schedule.key[:4], 16) * 1e-9)


def tasks(network: Model) -> list[Task]:
    return [task for task, _ in network.tasks.values()]


def spec_of(network: Model, store: SqlStore, seed: int = 0, target: Target = TARGET) -> JobSpec:
    store.add_target(target)
    for task in tasks(network):
        store.add_task(task)
    uses = tuple(JobTask(key, count) for key, (_, count) in network.tasks.items())
    return JobSpec(network.sha256, target.key, uses, {"seed": seed} | network.assembly.settings)


def leased(network: Model, store: SqlStore, trials: int = 12, seed: int = 0, until: float | None = None) -> Lease:
    budget = Budget(trials, until=until)
    lease = store.jobs.open(spec_of(network, store, seed), network.label, budget, "me", LEASE_S)
    assert lease is not None
    return lease


def job(
    network: Model,
    store: SqlStore,
    pool: Told,
    trials: int = 12,
    seed: int = 0,
    timing: Timing | None = None,
    until: float | None = None,
) -> Report:
    """What a job came to that this process works on from its begin to its end."""
    with Tenure(store.jobs, leased(network, store, trials, seed, until), LEASE_S) as tenure:
        return work(network, store, pool, tenure, timing)


def work(network: Model, store: SqlStore, pool: Told, tenure: Tenure, timing: Timing | None = None) -> Report:
    """The same of a job that is leased."""
    found = store.jobs.get(tenure.lease.job_id)
    return TuningJob(found, list(network.tasks.values()), TARGET, store, pool, tenure, timing=timing).run()
