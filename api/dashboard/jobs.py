"""The first page: what runs, what all jobs came to, and where each stands, with a form to submit one.

From it alone one tells which job is worth stopping: `remaining_gain` is what is left to be had, `minute_gain` what a
minute of it costs, and `outlook` what to make of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from pydantic import Field, StringConstraints

from tunewright.db.access import Key, KeyScope
from tunewright.db.job import LONGEST_TAG, MOST_TAGS, TAG, UNFINISHED, Job, JobState, Wish
from tunewright.db.store import Store
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import GainBasis, ModelGain, standing
from tunewright.tuner.search.report import JobOutcome, is_out_of_time, verdict
from tunewright.tuner.search.scheduling.outlook import MINUTE_S
from tunewright.tuner.text import short, sized_name

from ..http.access import needs
from ..http.paging import Cursor, cut, number_of
from ..http.problems import ProblemKind
from ..http.schemas.base import OWNER, SHA256, Answer
from ..http.schemas.jobs import dims_of, owner_of
from ..http.service import ServiceDep
from .drawing.sparkline import sparkline
from .home import OverallGain, RegressionLine, newest_regressions, overall_gain
from .page import add_page
from .views import LongText, OwnerName, Tags, TargetName, Text, target_names

router = APIRouter(tags=["pages"])

ROWS = 20
"""Jobs on one page."""

MOST_CARDS = 6
"""Running jobs that are shown above the list: the newest ones."""

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
    label: Text = Field(description="The model's name, for people.")
    tags: Tags = Field(description="Words to find it by.")
    owner: OwnerName | None = Field(description="The key that submitted it; null for a local command.")
    model: Text = Field(description="Digest of its model; empty where it has none.")
    dims: dict[Text, int] = Field(description="Sizes of the model's open dimensions, and values of inputs, by name.")
    state: JobState
    wish: Wish | None = Field(description="What its tuner process has been asked for and not yet done.")
    error: LongText
    target: TargetName = Field(description="Its key is empty while the job waits for any device.")
    tasks: int = Field(description="Distinct tasks of the model.")
    trials: int = Field(description="Candidates measured so far.")
    most_trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    spent_s: float = Field(description="Seconds of searching so far.")
    before_s: float = Field(description="How many of them came before `most_s` counts: a command spent them.")
    most_s: float | None = Field(description="Most seconds of searching; null: no limit.")
    speedup: float | None = Field(description="How many times as fast as by default the model is.")
    speedup_of: GainBasis = Field(
        description="What that is by: runs of the whole `model`, its `tasks` timed side by side, or `trials` so far."
    )
    speedup_interval: tuple[float, float] | None = Field(description="95% interval; null: not known.")
    outcome: JobOutcome | None = Field(
        description="What it did for the model as a whole; null: it has not come so far."
    )
    noise: Text = Field(description="Why its machine was too busy to rely on the times; empty where it was not.")
    left_s: float | None = Field(description="Seconds until the search is expected to end.")
    remaining_gain: float | None = Field(
        description="By which share the rest of the search is expected to make the model's tasks faster, all together: "
        "0.02 is 2%."
    )
    minute_gain: float | None = Field(
        description="The same of a minute of it, on the average; null where less than a minute is left."
    )
    outlook: Outlook
    priority: int
    holder: Text = Field(description="The tuner process at work on it; empty where there is none.")
    created_at: datetime
    updated_at: datetime

    @property
    def name(self) -> str:
        """Its model for people, with the sizes that it is for."""
        name = self.label or short(self.model) or "tasks without a model"
        return sized_name(name, self.dims)

    @property
    def is_finished(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.state not in UNFINISHED

    @property
    def is_searched(self) -> bool:
        """Whether its search is over: it is finished, or out of time."""
        return self.is_finished or is_out_of_time(self.state, self.outcome)

    @property
    def result_text(self) -> str:
        """Its state for people; where it succeeded or is out of time, its outcome."""
        return verdict(self.state, self.outcome)


class JobsAsked(Answer):
    """What a list of jobs was asked for."""

    state: tuple[JobState, ...] = Field(default=(), max_length=6, description="Only jobs in one of these states.")
    model: str = Field(
        default="", max_length=200, description="Only jobs with this in their label, or at the begin of their digest."
    )
    target: str = Field(
        default="", pattern=f"^({SHA256})?$", description="Only jobs for the target of this key; empty: for any."
    )
    tag: tuple[Annotated[str, StringConstraints(max_length=LONGEST_TAG, pattern=f"^({TAG})?$")], ...] = Field(
        default=(), max_length=MOST_TAGS + 1, description="Only jobs with all of these tags; an empty one is none."
    )
    owner: str = Field(
        default="",
        pattern=f"^({OWNER})?$",
        description="Only jobs that the key of this id submitted; `me`: the one used; empty: any.",
    )
    search: str = Field(
        default="", max_length=200, description="Only jobs with this in label, tags or notes, in any case."
    )
    sort: JobSort = Field(
        default=JobSort.NEWEST,
        description="`gain`: unfinished jobs which a minute helps least, `left`: which go on for longest.",
    )
    cursor: Cursor = None

    @property
    def is_narrowed(self) -> bool:
        """Whether some jobs were not asked for."""
        return bool(self.state or self.model or self.target or self.tags or self.owner or self.search)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that were asked for, without what a form sends of an empty field."""
        return tuple(filter(None, self.tag))


