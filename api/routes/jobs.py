"""Routes of jobs: submit, list, look at, and steer them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Response

from tunewright.codegen.target import Target
from tunewright.db.access import Key, Scope
from tunewright.db.errors import NotFound
from tunewright.db.jobs import THREADS, Budget, Conflict, Idempotency, Job, Jobs, JobSpec, JobState, JobTask, Submitted
from tunewright.db.uploads import Upload
from tunewright.tuner.targets import meant
from tunewright.tuner.text import counted, short

from ..access import counted_as_change, needs
from ..openapi import problems
from ..paging import Cursor, Limit, Page, cut, number_of
from ..problems import Kind, Problem, invalid
from ..readers import ModelReader, Tasks
from ..schemas import (
    SHA256,
    JobAsked,
    JobChange,
    JobId,
    JobShown,
    JobSubmitted,
    TrialShown,
)
from ..service import Here, Service, in_thread
from .models import find_upload, model_file

ASK_AGAIN_S = 2
"""When to look at a new job again, as the header Retry-After says."""

MOST_NAMED = 8
"""Targets that a problem names."""

Result = TypeVar("Result")

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

READ = needs(Scope.JOBS_READ)
STEER = [needs(Scope.JOBS_WRITE), Depends(counted_as_change)]

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Your name for this submission: sending it twice with the same name submits one job.",
        examples=["nightly-2026-11-20"],
    ),
]


@router.post(
    "",
    status_code=202,
    summary="Submit a job",
    response_description="The job, which may be one that was there.",
    responses=problems(
        Kind.NO_SUCH_MODEL,
        Kind.NO_SUCH_TARGET,
        Kind.SEVERAL_TARGETS,
        Kind.INVALID,
        Kind.BAD_MODEL,
        Kind.NOTHING_TO_TUNE,
        Kind.KEY_REUSED,
        Kind.QUOTA,
        Kind.BUSY,
    ),
    dependencies=[Depends(counted_as_change)],
)
async def submit_job(
    asked: JobAsked,
    answer: Response,
    here: Here,
    key: Annotated[Key, needs(Scope.JOBS_WRITE)],
    idempotency_key: IdempotencyKey = None,
) -> JobSubmitted:
    """Have a model tuned. The answer comes at once; the job's events tell how it goes.

    An unfinished job of the same model, target and settings is answered as it is, with its own label, budget and
    priority. Where no target was named and no tuner process has a device, the job waits, and is for the first that
    comes.
    """
    once = None if idempotency_key is None else Idempotency(key.owner, idempotency_key, _fingerprint(asked))
    submitted = None if once is None else await in_thread(partial(_submitted, here, once))
    if submitted is None:
        upload = await in_thread(partial(find_upload, here, asked.model))
        target = await in_thread(partial(_target, here, asked))
        reading = await here.readers.read(partial(_tasks, here, upload, asked.dims))
        if not reading.tasks:
            raise Problem(Kind.NOTHING_TO_TUNE, "no node of the model has a kernel")
        submitted = await in_thread(partial(_submit, here, asked, upload, target, reading, key.owner, once))
    answer.headers["Location"] = f"/v1/jobs/{submitted.id}"
    answer.headers["Retry-After"] = str(ASK_AGAIN_S)
    return submitted


def _fingerprint(asked: JobAsked) -> str:
    """Of a request as it came, whatever is at work by then: a target that was not named is none in it."""
    return hashlib.sha256(json.dumps(asked.model_dump(), sort_keys=True).encode()).hexdigest()


def _submitted(here: Service, once: Idempotency) -> JobSubmitted | None:
    """The job of a submission that came before: the same answer, even where it could not be submitted now."""
    with _one_request_a_key():
        known = here.store.jobs.submitted(once)
    return None if known is None else _told(here, known)


@contextmanager
def _one_request_a_key() -> Iterator[None]:
    try:
        yield
    except Conflict:
        raise Problem(Kind.KEY_REUSED, "the job of this Idempotency-Key was asked for in other words") from None


def _tasks(here: Service, upload: Upload, dims: Mapping[str, int], reader: ModelReader) -> Tasks:
    """What there is to tune in a model; in a reader's thread, so that there are never more files than readers."""
    with model_file(here, upload) as path:
        return reader.tasks(path, dims)


def _target(here: Service, asked: JobAsked) -> Target | None:
    """What to tune for: the target named, or `_live_target`. Raises Problem where that is not known."""
    target: Target | None
    if asked.target is not None:
        try:
            target = here.store.target(asked.target)
        except NotFound:
            known = _listed(here.store.targets()) or "none yet"
            raise Problem(
                Kind.NO_SUCH_TARGET, f"no device was ever at work for {asked.target}; known are: {known}"
            ) from None
    else:
        target = _live_target(here)
    if target is None or asked.threads is None:
        return target
    if asked.threads > target.threads:
        raise invalid("body", ["threads"], f"the target has {counted(target.threads, 'thread')}")
    return replace(target, threads=asked.threads)


def _live_target(here: Service) -> Target | None:
    """The only one that is at work; None where there is none. A GPU has to be named beside a processor."""
    match meant(here.store.fleet.targets()):
        case []:
            return None
        case [target]:
            return target
        case targets:
            raise Problem(Kind.SEVERAL_TARGETS, f"{len(targets)} are at work: {_listed(targets)}")


def _listed(targets: Sequence[Target]) -> str:
    return ", ".join(f"{target} ({short(target.key)})" for target in targets[:MOST_NAMED])


