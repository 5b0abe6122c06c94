"""Routes of tuner processes on other machines: the methods of the store that they need, by name."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Path, Response

from tunewright.db.access import Key, KeyScope
from tunewright.db.database import repeatable
from tunewright.db.errors import NotFound
from tunewright.db.job import LeaseLost
from tunewright.db.store import Store

from ...client.work.call_form import to_json
from ...client.work.operations import FORM, LEASE, Operation, operations
from ..access import needs
from ..openapi import problems
from ..problems import Problem, ProblemKind, invalid
from ..schemas.work import CallAnswer, CallAsked, WaitAnswer, WaitAsked
from ..service import ServiceDep

FLEET, QUEUED = "fleet", "jobs.queued_targets"
"""Operations that the service knows more of: who asks, which is all of this part, and what it read a moment ago."""

WORK_THREADS = 4
"""Threads for calls. With more of them a second takes longer: they wait for each other in the interpreter. On 2 cores
beside PostgreSQL, 250 tuner processes had 326, 356, 294 and 280 calls a second answered by 2, 4, 8 and 40."""

router = APIRouter(prefix="/v1/work", tags=["fleet"])

OperationInPath = Annotated[
    str, Path(max_length=64, pattern="^[a-z_]+[.][a-z_]+$", description="A part of the store, and a method of it.")
]


def check_form(form: int) -> None:
    """Raises Problem for calls in the form of another version."""
    if form != FORM:
        raise Problem(ProblemKind.OTHER_VERSION, f"its calls have form {form}, and those of this server {FORM}")


@router.post(
    "/wait",
    summary="Wait for a job",
    responses=problems(ProblemKind.OTHER_VERSION, ProblemKind.INVALID),
    dependencies=[needs(KeyScope.WORK)],
)
async def wait_for_job(waiting: WaitAsked, service: ServiceDep) -> WaitAnswer:
    """Answers once other targets have queued jobs than the tuner process knows of, or its time is over."""
    check_form(waiting.form)
    is_over = service.draining.is_set
    return WaitAnswer(result=await service.queue.differs(waiting.seen, waiting.timeout_s, is_over))


@router.post(
    "/{operation}",
    summary="Call an operation",
    response_model=CallAnswer,
    responses=problems(
        ProblemKind.NOT_FOUND,
        ProblemKind.NOT_STORED,
        ProblemKind.LEASE_LOST,
        ProblemKind.OTHER_VERSION,
        ProblemKind.INVALID,
    ),
)
async def call_operation(
    operation: OperationInPath, call: CallAsked, service: ServiceDep, key: Annotated[Key, needs(KeyScope.WORK)]
) -> Response:
    """What `tunewright work --server` asks. It is no interface for other programs: it changes from version to version.

    What is stored belongs to a job that is leased to the process: a call without its lease is refused.
    """
    check_form(call.form)
    known = operations().get(operation)
    if known is None:
        raise Problem(ProblemKind.NOT_FOUND, f"there is no operation {operation}")
    if known.name == QUEUED:
        return _answer(await service.queue.targets())
    run = partial(_run, known, call, service.store, key)
    return await anyio.to_thread.run_sync(run, limiter=service.work_threads)


def _run(operation: Operation, call: CallAsked, store: Store, key: Key) -> Response:
    """The result of a call. Raises Problem, StoreError."""
    try:
        arguments = operation.form.arguments(call.arguments)
    except (ValueError, RecursionError) as error:
        raise invalid("body", ("arguments",), str(error)) from error
    if operation.is_leased_write and (call.write is None or arguments.get(LEASE) is None):
        raise invalid("body", ("write",), "a write of a tuner process has a lease and an id")
    if operation.part == FLEET:
        arguments["owner"] = key.owner
    try:
        with nullcontext() if call.write is None else repeatable(call.write):
            return _answer(operation.of(store)(**arguments))
    except LeaseLost as error:
        raise Problem(ProblemKind.LEASE_LOST, str(error)) from error
    except NotFound as error:
        raise Problem(ProblemKind.NOT_STORED, str(error)) from error
    except ValueError as error:
        raise invalid("body", ("arguments",), str(error)) from error


def _answer(result: Any) -> Response:
    text = json.dumps({"result": to_json(result)}, separators=(",", ":"), allow_nan=False)
    return Response(text, media_type="application/json")
