"""The page of the keys: who may use the service, and a form that makes another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from tunewright.db.access import MADE_DAYS, USUAL_SCOPES, Key, KeyScope

from ..http.access import needs
from ..http.schemas.base import Answer
from ..http.schemas.keys import shown_key
from ..http.service import ServiceDep
from .page import add_page
from .views import Text

router = APIRouter(tags=["pages"])

MOST_KEYS = 200
"""Keys that are listed: the newest ones."""

ALLOWS = {
    KeyScope.JOBS_READ: "see jobs, pages and what runs",
    KeyScope.JOBS_WRITE: "send models, submit, steer and delete jobs",
    KeyScope.RECORDS_READ: "look up schedules, read records and targets",
    KeyScope.RECORDS_WRITE: "import records",
    KeyScope.RECORDS_VOID: "take records back",
    KeyScope.LOGS_READ: "read the log of other compilers",
    KeyScope.LOGS_WRITE: "add to it",
    KeyScope.LOGS_DECIDE: "approve, retire and delete its values, promote releases",
    KeyScope.FLEET_WRITE: "drain tuner processes, put devices into quarantine",
    KeyScope.KEYS_WRITE: "see, create and revoke keys",
    KeyScope.WORK: "be a tuner process on another machine",
    KeyScope.METRICS: "read the metrics, for Prometheus",
}
"""What each scope allows, in a few words."""


class ScopeLine(Answer):
    """A permission."""

    scope: KeyScope
    allows: Text
    is_grantable: bool = Field(description="Whether who looks has it, and so can give it.")
    is_usual: bool = Field(description="Whether a key has it by default.")


class KeyLine(Answer):
    """A key without its secret."""

    id: Text
    name: Text
    scopes: list[KeyScope]
    namespaces: list[Text] | None = Field(description="Of the log, which it is for; null: all of them.")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    is_valid: bool = Field(description="Whether it is neither revoked nor expired.")
    is_own: bool = Field(description="Whether it is the one of who looks.")
    leaves: Text | None = Field(description="What stays when it is revoked.")
    is_revocable: bool = Field(
        description="Whether it is valid, and who looks may revoke it: it may do no more than theirs."
    )


class KeysPage(Answer):
    """The keys, and what another one may be allowed."""

    keys: list[KeyLine] = Field(description="The newest first; not the sessions of browsers.")
    is_cut: bool = Field(description="Whether there are more than are listed.")
    scopes: list[ScopeLine]
    most_days: int = Field(description="How many days a key that is made on the page is good for at most.")


async def key_owner(key: Annotated[Key, needs(KeyScope.KEYS_WRITE)]) -> str:
    """Who looks: the key, or the one that the session began with."""
    return key.owner


@add_page(router, "/keys", "keys.html", summary="The keys", scope=KeyScope.KEYS_WRITE)
def keys(service: ServiceDep, viewer: Annotated[str, Depends(key_owner)]) -> KeysPage:
    """The API keys, when they were used last, and what each scope allows. No key's text is on it."""
    found, now = service.store.keys.list(), datetime.now(UTC)
    valid = {key.id for key in found if key.revoked_at is None and (key.expires_at is None or key.expires_at > now)}
    own = next((key for key in found if key.id == viewer), None)
    granted = own.scopes if own is not None else frozenset()
    return KeysPage(
        keys=[
            KeyLine.show(
                key,
                **shown_key(key),
                is_valid=key.id in valid,
                is_own=key.id == viewer,
                is_revocable=key.id in valid and own is not None and (key.id == viewer or own.covers(key)),
            )
            for key in found[:MOST_KEYS]
        ],
        is_cut=len(found) > MOST_KEYS,
        most_days=MADE_DAYS,
        scopes=[
            ScopeLine(scope=scope, allows=words, is_grantable=scope in granted, is_usual=scope in USUAL_SCOPES)
            for scope, words in ALLOWS.items()
        ],
    )
