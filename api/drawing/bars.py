"""Bars: where the time goes before and after, and tables whose last column is a bar.

A table is HTML, with a small drawing in each row: words wrap in it, and it is read out as the table that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from .figure import SERIES, Entry, figure, key, legend, series
from .frame import empty, listed
from .scales import Unit, is_drawable, told
from .svg import Attributes, element, joined, percent, safe, tip

_BAR_PX = 30
_ROW_PX = 62
_NUMBERED = 0.06
"""A part of the width that has room for a number."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one task takes of the whole in seconds, before and after; None where that isn't known."""

    name: str
    before: float | None
    after: float | None
    href: str | None = None


def shares(
    title: str,
    parts: Sequence[Part],
    *,
    before: str,
    after: str,
    nothing: str,
) -> Markup:
    """Two bars on one scale, each cut into its parts, with a legend that tells their shares.

    The first six parts have a colour and a number of their own, all others are one grey part: give what weighs most
    first, and in the order of the curves beside it. A side of which any part is unknown is not drawn.
    """
    sides = [(name, side) for name, side in ((before, _side(parts, False)), (after, _side(parts, True))) if sum(side)]
    if not sides:
        return figure("shares", empty(title, nothing))
    widest = max(sum(side) for _, side in sides)
    names = [part.name for part in parts[:SERIES]] + [_rest(parts)] * (len(parts) > SERIES)
    rows = [_row(n, name, side, widest, names) for n, (name, side) in enumerate(sides)]
    height = _ROW_PX * len(rows)
    sums = "; ".join(f"{name} {told(sum(side), Unit.TIME)}" for name, side in sides)
    notes = [" → ".join(f"{100 * side[n] / sum(side):.1f}%" for _, side in sides) for n in range(len(names))]
    words = (
        f"{sums}. Shares: {listed([f'{name} {note}' for name, note in zip(names, notes, strict=True)], SERIES + 1)}."
    )
    shape: Attributes = {"class": "stack", "role": "img", "width": "100%", "height": height}
    drawn = element("svg", shape, element("title", {}, title), element("desc", {}, words), *rows)
    entries = [
        Entry(key(series(n), "block"), f"{n + 1} {name}" if n < SERIES else name, note, _href(parts, n))
        for n, (name, note) in enumerate(zip(names, notes, strict=True))
    ]
    return figure("shares", drawn, legend(entries))


def _href(parts: Sequence[Part], n: int) -> str | None:
    return parts[n].href if n < SERIES else None


def _rest(parts: Sequence[Part]) -> str:
    more = len(parts) - SERIES
    return f"{more} more" if more > 1 else parts[-1].name


def _side(parts: Sequence[Part], is_after: bool) -> list[float]:
    """The values of one side, all beyond the first six as one; no values where one is unknown."""
    values = [part.after if is_after else part.before for part in parts]
    known = [value for value in values if value is not None and is_drawable(value) and value >= 0]
    if len(known) < len(values):
        return []
    return known[:SERIES] + [sum(known[SERIES:])] * (len(known) > SERIES)


def _row(n: int, name: str, side: list[float], widest: float, names: list[str]) -> Markup:
    top = _ROW_PX * n + 22
    head = [
        element("tspan", {"class": "strong"}, name),
        element("tspan", {"dx": 6}, told(sum(side), Unit.TIME)),
    ]
    pieces = [element("text", {"class": "value", "y": top - 8}, *head)]
    begin = 0.0
    for index, value in enumerate(side):
        width = value / widest
        if width > 0.0005:
            pieces.append(_piece(index, begin, width, top, f"{names[index]}: {told(value, Unit.TIME)}"))
        begin += width
    return joined(pieces)


def _piece(index: int, begin: float, width: float, top: float, words: str) -> Markup:
    box: Attributes = {
        "x": percent(begin),
        "y": top,
        "width": percent(width),
        "height": _BAR_PX,
        "class": f"fill {series(index)}",
    }
    parts = [element("title", {}, words), element("rect", box)]
    if width >= _NUMBERED and index < SERIES:
        at: Attributes = {
            "class": "inside",
            "text-anchor": "middle",
            "x": percent(begin + width / 2),
            "y": top + _BAR_PX / 2 + 4,
        }
        parts.append(element("text", at, str(index + 1)))
    return element("g", {}, *parts)


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: `text` is the value in words, `note` what is said beneath the name."""

    name: str
    value: float
    text: str
    note: str = ""
    tip: str = ""


def bars(
    title: str,
    rows: Sequence[Bar],
    *,
    heads: tuple[str, str],
    kind: Literal["candidate", "series-0"] = "candidate",
    nothing: str,
) -> Markup:
    """A table with a bar of the class `kind` in each row, in the order given. The largest one is full."""
    known = [row for row in rows if is_drawable(row.value)]
    full = max((row.value for row in known), default=0.0) or 1.0

    def bar(value: float) -> Markup:
        return _rect(kind, 0.0, min(max(value, 0.0) / full, 1.0))

    return _table(title, known, heads, nothing, bar)


def signed_bars(
    title: str,
    rows: Sequence[Bar],
    *,
    heads: tuple[str, str],
    nothing: str,
) -> Markup:
    """As `bars`, for values of both signs: what is above zero is good and goes to the right, the rest to the left."""
    known = [row for row in rows if is_drawable(row.value)]
    low, high = min([0.0, *(row.value for row in known)]), max([0.0, *(row.value for row in known)])
    length = (high - low) or 1.0
    zero = -low / length

    def bar(value: float) -> Markup:
        width = abs(value) / length
        begin = zero if value >= 0 else zero - width
        drawn = _rect("best" if value >= 0 else "failed", begin, width)
        x = percent(zero)
        return joined([drawn, element("line", {"class": "axis", "x1": x, "x2": x, "y1": -6, "y2": 22})])

    return _table(title, known, heads, nothing, bar)


def _rect(kind: str, begin: float, width: float) -> Markup:
    box: Attributes = {"class": f"fill {kind}", "x": percent(begin), "y": 2, "width": percent(width), "height": 12}
    return element("rect", box)


def _table(
    title: str, rows: Sequence[Bar], heads: tuple[str, str], nothing: str, bar: Callable[[float], Markup]
) -> Markup:
    if not rows:
        return figure("bars", empty(title, nothing))
    cells = [element("th", {"scope": "col"}, heads[0]), element("th", {"scope": "col", "colspan": "2"}, heads[1])]
    caption = element("caption", {"class": "unseen"}, title)
    body = element("tbody", {}, *(_line(row, bar) for row in rows))
    return figure("bars", element("table", {}, caption, element("thead", {}, element("tr", {}, *cells)), body))


def _line(row: Bar, bar: Callable[[float], Markup]) -> Markup:
    note = element("span", {"class": "note"}, row.note) if row.note else Markup("")
    name = element("th", {"scope": "row"}, element("span", {"class": "name"}, row.name), note)
    box: Attributes = {"class": "bar", "width": "100%", "height": 16, "aria-hidden": "true"}
    drawn = element("td", {"class": "drawn"}, element("svg", box, tip(row.tip), bar(row.value)))
    return element("tr", {}, name, drawn, element("td", {"class": "value"}, safe(row.text)))
