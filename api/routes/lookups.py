"""Routes of lookups: which schedule to use for tasks, one record, and snapshots for when no server is there."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field

from tunewright.codegen.target import Target
from tunewright.db.access import Key, Scope
from tunewright.db.errors import NotFound
from tunewright.db.jobs import Budget, JobSpec, JobTask
from tunewright.db.known import Marks
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.tuner.lookup import Basis, Ladder
from tunewright.tuner.lookup.predictor import Predictor

from ..access import counted_as_change, needs
from ..openapi import problems
from ..problems import Kind, Problem, invalid
from ..schemas import EXAMPLE_TARGET, EXAMPLE_TASK, SHA256, Answer, Asked, Digest
from ..service import Here, Service, in_thread
from .prepared import Item, Prepared, exact, other, unanswered, unknown

MOST_TASKS = 1024
"""Tasks of one lookup."""

LIMIT_S = 0.4
"""How long one lookup may search for tasks that were not measured on the target: clients wait a second."""

MOST_STAGES, MOST_TENSORS, LARGEST_RANK, LARGEST_EXTENT = 64, 128, 16, 1 << 40
"""Bounds of a task that is sent; those of models are far smaller."""

TRIALS_A_TASK = 32
"""Budget of a job for misses, a task."""

PRIORITY = -50
"""Of such a job: behind those that somebody submitted."""

PAGE = 500
"""Records of a snapshot that are read at once."""

SNAPSHOT_FORM = "1"
"""Part of a snapshot's ETag: it changes when lines are put otherwise."""

UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "It is still what the ETag was given for."}}

LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A line of JSON for each task: the answers that a lookup of all tasks would have.",
        "content": {"application/jsonl": {"schema": {"type": "string"}}},
    }
}

IfNoneMatch = Annotated[str | None, Header(max_length=1000, description="ETags that are known (RFC 9110).")]
TaskInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of a task.")]
TargetInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of a target.")]

router = APIRouter(prefix="/v1", tags=["lookups"])


