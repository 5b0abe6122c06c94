"""A pool that says what the test wants, and jobs to run on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Self

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.job import VENDOR, JobSpec, Lease, SearchBudget, SpecTask
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.models.model import Model
from tunewright.tuner.search.job import TuningJob
from tunewright.tuner.search.lease_keeper import LeaseKeeper
from tunewright.tuner.search.report import Report
from tunewright.tuner.search.whole_model import Timing
from tunewright.workers.machine_sample import MachineSample
from tunewright.workers.pool import DeviceState

LEASE_S = 30.0

TARGET = detect(1)
FAILED = Measurement(Status.CRASH, error="signal 11")

Outcome = Callable[[Candidate], Measurement]


def took(time_s: float) -> Measurement:
    return Measurement(Status.OK, (time_s,) * 5, time_s, time_s, time_s)


class Openable:
    """What is opened, and has nothing to close."""

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class FakePool(Openable):
    """A pool that measures nothing. The same outcome whether alone or compared, unless `compared` says another."""

    def __init__(self, outcome: Outcome, compared: Outcome | None = None, machine: MachineSample | None = None) -> None:
        self._outcome, self._compared, self._machine = outcome, compared or outcome, machine
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

    def machine_sampler(self) -> Callable[[], MachineSample] | None:
        sample = self._machine
        return None if sample is None else lambda: sample


def is_default(candidate: Candidate) -> bool:
    return candidate.schedule == default_schedule(candidate.task, candidate.target)


def by_key(candidate: Candidate) -> Measurement:
    """The default takes 1 ms, every other schedule less, each its own time."""
    return took(1e-3 if is_default(candidate) else 1e-4 + int(candidate.schedule.key[:4], 16) * 1e-9)


def tasks(network: Model) -> list[Task]:
    return [task for task, _ in network.tasks.values()]


def spec_of(network: Model, store: Store, seed: int = 0, target: Target = TARGET, *, vendor: bool = False) -> JobSpec:
    store.add_target(target)
    for task in tasks(network):
        store.add_task(task)
    uses = tuple(SpecTask(key, count) for key, (_, count) in network.tasks.items())
    settings = {"seed": seed} | ({VENDOR: True} if vendor else {}) | network.assembly.settings
    return JobSpec(network.sha256, target.key, uses, settings)


def leased(
    network: Model,
    store: Store,
    trials: int = 12,
    seed: int = 0,
    until: float | None = None,
    *,
    vendor: bool = False,
) -> Lease:
    budget = SearchBudget(trials, until=until)
    lease = store.jobs.open(spec_of(network, store, seed, vendor=vendor), network.label, budget, "me", LEASE_S)
    assert lease is not None
    return lease


def job(
    network: Model,
    store: Store,
    pool: FakePool,
    trials: int = 12,
    seed: int = 0,
    timing: Timing | None = None,
    until: float | None = None,
    *,
    vendor: bool = False,
) -> Report:
    """What a job came to that this process works on from its begin to its end."""
    with LeaseKeeper(store.jobs, leased(network, store, trials, seed, until, vendor=vendor), LEASE_S) as keeper:
        return work(network, store, pool, keeper, timing)


def work(network: Model, store: Store, pool: FakePool, keeper: LeaseKeeper, timing: Timing | None = None) -> Report:
    """The same of a job that is leased."""
    found = store.jobs.get(keeper.lease.job_id)
    return TuningJob(found, list(network.tasks.values()), TARGET, store, pool, keeper, timing=timing).run()
