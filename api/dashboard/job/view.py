"""What the page of a job says, and what may be asked of it. Read `JobPage` first; `page` makes it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from math import inf

from pydantic import Field

from tunewright.db.bounds import LARGEST_ID
from tunewright.db.job import EventKind, Job, JobState
from tunewright.search_space.measurement import Status
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import GainBasis
from tunewright.tuner.search.stage import AFTER_SEARCH, stage_words
from tunewright.tuner.text import mark_noise, mark_trial

from ...http.paging import Cursor
from ...http.schemas.base import SHA256, Answer
from ...http.schemas.jobs import dims_of
from ..job_line import JobLine
from ..page_query import PageQuery
from ..views import LongText, Notes, Text
from .cost_model import JobModels
from .curves import Abscissa, Curve
from .history import FailureLine, LogLine
from .machine import MachineView
from .model import GraphRun, ModelGraph
from .overview import JobAnswer, Part, Promise, Prospect, Worth
from .tasks import Latency, TaskLine, TaskSort, total_ms
from .trials import JobTrials

MOST = 0.5
"""More than this part of something is most of it."""


class JobTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template of that name."""

    OVERVIEW = "overview"
    TASKS = "tasks"
    MODEL = "model"
    TRIALS = "trials"
    COST_MODEL = "cost_model"
    EVENTS = "events"
    MACHINE = "machine"
    SETTINGS = "settings"


class JobPageAsked(PageQuery):
    """What of a job was asked for."""

    places = frozenset({"cursor", "before"})

    tab: JobTab = Field(
        default=JobTab.OVERVIEW,
        description="What the page shows. Its data has in any case what is not said to be of one of them.",
    )
    x: Abscissa = Field(
        default=Abscissa.TRIALS, description="What the curves are drawn against: trials, or seconds of work on the job."
    )
    sort: TaskSort = Field(
        default=TaskSort.TIME,
        description="The order of the tasks, most first: `time` of a run, what was `saved`, is `expected` still.",
    )
    start: int = Field(default=0, ge=0, le=1_000_000, description="How many tasks to pass over.")
    task: str = Field(default="", pattern=f"^({SHA256})?$", description="Only trials of this task are listed, if any.")
    status: tuple[Status, ...] = Field(
        default=(), max_length=len(Status), description="Only trials that ended in one of these ways."
    )
    cursor: Cursor = None
    kind: tuple[EventKind, ...] = Field(
        default=(), max_length=len(EventKind), description="Only events of these kinds are listed."
    )
    before: int | None = Field(
        default=None, ge=1, le=LARGEST_ID, description="List the events with numbers below this."
    )
    run: GraphRun = Field(
        default=GraphRun.TUNED, description="The run whose times the graph of the model has: `default` or `tuned`."
    )


class JobDevice(Answer):
    """What candidates are timed on."""

    name: Text
    quarantined_until: datetime | None = Field(description="It failed too often and rests until then.")
    reason: Text


class JobTuner(Answer):
    """A tuner process that is at work on the job."""

    id: Text
    host: Text
    pid: int
    pool: Text
    seen_at: datetime
    draining: bool
    devices: list[JobDevice]


class Settings(Answer):
    """What the search was asked to be like."""

    trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    seconds: float | None = Field(description="Most seconds of searching; null: no limit.")
    until: float | None = Field(description="It ends once another minute brings less than this; null: no limit.")
    strategy: Text
    seed: int | None
    dims: dict[Text, int] = Field(description="Sizes of the model's open dimensions, and values of inputs.")
    precision: Text = Field(description="What products are computed in.")
    priority: int
    attempts: int = Field(description="Tuner processes that took it up since the last new trial.")
    retimed: int = Field(description="Schedules of each stale task that it times again; 0: it searches.")
    is_attached: bool = Field(description="Whether it belongs to a command, so that no other process takes it up.")

    @staticmethod
    def of(job: Job) -> Settings:
        """Those of a job."""
        seed = values.number(job.spec.settings, "seed")
        return Settings.show(
            job.budget,
            job,
            seconds=None if job.budget.seconds == inf else job.budget.seconds,
            strategy=values.word(job.spec.settings, "strategy"),
            seed=None if seed is None else int(seed),
            dims=dims_of(job),
            precision=job.spec.precision,
            retimed=job.spec.retimed,
            is_attached=job.attached,
        )


