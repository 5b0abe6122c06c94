"""Work: a tuner process. It takes jobs out of the database, one after the other. Read `Work.run` first.

It may be killed at any moment: its lease runs out, and another process goes on with its job.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from tunewright.codegen.host import machine
from tunewright.codegen.target import Target
from tunewright.db.errors import StoreError
from tunewright.db.fleet import Device
from tunewright.db.jobs import Job, JobState, Lease, LeaseLost
from tunewright.db.sql_store import SqlStore
from tunewright.workers.pool import ClusterLost, Machines, Pool, PoolError, has
from tunewright.workers.process import NotStarted

from ..targets import meant
from ..text import printable
from .job import TuningJob
from .report import Report
from .tenure import SHARE, Stopped, Tenure, holder_name
from .whole_model import Timing, UploadTiming

WAIT_S = 2.0
"""The longest wait for a job: a lease that is over tells nobody."""

REPORT_S = 10.0
"""How often a tuner says that it is alive, where nothing changes."""

POOLS = 2
"""Pools that are kept for the next job: each has processes."""

BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0
"""How long jobs of a target are left alone where nobody can measure for it; twice as long the next time."""

DRAIN_S = 12.0
"""How long the candidate in hand may take when the process is asked to end. As long again, and the process ends."""

ERROR_LETTERS = 300
"""Of the line that says why a job failed. All of it is in the log."""

_log = logging.getLogger("tunewright.work")


class Draining:
    """Set once the process is asked to end; see `on_signals`."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._is_heard = False  # whether signals are
        self._is_interruptible = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask. Asked again, or after `DRAIN_S`, what is under way is interrupted.

        Only in the main thread. The interrupt is a KeyboardInterrupt.
        """
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._hurry)
        self._is_heard = True
        try:
            yield
        finally:
            self._is_heard = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again = self.asked.is_set()
        self.asked.set()
        signal.setitimer(signal.ITIMER_REAL, DRAIN_S)
        if again:
            raise KeyboardInterrupt

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """What `hurry` interrupts, in the main thread: a KeyboardInterrupt that ends no process."""
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def hurry(self) -> None:
        """Interrupt what is under way, if anything. From any thread."""
        if self._is_heard:
            os.kill(os.getpid(), signal.SIGUSR1)

    def _hurry(self, number: int, frame: FrameType | None) -> None:
        if self._is_interruptible:
            self._is_interruptible = False
            raise KeyboardInterrupt


class Work:
    """Takes jobs for the targets of its machines until it is drained.

    `pool` is what the machines are called among people. `timing` gives what times the whole model of a job; by default
    that of an upload, whose processes share the folder `objects` with all that measure on this machine.
    """

    def __init__(
        self,
        store: SqlStore,
        machines: Machines,
        *,
        pool: str,
        lease_s: float,
        objects: Path,
        draining: Draining | None = None,
        timing: Callable[[Job, Target], Timing] | None = None,
    ) -> None:
        self._store, self._machines, self._pool_name, self._lease_s = store, machines, pool, lease_s
        self._objects = objects
        self._signals = draining or Draining()
        self._draining = self._signals.asked
        self._timing = timing or self._upload_timing
        self._id = secrets.token_hex(8)
        self._pools: OrderedDict[Target, Pool] = OrderedDict()
        self._backoff: dict[str, tuple[float, float]] = {}  # by target key: until when, and how long that is
        self._stored: set[str] = set()  # keys of targets that the database knows
        self._reported: tuple[float, tuple[list[Device], int | None, bool] | None] = (0.0, None)  # when, and what

    def run(self, once: bool = False) -> int:
        """Work until drained, or where `once` until no job is left that this process could take; how many it took.

        Raises StoreError where the database can't be used, Unreachable of them once its patience is over, and
        ClusterLost once the cluster of its machines is lost: the job in hand is given back before.
        """
        self._store.fleet.enlist(self._id, platform.node(), os.getpid(), machine()["tunewright"], self._pool_name)
        _log.info("tuner %s: %s machines, lease %g s", self._id, self._pool_name, self._lease_s)
        taken = 0
        try:
            while not self._draining.is_set():
                seen = self._store.jobs.changes()
                self._report()
                lease = self._next_lease()
                if lease is not None:
                    taken += 1
                    self._work_on(lease)
                elif once:
                    break
                else:
                    self._store.jobs.wait(min(WAIT_S, self._lease_s / SHARE), seen)
        except ClusterLost:  # nobody shall wait for this process's devices
            self._store.fleet.leave(self._id)
            raise
        finally:
            self._close_pools()
        self._store.fleet.leave(self._id)
        _log.info("tuner %s: ends after %d jobs", self._id, taken)
        return taken

    def _next_lease(self) -> Lease | None:
        able = self._machines.targets()
        waiting = self._store.jobs.waiting()
        keys = [
            target.key
            for target in waiting
            if target is not None and any(has(device, target) for device in able) and self._is_usable(target)
        ]
        devices = meant([target for target in able if self._is_usable(target)]) if None in waiting else []
        if not keys and not devices:
            return None
        return self._store.jobs.lease(keys, holder_name(), self._lease_s, devices=devices)

    def _is_usable(self, target: Target) -> bool:
        """Whether jobs for a target are not left alone since nobody could measure for it."""
        return self._backoff.get(target.key, (0.0, 0.0))[0] <= time.monotonic()

    def _work_on(self, lease: Lease) -> None:
        """Run a job. However that goes, short of a database that is away, this process can take the next one."""
        about = {"job_id": lease.job_id}
        self._report(lease.job_id)
        with Tenure(
            self._store.jobs,
            lease,
            self._lease_s,
            self._draining,
            lambda: self._report(lease.job_id),
            self._signals.hurry,
        ) as kept:
            target_key = ""
            try:
                job = self._store.jobs.get(lease.job_id)
                target_key = job.spec.target_key
                label, tasks = printable(job.label), len(job.spec.tasks)
                _log.info("job %d starts: %s, %d tasks", job.id, label, tasks, extra=about)
                with self._signals.interruptible():
                    report = self._run(job, kept)
            except LeaseLost:
                _log.warning("job %d: lost to another process, or ended", lease.job_id, extra=about)
            except Stopped as stopped:
                _log.info("job %d: given back, asked to %s", lease.job_id, stopped.why, extra=about)
            except KeyboardInterrupt:
                _log.info("job %d: given back, interrupted", lease.job_id, extra=about)
                self._give_back(lease)
                self._close_pools()  # they may be in the middle of something
            except (PoolError, NotStarted) as fault:
                self._back_off(target_key, fault)
                why = _line(fault)
                _log.warning("job %d: given back, nothing can be measured: %s", lease.job_id, why, extra=about)
                self._give_back(lease)
            except StoreError:
                raise
            except Exception as bug:  # noqa: BLE001 - the job's end, not this process's: it propagates into the log
                self._fail(lease, bug)
            else:
                self._backoff.pop(target_key, None)
                done = report.job_id, report.trials, report.seconds
                _log.info("job %d succeeded: %d trials in %.1f s", *done, extra=about)

    def _run(self, job: Job, tenure: Tenure) -> Report:
        target = self._store.target(job.spec.target_key)
        known = self._store.tasks([task.task_key for task in job.spec.tasks])
        tasks = [(known[task.task_key], task.occurrences) for task in job.spec.tasks]
        timing = self._timing(job, target)
        return TuningJob(job, tasks, target, self._store, self._pool(target), tenure, timing=timing).run()

    def _fail(self, lease: Lease, bug: Exception) -> None:
        _log.error("job %d failed", lease.job_id, exc_info=bug, extra={"job_id": lease.job_id})
        self._close_pools()  # they may be in the middle of something
        with suppress(LeaseLost):
            self._store.jobs.finish(lease, JobState.FAILED, error=f"{type(bug).__name__}: {_line(bug)}")

    def _give_back(self, lease: Lease) -> None:
        with suppress(LeaseLost):
            self._store.jobs.give_back(lease)

    def _back_off(self, target_key: str, fault: PoolError | NotStarted) -> None:
        self._close_pools()
        _, last_s = self._backoff.get(target_key, (0.0, BACKOFF_S / 2))
        wait_s = min(2 * last_s, LONGEST_BACKOFF_S)
        retry_s = fault.retry_s if isinstance(fault, PoolError) and fault.retry_s is not None else wait_s
        self._backoff[target_key] = time.monotonic() + max(wait_s, min(retry_s, LONGEST_BACKOFF_S)), wait_s

    def _pool(self, target: Target) -> Pool:
        """The pool of a target, kept from job to job."""
        pool = self._pools.pop(target, None)
        if pool is None:
            while len(self._pools) >= POOLS:
                self._pools.popitem(last=False)[1].close()
            pool = self._machines.pool(target)
        self._pools[target] = pool
        return pool

    def _close_pools(self) -> None:
        while self._pools:
            self._pools.popitem()[1].close()

    def _upload_timing(self, job: Job, target: Target) -> Timing:
        dims = {str(name): int(size) for name, size in job.spec.settings.get("dims", {}).items()}
        return UploadTiming(self._store.uploads, job.spec.model_sha256, dims, target, self._objects)

    def _report(self, job_id: int | None = None) -> None:
        """Say that this process is alive, what it times on and what it is at."""
        states = self._machines.devices()
        for state in states:
            if state.target.key not in self._stored:
                self._store.add_target(state.target)
                self._stored.add(state.target.key)
        devices = [Device(s.name, s.target.key, s.quarantined_until, printable(s.reason)) for s in states]
        news = devices, job_id, self._draining.is_set()
        told_at, told = self._reported
        if news != told or time.monotonic() - told_at >= REPORT_S:
            self._store.fleet.report(self._id, devices, job_id, news[2])
            self._reported = time.monotonic(), news


def _line(fault: Exception) -> str:
    """What an exception says, on one line: of a traceback in it the end."""
    lines = str(fault).strip().splitlines()
    return printable(lines[-1].strip() if lines else "")[:ERROR_LETTERS]
