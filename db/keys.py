"""Keys: the API keys of a database, which has their digests only (`access`)."""

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

from .access import ID_LETTERS, LOCAL, LOCAL_OWNER, MADE_DAYS, SESSION_OF, Key, KeyScope, new_token
from .database import KEYS_AT_ONCE, Database, DatabasePart, batches, read_session, retry, write_session
from .errors import NotFound, StoreError
from .logs.entry import check_namespace
from .tables import KeyRow, WebhookRow
from .translate import clean, from_row
from .webhooks import delete_webhooks


class NotGranted(StoreError):
    """A key can neither make nor revoke another one that may do more than itself. Nothing was stored."""


TOKEN = re.compile(rf"tw_([A-Za-z0-9]{{{ID_LETTERS}}})_([A-Za-z0-9_-]{{43}})")

NO_DIGEST = "0" * 64
"""Compared with the secret of an unknown key, so that it takes as long as for a known one."""

USE_PRECISION_S = 60.0
"""Precision of the last use of a key."""


class Keys(DatabasePart):
    """API keys. Every method may raise StoreError."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._noted_s: dict[str, float] = {}  # by id: when this process last stored a use, by its monotonic clock

    def create(
        self,
        name: str,
        scopes: Collection[KeyScope],
        expires_in_s: float | None = None,
        *,
        token: str | None = None,
        passing: bool = False,
        namespaces: Collection[str] | None = None,
    ) -> tuple[Key, str]:
        """A new key and its token, which is not stored anywhere.

        `token` is an existing one (`new_token`); if its key is stored already, that is returned as it is. `passing` is
        a browser session or a link; so is every key with the scope LOGIN. `namespaces` of the log are those that it is
        for; None: all. Raises ValueError for a token of another form or with another secret than the key of its id, for
        a passing key that does not expire, for an impossible lifetime, and for names that no namespace has.
        """
        token = token or new_token()
        passing = passing or KeyScope.LOGIN in scopes
        if passing and expires_in_s is None:
            raise ValueError("a session or a link must expire")
        values = _new_values(token, name, scopes, is_passing=passing)
        values["namespaces"] = None if namespaces is None else sorted(map(check_namespace, set(namespaces)))
        return self._create(values, _lifetime(expires_in_s), token), token

    @write_session
    def _create(self, session: Session, values: dict[str, Any], life: timedelta | None, token: str) -> Key:
        now = self.database.now(session)
        try:
            expires_at = None if life is None else now + life
        except OverflowError as error:
            raise ValueError(f"{life} is no life of a key") from error
        self.database.add(session, KeyRow, ["id"], [{**values, "created_at": now, "expires_at": expires_at}])
        row = self._row(session, token)
        if row is None:
            raise ValueError(f"there is a key {values['id']} with another secret")
        return _key(row)

    @retry
    def check(self, token: str) -> Key | None:
        """The key of a token; None where it is none, unknown, expired or revoked. Compares in constant time.

        Its last use is stored once a minute at most, and not while the database can't be written.
        """
        with self.database.read() as session:
            row = self._row(session, token)
            now = self.database.now(session)
            if row is None or not row.is_valid(now):
                return None
            key = _key(row)
        if key.last_used_at is None or (now - key.last_used_at).total_seconds() >= USE_PRECISION_S:
            self._note_use(key.id, now)
        return key

    def use_once(self, token: str) -> Key | None:  # no retry: it would refuse what it has admitted
        """As `check`, and revokes it in the same transaction: of two simultaneous uses one succeeds."""
        with self.database.write() as session:
            row = self._row(session, token, lock=True)
            now = self.database.now(session)
            if row is None or not row.is_valid(now):
                return None
            row.revoked_at = row.last_used_at = now
            return _key(row)

    @write_session
    def begin_session(
        self, session: Session, token: str, scopes: Collection[KeyScope], expires_in_s: float
    ) -> tuple[Key, str] | None:
        """A browser session for the key of a token: its key and token; None where the key is not valid.

        It has those of the scopes that the key has, and ends with the key at the latest, also where that is revoked.
        """
        session_token = new_token()
        row = self._row(session, token, lock=True)  # a revocation waits, and then finds the session too
        now = self.database.now(session)
        if row is None or row.is_passing or not row.is_valid(now):  # a session can't begin another
            return None
        until = now + timedelta(seconds=expires_in_s)
        values = _new_values(session_token, f"{SESSION_OF}{row.id}", set(scopes) & set(row.scopes), is_passing=True)
        expires_at = until if row.expires_at is None else min(until, row.expires_at)
        key = KeyRow(**values, created_at=now, expires_at=expires_at, namespaces=row.namespaces)
        session.add(key)
        session.flush()
        return _key(key), session_token

    def grant(
        self,
        giver_id: str,
        name: str,
        scopes: Collection[KeyScope],
        expires_in_s: float | None = None,
        *,
        namespaces: Collection[str] | None = None,
    ) -> tuple[Key, str]:
        """A new key and its token, made by the key of an id: it may do nothing that that one may not.

        It ends with that one at the latest, and where that is a session or a local key after MADE_DAYS; and is for its
        namespaces of the log alone. `giver_id` is that of the session, where one asks. Raises NotGranted where more is
        asked for, or the key of that id is no lasting one that is valid; ValueError as `create`.
        """
        token = new_token()
        values = _new_values(token, name, scopes, is_passing=False)
        values["namespaces"] = None if namespaces is None else sorted(map(check_namespace, set(namespaces)))
        return self._grant(giver_id, values, _lifetime(expires_in_s), token), token

    @write_session
    def _grant(
        self, session: Session, giver_id: str, values: dict[str, Any], life: timedelta | None, token: str
    ) -> Key:
        now = self.database.now(session)
        owner = _owner(session, giver_id)
        giver = _in_force(_locked(session, owner)[owner], now)
        if lacking := sorted(set(values["scopes"]) - giver.scopes):
            raise NotGranted(f"the key that makes it has no scope {', '.join(lacking)} itself")
        if values["namespaces"] is None:
            values["namespaces"] = None if giver.namespaces is None else sorted(giver.namespaces)
        if foreign := [each for each in values["namespaces"] or () if not giver.may_use(each)]:
            raise NotGranted(f"the key that makes it is not for the namespace {foreign[0]} itself")
        bound = now + timedelta(days=MADE_DAYS) if giver.is_local or owner != giver_id else None
        ends = [end for end in (None if life is None else now + life, giver.expires_at, bound) if end is not None]
        new = {**values, "created_at": now, "expires_at": min(ends, default=None)}
        self.database.add(session, KeyRow, ["id"], [new])
        made = self._row(session, token)
        assert made is not None  # it was just added
        return _key(made)

    @write_session
    def revoke(self, session: Session, key_id: str, giver_id: str | None = None) -> Key:
        """Revoke a key and the sessions that began with it, and delete its webhooks. What it made stays in force.

        `giver_id` is the key that asks for it, or a session: it revokes itself, its key, and what may do no more than
        that. None: who asks has the database at hand. Raises NotFound, and NotGranted for other keys.
        """
        key_id = clean(key_id)
        owner = key_id if giver_id in (None, key_id) else _owner(session, giver_id)
        rows = _locked(session, key_id, owner)
        row, now = rows[key_id], self.database.now(session)
        if row is None:
            raise NotFound(f"{self.database}: there is no key {key_id}")
        if owner != key_id and not _in_force(rows[owner], now).covers(_key(row)):
            raise NotGranted("the key that is to be revoked may do more than the one that asks for it")
        row.revoked_at = row.revoked_at or now
        its_sessions = (KeyRow.is_passing, KeyRow.name == f"{SESSION_OF}{row.id}", KeyRow.revoked_at.is_(None))
        session.execute(update(KeyRow).where(*its_sessions).values(revoked_at=now))
        delete_webhooks(session, session.scalars(select(WebhookRow.id).where(WebhookRow.owner == row.id)).all())
        return _key(row)

    @write_session
    def widen(self, session: Session, key_id: str, scopes: Collection[KeyScope]) -> Key:
        """Let a key do these things too. Raises NotFound."""
        row = session.get(KeyRow, clean(key_id), with_for_update=True)
        if row is None:
            raise NotFound(f"{self.database}: there is no key {key_id}")
        row.scopes = sorted({*row.scopes, *map(str, scopes)})
        return _key(row)

    @write_session
    def remove_expired(self, session: Session) -> int:
        """Delete passing keys that are not valid any more; how many."""
        statement = delete(KeyRow).where(KeyRow.is_passing, ~_is_valid_sql(self.database.now(session)))
        return len(session.execute(statement.returning(KeyRow.id)).all())

    @read_session
    def expired(self, session: Session) -> int:
        """How many `remove_expired` would delete now."""
        is_over = KeyRow.is_passing, ~_is_valid_sql(self.database.now(session))
        return session.scalar(select(func.count()).select_from(KeyRow).where(*is_over)) or 0

    @read_session
    def any(self, session: Session) -> bool:
        """Whether there is a valid key, not counting local and passing ones."""
        is_lasting = and_(KeyRow.is_passing.is_(False), func.substr(KeyRow.name, 1, len(LOCAL)) != LOCAL)
        query = select(KeyRow.id).where(is_lasting, _is_valid_sql(self.database.now(session))).limit(1)
        return session.scalar(query) is not None

    @read_session
    def list(self, session: Session) -> list[Key]:
        """The newest first, without passing ones."""
        query = select(KeyRow).where(KeyRow.is_passing.is_(False)).order_by(KeyRow.created_at.desc(), KeyRow.id)
        return [_key(row) for row in session.scalars(query)]

    @read_session
    def owner_names(self, session: Session, key_ids: Collection[str]) -> dict[str, str]:
        """Id -> name of those of these keys that there are, as others than their owners may see it."""
        names: dict[str, str] = {}
        for batch in batches(set(key_ids), KEYS_AT_ONCE):
            names |= dict(session.execute(select(KeyRow.id, KeyRow.name).where(KeyRow.id.in_(batch))).all())
        return {key_id: LOCAL_OWNER if name.startswith(LOCAL) else name for key_id, name in names.items()}

    def _row(self, session: Session, token: str, lock: bool = False) -> KeyRow | None:
        """The row of a token with the right secret."""
        match = TOKEN.fullmatch(token)
        if match is None:
            return None
        row = session.get(KeyRow, match[1], with_for_update=lock)
        is_right = hmac.compare_digest(NO_DIGEST if row is None else row.secret_sha256, _digest(match[2]))
        return row if is_right else None

    def _note_use(self, key_id: str, now: datetime) -> None:
        """Store the use of a key, once a minute at most. A failure is ignored."""
        if time.monotonic() - self._noted_s.get(key_id, -USE_PRECISION_S) < USE_PRECISION_S:
            return
        self._noted_s[key_id] = time.monotonic()
        is_stale = or_(KeyRow.last_used_at.is_(None), KeyRow.last_used_at <= now - timedelta(seconds=USE_PRECISION_S))
        with suppress(StoreError), self.database.write() as session:
            session.execute(update(KeyRow).where(KeyRow.id == key_id, is_stale).values(last_used_at=now))


def _new_values(token: str, name: str, scopes: Collection[str], *, is_passing: bool) -> dict[str, Any]:
    """The columns of a KeyRow without its moments. Raises ValueError for a token of another form."""
    match = TOKEN.fullmatch(token)
    if match is None:
        raise ValueError("a token is tw_ID_SECRET")
    return {
        "id": match[1],
        "name": clean(name),
        "secret_sha256": _digest(match[2]),
        "scopes": sorted(set(map(str, scopes))),
        "is_passing": is_passing,
    }


def _key(row: KeyRow) -> Key:
    namespaces = None if row.namespaces is None else frozenset(row.namespaces)
    return from_row(Key, row, scopes=frozenset(map(KeyScope, row.scopes)), namespaces=namespaces)


def _owner(session: Session, key_id: str) -> str:
    """The id of the key that a session began with, else that of a key itself."""
    row = session.get(KeyRow, clean(key_id))
    return clean(key_id) if row is None else _key(row).owner


def _locked(session: Session, *key_ids: str) -> dict[str, KeyRow | None]:
    """Rows of keys as they are now, and remain until the end of the transaction: a revocation waits."""
    ordered = sorted(set(key_ids))  # so that two keys that revoke each other do not deadlock
    return {one: session.get(KeyRow, one, with_for_update=True, populate_existing=True) for one in ordered}


def _in_force(row: KeyRow | None, now: datetime) -> Key:
    """A key that makes or revokes others. Raises NotGranted where it is no lasting one that is in force."""
    if row is None or row.is_passing or not row.is_valid(now):
        raise NotGranted("only a lasting key that is in force can make and revoke others")
    return _key(row)


def _lifetime(expires_in_s: float | None) -> timedelta | None:
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


def _is_valid_sql(now: datetime) -> ColumnElement[bool]:
    """`is_in_force` in SQL."""
    return and_(KeyRow.revoked_at.is_(None), or_(KeyRow.expires_at.is_(None), KeyRow.expires_at > now))