class JobPage(Answer):
    """A job."""

    asked: JobPageAsked
    job: JobLine
    notes: Notes = Field(description="What people noted of it.")
    earlier: int | None = Field(
        description="Number of the job before it of its model that it is compared with; null: there is none."
    )
    stage: Text = Field(
        description="What its tuner process is at, or was when the job was paused; empty where nothing goes "
        "on or is to."
    )
    confirmed: int = Field(description="Tasks whose default and best it has timed side by side, the search over.")
    to_confirm: int = Field(
        description="Of how many that is so in the end: others have nothing to compare. 0: not known yet."
    )
    latency: Latency
    prospect: Prospect
    worth: Worth = Field(description="Whether it is worth more time.")
    trust: JobAnswer = Field(description="Whether its speed-up can be relied on.")
    promising: list[Promise] = Field(description="The tasks that most is still expected of.")
    parts: list[Part] = Field(description="Where a run's time goes: the heaviest tasks, and the rest.")
    parts_of: GainBasis = Field(
        description="What these come to: the run of the whole `model` that was timed; or the sum of what its `tasks` "
        "take, each measured by itself, which is another figure; or such a sum by `trials`. Shares and expected gains "
        "are parts of that, too."
    )
    parts_noise: Text = Field(description="Why the machine was too busy to rely on that; empty where it was not.")
    model: Curve = Field(description="Of the whole model.")
    curves: list[Curve] = Field(description="Of the tasks that are listed.")
    searched_s: float = Field(description="Seconds in which a process was at work on it: where curves end.")
    tasks: list[TaskLine]
    next_start: int | None = Field(description="`start` of the tasks behind these; null: there are none.")
    task_count: int
    trials: int = Field(description="That were counted, those that failed or were taken back among them.")
    voided: int = Field(description="Of them, those that people took back; they are none of the `failures`.")
    failures: list[FailureLine] = Field(description="The most frequent first.")
    fallback: dict[Text, int] = Field(description="Op -> nodes of the model that run without a kernel.")
    fallback_share: float | None = Field(description="The part of a run that these take; null: not known.")
    fallback_noise: Text = Field(description="Why the machine was too busy to rely on that; empty where it was not.")
    trial_page: JobTrials | None = Field(description="Its trials; null but in the tab `trials`.")
    models: JobModels | None = Field(
        description="What the cost model makes of its trials; null but in the tab `cost_model`, and without a target."
    )
    kinds: dict[EventKind, int] = Field(description="How many events of each kind it has, of those that are listed.")
    log: list[LogLine] = Field(
        description="The newest first; without progress and defaults, of which there are too many."
    )
    next_before: int | None = Field(description="`before` of the events behind these; null: there are none.")
    newest: int = Field(description="Number of the newest event: what follows has a higher one.")
    machine: MachineView = Field(description="What the machine did meanwhile that candidates were timed on.")
    tuners: list[JobTuner]
    tuner_count: int = Field(description="Tuner processes that were heard of in the last minute, on whatever job.")
    waits_for: Text = Field(description="The kind of device that it waits for, in words; empty where it has a target.")
    most_threads: int = Field(description="The most threads of a device at work now; 0: there is none.")
    upgrade: list[LongText] = Field(
        description="What a job that times stale tasks again says of the upgrade, a sentence each; none of other jobs."
    )
    settings: Settings
    graph: ModelGraph | None = Field(description="The graph of the model; null but on the tab `model`.")

    @property
    def stage_text(self) -> str:
        """The stage, for people."""
        words = stage_words(self.stage, self.confirmed, self.to_confirm)
        return f"while {words}" if words and self.job.state is JobState.PAUSED else words

    @property
    def regressed(self) -> int:
        """How many tasks it confirmed to be slower than they were before."""
        return self.kinds.get(EventKind.REGRESSED, 0)

    @property
    def is_promised_here(self) -> bool:
        """Whether the tasks in `promising` make most of what more searching is expected to save."""
        gain = self.prospect.again_gain or 0.0
        return sum(one.expected_share for one in self.promising) > MOST * gain / (1.0 + gain)

    @property
    def left_text(self) -> str:
        """What is left once the search is over, for people; empty before."""
        return AFTER_SEARCH.get(self.stage, "")

    @property
    def sides(self) -> tuple[str, str]:
        """Labels of the times before and after of `parts`."""
        of = ", its tasks one by one" if self.latency.is_timed and self.parts_of is not GainBasis.MODEL else ""
        return f"by default{of}", f"{'tuned' if self.job.is_searched else 'so far'}{of}"

    @property
    def why_no_speedup(self) -> str:
        """Why no speed-up of a job is known, where it never will be; empty where it is or may be."""
        if self.latency.speedup is not None or not self.job.is_searched:
            return ""
        return self.latency.default_fault or ("not every default was timed" if self.task_count else "it has no tasks")

    @property
    def why_no_parts(self) -> str:
        """Why nothing can be told of where the time goes; empty where it can."""
        if any(total_ms(side) for side in zip(*((part.before_ms, part.after_ms) for part in self.parts), strict=True)):
            return ""
        if not self.task_count:
            return "The model has no tasks: nothing of it runs on our kernels."
        if self.job.is_finished:
            return "Not every task was timed, so nothing is known of where the time of a run goes."
        return "Where the time of a run goes is known once each task's default was timed."

    def end(self, by: Abscissa) -> float:
        """Where curves end."""
        return float(self.trials) if by is Abscissa.TRIALS else self.searched_s

    def mark_before(self, time: str) -> str:
        """The sum of `parts` before, marked as it needs to be."""
        is_tried = self.parts_of is GainBasis.TRIALS and any(part.is_default_tried for part in self.parts)
        return mark_trial(mark_noise(time, self.parts_noise), is_tried)

    def mark_after(self, time: str) -> str:
        """The sum of `parts` after."""
        return mark_trial(mark_noise(time, self.parts_noise), self.parts_of is GainBasis.TRIALS)
