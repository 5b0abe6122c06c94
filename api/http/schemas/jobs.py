"""Schemas of tuning jobs and of their trials."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from math import inf
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from tunewright.codegen.target import MAX_THREADS
from tunewright.db.job import (
    DEFAULT_TRIALS,
    LONGEST_NOTES,
    LONGEST_TAG,
    MOST_TAGS,
    TAG,
    Job,
    JobEdit,
    JobState,
    Trial,
    Wish,
)
from tunewright.graph.binding import BOUND_MARK, plain_names
from tunewright.graph.numerics import Precision
from tunewright.search_space.measurement import Status
from tunewright.tuner.arguments import (
    LEAST_MINUTES,
    LEAST_PRIORITY,
    MOST_MINUTES,
    MOST_PRIORITY,
    MOST_RETIMED,
    MOST_SEED,
    MOST_SIZE,
    MOST_TRIALS,
    RETIMED,
    StrategyName,
)
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import GainBasis, ModelGain, standing
from tunewright.tuner.search.report import JobOutcome
from tunewright.tuner.text import ONNX_RUNTIME, Interval, counted

from .base import (
    AS_WHOLE,
    EXAMPLE_MODEL,
    EXAMPLE_MOMENT,
    EXAMPLE_TARGET,
    EXAMPLE_TASK,
    FEW_HAVE_NONE,
    Answer,
    Digest,
    RequestModel,
    Whole,
)

DimName = Annotated[str, StringConstraints(min_length=1, max_length=200)]

LONGEST_LABEL = 200

Tag = Annotated[str, StringConstraints(max_length=LONGEST_TAG, pattern=f"^{TAG}$")]
"""A word to find a job by."""


class JobAsked(RequestModel):
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
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS), AS_WHOLE] | None = Field(
        None, description="Threads that the kernels run on. By default all of the target's."
    )
    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS), AS_WHOLE] | None = Field(
        None,
        description=f"Most candidates to measure. By default no limit, or {DEFAULT_TRIALS} where neither `minutes` nor "
        "`until` is given.",
    )
    minutes: float | None = Field(
        None,
        ge=LEAST_MINUTES,
        le=MOST_MINUTES,
        allow_inf_nan=False,
        description="Most minutes of searching. By default no limit.",
    )
    until: float | None = Field(
        None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="Stop when another minute is expected to make the model's tasks, all together, faster by less than "
        "this share: 0.02 is 2%. By default no limit.",
    )
    label: str | None = Field(
        None,
        max_length=LONGEST_LABEL,
        description="A name of the job for people, e.g. the file's. By default the one the model was first sent under.",
    )
    tags: list[Tag] = Field(
        default_factory=list, max_length=MOST_TAGS, description="Words to find the job by, such as `nightly`."
    )
    notes: str = Field("", max_length=LONGEST_NOTES, description="What else people are to know of the job.")
    dims: dict[DimName, Annotated[int, Field(ge=1, le=MOST_SIZE), AS_WHOLE]] = Field(
        default_factory=dict, max_length=64, description="Sizes of the model's open dimensions, by name."
    )
    bind: dict[DimName, Annotated[int, Field(ge=-MOST_SIZE, le=MOST_SIZE), AS_WHOLE]] = Field(
        default_factory=dict,
        max_length=64,
        description="Values of inputs of one number, by name: they are constants of the model that is tuned.",
    )
    seed: Whole = Field(0, ge=0, le=MOST_SEED, description="The same seed tries candidates in the same order.")
    strategy: StrategyName = Field("evolutionary", description="How candidates are chosen.")
    vendor: bool = Field(
        False,
        description=f"Whether the whole model is timed in {ONNX_RUNTIME} too, which is taken for it where it is "
        "faster. Only with the weights, and on processors.",
    )
    precision: Precision = Field(
        Precision.AS_GIVEN,
        strict=False,  # a text will do
        description="What products may be computed in: two of three round more than the model says. Sessions of the "
        "same precision use what is found.",
    )
    priority: Whole = Field(0, ge=LEAST_PRIORITY, le=MOST_PRIORITY, description="The higher goes first.")
    retime: Annotated[int, Field(ge=1, le=MOST_RETIMED), AS_WHOLE] | None = Field(
        None,
        description="Search nothing, but time the fastest so many schedules of each task again that other versions of "
        "compiler, driver or Tunewright had tuned, beside its default, and then the whole model. Without `trials`, "
        "`minutes` and `until`.",
    )

    @property
    def bindings(self) -> dict[str, int]:
        """The sizes of dimensions and the values of inputs as one mapping, as models are read with."""
        return self.dims | {f"{name}{BOUND_MARK}": value for name, value in self.bind.items()}


class JobChange(RequestModel):
    """What is to be changed of a job: what is left out stays as it is."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"priority": 10, "add_tags": ["nightly"], "notes": "for the release"}]}
    )

    priority: Annotated[int, Field(ge=LEAST_PRIORITY, le=MOST_PRIORITY), AS_WHOLE] | None = Field(
        None, description="The higher goes first. Only of an unfinished job; all else of finished ones too."
    )
    label: str | None = Field(None, max_length=LONGEST_LABEL, description="The name of the job for people.")
    tags: list[Tag] | None = Field(None, max_length=MOST_TAGS, description="All of its tags, in place of those it has.")
    add_tags: list[Tag] = Field(default_factory=list, max_length=MOST_TAGS, description="Tags that it is to have too.")
    remove_tags: list[Tag] = Field(
        default_factory=list, max_length=MOST_TAGS, description="Tags that it is to have no more."
    )
    notes: str | None = Field(None, max_length=LONGEST_NOTES, description="What else people are to know of the job.")

    @property
    def edit(self) -> JobEdit:
        """The same for the database."""
        return JobEdit(
            self.priority,
            self.label,
            None if self.tags is None else tuple(self.tags),
            tuple(self.add_tags),
            tuple(self.remove_tags),
            self.notes,
        )


