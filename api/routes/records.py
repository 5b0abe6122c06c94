"""Route of records from elsewhere: what another database knows, as JSON lines."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import IO

from fastapi import APIRouter, Depends, Request

from tunewright.db.access import Scope
from tunewright.db.exchange import BadLine, Lines
from tunewright.db.sql_store import SqlStore
from tunewright.db.store import Imported
from tunewright.tuner.text import counted

from ..access import counted_as_change, needs
from ..openapi import problems
from ..problems import Kind, Problem
from ..schemas import ImportedShown
from ..service import Here, in_thread
from .models import place_to_receive, receive

LINE_BYTES = 4 << 20
"""The longest line: a record has a few kilobytes, most of them its task."""

JSON_LINES = {
    "required": True,
    "description": "A record a line, as `tunewright export` writes them; the summary of `--json` may end them.",
    "content": {"application/jsonl": {"schema": {"type": "string"}}},
}

router = APIRouter(prefix="/v1/records", tags=["lookups"])


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
