"""The page that compares jobs. Read `compare_page` first; what it says is in `view`, the tasks of it in `rows`, its
words in `verdict`.

At a glance: what got slower since, by how much for certain, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log2
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from markupsafe import Markup

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.tuner.explain.comparison import TimeChange, TimeFinding, run_change
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.regression import OF_TIMES
from tunewright.tuner.text import change, dims_text, duration, limits, ratio, ratio_within, short

from ...http.problems import ProblemKind, invalid
from ...http.routes.jobs import of_job
from ...http.service import ServiceDep
from ..drawing.bars import Bar, bars
from ..drawing.figure import Figure
from ..drawing.frame import SERIES
from ..html import job_url
from ..job.charts import ABSCISSAS, SPEEDUP, curve_series, timed_series
from ..job.curves import Abscissa, model_curve
from ..job.earlier import earlier_job
from ..job.history import Histories, histories_of
from ..job.tasks import total_ms
from ..job.view import Settings
from ..job_line import JobLine, line_of
from ..page import add_page
from ..views import MOST_FACTS
from .rows import ComparedTask, task_rows
from .sides import Side, SideMoment, as_known_today, before_retiming, load_sides
from .verdict import brief_of, verdict_of
from .view import CompareAsked, ComparedJob, ComparePage, CompareWith, FactRow, FlaggedTask, RunChange

ROWS = 20
"""Tasks on one page."""

MOST_FLAGGED = 8
"""Tasks that are told of first."""

MOST_VALUES = 3
"""Different values of a version among the tasks of one job that are told."""


# Charts


def compare_charts(view: ComparePage) -> dict[str, Markup]:
    """`curves` of the jobs with what was timed at their ends, and `bars` of the tasks that changed a run most."""
    series = [
        curve_series(one.curve, view.asked.x, f"{one.name}, sum of its tasks", job_url(one.job.id)) for one in view.jobs
    ]
    ends = [float(one.trials) if view.asked.x is Abscissa.TRIALS else one.searched_s for one in view.jobs]
    timed = [mark for one in view.jobs for mark in timed_series(one.latency, max(ends), f"{one.name}, timed")]
    if len(series) + len(timed) <= SERIES and any(curve.points for curve in series):
        series += timed  # of more jobs the table above has them: beyond the colours no points are drawn
    figure = Figure(
        "steps",
        "Speed-up of the model of each job, by its tasks and as timed",
        ABSCISSAS[view.asked.x],
        SPEEDUP,
        series,
        nothing="No job has found anything yet.",
        until=max(ends),
    )
    return {"curves": figure.draw(), "bars": _bars(view)}


def _bars(view: ComparePage) -> Markup:
    """The time of each task that is slower or faster for certain: a bar to the right is longer, to the left shorter."""
    rows = [
        Bar(
            task.op,
            log2(task.now.factor),
            change(task.now.factor, 1),
            f"{view.jobs[task.side].name}: {duration(task.now.best_ms)}, was {duration(task.before.best_ms)}",
        )
        for task in view.flagged
        if task.now.factor
    ]
    nothing = "No task is slower or faster for certain."
    return bars(
        "Tasks that are slower or faster",
        rows,
        heads=("task", "its time: longer to the right"),
        kind="change",
        nothing=nothing,
    )


# View

router = APIRouter(tags=["pages"])


@add_page(
    router,
    "/compare",
    "compare/page.html",
    summary="Jobs compared",
    charts=compare_charts,
    refusals=(ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID),
)
def compare(
    service: ServiceDep,
    histories: Annotated[Histories, Depends(histories_of)],
    query: Annotated[CompareAsked, Query()],
) -> ComparePage:
    """What became slower or faster from one job to others, task by task, and what else differs.

    The oldest is the baseline unless another one is named. A single job is compared with the one before it of its
    model, or with what is known of its tasks at another moment.
    """
    return compare_page(service.store, histories, query)


def compare_page(store: Store, histories: Histories, query: CompareAsked) -> ComparePage:
    """The comparison as of now. Raises Problem for unknown jobs and for a query that makes no sense, StoreError."""
    jobs = _jobs(store, query)
    sides, why_alone = _sides(store, histories, jobs, query.against or CompareWith.PREVIOUS)
    rows = task_rows(sides)
    runs = [None if side is sides[0] else run_change(sides[0].run_side, side.run_side) for side in sides]
    flagged = [
        task for finding in (TimeFinding.SLOWER, TimeFinding.FASTER) for row in rows for task in _flagged(row, finding)
    ]
    behind = query.start + ROWS
    targets = {key: str(store.target(key)) for side in sides if (key := side.job.spec.target_key)}
    owners = store.keys.owner_names([side.job.owner for side in sides])
    return ComparePage(
        asked=query,
        jobs=[
            _compared(number, sides, runs[number], rows, line_of(side.job, targets, owners))
            for number, side in enumerate(sides)
        ],
        flagged=flagged[:MOST_FLAGGED],
        flagged_count=len(flagged),
        facts=_facts(sides, targets),
        tasks=rows[query.start : behind],
        next_start=behind if behind < len(rows) else None,
        task_count=len(rows),
        why_alone=why_alone,
    )


def _flagged(row: ComparedTask, finding: TimeFinding) -> list[FlaggedTask]:
    """A task where something was found of it for certain."""
    sides, before = row.sides_of(finding), row.cells[0]
    if not sides or before is None:
        return []
    (number, now), *others = sides
    also = sorted(other for other, _ in others)
    return [FlaggedTask(key=row.key, op=row.op, side=number, also=also, before=before, now=now)]


def _jobs(store: Store, query: CompareAsked) -> list[Job]:
    """The jobs that are named, the baseline first, then from the oldest on. Raises Problem."""
    numbers = sorted(set(query.job))
    if query.baseline is not None and query.baseline not in numbers:
        raise invalid("query", ["baseline"], f"job {query.baseline} is none of those to compare")
    if query.against is not None and len(numbers) > 1:
        raise invalid("query", ["against"], "is for a single job; several are compared with each other")
    if query.baseline is not None:
        numbers.sort(key=lambda number: number != query.baseline)
    return [of_job(lambda number=number: store.jobs.get(number), number) for number in numbers]  # type: ignore[misc]


def _sides(store: Store, histories: Histories, jobs: Sequence[Job], against: CompareWith) -> tuple[list[Side], str]:
    """What is compared; and where that is a single job, why it is."""
    if len(jobs) > 1:
        return load_sides(store, histories, jobs), ""
    [job] = jobs
    if against is CompareWith.PREVIOUS:
        previous = earlier_job(store, job)
        sides = load_sides(store, histories, [job] if previous is None else [previous, job])
        return sides, "" if previous else "no job before it of the same model, sizes and target has succeeded"
    [side] = load_sides(store, histories, jobs)
    if against is CompareWith.TODAY:
        if not job.spec.target_key:
            return [side], "it waits for a device: nothing is known of its tasks"
        return [side, as_known_today(store, side)], ""
    if not job.spec.retimed:
        return [side], "only a job that times stale tasks again keeps the times that they had before it"
    return [before_retiming(store, side), side], ""


def _compared(
    number: int, sides: Sequence[Side], run: TimeChange | None, rows: Sequence[ComparedTask], line: JobLine
) -> ComparedJob:
    side, baseline = sides[number], sides[0]
    is_end = side.moment is SideMoment.END
    searched_s = side.history.searched_s(side.job)
    tasks_ms = total_ms([task.after_ms for task in side.tasks.values()])
    baseline_ms = total_ms([task.after_ms for task in baseline.tasks.values()])
    cells = [cell for row in rows if (cell := row.cells[number]) is not None]
    curve = model_curve(side.job, side.history, searched_s)
    return ComparedJob(
        job=line,
        moment=side.moment,
        latency=side.run.latency if is_end else None,
        tasks_ms=tasks_ms,
        tasks_noise=total_noise(task.noise for task in side.tasks.values()),
        are_tasks_tried=not all(task.is_confirmed for task in side.tasks.values()),
        trials=side.history.trials,
        searched_s=searched_s,
        run=None if run is None else _run_change(baseline, side, run),
        tasks_factor=ratio(tasks_ms, baseline_ms) if run is not None and _has_same_tasks(baseline, side) else None,
        counts=Counter(cell.finding for cell in cells if cell.finding is not None),
        brief="" if run is None else brief_of(side, baseline, run, cells),
        verdict=[] if run is None else verdict_of(number, sides, run, rows),
        curve=curve if is_end else curve.model_copy(update={"steps": []}),
    )


def _has_same_tasks(baseline: Side, side: Side) -> bool:
    return baseline.tasks.keys() == side.tasks.keys()


def _run_change(baseline: Side, side: Side, run: TimeChange) -> RunChange:
    before, now = baseline.run_side.time, side.run_side.time
    if before is None or now is None:
        return RunChange(finding=run.finding, why=run.why, factor=None, factor_interval=None)
    within = ratio_within(now.interval, before.interval)
    return RunChange(finding=run.finding, why=run.why, factor=ratio(now.time, before.time), factor_interval=within)


# What else differs


def _facts(sides: Sequence[Side], targets: dict[str, str]) -> list[FactRow]:
    """Settings, versions and machines: those that differ first."""
    settings = [_settings(side.job, targets) for side in sides]
    names = list(dict.fromkeys(name for one in settings for name in one))
    origins = [_origins(side) for side in sides]
    origin_names = sorted({name for one in origins for name in one})
    rows = [_fact(name, settings) for name in names] + [_fact(name, origins) for name in origin_names]
    return sorted(rows, key=lambda row: not row.differs)[:MOST_FACTS]


def _fact(name: str, facts: Sequence[dict[str, str]]) -> FactRow:
    texts = [of_side.get(name, "") for of_side in facts]
    return FactRow(name=name, values=texts, differs=len(set(texts)) > 1)


def _settings(job: Job, targets: dict[str, str]) -> dict[str, str]:
    """What a job was asked for, by names for people."""
    asked, key = Settings.of(job), job.spec.target_key
    minutes = None if asked.seconds is None else asked.seconds / 60
    bounds = ", ".join(limits(asked.trials, minutes, asked.until, job.budget.before_s))
    retimed = f"the best {asked.retimed} of each stale task are timed again"
    return {
        "model": short(job.spec.model_sha256) or "none: tasks alone",
        "sizes": dims_text(asked.dims),
        "target": f"{targets[key]} ({short(key)})" if key in targets else "that of the first device",
        "budget": retimed if asked.retimed else bounds,
        "precision": asked.precision,
        "strategy": asked.strategy,
        "seed": "" if asked.seed is None else str(asked.seed),
        "vendor": "measured beside it" if job.spec.settings.get("vendor") else "",
    }


def _origins(side: Side) -> dict[str, str]:
    """What the confirmed times of its tasks came of: versions and machines, by name."""
    provenances = [task.record.measurement.provenance for task in side.task_sides.values() if task.record]
    names = dict.fromkeys(name for provenance in provenances for name in provenance if name not in OF_TIMES)
    return {name: _together(provenance.get(name, "") for provenance in provenances) for name in names}


def _together(texts: Iterable[str]) -> str:
    """The different values among tasks, the most frequent first."""
    counts = Counter(text for text in texts if text)
    first = [text for text, _ in counts.most_common(MOST_VALUES)]
    return ", ".join(first) + (f" and {len(counts) - MOST_VALUES} more" if len(counts) > MOST_VALUES else "")
