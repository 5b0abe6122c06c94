"""HTML: pages made of the templates, which escape whatever they show. No page has a script; the headers forbid any."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from tunewright.db.jobs import Job

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def _ago(moment: datetime) -> str:
    """How long ago it was, for people."""
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _done(job: Job) -> int:
    """How many trials a job's newest progress tells of."""
    told = (job.progress or {}).get("trials", 0)
    return told if isinstance(told, int) else 0


_templates = Environment(
    loader=PackageLoader("tunewright.api", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {"ago": _ago, "done": _done}


def page(name: str, status: int = 200, headers: dict[str, str] | None = None, **values: Any) -> HTMLResponse:
    """A page made of a template."""
    text = _templates.get_template(name).render(**values)
    return HTMLResponse(text, status, {"Content-Security-Policy": POLICY} | (headers or {}))
