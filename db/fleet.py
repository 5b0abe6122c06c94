"""Fleet: the running tuner processes and their devices, by their last reports."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, delete, func, not_, or_, select
from sqlalchemy.orm import Session

from tunewright.codegen.codec import from_json, to_json
from tunewright.codegen.target import Target

from .database import Database, DatabasePart, read_session, write_session
from .errors import NotFound
from .tables import BestRow, DeviceOrderRow, JobRow, TargetRow, TunerRow
from .translate import clean, from_row, to_target

LONGEST_ID, LONGEST_POOL = 64, 16
"""Letters of a tuner's id, and of the name of its pool."""

KEY = re.compile("[0-9a-f]{64}")

MOST_REST_S = 7 * 24 * 3600.0
"""The longest quarantine that people order."""

SILENT_S = 60.0
"""A tuner that was silent for so long counts as dead."""


@dataclass(frozen=True, slots=True)
class TunerDevice:
    """A processor or GPU that candidates are timed on. It is not used while it is in quarantine."""

    name: str  # of the machine, and of the device on it
    target_key: str  # with all its threads
    quarantined_until: datetime | None = None  # UTC
    reason: str = ""  # of the quarantine, one line


class TunerWish(StrEnum):
    """What somebody wants of a tuner process. It sees to it with its next report."""

    DRAIN = "drain"  # take no more jobs, give back the one in hand, and end


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """What somebody wants of a device: each process that has it carries that out once, also one that starts later."""

    device: str  # its name
    until: datetime | None  # UTC, of a quarantine; None: one is to end
    reason: str  # one line
    given_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class DueOrder:
    """A `DeviceOrder` as a process hears of it, whose own clock may be wrong."""

    device: str  # its name
    left_s: float | None  # of a quarantine, by the database's clock; None: one is to end
    reason: str  # one line
    given_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class TunerOrders:
    """What people want of a tuner process by now. It asks with each report."""

    wish: TunerWish | None = None
    devices: tuple[DueOrder, ...] = ()


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
    devices: tuple[TunerDevice, ...] = ()
    job_id: int | None = None
    draining: bool = False  # it takes no more jobs, and ends
    owner: str = ""  # id of the API key that it came with; empty: it has the database
    wish: TunerWish | None = None  # what it was asked for and may not have heard of yet
    orders: tuple[DeviceOrder, ...] = ()  # likewise, the newest of each device


LONGEST_REASON = 200
"""Letters of the reason of a quarantine that people give."""

FORGET_S = 24 * 3600.0
"""A tuner that was silent for so long is deleted when another one starts."""


