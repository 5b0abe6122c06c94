"""HTML: pages made of the templates beside them, the files that these load, and addresses. Read `render` first.

Whatever a template shows is escaped, and so is each character that can't be seen: a label may hold anything. Scripts,
styles and pictures come from the service alone, and none may stand in a page, no `style=` and no `onclick=`: see
`middleware.POLICY`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib import resources
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tunewright.db.job import DEFAULT_TRIALS
from tunewright.tuner import text

from ..http.etags import cache_headers, not_modified
from ..http.paths import JOBS, LOGIN, LOGOUT, is_page
from ..http.problems import Problem, ProblemKind
from .help_texts import help_text

MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""Media types of the files in `static/` that are served, by suffix."""

FOR_EVER = "public, max-age=31536000, immutable"

router = APIRouter(prefix="/static", tags=["pages"])


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
    """All assets, by name."""
    files = (resources.files("tunewright.api.dashboard") / "static").iterdir()
    suffixes = tuple(MEDIA_TYPES)
    return {
        file.name: Asset(file.name, file.read_bytes(), MEDIA_TYPES["." + file.name.rpartition(".")[2]])
        for file in sorted(files, key=lambda file: file.name)
        if file.name.endswith(suffixes)
    }


def asset(name: str) -> str:
    """URL of a file of `static/`, with its version."""
    return f"/static/{name}?v={assets()[name].version}"


@router.get("/{name}", include_in_schema=False)
async def static(
    request: Request,
    name: Annotated[str, Path(description="Of the file.")],
    v: Annotated[str, Query(max_length=64, description="Its version: another content has another one.")] = "",
) -> Response:
    """A file under its version never changes; without, a browser asks each time. It is open: `middleware.STATIC`."""
    file = assets().get(name)
    if file is None:
        raise Problem(ProblemKind.NOT_FOUND, "pages load no such file")
    caching = FOR_EVER if v == file.version else "public, no-cache"
    headers = cache_headers(file.content) | {"Cache-Control": caching}
    whole = Response(file.content, headers=headers, media_type=file.media_type)
    return not_modified(request.headers.get("if-none-match"), headers) or whole


# Addresses

KEPT = "=&+%,:;/?@!$'()*~-._"
"""Characters that are not escaped in a path and a query (RFC 3986), without brackets."""

LONGEST_ADDRESS = 2000
"""Longest address that a form may redirect to, in characters."""


def own_page(address: str) -> str:
    """An address if it is that of a page of this service to begin at, as a redirect may name it; else the first page.

    So a form that says where to go on leads nowhere else.
    """
    try:
        parts = urlsplit(address[:LONGEST_ADDRESS])
    except ValueError:
        return JOBS
    if (
        len(address) > LONGEST_ADDRESS
        or parts.scheme
        or parts.netloc
        or not is_page(parts.path)
        or parts.path in (LOGIN, LOGOUT)
    ):
        return JOBS
    return quote(parts.path, safe=KEPT) + (f"?{quote(parts.query, safe=KEPT)}" if parts.query else "")


def url(path: str, /, **query: object) -> str:
    """A path of this service with a query; what is None, empty or False in it is left out, a list comes repeatedly.

    True is `true`, as forms send it.
    """
    pairs: list[tuple[str, object]] = []
    for name, value in query.items():
        values = value if isinstance(value, list | tuple) else (value,)
        pairs += [
            (name, "true" if item is True else item)
            for item in values
            if item is not None and item is not False and item != ""
        ]
    return quote(path) + ("?" + urlencode(pairs) if pairs else "")


def job_url(job_id: int, **query: object) -> str:
    """URL of the page of a job."""
    return url(f"/jobs/{job_id}", **query)


def task_url(task_key: str, target: str, **query: object) -> str:
    """URL of the page of a task on a target."""
    return url(f"/tasks/{task_key}", target=target, **query)


def explorer_url(task_key: str, target: str, **query: object) -> str:
    """URL of the page that explores the trials of a task on a target."""
    return url(f"/tasks/{task_key}/trials", target=target, **query)


def candidate_url(task_key: str, schedule_key: str, target: str, **query: object) -> str:
    """URL of the page of a schedule of a task on a target."""
    return url(f"/tasks/{task_key}/schedules/{schedule_key}", target=target, **query)


def records_url(**query: object) -> str:
    """URL of the page of records."""
    return url("/records", **query)


def lookup_url(task_key: str, target: str) -> str:
    """URL of the result of a lookup, on the page of records."""
    return f"{records_url(task=task_key, on=target)}#lookup"


