"""Data: what `static/charts.js` is told of a figure, to answer for it and to draw it anew. Read `figure_data`.

Values are as they were given, not as they are drawn. Names are short and what is nothing is left out, since some pages
have thousands of points: each is two numbers in a row of all, and what is said of points ends with the last of them
that has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from tunewright.tuner.text import printable

from .scales import AxisSpec, Scale, is_drawable
from .svg import check_address

if TYPE_CHECKING:
    from .figure import Figure, Mark, Point, Series
    from .frame import Frame

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;"})


def as_attribute(value: Mapping[str, Any]) -> Markup:
    """JSON for an attribute in single quotes: its own double quotes stay, of which there are many."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Safe: nothing is left that ends the attribute or begins anything else.
    return Markup(text.translate(_ESCAPES))


def figure_data(figure: Figure, frame: Frame, series: Sequence[Series], marks: Sequence[Mark]) -> dict[str, Any]:
    """The figure as its script takes it, of the series and marks that are drawn."""
    return _known(
        name=printable(figure.name) or None,
        kind=figure.kind,
        height=frame.height_px,
        x=_axis(figure.x, frame.x),
        y=_axis(figure.y, frame.y),
        until=figure.until,
        corner=printable(figure.corner),
        series=[_series(part) for part in series],
        marks=[_known(x=mark.x, y=mark.y, kind=mark.kind, href=_address(mark.href)) for mark in marks],
    )


def _known(**values: Any) -> dict[str, Any]:
    """Without what is nothing: zero is a value."""
    return {name: value for name, value in values.items() if value is not None and value not in ("", [])}


def _axis(spec: AxisSpec, scale: Scale) -> dict[str, Any]:
    include = [value for value in spec.include if is_drawable(value)]
    return {
        "label": printable(spec.label),
        "unit": spec.unit.value,
        "log": scale.is_log,
        "low": scale.low,
        "high": scale.high,
        "include": include,
    }


def _series(series: Series) -> dict[str, Any]:
    points = [point for point in series.points if is_drawable(point.x) and is_drawable(point.y)]
    return _known(
        name=printable(series.name),
        shape=series.shape,
        kind=series.kind,
        href=_address(series.href),
        short=printable(series.short),
        last=series.is_named_last or None,
        points=[value for point in points for value in (point.x, point.y)],
        tips=_told([printable(point.tip) for point in points]),
        texts=_told([printable(point.text) for point in points]),
        hrefs=_told([_address(point.href) or "" for point in points]),
    )


def _told(texts: list[str]) -> list[str]:
    """What is said of points, up to the last of which anything is."""
    count = next((n for n in range(len(texts), 0, -1) if texts[n - 1]), 0)
    return texts[:count]


def _address(href: str | None) -> str | None:
    return None if href is None else check_address(href)


def limit(points: Sequence[Point], *, links: int, tips: int) -> list[Point]:
    """The points with as many links and tooltips as are drawn: what is beyond would only be weight."""
    limited: list[Point] = []
    for point in points:
        is_link = point.href is not None and links > 0
        is_told = bool(point.tip) and tips > 0
        links -= is_link
        tips -= is_told
        limited.append(point._replace(href=point.href if is_link else None, tip=point.tip if is_told else ""))
    return limited
