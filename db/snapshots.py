"""Snapshots: stored cost models."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import fields
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy import exc as sql
from sqlalchemy.orm import Session

from .database import DatabasePart, read_session, retry
from .engine import strict_json
from .errors import NotFound
from .snapshot import LARGEST_BYTES, MAX_CONTENTS, NewSnapshot, Snapshot
from .tables import CostModelRow
from .translate import clean, from_row

_log = logging.getLogger("tunewright")

HAS_CONTENT = CostModelRow.content.is_not(None)

HEADS = select(
    *(column for column in CostModelRow.__table__.columns if column.name != "content"), HAS_CONTENT.label("has_content")
)
"""All columns but the content."""

CONTENT = select(CostModelRow.content).where(CostModelRow.id == bindparam("id"))


class Snapshots(DatabasePart):
    """Snapshots of cost models. Every method may raise StoreError."""

    @retry
    def keep(self, snapshot: NewSnapshot) -> Snapshot:
        """Store a model, and drop the contents of all but the newest `MAX_CONTENTS` of its kind of target.

        A content that is stored already for the kind of target stays as it is, and its snapshot is returned. Raises
        ValueError for a content that is empty or larger than LARGEST_BYTES and for metrics that are not JSON, NotFound
        where there is no such job.
        """
        values = _new_values(snapshot)
        kind, sha256 = values["target_kind"], values["sha256"]
        try:
            with self.database.write() as session:
                values["made_at"] = self.database.now(session)
                self.database.add(session, CostModelRow, ["target_kind", "sha256"], [values])
                of_kind = CostModelRow.target_kind == kind, HAS_CONTENT
                newest = select(CostModelRow.id).where(*of_kind).order_by(CostModelRow.id.desc()).limit(MAX_CONTENTS)
                drop_old = update(CostModelRow).where(*of_kind, CostModelRow.id.not_in(newest)).values(content=None)
                session.execute(drop_old, execution_options={"synchronize_session": False})
                query = HEADS.where(CostModelRow.target_kind == kind, CostModelRow.sha256 == sha256)
                return _snapshot(session.execute(query).one())
        except sql.IntegrityError as error:
            raise NotFound(f"{self.database}: there is no job {values['job_id']}") from error

    @read_session
    def newest(
        self, session: Session, target_kind: str, features_version: str, parent_sha256: str | None = None
    ) -> Snapshot | None:
        """The newest model with these inputs and this parent that has its content, with it; else None.

        A content that does not match its digest is skipped.
        """
        query = HEADS.where(
            CostModelRow.target_kind == target_kind,
            CostModelRow.features_version == features_version,
            CostModelRow.parent_sha256.is_not_distinct_from(parent_sha256),
            HAS_CONTENT,
        )
        for row in session.execute(query.order_by(CostModelRow.id.desc())).all():
            content = session.scalar(CONTENT, {"id": row.id})
            if content is None:  # dropped meanwhile
                continue
            if hashlib.sha256(content).hexdigest() == row.sha256:
                return _snapshot(row, content)
            _log.warning("%s: cost model %d is passed over, as it is not what was stored", self.database, row.id)
        return None

    @read_session
    def list(
        self, session: Session, target_kind: str | None = None, limit: int = 100, before: int | None = None
    ) -> list[Snapshot]:
        """The snapshots of a kind of target or of all, the newest first, without content; `before`: of lower ids."""
        query = HEADS.order_by(CostModelRow.id.desc()).limit(limit)
        if target_kind is not None:
            query = query.where(CostModelRow.target_kind == target_kind)
        if before is not None:
            query = query.where(CostModelRow.id < before)
        return [_snapshot(row) for row in session.execute(query)]


def _snapshot(row: Any, content: bytes = b"") -> Snapshot:
    """The snapshot of a row of `HEADS`."""
    return from_row(Snapshot, row, content=content, has_content=bool(row.has_content))


def _new_values(snapshot: NewSnapshot) -> dict[str, Any]:
    """The columns of a CostModelRow, without its moment."""
    size_bytes = len(snapshot.content)
    if not 0 < size_bytes <= LARGEST_BYTES:
        raise ValueError(f"a cost model of {size_bytes} bytes; at least 1 and at most {LARGEST_BYTES} are kept")
    try:
        metrics = json.loads(strict_json(dict(snapshot.metrics)))
    except TypeError as error:
        raise ValueError(f"the metrics are no JSON: {error}") from error
    values = {field.name: getattr(snapshot, field.name) for field in fields(snapshot)}
    return values | {
        "target_kind": clean(snapshot.target_kind),
        "features_version": clean(snapshot.features_version),
        "sha256": hashlib.sha256(snapshot.content).hexdigest(),
        "size_bytes": size_bytes,
        "metrics": metrics,
    }
