"""SqlCostModels: snapshots of cost models over SQLAlchemy."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy import exc as sql
from sqlalchemy.orm import Session

from .cost_models import CONTENTS, LARGEST_BYTES, CostModels, NewSnapshot, Snapshot
from .database import Database, patient
from .engine import strict_json
from .errors import NotFound
from .models import CostModelRow
from .translate import clean, to_snapshot

_log = logging.getLogger("tunewright")

HAS_CONTENT = CostModelRow.content.is_not(None)

HEADS = select(
    *(column for column in CostModelRow.__table__.columns if column.name != "content"), HAS_CONTENT.label("has_content")
)
"""All of the rows but the contents."""

CONTENT = select(CostModelRow.content).where(CostModelRow.id == bindparam("id"))


class SqlCostModels(CostModels):
    """See `CostModels`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def keep(self, snapshot: NewSnapshot) -> Snapshot:
        return self._keep(_new_values(snapshot))

    @patient
    def _keep(self, values: dict[str, Any]) -> Snapshot:
        kind, sha256 = values["target_kind"], values["sha256"]
        try:
            with self.database.write() as session:
                values["made_at"] = self.database.now(session)
                self.database.add(session, CostModelRow, ["target_kind", "sha256"], [values])
                _drop_old(session, kind)
                mine = HEADS.where(CostModelRow.target_kind == kind, CostModelRow.sha256 == sha256)
                return to_snapshot(session.execute(mine).one())
        except sql.IntegrityError as error:
            raise NotFound(f"{self.database}: there is no job {values['job_id']}") from error

    @patient
    def newest(self, target_kind: str, features_version: str, parent_sha256: str | None = None) -> Snapshot | None:
        query = HEADS.where(
            CostModelRow.target_kind == target_kind,
            CostModelRow.features_version == features_version,
            CostModelRow.parent_sha256.is_not_distinct_from(parent_sha256),
            HAS_CONTENT,
        )
        with self.database.read() as session:
            for row in session.execute(query.order_by(CostModelRow.id.desc())).all():
                content = session.scalar(CONTENT, {"id": row.id})
                if content is None:  # dropped meanwhile
                    continue
                if hashlib.sha256(content).hexdigest() == row.sha256:
                    return to_snapshot(row, content)
                _log.warning("%s: cost model %d is passed over, as it is not what was stored", self.database, row.id)
        return None

    @patient
    def list(self, target_kind: str | None = None, limit: int = 100, before: int | None = None) -> list[Snapshot]:
        query = HEADS.order_by(CostModelRow.id.desc()).limit(limit)
        if target_kind is not None:
            query = query.where(CostModelRow.target_kind == target_kind)
        if before is not None:
            query = query.where(CostModelRow.id < before)
        with self.database.read() as session:
            return [to_snapshot(row) for row in session.execute(query)]


def _new_values(snapshot: NewSnapshot) -> dict[str, Any]:
    """The columns of a CostModelRow, without its moment."""
    size_bytes = len(snapshot.content)
    if not 0 < size_bytes <= LARGEST_BYTES:
        raise ValueError(f"a cost model of {size_bytes} bytes; at least 1 and at most {LARGEST_BYTES} are kept")
    return {
        "target_kind": clean(snapshot.target_kind),
        "features_version": clean(snapshot.features_version),
        "sha256": snapshot.sha256,
        "size_bytes": size_bytes,
        "parent_sha256": snapshot.parent_sha256,
        "trials": snapshot.trials,
        "newest_trial_id": snapshot.newest_trial_id,
        "metrics": _checked(snapshot.metrics),
        "job_id": snapshot.job_id,
        "content": snapshot.content,
    }


def _checked(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A copy. Raises ValueError for what is no JSON."""
    try:
        copied: dict[str, Any] = json.loads(strict_json(dict(metrics)))
    except TypeError as error:
        raise ValueError(f"the metrics are no JSON: {error}") from error
    return copied


def _drop_old(session: Session, kind: str) -> None:
    """Drop the contents of all but the newest models of a kind of target."""
    of_kind = CostModelRow.target_kind == kind, HAS_CONTENT
    newest = select(CostModelRow.id).where(*of_kind).order_by(CostModelRow.id.desc()).limit(CONTENTS)
    old = update(CostModelRow).where(*of_kind, CostModelRow.id.not_in(newest)).values(content=None)
    session.execute(old, execution_options={"synchronize_session": False})
