"""`tunewright report`: writes the report of a job to files.

The document has the pages of the job and of its heaviest tasks, as the service would render them, in one file of HTML;
where it is compared with other jobs, the page of that too.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup
from rich.console import Console

from tunewright.codegen.host import machine
from tunewright.codegen.write_faults import naming
from tunewright.db.reader import open_reader
from tunewright.db.store import Store
from tunewright.tuner.errors import Refused
from tunewright.tuner.explain.comparison import TimeFinding
from tunewright.tuner.models.task_graph import TaskGraph
from tunewright.tuner.search.report import JobOutcome, verdict
from tunewright.tuner.settings import settings
from tunewright.tuner.text import large, printable, short

from ...http.descriptions import Descriptions
from ..compare.page import compare_charts, compare_page
from ..compare.view import MOST_SIDES, CompareAsked, ComparePage, CompareTab
from ..html import assets, render, task_url
from ..job.charts import job_charts
from ..job.curves import Abscissa
from ..job.history import Histories
from ..job.page import asked_models, job_page
from ..job.view import JobPage, JobPageAsked, JobTab
from ..task.charts import task_charts
from ..task.page import task_page
from ..task.view import TaskAsked, TaskPage, TaskTab
from .fragment import Fragment
from .names import named_graph
from .plots import INSTALL, is_installed, plots

MOST_TASKS = 5
"""Tasks with a page in the report: each takes up to 250 kB."""

SHEETS = ("tokens.css", "charts.css", "style.css")
"""The style sheets of the pages, in the order in which they load them."""


SUFFIXES = (".html", ".htm")
"""What the name of a file ends in, rather than of a folder."""


def report(
    job_id: int, output: Path, db: str | None, others: Sequence[int] = (), names: Path | None = None
) -> dict[str, Any]:
    """Write the report of a job, as it stands, compared with the others.

    `names`: the file of its model, whose nodes have the names that they are told by. Raises StoreError, OSError,
    Refused, and ModelError for another model.
    """
    with open_reader(db or settings().db) as store:
        graph = None if names is None else named_graph(store, job_id, names)
        view, tasks = asyncio.run(findings(store, job_id, graph))
        comparison = comparison_of(store, job_id, others) if others else None
    is_file = output.suffix.lower() in SUFFIXES and not output.is_dir()
    html = output if is_file else output / f"job-{job_id}.html"
    html.parent.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    files = {html: document(view, tasks, datetime.now(UTC), comparison).encode()}
    if is_installed():
        files |= {html.with_name(f"{html.stem}-{name}.png"): data for name, data in plots(view).items()}
    else:
        notes.append(f"there are no plots, as matplotlib is not installed: {INSTALL}")
    for path, data in files.items():
        _write(path, data)
    job = view.job
    return {
        "job": job.id,
        "label": job.label,
        "state": job.state.value,
        "outcome": None if job.outcome is None else job.outcome.value,
        "html": str(html),
        "size_bytes": len(files[html]),
        "plots": [str(path) for path in files if path != html],
        "notes": notes,
    } | ({} if comparison is None else {"compared": _summary(comparison)})


def _summary(comparison: ComparePage) -> dict[str, Any]:
    """What a comparison comes to, as the command prints it."""
    baseline, *jobs = comparison.jobs
    return {
        "baseline": baseline.job.id,
        "jobs": [
            {
                "job": one.job.id,
                "run": None if one.run is None else one.run.finding.value,
                "slower": one.counts.get(TimeFinding.SLOWER, 0),
                "faster": one.counts.get(TimeFinding.FASTER, 0),
                "verdict": one.verdict,
            }
            for one in jobs
        ],
    }


def _write(path: Path, data: bytes) -> None:
    """All of a file or nothing. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            fresh.write_bytes(data)
            fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def render_report(console: Console, data: dict[str, Any]) -> None:
    """Print the files, one a line."""
    size = large(data["size_bytes"], "B")
    ending = verdict(data["state"], data["outcome"] and JobOutcome(data["outcome"]))
    console.print(f"{printable(data['html'])}: job {data['job']}, {ending}, {size}", soft_wrap=True)
    for path in data["plots"]:
        console.print(printable(path), soft_wrap=True)
    if compared := data.get("compared"):
        for one in compared["jobs"]:
            console.print(f"job {one['job']} since job {compared['baseline']}:", soft_wrap=True)
            for sentence in one["verdict"]:
                console.print(f"  {printable(sentence)}", soft_wrap=True)


