"""Routes of lookups: which schedule to use for tasks, and the best record of one."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from tunewright.db.access import Key, KeyScope
from tunewright.graph.task import Task
from tunewright.tuner.lookup.verdict import model_verdict

from ..access import count_as_change, needs
from ..etags import NOT_MODIFIED, IfNoneMatch, cache_headers, not_modified
from ..openapi import problems
from ..problems import Problem, ProblemKind
from ..schemas.base import SHA256, Digest
from ..schemas.records import LookupAnswer, LookupAsked, LookupItem
from ..service import ServiceDep, in_thread
from .lookup_service import AskedTasks, LookupItems, LookupServiceDep, target_of

TaskInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of a task.")]

router = APIRouter(prefix="/v1", tags=["lookups"])


@router.post(
    "/lookups",
    summary="Look schedules up",
    response_model=LookupAnswer,
    responses=problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_TARGET, ProblemKind.QUOTA),
)
async def look_up(
    request: Request,
    lookup: LookupAsked,
    service: ServiceDep,
    lookups: LookupServiceDep,
    key: Annotated[Key, needs(KeyScope.RECORDS_READ)],
    tune: Annotated[
        Literal["background"] | None,
        Query(description="Queue a job for what is not measured and compared yet. Needs the scope jobs:write."),
    ] = None,
) -> Response:
    """Which schedule to use for each task, by the first rung of the ladder that has one.

    `exact`: the best known for the task on the target. `sibling`: on a similar target. `nearest`: for a task of the
    same form and similar size. `predicted`: the cost model's pick. `default`: nothing is known; `untried` or `none`:
    the default is known to fail there, and a schedule that nobody measured takes its place, or nothing works.
    `unknown`: the task itself has to be sent.
    """
    if tune is not None:
        if KeyScope.JOBS_WRITE not in key.scopes:
            raise Problem(ProblemKind.MISSING_SCOPE, f"tune=background needs the scope {KeyScope.JOBS_WRITE}")
        await count_as_change(request, key)
    target_key, target = target_of(lookup)
    are_keys = all(isinstance(item, str) for item in lookup.tasks)
    asked = AskedTasks.of(lookup) if are_keys else await in_thread(partial(AskedTasks.of, lookup))
    items = (await lookups.cache()).recall(target_key, asked.keys)
    definitions: dict[str, Task] = {}
    if missing := [task_key for task_key in dict.fromkeys(asked.keys) if task_key not in items]:
        new_items = await in_thread(partial(lookups.read, target_key, target, asked, missing))
        items, definitions = items | new_items.by_key, new_items.definitions
    for task_key in asked.keys:
        service.metrics.lookups.labels(items[task_key].match).inc()
    job = b""
    if tune is not None:
        job_id = await in_thread(partial(lookups.tune, target_key, target, LookupItems(items, definitions), key.owner))
        job = b', "job": %s' % _encode(job_id)
    verdict = b""
    if lookup.is_model:
        told = await in_thread(partial(model_verdict, service.store, [*asked.keys, *lookup.others], target_key))
        verdict = b"".join(b", %s: %s" % (_encode(field), _encode(part)) for field, part in told.to_json().items())
    names = b', "names": %s' % _encode(asked.names) if asked.names else b""
    text = b", ".join(items[task_key].text for task_key in asked.keys)
    content = b'{"target": "%s", "items": [%s]%s%s%s}' % (target_key.encode(), text, names, verdict, job)
    return Response(content, media_type="application/json")


def _encode(data: Any) -> bytes:
    return json.dumps(data).encode()


@router.get(
    "/records/{task_key}",
    summary="The best record of a task",
    response_model=LookupItem,
    responses=NOT_MODIFIED | problems(ProblemKind.INVALID, ProblemKind.NO_SUCH_TASK),
    dependencies=[needs(KeyScope.RECORDS_READ)],
)
async def find_record(
    task_key: TaskInPath,
    lookups: LookupServiceDep,
    target: Annotated[Digest, Query(description="Key of the target.")],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """What is best for a task on a target: the exact rung of the ladder alone."""
    cache = await lookups.cache()
    items = cache.recall(target, [task_key]) or await in_thread(partial(cache.read, target, [task_key]))
    if not items:
        raise Problem(ProblemKind.NO_SUCH_TASK, "nothing is measured of this task on this target")
    text = items[task_key].text
    headers = cache_headers(text)
    return not_modified(if_none_match, headers) or Response(text, media_type="application/json", headers=headers)