class JobExtension(RequestModel):
    """How much longer a job is to go on: for one of these at least."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"minutes": 10}]})

    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS), AS_WHOLE] | None = Field(
        None, description="Candidates to measure more than its limit of them."
    )
    minutes: float | None = Field(
        None,
        ge=LEAST_MINUTES,
        le=MOST_MINUTES,
        allow_inf_nan=False,
        description="Minutes of searching more than its limit of them.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trials is None and self.minutes is None:
            raise ValueError("must have `trials` or `minutes`: how much longer the job is to go on")
        return self


class JobOwner(Answer):
    """The API key that submitted a job."""

    id: str
    name: str = Field(description="For people; empty where the key is gone.")


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
                    "tags": ["nightly"],
                    "notes": "for the release",
                    "owner": {"id": "k3j5h7g9f1d2", "name": "ci"},
                    "target": EXAMPLE_TARGET,
                    "target_name": "cpu:znver5:2x512",
                    "tasks": [{"key": EXAMPLE_TASK, "op": "Conv", "occurrences": 3}],
                    "trials": 400,
                    "minutes": 30.0,
                    "until": 0.02,
                    "settings": {"seed": 0, "strategy": "evolutionary", "dims": {"batch": 4}},
                    "dims": {"batch": 4},
                    "precision": "as given",
                    "priority": 0,
                    "spent_s": 61.5,
                    "before_s": 0.0,
                    "attempts": 1,
                    "holder": "worker-3:4711",
                    "wish": None,
                    "waits_for": "",
                    "progress": {"trials": 120, "speedup": 1.8, "left_s": 95.0, "remaining_gain": 0.031},
                    "result": None,
                    "outcome": None,
                    "speedup": 1.8,
                    "vendor": "",
                    "speedup_of": "trials",
                    "speedup_interval": None,
                    "noise": "",
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
    tags: list[str] = Field(description="Words to find it by, in order.")
    notes: str = Field(description="What else people are to know of it.")
    owner: JobOwner | None = Field(description="The key that submitted it; null for a local command.")
    target: str = Field(description="Key of its target; empty while the job waits for any device.")
    target_name: str = Field(description="For people; likewise.", examples=["cpu:znver5:2x512"])
    tasks: list[TaskShown] = Field(description="The distinct tasks of the model.")
    trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    minutes: float | None = Field(description="Most minutes of searching; null: no limit.")
    until: float | None = Field(
        description="The search stops when another minute is expected to make the model's tasks, all together, faster "
        "by less than this share; null: no limit."
    )
    settings: dict[str, Any] = Field(
        description="What else changes the search: seed, strategy, dims, vendor, precision, retime (how many "
        "schedules of stale tasks it times again, instead of searching), and chains: which tasks may stand for others."
    )
    dims: dict[str, int] = Field(description="Sizes of the model's open dimensions, and values of inputs, by name.")
    precision: str = Field(description="What products are computed in, see there.", examples=["as given"])
    priority: int
    spent_s: float = Field(description="Seconds of searching so far.")
    before_s: float = Field(
        description="How many of them came before its `minutes` count: a command spent them, before the job was left "
        "to others or the command was given again."
    )
    attempts: int = Field(description="Tuner processes that took it up since the last new trial.")
    holder: str = Field(description="The tuner process at work on it; empty where there is none.")
    wish: Wish | None = Field(description="What the tuner process has been asked for and not yet done.")
    waits_for: str = Field(
        description="What a queued job without a target waits for, in words: any device, or one with as many `threads` "
        "as were asked for. It waits until one comes, be it for ever. Empty for all others."
    )
    progress: dict[str, Any] | None = Field(
        description="The newest that a tuner process told: `stage` (`done` once the job is over), `trials` and "
        "`spent_s` (all that are stored), what its tasks take of a run (`default_ms`, `tuned_ms`, and their ratio "
        "`speedup`), `left_s` until the search ends, `remaining_gain`: by which share the rest of the search is "
        "expected to make its tasks faster, all together."
    )
    result: dict[str, Any] | None = Field(description="The report of a job that has succeeded.")
    outcome: JobOutcome | None = Field(
        description="What came of it for the model as a whole: it is `faster`, its defaults were kept as nothing found "
        "makes it faster beyond the interval (`defaults_kept`), it looked faster on a machine too busy to tell "
        "(`too_noisy`), a vendor's runtime is faster than our kernels and taken (`vendor`), or it could not be timed "
        "(`untimed`). Null: not yet."
    )
    speedup: float | None = Field(
        description="How many times as fast as by default a run is on our kernels, as far as it is known."
    )
    vendor: str = Field(
        description="What a run takes in a vendor's runtime beside our kernels, and what came of that, in words; empty "
        "where the job did not ask for it."
    )
    speedup_of: GainBasis = Field(
        description="What that was measured of: the whole `model` or its `tasks`, each beside its default in fresh "
        "processes, or `trials`, which nothing has confirmed."
    )
    speedup_interval: Interval | None = Field(description="95% interval of that; null where it is not known.")
    noise: str = Field(description="Why the machine was too busy to rely on the times; empty where it was not.")
    error: str = Field(description="Why a job failed, in one line.")
    created_at: datetime
    updated_at: datetime

    @staticmethod
    def of(job: Job, ops: Mapping[str, str], targets: Mapping[str, str], owners: Mapping[str, str]) -> JobShown:
        """A job as the API shows it.

        `ops` says what its tasks are, `targets` and `owners` what targets and keys are called.
        """
        gain = ModelGain.of_job(job.progress, job.result)
        tasks = [
            TaskShown(key=task.task_key, op=ops.get(task.task_key, ""), occurrences=task.occurrences)
            for task in job.spec.tasks
        ]
        return JobShown.show(
            job,
            model=job.spec.model_sha256,
            owner=owner_of(job, owners),
            target=job.spec.target_key,
            target_name=targets.get(job.spec.target_key, ""),
            tasks=tasks,
            trials=job.budget.trials,
            minutes=None if job.budget.seconds == inf else job.budget.seconds / 60,
            until=job.budget.until,
            settings=job.spec.settings,
            dims=dims_of(job),
            precision=job.spec.precision,
            waits_for=waits_for(job),
            before_s=job.budget.before_s,
            progress=standing(job),
            outcome=gain.outcome,
            speedup=gain.speedup,
            vendor=gain.vendor_text,
            speedup_of=gain.of,
            speedup_interval=gain.speedup_interval,
            noise=gain.noise,
        )


def owner_of(job: Job, names: Mapping[str, str]) -> JobOwner | None:
    """The owner of a job, by these names of keys; None for a local command."""
    return JobOwner(id=job.owner, name=names.get(job.owner, "")) if job.owner else None


def dims_of(job: Job) -> dict[str, int]:
    """The sizes of the model's open dimensions and the values of inputs that a job is for, by name."""
    dims = job.spec.settings.get("dims")
    bound = dims if isinstance(dims, dict) else {}
    return plain_names({str(name): int(values.number(bound, name) or 0) for name in bound})