class LookupAsked(Asked):
    """Tasks to look up, and the machine that they are to run on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": EXAMPLE_TARGET, "tasks": [EXAMPLE_TASK]}]})

    target: Digest | dict[str, Any] = Field(
        description="Key of a target, or the target itself: then similar targets are found even if it is new here."
    )
    tasks: list[Digest] = Field(min_length=1, max_length=MOST_TASKS, description="Keys of the tasks.")
    definitions: dict[Digest, dict[str, Any]] = Field(
        default_factory=dict,
        max_length=MOST_TASKS,
        description="Tasks by key, for those that were `unknown` when asked for before.",
    )


class SourceShown(Answer):
    """Where a schedule was measured that was not measured for the task and target asked for."""

    task: Digest
    target: Digest
    target_name: str = Field(description="For people.", examples=["cpu:znver5:2x512"])


class ScheduleShown(Answer):
    """A point of a search space."""

    sketch: str = Field(examples=["contraction"])
    version: int
    values: dict[str, int]


class LookupItem(Answer):
    """What to use for a task. Of one whose match is `unknown` nothing but the key is told: send its definition."""

    key: Digest
    match: Literal["exact", "sibling", "nearest", "predicted", "default", "untried", "none", "unknown"]
    op: str | None = None
    basis: Basis | None = Field(None, description="What the expected time is.")
    confirmed: bool | None = Field(None, description="Whether the schedule won a comparison in a fresh process.")
    expected_ms: float | None = None
    interval_ms: tuple[float, float] | None = Field(None, description="95% interval of the median measured.")
    schedule: ScheduleShown | None = Field(
        None, description="With the match `default` it may be null: there was no time to make it. Use your own default."
    )
    source: SourceShown | None = None
    provenance: dict[str, str] | None = Field(None, description="Machine, compiler and versions of the measurement.")


class LookupAnswer(Answer):
    """Answers in the order of the keys."""

    target: Digest
    items: list[LookupItem]
    job: int | None = Field(None, description="With `tune=background`: the job that was queued for the misses.")


class Answering:
    """What lookups of one service share."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.prepared = Prepared(store.known)
        self.predictor = Predictor(store)
        self.ladder = Ladder(store, self.predictor)

    def read(self, target: Target | None, target_key: str, asked: LookupAsked, keys: list[str]) -> _Read:
        """Answers for those of the tasks that are not in memory. Raises Problem, StoreError."""
        items = self.prepared.read(target_key, keys)
        left = [key for key in keys if key not in items]
        tasks: dict[str, Task] = {}
        if left:
            target = target or self._target(target_key)
            tasks = self._tasks(left, asked.definitions)
            found = self.ladder.find(tasks.values(), target, LIMIT_S)
            for key in left:
                if key in found:
                    items[key] = other(found[key])
                else:
                    items[key] = unanswered(tasks[key]) if key in tasks else unknown(key)
        return _Read(items, tasks)

    def _target(self, key: str) -> Target:
        try:
            return self.store.target(key)
        except NotFound as error:
            raise Problem(Kind.NO_SUCH_TARGET, "send the target itself instead of its key") from error

    def _tasks(self, keys: list[str], definitions: Mapping[str, Any]) -> dict[str, Task]:
        """Those of the tasks that are defined in the request or known here."""
        known = self.store.known.definitions([key for key in keys if key not in definitions])
        tasks = {key: Task.from_json(data) for key, data in known.items()}
        return tasks | {key: task_of(key, definitions[key]) for key in keys if key in definitions}

    def tune(
        self, here: Service, target: Target | None, target_key: str, tasks: Mapping[str, Task | None], owner: str
    ) -> int:
        """Queue a job for these tasks; None stands for one that is known here. Its id. Raises Problem, StoreError."""
        for key in sorted(tasks):
            if (task := tasks[key]) is not None:
                self.store.add_task(task)
        self.store.add_target(target or self._target(target_key))
        spec = JobSpec("", target_key, tuple(JobTask(key, 1) for key in sorted(tasks)), {})
        submitted = self.store.jobs.submit(
            spec,
            "lookup",
            Budget(TRIALS_A_TASK * len(tasks)),
            priority=PRIORITY,
            owner=owner,
            most_unfinished=here.options.most_unfinished,
        )
        return submitted.job.id


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read for a lookup."""

    items: dict[str, Item]
    tasks: dict[str, Task]  # those that were not measured on the target


async def answering_of(request: Request, here: Here) -> Answering:
    """What lookups share; made with the first one."""
    state = request.app.state
    if not hasattr(state, "answering"):
        state.answering = Answering(here.store)
    return cast("Answering", state.answering)


Lookups = Annotated[Answering, Depends(answering_of)]
"""Type of a route's parameter that is what lookups share."""


