"""The view of all jobs: where each stands, and what the rest of its search is still expected to bring.

From it alone one tells which job is worth stopping: `remaining_gain` is what is left to be had, `minute_gain` what a
minute of it costs, and `outlook` what to make of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf

from pydantic import Field

from tunewright.db.jobs import UNFINISHED, Job, JobState, Wish
from tunewright.db.sql_store import SqlStore
from tunewright.tuner.insight import told
from tunewright.tuner.insight.gain import Gain, GainOf
from tunewright.tuner.jobs.report import Outcome
from tunewright.tuner.jobs.scheduling.forecast import MINUTE_S

from ..paging import cut, number_of
from ..schemas import Answer
from .said import Said, SaidAtLength
from .targets import TargetName, target_names

ROWS = 50
"""Jobs on one page."""

MOST_SORTED = 200
"""Unfinished jobs that are put in order by what they still bring: the newest ones."""

LITTLE_GAIN = 0.01
"""What is left to be had of a search is hardly worth waiting for below this: 1% of the model's speed."""

LITTLE_MINUTE_GAIN = 0.0005
"""Nor is a minute that brings less than this."""


class JobSort(StrEnum):
    """How the list is ordered. All but the first show unfinished jobs alone."""

    NEWEST = "newest"
    GAIN = "gain"  # which a minute makes faster by least
    LEFT = "left"  # which go on for longest


class Outlook(StrEnum):
    """What to expect of the rest of a search."""

    LITTLE = "little"  # hardly worth its time
    SOME = "some"
    UNKNOWN = "unknown"


