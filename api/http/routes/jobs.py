"""Routes of jobs: submit, list, look at, and steer them."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Response

from tunewright.codegen.target import Target
from tunewright.db.access import Key, KeyScope
from tunewright.db.errors import NotFound
from tunewright.db.job import (
    MOST_TAGS,
    THREADS,
    Conflict,
    Idempotency,
    Job,
    JobSpec,
    JobState,
    NoSuchBound,
    SearchBudget,
    SpecTask,
    Submission,
    search_settings,
)
from tunewright.db.jobs import Jobs
from tunewright.db.uploads import Upload
from tunewright.graph.numerics import Precision
from tunewright.tuner.explain.taken_back import mark_taken_back
from tunewright.tuner.targets import default_devices
from tunewright.tuner.text import counted, limits, short

from ..access import count_as_change, needs
from ..openapi import problems
from ..paging import Cursor, Limit, Page, cut, number_of
from ..problems import Problem, ProblemKind, invalid
from ..schemas.base import OWNER, SHA256, JobId, RequestModel
from ..schemas.jobs import (
    JobAsked,
    JobChange,
    JobExtended,
    JobExtension,
    JobShown,
    JobSubmitted,
    Tag,
    TrialShown,
)
from ..service import Service, ServiceDep, in_thread
from .models import find_upload, model_file, not_sent

if TYPE_CHECKING:
    from tunewright.tuner.models.reader import ModelTasks, Reader

ASK_AGAIN_S = 2
"""When to look at a new job again, as the header Retry-After says."""

MOST_NAMED = 8
"""Targets that a problem names."""

Result = TypeVar("Result")

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

READ = needs(KeyScope.JOBS_READ)
STEER = [needs(KeyScope.JOBS_WRITE), Depends(count_as_change)]

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
        ProblemKind.NO_SUCH_MODEL,
        ProblemKind.NO_SUCH_TARGET,
        ProblemKind.SEVERAL_TARGETS,
        ProblemKind.INVALID,
        ProblemKind.BAD_MODEL,
        ProblemKind.NOTHING_TO_TUNE,
        ProblemKind.KEY_REUSED,
        ProblemKind.QUOTA,
        ProblemKind.BUSY,
    ),
    dependencies=[Depends(count_as_change)],
)
async def submit_job(
    request: JobAsked,
    answer: Response,
    service: ServiceDep,
    key: Annotated[Key, needs(KeyScope.JOBS_WRITE)],
    idempotency_key: IdempotencyKey = None,
) -> JobSubmitted:
    """Have a model tuned. The answer comes at once; the job's events tell how it goes.

    An unfinished job of the same model, target and settings is answered as it is, with its own label, budget and
    priority; one that a local command left behind is resumed for all tuner processes, and its minutes begin anew. Where
    no target was named and no tuner process has a device, the job waits, and is for the first that comes.
    """
    once = None if idempotency_key is None else Idempotency(key.owner, idempotency_key, _fingerprint(request))
    job = None if once is None else await in_thread(partial(_earlier_submission, service, once))
    if job is None:
        upload = await in_thread(partial(find_upload, service, request.model))
        target = await in_thread(partial(_target, service, request))
        model_tasks = await service.readers.read(partial(_tasks, service, upload, request, target))
        if not model_tasks.tasks:
            raise Problem(ProblemKind.NOTHING_TO_TUNE, "no node of the model has a kernel")
        _check_vendor(request, model_tasks)
        _check_retime(request)
        job = await in_thread(partial(_submit, service, request, upload, target, model_tasks, key.owner, once))
    answer.headers["Location"] = f"/v1/jobs/{job.id}"
    answer.headers["Retry-After"] = str(ASK_AGAIN_S)
    return job


def _fingerprint(request: RequestModel, job_id: int | None = None) -> str:
    """Digest of a request as it came: a target that was not named stays unnamed, whatever is at work."""
    data = request.model_dump() | ({} if job_id is None else {"job": job_id})
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _earlier_submission(service: Service, once: Idempotency) -> JobSubmitted | None:
    """The job of a submission that came before: the same answer, even where it could not be submitted now."""
    with _check_idempotency():
        submission = service.store.jobs.submission(once)
    return None if submission is None else submission_answer(service, submission)


@contextmanager
def _check_idempotency() -> Iterator[None]:
    try:
        yield
    except Conflict:
        raise Problem(ProblemKind.KEY_REUSED, "the job of this Idempotency-Key was asked for in other words") from None


@contextmanager
def _check_model(sha256: str) -> Iterator[None]:
    try:
        yield
    except NotFound:  # the target and the tasks were stored just now
        raise not_sent(sha256) from None


def _check_vendor(request: JobAsked, model_tasks: ModelTasks) -> None:
    """Raises Problem where a vendor's runtime is asked for that can't run the model."""
    if request.vendor and not model_tasks.is_whole:
        raise invalid("body", ["vendor"], "needs the whole model: send it with its weights")
    if request.vendor and request.precision is not Precision.AS_GIVEN:
        raise invalid("body", ["vendor"], f"computes a model as given: leave it out, or precision {request.precision}")


def _check_retime(request: JobAsked) -> None:
    """Raises Problem where a job that searches nothing is given a bound of searching."""
    for name in ("trials", "minutes", "until"):
        if request.retime is not None and getattr(request, name) is not None:
            raise invalid("body", [name], "bounds a search, and a job that times again searches nothing: leave it out")


def _tasks(service: Service, upload: Upload, request: JobAsked, target: Target | None, reader: Reader) -> ModelTasks:
    """The tasks of a model; in a reader's thread, so that there are never more files than readers."""
    with model_file(service, upload) as path:
        return reader.tasks(path, request.bindings, target, request.precision)


