"""Schemas of the log of other compilers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from pydantic.config import JsonDict

from tunewright.db.logs.entry import (
    LINE,
    LONGEST_KEY,
    LONGEST_S,
    LONGEST_TEXT,
    MOST_VERSIONS,
    VALUE_BYTES,
    CostEvidence,
    EntryState,
    LogEntry,
    LogEnvironment,
    LogHit,
    LogMatch,
)
from tunewright.db.logs.lines import entry_from_json, entry_to_json
from tunewright.db.logs.release import LONGEST_NOTES, RELEASE, Release

from ...client.log import KEYS_AT_ONCE
from .base import DIGITS, Answer, RequestModel

EXAMPLE_KEY = "sm_90-matmul-4096"
EXAMPLE_ENVIRONMENT: JsonDict = {
    "device": "NVIDIA H100",
    "toolchain": "triton",
    "versions": {"triton": "3.6.0", "cuda": "13.0"},
}

MOST_ENVIRONMENTS = 400
"""Environments that a release may be made of, where it is not all."""

LogKey = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_KEY, pattern=f"^{LINE}$")]
Line = Annotated[str, StringConstraints(max_length=LONGEST_TEXT, pattern=f"^{LINE}$")]
ReleaseName = Annotated[str, StringConstraints(pattern=f"^{RELEASE}$")]
ShortDigest = Annotated[str, StringConstraints(pattern=f"^{DIGITS}$")]


class EnvironmentAsked(RequestModel):
    """Where a value holds. Nothing of it: the key tells all that the value depends on."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_ENVIRONMENT]})

    device: Line = ""
    toolchain: Line = Field("", description="What reads the value, such as a compiler.")
    versions: dict[Line, Line] = Field(default_factory=dict, max_length=MOST_VERSIONS, description="By name.")

    @property
    def environment(self) -> LogEnvironment:
        """As the database has it. Raises ValueError."""
        return LogEnvironment(self.device, self.toolchain, self.versions)


