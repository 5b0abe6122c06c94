"""`tunewright report`: what the dashboard says of a job, as files: one of HTML that needs nothing else, and plots.

The HTML is made of the pages of the job and of its heaviest tasks, as the service would render them: see `alone`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup
from rich.console import Console

from tunewright.codegen.host import machine
from tunewright.db.reading import open_reader
from tunewright.db.sql_store import SqlStore
from tunewright.tuner.settings import settings
from tunewright.tuner.text import large, printable

from .addresses import task_url
from .alone import Piece
from .charts.job import job_charts
from .charts.task import task_charts
from .html import KEY_LETTERS, assets, render
from .looks import Looks
from .plots import INSTALL, is_installed, plots
from .views.history import Histories
from .views.job import Abscissa, JobPage, JobPageAsked, job_page
from .views.task import TaskAsked, TaskPage, task_page

MOST_TASKS = 5
"""Tasks of which all is said: each takes up to 250 kB."""

SHEETS = ("charts.css", "style.css")
"""The style sheets of the pages, in the order in which they load them."""

SUFFIXES = (".html", ".htm")
"""What the name of a file ends in, rather than of a folder."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is said of a job."""

    job: JobPage
    tasks: Sequence[TaskPage]  # the heaviest


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files go."""

    html: Path

    @staticmethod
    def of(output: Path, job_id: int) -> Place:
        """A folder, which is made where there is none, or a file. Raises OSError."""
        is_file = output.suffix.lower() in SUFFIXES and not output.is_dir()
        html = output if is_file else output / f"job-{job_id}.html"
        html.parent.mkdir(parents=True, exist_ok=True)
        return Place(html)

    def plot(self, name: str) -> Path:
        """Beside the HTML."""
        return self.html.with_name(f"{self.html.stem}-{name}.png")


def report(job_id: int, output: Path, db: str | None) -> dict[str, Any]:
    """Write the report of a job, as it stands. Raises StoreError, OSError."""
    with open_reader(db or settings().db) as store:
        found = asyncio.run(findings(store, job_id))
    place = Place.of(output, job_id)
    notes: list[str] = []
    files = {place.html: document(found, datetime.now(UTC)).encode()}
    if is_installed():
        files |= {place.plot(name): data for name, data in plots(found.job).items()}
    else:
        notes.append(f"there are no plots, as matplotlib is not installed: {INSTALL}")
    for path, data in files.items():
        _write(path, data)
    job = found.job.job
    return {
        "job": job.id,
        "label": job.label,
        "state": job.state.value,
        "html": str(place.html),
        "size_bytes": len(files[place.html]),
        "plots": [str(path) for path in files if path != place.html],
        "notes": notes,
    }


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
        urlsplit(task_url(task.task.key, task.target.key)).path: f"about-{task.task.key[:KEY_LETTERS]}"
        for task in found.tasks
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


def _write(path: Path, data: bytes) -> None:
    """All of a file or nothing. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def render_report(console: Console, data: dict[str, Any]) -> None:
    """The files, one a line."""
    size = large(data["size_bytes"], "B")
    console.print(f"{printable(data['html'])}: job {data['job']}, {data['state']}, {size}", soft_wrap=True)
    for path in data["plots"]:
        console.print(printable(path), soft_wrap=True)
