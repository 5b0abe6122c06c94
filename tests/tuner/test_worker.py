"""A tuner process: what it takes, how it is stopped, and what becomes of jobs whose process hangs or dies."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pytest

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.job import ATTEMPTS, UNFINISHED, EventKind, Job, JobSpec, JobState, Lease, NewEvent, SearchBudget
from tunewright.db.store import Store, open_store
from tunewright.graph.numerics import Precision
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.tuner.cli.work import log_to_stderr
from tunewright.tuner.interrupts import DRAINED
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.search.lease_keeper import LeaseKeeper
from tunewright.tuner.search.whole_model import ModelTimes, UploadTiming, Variant, Variants
from tunewright.tuner.search.worker import Drain, TunerProcess
from tunewright.tuner.settings import settings
from tunewright.tuner.text import printable
from tunewright.workers.pool import ClusterLost, DeviceState, Pool, PoolError
from tunewright.workers.sandbox.process import ChildStartError

from .conftest import small_model
from .fake_pool import TARGET, FakePool, Openable, Outcome, by_key, spec_of
from .processes import PROGRAM, freeze, python_path, until
from .wide_model import wide_model

MACHINE = detect(2)

OTHER = Target("cpu", "aarch64-unknown-linux-gnu", "cortex-a76", "+neon", 128, 32, 4, 1 << 16, 1 << 19, 0)

LEASE_S = 2.0


class Machine(Openable):
    """One device, for pools that say what the test wants."""

    def __init__(self, outcome: Outcome, quarantined_until: datetime | None = None) -> None:
        self.pools: list[FakePool] = []
        self.rests: list[tuple[str, str, float]] = []
        self._outcome, self._quarantined_until = outcome, quarantined_until

    def targets(self) -> list[Target]:
        return [] if self._quarantined_until else [MACHINE]

    def devices(self) -> list[DeviceState]:
        return [DeviceState("here", MACHINE, self._quarantined_until, "it burns" if self._quarantined_until else "")]

    def rest(self, device: str, reason: str, left_s: float) -> None:
        self.rests.append((device, reason, left_s))

    def pool(self, target: Target) -> Pool:
        self.pools.append(FakePool(self._outcome, by_key))
        return self.pools[-1]


def untimed(wanted: Variants) -> ModelTimes:
    return ModelTimes(reason="a test")


def tuner(store: Store, machine: Machine, drain: Drain | None = None, lease_s: float = LEASE_S) -> TunerProcess:
    return TunerProcess(
        store,
        machine,
        pool="told",
        lease_s=lease_s,
        objects=Path("unused"),
        drain=drain,
        timing=lambda job, target: untimed,
    )


@contextmanager
def at_work(store: Store, machine: Machine) -> Iterator[Drain]:
    """A tuner in another thread, drained in the end."""
    drain = Drain()
    thread = threading.Thread(target=tuner(store, machine, drain).run)
    thread.start()
    try:
        yield drain
    finally:
        drain.event.set()
        thread.join()


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tuning.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


class Submit:
    """Jobs of the small network, each of another seed."""

    def __init__(self, network: Model, store: Store) -> None:
        self._network, self._store, self._seeds = network, store, iter(range(1000))

    def __call__(self, trials: int = 6, seconds: float = float("inf"), priority: int = 0, **more: object) -> Job:
        spec = spec_of(self._network, self._store, next(self._seeds))
        spec = JobSpec(spec.model_sha256, spec.target_key, spec.tasks, spec.settings | more)
        return self._store.jobs.submit(spec, "small", SearchBudget(trials, seconds), priority=priority).job


@pytest.fixture
def submit(network: Model, store: Store) -> Submit:
    return Submit(network, store)


class Gate:
    """An outcome that each candidate waits for."""

    def __init__(self) -> None:
        self._passes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.entered = threading.Event()

    def __call__(self, candidate: Candidate) -> Measurement:
        self.entered.set()
        self._passes.get(timeout=60)
        return by_key(candidate)

    def open(self, candidates: int = 1000) -> None:
        for _ in range(candidates):
            self._passes.put(None)


def kinds(store: Store, job_id: int) -> list[EventKind]:
    quiet = (EventKind.PROGRESS, EventKind.STAGE, EventKind.DEFAULT, EventKind.IMPROVED, EventKind.CONFIRMED)
    return [event.kind for event in store.jobs.events(job_id) if event.kind not in quiet]


def check(store: Store, job_id: int, trials: int) -> None:
    """A job that has succeeded, measured so many candidates, and lost none."""
    job = store.jobs.get(job_id)
    assert (job.state, job.error) == (JobState.SUCCEEDED, "")
    assert [trial.ordinal for trial in store.jobs.trials(job_id)] == list(range(trials))
    assert [event.number for event in store.jobs.events(job_id)] == list(range(1, len(store.jobs.events(job_id)) + 1))


def test_jobs_are_done_by_priority_on_one_pool(store: Store, submit: Submit) -> None:
    jobs = [submit(priority=priority) for priority in (0, 5, 0)]
    machine = Machine(by_key)
    assert tuner(store, machine).run(once=True) == 3
    for job in jobs:
        check(store, job.id, 6)
    done = sorted(jobs, key=lambda job: store.jobs.get(job.id).updated_at)
    assert [job.id for job in done] == [jobs[1].id, jobs[0].id, jobs[2].id]
    assert len(machine.pools) == 1
    result = store.jobs.get(jobs[0].id).result
    assert result is not None
    assert (result["default_ms"], result["tuned_ms"], result["whole_model"]) == (None, None, "a test")


def test_jobs_of_other_machines_are_left_alone(store: Store, network: Model) -> None:
    job = store.jobs.submit(spec_of(network, store, target=OTHER), "small", SearchBudget(5)).job
    assert tuner(store, Machine(by_key)).run(once=True) == 0
    assert store.jobs.get(job.id).state is JobState.QUEUED


def test_a_job_that_waits_for_any_device_is_taken(store: Store, network: Model) -> None:
    spec = spec_of(network, store)
    waiting = JobSpec(spec.model_sha256, "", spec.tasks, spec.settings | {"threads": 1})
    job = store.jobs.submit(waiting, "small", SearchBudget(6)).job
    assert tuner(store, Machine(by_key, datetime(2100, 1, 1, tzinfo=UTC))).run(once=True) == 0
    assert store.jobs.get(job.id).spec == waiting
    assert tuner(store, Machine(by_key)).run(once=True) == 1
    check(store, job.id, 6)
    assert store.target(store.jobs.get(job.id).spec.target_key) == replace(MACHINE, threads=1)


def test_who_is_at_work_is_known(store: Store, submit: Submit) -> None:
    gate, job = Gate(), submit()
    with at_work(store, Machine(gate)):
        until(store, lambda: any(one.job_id == job.id for one in store.fleet.tuners()))
        [one] = store.fleet.tuners()
        assert (one.pid, one.pool, one.draining) == (os.getpid(), "told", False)
        assert [(device.name, device.target_key) for device in one.devices] == [("here", MACHINE.key)]
        assert store.fleet.targets() == [MACHINE]
        gate.open()
        until(store, lambda: store.jobs.get(job.id).state is JobState.SUCCEEDED)
        until(store, lambda: store.fleet.tuners()[0].job_id is None)
    assert store.fleet.tuners() == []


def test_a_device_in_quarantine_is_told_and_gets_no_jobs(store: Store, submit: Submit) -> None:
    until_s, job = datetime(2100, 1, 1, tzinfo=UTC), submit()
    with at_work(store, Machine(by_key, until_s)):
        until(store, lambda: any(one.devices for one in store.fleet.tuners()))
        [device] = store.fleet.tuners()[0].devices
        assert (device.quarantined_until, device.reason) == (until_s, "it burns")
        assert store.fleet.targets() == []
    assert store.jobs.get(job.id).state is JobState.QUEUED


def test_a_tuner_drains_as_people_wish(store: Store, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunewright.tuner.search.worker.REPORT_S", 0.0)
    gate, drain = Gate(), Drain()
    job = submit(trials=10_000)
    thread = threading.Thread(target=tuner(store, Machine(gate), drain).run)
    thread.start()
    until(store, lambda: any(one.job_id == job.id for one in store.fleet.tuners()))
    store.fleet.drain(store.fleet.tuners()[0].id)
    assert drain.event.wait(60.0)
    gate.open()
    thread.join(60.0)
    assert not thread.is_alive()
    assert store.fleet.tuners() == []
    assert (store.jobs.get(job.id).state, store.jobs.get(job.id).attempts) == (JobState.QUEUED, 0)


def test_an_order_for_a_device_is_carried_out_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunewright.tuner.search.worker.REPORT_S", 0.0)
    machine = Machine(by_key)
    with at_work(store, machine):
        until(store, lambda: any(one.devices for one in store.fleet.tuners()))
        store.fleet.order("here", 600.0, "its fan\n")
        until(store, lambda: len(machine.rests) == 1)
        seen_at = store.fleet.tuners()[0].seen_at
        until(store, lambda: store.fleet.tuners()[0].seen_at > seen_at)
        store.fleet.order("here", None)
        until(store, lambda: len(machine.rests) >= 2)
    (name, reason, left_s), lifted = machine.rests
    assert (name, reason) == ("here", printable("its fan\n")) and 500.0 < left_s <= 600.0
    assert lifted == ("here", "", 0.0)


def test_orders_are_by_the_clock_of_the_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuner elsewhere may be hours off: a quarantine is as long for it as it was ordered."""
    monkeypatch.setattr("tunewright.tuner.search.worker.REPORT_S", 0.0)
    machine = Machine(by_key)
    for off in (timedelta(hours=-2), timedelta(hours=2)):
        with open_store(url) as store:
            store.database.clock = lambda off=off: datetime.now(UTC) + off
            with at_work(store, machine):
                until(store, lambda: any(one.devices for one in store.fleet.tuners()))
                store.fleet.order("here", 600.0)
                until(store, lambda: bool(machine.rests))
        [(_, _, left_s)] = machine.rests
        assert 500.0 < left_s < 601.0  # how far off a clock is can be told to some milliseconds
        machine.rests.clear()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a tuner has heard what is wished of its job."""
    heard, tell = threading.Event(), LeaseKeeper.tell

    def told(keeper: LeaseKeeper, *news: Sequence[NewEvent], is_last: bool = False) -> None:
        tell(keeper, *news, is_last=is_last)
        if keeper._wish is not None:
            heard.set()

    monkeypatch.setattr(LeaseKeeper, "tell", told)
    return heard


@pytest.mark.slow
def test_pause_resume_and_cancel_while_it_runs(store: Store, submit: Submit, heard: threading.Event) -> None:
    gate, job, other = Gate(), submit(trials=20), submit(trials=3)
    with at_work(store, Machine(gate)):
        gate.open(2)
        until(store, lambda: store.counts()["trials"] == 2)
        assert store.jobs.pause(job.id).state is JobState.RUNNING
        assert heard.wait(60)
        gate.open(1)
        until(store, lambda: store.jobs.get(job.id).state is JobState.PAUSED)
        assert store.counts()["trials"] == 3
        gate.open(3)
        until(store, lambda: store.jobs.get(other.id).state is JobState.SUCCEEDED)
        store.jobs.resume(job.id)
        gate.open(1)
        until(store, lambda: len(store.jobs.trials(job.id)) == 4)
        heard.clear()
        store.jobs.cancel(job.id)
        assert heard.wait(60)
        gate.open()
        until(store, lambda: store.jobs.get(job.id).state is JobState.CANCELLED)
    assert len(store.jobs.trials(job.id)) == 5


def test_a_drained_tuner_gives_its_job_back_and_another_goes_on(store: Store, submit: Submit, caplog) -> None:
    caplog.set_level(logging.INFO)
    gate, job = Gate(), submit(trials=10)
    with at_work(store, Machine(gate)) as drain:
        gate.open(3)
        until(store, lambda: store.counts()["trials"] == 3)
        drain.event.set()
        gate.open(1)
    assert store.jobs.get(job.id).state is JobState.QUEUED
    assert store.jobs.get(job.id).attempts == 0
    before = store.counts()["trials"]
    assert before >= 3
    assert tuner(store, Machine(by_key)).run(once=True) == 1
    check(store, job.id, 10)
    [said] = [line for line in caplog.messages if "succeeded" in line]
    assert re.fullmatch(rf"job {job.id} succeeded: {10 - before} trials in [\d.]+ s by this process, 10 in all", said)
    assert kinds(store, job.id)[-4:] == [
        EventKind.STARTED,
        EventKind.RETURNED,
        EventKind.STARTED,
        EventKind.SUCCEEDED,
    ]


def test_a_candidate_that_takes_too_long_is_dropped_by_a_drain(store: Store, submit: Submit, monkeypatch) -> None:
    monkeypatch.setattr("tunewright.tuner.search.worker.DRAIN_S", 0.3)
    never = Gate()

    def outcome(candidate: Candidate) -> Measurement:
        if store.counts()["trials"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            never(candidate)
        return by_key(candidate)

    job, drain, started = submit(), Drain(), time.monotonic()
    with drain.on_signals():
        assert tuner(store, Machine(outcome), drain).run() == 1
    assert time.monotonic() - started < 10
    assert store.jobs.get(job.id).state is JobState.QUEUED
    assert store.fleet.tuners() == []
    tuner(store, Machine(by_key)).run(once=True)
    check(store, job.id, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("wish", "state"), [("cancel", JobState.CANCELLED), ("pause", JobState.PAUSED)])
def test_a_long_comparison_does_not_hold_up_who_wants_its_end(
    store: Store, submit: Submit, wish: str, state: JobState
) -> None:
    """And the tuner takes the next job, on a pool of its own."""
    never = Gate()
    asked: list[Job] = []

    def compared(candidate: Candidate) -> Measurement:
        if not asked:
            asked.append(getattr(store.jobs, wish)(job.id))
            never(candidate)
        return by_key(candidate)

    class Comparing(Machine):
        def pool(self, target: Target) -> Pool:
            self.pools.append(FakePool(by_key, compared))
            return self.pools[-1]

    job, machine, drain = submit(), Comparing(by_key), Drain()
    other = submit()
    with drain.on_signals():
        assert tuner(store, machine, drain, lease_s=60.0).run(once=True) == 2
    assert [store.jobs.get(one.id).state for one in (job, other)] == [state, JobState.SUCCEEDED]
    assert len(machine.pools) == 2 and not drain.event.is_set()


@pytest.mark.slow
def test_minutes_are_counted_over_processes(store: Store, submit: Submit) -> None:
    def slow(candidate: Candidate) -> Measurement:
        time.sleep(0.05)  # what is counted is time
        return by_key(candidate)

    job = submit(trials=10_000, seconds=3.0)
    with at_work(store, Machine(slow)) as drain:
        until(store, lambda: store.counts()["trials"] >= 20)
        drain.event.set()
    assert 1.0 <= store.jobs.get(job.id).spent_s < 3.0
    tuner(store, Machine(slow)).run(once=True)
    done = store.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED
    assert 3.0 <= done.spent_s < 4.0


def test_a_bug_ends_its_job_and_not_the_tuner(store: Store, submit: Submit, caplog) -> None:
    def outcome(candidate: Candidate) -> Measurement:
        if not store.jobs.list([JobState.FAILED]):
            raise ZeroDivisionError("a bug\nin the middle")
        return by_key(candidate)

    first, second = submit(), submit()
    assert tuner(store, Machine(outcome)).run(once=True) == 2
    failed = store.jobs.get(first.id)
    assert (failed.state, failed.error) == (JobState.FAILED, "ZeroDivisionError: in the middle")
    assert "Traceback" in caplog.text
    assert {record.job_id for record in caplog.records if record.exc_info} == {first.id}
    check(store, second.id, 6)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [PoolError("no device", 0.0), ChildStartError("no child process")])
def test_where_nothing_can_be_measured_the_job_waits(store: Store, submit: Submit, monkeypatch, fault) -> None:
    monkeypatch.setattr("tunewright.tuner.search.worker.BACKOFF_S", 0.2)
    calls = iter([True, True, False])

    def outcome(candidate: Candidate) -> Measurement:
        if next(calls, False):
            raise fault
        return by_key(candidate)

    job = submit()
    with at_work(store, Machine(outcome)):
        until(store, lambda: store.jobs.get(job.id).state is JobState.SUCCEEDED)
    check(store, job.id, 6)
    assert kinds(store, job.id).count(EventKind.RETURNED) == 2


class Cluster(Machine):
    """Machines that are lost while a candidate is measured."""

    def __init__(self) -> None:
        super().__init__(self._measure)
        self.is_lost = False

    def _measure(self, candidate: Candidate) -> Measurement:
        self.is_lost = True
        raise ClusterLost("the Ray cluster is lost: a test")

    def targets(self) -> list[Target]:
        if self.is_lost:
            raise ClusterLost("the Ray cluster is lost: a test")
        return super().targets()


def test_a_lost_cluster_gives_the_job_back_and_ends_the_tuner(store: Store, submit: Submit) -> None:
    """More often than a job may lose its process: it costs no attempt, and the tuner's devices are told of no more."""
    job = submit()
    for _ in range(ATTEMPTS + 1):
        with pytest.raises(ClusterLost):
            tuner(store, Cluster()).run()
        given_back = store.jobs.get(job.id)
        assert (given_back.state, given_back.attempts, given_back.error) == (JobState.QUEUED, 0, "")
        assert store.fleet.tuners() == []
    assert tuner(store, Machine(by_key)).run(once=True) == 1
    check(store, job.id, 6)


