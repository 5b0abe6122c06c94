"""What is said about graphs, by the logger `tunewright.torch`. Light to import."""

from __future__ import annotations

import logging

log = logging.getLogger("tunewright.torch")

_told: set[str] = set()


def tell(note: str) -> None:
    """Say something once: a graph is captured again for other sizes."""
    if note not in _told:
        _told.add(note)
        log.warning("%s", note)
