"""TunerProcess: takes jobs out of the database, one after the other. Read `TunerProcess.run` first.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType

from tunewright.codegen.host import machine
from tunewright.codegen.lru_cache import LruCache
from tunewright.codegen.target import Target
from tunewright.db.errors import StoreError
from tunewright.db.fleet import TunerDevice, TunerOrders, TunerWish
from tunewright.db.job import Job, JobState, Lease, LeaseLost
from tunewright.db.store import Store
from tunewright.workers.pool import ClusterLost, Machines, Pool, PoolError, can_time
from tunewright.workers.sandbox.process import ChildStartError

from ..targets import default_devices
from ..text import printable
from .job import TuningJob
from .lease_keeper import SHARE, JobStop, LeaseKeeper, holder_name
from .report import Report
from .whole_model import Timing, UploadTiming

WAIT_S = 2.0
"""The longest wait for a job: no change is signalled when a lease expires."""

REPORT_S = 10.0
"""Seconds between two reports of a tuner process where nothing changes."""

POOLS = 2
"""Pools that are kept for the next job: each has processes."""

BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 60.0
"""Seconds for which jobs of a target are skipped where nothing can measure for it; twice as long the next time."""

DRAIN_S = 12.0
"""Seconds for the present candidate when the process is asked to end; then it is interrupted."""

ERROR_LETTERS = 300
"""Letters of a failed job's error line. The log has all of it."""

_log = logging.getLogger("tunewright.work")


class Drain:
    """The request to end the process; see `on_signals`."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._has_handlers = False  # whether signals are
        self._is_interruptible = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask. Asked again, or after `DRAIN_S`, what is under way is interrupted.

        Only in the main thread. The interrupt is a KeyboardInterrupt.
        """
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._hurry)
        self._has_handlers = True
        try:
            yield
        finally:
            self._has_handlers = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.event.is_set()
        self.event.set()
        signal.setitimer(signal.ITIMER_REAL, DRAIN_S)
        if again:
            raise KeyboardInterrupt

    @contextmanager
    def allow_interrupt(self) -> Iterator[None]:
        """A context that `hurry` may interrupt in the main thread, by a KeyboardInterrupt that ends no process."""
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def ask(self) -> None:
        """Ask the process to end, as SIGTERM does, unless it was asked already. From any thread."""
        if self.event.is_set():
            return
        if self._has_handlers:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.event.set()

    def hurry(self) -> None:
        """Interrupt what is under way, if anything. From any thread."""
        if self._has_handlers:
            os.kill(os.getpid(), signal.SIGUSR1)

    def _hurry(self, number: int, frame: FrameType | None) -> None:
        if self._is_interruptible:
            self._is_interruptible = False
            raise KeyboardInterrupt


