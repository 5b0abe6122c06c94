"""Access: API keys, which are kept as digests only.

A key is `tw_ID_SECRET`: ID are 12 letters and digits that name it, SECRET are 43 letters that carry 256 random bits. So
a plain SHA-256 is digest enough: there is nothing to guess. Browser sessions and one-time links are keys as well, with
a short life and a scope of their own.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

ID_LETTERS = 12
SECRET_BYTES = 32

LOCAL = "local key in "
"""What the names of local keys begin with, and of no others: those that services make for commands of their machine."""

SESSION_OF = "browser session of "
"""What the names of sessions that began with a key begin with, before the id of that key; and of no others."""


def new_token() -> str:
    """A token that no database knows yet."""
    alphabet = string.ascii_lowercase + string.digits
    name = "".join(secrets.choice(alphabet) for _ in range(ID_LETTERS))
    return f"tw_{name}_{secrets.token_urlsafe(SECRET_BYTES)}"


class Scope(StrEnum):
    """What a key allows. A name before the colon is a kind of thing."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"  # upload models, submit and steer jobs
    RECORDS_READ = "records:read"  # lookup, snapshots, targets
    RECORDS_WRITE = "records:write"  # import
    RECORDS_VOID = "records:void"  # take records back
    METRICS = "metrics"  # for Prometheus
    LOGIN = "login"  # turns into a browser session, once


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as it is known: without its secret."""

    id: str
    name: str  # for people; hostile text is possible
    scopes: frozenset[Scope]
    created_at: datetime  # UTC
    expires_at: datetime | None = None  # UTC
    revoked_at: datetime | None = None  # UTC
    last_used_at: datetime | None = None  # UTC, to the minute

    @property
    def is_local(self) -> bool:
        """Whether a service made it, for the commands of its own machine alone."""
        return self.name.startswith(LOCAL)

    @property
    def owner(self) -> str:
        """The id that what it does is counted for: that of the key which a session began with, else its own."""
        return self.name.removeprefix(SESSION_OF) if self.name.startswith(SESSION_OF) else self.id


class Keys(Protocol):
    """API keys. Every method may raise StoreError."""

    def create(
        self,
        name: str,
        scopes: Collection[Scope],
        expires_in_s: float | None = None,
        *,
        token: str | None = None,
        passing: bool = False,
    ) -> tuple[Key, str]:
        """A new key and its token, which is nowhere else to be had.

        `token` is one that was made before (`new_token`) and is to be known here; where it is, that key is returned as
        it is. `passing` is a browser session or a link; so is every key with the scope LOGIN. Raises ValueError for
        a token of another form or with another secret than the key of its id, for a passing key that does not expire,
        and for a life that is none.
        """
        ...

    def check(self, token: str) -> Key | None:
        """The key of a token; None where it is none, unknown, expired or revoked. Compares in constant time.

        When it was used last is noted once a minute at most, and not where the database can't be written just now.
        """
        ...

    def use_once(self, token: str) -> Key | None:
        """As `check`, and revokes it in the same transaction: of two that try at once one gets it."""
        ...

    def begin_session(self, token: str, scopes: Collection[Scope], expires_in_s: float) -> tuple[Key, str] | None:
        """A browser session that acts for the key of a token: it and its token; None where there is no key to check.

        It has those of the scopes that the key has, and ends with the key at the latest, also where that is revoked.
        """
        ...

    def list(self) -> list[Key]:
        """The newest first, passing ones left out."""
        ...

    def revoke(self, key_id: str) -> Key:
        """Of a key and of the sessions that began with it. Raises NotFound."""
        ...

    def remove_expired(self) -> int:
        """Forget passing keys that are over; how many."""
        ...

    def any(self) -> bool:
        """Whether there is a key in force, not counting local and passing ones."""
        ...