@router.post(
    "/lookups",
    summary="Look schedules up",
    response_model=LookupAnswer,
    responses=problems(Kind.INVALID, Kind.NO_SUCH_TARGET, Kind.TOO_LARGE, Kind.TOO_SLOW, Kind.QUOTA),
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
    target = None if isinstance(asked.target, str) else target_of(asked.target)
    target_key = asked.target if isinstance(asked.target, str) else _key(target)
    if lookups.prepared.is_due:
        await in_thread(lookups.prepared.look)
    items = lookups.prepared.remembered(target_key, asked.tasks)
    tasks: dict[str, Task] = {}
    if left := [one for one in dict.fromkeys(asked.tasks) if one not in items]:
        read = await in_thread(partial(lookups.read, target, target_key, asked, left))
        items |= read.items
        tasks = read.tasks
    for one in asked.tasks:
        here.metrics.lookups.labels(items[one].match).inc()
    job = b""
    if tune is not None:
        misses: dict[str, Task | None] = {
            one: tasks.get(one)
            for one, item in items.items()
            if item.match not in ("unknown", "none") and not item.is_confirmed
        }
        queue = partial(lookups.tune, here, target, target_key, misses, key.id)
        job = b', "job": %d' % await in_thread(queue) if misses else b', "job": null'
    text = b", ".join(items[one].text for one in asked.tasks)
    content = b'{"target": "%s", "items": [%s]%s}' % (target_key.encode(), text, job)
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
    if lookups.prepared.is_due:
        await in_thread(lookups.prepared.look)
    items = lookups.prepared.remembered(target, [task_key])
    if not items:
        items = await in_thread(partial(lookups.prepared.read, target, [task_key]))
    if not items:
        raise Problem(Kind.NO_SUCH_TASK, "nothing is measured of this task on this target")
    text = items[task_key].text
    headers = {
        "ETag": f'"{hashlib.sha256(text).hexdigest()[:32]}"',
        "Cache-Control": "private, max-age=5, stale-if-error=86400",
    }
    if is_match(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(text, media_type="application/json", headers=headers)


@router.get(
    "/snapshots/{target_key}",
    summary="All records of a target",
    response_class=StreamingResponse,
    responses=LINES | UNCHANGED | problems(Kind.INVALID, Kind.NO_SUCH_TARGET),
    dependencies=[needs(Scope.RECORDS_READ)],
)
async def take_snapshot(
    target_key: TargetInPath,
    here: Here,
    if_none_match: IfNoneMatch = None,
    accept_encoding: Annotated[str, Header(max_length=1000, description="With `gzip` the lines come packed.")] = "",
) -> Response:
    """The best of every task that was measured on a target, for use where no server can be reached."""
    marks, _ = await in_thread(partial(_begin_snapshot, here, target_key))
    packed = accepts_gzip(accept_encoding)
    headers = {
        "ETag": _snapshot_tag(target_key, marks, packed),
        "Cache-Control": "private, max-age=5, stale-if-error=86400",
        "Vary": "Accept-Encoding",
    }
    if is_match(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    lines = _lines(here.store, target_key)
    if packed:
        headers["Content-Encoding"] = "gzip"
        lines = gzipped(lines)
    return StreamingResponse(lines, media_type="application/jsonl", headers=headers)


def _begin_snapshot(here: Service, target_key: str) -> tuple[Marks, Target]:
    try:
        return here.store.known.marks(), here.store.target(target_key)
    except NotFound as error:
        raise Problem(Kind.NO_SUCH_TARGET, "nothing was measured there") from error


def _snapshot_tag(target_key: str, marks: Marks, packed: bool) -> str:
    """Equal marks mean the same records of every target, so this is a strong tag that costs one query."""
    text = " ".join([SNAPSHOT_FORM, target_key, *map(str, marks), "gzip" if packed else "identity"])
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def _lines(store: SqlStore, target_key: str) -> Iterator[bytes]:
    after = ""
    while page := store.known.best_on(target_key, after, PAGE):
        yield b"".join(exact(best).text + b"\n" for best in page)
        after = page[-1].task_key


def gzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces as one gzip stream."""
    deflate = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16)
    for piece in pieces:
        if packed := deflate.compress(piece):
            yield packed
    yield deflate.flush()


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding allows gzip (RFC 9110, 12.5.3), `*` not being taken for it."""
    for part in header.split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def is_match(header: str | None, tag: str) -> bool:
    """Whether an If-None-Match names a tag (RFC 9110, 13.1.2)."""
    if header is None:
        return False
    return header.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in header.split(","))


def target_of(data: Mapping[str, Any]) -> Target:
    """The target that a request describes. Raises Problem."""
    try:
        return Target.from_json(dict(data))
    except (TypeError, ValueError) as error:
        raise invalid("body", ["target"], str(error)) from error


def _key(target: Target | None) -> str:
    return "" if target is None else target.key


def task_of(key: str, data: Any) -> Task:
    """The task that a request defines. Raises Problem where it is none, too large, or another one than its key says."""
    try:
        task = Task.from_json(data)
        tensors = [*task.inputs, *task.outputs, *task.temporaries]
        extents = [extent for tensor in tensors for extent in tensor.shape]
        extents += [axis.extent for stage in task.stages for axis in stage.axes + stage.reduce]
        if len(task.stages) > MOST_STAGES or len(tensors) > MOST_TENSORS or max(extents, default=1) > LARGEST_EXTENT:
            raise ValueError("it is too large")
        if any(len(tensor.shape) > LARGEST_RANK for tensor in tensors):
            raise ValueError("a tensor has too many dimensions")
        if task.key != key:
            raise ValueError(f"its key is {task.key}")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        said = f"it is not this task: {type(error).__name__}: {error}"
        raise invalid("body", ["definitions", key], said) from error
    return task
