"""Releases: snapshots of a namespace that never change, and which of them lookups are answered from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, groupby
from typing import Any

from sqlalchemy import Row, func, not_, or_, select, update
from sqlalchemy.orm import Session

from ..database import Database, DatabasePart, batches, read_session, write_session
from ..errors import NotFound, read_stored
from ..translate import clean
from .difference import LogChange, pairs
from .drafts import ReleaseDraft, ReleaseDrafts, draft_name, is_draft, remove_abandoned, remove_draft, unname
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
from .tables import LogEntryRow, NamespaceRow, PromotionRow, ReleaseRow

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
    """From a moment on lookups were answered from a release, which may be deleted since then, or from none."""

    release: str | None
    owner: str  # id of the key that did it
    created_at: datetime
    id: int


@dataclass(frozen=True, slots=True)
class WantedRelease:
    """A release that is to be made, and what is said of it."""

    namespace: str
    name: str
    notes: str
    owner: str


class Releases(DatabasePart):
    """Each method but `create`, `delete` and those that give pages is one transaction, and may raise StoreError.

    ValueError: a name that is none of a release.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._environments = Environments()
        self._drafts = ReleaseDrafts(database)

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

        Writers wait for moments only, however many entries there are, and where the process dies nobody finds
        anything of it. Again, while nothing changed, it is the same release. Raises NotFound, ReleaseConflict, and
        ValueError for environments in which nothing is served.
        """
        check_release_name(name)
        wanted = WantedRelease(namespace, name, clean(notes)[:LONGEST_NOTES], owner)
        self._check(wanted)
        remove_abandoned(self.database)
        draft = self._drafts.open(namespace, fingerprints, draft_name())
        try:
            self._drafts.fill(draft)
            digest = LinesDigest()
            for line in self._lines(lambda after: self._read(namespace, draft.id, after)):
                digest.add(line)
            return self._finish(wanted, draft, digest, sign)
        finally:
            remove_draft(self.database, draft.id)

    @read_session
    def _check(self, session: Session, wanted: WantedRelease) -> None:
        """Raises NotFound and ReleaseConflict: before much is done in vain."""
        space = find_namespace(session, self.database, wanted.namespace)
        self._refuse(session, space, wanted, space.revision)

    @write_session
    def _finish(
        self, session: Session, wanted: WantedRelease, draft: ReleaseDraft, digest: LinesDigest, sign: Sign
    ) -> Release:
        """Sign a draft that is filled, and give it its name; or the release that is the same."""
        space = find_namespace(session, self.database, wanted.namespace, lock=True)
        row = self._drafts.row(session, draft)
        if row.name == wanted.name:  # it was done, and the answer was lost
            return _release(space, row)
        if not digest.entries:
            raise ValueError("nothing is served there")
        made = self._refuse(session, space, wanted, row.revision, digest.sha256)
        if made is not None:
            return _release(space, made)
        now = self.database.now(session)
        manifest = Manifest(space.name, wanted.name, row.revision, digest.entries, digest.sha256, now)
        row.name, row.entries, row.sha256 = wanted.name, digest.entries, digest.sha256
        row.signature, row.created_at = str(sign(manifest.content)), now
        row.notes, row.owner = wanted.notes, wanted.owner
        session.flush()
        return _release(space, row)

    def _refuse(
        self, session: Session, space: NamespaceRow, wanted: WantedRelease, revision: int, sha256: str | None = None
    ) -> ReleaseRow | None:
        """The release with the name, if it is the same. Raises ReleaseConflict for another one, or one too many."""
        made = self._row(session, space.id, wanted.name)
        if made is None:
            self._check_count(session, space)
        elif (made.revision, made.notes) != (revision, wanted.notes) or sha256 not in (None, made.sha256):
            raise ReleaseConflict(f"{space.name} has a release {made.name} already, of revision {made.revision:,}")
        return made

    @read_session
    def list(self, session: Session, namespace: str) -> Sequence[Release]:
        """The releases of a namespace, the newest first. Raises NotFound."""
        space = find_namespace(session, self.database, namespace)
        query = select(ReleaseRow).where(ReleaseRow.namespace_id == space.id, ~is_draft())
        return [_release(space, row) for row in session.scalars(query.order_by(ReleaseRow.id.desc()))]

    @read_session
    def get(self, session: Session, namespace: str, name: str) -> Release:
        """One of them. Raises NotFound."""
        return _release(*self._find(session, namespace, name))

    def delete(self, namespace: str, name: str) -> None:
        """Delete a release; the entries stay, and what was promoted when. From then on nobody finds it; what it had is
        removed by pages. Raises NotFound, and ReleaseConflict for the one that is promoted.
        """
        remove_draft(self.database, self._unname(namespace, name))

    @write_session
    def _unname(self, session: Session, namespace: str, name: str) -> int:
        space, row = self._find(session, namespace, name, lock=True)
        if space.release_id == row.id:
            raise ReleaseConflict(f"lookups of {namespace} are answered from {name}: promote another one first")
        session.execute(update(PromotionRow).where(PromotionRow.release_id == row.id).values(release_id=None))
        unname(row)
        return row.id

    @write_session
    def promote(self, session: Session, namespace: str, name: str | None, owner: str = "") -> None:
        """Have lookups answered from a release alone, or from none. Raises NotFound."""
        if name is None:
            space, row = find_namespace(session, self.database, namespace, lock=True), None
        else:
            space, row = self._find(session, namespace, name, lock=True)
        self._promote(session, space, row, owner)

    @write_session
    def roll_back(self, session: Session, namespace: str, name: str, owner: str = "") -> str | None:
        """Leave the release that is promoted for the one before it, which is returned: None for none.

        Again, it is the same, as long as that was the last step. Raises NotFound, and ReleaseConflict where another one
        is promoted.
        """
        space, row = self._find(session, namespace, name, lock=True)
        steps = select(PromotionRow).where(PromotionRow.namespace_id == space.id).order_by(PromotionRow.id.desc())
        if space.release_id != row.id:
            last = session.scalar(steps.limit(1))
            if last is None or last.left_name != name:
                raise ReleaseConflict(f"lookups of {namespace} are not answered from {name}")
            return last.name
        # Releases that were deleted are passed over.
        there = or_(PromotionRow.release_id.is_not(None), PromotionRow.name.is_(None))
        history = session.scalars(steps.where(there).limit(MOST_STEPS).with_only_columns(PromotionRow.release_id)).all()
        before = predecessor(reversed(history))
        back = None if before is None else session.get(ReleaseRow, before)
        self._promote(session, space, back, owner, left=name)
        return None if back is None else back.name

    @read_session
    def promotions(
        self, session: Session, namespace: str, *, before: int | None = None, limit: int = 100
    ) -> Sequence[Promotion]:
        """What was promoted when, the last first, of those with ids below `before`. Raises NotFound."""
        space = find_namespace(session, self.database, namespace)
        columns = PromotionRow.name, PromotionRow.owner, PromotionRow.created_at, PromotionRow.id
        query = select(*columns).where(PromotionRow.namespace_id == space.id)
        if before is not None:
            query = query.where(PromotionRow.id < before)
        return [Promotion(*row) for row in session.execute(query.order_by(PromotionRow.id.desc()).limit(limit))]

    def export(self, release: Release) -> Iterator[bytes]:
        """A release as a file, some lines at once: each a transaction, as nothing of it changes.

        Raises NotFound where it was deleted meanwhile: before the end, so that no short file looks like a whole one.
        """
        yield release.head()
        namespace, count = release.manifest.namespace, 0
        for lines in batches(self._lines(lambda after: self._read(namespace, release.id, after)), PAGE):
            count += len(lines)
            yield b"".join(lines)
        if count != release.manifest.entries:
            raise NotFound(f"{self.database}: {namespace} has the release {release.manifest.name} no more")

    def changes(self, before: Release, after: Release | None) -> Iterator[LogChange]:
        """What the second does not serve as the first does; None: what the rule serves now. A page a transaction.

        Raises NotFound where one of them was deleted meanwhile.
        """
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
        # Asked after the page: it is whole if they are there still.
        numbers = {mine, others} - {None}
        there = session.scalars(select(ReleaseRow.id).where(ReleaseRow.id.in_(numbers), ~is_draft())).all()
        if len(there) < len(numbers):
            raise NotFound(f"{self.database}: a release of {namespace} was deleted meanwhile")
        self._environments.read(session, {row.environment_id for row in rows})
        return rows

    @read_session
    def _read(self, session: Session, namespace: str, release_id: int, after: Row[Any] | None) -> Sequence[Row[Any]]:
        """What a line is made of, of a page of the entries of a release or draft."""
        space = find_namespace(session, self.database, namespace)
        rows = session.execute(in_order(space.id, LINE, after, PAGE).where(is_served(release_id))).all()
        self._environments.read(session, {row.environment_id for row in rows})
        return rows

    def _lines(self, read: Callable[[Row[Any] | None], Sequence[Row[Any]]]) -> Iterator[bytes]:
        """The lines of what `read` finds behind a row, in the order of releases."""
        for _, rows in groupby(chain.from_iterable(_pages(read)), lambda row: row.key_digest):
            known = self._environments.known
            for row in sorted(rows, key=lambda row: known[row.environment_id].digest):
                yield release_line(row.key, row.value, known[row.environment_id])

    def _check_count(self, session: Session, space: NamespaceRow) -> None:
        count = session.scalar(select(func.count()).where(ReleaseRow.namespace_id == space.id, ~is_draft())) or 0
        if count >= MOST_RELEASES:
            raise ReleaseConflict(f"{space.name} has {count} releases, as many as it may: delete one first")

    def _promote(
        self, session: Session, space: NamespaceRow, row: ReleaseRow | None, owner: str, left: str | None = None
    ) -> None:
        release_id, name = (None, None) if row is None else (row.id, row.name)
        if space.release_id == release_id:
            return
        space.release_id, space.revision = release_id, space.revision + 1  # what is kept of lookups is out of date
        step = PromotionRow(namespace_id=space.id, release_id=release_id, name=name, left_name=left, owner=owner)
        step.created_at = self.database.now(session)
        session.add(step)
        session.flush()

    def _row(self, session: Session, namespace_id: int, name: str) -> ReleaseRow | None:
        query = select(ReleaseRow).where(ReleaseRow.namespace_id == namespace_id, ReleaseRow.name == name)
        return session.scalar(query.where(~is_draft()))

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
