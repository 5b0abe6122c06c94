"""SqlFleet: the fleet over SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tunewright.codegen.target import Target

from .database import Database, patient
from .errors import NotFound
from .fleet import SILENT_S, Device, Fleet, Tuner
from .models import TargetRow, TunerRow
from .translate import clean, device_json, to_device, to_tuner

FORGET_S = 24 * 3600.0
"""A tuner that said nothing for this long is forgotten when another one begins."""


class SqlFleet(Fleet):
    """See `Fleet`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._enlisted: dict[str, dict[str, Any]] = {}  # by id: what to say again where the database forgot a tuner

    def enlist(self, tuner_id: str, host: str, pid: int, version: str, pool: str) -> None:
        values = {"host": clean(host), "pid": pid, "version": clean(version), "pool": pool}
        self._enlisted[tuner_id] = values
        self._enlist(tuner_id, values)

    @patient
    def _enlist(self, tuner_id: str, values: dict[str, Any]) -> None:
        with self.database.write() as session:
            now = self.database.now(session)
            session.execute(delete(TunerRow).where(TunerRow.seen_at < now - timedelta(seconds=FORGET_S)))
            self._add(session, tuner_id, values, now)
            self.database.announce(session)

    @patient
    def report(
        self, tuner_id: str, devices: Collection[Device], job_id: int | None = None, draining: bool = False
    ) -> None:
        with self.database.write() as session:
            now = self.database.now(session)
            row = session.get(TunerRow, tuner_id, with_for_update=True)
            if row is None:
                values = self._enlisted.get(tuner_id)
                if values is None:
                    raise NotFound(f"{self.database}: there is no tuner {tuner_id}")
                row = self._add(session, tuner_id, values, now)
            row.seen_at = now
            row.devices = [device_json(device) for device in devices]
            row.job_id, row.draining = job_id, draining

    def leave(self, tuner_id: str) -> None:
        self._leave(tuner_id)
        self._enlisted.pop(tuner_id, None)

    @patient
    def _leave(self, tuner_id: str) -> None:
        with self.database.write() as session:
            session.execute(delete(TunerRow).where(TunerRow.id == tuner_id))
            self.database.announce(session)

    @patient
    def tuners(self, silent_s: float = SILENT_S) -> list[Tuner]:
        with self.database.read() as session:
            return [to_tuner(row) for row in self._heard(session, silent_s, self.database.now(session))]

    @patient
    def targets(self, silent_s: float = SILENT_S) -> list[Target]:
        with self.database.read() as session:
            now = self.database.now(session)
            staying = [row for row in self._heard(session, silent_s, now) if not row.draining]
            devices = [to_device(data) for row in staying for data in row.devices]
            keys = dict.fromkeys(
                device.target_key
                for device in devices
                if device.quarantined_until is None or device.quarantined_until <= now
            )
            rows = session.scalars(select(TargetRow).where(TargetRow.key.in_(keys)))
            found = {row.key: Target.from_json(row.data) for row in rows}
        return [found[key] for key in keys if key in found]

    # Within a transaction

    def _add(self, session: Session, tuner_id: str, values: dict[str, Any], now: datetime) -> TunerRow:
        """The row of a tuner that begins now, in the place of one that is there."""
        fresh = {"started_at": now, "seen_at": now, "devices": [], "job_id": None, "draining": False}
        return session.merge(TunerRow(id=tuner_id, **values, **fresh))

    def _heard(self, session: Session, silent_s: float, now: datetime) -> list[TunerRow]:
        query = select(TunerRow).where(TunerRow.seen_at >= now - timedelta(seconds=silent_s))
        return [*session.scalars(query.order_by(TunerRow.started_at, TunerRow.id))]