def _target(service: Service, request: JobAsked) -> Target | None:
    """The target to tune for: the one named, or `_live_target`. Raises Problem for an unknown one."""
    target: Target | None
    if request.target is not None:
        try:
            target = service.store.target(request.target)
        except NotFound:
            targets = _target_list(service.store.fleet.all_targets()) or "none yet"
            raise Problem(
                ProblemKind.NO_SUCH_TARGET, f"no device was ever at work for {request.target}; known are: {targets}"
            ) from None
    else:
        target = _live_target(service)
    if target is None or request.threads is None:
        return target
    if request.threads > target.threads:
        raise invalid("body", ["threads"], f"the target has {counted(target.threads, 'thread')}")
    return replace(target, threads=request.threads)


def _live_target(service: Service) -> Target | None:
    """The only one that is at work; None where there is none. A GPU has to be named beside a processor."""
    match default_devices(service.store.fleet.targets()):
        case []:
            return None
        case [target]:
            return target
        case targets:
            raise Problem(ProblemKind.SEVERAL_TARGETS, f"{len(targets)} are at work: {_target_list(targets)}")


def _target_list(targets: Sequence[Target]) -> str:
    return ", ".join(f"{target} ({short(target.key)})" for target in targets[:MOST_NAMED])


def _submit(
    service: Service,
    request: JobAsked,
    upload: Upload,
    target: Target | None,
    model_tasks: ModelTasks,
    owner: str,
    once: Idempotency | None,
) -> JobSubmitted:
    store = service.store
    if target is not None:
        store.add_target(target)
    store.add_tasks((task for task, _ in model_tasks.tasks), relabel=True)
    spec = JobSpec(
        model_sha256=request.model,
        target_key="" if target is None else target.key,
        tasks=tuple(SpecTask(task.key, occurrences) for task, occurrences in model_tasks.tasks),
        settings=search_settings(
            request.seed,
            request.strategy,
            request.bindings,
            vendor=request.vendor,
            precision=request.precision,
            retime=request.retime,
        )
        | ({THREADS: request.threads} if target is None and request.threads is not None else {})
        | model_tasks.assembly.settings,
    )
    with _check_idempotency(), _check_model(request.model):
        submission = store.jobs.submit(
            spec,
            upload.label if request.label is None else request.label,
            SearchBudget(None) if request.retime else SearchBudget.of(request.trials, request.minutes, request.until),
            priority=request.priority,
            owner=owner,
            tags=request.tags,
            notes=request.notes,
            idempotency=once,
            most_unfinished=service.options.most_unfinished,
            is_uploaded=True,
            graph=model_tasks.graph.to_json(),
        )
    return submission_answer(service, submission)


