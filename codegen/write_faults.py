"""Faults of writing, under the name that users know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(file: Path | str) -> Iterator[None]:
    """Have errors of the system name this file: a full disk names none, and a draft has a name of its own."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error