class EntryAsked(RequestModel):
    """A value for a key, and what is known of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"value": '{"num_warps": 8}', "environment": EXAMPLE_ENVIRONMENT, "time_s": 1.25e-4}]
        }
    )

    value: str | None = Field(None, max_length=VALUE_BYTES, description="A text; or `value_base64`.")
    value_base64: str | None = Field(None, max_length=VALUE_BYTES * 4 // 3 + 4, description="Any bytes.")
    environment: EnvironmentAsked = Field(default_factory=lambda: EnvironmentAsked.model_validate({}))
    time_s: float | None = Field(
        None, gt=0, le=LONGEST_S, allow_inf_nan=False, description="What running with it took, if known."
    )
    low_s: float | None = Field(
        None, gt=0, le=LONGEST_S, allow_inf_nan=False, description="Ends of an interval of that time."
    )
    high_s: float | None = Field(None, gt=0, le=LONGEST_S, allow_inf_nan=False)
    samples: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    evidence: Literal["none", "timed", "confirmed"] | None = Field(
        None, description="How the time is known: by a search, or again beside others. Left out: `timed`, with a time."
    )
    machine: Line = Field("", description="Where it was found, for people.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.entry("key")
        return self

    def entry(self, key: str) -> LogEntry:
        """The entry of a key. Raises ValueError."""
        return entry_from_json(self.model_dump(exclude_none=True) | {"key": key})


class LogLookupAsked(RequestModel):
    """Keys to look up in a namespace, for one environment."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"environment": EXAMPLE_ENVIRONMENT, "keys": [EXAMPLE_KEY]}]}
    )

    keys: list[LogKey] = Field(min_length=1, max_length=KEYS_AT_ONCE)
    environment: EnvironmentAsked = Field(default_factory=lambda: EnvironmentAsked.model_validate({}))
    loose: list[Literal["version", "device"]] = Field(
        default_factory=list,
        max_length=2,
        description="What else will do where nothing is known of the environment: other versions of the same device "
        "and toolchain, or the toolchain on another device. It is marked as such in the answer.",
    )
    release: ReleaseName | None = Field(
        None, description="The release to answer from; left out: the one that is promoted, or what the rule serves."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ = self.environment.environment
        return self


class DecisionAsked(RequestModel):
    """What becomes of an entry."""

    key: LogKey
    choice: ShortDigest = Field(description="The entry's, as lists tell it.")
    environment: EnvironmentAsked = Field(default_factory=lambda: EnvironmentAsked.model_validate({}))
    state: Annotated[EntryState, Field(strict=False)]


class EnvironmentShown(Answer):
    """Where a value holds."""

    device: str
    toolchain: str
    versions: dict[str, str]


class EntryShown(Answer):
    """A value of a key."""

    key: str
    value: str | None = Field(None, description="Null: it is no text, see `value_base64`.")
    value_base64: str | None = None
    choice: ShortDigest = Field(description="The value's name among those of its key.")
    environment: EnvironmentShown
    fingerprint: ShortDigest = Field(description="Of the environment: what lists and snapshots are asked for with.")
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples: int
    evidence: CostEvidence
    state: EntryState
    served: bool = Field(description="Whether this is the value that lookups of its key and environment get.")
    machine: str
    created_at: datetime

    @classmethod
    def of(cls, entry: LogEntry) -> EntryShown:
        """As it is told."""
        return cls.model_validate(shown_to_json(entry))


class LogItem(Answer):
    """What is known for a key."""

    key: str
    match: LogMatch = Field(description="How near the environment is that the value is of; `none`: nothing is known.")
    entry: EntryShown | None = None

    @classmethod
    def of(cls, key: str, found: LogHit | None) -> LogItem:
        """As it is told."""
        return cls.model_validate(item_to_json(key, found))


class LogLookupAnswer(Answer):
    """What is known for each key, in the order of the request."""

    items: list[LogItem]
    release: str | None = Field(
        description="All of it is from this release: what was written since is not in it. Null: no release is promoted."
    )


class WrittenShown(Answer):
    """What a write did."""

    added: int
    improved: int = Field(description="Values that were there, of which more is known now.")
    known: int = Field(description="Entries that say nothing new.")


class NamespaceShown(Answer):
    """A namespace and how much is in it."""

    name: str
    entries: int
    size_bytes: int
    revision: int = Field(description="Number of changes so far; a promotion is one.")
    release: str | None = Field(description="The release that lookups are answered from; null: none is promoted.")
    created_at: datetime


class ReleaseAsked(RequestModel):
    """A release to make of what is served now."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "2026.11", "notes": "for the November runs"}]})

    name: ReleaseName
    notes: str = Field("", max_length=LONGEST_NOTES, description="For people.")
    environments: list[ShortDigest] | None = Field(
        None, min_length=1, max_length=MOST_ENVIRONMENTS, description="Fingerprints of the only ones; left out: all."
    )


class PromotionAsked(RequestModel):
    """What lookups are to be answered from."""

    release: ReleaseName | None = Field(description="A release; null: none, but what the rule serves.")


class RollBackAsked(RequestModel):
    """The release that is to be left."""

    release: ReleaseName = Field(description="The one that is promoted: so sending it again does nothing more.")


class PromotedShown(Answer):
    """What lookups are answered from now."""

    release: str | None = Field(description="Null: no release, but what the rule serves.")


class PromotionShown(Answer):
    """A step of the history of a namespace."""

    release: str | None = Field(description="What lookups were answered from since then; null: no release.")
    created_at: datetime


class ReleaseShown(Answer):
    """A release: all but the last three fields and the notes are what is signed."""

    namespace: str
    name: str
    revision: int = Field(description="Of the namespace, when it was made.")
    entries: int
    sha256: str = Field(description="Of its lines, as `:export` gives them.")
    created_at: datetime
    notes: str
    public_key: str = Field(description="What the signature is checked with, by Ed25519, in base64.")
    signature: str
    promoted: bool = Field(description="Whether lookups are answered from it.")

    @classmethod
    def of(cls, release: Release) -> ReleaseShown:
        """As it is told."""
        return cls.show(release.manifest, release.signature, release, promoted=release.is_promoted)


class ReleaseKeyShown(Answer):
    """What releases of this service are checked with."""

    algorithm: Literal["ed25519"] = "ed25519"
    public_key: str = Field(description="32 bytes in base64, for `tunewright log verify FILE --key`.")


class DeletedShown(Answer):
    """What was deleted."""

    entries: int


def item_to_json(key: str, found: LogHit | None) -> dict[str, Any]:
    """A `LogItem` as JSON data: a lookup has a thousand of them, which models would take long to make."""
    if found is None:
        return {"key": key, "match": LogMatch.NONE.value, "entry": None}
    return {"key": key, "match": found.match.value, "entry": shown_to_json(found.entry)}


def shown_to_json(entry: LogEntry) -> dict[str, Any]:
    """An `EntryShown` as JSON data."""
    return (
        {"value": None, "value_base64": None}
        | entry_to_json(entry)
        | {
            "choice": entry.choice,
            "fingerprint": entry.environment.fingerprint,
            "served": entry.is_served,
            "created_at": None if entry.created_at is None else entry.created_at.isoformat().replace("+00:00", "Z"),
        }
    )
