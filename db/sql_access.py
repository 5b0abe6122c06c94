"""SqlKeys: API keys over SQLAlchemy."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from .access import ID_LETTERS, LOCAL, SESSION_OF, Key, Keys, Scope, new_token
from .database import Database, patient
from .errors import NotFound, StoreError
from .models import KeyRow
from .translate import clean, to_key

TOKEN = re.compile(rf"tw_([A-Za-z0-9]{{{ID_LETTERS}}})_([A-Za-z0-9_-]{{43}})")

NO_DIGEST = "0" * 64
"""What the secret of an unknown key is compared with, so that it takes as long as one of a known key."""

USED_EVERY_S = 60.0
"""How exactly it is known when a key was used last."""


class SqlKeys(Keys):
    """See `Keys`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._noted_s: dict[str, float] = {}  # by id: when this process last noted a use, by its monotonic clock

    def create(
        self,
        name: str,
        scopes: Collection[Scope],
        expires_in_s: float | None = None,
        *,
        token: str | None = None,
        passing: bool = False,
    ) -> tuple[Key, str]:
        token = token or new_token()
        parts = TOKEN.fullmatch(token)
        if parts is None:
            raise ValueError("a token is tw_ID_SECRET")
        passing = passing or Scope.LOGIN in scopes
        if passing and expires_in_s is None:
            raise ValueError("a session or a link must expire")
        values = {
            "id": parts[1],
            "name": clean(name),
            "secret_sha256": _digest(parts[2]),
            "scopes": sorted(scope.value for scope in set(scopes)),
            "is_passing": passing,
        }
        return self._create(values, _life(expires_in_s), token), token

    @patient
    def _create(self, values: dict[str, Any], life: timedelta | None, token: str) -> Key:
        with self.database.write() as session:
            now = self.database.now(session)
            try:
                expires_at = None if life is None else now + life
            except OverflowError as error:
                raise ValueError(f"{life} is no life of a key") from error
            self.database.add(session, KeyRow, ["id"], [{**values, "created_at": now, "expires_at": expires_at}])
            row = self._row(session, token)
            if row is None:
                raise ValueError(f"there is a key {values['id']} with another secret")
            return to_key(row)

    @patient
    def check(self, token: str) -> Key | None:
        with self.database.read() as session:
            row = self._row(session, token)
            now = self.database.now(session)
            if row is None or not _in_force(row, now):
                return None
            found = to_key(row)
        if found.last_used_at is None or (now - found.last_used_at).total_seconds() >= USED_EVERY_S:
            self._note_use(found.id, now)
        return found

    def use_once(self, token: str) -> Key | None:  # not patient: tried again, it would refuse what it let in
        with self.database.write() as session:
            row = self._row(session, token, lock=True)
            now = self.database.now(session)
            if row is None or not _in_force(row, now):
                return None
            row.revoked_at = row.last_used_at = now
            return to_key(row)

    @patient
    def begin_session(self, token: str, scopes: Collection[Scope], expires_in_s: float) -> tuple[Key, str] | None:
        made = new_token()
        parts = TOKEN.fullmatch(made)
        assert parts is not None  # its form is that of every new token
        with self.database.write() as session:
            row = self._row(session, token, lock=True)  # who revokes it waits, and then finds the session too
            now = self.database.now(session)
            if row is None or row.is_passing or not _in_force(row, now):  # a session begins none
                return None
            until = now + timedelta(seconds=expires_in_s)
            begun = KeyRow(
                id=parts[1],
                name=f"{SESSION_OF}{row.id}",
                secret_sha256=_digest(parts[2]),
                scopes=sorted({scope.value for scope in scopes} & set(row.scopes)),
                is_passing=True,
                created_at=now,
                expires_at=until if row.expires_at is None else min(until, row.expires_at),
            )
            session.add(begun)
            session.flush()
            return to_key(begun), made

    @patient
    def revoke(self, key_id: str) -> Key:
        with self.database.write() as session:
            row = session.get(KeyRow, clean(key_id), with_for_update=True)
            if row is None:
                raise NotFound(f"{self.database}: there is no key {key_id}")
            now = self.database.now(session)
            row.revoked_at = row.revoked_at or now
            begun_with_it = (KeyRow.is_passing, KeyRow.name == f"{SESSION_OF}{row.id}", KeyRow.revoked_at.is_(None))
            session.execute(update(KeyRow).where(*begun_with_it).values(revoked_at=now))
            return to_key(row)

    @patient
    def remove_expired(self) -> int:
        with self.database.write() as session:
            over = delete(KeyRow).where(KeyRow.is_passing, ~_is_in_force(self.database.now(session)))
            return len(session.execute(over.returning(KeyRow.id)).all())

    @patient
    def any(self) -> bool:
        with self.database.read() as session:
            is_lasting = and_(KeyRow.is_passing.is_(False), func.substr(KeyRow.name, 1, len(LOCAL)) != LOCAL)
            query = select(KeyRow.id).where(is_lasting, _is_in_force(self.database.now(session))).limit(1)
            return session.scalar(query) is not None

    @patient
    def list(self) -> list[Key]:
        query = select(KeyRow).where(KeyRow.is_passing.is_(False)).order_by(KeyRow.created_at.desc(), KeyRow.id)
        with self.database.read() as session:
            return [to_key(row) for row in session.scalars(query)]

    def _row(self, session: Session, token: str, lock: bool = False) -> KeyRow | None:
        """The row of a token whose secret is right."""
        parts = TOKEN.fullmatch(token)
        if parts is None:
            return None
        row = session.get(KeyRow, parts[1], with_for_update=lock)
        is_right = hmac.compare_digest(NO_DIGEST if row is None else row.secret_sha256, _digest(parts[2]))
        return row if is_right else None

    def _note_use(self, key_id: str, now: datetime) -> None:
        """Note that a key is used now. One try a minute, and no harm where it fails: who has a key gets in."""
        if time.monotonic() - self._noted_s.get(key_id, -USED_EVERY_S) < USED_EVERY_S:
            return
        self._noted_s[key_id] = time.monotonic()
        unnoted = or_(KeyRow.last_used_at.is_(None), KeyRow.last_used_at <= now - timedelta(seconds=USED_EVERY_S))
        with suppress(StoreError), self.database.write() as session:
            session.execute(update(KeyRow).where(KeyRow.id == key_id, unnoted).values(last_used_at=now))


def _life(expires_in_s: float | None) -> timedelta | None:
    if expires_in_s is None:
        return None
    try:
        life = timedelta(seconds=expires_in_s)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{expires_in_s} seconds are no life of a key") from error
    if life <= timedelta():
        raise ValueError(f"{expires_in_s} seconds are no life of a key")
    return life


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _in_force(row: KeyRow, now: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


def _is_in_force(now: datetime) -> ColumnElement[bool]:
    """The same in SQL."""
    return and_(KeyRow.revoked_at.is_(None), or_(KeyRow.expires_at.is_(None), KeyRow.expires_at > now))