def submission_answer(service: Service, submission: Submission) -> JobSubmitted:
    """The job that a submission came to, as the API shows it."""
    return JobSubmitted(**dict(_job_answers(service, [submission.job])[0]), is_new=submission.is_new)


@router.get("", summary="List the jobs", responses=problems(ProblemKind.INVALID))
def list_jobs(
    service: ServiceDep,
    key: Annotated[Key, READ],
    state: Annotated[
        list[JobState] | None, Query(max_length=6, description="Only jobs in one of these states.")
    ] = None,
    model: Annotated[str | None, Query(pattern=f"^{SHA256}$", description="Only jobs of this model.")] = None,
    target: Annotated[str | None, Query(pattern=f"^{SHA256}$", description="Only jobs for this target.")] = None,
    tag: Annotated[
        list[Tag] | None, Query(max_length=MOST_TAGS, description="Only jobs with this tag; given again, with all.")
    ] = None,
    owner: Annotated[
        str | None,
        Query(pattern=f"^({OWNER})$", description="Only jobs that the key of this id submitted; `me`: the one used."),
    ] = None,
    search: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="Only jobs with this in label, tags or notes, in any case."),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[JobShown]:
    """The jobs that meet all conditions, the newest first."""
    jobs = service.store.jobs.list(
        state,
        model_sha256=model,
        target_key=target,
        owner=key.owner if owner == "me" else owner,
        tags=tag or (),
        search=search,
        before_id=number_of(cursor),
        limit=limit + 1,
    )
    page, following = cut(jobs, limit, lambda job: job.id)
    return Page(items=_job_answers(service, page), next=following)


@router.get(
    "/{job_id:int}",
    summary="Look at a job",
    responses=problems(ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID),
    dependencies=[READ],
)
def get_job(service: ServiceDep, job_id: JobId) -> JobShown:
    """A job as it stands."""
    return _job_answer(service, job_id, lambda jobs: jobs.get(job_id))


@router.patch(
    "/{job_id:int}",
    summary="Change a job",
    responses=problems(ProblemKind.NO_SUCH_JOB, ProblemKind.FINISHED, ProblemKind.INVALID),
    dependencies=STEER,
)
def change_job(service: ServiceDep, job_id: JobId, change: JobChange) -> JobShown:
    """Change what people call a job: its label, tags and notes; and the priority of an unfinished one."""
    try:
        return _job_answer(service, job_id, lambda jobs: jobs.edit(job_id, change.edit))
    except ValueError as fault:  # too many with those that it has
        raise invalid("body", ["add_tags"], str(fault)) from None


@router.delete(
    "/{job_id:int}",
    status_code=204,
    summary="Delete a job",
    response_description="The job is gone.",
    responses=problems(ProblemKind.NO_SUCH_JOB, ProblemKind.UNFINISHED, ProblemKind.INVALID, ProblemKind.UNWRITABLE),
    dependencies=STEER,
)
def delete_job(service: ServiceDep, job_id: JobId) -> None:
    """Delete a finished job with its events and its report. What it has measured is kept, and found as before."""

    def delete() -> None:
        try:
            service.store.jobs.delete(job_id)
        except Conflict as error:
            raise Problem(ProblemKind.UNFINISHED, str(error)) from None

    of_job(delete, job_id)


STEERING: dict[int | str, dict[str, Any]] = problems(
    ProblemKind.NO_SUCH_JOB, ProblemKind.FINISHED, ProblemKind.INVALID, ProblemKind.UNWRITABLE
)


@router.post("/{job_id:int}:cancel", summary="Cancel a job", responses=STEERING, dependencies=STEER)
def cancel_job(service: ServiceDep, job_id: JobId) -> JobShown:
    """End a job. One that is being worked on ends after the candidate in hand; what was measured is kept."""
    return _job_answer(service, job_id, lambda jobs: jobs.cancel(job_id))


@router.post("/{job_id:int}:pause", summary="Pause a job", responses=STEERING, dependencies=STEER)
def pause_job(service: ServiceDep, job_id: JobId) -> JobShown:
    """Have a job wait until it is resumed. One that is being worked on pauses after the candidate in hand."""
    return _job_answer(service, job_id, lambda jobs: jobs.pause(job_id))


