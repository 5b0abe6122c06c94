"""Figures in HTML, where words wrap and are read out in order: bars before and after, tables of bars, loop nests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from .frame import SERIES, LegendEntry, empty, enumeration, figure, key, legend, series_class
from .scales import Unit, is_drawable, value_text
from .svg import Attributes, element, join, percent, safe, tip

_BAR_PX = 30
_ROW_PX = 62
_NUMBERED = 0.06
"""A part of the width that has room for a number."""


Mark = Callable[[str], str]
"""Gives a time the marks that it needs, such as "~"."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one task in a run, in seconds before and after; None where that isn't known."""

    name: str
    before: float | None
    after: float | None
    href: str | None = None
    marks: tuple[Mark, Mark] = (str, str)  # of its times before and after


def shares(
    title: str,
    parts: Sequence[Share],
    *,
    before: str,
    after: str,
    nothing: str,
    marks: tuple[Mark, Mark] = (str, str),
) -> Markup:
    """Two bars on one scale, each cut into its parts, with a legend that tells their shares.

    The first six parts have a colour and a number of their own, all others are one grey part: give what weighs most
    first, and in the order of the curves beside it. A side of which any part is unknown is not drawn. `marks` are
    those of the sums before and after.
    """
    more = len(parts) - SERIES
    every = (
        _Side.of(before, [part.before for part in parts], marks[0], [part.marks[0] for part in parts]),
        _Side.of(after, [part.after for part in parts], marks[1], [part.marks[1] for part in parts]),
    )
    sides = [side for side in every if side.sum]
    if not sides:
        return figure("shares", empty(title, nothing))
    names = [part.name for part in parts[:SERIES]]
    names += [f"{more} more" if more > 1 else parts[-1].name] * (more > 0)
    notes = [" → ".join(f"{100 * side.values[n] / side.sum:.1f}%" for side in sides) for n in range(len(names))]
    listing = enumeration([f"{name} {note}" for name, note in zip(names, notes, strict=True)], SERIES + 1)
    words = f"{'; '.join(' '.join(side.texts) for side in sides)}. Shares: {listing}."
    widest = max(side.sum for side in sides)
    rows = [
        _stack(_ROW_PX * n + 22, side.texts, [value / widest for value in side.values], side.tips(names))
        for n, side in enumerate(sides)
    ]
    shape: Attributes = {"class": "stack", "role": "img", "width": "100%", "height": _ROW_PX * len(rows)}
    drawing = element("svg", shape, element("title", {}, title), element("desc", {}, words), *rows)
    hrefs = [part.href for part in parts[:SERIES]] + [None] * (more > 0)
    entries = [
        LegendEntry(key(series_class(n), "block"), f"{n + 1} {name}" if n < SERIES else name, note, href)
        for n, (name, note, href) in enumerate(zip(names, notes, hrefs, strict=True))
    ]
    return figure("shares", drawing, legend(entries))


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two bars: its values, all beyond the first six as one, and the marks of their sum and of each."""

    name: str
    values: Sequence[float]  # none where one is unknown
    mark: Mark
    marks: Sequence[Mark]

    @staticmethod
    def of(name: str, values: Sequence[float | None], mark: Mark, marks: Sequence[Mark]) -> _Side:
        numbers = [value for value in values if value is not None and is_drawable(value) and value >= 0]
        if len(numbers) < len(values):
            return _Side(name, [], mark, [])
        if len(numbers) > SERIES:
            marks = marks if len(numbers) == SERIES + 1 else [*marks[:SERIES], mark]
            numbers = [*numbers[:SERIES], sum(numbers[SERIES:])]
        return _Side(name, numbers, mark, marks)

    @property
    def sum(self) -> float:
        return sum(self.values)

    @property
    def texts(self) -> tuple[str, str]:
        return self.name, self.mark(value_text(self.sum, Unit.TIME))

    def tips(self, names: Sequence[str]) -> list[str]:
        return [
            f"{name}: {mark(value_text(value, Unit.TIME))}"
            for name, mark, value in zip(names, self.marks, self.values, strict=True)
        ]


def _stack(top: int, texts: tuple[str, str], widths: Sequence[float], tips: Sequence[str]) -> Markup:
    """A bar of parts of these widths, below its name and its sum."""
    name, total = texts
    head = [element("tspan", {"class": "strong"}, name), element("tspan", {"dx": 6}, total)]
    pieces = [element("text", {"class": "value", "y": top - 8}, *head)]
    begin = 0.0
    for index, (width, words) in enumerate(zip(widths, tips, strict=True)):
        if width > 0.0005:
            box: dict[str, str | float | None] = {
                "x": percent(begin),
                "y": top,
                "width": percent(width),
                "height": _BAR_PX,
            }
            parts = [tip(words), element("rect", box | {"class": f"fill {series_class(index)}"})]
            if width >= _NUMBERED and index < SERIES:
                at: Attributes = {
                    "class": "inside",
                    "text-anchor": "middle",
                    "x": percent(begin + width / 2),
                    "y": top + _BAR_PX / 2 + 4,
                }
                parts.append(element("text", at, str(index + 1)))
            pieces.append(element("g", {}, *parts))
        begin += width
    return join(pieces)


BarKind = Literal["candidate", "series-0", "effect", "change"]
"""What a table of bars is of, and so their class: an effect on speed and a change of a time have both signs."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: `text` is the value in words, `note` what is said beneath the name."""

    name: str
    value: float
    text: str
    note: str = ""
    tip: str = ""


