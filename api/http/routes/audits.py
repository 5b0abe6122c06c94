"""Routes of the audits: where machines of one fleet would not agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse

from tunewright.db.access import KeyScope
from tunewright.db.database import batches
from tunewright.db.logs.audit import LogAudit

from ..access import needs
from ..openapi import json_lines_answer, problems
from ..problems import ProblemKind
from ..service import ServiceDep, in_thread
from .logs import PAGE, Readable, find_namespace
from .records import export_slot, streamed

FINDINGS = json_lines_answer("A finding a line; the last line, `summary`, says how many there are.")

router = APIRouter(prefix="/v1", tags=["logs"])


@router.get(
    "/logs/{namespace}:audit",
    summary="Keys on which machines would not agree",
    response_class=StreamingResponse,
    responses=FINDINGS | problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_NAMESPACE, ProblemKind.BUSY),
    dependencies=[Depends(export_slot)],
)
async def audit_log(service: ServiceDep, namespace: Readable) -> StreamingResponse:
    """Of each device and toolchain: keys that its environments are served differently (`disagreement`), keys of which
    a tie of overlapping intervals decides (`tie`), and keys that some of them have no value of (`missing`).
    """
    space = await in_thread(partial(find_namespace, service, namespace))
    return await streamed(service, _pieces(LogAudit(service.store.database, space).lines()))


@router.get(
    "/audit",
    summary="Tasks on which machines would not agree",
    response_class=StreamingResponse,
    responses=FINDINGS | problems(ProblemKind.BUSY),
    dependencies=[needs(KeyScope.RECORDS_READ), Depends(export_slot)],
)
async def audit_schedules(service: ServiceDep) -> StreamingResponse:
    """Tasks that have different schedules on targets with the same processor, and what these targets differ in."""
    return await streamed(service, _pieces(service.store.schedule_audit.lines()))


def _pieces(lines: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    for page in batches(lines, PAGE):
        yield b"".join(json.dumps(line).encode() + b"\n" for line in page)
