"""Logs: the entries of a database, by namespace, written and found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import Session

from ..database import KEYS_AT_ONCE, Database, DatabasePart, batches, read_session, write_session
from ..errors import NotFound, StoreError
from .drafts import is_draft
from .entry import (
    EntryState,
    LogEntry,
    LogEnvironment,
    LogHit,
    LogMatch,
    check_namespace,
    digest,
    match_of,
)
from .formats import check_value
from .release import ReleaseConflict
from .rows import LIGHT, Environments, find_namespace, is_served, rival_of, whole
from .sweep import SweptLog, deleted_name, sweep
from .tables import EnvironmentRow, LogEntryRow, NamespaceRow, ReleaseRow
from .update import LogUpdate, Place, Stored, places

MOST_AT_ONCE = 1000
"""Entries of one transaction."""


class LogFull(StoreError):
    """A namespace has as many entries, or bytes, as it may have."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and how much is in it."""

    name: str
    entries: int
    size_bytes: int
    revision: int
    created_at: datetime
    release: str | None  # the one that lookups are answered from; None: none, the rule says what is served
    release_id: int | None  # its number
    id: int


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """What is served for some keys, and of which release it is."""

    hits: dict[str, LogHit]
    release: str | None = None  # None: none is promoted, or asked for


@dataclass(frozen=True, slots=True)
class LogQuota:
    """The most that a namespace may hold."""

    entries: int = 1_000_000
    size_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """What a write did."""

    added: int
    improved: int  # values that were there, of which more is known now
    known: int  # nothing new


SPACES = select(
    NamespaceRow.name,
    NamespaceRow.entries,
    NamespaceRow.size_bytes,
    NamespaceRow.revision,
    NamespaceRow.created_at,
    ReleaseRow.name,
    NamespaceRow.release_id,
    NamespaceRow.id,
).outerjoin(ReleaseRow, ReleaseRow.id == NamespaceRow.release_id)
"""Namespaces, in the order of the fields."""


