"""Writing of files: what lasts, and faults under the name that users know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def naming(file: Path | str) -> Iterator[None]:
    """Have errors of the system name this file: a full disk names none, and a draft has a name of its own."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error


def sync(path: Path) -> None:
    """Flush the file, or the entries of the folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems can't sync folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
