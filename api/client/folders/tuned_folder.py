"""TunedFolder: the files of a program below one folder. Nothing outside of it is read or written, whatever names say.

A link below it counts as no file and no folder: it may lead anywhere.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from tunewright.db.logs.entry import VALUE_BYTES
from tunewright.tuner.files import write_whole

Place: TypeAlias = tuple[str, ...]
"""A path below the root, name by name."""


class TunedFolder:
    """Reads and writes files at places that were checked by a format. `left_out` says why some were not read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.left_out: dict[Place, str] = {}

    def find(self, *patterns: str) -> Iterator[tuple[Place, bytes]]:
        """The files at places whose names match these patterns, one for each level. Raises OSError."""
        for place, entry in self._walk(self.root, (), patterns):
            data = self._read(place, entry)
            if data is not None:
                yield place, data

    def folders(self, *patterns: str) -> Iterator[Place]:
        """The folders at places whose names match. Raises OSError."""
        for place, entry in self._walk(self.root, (), patterns):
            if entry.is_dir(follow_symlinks=False):
                yield place

    def read(self, *place: str) -> bytes | None:
        """The file at a place; None where there is none that may be read. Raises OSError."""
        return next((data for _, data in self.find(*map(re.escape, place))), None)

    def _walk(self, folder: Path, above: Place, patterns: Place) -> Iterator[tuple[Place, os.DirEntry[str]]]:
        if not folder.is_dir():
            return
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if re.fullmatch(patterns[0], entry.name) is None:
                    continue
                place = (*above, entry.name)
                if entry.is_symlink():
                    self.left_out[place] = "it is a link"
                elif len(patterns) == 1:
                    yield place, entry
                elif entry.is_dir(follow_symlinks=False):
                    yield from self._walk(Path(entry.path), place, patterns[1:])

    def _read(self, place: Place, entry: os.DirEntry[str]) -> bytes | None:
        if not entry.is_file(follow_symlinks=False):
            self.left_out[place] = "it is no file"
            return None
        try:
            with Path(entry.path).open("rb") as file:
                data = file.read(VALUE_BYTES + 1)
        except OSError as error:
            self.left_out[place] = error.strerror or str(error)
            return None
        if len(data) > VALUE_BYTES:
            self.left_out[place] = f"it has more than {VALUE_BYTES:,} bytes"
            return None
        return data

    def is_free(self, place: Place) -> bool:
        """Whether nothing is there, not even a link. Raises OSError."""
        return _kind(self.root.joinpath(*place)) is None

    def write(self, place: Place, data: bytes) -> None:
        """Make or renew a file, in one step for readers.

        Raises ValueError where anything on the way to it is a link or no folder, or itself is no file; OSError.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        folder = self.root
        for name in place[:-1]:
            folder /= name
            if _kind(folder) is None:
                folder.mkdir(exist_ok=True)
            if _kind(folder) != stat.S_IFDIR:
                raise ValueError(f"{folder.name} is no folder")
        path = folder / place[-1]
        if _kind(path) not in (None, stat.S_IFREG):
            raise ValueError("what is there is no file")
        write_whole(path, data)


def _kind(path: Path) -> int | None:
    """What is at a path, a link itself and not where it leads; None for nothing."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return None
