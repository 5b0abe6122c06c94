"""`tunewright report`: writes the report of a job to files.

The document has the pages of the job and of its heaviest tasks, as the service would render them, in one file of HTML.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from base64 import b64encode
from collections.abc import Sequence
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
from tunewright.tuner.search.report import JobOutcome, verdict
from tunewright.tuner.settings import settings
from tunewright.tuner.text import large, printable, short

from ...http.descriptions import Descriptions
from ..html import assets, render, task_url
from ..job.charts import job_charts, model_figure
from ..job.curves import Abscissa
from ..job.history import Histories
from ..job.page import asked_models, job_page
from ..job.view import JobPage, JobPageAsked, JobTab
from ..task.page import TaskAsked, TaskPage, task_charts, task_page
from .fragment import Fragment
from .plots import INSTALL, is_installed, plots

MOST_TASKS = 5
"""Tasks with a page in the report: each takes up to 250 kB."""

SHEETS = ("charts.css", "style.css")
"""The style sheets of the pages, in the order in which they load them."""


SUFFIXES = (".html", ".htm")
"""What the name of a file ends in, rather than of a folder."""


def report(job_id: int, output: Path, db: str | None) -> dict[str, Any]:
    """Write the report of a job, as it stands. Raises StoreError, OSError."""
    with open_reader(db or settings().db) as store:
        view, tasks = asyncio.run(findings(store, job_id))
    is_file = output.suffix.lower() in SUFFIXES and not output.is_dir()
    html = output if is_file else output / f"job-{job_id}.html"
    html.parent.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    files = {html: document(view, tasks, datetime.now(UTC)).encode()}
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


# The document


async def findings(store: Store, job_id: int) -> tuple[JobPage, list[TaskPage]]:
    """The views of a job and its heaviest tasks, however long that takes. Raises NotFound, StoreError."""
    job = job_page(store, Histories(), job_id, JobPageAsked(tab=JobTab.COST_MODEL))  # whose data no other tab has
    keys = [task.key for task in job.tasks if task.uses and task.best_ms is not None][:MOST_TASKS]
    descriptions = Descriptions(patience_s=inf)
    try:
        job = await asked_models(store, descriptions, job)
        queries = [TaskAsked(task=key, target=job.job.target.key, job=job_id, status=()) for key in keys]
        return job, [await task_page(store, descriptions, query) for query in queries]
    finally:
        await descriptions.close()


def document(job: JobPage, tasks: Sequence[TaskPage], written_at: datetime) -> str:
    """The file: it loads nothing, runs nothing and leads nowhere."""
    places = {
        urlsplit(task_url(task.task.key, task.target.key)).path: f"about-{short(task.task.key)}" for task in tasks
    }
    charts = job_charts(job)
    by_seconds = model_figure(job, Abscissa.SECONDS).draw()
    if by_seconds != charts["model"]:
        charts["model"] += by_seconds
    pages = [render("task/page.html", view=task, charts=task_charts(task)) for task in tasks]
    style = Markup("\n".join(assets()[name].content.decode() for name in SHEETS))  # safe: files of this package
    return render(
        "report/report.html",
        view=job,
        job=Fragment(places=places).of(render("job/page.html", view=job, charts=charts, tabs=list(JobTab))),
        tasks=[
            (place, Fragment(f"{place}-", 2, places).of(page))
            for place, page in zip(places.values(), pages, strict=True)
        ],
        style=style,
        policy=_policy(style),
        written_at=written_at,
        version=machine()["tunewright"],
    )


def _policy(style: str) -> str:
    """The Content-Security-Policy of a file: of all there could be in it, this style sheet alone is heeded."""
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
