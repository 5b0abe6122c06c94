"""SqlUploads: uploaded models over SQLAlchemy, cut into pieces so that none of them is in memory as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from .database import Database, patient
from .errors import NotFound
from .models import UploadPieceRow, UploadRow
from .translate import clean, to_upload
from .uploads import Upload, Uploads

PIECE_BYTES = 1 << 20


class SqlUploads(Uploads):
    """See `Uploads`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(
        self,
        sha256: str,
        data: Iterable[bytes],
        *,
        label: str,
        with_weights: bool,
        description: Mapping[str, Any],
        owner: str = "",
    ) -> bool:  # not patient: the data can be had once
        values = {
            "sha256": sha256,
            "size_bytes": 0,
            "label": clean(label),
            "with_weights": with_weights,
            "description": dict(description),
            "owner": owner,
        }
        with self.database.write() as session:
            values["created_at"] = self.database.now(session)
            if not self.database.add(session, UploadRow, ["sha256"], [values]):
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

    @patient
    def get(self, sha256: str) -> Upload:
        with self.database.read() as session:
            return to_upload(self._row(session, sha256))

    def read(self, sha256: str) -> Iterator[bytes]:
        self.get(sha256)
        return self._read(sha256)

    @patient
    def list(self, before: str | None = None, limit: int = 100) -> list[Upload]:
        query = select(UploadRow).order_by(UploadRow.created_at.desc(), UploadRow.sha256.desc()).limit(limit)
        with self.database.read() as session:
            if before is not None:
                last = self._row(session, before)
                query = query.where(tuple_(UploadRow.created_at, UploadRow.sha256) < (last.created_at, last.sha256))
            return [to_upload(row) for row in session.scalars(query)]

    def _read(self, sha256: str) -> Iterator[bytes]:
        position = 0
        while (piece := self._piece(sha256, position)) is not None:
            yield piece
            position += 1

    @patient
    def _piece(self, sha256: str, position: int) -> bytes | None:
        with self.database.read() as session:
            row = session.get(UploadPieceRow, (sha256, position))
            return None if row is None else row.data

    def _row(self, session: Session, sha256: str) -> UploadRow:
        row = session.get(UploadRow, sha256)
        if row is None:
            raise NotFound(f"{self.database}: there is no model {sha256}")
        return row


def _pieces(data: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES, the last one shorter."""
    rest = bytearray()
    for chunk in data:
        rest += chunk
        while len(rest) >= PIECE_BYTES:
            yield bytes(rest[:PIECE_BYTES])
            del rest[:PIECE_BYTES]
    if rest:
        yield bytes(rest)
