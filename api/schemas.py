"""Schemas: what goes over the wire, as pydantic models. Requests refuse fields that they don't know.

Times of schedules and models are milliseconds (`*_ms`), durations of jobs seconds (`*_s`), moments ISO 8601 in UTC.
Texts that users chose (labels, names in models) are passed on as they are: whoever shows them escapes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from math import inf
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tunewright.codegen.target import MAX_THREADS, Target
from tunewright.db.errors import Reason
from tunewright.db.exchange import LONGEST_REASON
from tunewright.db.fleet import Device, Tuner
from tunewright.db.jobs import DEFAULT_TRIALS, Event, EventKind, Job, JobState, Trial, Wish
from tunewright.db.uploads import Upload
from tunewright.search_space.measurement import Status
from tunewright.tuner.lookup import Basis

from .problems import Kind

SHA256 = "[0-9a-f]{64}"
LARGEST_ID = 2**53 - 1
"""JavaScript's largest whole number."""

EXAMPLE_MODEL = "3f0a5b1f" * 8
EXAMPLE_TARGET = "9b1c0d2e" * 8
EXAMPLE_TASK = "c4d7e8f9" * 8
EXAMPLE_MOMENT = "2026-11-20T09:30:00Z"

MOST_TASKS = 1024
"""Tasks of one lookup."""

Digest = Annotated[str, StringConstraints(pattern=f"^{SHA256}$")]
DigestInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="SHA-256 of the model's bytes, in hexadecimal.")]
JobId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Number of the job.")]
DimName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Answer(BaseModel):
    """What the service sends."""

    model_config = ConfigDict(frozen=True)


class Asked(BaseModel):
    """What the service is sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# Models


class ModelSent(Answer):
    """A model that the service has."""

    sha256: Digest = Field(examples=[EXAMPLE_MODEL])
    size_bytes: int = Field(examples=[48_213])
    label: str = Field(description="The name it was sent under, for people.", examples=["resnet50.onnx"])
    with_weights: bool = Field(description="False: the structure alone, without the numbers that were learned.")
    description: dict[str, Any] = Field(
        description="What reading it found: inputs, outputs, open dimensions, how often each op occurs."
    )
    created_at: datetime = Field(examples=[EXAMPLE_MOMENT])

    @staticmethod
    def of(upload: Upload) -> ModelSent:
        """An upload as the API shows it."""
        return ModelSent(
            sha256=upload.sha256,
            size_bytes=upload.size_bytes,
            label=upload.label,
            with_weights=upload.with_weights,
            description=upload.description,
            created_at=upload.created_at,
        )


# Jobs


class JobAsked(Asked):
    """What to tune, for which machines, and how long."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": EXAMPLE_MODEL, "trials": 400, "minutes": 30, "dims": {"batch": 1}}]}
    )

    model: Digest = Field(description="Digest of a model that was sent before.")
    target: Digest | None = Field(
        None,
        description="Key of the target to tune for. By default the one that tuner processes are at work for; where "
        "there is none, that of the first that comes.",
    )
    threads: int | None = Field(
        None, ge=1, le=MAX_THREADS, description="Threads that the kernels run on. By default all of the target's."
    )
    trials: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description=f"Most candidates to measure. By default no limit, or {DEFAULT_TRIALS} where neither `minutes` nor "
        "`until` is given.",
    )
    minutes: float | None = Field(
        None, gt=0, le=525_600, allow_inf_nan=False, description="Most minutes of searching. By default no limit."
    )
    until: float | None = Field(
        None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="Stop when another minute is expected to make the whole model faster by less than this share: 0.02 "
        "is 2%. By default no limit.",
    )
    label: str | None = Field(
        None,
        max_length=200,
        description="A name of the job for people, e.g. the file's. By default the one the model was first sent under.",
    )
    dims: dict[DimName, Annotated[int, Field(ge=1, le=2**31)]] = Field(
        default_factory=dict, max_length=64, description="Sizes of the model's open dimensions, by name."
    )
    seed: int = Field(0, ge=0, lt=2**32, description="The same seed tries candidates in the same order.")
    strategy: Literal["evolutionary", "random"] = Field("evolutionary", description="How candidates are chosen.")
    priority: int = Field(0, ge=-100, le=100, description="The higher goes first.")


