"""LeaseKeeper: renews a lease while the work under it goes on."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tunewright.db.errors import StoreError
from tunewright.db.job import EventKind, Lease, LeaseLost, NewEvent, Orders, SearchBudget, Wish

if TYPE_CHECKING:
    from tunewright.db.jobs import Jobs

    from .machine_log import MachineLog

SHARE = 3
"""A lease is renewed this many times before it would be over."""

HURRY_S = 1.0
"""Seconds to the next step of the work after its end is requested: a comparison of schedules takes longer."""


def holder_name(host: str | None = None, pid: int | None = None) -> str:
    """The name of a process, by default this one, as the holder of a job."""
    return f"{(platform.node() if host is None else host) or 'host'}:{os.getpid() if pid is None else pid}"


def is_gone(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended."""
    host, _, pid = holder.rpartition(":")
    if host != holder_name().rpartition(":")[0] or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


class StopReason(StrEnum):
    """The reason why work ends early."""

    PAUSE = "pause"
    CANCEL = "cancel"
    DRAIN = "drain"  # the process is asked to end


class JobStop(Exception):
    """The work must end here; the lease is still held."""

    def __init__(self, why: StopReason) -> None:
        super().__init__(why)
        self.why = why


class LeaseKeeper:
    """Renews a lease, reports progress and reads what people want of the job, on a thread of its own.

    The work calls `check` between two steps. `drain` is a flag of the process; `beat` is called about as often as the
    lease is renewed, and `hurry` where the work has not ended `HURRY_S` after that was requested.
    """

    def __init__(
        self,
        jobs: Jobs,
        lease: Lease,
        lease_s: float,
        drain: threading.Event | None = None,
        beat: Callable[[], None] = lambda: None,
        hurry: Callable[[], None] = lambda: None,
    ) -> None:
        self.lease = lease
        self._jobs = jobs
        self._lease_s = lease_s
        self._drain = drain or threading.Event()
        self._beat = beat
        self._hurry = hurry
        self._renewing = threading.Lock()  # held by whoever renews: what is told is told once
        self._renewed_at = time.monotonic()
        self._progress: Mapping[str, Any] | None = None  # what is yet to be told
        self._spent_s = 0.0  # of this process; and how much of it is told
        self._told_s = 0.0
        self._orders: Orders | None = None  # as asked for last
        self._fault: StoreError | None = None
        self._ended = threading.Event()
        self._machine: MachineLog | None = None
        self._thread = threading.Thread(target=self._keep, name="tunewright-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def is_sure(self) -> bool:
        """Whether the lease surely holds. Else another process may have the job and its claims."""
        return time.monotonic() - self._renewed_at < self._lease_s

    @property
    def budget(self) -> SearchBudget | None:
        """The budget of the job as of the last look; None where nothing was asked yet. People may raise it."""
        return None if self._orders is None else self._orders.budget

    @property
    def _wish(self) -> Wish | None:
        return None if self._orders is None else self._orders.wish

    def check(self) -> None:
        """Raises LeaseLost, JobStop where the work should end, and StoreError where the lease can't be renewed."""
        if isinstance(self._fault, LeaseLost) or (self._fault is not None and not self.is_sure):
            raise self._fault
        if (wish := self._wish) is not None:
            raise JobStop({Wish.PAUSE: StopReason.PAUSE, Wish.CANCEL: StopReason.CANCEL}[wish])
        if self._drain.is_set():
            raise JobStop(StopReason.DRAIN)

    def note(self, progress: Mapping[str, Any], spent_s: float) -> None:
        """Set the newest progress, and the seconds of searching in this process, for the next report."""
        self._progress, self._spent_s = progress, spent_s

    def watch(self, machine: MachineLog) -> None:
        """Look at the machine now and then from here on, and report what it did."""
        self._machine = machine

    def tell(self, events: Sequence[NewEvent] = (), *, is_last: bool = False) -> None:
        """Report events, the noted progress and what the machine did, at once. Raises LeaseLost and StoreError.

        `is_last`: the work ends.
        """
        with self._renewing:
            of_machine = self._machine.news(is_last=is_last) if self._machine else []
            progress, self._progress, spent_s = self._progress, None, self._spent_s
            news = [NewEvent(EventKind.PROGRESS, dict(progress))] if progress is not None else []
            asked_at = time.monotonic()
            self._orders = self._jobs.renew(
                self.lease,
                self._lease_s,
                progress=progress,
                events=[*news, *of_machine, *events],
                spent_s=max(spent_s - self._told_s, 0.0),
            )
            self._renewed_at, self._told_s, self._fault = asked_at, spent_s, None

    def _keep(self) -> None:
        beaten_at = 0.0
        wished_at: float | None = None
        while not self._ended.wait(min(self._jobs.look_s, self._lease_s / SHARE)):
            is_due = time.monotonic() - self._renewed_at >= self._lease_s / SHARE
            if self._machine is not None:
                self._machine.look()
            try:
                if is_due or self._progress is not None:
                    self.tell()
                else:
                    self._orders = self._jobs.orders(self.lease.job_id)
                if time.monotonic() - beaten_at >= self._lease_s / SHARE:
                    self._beat()
                    beaten_at = time.monotonic()
            except StoreError as fault:  # for the work to see; another try follows unless the lease is lost
                self._fault = fault
                if isinstance(fault, LeaseLost):
                    return
            now = time.monotonic()
            wished_at = None if self._wish is None else now if wished_at is None else wished_at
            if wished_at is not None and now - wished_at >= HURRY_S:
                self._hurry()
                wished_at = now
