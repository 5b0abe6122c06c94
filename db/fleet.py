"""Fleet: the tuner processes at work and the devices they time on, as they last said."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tunewright.codegen.target import Target

SILENT_S = 60.0
"""A tuner that said nothing for this long is taken for dead."""


@dataclass(frozen=True, slots=True)
class Device:
    """A processor or GPU that candidates are timed on. A quarantined one is not used until the time is over."""

    name: str  # of the machine, and of the device on it
    target_key: str  # with all its threads
    quarantined_until: datetime | None = None  # UTC
    reason: str = ""  # of the quarantine, one line


@dataclass(frozen=True, slots=True)
class Tuner:
    """A process that takes jobs."""

    id: str
    host: str
    pid: int
    version: str  # of Tunewright
    pool: str  # "local" or "ray"
    started_at: datetime  # UTC
    seen_at: datetime  # UTC
    devices: tuple[Device, ...] = ()
    job_id: int | None = None
    draining: bool = False  # it takes no more jobs, and ends


class Fleet(Protocol):
    """Who is at work. Every method may raise StoreError."""

    def enlist(self, tuner_id: str, host: str, pid: int, version: str, pool: str) -> None:
        """A tuner begins."""
        ...

    def report(
        self, tuner_id: str, devices: Collection[Device], job_id: int | None = None, draining: bool = False
    ) -> None:
        """A tuner is alive, and has these devices. Enlisted anew where it was forgotten."""
        ...

    def leave(self, tuner_id: str) -> None:
        """A tuner ends. Leaving twice is harmless."""
        ...

    def tuners(self, silent_s: float = SILENT_S) -> list[Tuner]:
        """Those who were heard within `silent_s`, the longest at work first."""
        ...

    def targets(self, silent_s: float = SILENT_S) -> list[Target]:
        """What can be tuned for now: the targets of devices, each once, without those in quarantine.

        Tuners that drain take no more jobs, so their devices do not count.
        """
        ...