class JobChange(Asked):
    """What may be changed of an unfinished job."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"priority": 10}]})

    priority: int = Field(ge=-100, le=100, description="The higher goes first.")


class TaskShown(Answer):
    """A task of a job."""

    key: Digest
    op: str = Field(description="What it is, for people.")
    occurrences: int = Field(description="How often it occurs in the model. Some of them may run as others instead.")


class JobShown(Answer):
    """A tuning job."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": 42,
                    "state": "running",
                    "model": EXAMPLE_MODEL,
                    "label": "resnet50.onnx",
                    "target": EXAMPLE_TARGET,
                    "target_name": "cpu:znver5:2x512",
                    "tasks": [{"key": EXAMPLE_TASK, "op": "Conv", "occurrences": 3}],
                    "trials": 400,
                    "minutes": 30.0,
                    "until": 0.02,
                    "settings": {"seed": 0, "strategy": "evolutionary"},
                    "priority": 0,
                    "spent_s": 61.5,
                    "attempts": 1,
                    "holder": "worker-3:4711",
                    "wish": None,
                    "progress": {"trials": 120, "speedup": 1.8, "left_s": 95.0, "remaining_gain": 0.031},
                    "result": None,
                    "error": "",
                    "created_at": EXAMPLE_MOMENT,
                    "updated_at": EXAMPLE_MOMENT,
                }
            ]
        }
    )

    id: int
    state: JobState
    model: str = Field(description="Digest of its model; empty where it has none.")
    label: str = Field(description="The model's name, for people.")
    target: str = Field(description="Key of its target; empty while the job waits for any device.")
    target_name: str = Field(description="For people; likewise.", examples=["cpu:znver5:2x512"])
    tasks: list[TaskShown] = Field(description="The distinct tasks of the model.")
    trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    minutes: float | None = Field(description="Most minutes of searching; null: no limit.")
    until: float | None = Field(
        description="The search stops when another minute is expected to make the whole model faster by less than this "
        "share; null: no limit."
    )
    settings: dict[str, Any] = Field(
        description="What else changes the search: seed, strategy, dims, and chains: which tasks may stand for others."
    )
    priority: int
    spent_s: float = Field(description="Seconds of searching so far.")
    attempts: int = Field(description="Tuner processes that took it up since the last new trial.")
    holder: str = Field(description="The tuner process at work on it; empty where there is none.")
    wish: Wish | None = Field(description="What the tuner process has been asked for and not yet done.")
    progress: dict[str, Any] | None = Field(
        description="The newest that a tuner process told: `stage`, `trials`, what a run takes by trials "
        "(`default_ms`, `tuned_ms`, and their ratio `speedup`), `left_s` until the search ends, `remaining_gain`: by "
        "which share the rest of the search is expected to make the model faster."
    )
    result: dict[str, Any] | None = Field(
        description="The report of a job that has ended. Its `outcome` says whether the model is `faster`, or its "
        "defaults were kept (`defaults_kept`)."
    )
    error: str = Field(description="Why a job failed, in one line.")
    created_at: datetime
    updated_at: datetime

    @staticmethod
    def of(job: Job, ops: Mapping[str, str], targets: Mapping[str, str]) -> JobShown:
        """A job as the API shows it; `ops` says what its tasks are, `targets` what targets are called."""
        return JobShown(
            id=job.id,
            state=job.state,
            model=job.spec.model_sha256,
            label=job.label,
            target=job.spec.target_key,
            target_name=targets.get(job.spec.target_key, ""),
            tasks=[
                TaskShown(key=task.task_key, op=ops.get(task.task_key, ""), occurrences=task.occurrences)
                for task in job.spec.tasks
            ],
            trials=job.budget.trials,
            minutes=None if job.budget.seconds == inf else job.budget.seconds / 60,
            until=job.budget.until,
            settings=job.spec.settings,
            priority=job.priority,
            spent_s=job.spent_s,
            attempts=job.attempts,
            holder=job.holder,
            wish=job.wish,
            progress=job.progress,
            result=job.result,
            error=job.error,
            created_at=job.created_at,
            updated_at=job.updated_at,
        )


class JobSubmitted(JobShown):
    """The job that a submission came to."""

    is_new: bool = Field(
        description="False: an unfinished job of the same model, target and settings was there, and keeps its own "
        "`trials`, `minutes`, `until` and `priority`. A repetition under an `Idempotency-Key` is told what was told at "
        "first.",
        examples=[True],
    )


