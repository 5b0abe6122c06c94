"""Routes that export and import records, as JSON lines."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice
from typing import IO, Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from tunewright.db.access import KeyScope
from tunewright.db.exchange import BadLine, ImportCounts, Lines
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.tuner.text import counted

from ..access import count_as_change, needs
from ..compression import accepts_gzip, gzip_stream
from ..openapi import json_lines_answer, json_lines_body, problems
from ..problems import Problem, ProblemKind
from ..schemas.base import SHA256
from ..schemas.records import Age, ImportedShown
from ..service import Service, ServiceDep, in_thread, place_in
from .models import place_to_receive, receive

LOOKED_AT = 500
"""Records that are looked at for one piece: so many lines are in memory at most, beside a page of the database."""

REMEMBERED = 20_000
"""Tasks of which it is remembered whether they meet the conditions."""


@dataclass(slots=True)
class RecordFilter:
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


def lines(store: Store, conditions: RecordFilter) -> Iterator[bytes]:
    """The lines of the records, as `tunewright export --json` writes them: the last one says how many there were.

    A piece without any is a blank before the next line, as JSON allows: so that who waits hears that there is
    somebody. Raises StoreError.
    """
    exported = 0
    entries = store.export()
    while looked_at := list(islice(entries, LOOKED_AT)):
        texts = [
            json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in looked_at if conditions.has(entry)
        ]
        exported += len(texts)
        yield ("\n".join(texts) + "\n").encode() if texts else b" "
    yield json.dumps({"exported": exported}).encode() + b"\n"


async def stream(first: bytes, rest: Iterator[bytes], threads: anyio.CapacityLimiter) -> AsyncIterator[bytes]:
    """A piece that was read, and those behind it, each read when the one before was sent, in one of some threads."""
    piece: bytes | None = first
    while piece is not None:
        yield piece
        piece = await anyio.to_thread.run_sync(next, rest, None, limiter=threads)


async def streamed(
    service: Service, pieces: Iterator[bytes], headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """An answer of JSON lines, some at once."""
    # Read before the answer begins: a database that is away is a problem then, and not an answer that breaks off.
    first = await anyio.to_thread.run_sync(next, pieces, b"", limiter=service.stream_threads)
    return StreamingResponse(
        stream(first, pieces, service.stream_threads), media_type="application/jsonl", headers=headers
    )


LINE_BYTES = 4 << 20
"""The longest line: a record has a few kilobytes, most of them its task."""

JSON_LINES = json_lines_body(
    "A record a line, as `tunewright export` writes them; the summary of `--json` may end them."
)

LINES = json_lines_answer(
    "A record a line, as `tunewright export --json` writes them: the last line says how many there were, so that one "
    "can tell whether any are missing."
)

router = APIRouter(prefix="/v1/records", tags=["lookups"])


async def export_slot(service: ServiceDep) -> AsyncIterator[None]:
    """A place among those who export, for as long as it takes. Raises Problem."""
    with place_in(service.export_slots, "too many exports are under way"):
        yield


@router.get(
    "",
    summary="Export records",
    response_class=StreamingResponse,
    responses=LINES | problems(ProblemKind.INVALID, ProblemKind.BUSY),
    dependencies=[needs(KeyScope.RECORDS_READ), Depends(export_slot)],
)
async def export_records(
    service: ServiceDep,
    op: Annotated[str, Query(max_length=200, description="Only of tasks with this in what they are.")] = "",
    shape: Annotated[str, Query(max_length=200, description="Only of tasks with this in their shapes.")] = "",
    target: Annotated[
        str, Query(pattern=f"^({SHA256})?$", description="Only those on the target of this key; empty: on any.")
    ] = "",
    age: Annotated[Age, Query(description="Only those that are no older; empty: of any age.")] = Age.ANY,
    accept_encoding: Annotated[str, Header(max_length=1000, description="With `gzip` the lines come packed.")] = "",
) -> StreamingResponse:
    """Every trial and confirmation, failures too, or those that meet all conditions; `POST /v1/records` takes them."""
    pieces = lines(service.store, RecordFilter(op, shape, target, age.since))
    headers = {"Content-Disposition": 'attachment; filename="records.jsonl"', "Vary": "Accept-Encoding"}
    if accepts_gzip(accept_encoding):
        headers["Content-Encoding"] = "gzip"
        pieces = gzip_stream(pieces, flush_each=True)
    return await streamed(service, pieces, headers)


@router.post(
    "",
    summary="Import records",
    response_description="All lines are stored.",
    responses=problems(ProblemKind.BAD_RECORDS, ProblemKind.BUSY),
    openapi_extra={"requestBody": JSON_LINES},
    dependencies=[needs(KeyScope.RECORDS_WRITE), Depends(count_as_change)],
)
async def import_records(request: Request, service: ServiceDep) -> ImportedShown:
    """Add what another database measured. What is there is not changed by it: sending them again is harmless."""
    with place_to_receive(service), tempfile.TemporaryFile(prefix="tunewright-", dir=service.options.folder) as file:
        await receive(request, file)
        file.seek(0)
        counts = await in_thread(partial(_import, service.store, file))
    return ImportedShown.show(counts)


def _import(store: Store, file: IO[bytes]) -> ImportCounts:
    """Store the lines of a file. Raises Problem for the first one that is none."""
    lines = Lines(file, LINE_BYTES)
    try:
        counts = store.import_(lines)
        lines.check()
    except BadLine as error:
        raise Problem(
            ProblemKind.BAD_RECORDS,
            f"{error}; {counted(error.stored, 'record before it is', 'records before it are')} stored",
        ) from error
    return counts