class TunerProcess:
    """Takes jobs for the targets of its machines until it is drained.

    `pool` is the name of the machines for people. `timing` makes the timing of a job's whole model, by default that of
    an upload, whose processes share the folder `objects` with all that measure on this machine.
    """

    def __init__(
        self,
        store: Store,
        machines: Machines,
        *,
        pool: str,
        lease_s: float,
        objects: Path,
        drain: Drain | None = None,
        timing: Callable[[Job, Target], Timing] | None = None,
    ) -> None:
        self._store, self._machines, self._pool_name, self._lease_s = store, machines, pool, lease_s
        self._objects = objects
        self._drain = drain or Drain()
        self._drain_event = self._drain.event
        self.is_ordered_to_end = False  # by people, over the service
        self._timing = timing or self._upload_timing
        self._id = secrets.token_hex(8)
        self._pools: LruCache[Target, Pool] = LruCache(POOLS, lambda pool: pool.close())
        self._backoff: dict[str, tuple[float, float]] = {}  # by target key: until when, and how long that is
        self._target_keys: set[str] = set()  # keys of targets that the database knows
        self._carried_out: dict[str, datetime] = {}  # by device: when the newest order was given
        self._reported: tuple[float, tuple[list[TunerDevice], int | None, bool] | None] = (0.0, None)  # when, and what

    def run(self, once: bool = False) -> int:
        """Work until drained, or where `once` until no job is left that this process could take; how many it took.

        Raises StoreError where the database can't be used, Unreachable of them once its patience is over, and
        ClusterLost once the cluster of its machines is lost: the job in hand is given back before.
        """
        self._store.fleet.enlist(self._id, platform.node(), os.getpid(), machine()["tunewright"], self._pool_name)
        _log.info("tuner %s: %s machines, lease %g s", self._id, self._pool_name, self._lease_s)
        count = 0
        try:
            while not self._drain_event.is_set():
                changes = self._store.jobs.changes()
                self._report()
                lease = self._next_lease()
                if lease is not None:
                    count += 1
                    self._work_on(lease)
                elif once:
                    break
                else:
                    self._store.jobs.wait(min(WAIT_S, self._lease_s / SHARE), changes)
        except ClusterLost:  # nobody shall wait for this process's devices
            self._store.fleet.leave(self._id)
            raise
        finally:
            self._pools.clear()
        self._store.fleet.leave(self._id)
        _log.info("tuner %s: ends after %d jobs", self._id, count)
        return count

    def _next_lease(self) -> Lease | None:
        targets = self._machines.targets()
        waiting = self._store.jobs.queued_targets()
        keys = [
            target.key
            for target in waiting
            if target is not None and any(can_time(device, target) for device in targets) and self._is_usable(target)
        ]
        devices = default_devices([target for target in targets if self._is_usable(target)]) if None in waiting else []
        if not keys and not devices:
            return None
        return self._store.jobs.lease(keys, holder_name(), self._lease_s, devices=devices)

    def _is_usable(self, target: Target) -> bool:
        """Whether jobs for a target may be taken: after a failure they are skipped for a while."""
        return self._backoff.get(target.key, (0.0, 0.0))[0] <= time.monotonic()

    def _work_on(self, lease: Lease) -> None:
        """Run a job. However that goes, short of a database that is away, this process can take the next one."""
        about = {"job_id": lease.job_id}
        self._report(lease.job_id)
        with LeaseKeeper(
            self._store.jobs,
            lease,
            self._lease_s,
            self._drain_event,
            lambda: self._report(lease.job_id),
            self._drain.hurry,
        ) as keeper:
            target_key = ""
            try:
                job = self._store.jobs.get(lease.job_id)
                target_key = job.spec.target_key
                label, tasks = printable(job.label), len(job.spec.tasks)
                _log.info("job %d starts: %s, %d tasks", job.id, label, tasks, extra=about)
                with self._drain.allow_interrupt():
                    report = self._run(job, keeper)
            except LeaseLost:
                _log.warning("job %d: lost to another process, or ended", lease.job_id, extra=about)
            except JobStop as stopped:
                _log.info("job %d: given back, asked to %s", lease.job_id, stopped.why, extra=about)
            except KeyboardInterrupt:
                self._pools.clear()  # they may be in the middle of something
                self._give_back(lease)
                _log.info("job %d: given back, interrupted", lease.job_id, extra=about)
            except (PoolError, ChildStartError) as fault:
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
                done = report.job_id, report.trials - job.trials, report.seconds, report.trials
                _log.info("job %d succeeded: %d trials in %.1f s by this process, %d in all", *done, extra=about)

    def _run(self, job: Job, keeper: LeaseKeeper) -> Report:
        target = self._store.target(job.spec.target_key)
        known = self._store.tasks([task.task_key for task in job.spec.tasks])
        tasks = [(known[task.task_key], task.occurrences) for task in job.spec.tasks]
        timing = self._timing(job, target)
        return TuningJob(job, tasks, target, self._store, self._pool(target), keeper, timing=timing).run()

    def _fail(self, lease: Lease, bug: Exception) -> None:
        _log.error("job %d failed", lease.job_id, exc_info=bug, extra={"job_id": lease.job_id})
        self._pools.clear()  # they may be in the middle of something
        with suppress(LeaseLost):
            self._store.jobs.finish(lease, JobState.FAILED, error=f"{type(bug).__name__}: {_line(bug)}")

    def _give_back(self, lease: Lease) -> None:
        with suppress(LeaseLost):
            self._store.jobs.give_back(lease)

    def _back_off(self, target_key: str, fault: PoolError | ChildStartError) -> None:
        self._pools.clear()
        _, last_s = self._backoff.get(target_key, (0.0, BACKOFF_S / 2))
        wait_s = min(2 * last_s, LONGEST_BACKOFF_S)
        retry_s = fault.retry_s if isinstance(fault, PoolError) and fault.retry_s is not None else wait_s
        self._backoff[target_key] = time.monotonic() + max(wait_s, min(retry_s, LONGEST_BACKOFF_S)), wait_s

    def _pool(self, target: Target) -> Pool:
        """The pool of a target, kept from job to job."""
        return self._pools.get(target, lambda: self._machines.pool(target))

    def _upload_timing(self, job: Job, target: Target) -> Timing:
        dims = {str(name): int(size) for name, size in job.spec.settings.get("dims", {}).items()}
        sha256, precision = job.spec.model_sha256, job.spec.precision
        return UploadTiming(self._store.uploads, sha256, dims, target, self._objects, precision)

    def _report(self, job_id: int | None = None) -> None:
        """Report this process, its devices and its job to the database."""
        states = self._machines.devices()
        for state in states:
            if state.target.key not in self._target_keys:
                self._store.add_target(state.target)
                self._target_keys.add(state.target.key)
        devices = [TunerDevice(s.name, s.target.key, s.quarantined_until, printable(s.reason)) for s in states]
        news = devices, job_id, self._drain_event.is_set()
        reported_at, last_news = self._reported
        if news != last_news or time.monotonic() - reported_at >= REPORT_S:
            orders = self._store.fleet.report(self._id, devices, job_id, news[2])
            self._reported = time.monotonic(), news
            self._obey(orders)

    def _obey(self, orders: TunerOrders) -> None:
        """Do what people want of this process and its devices; each order once."""
        for order in orders.devices:
            if self._carried_out.get(order.device) == order.given_at:
                continue
            self._carried_out[order.device] = order.given_at
            self._machines.rest(order.device, printable(order.reason), order.left_s or 0.0)
            asked = "rest no longer" if order.left_s is None else f"rest for {order.left_s:.0f} s"
            _log.info("device %s: asked to %s", printable(order.device), asked)
        if orders.wish is TunerWish.DRAIN and not self.is_ordered_to_end:
            _log.info("tuner %s: asked to drain", self._id)
            self.is_ordered_to_end = True
            self._drain.ask()


def _line(fault: Exception) -> str:
    """The last line of an exception's message."""
    lines = str(fault).strip().splitlines()
    return printable(lines[-1].strip() if lines else "")[:ERROR_LETTERS]
