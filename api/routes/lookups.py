"""Routes of lookups: which schedule to use for tasks, and the best record of one."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from tunewright.db.access import Key, Scope
from tunewright.graph.task import Task
from tunewright.tuner.lookup.kept import kept_defaults

from ..access import counted_as_change, needs
from ..etags import UNCHANGED, IfNoneMatch, headers_of, unchanged
from ..openapi import problems
from ..problems import Kind, Problem
from ..schemas import SHA256, Digest, LookupAnswer, LookupAsked, LookupItem
from ..service import Here, in_thread
from .answering import Lookups, Read
from .definitions import target_of

TaskInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of a task.")]

router = APIRouter(prefix="/v1", tags=["lookups"])


@router.post(
    "/lookups",
    summary="Look schedules up",
    response_model=LookupAnswer,
    responses=problems(Kind.INVALID, Kind.NO_SUCH_TARGET, Kind.QUOTA),
)
async def look_up(
    request: Request,
    asked: LookupAsked,
    here: Here,
    lookups: Lookups,
    key: Annotated[Key, needs(Scope.RECORDS_READ)],
    tune: Annotated[
        Literal["background"] | None,
        Query(description="Queue a job for what is not measured and compared yet. Needs the scope jobs:write."),
    ] = None,
) -> Response:
    """Which schedule to use for each task, by the first rung of the ladder that has one.

    `exact`: the best known for the task on the target. `sibling`: on a similar target. `nearest`: for a task of the
    same form and similar size. `predicted`: the cost model's pick. `default`: nothing is known; `untried` or `none`:
    the default is known to fail there, and a schedule that nobody measured takes its place, or nothing works.
    `unknown`: the task's definition has to be sent.
    """
    if tune is not None:
        if Scope.JOBS_WRITE not in key.scopes:
            raise Problem(Kind.MISSING_SCOPE, f"tune=background needs the scope {Scope.JOBS_WRITE}")
        await counted_as_change(request, key)
    target_key, target = target_of(asked)
    items = (await lookups.prepared()).remembered(target_key, asked.tasks)
    sent: dict[str, Task] = {}
    if left := [one for one in dict.fromkeys(asked.tasks) if one not in items]:
        read = await in_thread(partial(lookups.read, target_key, target, asked, left))
        items, sent = items | read.items, read.sent
    for one in asked.tasks:
        here.metrics.lookups.labels(items[one].match).inc()
    job = b""
    if tune is not None:
        queued = await in_thread(partial(lookups.tune, target_key, target, Read(items, sent), key.owner))
        job = b', "job": %s' % json.dumps(queued).encode()
    kept = b""
    if asked.is_model:
        told = await in_thread(partial(kept_defaults, here.store, asked.tasks, target_key))
        kept = b', "kept": %s' % json.dumps(None if told is None else list(told.values())).encode()
    text = b", ".join(items[one].text for one in asked.tasks)
    content = b'{"target": "%s", "items": [%s]%s%s}' % (target_key.encode(), text, kept, job)
    return Response(content, media_type="application/json")


@router.get(
    "/records/{task_key}",
    summary="The best record of a task",
    response_model=LookupItem,
    responses=UNCHANGED | problems(Kind.INVALID, Kind.NO_SUCH_TASK),
    dependencies=[needs(Scope.RECORDS_READ)],
)
async def find_record(
    task_key: TaskInPath,
    lookups: Lookups,
    target: Annotated[Digest, Query(description="Key of the target.")],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """What is best for a task on a target: the exact rung of the ladder alone."""
    prepared = await lookups.prepared()
    items = prepared.remembered(target, [task_key]) or await in_thread(partial(prepared.read, target, [task_key]))
    if not items:
        raise Problem(Kind.NO_SUCH_TASK, "nothing is measured of this task on this target")
    text = items[task_key].text
    headers = headers_of(text)
    return unchanged(if_none_match, headers) or Response(text, media_type="application/json", headers=headers)
