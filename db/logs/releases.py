"""Releases: snapshots of a namespace that never change, and which of them lookups are answered from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, groupby, islice
from typing import Any

from sqlalchemy import Row, SQLColumnExpression, delete, func, insert, literal, not_, select
from sqlalchemy.orm import Session

from ..database import Database, DatabasePart, read_session, write_session
from ..errors import NotFound, read_stored
from ..tables import EnvironmentRow, LogEntryRow, NamespaceRow, PromotionRow, ReleaseEntryRow, ReleaseRow
from ..translate import clean
from .difference import LogChange, pairs
from .release import (
    LONGEST_NOTES,
    MOST_RELEASES,
    LinesDigest,
    Manifest,
    Release,
    ReleaseConflict,
    ReleaseSignature,
    Sign,
    check_release_name,
    predecessor,
    release_line,
)
from .rows import LIGHT, PAGE, Environments, find_namespace, in_order, is_served, rival_of

ATTEMPTS = 3
"""How often lines are read beside writers before these have to wait for it."""

MOST_STEPS = 1000
"""Promotions that a way back is looked for in."""

LINE = (
    LogEntryRow.key_digest,
    LogEntryRow.environment_id,
    LogEntryRow.choice,
    LogEntryRow.key,
    LogEntryRow.value,
)
"""What a line is made of."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """From a moment on lookups were answered from a release, or from none."""

    release: str | None
    owner: str  # id of the key that did it
    created_at: datetime
    id: int


@dataclass(frozen=True, slots=True)
class ReleaseDraft:
    """A release that is to be made."""

    namespace: str
    name: str
    notes: str
    fingerprints: Collection[str] | None  # of the environments; None: all
    owner: str


class Releases(DatabasePart):
    """Each method is one transaction, and may raise StoreError. ValueError: a name that is none of a release."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._environments = Environments()

    def create(
        self,
        namespace: str,
        name: str,
        sign: Sign,
        *,
        notes: str = "",
        fingerprints: Collection[str] | None = None,
        owner: str = "",
    ) -> Release:
        """Make a release of what the rule serves now in the environments with these fingerprints; None: in all.

        Again, while nothing changed, it is the same release. Raises NotFound, ReleaseConflict, and ValueError for
        environments in which nothing is served.
        """
        check_release_name(name)
        draft = ReleaseDraft(namespace, name, clean(notes)[:LONGEST_NOTES], fingerprints, owner)
        for _ in range(ATTEMPTS):
            made = self._create(draft, sign, self._read_lines(draft))
            if made is not None:
                return made
        made = self._create(draft, sign, None)
        assert made is not None  # nobody wrote meanwhile
        return made

    def _read_lines(self, draft: ReleaseDraft) -> tuple[int, LinesDigest]:
        """The digest of the lines of a release, and the revision before they were read: a page a transaction."""
        revision, digest = self._revision(draft.namespace), LinesDigest()
        for line in self._lines(partial(self._drafted, draft)):
            digest.add(line)
        return revision, digest

    @read_session
    def _revision(self, session: Session, namespace: str) -> int:
        return find_namespace(session, self.database, namespace).revision

    @read_session
    def _drafted(self, session: Session, draft: ReleaseDraft, after: Row[Any] | None) -> Sequence[Row[Any]]:
        space = find_namespace(session, self.database, draft.namespace)
        return self._page(session, space.id, self._served(session, space, draft.fingerprints), after)

    @write_session
    def _create(
        self, session: Session, draft: ReleaseDraft, sign: Sign, read: tuple[int, LinesDigest] | None
    ) -> Release | None:
        """Make a release of lines that were read before, or None where others wrote since then.

        Where none were read they are now, while writers wait: so it ends, however much is written.
        """
        space = find_namespace(session, self.database, draft.namespace, lock=True)
        conditions = self._served(session, space, draft.fingerprints)
        if read is None:
            digest = LinesDigest()
            for line in self._lines(lambda after: self._page(session, space.id, conditions, after)):
                digest.add(line)
        else:
            revision, digest = read
            if revision != space.revision:
                return None
        if not digest.entries:
            raise ValueError("nothing is served there")
        made = self._row(session, space.id, draft.name)
        if made is not None:
            if (made.revision, made.sha256, made.notes) == (space.revision, digest.sha256, draft.notes):
                return _release(space, made)
            raise ReleaseConflict(f"{space.name} has a release {draft.name} already, of revision {made.revision:,}")
        self._check_count(session, space)
        made = self._add(session, space, draft, digest, sign)
        entries = select(literal(made.id), LogEntryRow.id).where(LogEntryRow.namespace_id == space.id, *conditions)
        session.connection().execute(insert(ReleaseEntryRow).from_select(["release_id", "entry_id"], entries))
        return _release(space, made)

    def _add(
        self, session: Session, space: NamespaceRow, draft: ReleaseDraft, digest: LinesDigest, sign: Sign
    ) -> ReleaseRow:
        """The row of a new release, signed."""
        now = self.database.now(session)
        manifest = Manifest(space.name, draft.name, space.revision, digest.entries, digest.sha256, now)
        row = ReleaseRow(
            namespace_id=space.id,
            name=draft.name,
            revision=space.revision,
            entries=digest.entries,
            sha256=digest.sha256,
            signature=str(sign(manifest.content)),
            notes=draft.notes,
            owner=draft.owner,
            created_at=now,
        )
        session.add(row)
        session.flush()
        return row

    @read_session
    def list(self, session: Session, namespace: str) -> Sequence[Release]:
        """The releases of a namespace, the newest first. Raises NotFound."""
        space = find_namespace(session, self.database, namespace)
        query = select(ReleaseRow).where(ReleaseRow.namespace_id == space.id).order_by(ReleaseRow.id.desc())
        return [_release(space, row) for row in session.scalars(query)]

    @read_session
    def get(self, session: Session, namespace: str, name: str) -> Release:
        """One of them. Raises NotFound."""
        return _release(*self._find(session, namespace, name))

    @write_session
    def delete(self, session: Session, namespace: str, name: str) -> None:
        """Delete a release; the entries stay. Raises NotFound, and ReleaseConflict for the one that is promoted."""
        space, row = self._find(session, namespace, name, lock=True)
        if space.release_id == row.id:
            raise ReleaseConflict(f"lookups of {namespace} are answered from {name}: promote another one first")
        session.execute(delete(PromotionRow).where(PromotionRow.release_id == row.id))
        session.execute(delete(ReleaseEntryRow).where(ReleaseEntryRow.release_id == row.id))
        session.delete(row)

    @write_session
    def promote(self, session: Session, namespace: str, name: str | None, owner: str = "") -> None:
        """Have lookups answered from a release alone, or from none. Raises NotFound."""
        if name is None:
            space, release_id = find_namespace(session, self.database, namespace, lock=True), None
        else:
            space, row = self._find(session, namespace, name, lock=True)
            release_id = row.id
        self._promote(session, space, release_id, owner)

    @write_session
    def roll_back(self, session: Session, namespace: str, name: str, owner: str = "") -> str | None:
        """Leave the release that is promoted for the one before it, which is returned: None for none.

        Again, it is the same. Raises NotFound, and ReleaseConflict where another one is promoted.
        """
        space, row = self._find(session, namespace, name, lock=True)
        query = select(PromotionRow.release_id).where(PromotionRow.namespace_id == space.id)
        steps = list(session.scalars(query.order_by(PromotionRow.id.desc()).limit(MOST_STEPS)))
        if space.release_id == row.id:
            self._promote(session, space, predecessor(reversed(steps)), owner)
        elif steps[1:2] != [row.id]:
            raise ReleaseConflict(f"lookups of {namespace} are not answered from {name}")
        return session.scalar(select(ReleaseRow.name).where(ReleaseRow.id == space.release_id))

    @read_session
    def promotions(
        self, session: Session, namespace: str, *, before: int | None = None, limit: int = 100
    ) -> Sequence[Promotion]:
        """What was promoted when, the last first, of those with ids below `before`. Raises NotFound."""
        space = find_namespace(session, self.database, namespace)
        columns = ReleaseRow.name, PromotionRow.owner, PromotionRow.created_at, PromotionRow.id
        query = select(*columns).outerjoin_from(PromotionRow, ReleaseRow, ReleaseRow.id == PromotionRow.release_id)
        query = query.where(PromotionRow.namespace_id == space.id)
        if before is not None:
            query = query.where(PromotionRow.id < before)
        return [Promotion(*row) for row in session.execute(query.order_by(PromotionRow.id.desc()).limit(limit))]

    def export(self, release: Release) -> Iterator[bytes]:
        """A release as a file, some lines at once: each a transaction, as nothing of it changes."""
        yield release.head()
        lines = self._lines(lambda after: self._exported(release, after))
        while piece := b"".join(islice(lines, PAGE)):
            yield piece

    def changes(self, before: Release, after: Release | None) -> Iterator[LogChange]:
        """What the second does not serve as the first does; None: what the rule serves now. A page a transaction."""
        namespace = before.manifest.namespace
        old_id, new_id = before.id, None if after is None else after.id
        old, new = (
            chain.from_iterable(_pages(partial(self._unlike, namespace, *ids)))
            for ids in ((old_id, new_id), (new_id, old_id))
        )
        for left, right in pairs(old, new):
            row = right if left is None else left
            sides = (None if side is None else rival_of(side) for side in (left, right))
            yield LogChange(row.key, self._environments.known[row.environment_id], *sides)

    @read_session
    def _unlike(
        self, session: Session, namespace: str, mine: int | None, others: int | None, after: Row[Any] | None
    ) -> Sequence[Row[Any]]:
        """Entries of one side that are not of the other."""
        space = find_namespace(session, self.database, namespace)
        query = in_order(space.id, (*LIGHT, LogEntryRow.key), after, PAGE)
        rows = session.execute(query.where(is_served(mine), not_(is_served(others)))).all()
        self._environments.read(session, {row.environment_id for row in rows})
        return rows

    @read_session
    def _exported(self, session: Session, release: Release, after: Row[Any] | None) -> Sequence[Row[Any]]:
        space = find_namespace(session, self.database, release.manifest.namespace)
        return self._page(session, space.id, [is_served(release.id)], after)

    def _lines(self, read: Callable[[Row[Any] | None], Sequence[Row[Any]]]) -> Iterator[bytes]:
        """The lines of what `read` finds behind a row, in the order of releases."""
        for _, rows in groupby(chain.from_iterable(_pages(read)), lambda row: row.key_digest):
            known = self._environments.known
            for row in sorted(rows, key=lambda row: known[row.environment_id].digest):
                yield release_line(row.key, row.value, known[row.environment_id])

    def _page(
        self, session: Session, space_id: int, conditions: Collection[SQLColumnExpression[bool]], after: Row[Any] | None
    ) -> Sequence[Row[Any]]:
        rows = session.execute(in_order(space_id, LINE, after, PAGE).where(*conditions)).all()
        self._environments.read(session, {row.environment_id for row in rows})
        return rows

    def _served(
        self, session: Session, space: NamespaceRow, fingerprints: Collection[str] | None
    ) -> Sequence[SQLColumnExpression[bool]]:
        """Conditions of the entries that the rule serves, of these environments. Raises ValueError."""
        if fingerprints is None:
            return [LogEntryRow.is_served]
        digests = [bytes.fromhex(fingerprint) for fingerprint in fingerprints]
        query = select(EnvironmentRow.digest, EnvironmentRow.id).where(EnvironmentRow.digest.in_(digests))
        known = dict(session.execute(query).all())
        for digest in digests:
            served = LogEntryRow.namespace_id == space.id, LogEntryRow.is_served
            entry = select(LogEntryRow.id).where(*served, LogEntryRow.environment_id == known.get(digest)).limit(1)
            if session.scalar(entry) is None:
                raise ValueError(f"nothing is served in the environment {digest.hex()}")
        return [LogEntryRow.is_served, LogEntryRow.environment_id.in_(known.values())]

    def _check_count(self, session: Session, space: NamespaceRow) -> None:
        count = session.scalar(select(func.count()).where(ReleaseRow.namespace_id == space.id)) or 0
        if count >= MOST_RELEASES:
            raise ReleaseConflict(f"{space.name} has {count} releases, as many as it may: delete one first")

    def _promote(self, session: Session, space: NamespaceRow, release_id: int | None, owner: str) -> None:
        if space.release_id == release_id:
            return
        space.release_id, space.revision = release_id, space.revision + 1  # what is kept of lookups is out of date
        now = self.database.now(session)
        session.add(PromotionRow(namespace_id=space.id, release_id=release_id, owner=owner, created_at=now))
        session.flush()

    def _row(self, session: Session, namespace_id: int, name: str) -> ReleaseRow | None:
        query = select(ReleaseRow).where(ReleaseRow.namespace_id == namespace_id, ReleaseRow.name == name)
        return session.scalar(query)

    def _find(
        self, session: Session, namespace: str, name: str, *, lock: bool = False
    ) -> tuple[NamespaceRow, ReleaseRow]:
        """The rows of a namespace and a release of it. Raises NotFound."""
        space = find_namespace(session, self.database, namespace, lock=lock)
        row = self._row(session, space.id, name)
        if row is None:
            raise NotFound(f"{self.database}: {namespace} has no release {name}")
        return space, row


def _pages(read: Callable[[Row[Any] | None], Sequence[Row[Any]]]) -> Iterator[Sequence[Row[Any]]]:
    """What is behind nothing, behind the last row of that, and so on."""
    after = None
    while page := read(after):
        yield page
        after = page[-1]


def _release(space: NamespaceRow, row: ReleaseRow) -> Release:
    signature = read_stored(lambda: ReleaseSignature.parse(row.signature), ReleaseRow.__tablename__, "signature")
    manifest = Manifest(space.name, row.name, row.revision, row.entries, row.sha256, row.created_at)
    return Release(manifest, signature, row.notes, row.owner, space.release_id == row.id, row.id)
