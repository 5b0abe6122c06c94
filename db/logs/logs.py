"""Logs: the entries of a database, by namespace, written and found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Select, bindparam, insert, select, update
from sqlalchemy.orm import Session

from ..database import KEYS_AT_ONCE, Database, DatabasePart, batches, read_session, write_session
from ..errors import NotFound, StoreError, read_stored
from ..tables import EnvironmentRow, LogEntryRow, NamespaceRow
from ..translate import from_row
from .choice import LogRival
from .entry import (
    Cost,
    CostEvidence,
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
from .sweep import SweptLog, deleted_name, sweep
from .update import LogUpdate, Place, Stored, places

MOST_AT_ONCE = 1000
"""Entries of one transaction."""

LIGHT = (
    LogEntryRow.id,
    LogEntryRow.key_digest,
    LogEntryRow.environment_id,
    LogEntryRow.choice,
    LogEntryRow.revision,
    LogEntryRow.is_served,
    LogEntryRow.state,
    LogEntryRow.evidence,
    LogEntryRow.time_s,
    LogEntryRow.low_s,
    LogEntryRow.high_s,
    LogEntryRow.samples,
)
"""What writing depends on: all but the keys and values."""

WHOLE = select(*(getattr(LogEntryRow, name) for name in ("key", "value", "machine", "created_at")), *LIGHT[2:])


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


class Logs(DatabasePart):
    """Each method but `sweep` is one transaction, and may raise StoreError.

    ValueError: a name that is none of a namespace.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._environments: dict[int, LogEnvironment] = {}  # by id, those that were read: they never change

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
        """Delete a namespace with all of its entries; how many these were. Raises NotFound.

        From then on nobody finds any of them, nor a release. But it takes no longer than a write does: their rows are
        removed by `sweep`, which is to be called next; after a crash any later one does it.
        """
        row = self._find(session, check_namespace(namespace), lock=True)
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
        query = select(NamespaceRow).where(NamespaceRow.entries > 0).order_by(NamespaceRow.name)
        return [from_row(Namespace, row) for row in session.scalars(query)]

    @read_session
    def namespace(self, session: Session, name: str) -> Namespace:
        """One of them. Raises NotFound."""
        return from_row(Namespace, self._find(session, name))

    @read_session
    def look_up(
        self,
        session: Session,
        namespace: str,
        keys: Iterable[str],
        environment: LogEnvironment,
        loose: Iterable[LogMatch] = (),
    ) -> dict[str, LogHit]:
        """What is served for each of these keys that something is known of.

        `loose`: the nearest other environments that will do where the one itself has nothing.
        """
        space_id = session.scalar(select(NamespaceRow.id).where(NamespaceRow.name == namespace))
        allowed, wanted = {LogMatch.EXACT, *loose}, self._known_environment(session, environment.digest)
        found: dict[str, LogHit] = {}
        for names in batches(dict.fromkeys(keys), KEYS_AT_ONCE):
            query = WHOLE.where(
                LogEntryRow.namespace_id == space_id,
                LogEntryRow.key_digest.in_([digest(name.encode()) for name in names]),
                LogEntryRow.is_served,
            )
            if len(allowed) == 1:
                query = query.where(LogEntryRow.environment_id == wanted)
            asked = set(names)
            for entry in self._entries(session, query):
                match = match_of(entry.environment, environment)
                if entry.key in asked and match in allowed:
                    found[entry.key] = _nearer(found.get(entry.key), LogHit(entry, match))
        return found

    @read_session
    def list(
        self,
        session: Session,
        namespace: str,
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
        after, these. Raises NotFound where there is no such namespace.
        """
        query = WHOLE.where(LogEntryRow.namespace_id == self._find(session, namespace).id).limit(limit)
        if key is not None:
            query = query.where(LogEntryRow.key_digest == digest(key.encode()), LogEntryRow.key == key)
        if fingerprint is not None:
            environment_id = self._known_environment(session, bytes.fromhex(fingerprint))
            query = query.where(LogEntryRow.environment_id == environment_id)
        if served:
            query = query.where(LogEntryRow.is_served)
        if before is not None:
            query = query.where(LogEntryRow.revision < before)
        if since is not None:
            query = query.where(LogEntryRow.revision > since)
        order = LogEntryRow.revision if since is not None else LogEntryRow.revision.desc()
        return self._entries(session, query.order_by(order))

    def _entries(self, session: Session, query: Select[Any]) -> Sequence[LogEntry]:
        """The entries that a query of `WHOLE` finds."""
        rows = session.execute(query).all()
        if missing := {row.environment_id for row in rows} - self._environments.keys():
            for row in session.execute(
                select(EnvironmentRow.id, EnvironmentRow.data).where(EnvironmentRow.id.in_(missing))
            ):
                self._environments[row.id] = read_stored(
                    partial(LogEnvironment.from_json, row.data), EnvironmentRow.__tablename__, "data"
                )
        # An environment is missing where its namespace was deleted since the rows were read.
        kept = (row for row in rows if row.environment_id in self._environments)
        return [_entry(row, self._environments[row.environment_id]) for row in kept]

    def _lock(self, session: Session, name: str) -> NamespaceRow:
        """The row of a namespace, made if it is missing; other writers wait."""
        values = {"name": name, "entries": 0, "size_bytes": 0, "revision": 0, "created_at": self.database.now(session)}
        self.database.add(session, NamespaceRow, ["name"], [values])
        query = select(NamespaceRow).where(NamespaceRow.name == name).with_for_update()
        while (row := session.scalar(query)) is None:  # it was deleted while the lock was waited for: there is another
            pass
        return row

    def _find(self, session: Session, name: str, *, lock: bool = False) -> NamespaceRow:
        """The row of a namespace with entries. Raises NotFound."""
        query = select(NamespaceRow).where(NamespaceRow.name == name)
        row = session.scalar(query.with_for_update() if lock else query)
        if row is None or not row.entries:
            raise NotFound(f"{self.database}: there is no namespace {name}")
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
                rival = LogRival(row.choice, EntryState(row.state), _cost(row), row.revision)
                changes.know((row.key_digest, row.environment_id), Stored(row.id, rival, row.is_served))
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


def _cost(row: Any) -> Cost:
    return Cost(row.time_s, row.low_s, row.high_s, row.samples, CostEvidence(row.evidence))


def _entry(row: Any, environment: LogEnvironment) -> LogEntry:
    return LogEntry(
        row.key,
        row.value,
        environment,
        _cost(row),
        EntryState(row.state),
        row.machine,
        row.created_at,
        row.revision,
        row.is_served,
    )


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