def bars(
    title: str, rows: Sequence[Bar], *, heads: tuple[str, str], kind: BarKind = "candidate", nothing: str
) -> Markup:
    """A table with a bar of the class `kind` in each row, in the order given. The largest one is full.

    Positive effects and changes go to the right, the rest to the left. An effect is good where it is positive, a change
    of a time where it is not.
    """
    rows = [row for row in rows if is_drawable(row.value)]
    if not rows:
        return figure("bars", empty(title, nothing))
    low, high = min(0.0, *(row.value for row in rows)), max(0.0, *(row.value for row in rows))
    length, is_signed = (high - low) or 1.0, kind in ("effect", "change")
    zero = percent(-low / length)
    line = element("line", {"class": "axis", "x1": zero, "x2": zero, "y1": -6, "y2": 22})

    def bar(value: float) -> Markup:
        begin, width = (min(value, 0.0) - low) / length, abs(value) / length
        is_good = value >= 0 if kind == "effect" else value <= 0
        own = ("best" if is_good else "failed") if is_signed else kind
        box: Attributes = {"class": f"fill {own}", "x": percent(begin), "y": 2, "width": percent(width), "height": 12}
        return join([element("rect", box), line]) if is_signed else element("rect", box)

    cells = [element("th", {"scope": "col"}, heads[0]), element("th", {"scope": "col", "colspan": "2"}, heads[1])]
    caption = element("caption", {"class": "unseen"}, title)
    body = element("tbody", {}, *(_line(row, bar(row.value)) for row in rows))
    return figure("bars", element("table", {}, caption, element("thead", {}, element("tr", {}, *cells)), body))


def _line(row: Bar, bar: Markup) -> Markup:
    note = element("span", {"class": "note"}, row.note) if row.note else Markup("")
    name = element("th", {"scope": "row"}, element("span", {"class": "name"}, row.name), note)
    box: Attributes = {"width": "100%", "height": 16, "aria-hidden": "true"}
    cell = element("td", {"class": "drawn"}, element("svg", box, tip(row.tip), bar))
    return element("tr", {}, name, cell, element("td", {"class": "value"}, safe(row.text)))


KINDS = frozenset({"serial", "parallel", "unroll", "block", "thread"})
"""The kinds of loops that have a colour of their own in the style sheet; all others look like serial ones."""


def nest(title: str, parts: Sequence[Mapping[str, Any]]) -> Markup:
    """A nested list: a rounded box for each loop around its body, and a line for each step.

    A loop has `kind`, `var`, `extent` and `parts`, what it repeats; a step, a piece of straight code, has `text`.
    """
    if not parts:
        return figure("nest", empty(title, "There is no loop."))
    return figure("nest", element("figcaption", {"class": "unseen"}, title), _list(parts))


def _list(parts: Sequence[Mapping[str, Any]]) -> Markup:
    return element("ol", {}, *map(_item, parts))


def _item(part: Mapping[str, Any]) -> Markup:
    if "text" in part:
        return element("li", {"class": "step"}, element("code", {}, part["text"]))
    kind, parts = part["kind"], part["parts"]
    head = element(
        "p",
        {},
        element("span", {"class": "kind"}, kind),
        " ",
        element("var", {}, part["var"]),
        " ",
        element("span", {"class": "extent"}, f"× {part['extent']}"),
    )
    name = f"loop {kind if kind in KINDS else 'serial'}"
    return element("li", {"class": name}, head, _list(parts) if parts else Markup(""))
