"""HostLock: on one machine, many may build at once, or one may time."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HostLock:
    """A lock among all pools of this machine that share a folder, of whatever process.

    The system lets go of it when its holder dies. Waiting for it is no part of any candidate's time limit. The file
    carries the machine's name, as the folder may be shared by several.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / f"{platform.node() or 'host'}.lock"

    @contextmanager
    def building(self) -> Iterator[None]:
        """Held together with others that build, but with nobody who times."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Held alone."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        # A descriptor of its own for each holder: the lock belongs to it, not to the process.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)
