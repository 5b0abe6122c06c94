"""The release key: what a service signs releases of the log with, by Ed25519.

It is a file that nobody else may read, made when it is needed first. It is never replaced: who checks a release was
told its public key once.
"""

from __future__ import annotations

import base64
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

from tunewright.codegen.write_faults import naming
from tunewright.db.logs.release import ReleaseSignature

OTHERS = 0o027
"""Bits of the mode of a file that others may read, or that more than its owner may change."""

FILE_BYTES = 10_000
"""Largest file of a key."""


class ReleaseKeyFault(Exception):
    """There is no key to sign with. The message is for who runs the service."""


class ReleaseKey:
    """The key in a file. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
                self._key = _read(self._path) or _write(self._path)
            except OSError as error:
                raise ReleaseKeyFault(f"{self._path}: {error.strerror or error}") from error
        return self._key


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
    """Make a key and its file. Of two processes that make one at the same time, the first one's is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    passing = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(descriptor)
        try:
            path.hardlink_to(passing)
        except FileExistsError:
            return _read(path) or key
        return key
    finally:
        passing.unlink(missing_ok=True)
