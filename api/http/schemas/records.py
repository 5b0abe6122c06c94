"""Schemas of lookups and of records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from tunewright.db.exchange import LONGEST_REASON, check_reason
from tunewright.tuner.lookup.result import Basis

from ...client.wire import KEYS_AT_ONCE, MOST_OTHERS
from .base import EXAMPLE_TARGET, EXAMPLE_TASK, FEW_HAVE_NONE, NOT_BLANK, Answer, Digest, RequestModel
from .task import TaskData


class Age(StrEnum):
    """How old a record is at most."""

    ANY = ""
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"

    @property
    def since(self) -> datetime | None:
        """When the oldest of them was made; None where any will do."""
        return datetime.now(UTC) - timedelta(hours=HOURS[self]) if self in HOURS else None


HOURS = {Age.HOUR: 1, Age.DAY: 24, Age.WEEK: 7 * 24, Age.MONTH: 30 * 24, Age.YEAR: 365 * 24}


class LookupAsked(RequestModel):
    """Tasks to look up, and the machine that they are to run on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": EXAMPLE_TARGET, "tasks": [EXAMPLE_TASK]}]})

    target: Digest | dict[str, Any] = Field(
        description="Key of a target, or the target itself: then similar targets are found even if it is new here."
    )
    tasks: list[Digest | TaskData] = Field(
        min_length=1,
        max_length=KEYS_AT_ONCE,
        description="Keys of tasks, or tasks themselves, under names of their own: answers tell their keys.",
    )
    definitions: dict[Digest, TaskData] = Field(
        default_factory=dict,
        max_length=KEYS_AT_ONCE,
        description="Tasks by key, for those that were `unknown` when asked for before.",
    )
    is_model: bool = Field(
        False,
        description="Whether these are all tasks of one model: its last job may have kept the defaults, or taken "
        "a vendor's runtime.",
    )
    others: list[Digest] = Field(
        default_factory=list,
        max_length=MOST_OTHERS,
        description="With `is_model`: keys of its further tasks, where it has more than fit in `tasks`. Nothing "
        "else is told of these.",
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
    interval_ms: tuple[float, float] | None = Field(None, description=FEW_HAVE_NONE)
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
    noise: str = Field("", description="Why the machine was too busy to rely on that; empty where it was not.")
    confirmed: bool = Field(True, description="Whether that is of a comparison; else it is of a trial.")


class VendorShown(Answer):
    """A run of a model in a vendor's runtime, timed in turn with one on our kernels."""

    runtime: str = Field(description="For people.", examples=["ONNX Runtime"])
    version: str = Field(description="Of the runtime; empty where it is not there.", examples=["1.31.1"])
    time_ms: float | None = Field(description="What a run takes in it; null: it was not timed.")
    interval_ms: tuple[float, float] | None = Field(description="95% interval of that.")
    own_ms: float | None = Field(description="What a run takes on our kernels.")
    own_interval_ms: tuple[float, float] | None
    speedup_interval: tuple[float, float] | None = Field(
        description="How many times as fast as on our kernels it is in the runtime: the 95% interval."
    )
    fault: str = Field(description="Why it is not taken whatever it takes; empty where nothing is wrong.")
    noise: str = Field(description="Why the machine was too busy to rely on the times; empty where it was not.")


class LookupAnswer(Answer):
    """Answers in the order of the keys."""

    target: Digest
    items: list[LookupItem]
    names: list[dict[str, str] | None] | None = Field(
        None,
        description="Where tasks came without a key: of each of these, the name that a tensor came with -> that which "
        "it has in everything that is told of the task, such as the arguments of its code.",
    )
    kept: list[KeptShown] | None = Field(
        None,
        description="Of the model, where its last job found nothing that makes it faster as a whole: its tasks, but "
        "those whose default was taken back. It runs these on their defaults, whatever is best for them elsewhere.",
    )
    vendor: VendorShown | None = Field(
        None,
        description="Of the model, where its last job found a vendor's runtime faster than our kernels: that runs it "
        "wherever it is installed in this version line or a later one.",
    )
    job: int | None = Field(None, description="With `tune=background`: the job that was queued for the misses.")


class ImportedShown(Answer):
    """What an import did."""

    added: int = Field(description="Records that are new.")
    known: int = Field(description="Records that were here already, and stayed as they were.")


class LiftAsked(RequestModel):
    """A schedule of a task that was taken back."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    schedule: Digest = Field(description="Its key.")


class VoidAsked(RequestModel):
    """What is taken back, and why."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    schedule: Digest | None = Field(None, description="Key of the schedule; null: of the best known one.")
    reason: Annotated[str, AfterValidator(partial(check_reason, "it"))] = Field(
        pattern=NOT_BLANK,
        max_length=LONGEST_REASON,
        description="For people: one line of printable characters.",
        examples=["wrong results"],
    )


class VoidShown(Answer):
    """What was taken back, or counts again."""

    task: Digest
    target: Digest
    schedule: Digest
    records: int = Field(description="Trials and confirmations of that schedule that this concerns.")
