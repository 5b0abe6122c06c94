"""PrivateFolder: files of this user alone, such as code, within a limit of size."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

DRAFT = ".tmp"
"""Suffix of the names of drafts."""

DRAFT_S = 3600.0
"""Age from which on a draft is known to be left over by a process that died."""


class PrivateFolder:
    """A folder for this user alone, of which several processes may make use at once.

    Creates it. Raises OSError if that can't be, or it belongs to another user, who could plant code there.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
            raise PermissionError(f"folder {path} belongs to another user")
        path.chmod(0o700)
        self.path = path

    def write(self, path: Path, parts: Iterable[bytes | memoryview], *, lasting: bool = False) -> None:
        """Make or renew a file of the folder, in one step for readers. Raises OSError.

        If it is `lasting`, its name never leads to content that a crash of the system has lost.
        """
        handle, draft_name = tempfile.mkstemp(dir=self.path, suffix=DRAFT)  # readable by its owner alone
        draft = Path(draft_name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(parts)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def tidy(self, limit_bytes: int, pattern: str = "*") -> None:
        """Drop left-over drafts, and of the files of that pattern those not used for longest, down to the limit."""
        now_s = time.time()
        for path, status in self._files(f"*{DRAFT}"):
            if now_s - status.st_mtime > DRAFT_S:
                _drop(path)
        files = sorted(self._files(pattern), key=lambda file: file[1].st_mtime)
        excess_bytes = sum(status.st_size for _, status in files) - limit_bytes
        for path, status in files:
            if excess_bytes <= 0:
                return
            _drop(path)
            excess_bytes -= status.st_size

    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(status.st_size for _, status in self._files("*"))

    def _files(self, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.path.glob(pattern):
            with suppress(OSError):  # another process has dropped it by now
                yield path, path.stat()


def _drop(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
