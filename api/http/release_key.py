"""The release key: what a service signs releases of the log with, by Ed25519.

It is a file that only its account may change, and nobody beside its group read: Kubernetes gives secrets to a group.
It is made when it is needed first, unless people said where it is: then they make it, since of several processes each
would make one of its own. It is never replaced: who checks a release was told its public key once.
"""

from __future__ import annotations

import base64
import logging
import os
import secrets
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tunewright.codegen.write_faults import naming, sync
from tunewright.db.logs.release import ReleaseSignature

OTHERS = 0o027
"""Bits of the mode of a file that others than its group may read, or that more than its owner may change."""

FILE_BYTES = 10_000
"""Largest file of a key."""

_log = logging.getLogger("tunewright.api")


class ReleaseKeyFault(Exception):
    """There is no key to sign with. The message is for who runs the service."""


class ReleaseKey:
    """The key in a file, which is made where it is missing if `makes` says so. Threads may share it."""

    def __init__(self, path: Path, *, makes: bool = True) -> None:
        self._path = path
        self._makes = makes
        self._key: Ed25519PrivateKey | None = None

    @property
    def public_key(self) -> str:
        """What signatures are checked with, in base64. Raises ReleaseKeyFault."""
        raw = self._load().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return base64.b64encode(raw).decode()

    def sign(self, content: bytes) -> ReleaseSignature:
        """The signature of some bytes. Raises ReleaseKeyFault."""
        return ReleaseSignature(self.public_key, base64.b64encode(self._load().sign(content)).decode())

    def _load(self) -> Ed25519PrivateKey:
        if self._key is None:
            try:
                self._key = _read(self._path) or self._make()
            except OSError as error:
                raise ReleaseKeyFault(f"{self._path}: {error.strerror or error}") from error
        return self._key

    def _make(self) -> Ed25519PrivateKey:
        """Make it. Of two processes that do at the same time, the first one's is taken."""
        if not self._makes:
            raise ReleaseKeyFault(f"{self._path} is missing: tunewright log release key --make {self._path}")
        try:
            key = _write(self._path)
        except FileExistsError:
            return _read(self._path) or _write(self._path)
        _log.warning("a release key was made", extra={"file": str(self._path)})
        return key


def make_release_key(path: Path) -> ReleaseKey:
    """Make a key and its file. Raises OSError, also where there is one."""
    _write(path)
    return ReleaseKey(path, makes=False)


def _read(path: Path) -> Ed25519PrivateKey | None:
    """The key in a file; None where there is no file. Raises OSError, and ReleaseKeyFault for any other file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & OTHERS:
            raise ReleaseKeyFault(f"{path} may be read or changed by others: chmod 600 {path}")
        data = file.read(FILE_BYTES)
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ReleaseKeyFault(f"{path} is no private key in PEM without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ReleaseKeyFault(f"{path} is no key of Ed25519")
    return key


def _write(path: Path) -> Ed25519PrivateKey:
    """Make a key and its file. Raises OSError, FileExistsError where there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    passing = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(descriptor)
            path.hardlink_to(passing)
        sync(path.parent)  # what is signed from now on is checked with it
        return key
    finally:
        passing.unlink(missing_ok=True)