class EventShown(Answer):
    """Something that happened to a job: the `data` of a server-sent event."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "job": 42,
                    "number": 7,
                    "kind": "improved",
                    "data": {"task_key": EXAMPLE_TASK, "op": "Conv", "best_ms": 0.81, "default_ms": 1.9, "trial": 120},
                    "created_at": EXAMPLE_MOMENT,
                }
            ]
        }
    )

    job: int
    number: int = Field(description="1, 2, 3, ... without a gap: the event's `id`.")
    kind: EventKind = Field(description="The event's `event`.")
    data: dict[str, Any] = Field(description="What there is to say about an event of this kind.")
    created_at: datetime

    @staticmethod
    def of(event: Event) -> EventShown:
        """An event as the API shows it."""
        return EventShown(
            job=event.job_id, number=event.number, kind=event.kind, data=event.data, created_at=event.created_at
        )


class ChangeShown(Answer):
    """Something changed: the `data` of a server-sent event."""

    number: int = Field(description="Grows with each change that this process of the service heard of.", examples=[7])


class TrialShown(Answer):
    """A candidate that was measured. Failures are trials too."""

    ordinal: int = Field(description="0, 1, 2, ... within the job.")
    task: Digest
    target: Digest
    schedule: dict[str, Any] = Field(
        description="What was tried, as a compiler replays it.",
        examples=[{"sketch": "tiled", "version": 1, "values": {"tile_m": 4}}],
    )
    status: Status
    median_ms: float | None = Field(description="Time of one run; null unless `ok`.")
    interval_ms: tuple[float, float] | None = Field(description="95% interval of the median.")
    samples_ms: list[float]
    incumbent_ms: float | None = Field(
        description="Noted of what was timed in turn: the times are as if it took that. May be null."
    )
    warm_ms: float | None = Field(
        description="Median with all operands in the caches; the others are with constants cold. May be null."
    )
    max_rel_err: float | None = Field(description="Largest error against the reference; null where there is no number.")
    error: str = Field(description="What went wrong, in one line; empty for `ok`.")
    build_ms: float
    provenance: dict[str, str] = Field(description="Machine, compiler and library versions.")
    created_at: datetime

    @staticmethod
    def of(trial: Trial) -> TrialShown:
        """A trial as the API shows it."""
        record, measurement = trial.record, trial.record.measurement
        low, high = measurement.low_s, measurement.high_s
        error = measurement.max_rel_err
        return TrialShown(
            ordinal=trial.ordinal,
            task=record.task_key,
            target=record.target_key,
            schedule=record.schedule.to_json(),
            status=measurement.status,
            median_ms=None if measurement.median_s is None else 1e3 * measurement.median_s,
            interval_ms=None if low is None or high is None else (1e3 * low, 1e3 * high),
            samples_ms=[1e3 * sample for sample in measurement.samples_s],
            incumbent_ms=None if measurement.incumbent_s is None else 1e3 * measurement.incumbent_s,
            warm_ms=None if measurement.warm_s is None else 1e3 * measurement.warm_s,
            max_rel_err=None if error is None or error == inf else error,
            error=measurement.error,
            build_ms=1e3 * measurement.build_s,
            provenance=measurement.provenance,
            created_at=trial.created_at,
        )


# Lookups and records


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
    is_model: bool = Field(
        False, description="Whether these are all tasks of one model: its last job may have kept the defaults."
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
    confirmed: bool | None = Field(None, description="Whether the schedule won a comparison in fresh processes.")
    expected_ms: float | None = None
    interval_ms: tuple[float, float] | None = Field(None, description="95% interval of the median measured.")
    schedule: ScheduleShown | None = Field(
        None, description="With the match `default` it may be null: there was no time to make it. Use your own default."
    )
    source: SourceShown | None = None
    provenance: dict[str, str] | None = Field(None, description="Machine, compiler and versions of the measurement.")


class KeptShown(Answer):
    """A task of a model that keeps its defaults."""

    key: Digest
    chosen: int = Field(description="How often the model runs it.")
    default_ms: float | None = Field(description="What its default takes, timed in turn with the best.")
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of that.")
    default_schedule: str = Field(description="Key of that default: another version may have another one.")


class LookupAnswer(Answer):
    """Answers in the order of the keys."""

    target: Digest
    items: list[LookupItem]
    kept: list[KeptShown] | None = Field(
        None,
        description="Of the model, where its last job found nothing that makes it faster as a whole: all its tasks. "
        "It runs them on their defaults, whatever is best for them elsewhere.",
    )
    job: int | None = Field(None, description="With `tune=background`: the job that was queued for the misses.")


class ImportedShown(Answer):
    """What an import did."""

    added: int = Field(description="Records that are new.")
    known: int = Field(description="Records that were here already, and stayed as they were.")


class LiftAsked(Asked):
    """A schedule of a task that was taken back."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    schedule: Digest = Field(description="Its key.")