@router.post("/{job_id:int}:resume", summary="Resume a job", responses=STEERING, dependencies=STEER)
def resume_job(service: ServiceDep, job_id: JobId) -> JobShown:
    """Queue a paused job again."""
    return _job_answer(service, job_id, lambda jobs: jobs.resume(job_id))


@router.post(
    "/{job_id:int}:extend",
    summary="Extend a job",
    response_description="The job that goes on, which may be another one.",
    responses=problems(
        ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID, ProblemKind.UNWRITABLE, ProblemKind.KEY_REUSED, ProblemKind.QUOTA
    ),
    dependencies=[Depends(count_as_change)],
)
def extend_job(
    service: ServiceDep,
    job_id: JobId,
    extension: JobExtension,
    answer: Response,
    key: Annotated[Key, needs(KeyScope.JOBS_WRITE)],
    idempotency_key: IdempotencyKey = None,
) -> JobExtended:
    """Have a job go on for more minutes, trials, or both.

    The limits of an unfinished job grow, also while it is worked on; one that rests as its minutes were over is queued
    again. A finished job stays as it is: a new one of the same model, target, settings, label, tags and priority goes
    on from its trials, with these limits alone.
    """
    once = Idempotency(key.owner, idempotency_key or uuid.uuid4().hex, _fingerprint(extension, job_id))
    seconds = None if extension.minutes is None else 60 * extension.minutes
    with _check_idempotency():
        submission = _extended(service, job_id, once, extension.trials, seconds)
    answer.headers["Location"] = f"/v1/jobs/{submission.job.id}"
    return JobExtended(**dict(_job_answers(service, [submission.job])[0]), is_new=submission.is_new)


def _extended(
    service: Service, job_id: int, once: Idempotency, trials: int | None, seconds: float | None
) -> Submission:
    jobs = service.store.jobs
    try:
        return jobs.extend(
            job_id, once, trials=trials, seconds=seconds, most_unfinished=service.options.most_unfinished
        )
    except NotFound:
        raise no_such_job(job_id) from None
    except NoSuchBound as error:
        budget = error.budget
        name = "trials" if trials is not None and budget.trials is None else "minutes"
        minutes = None if budget.seconds == inf else budget.seconds / 60
        ends = ", ".join(limits(budget.trials, minutes, budget.until)) or "none, as it searches nothing"
        raise invalid("body", [name], f"job {error.job_id} has no limit of {name} to raise; it has: {ends}") from None


@router.get(
    "/{job_id:int}/trials",
    summary="List the trials of a job",
    responses=problems(ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID),
    dependencies=[READ],
)
def list_trials(service: ServiceDep, job_id: JobId, cursor: Cursor = None, limit: Limit = 50) -> Page[TrialShown]:
    """What a job has measured, in order of measuring."""
    after = number_of(cursor)
    trials = of_job(lambda: service.store.jobs.trials(job_id, -1 if after is None else after, limit + 1), job_id)
    page, following = cut(trials, limit, lambda trial: trial.ordinal)
    return Page(items=[TrialShown.of(trial) for trial in page], next=following)


def _job_answer(service: Service, job_id: int, ask: Callable[[Jobs], Job]) -> JobShown:
    """The job that `ask` returns. Raises Problem as `of_job`."""
    return _job_answers(service, [of_job(lambda: ask(service.store.jobs), job_id)])[0]


def _job_answers(service: Service, jobs: Sequence[Job]) -> list[JobShown]:
    ops = service.store.catalog.ops([task.task_key for job in jobs for task in job.spec.tasks])
    names = {target.key: str(target) for target in service.store.targets()}
    owners = service.store.keys.owner_names([job.owner for job in jobs if job.owner])
    return [JobShown.of(job, ops, names, owners) for job in mark_taken_back(service.store, jobs)]


def of_job(ask: Callable[[], Result], job_id: int) -> Result:
    """The result of a query or change of a job. Raises Problem where it is unknown, or finished."""
    try:
        return ask()
    except NotFound:
        raise no_such_job(job_id) from None
    except Conflict:
        raise Problem(ProblemKind.FINISHED, f"job {job_id} is over; to have it go on, extend it") from None


def no_such_job(job_id: int) -> Problem:
    """The problem of a number that no job has."""
    return Problem(ProblemKind.NO_SUCH_JOB, f"there is no job {job_id} here, or none any more")
