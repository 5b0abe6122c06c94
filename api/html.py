"""HTML: pages made of the templates in `templates/`. Read `render` first.

Whatever a template shows is escaped, and so is each character that can't be seen: a label may hold anything. Scripts,
styles and pictures come from the service alone, and none may stand in a page (`POLICY`): no `style=`, no `onclick=`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib import resources
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tunewright.db.jobs import DEFAULT_TRIALS
from tunewright.tuner import text

from . import addresses

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of pages."""

MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""Of the files in `static/` that are served."""


@dataclass(frozen=True)
class Asset:
    """A file that pages load."""

    name: str
    content: bytes
    media_type: str

    @cached_property
    def version(self) -> str:
        """Changes with the content, so that a browser may keep the file for ever."""
        return hashlib.sha256(self.content).hexdigest()[:16]


@cache
def assets() -> dict[str, Asset]:
    """All of them, by name."""
    files = (resources.files("tunewright.api") / "static").iterdir()
    suffixes = tuple(MEDIA_TYPES)
    return {
        file.name: Asset(file.name, file.read_bytes(), MEDIA_TYPES["." + file.name.rpartition(".")[2]])
        for file in sorted(files, key=lambda file: file.name)
        if file.name.endswith(suffixes)
    }


def asset(name: str) -> str:
    """Where a file of `static/` is, as pages name it."""
    return f"/static/{name}?v={assets()[name].version}"


# Filters. Each shows "-" where nothing is known.


def _clock(seconds: float | None) -> str:
    """A duration of a job, e.g. "1:05" (minutes) or "2:03:00"."""
    return "-" if seconds is None else text.clock(seconds)


def _seconds(seconds: float | None) -> str:
    """A short duration, e.g. "1.49 s" or "250 ms"."""
    return text.duration(None if seconds is None else 1e3 * seconds)


def _small_share(part: float | None) -> str:
    """A part of one that may be small, e.g. "0.042%"."""
    if part is None or part >= 0.1:
        return text.share(part)
    return f"{100 * part:.2g}%"


def _ago(moment: datetime) -> str:
    """How long ago it was, for people."""
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _moment(moment: datetime | None) -> str:
    """A moment, e.g. "2026-11-20 09:30:00 UTC"."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _count(count: float | None) -> str:
    """A count, e.g. "12,345"."""
    return "-" if count is None else f"{count:,.0f}"


def _lines(lines: str | Iterable[str]) -> Markup:
    """Text of many lines that stays so, for `<pre>`."""
    return escape(text.printable_lines(lines if isinstance(lines, str) else "\n".join(lines)))


def _sentence(said: str) -> Markup:
    """What is said of a problem, as a sentence of its own: `code` within it is marked as such."""
    parts = [escape(text.printable(part)) for part in (said[:1].upper() + said[1:]).split("`")]
    shown = Markup("").join(Markup("<code>{}</code>").format(one) if n % 2 else one for n, one in enumerate(parts))
    return shown if said.endswith((".", "!", "?")) else shown + "."


def _visible(value: Any) -> Any:
    """What a template is about to show: no character in it is invisible, or turns the text around."""
    return text.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_templates = Environment(
    loader=PackageLoader("tunewright.api", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {
    "ms": text.duration,  # milliseconds in the unit that suits them
    "seconds": _seconds,
    "clock": _clock,
    "share": text.share,  # 0.123 -> 12.3%
    "small_share": _small_share,
    "percent": text.percent,  # 0.02 -> 2%
    "gain": text.gain,  # 1.62 -> 1.62x; 1.001 -> no gain
    "times": text.times,
    "count": _count,
    "counted": text.counted,  # 3 | counted("trial")
    "large": text.large,  # 3.6e9 | large("FLOP")
    "uses": text.uses,  # chosen | uses(occurrences)
    "ago": _ago,
    "moment": _moment,
    "digest": text.short,
    "lines": _lines,
    "sentence": _sentence,
}
_templates.globals |= {
    "asset": asset,
    "default_trials": DEFAULT_TRIALS,
    "url": addresses.url,
    "job_url": addresses.job_url,
    "task_url": addresses.task_url,
    "candidate_url": addresses.candidate_url,
    "records_url": addresses.records_url,
    "lookup_url": addresses.lookup_url,
    "twin_url": addresses.twin_url,
}


def render(template: str, **values: Any) -> str:
    """The text of a page. Values that templates may not find are a bug."""
    return _templates.get_template(template).render(**values)


def page(template: str, status: int = 200, headers: dict[str, str] | None = None, **values: Any) -> HTMLResponse:
    """A page as an answer."""
    return HTMLResponse(render(template, **values), status, headers)