class VoidAsked(Asked):
    """What is taken back, and why."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    schedule: Digest | None = Field(None, description="Key of the schedule; null: of the best known one.")
    reason: str = Field(min_length=1, max_length=LONGEST_REASON, description="For people.", examples=["wrong results"])


class VoidShown(Answer):
    """What was taken back, or counts again."""

    task: Digest
    target: Digest
    schedule: Digest
    records: int = Field(description="Trials and confirmations of that schedule that this concerns.")


# Fleet


class TargetShown(Answer):
    """A kind of machine."""

    key: Digest
    name: str = Field(description="For people.", examples=["cpu:znver5:2x512"])
    target: dict[str, Any] = Field(description="The hardware numbers whose digest is the key.")

    @staticmethod
    def of(target: Target) -> TargetShown:
        """A target as the API shows it."""
        return TargetShown(key=target.key, name=str(target), target=target.to_json())


class DeviceShown(Answer):
    """A processor or GPU that candidates are timed on."""

    name: str = Field(examples=["worker-3/cpu"])
    target: Digest
    quarantined_until: datetime | None = Field(description="It failed too often and rests until then.")
    reason: str

    @staticmethod
    def of(device: Device) -> DeviceShown:
        """A device as the API shows it."""
        return DeviceShown(
            name=device.name,
            target=device.target_key,
            quarantined_until=device.quarantined_until,
            reason=device.reason,
        )


class WorkerShown(Answer):
    """A tuner process."""

    id: str
    host: str
    pid: int
    version: str = Field(description="Of Tunewright.")
    pool: str = Field(description="Where it measures: `local` or `ray`.")
    started_at: datetime
    seen_at: datetime
    devices: list[DeviceShown]
    job: int | None = Field(description="The job it is at work on.")
    draining: bool = Field(description="It was asked to end, and takes no more jobs.")

    @staticmethod
    def of(tuner: Tuner) -> WorkerShown:
        """A tuner process as the API shows it."""
        return WorkerShown(
            id=tuner.id,
            host=tuner.host,
            pid=tuner.pid,
            version=tuner.version,
            pool=tuner.pool,
            started_at=tuner.started_at,
            seen_at=tuner.seen_at,
            devices=[DeviceShown.of(device) for device in tuner.devices],
            job=tuner.job_id,
            draining=tuner.draining,
        )


# Health


class Alive(Answer):
    """The process answers."""

    status: Literal["ok", "late"]
    loop_lag_ms: float = Field(description="How late the event loop was when it was last looked at.")


class Ready(Answer):
    """Whether requests should be sent to this process, and what there is to tune on."""

    status: Literal["ready", "ready, no devices", "draining", "database unavailable", "other schema", Reason]
    tuners: int | None = Field(default=None, description="Tuner processes heard of; null where that is not known.")
    devices: int | None = Field(
        default=None, description="Devices that can be tuned on now. Without one, jobs wait, and lookups are answered."
    )


# Problems


class Fault(Answer):
    """One fault of a request."""

    place: Literal["body", "query", "path", "header", "cookie"] = Field(alias="in")
    pointer: str = Field(description="JSON pointer to it.", examples=["#/trials"])
    detail: str


class ProblemDocument(Answer):
    """An RFC 9457 problem document: what every request gets that fails."""

    model_config = ConfigDict(title="Problem")

    type: Literal[tuple(kind.type for kind in Kind)] = Field(  # type: ignore[valid-type]
        description="What kind of problem this is: stable, and a page of the service that explains it."
    )
    title: str
    status: int
    detail: str = Field(description="What is wrong with this request, for people.")
    instance: str = Field(description="The path of the request.")
    request_id: str = Field(description="Names the request in the service's log; also the header X-Request-ID.")
    errors: list[Fault] | None = Field(None, description="Where the faults are, of an invalid request.")