def twin_url(page: str) -> str:
    """URL of a page's twin: the same as JSON."""
    path, mark, query = page.partition("?")
    # Added, not formatted: what a macro of a template has escaped stays `Markup`, and is not escaped once more.
    return "/v1/pages" + ("/jobs" if path == JOBS else path) + mark + query


# Filters. Each shows "-" where nothing is known.


def _clock(seconds: float | None) -> str:
    """A duration of a job, e.g. "1:05" (minutes) or "2:03:00"."""
    return "-" if seconds is None else text.clock(seconds)


def _about(seconds: float | None) -> str:
    """A duration that is expected, e.g. "about 2 h"; `clock` is for those that were measured."""
    return "-" if seconds is None else text.about(seconds)


def _ms(value_ms: float | None) -> Markup:
    """Milliseconds in the unit that suits them, which stays on the line of its value."""
    return _unbroken(text.duration(value_ms))


def _unbroken(words: str) -> Markup:
    return escape(words.replace(" ", "\N{NO-BREAK SPACE}"))


def _shape(words: str) -> Markup:
    """The shapes of a task, or a name with them, whose arrow `->` no line breaks."""
    arrow = Markup('<span class="nowrap">{}</span>').format("->")
    return arrow.join(escape(part) for part in text.printable(words).split("->"))


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


def _within_ms(interval: text.Interval | None) -> Markup:
    """An interval of a time, e.g. "374 µs to 380 µs"; empty where none can be told."""
    edges = text.edges(interval, lambda value_ms, more: text.duration(value_ms, 3 + more)) or ()
    return Markup(" to ").join(map(_unbroken, edges))


def _within_times(interval: text.Interval | None) -> str:
    """An interval of a ratio, e.g. "1.38x to 1.45x"."""
    return " to ".join(text.edges(interval, text.times) or ())


def _count(count: float | None) -> str:
    """A count, e.g. "12,345"."""
    return "-" if count is None else f"{count:,.0f}"


def _lines(lines: str | Iterable[str]) -> Markup:
    """Text of many lines that stays so, for `<pre>`."""
    return escape(text.printable_lines(lines if isinstance(lines, str) else "\n".join(lines)))


def _sentence(detail: str) -> Markup:
    """A message as a sentence, with its `code` marked as such."""
    parts = [escape(text.printable(part)) for part in (detail[:1].upper() + detail[1:]).split("`")]
    markup = Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))
    return markup if detail.endswith((".", "!", "?")) else markup + "."


def _visible(value: Any) -> Any:
    """A value for a template, without characters that are invisible or reverse the text."""
    return text.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_templates = Environment(
    loader=PackageLoader("tunewright.api.dashboard", ""),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {
    "ms": _ms,
    "clock": _clock,
    "about": _about,  # 7300 | about -> about 2 h
    "share": text.share,  # 0.123 -> 12.3%
    "small_share": text.small_share,
    "percent": text.percent,  # 0.02 -> 2%
    "faster": text.faster,  # 0.03 -> 3.0% faster
    "change": text.change,  # 0.7 -> -30%
    "gain": text.gain,  # 1.62 -> 1.62x; 1.001 -> no gain
    "times": text.times,
    "within_ms": _within_ms,
    "within_times": _within_times,
    "count": _count,
    "counted": text.counted,  # 3 | counted("trial")
    "large": text.large,  # 3.6e9 | large("FLOP")
    "taken_back": text.taken_back,  # 2 | taken_back
    "moments": text.moments,  # [noise, noise of the trial] | moments
    "uses": text.uses,  # chosen | uses(occurrences)
    "shape": _shape,
    "ago": _ago,
    "moment": _moment,
    "digest": text.short,
    "lines": _lines,
    "sentence": _sentence,
}
_templates.globals |= {
    "asset": asset,
    "IMPORTED": text.IMPORTED,
    "beside_trial": text.beside_trial,
    "default_trials": DEFAULT_TRIALS,
    "help_text": help_text,
    "may_steer": False,  # whether who looks may submit and steer jobs, unless a page says otherwise
    "may_tend": False,  # nor drain and rest what is in the fleet
    "may_give_keys": False,
    "url": url,
    "job_url": job_url,
    "task_url": task_url,
    "candidate_url": candidate_url,
    "explorer_url": explorer_url,
    "records_url": records_url,
    "lookup_url": lookup_url,
    "twin_url": twin_url,
}


def render(template: str, **values: Any) -> str:
    """The text of a page. Values that templates may not find are a bug."""
    return _templates.get_template(template).render(**values)


def page(template: str, status: int = 200, headers: dict[str, str] | None = None, **values: Any) -> HTMLResponse:
    """A page as an answer."""
    return HTMLResponse(render(template, **values), status, headers)