def _submit(
    here: Service,
    asked: JobAsked,
    upload: Upload,
    target: Target | None,
    reading: Tasks,
    owner: str,
    once: Idempotency | None,
) -> JobSubmitted:
    store = here.store
    if target is not None:
        store.add_target(target)
    store.add_tasks(task for task, _ in reading.tasks)
    spec = JobSpec(
        model_sha256=asked.model,
        target_key="" if target is None else target.key,
        tasks=tuple(JobTask(task.key, occurrences) for task, occurrences in reading.tasks),
        settings={"seed": asked.seed, "strategy": asked.strategy}
        | ({"dims": asked.dims} if asked.dims else {})
        | ({THREADS: asked.threads} if target is None and asked.threads is not None else {})
        | reading.assembly.settings,
    )
    with _one_request_a_key():
        submitted = store.jobs.submit(
            spec,
            upload.label if asked.label is None else asked.label,
            Budget.of(asked.trials, asked.minutes, asked.until),
            priority=asked.priority,
            owner=owner,
            idempotency=once,
            most_unfinished=here.options.most_unfinished,
        )
    return _told(here, submitted)


def _told(here: Service, submitted: Submitted) -> JobSubmitted:
    return JobSubmitted(**dict(_shown(here, [submitted.job])[0]), is_new=submitted.is_new)


@router.get("", summary="List the jobs", responses=problems(Kind.INVALID), dependencies=[READ])
def list_jobs(
    here: Here,
    state: Annotated[
        list[JobState] | None, Query(max_length=6, description="Only jobs in one of these states.")
    ] = None,
    model: Annotated[str | None, Query(pattern=f"^{SHA256}$", description="Only jobs of this model.")] = None,
    target: Annotated[str | None, Query(pattern=f"^{SHA256}$", description="Only jobs for this target.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[JobShown]:
    """The jobs that meet all conditions, the newest first."""
    jobs = here.store.jobs.list(
        state, model_sha256=model, target_key=target, before_id=number_of(cursor), limit=limit + 1
    )
    page, following = cut(jobs, limit, lambda job: job.id)
    return Page(items=_shown(here, page), next=following)


@router.get(
    "/{job_id:int}", summary="Look at a job", responses=problems(Kind.NO_SUCH_JOB, Kind.INVALID), dependencies=[READ]
)
def get_job(here: Here, job_id: JobId) -> JobShown:
    """A job as it stands."""
    return _one(here, job_id, lambda jobs: jobs.get(job_id))


@router.patch(
    "/{job_id:int}",
    summary="Change a job",
    responses=problems(Kind.NO_SUCH_JOB, Kind.FINISHED, Kind.INVALID),
    dependencies=STEER,
)
def change_job(here: Here, job_id: JobId, change: JobChange) -> JobShown:
    """Change the priority of an unfinished job."""
    return _one(here, job_id, lambda jobs: jobs.prioritise(job_id, change.priority))


STEERING: dict[int | str, dict[str, Any]] = problems(Kind.NO_SUCH_JOB, Kind.FINISHED, Kind.INVALID, Kind.UNWRITABLE)


@router.post("/{job_id:int}:cancel", summary="Cancel a job", responses=STEERING, dependencies=STEER)
def cancel_job(here: Here, job_id: JobId) -> JobShown:
    """End a job. One that is being worked on ends after the candidate in hand; what was measured is kept."""
    return _one(here, job_id, lambda jobs: jobs.cancel(job_id))


@router.post("/{job_id:int}:pause", summary="Pause a job", responses=STEERING, dependencies=STEER)
def pause_job(here: Here, job_id: JobId) -> JobShown:
    """Have a job wait until it is resumed. One that is being worked on pauses after the candidate in hand."""
    return _one(here, job_id, lambda jobs: jobs.pause(job_id))


@router.post("/{job_id:int}:resume", summary="Resume a job", responses=STEERING, dependencies=STEER)
def resume_job(here: Here, job_id: JobId) -> JobShown:
    """Queue a paused job again."""
    return _one(here, job_id, lambda jobs: jobs.resume(job_id))


@router.get(
    "/{job_id:int}/trials",
    summary="List the trials of a job",
    responses=problems(Kind.NO_SUCH_JOB, Kind.INVALID),
    dependencies=[READ],
)
def list_trials(here: Here, job_id: JobId, cursor: Cursor = None, limit: Limit = 50) -> Page[TrialShown]:
    """What a job has measured, in order of measuring."""
    after = number_of(cursor)
    trials = of_job(lambda: here.store.jobs.trials(job_id, -1 if after is None else after, limit + 1), job_id)
    page, following = cut(trials, limit, lambda trial: trial.ordinal)
    return Page(items=[TrialShown.of(trial) for trial in page], next=following)


def _one(here: Service, job_id: int, ask: Callable[[Jobs], Job]) -> JobShown:
    """The job that a question answers. Raises Problem as `of_job`."""
    return _shown(here, [of_job(lambda: ask(here.store.jobs), job_id)])[0]


def _shown(here: Service, jobs: Sequence[Job]) -> list[JobShown]:
    ops = here.store.known.ops([task.task_key for job in jobs for task in job.spec.tasks])
    names = {target.key: str(target) for target in here.store.targets()}
    return [JobShown.of(job, ops, names) for job in jobs]


def of_job(ask: Callable[[], Result], job_id: int) -> Result:
    """What a question about a job answers. Raises Problem where it is unknown, or in no state for that."""
    try:
        return ask()
    except NotFound:
        raise Problem(Kind.NO_SUCH_JOB, f"job {job_id} was never submitted here") from None
    except Conflict:
        raise Problem(Kind.FINISHED, f"job {job_id} can't be changed any more") from None
