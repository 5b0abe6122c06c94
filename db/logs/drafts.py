"""Drafts of releases: what a release is to have is found beside writers, under a name that no release has.

A draft is filled by pages. What is written meanwhile is followed, at last for a moment in which writers wait; from then
on the draft has what the rule served at one revision. A process that dies leaves its draft, which `remove_abandoned`
finds; so is a release deleted: it is a draft then, which is removed by pages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, SQLColumnExpression, delete, select
from sqlalchemy.orm import Session

from ..database import KEYS_AT_ONCE, Database, DatabasePart, batches, read_session, write_session
from ..errors import NotFound
from .release import ReleaseConflict
from .rows import find_namespace, in_order
from .tables import EnvironmentRow, LogEntryRow, NamespaceRow, ReleaseEntryRow, ReleaseRow

MARK = "/"
"""The begin of the name of a draft; a release's begins with a letter or digit."""

DRAFT_S = 3600.0
"""How long a draft may stay as it is until it counts as abandoned. Reading a million entries takes a minute."""

ROWS_AT_ONCE = 2000
"""Entries that one transaction adds to a draft, or removes from one."""

ROUNDS = 3
"""How often what was written meanwhile is followed beside writers: each round has what was written during the last."""

PLACE = LogEntryRow.id, LogEntryRow.key_digest, LogEntryRow.environment_id, LogEntryRow.choice


@dataclass(frozen=True, slots=True)
class ReleaseDraft:
    """A release that is being made of a namespace: of all environments, or of some."""

    id: int
    namespace: str
    namespace_id: int
    revision: int  # of the namespace, when it was opened
    environment_ids: frozenset[int] | None

    @property
    def conditions(self) -> Sequence[SQLColumnExpression[bool]]:
        """What an entry meets that it is to have."""
        if self.environment_ids is None:
            return [LogEntryRow.is_served]
        return [LogEntryRow.is_served, LogEntryRow.environment_id.in_(self.environment_ids)]


def is_draft() -> ColumnElement[bool]:
    """Whether a row is none of a release that anybody may find."""
    return ReleaseRow.name.startswith(MARK, autoescape=True)


def draft_name() -> str:
    """A name for a draft."""
    return MARK + secrets.token_hex(8)


def unname(row: ReleaseRow) -> None:
    """Make a draft of a release, for `remove_draft`, or whoever sweeps."""
    row.name, row.created_at = draft_name(), datetime.fromtimestamp(0, UTC)


