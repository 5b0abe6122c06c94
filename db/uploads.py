"""Uploads: models that were sent to the service, in pieces, so that none of them is in memory as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.orm import Session

from .database import DatabasePart, read_session, write_session
from .errors import NotFound
from .job import Conflict
from .tables import IS_UNFINISHED, JobRow, UploadPieceRow, UploadRow
from .translate import clean, from_row


@dataclass(frozen=True, slots=True)
class Upload:
    """An uploaded model; most are structures without weights."""

    sha256: str
    size_bytes: int
    label: str  # for people; hostile text is possible
    with_weights: bool
    description: dict[str, Any]  # inputs, outputs, open dimensions, ops
    created_at: datetime  # UTC
    owner: str = ""  # id of the API key


PIECE_BYTES = 1 << 20


class Uploads(DatabasePart):
    """Models by digest. Every method may raise StoreError."""

    def add(
        self,
        sha256: str,
        data: Iterable[bytes],
        *,
        label: str,
        with_weights: bool,
        description: Mapping[str, Any],
        owner: str = "",
    ) -> bool:  # no retry: the data can be read once
        """Store a model, all of it or nothing. Whether it was new; a known one stays as it is, and is used now."""
        values = {
            "sha256": sha256,
            "size_bytes": 0,
            "label": clean(label).strip(),
            "with_weights": with_weights,
            "description": dict(description),
            "owner": owner,
        }
        with self.database.write() as session:
            values["created_at"] = values["used_at"] = now = self.database.now(session)
            if mark_used(session, sha256, now) or not self.database.add(session, UploadRow, ["sha256"], [values]):
                return False
            digest, size_bytes = hashlib.sha256(), 0
            for position, piece in enumerate(_pieces(data)):
                digest.update(piece)
                size_bytes += len(piece)
                session.add(UploadPieceRow(sha256=sha256, position=position, data=piece))
                session.flush()
                session.expunge_all()
            if digest.hexdigest() != sha256:
                raise ValueError(f"the digest of what was sent is {digest.hexdigest()}, not {sha256}")
            session.get_one(UploadRow, sha256).size_bytes = size_bytes
        return True

    @write_session
    def use(self, session: Session, sha256: str) -> Upload:
        """The model of a digest, which is used now: nobody prunes it soon. Raises NotFound."""
        mark_used(session, sha256, self.database.now(session))
        return from_row(Upload, self._row(session, sha256))

    @read_session
    def get(self, session: Session, sha256: str) -> Upload:
        """The model of a digest, without its bytes. Raises NotFound."""
        return from_row(Upload, self._row(session, sha256))

    def read(self, sha256: str) -> Iterator[bytes]:
        """The bytes of a model, piece by piece. Raises NotFound."""
        self.get(sha256)
        return self._read(sha256)

    @read_session
    def list(self, session: Session, before: str | None = None, limit: int = 100) -> list[Upload]:
        """The newest first, from behind the digest `before` on."""
        query = select(UploadRow).order_by(UploadRow.created_at.desc(), UploadRow.sha256.desc()).limit(limit)
        if before is not None:
            last_row = self._row(session, before)
            query = query.where(tuple_(UploadRow.created_at, UploadRow.sha256) < (last_row.created_at, last_row.sha256))
        return [from_row(Upload, row) for row in session.scalars(query)]

    @write_session
    def delete(self, session: Session, sha256: str) -> int:
        """Delete a model; its size in bytes. Finished jobs of it keep standing.

        Raises NotFound, and Conflict while an unfinished job needs it.
        """
        row = self._row(session, sha256, lock=True)
        job = select(JobRow.id).where(JobRow.model_sha256 == sha256, IS_UNFINISHED).order_by(JobRow.id).limit(1)
        if (job_id := session.scalar(job)) is not None:
            raise Conflict(f"job {job_id} needs the model: cancel it first")
        size_bytes = row.size_bytes
        remove_upload(session, sha256)
        return size_bytes

    def _read(self, sha256: str) -> Iterator[bytes]:
        position = 0
        while (piece := self.piece(sha256, position)) is not None:
            yield piece
            position += 1

    @read_session
    def piece(self, session: Session, sha256: str, position: int) -> bytes | None:
        """The bytes of a model from `position` * PIECE_BYTES on, so many; None behind its end."""
        row = session.get(UploadPieceRow, (sha256, position))
        return None if row is None else row.data

    def _row(self, session: Session, sha256: str, *, lock: bool = False) -> UploadRow:
        row = session.get(UploadRow, sha256, with_for_update=lock)
        if row is None:
            raise NotFound(f"{self.database}: there is no model {sha256}")
        return row


def mark_used(session: Session, sha256: str, now: datetime) -> bool:
    """Store that a model is used now; none can delete it until the transaction ends. Whether it is there."""
    used = update(UploadRow).where(UploadRow.sha256 == sha256).values(used_at=now)
    return session.connection().execute(used).rowcount == 1


def remove_upload(session: Session, sha256: str) -> None:
    """Delete a locked model, with its pieces."""
    session.execute(delete(UploadPieceRow).where(UploadPieceRow.sha256 == sha256))
    session.execute(delete(UploadRow).where(UploadRow.sha256 == sha256))


def _pieces(data: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES, the last one shorter."""
    buffer = bytearray()
    for chunk in data:
        buffer += chunk
        while len(buffer) >= PIECE_BYTES:
            yield bytes(buffer[:PIECE_BYTES])
            del buffer[:PIECE_BYTES]
    if buffer:
        yield bytes(buffer)
