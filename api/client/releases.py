"""The releases of the log of a server, and the check of one that needs no server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import httpx

from tunewright.db.logs.entry import check_namespace
from tunewright.db.logs.release import (
    HEAD_BYTES,
    LinesDigest,
    Manifest,
    ReleaseSignature,
    check_release_name,
    parse_head,
)
from tunewright.tuner.errors import Refused

from .connection import ServerConnection, ServiceError

SILENT_S = 600.0
"""How long an export or a comparison may say nothing: where a million entries are the same, for long."""

CREATE_S = 600.0
"""How long making a release of a million entries may take."""

PIECE_BYTES = 1 << 20

NOT_ASKED_FOR = "the answer is not what was asked for: is that a tunewright server?"


class LogReleases:
    """The releases of one namespace. Raises ServiceError for what a server refuses, Refused for what is no name."""

    def __init__(self, connection: ServerConnection, namespace: str) -> None:
        self._connection = connection
        with _names():
            self._path = f"/v1/logs/{quote(check_namespace(namespace))}"
        self.namespace = namespace

    def create(self, name: str, notes: str = "", environments: Sequence[str] | None = None) -> dict[str, Any]:
        """Make a release of what is served now, of all environments or of those with these fingerprints."""
        body = {"name": name, "notes": notes, "environments": None if environments is None else list(environments)}
        answer = self._connection.request("POST", f"{self._path}:releases", json=body, timeout_s=CREATE_S)
        return _object(answer.data)

    def all(self) -> list[dict[str, Any]]:
        """All of them, the newest first."""
        return [_object(item) for item in self._connection.request("GET", f"{self._path}:releases").data or ()]

    def get(self, name: str) -> dict[str, Any]:
        """One of them."""
        return _object(self._connection.request("GET", self._of(name)).data)

    def promotions(self, most: int = 50) -> list[dict[str, Any]]:
        """What was promoted when, the last first."""
        answer = self._connection.request("GET", f"{self._path}:promotions", params={"limit": str(most)})
        return [_object(item) for item in _object(answer.data).get("items", ())]

    def promote(self, name: str | None) -> str | None:
        """Have lookups answered from a release, or from none; what they are answered from then."""
        return self._answered_from("promote", name)

    def roll_back(self, name: str) -> str | None:
        """Leave the release that is promoted for the one before; what lookups are answered from then."""
        return self._answered_from("rollback", name)

    def delete(self, name: str) -> None:
        """Delete a release. The entries stay."""
        self._connection.request("DELETE", self._of(name))

    @contextmanager
    def changes(self, name: str, other: str | None) -> Iterator[Iterator[dict[str, Any]]]:
        """What another release, or None for what is served now, does not serve as this one does."""
        with self._stream(f"{self._of(name)}:diff", {} if other is None else {"with": other}) as lines:
            yield _counted(lines, "changes")

    def export(self, name: str, file: IO[bytes]) -> int:
        """Write a release into a file, as `verify` takes it; how many entries it has."""
        with self._stream(f"{self._of(name)}:export", {}) as lines:
            count, head = 0, next(lines, b"")
            try:
                manifest, _ = parse_head(head)
            except ValueError as error:
                raise ServiceError(NOT_ASKED_FOR) from error
            file.write(head + b"\n")
            for line in lines:
                file.write(line + b"\n")
                count += 1
        if count != manifest.entries:
            raise ServiceError("the answer broke off")
        return count

    def _answered_from(self, verb: str, name: str | None) -> str | None:
        answer = self._connection.request("POST", f"{self._path}:{verb}", json={"release": name})
        release: str | None = _object(answer.data).get("release")
        return release

    @contextmanager
    def _stream(self, path: str, params: dict[str, str]) -> Iterator[Iterator[bytes]]:
        try:
            with self._connection.stream(path, SILENT_S, params=params) as lines:
                yield lines or iter(())
        except (httpx.HTTPError, OSError) as error:
            raise self._connection.unreachable(error) from error

    def _of(self, name: str) -> str:
        with _names():
            return f"{self._path}:releases/{quote(check_release_name(name))}"


def public_key(connection: ServerConnection) -> str:
    """What a server signs releases with. Raises ServiceError."""
    return str(_object(connection.request("GET", "/v1/release-key").data).get("public_key"))


class NotSigned(Refused):
    """A file is not the release that was signed, or not the one that was asked for."""


def verify(path: Path, key: str, namespace: str | None = None, name: str | None = None) -> Manifest:
    """Check an exported release by a public key. Raises NotSigned where anything of it is not what was signed.

    Also where it is of another namespace, or of another name, than are given: a key signs many releases. Raises Refused
    for what is no public key, and OSError.
    """
    with path.open("rb") as file:
        try:
            manifest, signature = parse_head(file.readline(HEAD_BYTES))
        except ValueError as error:
            raise NotSigned(f"{path}: {error}") from error
        if not _is_signed(manifest, signature, key):
            raise NotSigned(f"{path}: it was not signed by that key, or its manifest was changed")
        digest = LinesDigest()
        for line in file:
            digest.add(line)
    if namespace not in (None, manifest.namespace) or name not in (None, manifest.name):
        what = f"the release {manifest.name} of {manifest.namespace}"  # which was signed, so these are names
        raise NotSigned(f"{path}: it is {what}, which is not what was asked for")
    if digest.entries != manifest.entries:
        raise NotSigned(f"{path}: it has {digest.entries:,} entries, and {manifest.entries:,} were signed")
    if digest.sha256 != manifest.sha256:
        raise NotSigned(f"{path}: its entries are not those that were signed")
    return manifest


def _is_signed(manifest: Manifest, signature: ReleaseSignature, key: str) -> bool:
    """Whether a signature is that of a public key. Raises Refused for what is no public key."""
    from cryptography.exceptions import InvalidSignature  # takes a while
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        checked_with = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
    except ValueError as error:
        raise Refused(f"{key[:60]!r} is no public key: `tunewright log release key` prints a server's") from error
    try:
        checked_with.verify(base64.b64decode(signature.signature), manifest.content)
    except InvalidSignature:
        return False
    return True


def _counted(lines: Iterator[bytes], name: str) -> Iterator[dict[str, Any]]:
    """Objects of lines, the last of which says how many there were. Raises ServiceError where any is missing."""
    count, total = 0, None
    for line in lines:
        data = read_object(line)
        if name in data:
            total = data[name]
            break
        count += 1
        yield data
    if total != count:
        raise ServiceError("the answer broke off")


def read_object(line: bytes) -> dict[str, Any]:
    """The object that a line of an answer is. Raises ServiceError."""
    try:
        return _object(json.loads(line))
    except (ValueError, RecursionError):
        return _object(None)


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ServiceError(NOT_ASKED_FOR)
    return data


@contextmanager
def _names() -> Iterator[None]:
    """Turn what is no name into what was refused."""
    try:
        yield
    except ValueError as error:
        raise Refused(str(error)) from error