def remove_abandoned(database: Database, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Remove drafts that nobody went on with."""
    for number in database.retry(partial(_abandoned, database)):
        remove_draft(database, number, goes_on)


def drafts_of(database: Database, namespace_id: int) -> Sequence[int]:
    """The drafts of a namespace."""
    with database.read() as session:
        return session.scalars(select(ReleaseRow.id).where(ReleaseRow.namespace_id == namespace_id, is_draft())).all()


def remove_draft(database: Database, release_id: int, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Remove a draft, if it is one still, and what it has; some rows a transaction."""
    while goes_on() and database.retry(partial(_remove_some, database, release_id)):
        pass


def _abandoned(database: Database) -> Sequence[int]:
    with database.read() as session:
        before = database.now(session) - timedelta(seconds=DRAFT_S)
        return session.scalars(select(ReleaseRow.id).where(is_draft(), ReleaseRow.created_at < before)).all()


def _remove_some(database: Database, release_id: int) -> bool:
    """Remove some of a draft, its row at last. Whether anything is left."""
    with database.write_core() as connection:
        row = select(ReleaseRow.id).where(ReleaseRow.id == release_id, is_draft()).with_for_update()
        if connection.scalar(row) is None:
            return False
        of_draft, entry = ReleaseEntryRow.release_id == release_id, ReleaseEntryRow.entry_id
        last = connection.scalar(select(entry).where(of_draft).order_by(entry).offset(ROWS_AT_ONCE - 1).limit(1))
        if last is not None:
            connection.execute(delete(ReleaseEntryRow).where(of_draft, entry <= last))
            return True
        connection.execute(delete(ReleaseEntryRow).where(of_draft))
        connection.execute(delete(ReleaseRow).where(ReleaseRow.id == release_id))
        return False


class ReleaseDrafts(DatabasePart):
    """Each method but `fill` is one transaction, and may raise StoreError."""

    @write_session
    def open(self, session: Session, namespace: str, fingerprints: Collection[str] | None, name: str) -> ReleaseDraft:
        """A draft under this name, without entries. Raises NotFound, and ValueError as `create` does."""
        # Locked, so that nobody deletes the namespace meanwhile: its drafts are swept with it.
        space = find_namespace(session, self.database, namespace, lock=True)
        environment_ids = None if fingerprints is None else self._environment_ids(session, space, fingerprints)
        row = session.scalar(select(ReleaseRow).where(ReleaseRow.namespace_id == space.id, ReleaseRow.name == name))
        if row is None:
            row = ReleaseRow(namespace_id=space.id, name=name, revision=space.revision, entries=0, sha256="")
            row.signature, row.notes, row.owner, row.created_at = "", "", "", self.database.now(session)
            session.add(row)
            session.flush()
        return ReleaseDraft(row.id, namespace, space.id, row.revision, environment_ids)

    def fill(self, draft: ReleaseDraft) -> None:
        """Give a draft what the rule serves at one revision, that of its row then. Raises NotFound, ReleaseConflict."""
        after = None
        while page := self._copy(draft, after):
            after = page[-1]
        revision = draft.revision
        for _ in range(ROUNDS):
            newest = self._revision(draft)
            while revision < newest:
                revision = self._follow(draft, revision, newest)
        self._settle(draft, revision)

    @read_session
    def _revision(self, session: Session, draft: ReleaseDraft) -> int:
        return find_namespace(session, self.database, draft.namespace).revision

    @write_session
    def _copy(self, session: Session, draft: ReleaseDraft, after: Row[Any] | None) -> Sequence[Row[Any]]:
        """Add the entries behind one."""
        self.row(session, draft)
        rows = session.execute(in_order(draft.namespace_id, PLACE, after, ROWS_AT_ONCE).where(*draft.conditions)).all()
        self._add(session, draft, [row.id for row in rows])
        return rows

    @write_session
    def _follow(self, session: Session, draft: ReleaseDraft, since: int, newest: int) -> int:
        """Follow the first changes after a revision; the one up to which that is done."""
        self.row(session, draft)
        of_namespace, revision = LogEntryRow.namespace_id == draft.namespace_id, LogEntryRow.revision
        changes = select(revision).where(of_namespace, revision > since, revision <= newest).order_by(revision)
        last = session.scalar(changes.offset(ROWS_AT_ONCE - 1).limit(1))
        upto = newest if last is None else last
        self._renew(session, draft, [revision > since, revision <= upto])
        return upto

    @write_session
    def _settle(self, session: Session, draft: ReleaseDraft, since: int) -> None:
        """Follow what is left, while writers wait: from then on the draft is of one revision."""
        space = find_namespace(session, self.database, draft.namespace, lock=True)
        row = self.row(session, draft)
        self._renew(session, draft, [LogEntryRow.revision > since])
        row.revision = space.revision

    def row(self, session: Session, draft: ReleaseDraft) -> ReleaseRow:
        """The row of a draft that goes on, locked. Raises NotFound, and ReleaseConflict where it was swept."""
        if find_namespace(session, self.database, draft.namespace).id != draft.namespace_id:
            raise NotFound(f"{self.database}: the namespace {draft.namespace} was deleted")
        row = session.get(ReleaseRow, draft.id, with_for_update=True)
        if row is None:
            raise ReleaseConflict(f"making a release of {draft.namespace} was held up for too long: make it again")
        if row.name.startswith(MARK):
            row.created_at = self.database.now(session)
        return row

    def _renew(self, session: Session, draft: ReleaseDraft, changed: Iterable[ColumnElement[bool]]) -> None:
        """Have of the keys of some entries what is served now. What is served no more need not be among these."""
        of_namespace = LogEntryRow.namespace_id == draft.namespace_id
        digests = session.scalars(select(LogEntryRow.key_digest).where(of_namespace, *changed).distinct()).all()
        for keys in batches(digests, KEYS_AT_ONCE):
            of_keys = of_namespace, LogEntryRow.key_digest.in_(keys)
            numbers = set(session.scalars(select(LogEntryRow.id).where(*of_keys)))
            served = session.scalars(select(LogEntryRow.id).where(*of_keys, *draft.conditions)).all()
            entry = ReleaseEntryRow.entry_id
            for some in batches(numbers.difference(served), KEYS_AT_ONCE):
                gone = delete(ReleaseEntryRow).where(ReleaseEntryRow.release_id == draft.id, entry.in_(some))
                session.connection().execute(gone)
            self._add(session, draft, served)

    def _add(self, session: Session, draft: ReleaseDraft, numbers: Iterable[int]) -> None:
        rows = [{"release_id": draft.id, "entry_id": number} for number in numbers]
        self.database.add(session, ReleaseEntryRow, ["release_id", "entry_id"], rows)

    def _environment_ids(self, session: Session, space: NamespaceRow, fingerprints: Collection[str]) -> frozenset[int]:
        """The environments with these fingerprints. Raises ValueError where nothing is served in one."""
        digests = [bytes.fromhex(fingerprint) for fingerprint in fingerprints]
        query = select(EnvironmentRow.digest, EnvironmentRow.id).where(EnvironmentRow.digest.in_(digests))
        known = dict(session.execute(query).all())
        for digest in digests:
            served = LogEntryRow.namespace_id == space.id, LogEntryRow.is_served
            entry = select(LogEntryRow.id).where(*served, LogEntryRow.environment_id == known.get(digest)).limit(1)
            if session.scalar(entry) is None:
                raise ValueError(f"nothing is served in the environment {digest.hex()}")
        return frozenset(known.values())
