"""Exporting: records as JSON lines, piece by piece, however many there are."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import anyio

from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task

LOOKED_AT = 500
"""Records that are looked at for one piece: so many lines are in memory at most, beside a page of the database."""

REMEMBERED = 20_000
"""Tasks of which it is remembered whether they meet the conditions."""


@dataclass(slots=True)
class Wanted:
    """Which records: those that meet all conditions. Empty texts, and None, mean any."""

    op: str = ""  # text in what the task is, in small letters or large ones; as is the next
    shape: str = ""  # text in its shapes
    target_key: str = ""
    since: datetime | None = None  # when the oldest was stored first
    _tasks: dict[str, bool] = field(default_factory=dict)  # by key: whether a task meets the conditions

    def has(self, entry: Mapping[str, Any]) -> bool:
        """Whether a record, as `Store.export` gives it, is one of them."""
        if self.target_key and entry["target_key"] != self.target_key:
            return False
        if self.since is not None and datetime.fromisoformat(entry["created_at"]) < self.since:
            return False
        return self._has_task(entry)

    def _has_task(self, entry: Mapping[str, Any]) -> bool:
        if not self.op and not self.shape:
            return True
        key = entry["task_key"]
        if key not in self._tasks:
            if len(self._tasks) >= REMEMBERED:
                self._tasks.clear()
            task = Task.from_json(entry["task"])
            is_op = self.op.casefold() in task.op.casefold()
            self._tasks[key] = is_op and self.shape.casefold() in task.shape.casefold()
        return self._tasks[key]


def lines(store: SqlStore, wanted: Wanted) -> Iterator[bytes]:
    """The lines of the records, as `tunewright export --json` writes them: the last one says how many there were.

    A piece without any is an empty line, which readers skip: so that who waits hears that there is somebody. Raises
    StoreError.
    """
    exported = 0
    entries = store.export()
    while looked_at := list(islice(entries, LOOKED_AT)):
        found = [json.dumps(one, separators=(",", ":"), allow_nan=False) for one in looked_at if wanted.has(one)]
        exported += len(found)
        yield ("\n".join(found) + "\n").encode()
    yield json.dumps({"exported": exported}).encode() + b"\n"


def packed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces as one gzip stream, in which each can be read once it has arrived."""
    deflate = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16)
    for piece in pieces:
        yield deflate.compress(piece) + deflate.flush(zlib.Z_SYNC_FLUSH)
    yield deflate.flush()


async def streamed(first: bytes, rest: Iterator[bytes], threads: anyio.CapacityLimiter) -> AsyncIterator[bytes]:
    """A piece that was read, and those behind it, each read when the one before was sent, in one of some threads."""
    piece: bytes | None = first
    while piece is not None:
        yield piece
        piece = await anyio.to_thread.run_sync(next, rest, None, limiter=threads)
