"""An entry of the log: what it says, where it holds, and how well that is known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tunewright.codegen.fields import check_type, quote

NAMESPACE = "[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?"
"""Pattern of a namespace: a compiler, and what tells several logs of it apart, such as `triton` or `tvm.team-a`."""

LINE = "[ -~]*"
"""One line of printable ASCII."""

VALUE_BYTES = 64 << 10
"""Largest value."""

LONGEST_KEY, LONGEST_TEXT = 512, 200
"""Characters of a key, and of a device, a version or a machine."""

LONGEST_S = 1e6
"""Most seconds of a cost."""

MOST_VERSIONS = 40
"""Versions of an environment."""

DIGEST_BYTES = 16
"""Bytes of the digests that keys, environments and values are found by."""


def digest(data: bytes) -> bytes:
    """The digest that something is found by."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]


def check_namespace(name: str) -> str:
    """The name, if it is one of a namespace. Raises ValueError."""
    if re.fullmatch(NAMESPACE, name) is None:
        raise ValueError(
            f"{quote(name)} is no namespace: up to 64 small letters, digits and . _ -, a letter or digit at each end"
        )
    return name


def check_key(key: str) -> str:
    """The key, if it may be one. Raises ValueError."""
    if not key:
        raise ValueError("the key is empty")
    return check_line("key", key, LONGEST_KEY)


def check_line(name: str, text: str, most: int) -> str:
    """The text, if it is one short line of printable ASCII. Raises ValueError; `name` is in its words."""
    if len(text) > most:
        raise ValueError(f"{name} has {len(text):,} characters; it may have {most}")
    if re.fullmatch(LINE, text) is None:
        raise ValueError(f"{name} is {quote(text)}, not one line of printable ASCII")
    return text


class EntryState(StrEnum):
    """What people decided about an entry."""

    CANDIDATE = "candidate"  # nothing yet
    APPROVED = "approved"  # serve it where its cost is as good as any other's
    RETIRED = "retired"  # never serve it


class CostEvidence(StrEnum):
    """How the cost of an entry is known, the weakest first."""

    NONE = "none"  # it is not known
    TIMED = "timed"  # by a search, once
    CONFIRMED = "confirmed"  # again, beside others

    @property
    def rank(self) -> int:
        """0 for the weakest."""
        return list(CostEvidence).index(self)


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """Where an entry holds: nothing is served to another one unless it is asked for. Empty texts: the key says it."""

    device: str = ""
    toolchain: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    canonical: str = field(init=False, repr=False, compare=False)  # as JSON, the same for equal environments alone
    digest: bytes = field(init=False, repr=False, compare=False)  # of that

    def __post_init__(self) -> None:
        for name, text in (("device", self.device), ("toolchain", self.toolchain), *self.versions.items()):
            check_line(f"{quote(name)} of the environment", text, LONGEST_TEXT)
            check_line("a name in the environment", name, LONGEST_TEXT)
        if len(self.versions) > MOST_VERSIONS:
            raise ValueError(f"the environment has {len(self.versions)} versions; it may have {MOST_VERSIONS}")
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "canonical", canonical)
        object.__setattr__(self, "digest", digest(canonical.encode()))

    @property
    def fingerprint(self) -> str:
        """The digest in hexadecimal."""
        return self.digest.hex()

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {"device": self.device, "toolchain": self.toolchain, "versions": dict(sorted(self.versions.items()))}

    @staticmethod
    def from_json(data: Any) -> LogEnvironment:
        """From JSON data of any origin. Raises ValueError."""
        fields: dict[str, Any] = check_type("the environment", data, dict)
        if unknown := fields.keys() - {"device", "toolchain", "versions"}:
            raise ValueError(f"the environment has no field {quote(min(unknown))}")
        device, toolchain = (check_type(name, fields.get(name, ""), str) for name in ("device", "toolchain"))
        versions: dict[str, Any] = check_type("versions", fields.get("versions", {}), dict)
        return LogEnvironment(device, toolchain, {name: check_type(name, text, str) for name, text in versions.items()})


ANYWHERE = LogEnvironment()
"""The environment of values whose keys tell all that they depend on."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What running with a value took. `low_s` and `high_s` are an interval of the median, where it is known."""

    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples: int = 0
    evidence: CostEvidence = CostEvidence.NONE

    def __post_init__(self) -> None:
        known = [number for number in (self.low_s, self.time_s, self.high_s) if number is not None]
        if not all(0 < number <= LONGEST_S for number in known):
            raise ValueError(f"times are numbers of seconds above 0, up to {LONGEST_S:,.0f}")
        if self.time_s is None and (known or self.evidence is not CostEvidence.NONE):
            raise ValueError("an interval or evidence is told without a time")
        if self.time_s is not None and self.evidence is CostEvidence.NONE:
            raise ValueError("a time is told without evidence: timed or confirmed")
        if (self.low_s is None) != (self.high_s is None) or known != sorted(known):
            raise ValueError("an interval has two ends, with the time between them")
        if not 0 <= self.samples < 1 << 31:
            raise ValueError(f"{self.samples} is no number of samples")

    @property
    def interval_s(self) -> tuple[float, float]:
        """The ends of the interval; the time itself where none is known."""
        assert self.time_s is not None  # asked of known costs alone
        if self.low_s is None or self.high_s is None:  # both, or none
            return self.time_s, self.time_s
        return self.low_s, self.high_s


UNKNOWN = Cost()


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One value of a key in an environment. The moments and the revision are the database's."""

    key: str
    value: bytes
    environment: LogEnvironment = ANYWHERE
    cost: Cost = UNKNOWN
    state: EntryState = EntryState.CANDIDATE
    machine: str = ""  # that found it, for people
    created_at: datetime | None = None
    revision: int = 0  # of the namespace, when it was changed last
    is_served: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)
        check_line("machine", self.machine, LONGEST_TEXT)
        if len(self.value) > VALUE_BYTES:
            raise ValueError(f"the value has {len(self.value):,} bytes; it may have {VALUE_BYTES:,}")

    @property
    def choice(self) -> str:
        """The value's name among those of its key: a digest of it, in hexadecimal."""
        return digest(self.value).hex()


class LogMatch(StrEnum):
    """How near the environment of what was found is to the one that was asked for."""

    EXACT = "exact"
    VERSION = "version"  # the same device and toolchain, other versions
    DEVICE = "device"  # the same toolchain on another device
    NONE = "none"  # nothing is known


@dataclass(frozen=True, slots=True)
class LogHit:
    """What is served for a key."""

    entry: LogEntry
    match: LogMatch


def match_of(environment: LogEnvironment, asked: LogEnvironment) -> LogMatch:
    """How near an environment is to the one that was asked for."""
    if environment == asked:
        return LogMatch.EXACT
    if environment.toolchain != asked.toolchain:
        return LogMatch.NONE
    return LogMatch.VERSION if environment.device == asked.device else LogMatch.DEVICE
