"""The document: the pages of a job and of its heaviest tasks, as the service would render them, as one file of HTML."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from urllib.parse import urlsplit

from markupsafe import Markup

from tunewright.codegen.host import machine
from tunewright.db.sql_store import SqlStore
from tunewright.tuner.text import short

from ..addresses import task_url
from ..charts.job import job_charts
from ..charts.task import task_charts
from ..html import assets, render
from ..looks import Looks
from ..views.history import Histories
from ..views.job import Abscissa, JobPage, JobPageAsked, job_page
from ..views.task import TaskAsked, TaskPage, task_page
from .piece import Piece

MOST_TASKS = 5
"""Tasks of which all is said: each takes up to 250 kB."""

SHEETS = ("charts.css", "style.css")
"""The style sheets of the pages, in the order in which they load them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is said of a job."""

    job: JobPage
    tasks: Sequence[TaskPage]  # the heaviest


async def findings(store: SqlStore, job_id: int) -> Findings:
    """What there is to say of a job and its heaviest tasks, however long that takes. Raises NotFound, StoreError."""
    job = job_page(store, Histories(), job_id, JobPageAsked())
    keys = [task.key for task in job.tasks if task.uses and task.best_ms is not None][:MOST_TASKS]
    looks = Looks(patience_s=inf)
    try:
        asked = [TaskAsked(task=key, target=job.job.target.key, job=job_id, status=()) for key in keys]
        return Findings(job, [await task_page(store, looks, one) for one in asked])
    finally:
        await looks.close()


def document(found: Findings, written_at: datetime) -> str:
    """The file: it loads nothing, runs nothing and leads nowhere."""
    job = found.job
    places = {
        urlsplit(task_url(task.task.key, task.target.key)).path: f"about-{short(task.task.key)}" for task in found.tasks
    }
    by_seconds = job.model_copy(update={"asked": job.asked.model_copy(update={"x": Abscissa.SECONDS})})
    charts = job_charts(job)
    for name, chart in job_charts(by_seconds).items():
        if chart != charts[name]:
            charts[name] += chart
    pages = [render("task.html", view=task, charts=task_charts(task)) for task in found.tasks]
    style = Markup("\n".join(assets()[name].content.decode() for name in SHEETS))  # safe: files of this package
    return render(
        "report.html",
        view=job,
        job=Piece(places=places).of(render("job.html", view=job, charts=charts)),
        tasks=[
            (place, Piece(f"{place}-", 2, places).of(page)) for place, page in zip(places.values(), pages, strict=True)
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