class JobsPage(Answer):
    """The jobs, and what is asked of them."""

    asked: JobsAsked
    jobs: list[JobLine]
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")
    is_cut: bool = Field(description="Whether older jobs were not looked at for an order other than the newest first.")
    counts: dict[JobState, int] = Field(description="How many jobs there are in each state, whatever was asked for.")
    kept: int = Field(description="Of those that succeeded, those that left their models on their defaults.")
    unsure: int = Field(description="Of them, those whose machines were too busy to tell what they came to.")
    vendor: int = Field(description="Of them, those whose models a vendor's runtime runs.")
    targets: list[TargetName] = Field(description="The targets that processes here have or had.")
    at_work: list[Text] = Field(description="Keys of those that tuner processes are at work for.")
    tuners: int = Field(description="Tuner processes that were heard of in the last minute.")
    busy: int = Field(description="Of them, those at work on a job.")
    running: list[JobLine] = Field(description="The newest jobs that processes are at work on, whatever was asked for.")
    oldest_wait_s: float | None = Field(description="How long the first of the queue has waited; null: none waits.")
    gain: OverallGain
    regressions: list[RegressionLine] = Field(description="The newest ones, of jobs that succeeded.")
    courses: dict[int, list[float]] = Field(
        description="By the number of a job: the speed-ups that it told, at some moments from its begin to its end."
    )

    def count_text(self, state: JobState) -> str:
        """How many there are in a state, for people: of those that succeeded, how many came to what."""
        count = self.counts[state]
        if state is not JobState.SUCCEEDED:
            return f"{count:,} {state.value}"
        each = {None: count - self.kept - self.unsure - self.vendor} | {
            JobOutcome.DEFAULTS_KEPT: self.kept,
            JobOutcome.TOO_NOISY: self.unsure,
            JobOutcome.VENDOR: self.vendor,
        }
        return ", ".join(f"{number:,} {verdict(state, outcome)}" for outcome, number in each.items() if number)


async def asking_owner(request: Request, key: Annotated[Key, needs(KeyScope.JOBS_READ)]) -> str:
    """Whose jobs `me` are; empty where nobody asks for these, so that all are shown the same page."""
    return key.owner if request.query_params.get("owner") == "me" else ""


def jobs_charts(view: JobsPage) -> dict[str, Markup]:
    """The course of each job on the page, by its number."""
    return {str(job): sparkline(course, "speed-up") for job, course in view.courses.items()}


