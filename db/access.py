"""Access: API keys, of which digests are stored.

A key is `tw_ID_SECRET`: ID are 12 letters and digits that name it, SECRET are 43 letters with 256 random bits. So a
plain SHA-256 is enough: the secret can't be guessed. Browser sessions and one-time links are keys too, with a short
life and a scope of their own.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

ID_LETTERS = 12
SECRET_BYTES = 32

LOCAL = "local key in "
"""Prefix of the names of local keys, which services make for commands of their machine. No other names have it."""

LOCAL_OWNER = "local key"
"""What others are told of their names: the folder behind the prefix is not theirs to know."""

SESSION_OF = "browser session of "
"""Prefix of the names of sessions that began with a key, before its id. No other names have it."""


NAME_LETTERS = 200
"""Longest name of a key that people give."""

MOST_DAYS = 36500
"""Longest life of a key that people give, in days."""

MADE_DAYS = 90
"""Longest life of a key that a browser's session or a local key makes, in days: such a key outlives its revocation."""


def check_key_name(name: str) -> str:
    """A name for a key that people make. Raises ValueError where it is none."""
    if not name.strip() or len(name) > NAME_LETTERS:
        raise ValueError(f"a key's name has 1 to {NAME_LETTERS} letters")
    if name.startswith(SESSION_OF):
        raise ValueError(f"{SESSION_OF!r} begins the names of sessions that browsers have")
    if name.startswith(LOCAL):
        raise ValueError(f"{LOCAL!r} begins the names of keys that serve makes, good on its own machine alone")
    return name


def new_token() -> str:
    """A token that no database knows yet."""
    alphabet = string.ascii_lowercase + string.digits
    name = "".join(secrets.choice(alphabet) for _ in range(ID_LETTERS))
    return f"tw_{name}_{secrets.token_urlsafe(SECRET_BYTES)}"


class KeyScope(StrEnum):
    """A permission of a key. The word before the colon is a kind of thing."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"  # upload models, submit and steer jobs
    RECORDS_READ = "records:read"  # lookup, snapshots, targets
    RECORDS_WRITE = "records:write"  # import
    RECORDS_VOID = "records:void"  # take records back
    LOGS_READ = "logs:read"  # what other compilers found
    LOGS_WRITE = "logs:write"  # add to it
    LOGS_DECIDE = "logs:decide"  # approve, retire and delete it
    FLEET_WRITE = "fleet:write"  # drain tuner processes, put devices into quarantine
    KEYS_WRITE = "keys:write"  # see, create and revoke keys
    WORK = "work"  # take jobs, and store what was measured for them
    METRICS = "metrics"  # for Prometheus
    LOGIN = "login"  # turns into a browser session, once


USUAL_SCOPES = (KeyScope.JOBS_READ, KeyScope.JOBS_WRITE, KeyScope.RECORDS_READ)
"""What a key may do by default: submit and steer jobs, and look up."""


def is_in_force(expires_at: datetime | None, revoked_at: datetime | None, now: datetime) -> bool:
    """Whether a key is neither revoked nor expired."""
    return revoked_at is None and (expires_at is None or expires_at > now)


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret."""

    id: str
    name: str  # for people; hostile text is possible
    scopes: frozenset[KeyScope]
    created_at: datetime  # UTC
    expires_at: datetime | None = None  # UTC
    revoked_at: datetime | None = None  # UTC
    last_used_at: datetime | None = None  # UTC, to the minute
    namespaces: frozenset[str] | None = None  # of the log that it is for, with what is below each; None: for all

    def may_use(self, namespace: str) -> bool:
        """Whether it is for a namespace of the log: `team` is also for `team.a`."""
        return self.namespaces is None or any(
            namespace == name or namespace.startswith(f"{name}.") for name in self.namespaces
        )

    def covers(self, other: Key) -> bool:
        """Whether it may do all that another one may."""
        spaces = other.namespaces
        is_within = self.namespaces is None if spaces is None else all(map(self.may_use, spaces))
        return other.scopes <= self.scopes and is_within

    @property
    def leaves(self) -> str | None:
        """What stays when it is revoked, for people; None: nothing."""
        makes = KeyScope.KEYS_WRITE in self.scopes
        return "keys that it made stay in force until they end or are revoked" if makes else None

    def is_valid(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return is_in_force(self.expires_at, self.revoked_at, now)

    @property
    def is_local(self) -> bool:
        """Whether a service made it, for the commands of its own machine alone."""
        return self.name.startswith(LOCAL)

    @property
    def public_name(self) -> str:
        """Its name as others than its owner may see it."""
        return LOCAL_OWNER if self.is_local else self.name

    @property
    def owner(self) -> str:
        """The id that owns its jobs and models: of the key that the session began with, else its own."""
        return self.name.removeprefix(SESSION_OF) if self.name.startswith(SESSION_OF) else self.id
