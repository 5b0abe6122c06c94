"""Counts of tuner processes and their devices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from tunewright.db.fleet import Tuner
from tunewright.db.store import Store
from tunewright.tuner.search.lease_keeper import holder_name, is_gone


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Numbers of tuner processes and devices."""

    busy: int  # tuner processes
    idle: int
    devices: int  # of tuner processes that take jobs
    quarantined: int  # those of them that failed too often to be used now

    @classmethod
    def of(cls, tuners: Collection[Tuner]) -> Self:
        """The counts of tuner processes, without those that were killed on this machine."""
        tuners = [tuner for tuner in tuners if not is_gone(holder_name(tuner.host, tuner.pid))]
        now = datetime.now(UTC)
        devices = {device.name: device for tuner in tuners if not tuner.draining for device in tuner.devices}
        resting = [d for d in devices.values() if d.quarantined_until is not None and d.quarantined_until > now]
        busy = sum(tuner.job_id is not None for tuner in tuners)
        return cls(busy, len(tuners) - busy, len(devices), len(resting))

    @property
    def tuners(self) -> int:
        return self.busy + self.idle

    @property
    def usable(self) -> int:
        """Devices that can be tuned on now."""
        return self.devices - self.quarantined


def strike_off(store: Store) -> None:
    """Forget tuner processes that were killed on this machine: else they are listed until they are silent for long.

    Their jobs are free again: else they would seem to be at work until their leases expire. Raises StoreError.
    """
    for tuner in store.fleet.tuners():
        holder = holder_name(tuner.host, tuner.pid)
        if is_gone(holder):
            store.fleet.leave(tuner.id)
            store.jobs.take_from(holder)