class JobLine(Answer):
    """A job in a list."""

    id: int
    label: Said = Field(description="The model's name, for people.")
    model: Said = Field(description="Digest of its model; empty where it has none.")
    state: JobState
    wish: Wish | None = Field(description="What its tuner process has been asked for and not yet done.")
    error: SaidAtLength
    target: TargetName = Field(description="Its key is empty while the job waits for any device.")
    tasks: int = Field(description="Distinct tasks of the model.")
    trials: int = Field(description="Candidates measured so far.")
    most_trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    spent_s: float = Field(description="Seconds of searching so far.")
    most_s: float | None = Field(description="Most seconds of searching; null: no limit.")
    speedup: float | None = Field(description="How many times as fast as by default the model is.")
    speedup_of: GainOf = Field(
        description="What that is by: runs of the whole `model`, its `tasks` timed side by side, or `trials` so far."
    )
    speedup_interval: tuple[float, float] | None = Field(description="95% interval; null: not known.")
    outcome: Outcome | None = Field(description="What it did for the model as a whole; null: it has not come so far.")
    noise: Said = Field(description="Why its machine was too busy to rely on the times; empty where it was not.")
    left_s: float | None = Field(description="Seconds until the search is expected to end.")
    remaining_gain: float | None = Field(
        description="By which share the rest of the search is expected to make the model faster: 0.02 is 2%."
    )
    minute_gain: float | None = Field(description="The same of a minute of it, on the average.")
    outlook: Outlook
    priority: int
    holder: Said = Field(description="The tuner process at work on it; empty where there is none.")
    created_at: datetime
    updated_at: datetime

    @property
    def is_finished(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.state not in UNFINISHED


class JobsAsked(Answer):
    """What a list of jobs was asked for."""

    state: tuple[JobState, ...] = ()
    model: Said = Field("", description="Text in the label, or the begin of the model's digest.")
    target: Said = Field("", description="Key of a target.")
    sort: JobSort = JobSort.NEWEST
    cursor: str | None = None

    @property
    def is_narrowed(self) -> bool:
        """Whether some jobs were not asked for."""
        return bool(self.state or self.model or self.target)


class JobsPage(Answer):
    """The jobs, and what is asked of them."""

    asked: JobsAsked
    jobs: list[JobLine]
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")
    is_cut: bool = Field(description="Whether older jobs were not looked at for an order other than the newest first.")
    counts: dict[JobState, int] = Field(description="How many jobs there are in each state, whatever was asked for.")
    targets: list[TargetName] = Field(description="The targets that something is known of.")
    at_work: list[Said] = Field(description="Keys of those that tuner processes are at work for.")
    tuners: int = Field(description="Tuner processes that were heard of in the last minute.")
    busy: int = Field(description="Of them, those at work on a job.")


def jobs_page(store: SqlStore, asked: JobsAsked) -> JobsPage:
    """The jobs that were asked for. Raises Problem for a cursor that is none, StoreError."""
    targets = target_names(store)
    jobs, following, is_cut = _found(store, asked)
    tuners = store.fleet.tuners()
    return JobsPage(
        asked=asked,
        jobs=[line_of(job, targets) for job in jobs],
        next=following,
        is_cut=is_cut,
        counts=store.jobs.counts(),
        targets=[TargetName(key=key, name=name) for key, name in targets.items()],
        at_work=[target.key for target in store.fleet.targets()],
        tuners=len(tuners),
        busy=sum(tuner.job_id is not None for tuner in tuners),
    )


def _found(store: SqlStore, asked: JobsAsked) -> tuple[Sequence[Job], str | None, bool]:
    """The jobs, the cursor behind them, and whether there are more that were not looked at."""
    is_newest = asked.sort is JobSort.NEWEST
    states = asked.state if is_newest else [state for state in asked.state or UNFINISHED if state in UNFINISHED]
    found = store.jobs.list(
        states or None if is_newest else states,
        model=asked.model or None,
        target_key=asked.target or None,
        before_id=number_of(asked.cursor) if is_newest else None,
        limit=1 + (ROWS if is_newest else MOST_SORTED),
    )
    if is_newest:
        page, following = cut(found, ROWS, lambda job: job.id)
        return page, following, False
    return sorted(found[:MOST_SORTED], key=SORTED_BY[asked.sort])[:ROWS], None, len(found) > min(ROWS, MOST_SORTED)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the rest of a job's search is expected to take and to bring, as its tuner process told last."""

    left_s: float | None = None
    remaining_gain: float | None = None  # 0.02 is 2%
    minute_gain: float | None = None  # of a minute of it, on the average

    @staticmethod
    def of(job: Job) -> Expected:
        """Nothing of a finished job."""
        if job.state not in UNFINISHED:
            return Expected()
        left_s, gain = told.number(job.progress, "left_s"), told.number(job.progress, "remaining_gain")
        if left_s is None or gain is None:
            return Expected(left_s, gain)
        minutes = max(left_s / MINUTE_S, 1.0)
        return Expected(left_s, gain, (1.0 + gain) ** (1.0 / minutes) - 1.0)

    @property
    def outlook(self) -> Outlook:
        """What to make of it."""
        if self.remaining_gain is None:
            return Outlook.UNKNOWN
        is_slow = self.minute_gain is not None and self.minute_gain < LITTLE_MINUTE_GAIN
        return Outlook.LITTLE if self.remaining_gain < LITTLE_GAIN or is_slow else Outlook.SOME


def _by_gain(job: Job) -> float:
    """Those last of which nothing is known."""
    gain = Expected.of(job).minute_gain
    return inf if gain is None else gain


def _by_left(job: Job) -> float:
    left_s = Expected.of(job).left_s
    return inf if left_s is None else -left_s


SORTED_BY: dict[JobSort, Callable[[Job], float]] = {JobSort.GAIN: _by_gain, JobSort.LEFT: _by_left}


def line_of(job: Job, targets: Mapping[str, str]) -> JobLine:
    """A job as a line; `targets` are names by key."""
    key = job.spec.target_key
    expected = Expected.of(job)
    found = Gain.told(job.progress, job.result)
    trials = told.number(job.result, "trials") or told.number(job.progress, "trials") or 0
    return JobLine(
        id=job.id,
        label=job.label,
        model=job.spec.model_sha256,
        state=job.state,
        wish=job.wish,
        error=job.error,
        target=TargetName.known(key, targets),
        tasks=len(job.spec.tasks),
        trials=int(trials),
        most_trials=job.budget.trials,
        spent_s=job.spent_s,
        most_s=None if job.budget.seconds == inf else job.budget.seconds,
        speedup=found.speedup,
        speedup_of=found.of,
        speedup_interval=found.speedup_interval,
        outcome=found.outcome,
        noise=found.noise,
        left_s=expected.left_s,
        remaining_gain=expected.remaining_gain,
        minute_gain=expected.minute_gain,
        outlook=expected.outlook,
        priority=job.priority,
        holder=job.holder,
        created_at=job.created_at,
        updated_at=job.updated_at,
    )
