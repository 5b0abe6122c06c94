"""The trials of a task explored: which knob matters, all of them on axes to brush, and a table of what is chosen.

What is drawn is a sample: the fastest, and others without regard to what came of them. What is counted and listed is
exact wherever an index can tell, and else said to be of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from markupsafe import Markup

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.db.trial import TrialLine, TrialOrder, TrialPage, distinct
from tunewright.search_space.measurement import Status
from tunewright.tuner.text import counted, rounded

from ...http.descriptions import Descriptions, DescriptionsDep
from ...http.paging import bad_cursor
from ...http.problems import ProblemKind, invalid
from ...http.query import PrefixedQuery
from ...http.routes.jobs import of_job
from ...http.schemas.jobs import dims_of
from ...http.service import ServiceDep, in_thread
from ..drawing.parallel import Band, BandKind, BrushAxis, Explored
from ..page import add_page
from ..views import LONGEST, TargetName
from .columns import (
    CREATED,
    GFLOPS,
    KNOB,
    LONGEST_RANGE,
    PLAIN_COLUMNS,
    PREDICTED,
    TIME,
    Column,
    TrialColumns,
    ValueRange,
    best_of,
    knob_column,
    time_s,
)
from .explorer_view import (
    BandShown,
    ColumnShown,
    ExploredTrial,
    ExplorerAsked,
    ExplorerPage,
    ExplorerQuery,
    MarksShown,
    SketchShown,
)
from .importance import Explanation, explain
from .schedules import Standing, TaskHead, TaskInPath
from .view import JobName

router = APIRouter(tags=["pages"])

DRAWN_AT_RANDOM, DRAWN_FASTEST = 1600, 400
"""Trials in the sample: those with the least digests, which is as good as by chance, and the fastest beside them."""

MOST_AXES = 10
"""Knobs that have an axis."""

ROWS = 10
"""Trials on one page."""

_SAMPLE_CURSOR = re.compile(r"sample ([0-9]{1,5})", re.ASCII)

# Charts


def explorer_charts(view: ExplorerPage) -> dict[str, Markup]:
    """`parallel` and `scatter`."""
    marks = view.marks
    bands = [Band(band.kind, band.count, band.is_kept) for band in marks.bands]
    drawn = counted(len(marks.ids), "trial is", "trials are")
    words = f"{drawn} drawn, of which {view.kept_count:,} are within the ranges."
    drawing = Explored(bands, words)
    fails = any(band.kind == "failed" for band in bands)
    ranges = view.asked.ranges()

    def axis(name: str, fails: bool = False) -> BrushAxis:
        column = find_column(name)
        values = [None if value is None else value / column.factor for value in marks.columns[name]]
        return column.axis(values, ranges.get(name), fails)

    nothing = "No trial has worked or failed in this way." if view.trials else "There are no trials yet."
    axes = [axis(name, fails and name in (TIME.name, GFLOPS.name)) for name in marks.axes]
    return {
        "parallel": drawing.parallel(
            "Trials by their knobs",
            axes,
            nothing if not marks.ids else "No knob has more than one value in these trials.",
        ),
        "scatter": drawing.scatter("Trials by two columns", axis(view.asked.x), axis(view.asked.y), nothing),
    }


def find_column(name: str) -> Column:
    """A column by its name."""
    return next((column for column in PLAIN_COLUMNS if column.name == name), None) or knob_column(
        name.removeprefix(KNOB)
    )


# View


@add_page(
    router,
    "/tasks/{task_key}/trials",
    "task/explorer.html",
    summary="The trials of a task, explored",
    charts=explorer_charts,
    refusals=(ProblemKind.NO_SUCH_TASK, ProblemKind.NO_SUCH_TARGET, ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID),
)
async def explorer(
    service: ServiceDep,
    descriptions: DescriptionsDep,
    task_key: TaskInPath,
    query: Annotated[ExplorerQuery, Query()],
    knobs: Annotated[dict[str, str], Depends(PrefixedQuery(KNOB, LONGEST, LONGEST_RANGE))],
) -> ExplorerPage:
    """Which knobs matter, by the trials and by the cost model; a sample of the trials to draw; those within all ranges.

    A range of a knob is given as `knob.NAME`. What takes long to work out is null at first.
    """
    return await explorer_page(service.store, descriptions, ExplorerAsked(task=task_key, knobs=knobs, **dict(query)))


@dataclass(frozen=True)
class ExplorerFacts:
    """What is read from the database for one page."""

    known: Standing
    job: Job | None  # that all trials are of
    newest_event: int  # of the job
    counts: Mapping[Status, int]  # of those that were timed here
    imported: int
    at_random: Sequence[TrialLine]  # in the order of their digests
    fastest: Sequence[TrialLine]
    page: TrialPage | None  # of the table; None where only the sample can be asked for it

    @property
    def trials(self) -> int:
        """Trials that were timed here."""
        return sum(self.counts.values())

    @cached_property
    def lines(self) -> list[TrialLine]:
        """The sample."""
        return distinct((*self.at_random, *self.fastest))

    @property
    def is_whole(self) -> bool:
        """Whether the sample has all trials."""
        return self.trials <= len(self.at_random)

    @property
    def mark(self) -> tuple[object, ...]:
        """A value that changes with what is explained."""
        newest_id = max((line.id for line in self.lines), default=0)
        return newest_id, tuple(sorted(self.counts.items())), self.known.snapshot_id

    @staticmethod
    def load(store: Store, query: ExplorerAsked) -> ExplorerFacts:
        """By what was asked for. Raises Problem, StoreError."""
        job = None if query.job is None else of_job(partial(store.jobs.get, query.job), query.job)
        newest_event = store.jobs.newest_event(job.id) if job else 0  # before what is read, so that none is missed
        keys = query.task, query.target
        known = Standing.load(store, *keys)
        at_random = store.trials.sample(*keys, DRAWN_AT_RANDOM, query.job)
        is_sampled = len(at_random) >= DRAWN_AT_RANDOM
        fastest = store.trials.fastest(*keys, DRAWN_FASTEST, query.job) if is_sampled else []
        page = _told_page(store, query, known.task.flops) if is_sampled else None
        if page is not None and not query.ranges():
            counts = page.counts  # to count a million trials takes a while
        else:
            counts = store.trials.page(*keys, job_id=query.job, is_own=True, limit=1).counts
        imported = store.trials.imported(*keys)
        return ExplorerFacts(known, job, newest_event, counts, imported, at_random, fastest, page)


def _told_page(store: Store, query: ExplorerAsked, flops: int) -> TrialPage | None:
    """A page of all trials; None where no index tells which they are. Raises Problem."""
    ranges = query.ranges()
    times_s = _times_s(ranges, flops)
    orders = {TIME.name: (TrialOrder.FASTEST, TrialOrder.SLOWEST)}
    if times_s is None:
        orders[CREATED.name] = (TrialOrder.OLDEST, TrialOrder.NEWEST)
    if query.sketch or query.sort not in orders or not ranges.keys() <= {TIME.name, GFLOPS.name}:
        return None
    try:
        return store.trials.page(
            query.task,
            query.target,
            job_id=query.job,
            statuses=query.status or None,
            time_s=times_s,
            is_own=True,
            order=orders[query.sort][query.desc],
            cursor=query.cursor,
            limit=ROWS,
        )
    except ValueError as error:
        raise bad_cursor() from error


async def explorer_page(store: Store, descriptions: Descriptions, query: ExplorerAsked) -> ExplorerPage:
    """The page that was asked for. Raises Problem for what is not known and for bad ranges, StoreError."""
    query.ranges()  # so that bad ones cost nothing
    facts = await in_thread(partial(ExplorerFacts.load, store, query))
    sketch = query.sketch if query.sketch in {line.schedule.sketch_name for line in facts.lines} else ""
    work = partial(explain, store, facts.known, facts.at_random, facts.fastest, sketch)
    found = await descriptions.analyse(("explored", query.task, query.target, query.job, sketch), facts.mark, work)
    return await in_thread(partial(_page, query, facts, found))


def _page(query: ExplorerAsked, facts: ExplorerFacts, found: Explanation | None) -> ExplorerPage:
    known, job, ranges = facts.known, facts.job, query.ranges()
    of_sketch = [line for line in facts.lines if query.sketch in ("", line.schedule.sketch_name)]
    table = TrialColumns(known.task, of_sketch, found.predicted_s if found else {})
    for name, text in (("x", query.x), ("y", query.y), ("sort", query.sort)):
        if text not in table.columns:
            raise invalid("query", [name], f"there is no such column; there are {', '.join(table.columns)}"[:300])
    narrowed = [line for line in of_sketch if not query.status or line.status in query.status]
    marked, bands = _bands(narrowed, table, ranges)
    drawn = TrialColumns(known.task, marked, table.predicted_s)
    axes = _axes(table, ranges, found)
    kept = [line for line in narrowed if table.holds(line, ranges)]
    listed = _Listed.of(query, facts, table, kept)
    places = {line.id: place for place, line in enumerate(marked)}
    sketches: dict[str, int] = {}
    for line in facts.lines:
        sketches[line.schedule.sketch_name] = sketches.get(line.schedule.sketch_name, 0) + 1
    return ExplorerPage(
        asked=query,
        task=TaskHead.of(known.task),
        target=TargetName.of(known.target),
        job=JobName.show(job, dims=dims_of(job), newest=facts.newest_event) if job else None,
        trials=facts.trials,
        imported=facts.imported,
        sampled=len(facts.lines),
        counts=dict(facts.counts),
        sketches=[SketchShown(name=name, sampled=count) for name, count in sorted(sketches.items())],
        columns=_columns(table, ranges),
        importance=found.shown if found else None,
        marks=MarksShown(
            ids=[line.id for line in marked],
            columns={name: _short(drawn, name) for name in dict.fromkeys([*axes, query.x, query.y])},
            bands=bands,
            axes=axes,
        ),
        shown=listed.total,
        is_of_sample=listed.is_of_sample,
        rows=[_row(known, table, line, places.get(line.id)) for line in listed.lines],
        next=listed.next,
    )


def _bands(
    lines: Sequence[TrialLine], table: TrialColumns, ranges: Mapping[str, ValueRange]
) -> tuple[list[TrialLine], list[BandShown]]:
    """The trials in the order in which they are drawn, and the bands of that."""
    timed = sorted((line for line in lines if time_s(line)), key=lambda line: (time_s(line), line.id))
    best = len(best_of(lines))
    third = -(-(len(timed) - best) // 3) or 1
    thirds: list[BandKind] = ["fast", "middle", "slow"]
    kinds: dict[int, BandKind] = {
        line.id: "best" if place < best else thirds[(place - best) // third] for place, line in enumerate(timed)
    }
    order: tuple[BandKind, ...] = ("best", *thirds, "failed")
    ordered = timed + [line for line in lines if line.id not in kinds]
    groups: dict[tuple[BandKind, bool], list[TrialLine]] = {
        (kind, is_kept): [] for kind in order for is_kept in (True, False)
    }
    for line in ordered:
        groups[kinds.get(line.id, "failed"), table.holds(line, ranges)].append(line)
    bands = [
        BandShown(kind=kind, count=len(group), is_kept=is_kept) for (kind, is_kept), group in groups.items() if group
    ]
    return [line for group in groups.values() for line in group], bands


def _axes(table: TrialColumns, ranges: Mapping[str, ValueRange], found: Explanation | None) -> list[str]:
    """The columns of the parallel coordinates: the knobs that matter most, what has a range, and the time."""
    varied = table.varied
    if len(varied) > MOST_AXES and found is not None and found.shown.knobs:
        heaviest = [knob.name for knob in found.shown.knobs][:MOST_AXES]
        varied = [knob for knob in varied if knob in heaviest] or varied
    knobs = [KNOB + knob for knob in varied[:MOST_AXES]]
    return [*dict.fromkeys([*knobs, *(name for name in ranges if name != TIME.name)]), TIME.name]


def _columns(table: TrialColumns, ranges: Mapping[str, ValueRange]) -> list[ColumnShown]:
    shown = []
    columns = dict(table.columns) | {name: find_column(name) for name in ranges if name not in table.columns}
    for name, column in columns.items():
        values = [value * column.factor for value in table.values(name) if value is not None]
        chosen = ranges.get(name)
        digits = 12 if column.factor == 1.0 else 4
        ends = [rounded(value, digits) for value in (min(values), max(values))] if values else []
        hint = str(ValueRange(*ends)) if ends else ""
        shown.append(ColumnShown.show(column, range=str(chosen) if chosen else "", hint=hint))
    return shown


def _short(table: TrialColumns, name: str) -> list[float | None]:
    """The values of a column in the units of addresses, as short as charts need them."""
    factor = find_column(name).factor
    if factor == 1.0:
        return [None if value is None else round(value) for value in table.values(name)]
    return [None if value is None else rounded(value * factor, 5) for value in table.values(name)]


def _row(known: Standing, table: TrialColumns, line: TrialLine, place: int | None) -> ExploredTrial:
    brief = known.brief(line)
    flops_s, predicted_s = table.value(line, GFLOPS.name), table.value(line, PREDICTED.name)
    return ExploredTrial.show(
        brief,
        gflops=None if flops_s is None else 1e-9 * flops_s,
        predicted_ms=None if predicted_s is None else 1e3 * predicted_s,
        mark=place,
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    """A page of the table."""

    lines: Sequence[TrialLine]
    total: int
    is_of_sample: bool
    next: str | None

    @staticmethod
    def of(query: ExplorerAsked, facts: ExplorerFacts, table: TrialColumns, kept: Sequence[TrialLine]) -> _Listed:
        """Of all trials where an index tells which they are, and else of those that the sample has. Raises Problem."""
        if facts.page is not None and not facts.is_whole:
            return _Listed(facts.page.trials, facts.page.total, False, facts.page.next)
        match = _SAMPLE_CURSOR.fullmatch(query.cursor or "sample 0")
        if match is None:
            raise bad_cursor()
        first = int(match[1])

        def rank(line: TrialLine) -> tuple[bool, float, int]:
            value = table.value(line, query.sort)
            return value is None, 0.0 if value is None else -value if query.desc else value, line.id

        lines = sorted(kept, key=rank)
        following = f"sample {first + ROWS}" if len(lines) > first + ROWS else None
        return _Listed(lines[first : first + ROWS], len(lines), not facts.is_whole, following)


def _times_s(ranges: Mapping[str, ValueRange], flops: int) -> tuple[float, float] | None:
    """The times within the ranges of times and of operations a second, both ends with a little more for rounding."""
    if not ranges:
        return None
    low_s, high_s = 0.0, inf
    if TIME.name in ranges:
        low_s, high_s = (1e-3 * end for end in (ranges[TIME.name].low, ranges[TIME.name].high))
    if GFLOPS.name in ranges:
        slowest, fastest = (1e9 * end for end in (ranges[GFLOPS.name].low, ranges[GFLOPS.name].high))
        if not flops or fastest <= 0:
            return (1.0, 0.0)  # nothing is
        low_s = max(low_s, flops / fastest)
        high_s = min(high_s, flops / slowest if slowest > 0 else inf)
    return max(low_s, 0.0) * (1 - 1e-8), min(high_s, 1e100) * (1 + 1e-8)