def waits_for(job: Job) -> str:
    """The kind of device that a queued job without a target waits for, in words; empty for other jobs."""
    if job.state is not JobState.QUEUED or job.spec.target_key:
        return ""
    threads = job.spec.least_threads
    return "a device" if threads is None else f"a device with {counted(threads, 'thread')} or more"


class JobSubmitted(JobShown):
    """The job that a submission came to."""

    is_new: bool = Field(
        description="False: an unfinished job of the same model, target and settings was there, and keeps its own "
        "`trials`, `minutes`, `until` and `priority`. A repetition under an `Idempotency-Key` is told what was told at "
        "first.",
        examples=[True],
    )


class JobExtended(JobShown):
    """The job that goes on for longer."""

    is_new: bool = Field(
        description="True: the one that was to be extended is finished, and this one goes on from its trials. False: "
        "it is that one, or another unfinished job of the same model, target and settings.",
        examples=[False],
    )


class RetimingAsked(RequestModel):
    """What is to be timed again, and how much of it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"retime": RETIMED, "priority": -10}]})

    retime: Whole = Field(
        RETIMED, ge=1, le=MOST_RETIMED, description="Schedules of each task to time, besides its default."
    )
    target: Digest | None = Field(
        None, description="Key of a target. By default all those that a device at work can time for."
    )
    priority: Whole = Field(0, ge=LEAST_PRIORITY, le=MOST_PRIORITY, description="The higher goes first.")


class RetimingShown(Answer):
    """What a request to time again came to."""

    jobs: list[JobSubmitted] = Field(description="The jobs that were made, a hundred at most.")
    stale: int = Field(
        description="Tasks that other versions had tuned: on the target, or on all, also those of no device at work."
    )
    left: int = Field(description="Those of them that no unfinished job times again yet.")


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
    interval_ms: tuple[float, float] | None = Field(description=FEW_HAVE_NONE)
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
        error = measurement.max_rel_err
        return TrialShown.show(
            measurement,
            ordinal=trial.ordinal,
            task=record.task_key,
            target=record.target_key,
            schedule=record.schedule.to_json(),
            samples_ms=[1e3 * sample for sample in measurement.samples_s],
            max_rel_err=None if error is None or error == inf else error,
            created_at=trial.created_at,
        )