# The document


async def findings(store: Store, job_id: int, graph: TaskGraph | None = None) -> tuple[JobPage, list[TaskPage]]:
    """The views of a job and its heaviest tasks, however long that takes. Raises NotFound, StoreError."""
    # What only the page with a tab open has, the report has of all tabs but the trials, of which there are too many.
    tabs = (JobTab.MODEL, JobTab.COST_MODEL)
    histories = Histories()
    job = job_page(store, histories, job_id, JobPageAsked(), tabs, graph)
    keys = [task.key for task in job.tasks if task.uses and task.best_ms is not None][:MOST_TASKS]
    descriptions = Descriptions(patience_s=inf)
    try:
        job = await asked_models(store, descriptions, job)
        queries = [TaskAsked(task=key, target=job.job.target.key, job=job_id, status=()) for key in keys]
        return job, [await task_page(store, histories, descriptions, query) for query in queries]
    finally:
        await descriptions.close()


def comparison_of(store: Store, job_id: int, others: Sequence[int]) -> ComparePage:
    """The view of a job compared with others, the first the baseline. Raises NotFound, StoreError, Refused."""
    others = [number for number in dict.fromkeys(others) if number != job_id]
    if not others:
        raise Refused(f"--compare: job {job_id} is compared with itself; name another one")
    if len(others) >= MOST_SIDES:
        raise Refused(f"--compare: {len(others)} other jobs; at most {MOST_SIDES - 1} are compared with one")
    for number in others:
        store.jobs.get(number)
    return compare_page(store, Histories(), CompareAsked(job=[job_id, *others], baseline=others[0]))


def document(
    job: JobPage, tasks: Sequence[TaskPage], written_at: datetime, comparison: ComparePage | None = None
) -> str:
    """The file: it loads nothing, runs nothing and leads nowhere."""
    places = {
        urlsplit(task_url(task.task.key, task.target.key)).path: f"about-{short(task.task.key)}" for task in tasks
    }
    by_seconds = job.model_copy(update={"asked": job.asked.model_copy(update={"x": Abscissa.SECONDS})})
    charts = _both(job_charts(job), job_charts(by_seconds))
    pages = [render("task/page.html", view=task, charts=task_charts(task), tabs=list(TaskTab)) for task in tasks]
    style = Markup("\n".join(assets()[name].content.decode() for name in SHEETS))  # safe: files of this package
    return render(
        "report/report.html",
        view=job,
        job=Fragment(places=places).of(render("job/page.html", view=job, charts=charts, tabs=list(JobTab))),
        comparison=None if comparison is None else Fragment("compared-", 1, places).of(_comparison_page(comparison)),
        tasks=[
            (place, Fragment(f"{place}-", 2, places).of(page))
            for place, page in zip(places.values(), pages, strict=True)
        ],
        style=style,
        policy=_policy(style),
        written_at=written_at,
        version=machine()["tunewright"],
    )


def _both(charts: dict[str, Markup], others: Mapping[str, Markup]) -> dict[str, Markup]:
    """Charts against trials, each with that against time behind it where this is another."""
    return {name: chart if others[name] == chart else chart + others[name] for name, chart in charts.items()}


def _comparison_page(view: ComparePage) -> str:
    """All that the page of a comparison has."""
    by_seconds = view.model_copy(update={"asked": view.asked.model_copy(update={"x": Abscissa.SECONDS})})
    charts = _both(compare_charts(view), compare_charts(by_seconds))
    return render("compare/page.html", view=view, charts=charts, tabs=list(CompareTab))


def _policy(style: str) -> str:
    """The Content-Security-Policy of a file: of all there could be in it, this style sheet alone is heeded."""
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
