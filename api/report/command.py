"""`tunewright report`: writes the files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.db.reading import open_reader
from tunewright.tuner.jobs.report import Outcome
from tunewright.tuner.settings import settings
from tunewright.tuner.text import large, printable

from .document import document, findings
from .plots import INSTALL, is_installed, plots

SUFFIXES = (".html", ".htm")
"""What the name of a file ends in, rather than of a folder."""


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
        "outcome": None if job.outcome is None else job.outcome.value,
        "html": str(place.html),
        "size_bytes": len(files[place.html]),
        "plots": [str(path) for path in files if path != place.html],
        "notes": notes,
    }


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
    console.print(f"{printable(data['html'])}: job {data['job']}, {_ended(data)}, {size}", soft_wrap=True)
    for path in data["plots"]:
        console.print(printable(path), soft_wrap=True)


def _ended(data: Mapping[str, Any]) -> str:
    return "defaults kept" if data["outcome"] == Outcome.DEFAULTS_KEPT else str(data["state"])
