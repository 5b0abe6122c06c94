"""What the page that compares jobs says, and what may be asked of it. Read `ComparePage` first; `page` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from tunewright.db.bounds import LARGEST_ID
from tunewright.tuner.explain.comparison import TimeFinding
from tunewright.tuner.text import counted

from ...http.schemas.base import Answer
from ..html import url
from ..job.curves import Abscissa, Curve
from ..job.tasks import Latency
from ..job_line import JobLine
from ..page_query import PageQuery
from ..views import LongText, Text
from .rows import ComparedTask, TaskCell
from .sides import SideMoment

MOST_SIDES = 8
"""Jobs that are compared at once."""


class CompareTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template of that name."""

    OVERVIEW = "overview"
    TASKS = "tasks"
    SETTINGS = "settings"


class CompareWith(StrEnum):
    """What a single job is compared with."""

    PREVIOUS = "previous"  # the newest job before it of the same model that succeeded
    TODAY = "today"
    BEFORE = "before"


class CompareAsked(PageQuery):
    """What was asked to be compared."""

    places = frozenset({"start"})

    job: list[Annotated[int, Field(ge=1, le=LARGEST_ID)]] = Field(
        min_length=1, max_length=MOST_SIDES, description="Numbers of the jobs, repeated; in any order."
    )
    baseline: int | None = Field(
        default=None, ge=1, le=LARGEST_ID, description="The one of them that the others are compared with: the oldest."
    )
    against: CompareWith | None = Field(
        default=None,
        description="With a single job, what it is compared with: the `previous` job of the same model, what is known "
        "of its tasks `today`, or what was known `before` it timed stale tasks again.",
    )
    tab: CompareTab = Field(
        default=CompareTab.OVERVIEW, description="What the page shows; its data has all of it in any case."
    )
    x: Abscissa = Field(
        default=Abscissa.TRIALS, description="What the curves are drawn against: trials, or seconds of work on the job."
    )
    start: int = Field(default=0, ge=0, le=1_000_000, description="How many tasks to pass over.")


class RunChange(Answer):
    """What became of a run of the whole model since the baseline."""

    finding: TimeFinding = Field(
        description="`slower` or `faster` beyond both intervals, `equal` within them, or `unsure`: see `why`."
    )
    why: Text = Field(description="What keeps the two from being compared; empty where nothing does.")
    factor: float | None = Field(description="How many times as long it takes; null where one was not timed.")
    factor_interval: tuple[float, float] | None = Field(description="Within which that lies, by both intervals.")


class ComparedJob(Answer):
    """A job as it is compared."""

    job: JobLine
    moment: SideMoment = Field(
        description="What its figures are of: its `end`, what was known `before` it timed stale tasks again, or what "
        "is known `today`."
    )
    latency: Latency | None = Field(description="What a run of the whole model takes; null but at a job's end.")
    tasks_ms: float | None = Field(description="What its tasks take of a run, each by itself; null: not all are known.")
    tasks_noise: Text = Field(description="Why these times can't be relied on; empty where they can.")
    are_tasks_tried: bool = Field(description="Whether a trial is in them, which nothing has confirmed.")
    trials: int
    searched_s: float = Field(description="Seconds in which a process was at work on it: where its curve ends.")
    run: RunChange | None = Field(description="What became of a run since the baseline; null for that itself.")
    tasks_factor: float | None = Field(description="How many times as long as in the baseline all tasks take.")
    counts: dict[TimeFinding, int] = Field(description="How many tasks it found what of.")
    verdict: list[LongText] = Field(description="What became of it since the baseline, in sentences.")
    brief: Text = Field(description="The same in short; empty for the baseline.")
    curve: Curve = Field(description="How its model became faster; without steps but at a job's end.")

    @property
    def name(self) -> str:
        """The job at its moment, for people."""
        words = {SideMoment.END: "", SideMoment.BEFORE: " before it timed them", SideMoment.TODAY: " as known today"}
        return f"job {self.job.id}{words[self.moment]}"


class FactRow(Answer):
    """A setting, version or machine, as each job has it."""

    name: Text
    values: list[Text] = Field(description="Of each job; empty where it is not known.")
    differs: bool


class FlaggedTask(Answer):
    """A task that is slower or faster for certain."""

    key: Text
    op: Text
    side: int = Field(description="Number of the job among those compared, from 0 on: where it changed a run most.")
    also: list[int] = Field(description="The others of which the same was found.")
    before: TaskCell
    now: TaskCell


class ComparePage(Answer):
    """What differs between jobs, the first of which is the baseline."""

    asked: CompareAsked
    jobs: list[ComparedJob]
    flagged: list[FlaggedTask] = Field(description="First what is slower for certain, then what is faster.")
    flagged_count: int = Field(description="How many there are: at most eight are told here, all in `tasks`.")
    facts: list[FactRow] = Field(description="What differs in settings, versions and machines first.")
    tasks: list[ComparedTask] = Field(description="Tasks side by side: first those that became slower, then faster.")
    next_start: int | None = Field(description="`start` of the tasks behind these; null: there are none.")
    task_count: int
    why_alone: Text = Field(description="Why a single job is compared with nothing; empty where it is.")

    @property
    def is_finished(self) -> bool:
        """Whether nothing about it changes any more."""
        return all(one.job.is_finished and one.moment is not SideMoment.TODAY for one in self.jobs)

    @property
    def name(self) -> str:
        """What is compared, for people."""
        baseline, *others = [one.name for one in self.jobs]
        what = counted(len(others), "job") if len(others) > 1 else others[0] if others else baseline
        return f"{what[:1].upper()}{what[1:]}{f' since {baseline}' if others else ''}"

    def names(self, numbers: Sequence[int]) -> str:
        """Some of the jobs, for people."""
        names = [self.jobs[number].name for number in numbers]
        return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)

    def address(self, **changes: Any) -> str:
        """The address of the page that is asked for the same but for some changes."""
        return url("/compare", **self.asked.query(**changes))
