"""FolderFormat: how a program lays out what it tuned, and how that is told as entries of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tunewright.db.logs.entry import LogEntry

from .tuned_folder import Place, TunedFolder


@dataclass(frozen=True, slots=True)
class TunedFile:
    """A file of a program, as an entry whose value is its bytes."""

    place: Place
    entry: LogEntry


class FolderFormat(Protocol):
    """The files of one program."""

    @property
    def name(self) -> str:
        """What the command line calls it; also the usual namespace."""
        ...

    def files(self, folder: TunedFolder) -> Iterator[TunedFile]:
        """The files that the program could read. What is left out of those named as its own, the folder notes."""
        ...

    def place(self, entry: LogEntry) -> Place:
        """Where the program looks for an entry. Raises ValueError for one that it could not have written."""
        ...


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object that is all of a file. Raises ValueError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is no JSON") from error
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value
