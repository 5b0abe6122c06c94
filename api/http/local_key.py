"""The local key: what lets the commands of the same account use a service on the same machine, without being told.

It is a file of one line in the data folder that nobody else may read. The database knows it as it knows other keys, by
a name that says what it is; `Gate` takes it from this machine alone.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from tunewright.codegen.write_faults import naming
from tunewright.db.access import LOCAL, KeyScope, new_token
from tunewright.db.keys import TOKEN
from tunewright.db.store import Store

SCOPES = frozenset(KeyScope) - {KeyScope.LOGIN}


def local_key(path: Path, store: Store) -> Path:
    """The file of the local key, which the database knows; made where there is none. Raises OSError, StoreError."""
    name = f"{LOCAL}{path.parent}"
    token = _read(path) or _write(path)
    try:
        key, _ = store.keys.create(name, SCOPES, token=token)
    except ValueError:  # the database has another secret under its name
        key = None
    if key is None or key.revoked_at is not None:
        path.unlink()
        store.keys.create(name, SCOPES, token=_write(path))
    elif key.is_local and not key.scopes >= SCOPES:  # made by a version that knew fewer
        store.keys.widen(key.id, SCOPES)
    return path


def _read(path: Path) -> str | None:
    """The token in the file; None where there is none, or others could read or have put it there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link: who knows to what
            return None
        raise
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        status = os.fstat(descriptor)
        token = file.read(200).strip()
    is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return token if is_private and TOKEN.fullmatch(token) else None


def _write(path: Path) -> str:
    """Make a token and the file. Of two processes that make one at the same time, the first one's is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    token = new_token()
    passing = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with naming(path), os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        if _read(path) is None:
            path.unlink(missing_ok=True)  # others could know it
        try:
            path.hardlink_to(passing)
        except FileExistsError:
            return _read(path) or token
        return token
    finally:
        passing.unlink(missing_ok=True)
