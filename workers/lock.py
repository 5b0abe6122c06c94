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
    """A lock among all threads and processes of this machine that share a folder.

    The system releases it when its holder dies. Waiting for it does not count as a candidate's time. The name of the
    file has the machine's name, as several may share the folder.

    A thread that holds it may take it again, which does nothing: who times alone may build or time within. Two uses
    would wait for ever, and raise RuntimeError instead: taking it exclusively while holding it shared, and using a pool
    while holding it, as the pool's own threads and workers take it (`require_unlocked`).
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = _file(folder)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock for building: with others that build, but with nobody who times."""
        with self._lock(fcntl.LOCK_SH):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone, for timing. Raises RuntimeError in a thread that holds it shared."""
        with self._lock(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _lock(self, mode: int) -> Iterator[None]:
        held_mode = _thread_locks.modes.get(self._path)
        if held_mode is not None:
            if mode == fcntl.LOCK_EX and held_mode == fcntl.LOCK_SH:
                raise RuntimeError(f"{self._path}: a thread can't time while it holds the lock to build")
            yield
            return
        # A descriptor for each holder: the lock belongs to the descriptor, not to the process.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, mode)
            _thread_locks.modes[self._path] = mode
            yield
        finally:
            _thread_locks.modes.pop(self._path, None)
            os.close(descriptor)


def _file(folder: Path) -> Path:
    return folder.resolve() / f"{platform.node() or 'host'}.lock"


class _ThreadLocks(threading.local):
    """The locks of this thread."""

    def __init__(self) -> None:
        self.modes: dict[Path, int] = {}  # as of `flock`, by the lock's file


_thread_locks = _ThreadLocks()


def require_unlocked(folder: Path) -> None:
    """Raises RuntimeError in a thread that holds this lock, since others would wait for it and it for them."""
    path = _file(folder)
    if path in _thread_locks.modes:
        raise RuntimeError(f"{path}: a pool can't work for a thread that holds the lock, as its own would wait for it")
