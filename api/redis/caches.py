"""The caches whose keys the front takes: what keeps a compiler's choices as JSON, and no code.

Other entries that the same clients would store are pickles (compiled graphs of Inductor, its profiles) or machine code
(kernels of Triton): whoever may write these runs code on every machine that reads them.
"""

from __future__ import annotations

from tunewright.db.logs.entry import LogEntry
from tunewright.db.logs.formats import check_value, format_of

NAMESPACES = {b"pt2": "inductor", b"triton": "triton"}
"""By what keys begin with, before a colon."""


def place_of(key: bytes) -> tuple[str, str] | None:
    """The namespace that a key is kept in, and the key as a text; None where it is not kept."""
    namespace = NAMESPACES.get(key.partition(b":")[0])
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return None
    return (namespace, text) if namespace is not None and format_of(namespace, text) is not None else None


def entry_of(namespace: str, key: str, value: bytes) -> LogEntry | None:
    """The entry of a key and what a client stores there; None where no such compiler wrote it, or it is too large."""
    try:
        check_value(namespace, key, value)
        return LogEntry(key, value)
    except ValueError:
        return None