def test_a_job_that_kills_every_tuner_fails(store: Store, submit: Submit, monkeypatch) -> None:
    class Killed(BaseException):
        pass

    def outcome(candidate: Candidate) -> Measurement:
        raise Killed

    monkeypatch.setattr("tunewright.db.leases.BACKOFF_S", 0.01)
    job, attempts = submit(), 0
    while store.jobs.get(job.id).state in UNFINISHED:
        try:
            tuner(store, Machine(outcome), lease_s=0.2).run(once=True)
        except Killed:  # it says nothing more, as a process that was killed
            attempts += 1
    assert attempts == ATTEMPTS
    failed = store.jobs.get(job.id)
    assert failed.state is JobState.FAILED
    assert "processes in a row" in failed.error


def test_tuners_share_the_tasks_of_their_jobs(url: str, store: Store, submit: Submit) -> None:
    """Six jobs of the same tasks, three tuners: each candidate is measured once, and no job measures fewer."""
    seen: list[tuple[str, str]] = []

    def outcome(candidate: Candidate) -> Measurement:
        seen.append((candidate.task.key, candidate.schedule.key))
        return by_key(candidate)

    jobs = [submit(trials=10) for _ in range(6)]
    with open_store(url) as second, open_store(url) as third:
        threads = [
            threading.Thread(target=tuner(one, Machine(outcome)).run, args=(True,)) for one in (store, second, third)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for job in jobs:
        check(store, job.id, 10)
    measured = [(t.record.task_key, t.record.schedule.key) for job in jobs for t in store.jobs.trials(job.id)]
    assert len(measured) == len(set(measured)) == 60
    assert sorted(set(seen)) == sorted(measured)


class Process:
    """`tunewright work` on small models. Killed at the end of the test where it still runs."""

    def __init__(self, url: str) -> None:
        command = [*PROGRAM, "work", "--db", url, "--json"]
        environment = os.environ | python_path() | {"TUNEWRIGHT_LEASE_S": "1"}
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.communicate()

    def end(self) -> tuple[str, str]:
        """Asked to end: what it said."""
        self.child.send_signal(signal.SIGTERM)
        out, err = self.child.communicate(timeout=60)
        assert self.child.returncode == 0, err
        return out, err


@pytest.mark.slow
def test_sigterm_drains_a_process_and_another_goes_on(url: str, store: Store, submit: Submit) -> None:
    job = submit(trials=40)
    with Process(url) as first:
        until(store, lambda: store.counts()["trials"] >= 3)
        out, err = first.end()
    assert json.loads(out) == {"jobs": 1}
    said = [json.loads(line) for line in err.splitlines()]
    assert [(line["event"], line["level"]) for line in said if line.get("job_id") == job.id] == [
        (f"job {job.id} starts: small, {len(job.spec.tasks)} tasks", "info"),
        (f"job {job.id}: given back, asked to drain", "info"),
    ]
    assert {line["logger"] for line in said} == {"tunewright.work"}
    assert all(datetime.fromisoformat(line["timestamp"]).tzinfo == UTC for line in said)
    assert store.jobs.get(job.id).state is JobState.QUEUED
    with Process(url) as second:
        until(store, lambda: store.jobs.get(job.id).state is JobState.SUCCEEDED)
        second.end()
    check(store, job.id, 40)


def test_a_process_that_people_drain_says_so_as_it_ends(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """So that whoever started it starts no other, which one does that somebody ended by a signal."""
    from tunewright.tuner import cli

    monkeypatch.setattr("tunewright.tuner.search.worker.REPORT_S", 0.0)

    def drain() -> None:
        until(store, lambda: store.fleet.tuners() != [])
        store.fleet.drain(store.fleet.tuners()[0].id)

    with ThreadPoolExecutor(1) as people:
        drained = people.submit(drain)
        assert cli.execute(["work", "--db", url, "--json"]) == DRAINED
        drained.result()
    assert json.loads(capfd.readouterr().out) == {"jobs": 0}


@pytest.mark.slow
def test_a_tuner_that_hung_changes_nothing(url: str, store: Store, submit: Submit) -> None:
    job = submit(trials=40)
    with Process(url) as first:
        until(store, lambda: store.counts()["trials"] >= 3)
        freeze(first.child, url)
        stored = store.counts()["trials"]
        taken: list[Lease] = []

        def is_taken() -> bool:
            taken.extend(filter(None, [store.jobs.lease([TARGET.key], "another", 60.0)]))
            return bool(taken)

        until(store, is_taken)
        [lease] = taken
        events = len(store.jobs.events(job.id))
        first.child.send_signal(signal.SIGCONT)
        assert first.child.stderr is not None
        while "lost to another process" not in (line := first.child.stderr.readline()):
            assert line
        assert store.counts()["trials"] == stored
        assert len(store.jobs.events(job.id)) == events
        assert store.jobs.get(job.id).holder == "another"
        store.jobs.give_back(lease)
        until(store, lambda: store.jobs.get(job.id).state is JobState.SUCCEEDED)
        first.end()
    check(store, job.id, 40)


def test_a_process_ends_where_the_database_is_out_of_reach(monkeypatch, capfd) -> None:
    from tunewright.tuner import cli

    monkeypatch.setattr("tunewright.tuner.cli.work.PATIENCE_S", 0.2)
    assert cli.execute(["work", "--db", "postgresql://nobody@127.0.0.1:9/none"]) == 1
    assert capfd.readouterr().err.startswith("error: postgresql")


def logged_by(log: Callable[[logging.Logger], None]) -> None:
    with log_to_stderr():
        log(logging.getLogger("tunewright.work"))


def test_a_line_of_the_log_is_json(capfd) -> None:
    def log(logger: logging.Logger) -> None:
        try:
            raise ZeroDivisionError("\x1b[2J\nin the middle")
        except ZeroDivisionError as bug:
            logger.error("job %d failed: %s", 7, "a\r\n\x9b\ud800é", exc_info=bug, extra={"job_id": 7})
        logger.info("quiet")

    logged_by(log)
    err = capfd.readouterr().err
    assert err.isascii()
    assert "\x1b" not in err
    first, second = map(json.loads, err.splitlines())
    assert (first["level"], first["event"]) == ("error", "job 7 failed: a\r\n\x9b\ud800é")
    assert (first["logger"], first["job_id"]) == ("tunewright.work", 7)
    assert first["exception"].startswith("Traceback")
    assert first["exception"].endswith("ZeroDivisionError: \x1b[2J\nin the middle")
    assert second.keys() == {"timestamp", "level", "logger", "event"}


def test_a_terminal_gets_text(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    logged_by(lambda logger: logger.warning("job %d: lost", 7, extra={"job_id": 7}))
    assert capsys.readouterr().err.endswith(" WARNING job 7: lost\n")


# The whole model


def timing(
    store: Store, data: bytes, sha256: str, target: Target = TARGET, precision: str = Precision.AS_GIVEN
) -> UploadTiming:
    store.uploads.add(sha256, [data[:100], data[100:]], label="a model", with_weights=True, description={})
    return UploadTiming(store.uploads, sha256, {"n": 4}, target, settings().objects, precision)


@pytest.mark.slow
def test_an_uploaded_model_is_timed_in_a_child(store: Store) -> None:
    data = small_model("n").SerializeToString()
    times = timing(store, data, hashlib.sha256(data).hexdigest())({"default": Variant({}), "tuned": Variant({})})
    assert times.reason == ""
    assert times.latencies.keys() == {"default", "tuned"}
    assert all(0 < latency.median_s < 1 for latency in times.latencies.values())
    assert times.ratio("default", "tuned") is not None and times.disturbance.elapsed_s > 0


@pytest.mark.slow
def test_an_uploaded_model_has_a_vendor_beside_it(store: Store) -> None:
    """In the same child, if its outputs are those of the kernels there."""
    onnxruntime = pytest.importorskip("onnxruntime")
    data = small_model("n").SerializeToString()
    wanted = {"default": Variant({}), "vendor": Variant({}, is_vendor=True)}
    times = timing(store, data, hashlib.sha256(data).hexdigest())(wanted)
    assert times.reason == times.vendor_fault == "" and times.vendor_version == onnxruntime.__version__
    assert times.latencies.keys() == {"default", "vendor"} and times.ratio("default", "vendor") is not None


def test_an_uploaded_model_is_timed_in_the_precision_of_its_job(store: Store) -> None:
    data = wide_model("n")
    times = timing(store, data, hashlib.sha256(data).hexdigest(), precision="bf16")({"default": Variant({})})
    assert times.reason == "" and times.latencies.keys() == {"default"}
    assert times.precision_errors.keys() == {"y"} and 2**-12 < (times.precision_errors["y"] or 0) < 2**-7
    strange = UploadTiming(store.uploads, "cd" * 32, {}, TARGET, settings().objects, "fp8\n")({})
    assert strange.reason == "this version knows no precision 'fp8'"


def test_why_a_model_is_not_timed(store: Store) -> None:
    broken = b"no model at all"
    found = timing(store, broken, hashlib.sha256(broken).hexdigest())({"default": Variant({})})
    assert found.latencies == {}
    assert found.reason
    assert "\n" not in found.reason

    def reason(sha256: str, target: Target = TARGET) -> str:
        return UploadTiming(store.uploads, sha256, {}, target, settings().objects)({"default": Variant({})}).reason

    assert reason("cd" * 32) == "its model was not sent to the service"
    assert "is no cpu:cortex-a76" in reason("cd" * 32, OTHER)
    assert "without a model" in reason("")
