"""The first page: what runs, what all jobs came to, and where each stands, with a form to submit one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from pydantic import Field, StringConstraints

from tunewright.db.access import Key, KeyScope
from tunewright.db.job import LONGEST_TAG, MOST_TAGS, TAG, UNFINISHED, Job, JobState
from tunewright.db.store import Store
from tunewright.tuner.search.report import JobOutcome, verdict

from ..http.access import needs
from ..http.paging import Cursor, cut, number_of
from ..http.problems import ProblemKind
from ..http.schemas.base import OWNER, SHA256, Answer
from ..http.service import ServiceDep
from .drawing.sparkline import sparkline
from .home import OverallGain, RegressionLine, newest_regressions, overall_gain
from .job_line import JobLine, forecast_of_rest, line_of
from .page import add_page
from .page_query import PageQuery
from .views import TargetName, Text, target_names

router = APIRouter(tags=["pages"])

ROWS = 20
"""Jobs on one page."""

MOST_CARDS = 6
"""Running jobs that are shown above the list: the newest ones."""

MOST_SORTED = 200
"""Unfinished jobs that are put in order by what they still bring: the newest ones."""


class JobSort(StrEnum):
    """How the list is ordered. All but the first show unfinished jobs alone."""

    NEWEST = "newest"
    GAIN = "gain"  # which a minute makes faster by least
    LEFT = "left"  # which go on for longest


class JobsAsked(PageQuery):
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
    curves: dict[int, list[float]] = Field(
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
    """The curve of each job on the page, by its number."""
    return {str(job): sparkline(curve, "speed-up") for job, curve in view.curves.items()}


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
        curves={job: list(curve) for job, curve in store.overview.curves(shown).items()},
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


def _order(job: Job, sort: JobSort) -> float:
    """Jobs without a forecast come last; of a rest of less than a minute all that it brings counts."""
    left_s, gain, minute_gain = forecast_of_rest(job)
    if sort is JobSort.LEFT:
        return inf if left_s is None else -left_s
    soon = gain if left_s is not None and minute_gain is None else minute_gain
    return inf if soon is None else soon
