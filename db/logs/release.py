"""A release: what a namespace served at a moment, under a name, signed, so that it is the same wherever it is used.

Its lines are what lookups get of it, one a key and environment, without what may change later (cost, state, machine):

    {"environment":{"device":...,"toolchain":...,"versions":{...}},"key":...,"value" or "value_base64":...}

in the order of the digests of keys, then of environments. Its manifest has their number and their SHA-256; the
signature is over the manifest. An export is the manifest with the signature, and then the lines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tunewright.codegen.fields import check_names, check_type, quote, read_json

from ..errors import StoreError
from .entry import LogEnvironment
from .lines import value_to_json

RELEASE = "[a-z0-9][a-z0-9._-]{0,63}"
"""Pattern of the name of a release."""

LONGEST_NOTES = 2000
"""Characters of what people say of a release."""

MOST_RELEASES = 200
"""Releases of a namespace."""

FORMAT = "tunewright-release-1"
"""Part of every manifest: a signature of something else is none of a release."""

PUBLIC_KEY = "[A-Za-z0-9+/]{43}="
"""Pattern of a public key: 32 bytes in base64."""

SIGNATURE = "[A-Za-z0-9+/]{86}=="
"""Pattern of what it is checked with: 64 bytes in base64."""

MOMENT = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z"
"""Pattern of a moment of a manifest: there is one way to write it, which is signed."""


HEAD_BYTES = 10_000
"""The longest first line of an export."""


class ReleaseConflict(StoreError):
    """A release has the name, is in use, or is not the one that was meant. The message says which."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is signed of a release."""

    namespace: str
    name: str
    revision: int  # of the namespace
    entries: int
    sha256: str  # of the lines
    created_at: datetime

    @property
    def content(self) -> bytes:
        """The bytes that are signed."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "format": FORMAT,
            "namespace": self.namespace,
            "name": self.name,
            "revision": self.revision,
            "entries": self.entries,
            "sha256": self.sha256,
            "created_at": self.created_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }

    @staticmethod
    def from_json(data: Any) -> Manifest:
        """From JSON data of any origin. Raises ValueError."""
        names = ("format", "namespace", "name", "revision", "entries", "sha256", "created_at")
        fields: dict[str, Any] = check_type("the manifest", data, dict)
        check_names(fields, names, names)
        texts = {name: check_type(name, fields[name], str) for name in names if name not in ("revision", "entries")}
        if texts.pop("format") != FORMAT:
            raise ValueError(f"its format is {quote(fields['format'])}, not {FORMAT}")
        numbers = {name: check_type(name, fields[name], int) for name in ("revision", "entries")}
        if re.fullmatch(MOMENT, texts["created_at"]) is None:
            raise ValueError(f"created_at is {quote(texts['created_at'])}, no moment as 2026-11-30T00:00:00.000000Z")
        moment = datetime.fromisoformat(texts.pop("created_at"))
        return Manifest(**texts, **numbers, created_at=moment)


@dataclass(frozen=True, slots=True)
class ReleaseSignature:
    """A signature by Ed25519, and the public key that it is checked with."""

    public_key: str
    signature: str

    def __str__(self) -> str:
        return f"{self.public_key}:{self.signature}"

    @staticmethod
    def parse(text: str) -> ReleaseSignature:
        """The inverse of `str`. Raises ValueError."""
        if re.fullmatch(f"{PUBLIC_KEY}:{SIGNATURE}", text) is None:
            raise ValueError(f"{quote(text)} is no signature")
        public_key, _, signature = text.partition(":")
        return ReleaseSignature(public_key, signature)


Sign = Callable[[bytes], ReleaseSignature]
"""Signs a manifest's content."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a namespace. It never changes."""

    manifest: Manifest
    signature: ReleaseSignature
    notes: str
    owner: str  # id of the key that made it
    is_promoted: bool  # lookups are answered from it
    id: int

    def head(self) -> bytes:
        """The first line of an export."""
        data = {
            "manifest": self.manifest.to_json(),
            "public_key": self.signature.public_key,
            "signature": self.signature.signature,
        }
        return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def parse_head(line: bytes) -> tuple[Manifest, ReleaseSignature]:
    """The first line of an export. Raises ValueError."""
    names = ("manifest", "public_key", "signature")
    try:
        data: dict[str, Any] = check_type("the first line", read_json(line.decode()), dict)
        check_names(data, names, names)
        manifest = Manifest.from_json(data["manifest"])
        key, signature = (check_type(name, data[name], str) for name in names[1:])
        return manifest, ReleaseSignature.parse(f"{key}:{signature}")
    except (ValueError, RecursionError) as error:
        raise ValueError("its first line is not that of an exported release") from error


def release_line(key: str, value: bytes, environment: LogEnvironment) -> bytes:
    """The line of an entry: canonical JSON."""
    [(name, text)] = value_to_json(value).items()
    return f'{{"environment":{environment.canonical},"key":{json.dumps(key)},"{name}":{json.dumps(text)}}}\n'.encode()


def check_release_name(name: str) -> str:
    """The name, if it may be one of a release. Raises ValueError."""
    if re.fullmatch(RELEASE, name) is None:
        raise ValueError(
            f"{quote(name)} is no name of a release: up to 64 small letters, digits and . _ -, "
            "a letter or digit at the begin"
        )
    return name


def predecessor(history: Iterable[int | None]) -> int | None:
    """The release to go back to, of all that were promoted, the oldest first. None stands for no release.

    Who goes back twice is not where they began: promoting the one before is taken as a step back.
    """
    steps: list[int | None] = [None]
    for release_id in history:
        if release_id == steps[-1]:
            continue
        if len(steps) > 1 and release_id == steps[-2]:
            steps.pop()
        else:
            steps.append(release_id)
    return steps[-2] if len(steps) > 1 else None


class LinesDigest:
    """Number and SHA-256 of lines that come one by one."""

    def __init__(self) -> None:
        self.entries = 0
        self._digest = hashlib.sha256()

    def add(self, line: bytes) -> None:
        """One more."""
        self._digest.update(line)
        self.entries += 1

    @property
    def sha256(self) -> str:
        """In hexadecimal."""
        return self._digest.hexdigest()
