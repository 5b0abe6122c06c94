"""The caches whose keys the front takes: what keeps a compiler's choices as JSON, and no code.

Other entries that the same clients would store are pickles (compiled graphs of Inductor, its profiles) or machine code
(kernels of Triton): whoever may write these runs code on every machine that reads them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tunewright.db.logs.entry import VALUE_BYTES, LogEntry


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of a compiler: the namespace that it is kept in, and the pattern of its keys."""

    namespace: str
    keys: re.Pattern[str]


CACHES = (
    # torch/_inductor/remote_cache.py: pt2:{cache_id}::{key}:c1, where the id of the autotune cache is a digest
    Cache("inductor", re.compile(r"pt2:([0-9a-f]{32,64}|bundled-autotune-v1)::[0-9a-f]{32,64}:c1")),
    # triton/runtime/cache.py, autotuner.py: triton:{key}:{filename}, of an autotuner <function>.autotune.json
    Cache("triton", re.compile(r"triton:[A-Za-z0-9_-]{32,64}:[\w.<>-]{1,200}\.autotune\.json", re.ASCII)),
)


def cache_of(key: bytes) -> tuple[Cache, str] | None:
    """The cache that a key is of, and the key as a text; None where it is of none."""
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return None
    return next(((cache, text) for cache in CACHES if cache.keys.fullmatch(text)), None)


def entry_of(key: str, value: bytes) -> LogEntry | None:
    """The entry of a key and what a client stores there; None where that is no JSON object, or too large."""
    if len(value) > VALUE_BYTES:
        return None
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return LogEntry(key, value) if isinstance(data, dict) else None