class Logs(DatabasePart):
    """Each method but `sweep` is one transaction, and may raise StoreError.

    ValueError: a name that is none of a namespace.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._environments = Environments()

    @write_session
    def write(
        self,
        session: Session,
        namespace: str,
        entries: Sequence[LogEntry],
        owner: str = "",
        quota: LogQuota = LogQuota(),
    ) -> WriteCounts:
        """Add entries, all or none. Writing them again adds nothing; of values without a cost the last one is newest.

        Raises LogFull, and ValueError for a value that the compiler of its key would not have written (`formats`).
        """
        if len(entries) > MOST_AT_ONCE:
            raise ValueError(f"{len(entries)} entries at once; {MOST_AT_ONCE} are possible")
        for entry in entries:
            check_value(namespace, entry.key, entry.value)
        space = self._lock(session, check_namespace(namespace))
        where = places(entries, self._environment_ids(session, [entry.environment for entry in entries]))
        changes = self._load(session, space, {key_digest for key_digest, _ in where})
        for place, entry in zip(where, entries, strict=True):
            changes.write(place, entry)
        self._store(session, space, changes, owner)
        _check_quota(space, quota)
        added = len(changes.added)
        return WriteCounts(added, changes.improved, len(entries) - added - changes.improved)

    @write_session
    def decide(
        self,
        session: Session,
        namespace: str,
        key: str,
        environment: LogEnvironment,
        choice: str,
        state: EntryState,
    ) -> None:
        """Approve an entry, retire it, or undo that. Raises NotFound."""
        space = self._lock(session, check_namespace(namespace))
        environment_id = self._known_environment(session, environment.digest)
        place = digest(key.encode()), environment_id or 0
        changes = self._load(session, space, {place[0]})
        if environment_id is None or not changes.decide(place, bytes.fromhex(choice), state):
            raise NotFound(f"{self.database}: {namespace} has no such entry")
        self._store(session, space, changes, "")

    @write_session
    def delete(self, session: Session, namespace: str) -> int:
        """Delete a namespace with all of its entries; how many these were.

        From then on nobody finds any of them. But it takes no longer than a write does: their rows are removed by
        `sweep`, which is to be called next; after a crash any later one does it. Raises NotFound, and ReleaseConflict
        where a release has entries of it.
        """
        row = find_namespace(session, self.database, check_namespace(namespace), lock=True)
        if name := session.scalar(
            select(ReleaseRow.name).where(ReleaseRow.namespace_id == row.id, ~is_draft()).limit(1)
        ):
            raise ReleaseConflict(f"the release {name} of {namespace} has entries of it, so they can't be deleted")
        count, revision = row.entries, row.revision + 1  # revisions never go back
        row.name, row.entries, row.size_bytes = deleted_name(row.id), 0, 0
        session.flush()
        session.add(NamespaceRow(name=namespace, entries=0, size_bytes=0, revision=revision, created_at=row.created_at))
        return count

    def sweep(self, goes_on: Callable[[], bool] = lambda: True) -> SweptLog:
        """Remove what deleted namespaces have left, and environments that no entry has (`sweep.sweep`)."""
        return sweep(self.database, goes_on)

    @read_session
    def namespaces(self, session: Session) -> list[Namespace]:
        """All of them, by name."""
        query = SPACES.where(NamespaceRow.entries > 0).order_by(NamespaceRow.name)
        return [Namespace(*row) for row in session.execute(query)]

    @read_session
    def namespace(self, session: Session, name: str) -> Namespace:
        """One of them. Raises NotFound."""
        return self._space(session, name)

    def look_up(
        self,
        namespace: str,
        keys: Iterable[str],
        environment: LogEnvironment,
        loose: Iterable[LogMatch] = (),
    ) -> dict[str, LogHit]:
        """The hits of `answer`."""
        return self.answer(namespace, keys, environment, loose).hits

    @read_session
    def answer(
        self,
        session: Session,
        namespace: str,
        keys: Iterable[str],
        environment: LogEnvironment,
        loose: Iterable[LogMatch] = (),
        release: str | None = None,
    ) -> LogAnswer:
        """What is served for each of these keys that something is known of, all of one release where one is promoted.

        `loose`: the nearest other environments that will do where the one itself has nothing. `release`: the release to
        answer from, whichever is promoted; raises NotFound where there is no such release.
        """
        space_id, release_id, name = self._source(session, namespace, release)
        allowed, wanted = {LogMatch.EXACT, *loose}, self._known_environment(session, environment.digest)
        found: dict[str, LogHit] = {}
        for names in batches(dict.fromkeys(keys), KEYS_AT_ONCE):
            query = whole(release_id).where(
                LogEntryRow.namespace_id == space_id,
                LogEntryRow.key_digest.in_([digest(name.encode()) for name in names]),
                is_served(release_id),
            )
            if len(allowed) == 1:
                query = query.where(LogEntryRow.environment_id == wanted)
            asked = set(names)
            for entry in self._environments.entries(session, query):
                match = match_of(entry.environment, environment)
                if entry.key in asked and match in allowed:
                    found[entry.key] = _nearer(found.get(entry.key), LogHit(entry, match))
        return LogAnswer(found, name)

    @read_session
    def list(
        self,
        session: Session,
        namespace: str | Namespace,
        *,
        key: str | None = None,
        fingerprint: str | None = None,
        served: bool = False,
        before: int | None = None,
        since: int | None = None,
        limit: int = 100,
    ) -> Sequence[LogEntry]:
        """Entries, the last changed first; with `since`, the first changed first.

        Of one key, of the environment with this fingerprint, only what is served, changed at a revision before, or
        after, these. What is served goes by what is promoted, or was when the Namespace was read. Raises NotFound
        where there is no such namespace.
        """
        space = self._space(session, namespace if isinstance(namespace, str) else namespace.name)
        release_id = space.release_id if isinstance(namespace, str) else namespace.release_id
        query = whole(release_id).where(LogEntryRow.namespace_id == space.id).limit(limit)
        if key is not None:
            query = query.where(LogEntryRow.key_digest == digest(key.encode()), LogEntryRow.key == key)
        if fingerprint is not None:
            environment_id = self._known_environment(session, bytes.fromhex(fingerprint))
            query = query.where(LogEntryRow.environment_id == environment_id)
        if served:
            query = query.where(is_served(release_id))
        if before is not None:
            query = query.where(LogEntryRow.revision < before)
        if since is not None:
            query = query.where(LogEntryRow.revision > since)
        order = LogEntryRow.revision if since is not None else LogEntryRow.revision.desc()
        return self._environments.entries(session, query.order_by(order))

    def _source(self, session: Session, namespace: str, release: str | None) -> tuple[int, int | None, str | None]:
        """Numbers of a namespace and of the release that lookups are answered from, and its name. Raises NotFound."""
        if release is None:
            promoted = SPACES.with_only_columns(NamespaceRow.id, NamespaceRow.release_id, ReleaseRow.name)
            space = session.execute(promoted.where(NamespaceRow.name == namespace)).one_or_none()
            return (0, None, None) if space is None else (space[0], space[1], space[2])
        query = select(ReleaseRow.namespace_id, ReleaseRow.id).join(
            NamespaceRow, NamespaceRow.id == ReleaseRow.namespace_id
        )
        row = session.execute(query.where(NamespaceRow.name == namespace, ReleaseRow.name == release)).one_or_none()
        if row is None:
            raise NotFound(f"{self.database}: {namespace} has no release {release}")
        return row[0], row[1], release

    def _space(self, session: Session, name: str) -> Namespace:
        """A namespace with entries. Raises NotFound."""
        row = session.execute(SPACES.where(NamespaceRow.name == name, NamespaceRow.entries > 0)).one_or_none()
        if row is None:
            raise NotFound(f"{self.database}: there is no namespace {name}")
        return Namespace(*row)

    def _lock(self, session: Session, name: str) -> NamespaceRow:
        """The row of a namespace, made if it is missing; other writers wait."""
        values = {"name": name, "entries": 0, "size_bytes": 0, "revision": 0, "created_at": self.database.now(session)}
        self.database.add(session, NamespaceRow, ["name"], [values])
        query = select(NamespaceRow).where(NamespaceRow.name == name).with_for_update()
        while (row := session.scalar(query)) is None:  # it was deleted while the lock was waited for: there is another
            pass
        return row

    def _known_environment(self, session: Session, environment: bytes) -> int | None:
        return session.scalar(select(EnvironmentRow.id).where(EnvironmentRow.digest == environment))

    def _environment_ids(self, session: Session, environments: Iterable[LogEnvironment]) -> dict[bytes, int]:
        """Digest -> id, of environments that are stored if they are missing."""
        data = {environment.digest: environment.to_json() for environment in environments}
        ids: dict[bytes, int] = {}
        for wanted in batches(sorted(data), KEYS_AT_ONCE):
            rows = [{"digest": key, "data": data[key]} for key in wanted]
            query = select(EnvironmentRow.digest, EnvironmentRow.id).where(EnvironmentRow.digest.in_(wanted))
            known = dict(session.execute(query).all())
            if missing := [row for row in rows if row["digest"] not in known]:
                self.database.add(session, EnvironmentRow, ["digest"], missing)
                known = dict(session.execute(query).all())
            ids |= known
        return ids

    def _load(self, session: Session, space: NamespaceRow, key_digests: Iterable[bytes]) -> LogUpdate:
        changes = LogUpdate(space.revision)
        for wanted in batches(sorted(key_digests), KEYS_AT_ONCE):
            query = select(*LIGHT).where(LogEntryRow.namespace_id == space.id, LogEntryRow.key_digest.in_(wanted))
            for row in session.execute(query):
                changes.know((row.key_digest, row.environment_id), Stored(row.id, rival_of(row), row.is_served))
        return changes

    def _store(self, session: Session, space: NamespaceRow, changes: LogUpdate, owner: str) -> None:
        connection, now = session.connection(), self.database.now(session)
        if rows := [_changed_values(stored) for stored in changes.changed()]:
            names = [name for name in rows[0] if name != "row_id"]
            statement = update(LogEntryRow).where(LogEntryRow.id == bindparam("row_id"))
            connection.execute(statement.values({name: bindparam(name) for name in names}), rows)
        fresh = {"namespace_id": space.id, "owner": owner, "created_at": now}
        if new := [fresh | _new_values(*added) for added in changes.added]:
            connection.execute(insert(LogEntryRow), new)
        space.entries += len(new)
        space.size_bytes += sum(len(entry.key.encode()) + len(entry.value) for _, _, entry in changes.added)
        space.revision = changes.revision
        session.flush()


def _check_quota(space: NamespaceRow, quota: LogQuota) -> None:
    """Raises LogFull where a namespace holds more than it may."""
    if space.entries > quota.entries:
        raise LogFull(f"{space.name} has {quota.entries:,} entries already, as many as it may")
    if space.size_bytes > quota.size_bytes:
        raise LogFull(f"{space.name} has {quota.size_bytes:,} bytes already, as many as it may")


def _nearer(one: LogHit | None, other: LogHit) -> LogHit:
    """The nearer of two; of equals the one that was changed last."""
    if one is None:
        return other
    order = list(LogMatch)
    return min(one, other, key=lambda found: (order.index(found.match), -found.entry.revision))


def _rival_values(stored: Stored) -> dict[str, Any]:
    rival, cost = stored.rival, stored.rival.cost
    return {
        "revision": rival.revision,
        "is_served": stored.is_served,
        "state": rival.state.value,
        "evidence": cost.evidence.value,
        "time_s": cost.time_s,
        "low_s": cost.low_s,
        "high_s": cost.high_s,
        "samples": cost.samples,
    }


def _changed_values(stored: Stored) -> dict[str, Any]:
    return {"row_id": stored.row_id} | _rival_values(stored)


def _new_values(stored: Stored, place: Place, entry: LogEntry) -> dict[str, Any]:
    key_digest, environment_id = place
    return _rival_values(stored) | {
        "key_digest": key_digest,
        "environment_id": environment_id,
        "choice": stored.rival.choice,
        "machine": entry.machine,
        "key": entry.key,
        "value": entry.value,
    }
