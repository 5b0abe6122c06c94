"""Routes of records on their way between databases, as JSON lines."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from functools import partial
from typing import IO, Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from tunewright.db.access import Scope
from tunewright.db.exchange import BadLine, Lines
from tunewright.db.sql_store import SqlStore
from tunewright.db.store import Imported
from tunewright.tuner.text import counted

from ..access import counted_as_change, needs
from ..openapi import problems
from ..problems import Kind, Problem
from ..schemas import SHA256, ImportedShown
from ..service import Here, in_thread, place_in
from ..views.records import Age
from .exporting import Wanted, lines, packed, streamed
from .models import place_to_receive, receive
from .snapshots import accepts_gzip

LINE_BYTES = 4 << 20
"""The longest line: a record has a few kilobytes, most of them its task."""

JSON_LINES = {
    "required": True,
    "description": "A record a line, as `tunewright export` writes them; the summary of `--json` may end them.",
    "content": {
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},  # what every client can send
        "application/jsonl": {"schema": {"type": "string"}},
    },
}

LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A record a line, as `tunewright export --json` writes them: the last line says how many there "
        "were, so that one can tell whether any are missing. Lines may be empty.",
        "content": {"application/jsonl": {"schema": {"type": "string"}}},
    }
}

router = APIRouter(prefix="/v1/records", tags=["lookups"])


async def exporting(here: Here) -> AsyncIterator[None]:
    """A place among those who export, for as long as it takes. Raises Problem."""
    with place_in(here.exporting, "too many exports are under way"):
        yield


@router.get(
    "",
    summary="Export records",
    response_class=StreamingResponse,
    responses=LINES | problems(Kind.INVALID, Kind.BUSY),
    dependencies=[needs(Scope.RECORDS_READ), Depends(exporting)],
)
async def export_records(
    here: Here,
    op: Annotated[str, Query(max_length=200, description="Only of tasks with this in what they are.")] = "",
    shape: Annotated[str, Query(max_length=200, description="Only of tasks with this in their shapes.")] = "",
    target: Annotated[
        str, Query(pattern=f"^({SHA256})?$", description="Only those on the target of this key; empty: on any.")
    ] = "",
    age: Annotated[Age, Query(description="Only those that are no older; empty: of any age.")] = Age.ANY,
    accept_encoding: Annotated[str, Header(max_length=1000, description="With `gzip` the lines come packed.")] = "",
) -> StreamingResponse:
    """Every trial and confirmation, failures too, or those that meet all conditions; `POST /v1/records` takes them."""
    pieces = lines(here.store, Wanted(op, shape, target, age.since))
    headers = {"Content-Disposition": 'attachment; filename="records.jsonl"', "Vary": "Accept-Encoding"}
    if accepts_gzip(accept_encoding):
        headers["Content-Encoding"] = "gzip"
        pieces = packed(pieces)
    # Read before the answer begins: a database that is away is a problem then, and not an answer that breaks off.
    first = await anyio.to_thread.run_sync(next, pieces, b"", limiter=here.reading)
    return StreamingResponse(streamed(first, pieces, here.reading), media_type="application/jsonl", headers=headers)


@router.post(
    "",
    summary="Import records",
    response_description="All lines are stored.",
    responses=problems(Kind.BAD_RECORDS, Kind.BUSY),
    openapi_extra={"requestBody": JSON_LINES},
    dependencies=[needs(Scope.RECORDS_WRITE), Depends(counted_as_change)],
)
async def import_records(request: Request, here: Here) -> ImportedShown:
    """Add what another database measured. Records are added, never changed: sending them again is harmless."""
    with place_to_receive(here), tempfile.TemporaryFile(prefix="tunewright-", dir=here.options.folder) as file:
        await receive(request, file)
        file.seek(0)
        imported = await in_thread(partial(_import, here.store, file))
    return ImportedShown(added=imported.added, known=imported.known)


def _import(store: SqlStore, file: IO[bytes]) -> Imported:
    """Store the lines of a file. Raises Problem for the first one that is none."""
    lines = Lines(file, LINE_BYTES)
    try:
        imported = store.import_(lines)
        lines.check()
    except BadLine as error:
        raise Problem(
            Kind.BAD_RECORDS, f"{error}; {counted(error.stored, 'record before it is', 'records before it are')} stored"
        ) from error
    return imported