class Fleet(DatabasePart):
    """The running tuner processes. Every method may raise StoreError."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._enlisted: dict[str, dict[str, Any]] = {}  # by id: columns to enlist it again

    @write_session
    def enlist(
        self, session: Session, tuner_id: str, host: str, pid: int, version: str, pool: str, owner: str = ""
    ) -> None:
        """Store a tuner that starts. One that an owner enlists again keeps what people wish of it.

        Raises ValueError for an id or a pool that is too long, NotFound for a tuner of another owner.
        """
        if len(tuner_id) > LONGEST_ID or len(pool) > LONGEST_POOL:
            raise ValueError(f"a tuner's id has at most {LONGEST_ID} letters, and the name of its pool {LONGEST_POOL}")
        values = {"host": clean(host), "pid": pid, "version": clean(version), "pool": pool, "owner": owner}
        now = self.database.now(session)
        session.execute(delete(TunerRow).where(TunerRow.seen_at < now - timedelta(seconds=FORGET_S)))
        row = self._own_row(session, tuner_id, owner)
        wish = row.wish if row is not None and owner else None
        row = self._add(session, tuner_id, values, now)
        row.wish = wish
        self._enlisted[tuner_id] = values
        self.database.announce(session)

    @write_session
    def report(
        self,
        session: Session,
        tuner_id: str,
        devices: Collection[TunerDevice],
        job_id: int | None = None,
        draining: bool = False,
        owner: str = "",
    ) -> TunerOrders:
        """Store that a tuner runs, with its devices. One that was deleted is enlisted again. What people want of it.

        Raises ValueError for a device of what is no target's key, NotFound for a tuner of another owner.
        """
        if any(KEY.fullmatch(device.target_key) is None for device in devices):
            raise ValueError("the target of a device is a SHA-256 in hexadecimal")
        now = self.database.now(session)
        if job_id is not None:  # locked before the tuner, as who deletes the job does; it may be gone
            job = select(JobRow.id).where(JobRow.id == job_id)
            job_id = session.scalar(job.with_for_update(read=True, key_share=True))
        row = self._own_row(session, tuner_id, owner)
        if row is None:
            values = self._enlisted.get(tuner_id)
            if values is None or not _may(owner, values["owner"]):
                raise NotFound(f"{self.database}: there is no tuner {tuner_id}")
            row = self._add(session, tuner_id, values, now)
        row.seen_at = now
        named = [replace(device, name=clean(device.name), reason=clean(device.reason)) for device in devices]
        row.devices = [to_json(device) for device in named]
        row.job_id, row.draining = job_id, draining
        orders = _orders_of(named, _open_orders(session, now))
        return TunerOrders(_wish(row.wish), tuple(_due(order, now) for order in orders))

    @write_session
    def drain(self, session: Session, tuner_id: str) -> Tuner:
        """Wish a tuner process to end: it gives back the job in hand, and takes no more. Twice is harmless.

        Raises NotFound where none of that id was heard of lately.
        """
        now = self.database.now(session)
        row = session.get(TunerRow, clean(tuner_id), with_for_update=True)
        if row is None or row.seen_at < now - timedelta(seconds=SILENT_S):
            raise NotFound(f"{self.database}: there is no tuner {tuner_id} at work")
        row.wish = TunerWish.DRAIN.value
        self.database.announce(session)
        return _tuner(row, _open_orders(session, now))

    @write_session
    def order(self, session: Session, device: str, rest_s: float | None, reason: str = "") -> list[Tuner]:
        """Wish a device to be in quarantine for so long from now on, or no longer (None): the processes that have it.

        Processes that come to have it before the quarantine is over hear of it too. It takes the place of what was
        wished of that device before. Raises NotFound where no process has it and no quarantine is there to end,
        ValueError for a quarantine that has no end.
        """
        now, name = self.database.now(session), clean(device)
        if rest_s is not None and not 0.0 < rest_s <= MOST_REST_S:
            raise ValueError(f"{rest_s} s is no length of a quarantine: it has at most {MOST_REST_S:.0f}")
        until = None if rest_s is None else now + timedelta(seconds=rest_s)
        rows = [row for row in self._live_rows(session, SILENT_S, now, lock=True) if _has_device(row, name)]
        ends_one = until is None and any(order.device == name for order in _open_orders(session, now))
        if not rows and not ends_one:
            raise NotFound(f"{self.database}: no tuner process at work has a device of that name")
        session.execute(delete(DeviceOrderRow).where(or_(DeviceOrderRow.device == name, _is_over(now))))
        reason = clean(reason)[:LONGEST_REASON]
        session.add(DeviceOrderRow(device=name, until=until, reason=reason, given_at=now))
        session.flush()
        self.database.announce(session)
        orders = _open_orders(session, now)
        return [_tuner(row, orders) for row in rows]

    @write_session
    def leave(self, session: Session, tuner_id: str, owner: str = "") -> None:
        """Delete a tuner that ends. Doing so twice is harmless. Raises NotFound for a tuner of another owner."""
        row = self._own_row(session, tuner_id, owner)
        if row is not None:
            session.delete(row)
        self.database.announce(session)
        self._enlisted.pop(tuner_id, None)

    @read_session
    def tuners(self, session: Session, silent_s: float = SILENT_S) -> list[Tuner]:
        """Tuners that reported within `silent_s`, the longest running first."""
        now = self.database.now(session)
        orders = _open_orders(session, now)
        return [_tuner(row, orders) for row in self._live_rows(session, silent_s, now)]

    @read_session
    def targets(self, session: Session, silent_s: float = SILENT_S) -> list[Target]:
        """The targets that can be tuned for now: of all devices that are not in quarantine, each once.

        Tuners that drain take no more jobs, so their devices do not count.
        """
        now = self.database.now(session)
        active_rows = [row for row in self._live_rows(session, silent_s, now) if not row.draining]
        devices = [device for row in active_rows for device in _devices(row.devices)]
        keys = dict.fromkeys(
            device.target_key
            for device in devices
            if device.quarantined_until is None or device.quarantined_until <= now
        )
        rows = session.scalars(select(TargetRow).where(TargetRow.key.in_(keys)))
        targets = {row.key: to_target(row.data) for row in rows}
        return [targets[key] for key in keys if key in targets]

    @read_session
    def all_targets(self, session: Session) -> list[Target]:
        """Targets of processes of this database, now or in the past, by key.

        Targets of imported records, or of jobs that were never taken up, do not count.
        """
        own_bests = select(BestRow.task_key).where(BestRow.target_key == TargetRow.key, BestRow.is_imported.is_(False))
        begun_jobs = select(JobRow.id).where(JobRow.target_key == TargetRow.key, JobRow.epoch > 0)
        device_lists = session.scalars(select(TunerRow.devices)).all()
        keys = {device.target_key for devices in device_lists for device in _devices(devices)}
        condition = or_(own_bests.exists(), begun_jobs.exists(), TargetRow.key.in_(sorted(keys)))
        rows = session.scalars(select(TargetRow).where(condition).order_by(TargetRow.key))
        return [to_target(row.data) for row in rows]

    # Within a transaction

    def _own_row(self, session: Session, tuner_id: str, owner: str) -> TunerRow | None:
        """The row of a tuner, locked, if there is one. Raises NotFound for that of another owner."""
        row = session.get(TunerRow, tuner_id, with_for_update=True)
        if row is not None and not _may(owner, row.owner):
            raise NotFound(f"{self.database}: there is no tuner {tuner_id}")
        return row

    def _add(self, session: Session, tuner_id: str, values: dict[str, Any], now: datetime) -> TunerRow:
        """Insert or replace the row of a tuner that starts now."""
        state = {"started_at": now, "seen_at": now, "devices": [], "job_id": None, "draining": False, "wish": None}
        return session.merge(TunerRow(id=tuner_id, **values, **state))

    def _live_rows(self, session: Session, silent_s: float, now: datetime, *, lock: bool = False) -> list[TunerRow]:
        query = select(TunerRow).where(TunerRow.seen_at >= now - timedelta(seconds=silent_s))
        query = query.order_by(TunerRow.started_at, TunerRow.id)
        return [*session.scalars(query.with_for_update() if lock else query)]


def _may(owner: str, tuner_owner: str) -> bool:
    """Whether somebody may speak for a tuner: who has the database may for each."""
    return owner in ("", tuner_owner)


def _devices(entries: list[Any]) -> tuple[TunerDevice, ...]:
    """The devices of a row, without what `Database.probe_write` may have left."""
    return tuple(from_json(TunerDevice, data) for data in entries if isinstance(data, dict))


def _is_over(now: datetime) -> ColumnElement[bool]:
    """The condition that an order needs not be heard of any more: its quarantine is over, or that which it ends."""
    return func.coalesce(DeviceOrderRow.until <= now, DeviceOrderRow.given_at <= now - timedelta(seconds=MOST_REST_S))


def _open_orders(session: Session, now: datetime) -> list[DeviceOrder]:
    """What people want of devices, the oldest first; one of each device."""
    query = select(DeviceOrderRow).where(not_(_is_over(now))).order_by(DeviceOrderRow.id)
    return [from_row(DeviceOrder, row) for row in session.scalars(query)]


def _orders_of(devices: Iterable[TunerDevice], orders: Iterable[DeviceOrder]) -> tuple[DeviceOrder, ...]:
    """Those of the orders that are of these devices."""
    names = {device.name for device in devices}
    return tuple(order for order in orders if order.device in names)


def _due(order: DeviceOrder, now: datetime) -> DueOrder:
    left_s = None if order.until is None else (order.until - now).total_seconds()
    return DueOrder(order.device, left_s, order.reason, order.given_at)


def _has_device(row: TunerRow, name: str) -> bool:
    return any(device.name == name for device in _devices(row.devices))


def _wish(word: str | None) -> TunerWish | None:
    """A wish; one of a later version is none."""
    return TunerWish(word) if word in list(TunerWish) else None


def _tuner(row: TunerRow, orders: Iterable[DeviceOrder]) -> Tuner:
    """A tuner, with its part of the orders."""
    devices = _devices(row.devices)
    return from_row(Tuner, row, devices=devices, wish=_wish(row.wish), orders=_orders_of(devices, orders))
