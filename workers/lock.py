"""HostLock: on one machine, many may build at once, or one may time."""

from __future__ import annotations

import fcntl
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HostLock:
    """A lock among all threads of this machine that share a folder, of whatever process and pool.

    The system lets go of it when its holder dies. Waiting for it is no part of any candidate's time limit. The file
    carries the machine's name, as the folder may be shared by several.

    A thread that holds it may take it again, which does nothing: who times alone may build or time within. Two things
    would wait for ever, and raise RuntimeError instead: to take it for timing while building, as two who do so wait for
    each other, and to ask a pool for anything while holding it, as the pool's own threads and workers take it. See
    `refuse_holding`.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = _file(folder)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Held together with others that build, but with nobody who times."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Held alone. Raises RuntimeError in a thread that is building."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        outer = _mine.kinds.get(self._path)
        if outer is not None:
            if kind == fcntl.LOCK_EX and outer == fcntl.LOCK_SH:
                raise RuntimeError(f"{self._path}: a thread can't time while it holds the lock to build")
            yield
            return
        # A descriptor of its own for each holder: the lock belongs to it, not to the process.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            _mine.kinds[self._path] = kind
            yield
        finally:
            _mine.kinds.pop(self._path, None)
            os.close(descriptor)


def _file(folder: Path) -> Path:
    return folder.resolve() / f"{platform.node() or 'host'}.lock"


class _Mine(threading.local):
    """What this thread holds."""

    def __init__(self) -> None:
        self.kinds: dict[Path, int] = {}  # by the lock's file, as `flock` names them


_mine = _Mine()


def refuse_holding(folder: Path) -> None:
    """Raises RuntimeError in a thread that holds this lock: others would wait for it, while it waits for them."""
    path = _file(folder)
    if path in _mine.kinds:
        raise RuntimeError(f"{path}: a pool can't work for a thread that holds the lock, as its own would wait for it")