@add_page(router, "/", "jobs.html", summary="The jobs", charts=jobs_charts, refusals=(ProblemKind.INVALID,))
def jobs(
    service: ServiceDep, query: Annotated[JobsAsked, Query()], viewer: Annotated[str, Depends(asking_owner)]
) -> JobsPage:
    """What runs, what all jobs came to and what became slower; the jobs that meet all conditions, what is expected of
    them still, and a form that submits one.
    """
    store = service.store
    targets = target_names(store)
    page, following, is_cut = _select(store, query, viewer or query.owner)
    running = store.jobs.list([JobState.RUNNING], limit=MOST_CARDS)
    owners = store.keys.owner_names([job.owner for job in (*page, *running) if job.owner])
    tuners = store.fleet.tuners()
    shown = [job.id for job in (*page, *running)]
    outcomes: Counter[JobOutcome | None] = Counter()
    for how, count in store.jobs.outcomes().items():
        outcomes[JobOutcome.of(*how)] += count
    return JobsPage(
        asked=query,
        jobs=[line_of(job, targets, owners) for job in page],
        next=following,
        is_cut=is_cut,
        counts=store.jobs.counts(),
        kept=outcomes[JobOutcome.DEFAULTS_KEPT],
        unsure=outcomes[JobOutcome.TOO_NOISY],
        vendor=outcomes[JobOutcome.VENDOR],
        targets=[TargetName.of(target) for target in store.fleet.all_targets()],
        at_work=[target.key for target in store.fleet.targets()],
        tuners=len(tuners),
        busy=sum(tuner.job_id is not None for tuner in tuners),
        running=[line_of(job, targets, owners) for job in running],
        oldest_wait_s=store.jobs.oldest_queued_s(),
        gain=overall_gain(store),
        regressions=newest_regressions(store, targets),
        courses={job: list(course) for job, course in store.overview.courses(shown).items()},
    )


def _select(store: Store, query: JobsAsked, owner: str) -> tuple[Sequence[Job], str | None, bool]:
    """The jobs, the cursor behind them, and whether there are more that were not looked at."""
    is_newest = query.sort is JobSort.NEWEST
    states = query.state if is_newest else [state for state in query.state or UNFINISHED if state in UNFINISHED]
    jobs = store.jobs.list(
        states or None if is_newest else states,
        model=query.model or None,
        target_key=query.target or None,
        owner=owner or None,
        tags=query.tags,
        search=query.search or None,
        before_id=number_of(query.cursor) if is_newest else None,
        limit=1 + (ROWS if is_newest else MOST_SORTED),
    )
    if is_newest:
        page, following = cut(jobs, ROWS, lambda job: job.id)
        return page, following, False
    ordered = sorted(jobs[:MOST_SORTED], key=lambda job: _order(job, query.sort))
    return ordered[:ROWS], None, len(jobs) > min(ROWS, MOST_SORTED)


def _forecast(job: Job) -> tuple[float | None, float | None, float | None]:
    """The newest forecast of the rest of a search: its seconds, what it brings (0.02 is 2%), and what of that a minute
    brings on the average. None where nothing is told, or to come.
    """
    progress = standing(job)
    left_s, gain = values.number(progress, "left_s"), values.number(progress, "remaining_gain")
    if left_s is None or gain is None or left_s < MINUTE_S:
        return left_s, gain, None
    return left_s, gain, (1.0 + gain) ** (MINUTE_S / left_s) - 1.0


def _order(job: Job, sort: JobSort) -> float:
    """Jobs without a forecast come last; of a rest of less than a minute all that it brings counts."""
    left_s, gain, minute_gain = _forecast(job)
    if sort is JobSort.LEFT:
        return inf if left_s is None else -left_s
    soon = gain if left_s is not None and minute_gain is None else minute_gain
    return inf if soon is None else soon


def line_of(job: Job, targets: Mapping[str, str], owners: Mapping[str, str]) -> JobLine:
    """A job as a line; `targets` and `owners` are names by key."""
    key = job.spec.target_key
    gain = ModelGain.of_job(job.progress, job.result)
    left_s, remaining_gain, minute_gain = _forecast(job)
    outlook = Outlook.UNKNOWN
    if remaining_gain is not None:
        is_slow = minute_gain is not None and minute_gain < LITTLE_MINUTE_GAIN
        outlook = Outlook.LITTLE if remaining_gain < LITTLE_GAIN or is_slow else Outlook.SOME
    return JobLine.show(
        job,
        gain,
        left_s=left_s,
        remaining_gain=remaining_gain,
        minute_gain=minute_gain,
        outlook=outlook,
        model=job.spec.model_sha256,
        tags=list(job.tags),
        owner=owner_of(job, owners),
        dims=dims_of(job),
        target=TargetName.known(key, targets),
        tasks=len(job.spec.tasks),
        most_trials=job.budget.trials,
        before_s=job.budget.before_s,
        most_s=None if job.budget.seconds == inf else job.budget.seconds,
        speedup_of=gain.of,
    )
