"""Schemas of API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.config import JsonDict

from tunewright.db.access import MADE_DAYS, MOST_DAYS, NAME_LETTERS, Key, KeyScope, check_key_name
from tunewright.db.logs.entry import NAMESPACE

from .base import EXAMPLE_MOMENT, NOT_BLANK, Answer, RequestModel

MOST_NAMESPACES = 50

GrantableScope = Literal[
    "jobs:read",
    "jobs:write",
    "records:read",
    "records:write",
    "records:void",
    "logs:read",
    "logs:write",
    "logs:decide",
    "fleet:write",
    "keys:write",
    "work",
    "metrics",
]
"""All scopes but that of links, which turn into sessions."""


class KeyAsked(RequestModel):
    """A key that is to be made."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "build farm", "scopes": ["records:read"], "days": 90}]}
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=NAME_LETTERS, pattern=NOT_BLANK, description="What people know it by."),
        AfterValidator(check_key_name),
    ]
    scopes: list[GrantableScope] = Field(
        min_length=1, max_length=12, description="What it allows. The key that makes it has all of them itself."
    )
    days: float | None = Field(
        None,
        ge=0.01,
        le=MOST_DAYS,
        description="How long it is good for; null: as long as its maker at most. One that a browser's session or the "
        f"local key makes is good for {MADE_DAYS} days at most.",
    )
    namespaces: list[Annotated[str, Field(max_length=64, pattern=f"^{NAMESPACE}$")]] | None = Field(
        None,
        max_length=MOST_NAMESPACES,
        description="Of the log, which it is for; null: those of its maker.",
    )


EXAMPLE_SHOWN: JsonDict = {
    "id": "k3f0a5b1f9b1",
    "name": "build farm",
    "scopes": ["records:read"],
    "namespaces": None,
    "created_at": EXAMPLE_MOMENT,
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": None,
}


class KeyShown(Answer):
    """A key without its secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SHOWN]})

    id: str
    name: str = Field(description="For people.")
    scopes: list[KeyScope]
    namespaces: list[str] | None = Field(description="Of the log, which it is for; null: all of them.")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")


class KeyCreated(KeyShown):
    """A key that was made."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SHOWN | {"key": "tw_k3f0a5b1f9b1_" + 43 * "x"}]})

    expires_at: datetime | None = Field(description="Sooner than asked for, where its maker gives no longer.")
    key: str = Field(description="What clients send. It is in this answer alone.")


class KeyRevoked(KeyShown):
    """A key that is worthless from now on."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SHOWN | {"note": None}]})

    note: str | None = Field(description="What the revocation leaves, for people. Null: nothing.")


def shown_key(key: Key) -> dict[str, object]:
    """The fields of a key that differ from its own: as others than its owner may see them, in order."""
    return {
        "name": key.public_name,
        "scopes": sorted(key.scopes),
        "namespaces": None if key.namespaces is None else sorted(key.namespaces),
    }
