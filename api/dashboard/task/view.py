"""What the page of a task says, and what may be asked of it. Read `TaskPage` first; `page` makes it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tunewright.db.bounds import LARGEST_ID
from tunewright.db.job import UNFINISHED, JobState
from tunewright.search_space.measurement import Status
from tunewright.tuner.text import is_certain, sized_name

from ...http.paging import Cursor
from ...http.schemas.base import Answer, Digest
from ..page_query import PageQuery
from ..views import TargetName, Text
from .analysis import Analysis, CeilingsShown, Nearness
from .job_best import JobBest
from .schedules import (
    FormShown,
    KnobShown,
    TaskHead,
    TextPart,
    ToleranceShown,
    TrialBrief,
)


class TrialSort(StrEnum):
    """What the table of trials is sorted by. Those that failed have no time, and come last by it."""

    TIME = "time"
    CREATED = "created"


class TaskTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template of that name."""

    OVERVIEW = "overview"
    LOOPS = "loops"
    ROOFLINE = "roofline"
    TRIALS = "trials"
    ABOUT = "about"


class TaskQuery(Answer):
    """What of a task was asked for."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    job: int | None = Field(default=None, ge=1, le=LARGEST_ID, description="Only trials of this job are in the table.")
    status: tuple[Status, ...] = Field(
        default=(), max_length=len(Status), description="Only trials that ended in one of these ways."
    )
    sort: TrialSort = Field(
        default=TrialSort.TIME, description="What the table is sorted by; trials that failed come last by time."
    )
    desc: bool = Field(default=False, description="Whether it begins with the slowest, or with the newest.")
    cursor: Cursor = None
    tab: TaskTab | None = Field(
        default=None,
        description="What the page shows, whose data has all of them; null: the `trials` where something is asked of "
        "their table, else the `overview`.",
    )

    @property
    def open_tab(self) -> TaskTab:
        """What the page shows."""
        is_of_trials = self.status or self.desc or self.cursor or self.sort is not TrialSort.TIME
        return self.tab or (TaskTab.TRIALS if is_of_trials else TaskTab.OVERVIEW)


class TaskAsked(TaskQuery, PageQuery):
    """What a page of a task was asked for."""

    in_path = frozenset({"task"})

    task: Digest


class JobName(Answer):
    """A job, in short."""

    id: int
    label: Text
    dims: dict[Text, int] = Field(description="Sizes of the model's open dimensions, and values of inputs, by name.")
    state: JobState
    newest: int = Field(description="Number of its newest event.")

    @property
    def name(self) -> str:
        """Its model for people, with the sizes that it is for."""
        return sized_name(self.label, self.dims)

    @property
    def is_finished(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.state not in UNFINISHED


class Gain(Answer):
    """How much faster the best schedule is than the default."""

    default_ms: float
    best_ms: float
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    best_interval_ms: tuple[float, float] | None
    interval: tuple[float, float] | None = Field(
        description="Within which their ratio lies, by both intervals; null: not known, or nothing confirmed it."
    )
    is_confirmed: bool = Field(
        description="Whether both were timed in turn, in fresh processes. Else the best's time is of a trial."
    )
    is_default_confirmed: bool = Field(description="Whether the time of the default is of such a comparison, too.")
    noise: Text = Field(description="Why the machine was too busy to rely on their ratio; empty where it was not.")
    default_noise: Text = Field(description="The same of the default's time. Those timed in turn share it.")

    @property
    def factor(self) -> float:
        """The ratio of the times."""
        return self.default_ms / self.best_ms

    @property
    def is_open(self) -> bool:
        """Whether they were compared and may be equal."""
        return self.is_confirmed and not is_certain(self.interval)


class TaskPage(Answer):
    """A task on a target."""

    asked: TaskAsked
    task: TaskHead
    target: TargetName
    job: JobName | None = Field(
        description="The job whose trials the table shows, and whose peak shares are of if it measured one; null: all "
        "trials, and the highest peak that any job measured."
    )
    job_best: JobBest | None = Field(
        description="What that job found, as its own page tells; null: none was asked for, or it has no such task."
    )
    best: TrialBrief | None = Field(
        description="What a session would use, with the time that it was chosen for; null: nothing is known to work."
    )
    best_trial: TrialBrief | None = Field(description="The trial of that; null: there is none here.")
    default: TrialBrief | None = Field(description="The default schedule; null: it was not measured here.")
    is_default_best: bool
    gain: Gain | None = Field(description="Null where the two were not timed here, each on the same kind of machine.")
    tolerances: list[ToleranceShown] = Field(description="Of each output.")
    knobs: list[KnobShown] = Field(description="Of the best schedule, beside the default's.")
    form: FormShown | None = Field(description="The best schedule in words and as loops; null where there is none.")
    default_form: FormShown | None = Field(description="The same of the default, where that is another one.")
    parts: list[TextPart] = Field(description="What schedules of it can be read as.")
    ceilings: CeilingsShown
    nearness: Nearness | None = Field(description="Of the best; null where that was not timed here.")
    analysis: Analysis | None = Field(
        description="What a sample of the trials says; null while that is being found out."
    )
    trials: int = Field(description="Trials of the task on the target that were made here, of all jobs.")
    imported: int = Field(description="The others, which were imported.")
    counts: dict[Status, int] = Field(description="How those ended that were not narrowed down to `status`.")
    shown: int = Field(description="Trials that the table has on all its pages.")
    rows: list[TrialBrief]
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")

    @property
    def usable_rows(self) -> list[TrialBrief]:
        """The rows whose schedules this version has."""
        return [row for row in self.rows if row.is_usable]

    @property
    def unusable_rows(self) -> list[TrialBrief]:
        """The other rows, which are never used, however fast they were."""
        return [row for row in self.rows if not row.is_usable]

    @property
    def word_differences(self) -> tuple[list[str], list[str]]:
        """Sentences about the best schedule that differ from the default, and the other way round."""
        words = self.form.words if self.form else []
        default_words = self.default_form.words if self.default_form else []
        return [sentence for sentence in words if sentence not in default_words], [
            sentence for sentence in default_words if sentence not in words
        ]

    @property
    def changed_knobs(self) -> list[KnobShown]:
        """The knobs that differ from the default's."""
        return [knob for knob in self.knobs if knob.default_value not in (None, knob.value)]
