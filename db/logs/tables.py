"""The tables of the log: see `db.tables`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from ..columns import Id, Instant, Json, Key
from ..tables import Row

Digest = LargeBinary(16)
"""What keys, environments and values of logs are found by (`logs.entry.digest`)."""


class NamespaceRow(Row):
    """A namespace of the log. Who writes to it locks the row: so its counts are right."""

    __tablename__ = "log_namespaces"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    entries: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)  # of keys and values
    revision: Mapped[int] = mapped_column(BigInteger)  # number of changes
    created_at: Mapped[datetime] = mapped_column(Instant)
    release_id: Mapped[int | None] = mapped_column(Id)  # the one that lookups are answered from; none: all entries


class EnvironmentRow(Row):
    """An environment of any entry."""

    __tablename__ = "log_environments"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    digest: Mapped[bytes] = mapped_column(Digest, unique=True)
    data: Mapped[dict[str, Any]] = mapped_column(Json)  # Environment.to_json


class LogEntryRow(Row):
    """A value of a key in an environment."""

    __tablename__ = "log_entries"
    __table_args__ = (
        UniqueConstraint("namespace_id", "key_digest", "environment_id", "choice"),
        Index(None, "namespace_id", "revision"),  # the newest first, and what changed since then
        Index(None, "namespace_id", "environment_id", "revision"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int] = mapped_column(Id, ForeignKey("log_namespaces.id"))
    key_digest: Mapped[bytes] = mapped_column(Digest)
    environment_id: Mapped[int] = mapped_column(Id, ForeignKey("log_environments.id"))
    choice: Mapped[bytes] = mapped_column(Digest)  # of the value
    revision: Mapped[int] = mapped_column(BigInteger)  # of the namespace, when it was changed last
    is_served: Mapped[bool] = mapped_column(Boolean)  # the one of its key and environment that `logs.choice` chooses
    state: Mapped[str] = mapped_column(String(16))
    evidence: Mapped[str] = mapped_column(String(16))
    time_s: Mapped[float | None] = mapped_column(Double)
    low_s: Mapped[float | None] = mapped_column(Double)
    high_s: Mapped[float | None] = mapped_column(Double)
    samples: Mapped[int] = mapped_column(Integer)
    machine: Mapped[str] = mapped_column(Text)
    owner: Mapped[str] = mapped_column(String(32))  # id of the key that wrote it first
    created_at: Mapped[datetime] = mapped_column(Instant)
    key: Mapped[str] = mapped_column(Text)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class ReleaseRow(Row):
    """A release of a namespace: what was served at its revision, under a name, signed."""

    __tablename__ = "log_releases"
    __table_args__ = (
        UniqueConstraint("namespace_id", "name"),
        {"sqlite_autoincrement": True},  # no number is used again: who exports a release goes by it
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int] = mapped_column(Id, ForeignKey("log_namespaces.id"))
    name: Mapped[str] = mapped_column(String(64))  # of a draft one that no release has, see `logs.drafts`
    revision: Mapped[int] = mapped_column(BigInteger)  # of the namespace
    entries: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(Key)  # of its lines
    signature: Mapped[str] = mapped_column(Text)
    notes: Mapped[str] = mapped_column(Text)
    owner: Mapped[str] = mapped_column(String(32))  # id of the key that made it
    created_at: Mapped[datetime] = mapped_column(Instant)


class ReleaseEntryRow(Row):
    """An entry of a release, which can't be deleted as long as it is one."""

    __tablename__ = "log_release_entries"

    release_id: Mapped[int] = mapped_column(Id, ForeignKey("log_releases.id"), primary_key=True)
    entry_id: Mapped[int] = mapped_column(Id, ForeignKey("log_entries.id"), primary_key=True, index=True)


class PromotionRow(Row):
    """A release became the one that lookups of its namespace are answered from, or none did; the newest row counts."""

    __tablename__ = "log_promotions"
    __table_args__ = (Index(None, "namespace_id", "id"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[int] = mapped_column(Id, ForeignKey("log_namespaces.id"))
    release_id: Mapped[int | None] = mapped_column(Id, ForeignKey("log_releases.id"))  # None also: it was deleted
    name: Mapped[str | None] = mapped_column(String(64))  # of the release; None: no release
    left_name: Mapped[str | None] = mapped_column(String(64))  # the release that a rollback left; None: a promotion
    owner: Mapped[str] = mapped_column(String(32))  # id of the key that did it
    created_at: Mapped[datetime] = mapped_column(Instant)
