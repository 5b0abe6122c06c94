"""The drawing of a graph: boxes with a text, a colour by what they take of the whole, and lines to what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal
from unicodedata import east_asian_width

from markupsafe import Markup

from tunewright.tuner.text import printable

from .frame import LegendEntry, empty, figure, legend
from .layers import BOX_WIDTH_PX, Edge, GraphLayout, lay_out
from .svg import Attributes, element, join, link, number, tip

HEATS = (0.01, 0.03, 0.06, 0.12, 0.25)
"""Shares of the whole from which on a box has the next colour of the style sheet, `heat-0` to `heat-5`."""

_WIDTHS_PX = {"narrow": 4.5, "plain": 7.3, "wide": 10.0, "double": 12.5}
"""Of letters of 12 px, as a wide font has them; bold ones are wider by `_BOLD`."""
_NARROW, _WIDE, _BOLD = frozenset(" ,.:;'|!()[]fijlt1·"), frozenset("%+@MW_mw×"), 1.1

_LINE_PX = 16
_PAD_PX = 10
_ARROW = 5
_ROUND = 5.0


@dataclass(frozen=True, slots=True)
class GraphBox:
    """A box: lines of text, of which the first is what it is, and what reads it (`carries`) says what it reads.

    `share` is what it takes of the whole; None where nothing is known or it takes no time. A `plain` box runs without a
    kernel of ours, a `port` is where data comes from or goes to, a `pile` stands for several.
    """

    lines: tuple[str, ...]
    kind: Literal["task", "plain", "port", "pile"]
    sources: tuple[int, ...] = ()
    share: float | None = None
    words: str = ""
    carries: str = ""
    href: str | None = None


def draw_graph(title: str, words: str, boxes: Sequence[GraphBox], nothing: str) -> Markup:
    """The graph in a box that scrolls; `words` tell of it to those who don't see it, `nothing` why it is empty.

    The keyboard does not stop at its boxes: give a table that leads to the same places.
    """
    if not boxes:
        return figure("graph", empty(title, nothing))
    height_px = _PAD_PX + _LINE_PX * max(len(box.lines) for box in boxes) + _PAD_PX
    layout = lay_out([box.sources for box in boxes], height_px)
    shape: Attributes = {"role": "group", "width": layout.width_px, "height": layout.height_px}
    about = element("title", {}, title), element("desc", {}, words)
    drawing = element("svg", shape, *about, _lines(layout, boxes), *_boxes(layout, boxes, height_px))
    region: Attributes = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": title}
    return figure("graph", element("div", region, drawing), legend(_key(boxes)))


def _lines(layout: GraphLayout, boxes: Sequence[GraphBox]) -> Markup:
    lines = [
        element("path", {"class": "edge", "d": _path(edge)}, tip(boxes[edge.source].carries)) for edge in layout.edges
    ]
    ends = {edge.points[-1] for edge in layout.edges}
    arrows = "".join(f"M{number(x - _ARROW)} {number(y - 3.5)}l{_ARROW} 3.5-{_ARROW} 3.5z" for x, y in sorted(ends))
    return join([*lines, element("path", {"class": "arrows", "d": arrows})])


def _path(edge: Edge) -> str:
    """A curve between two points, or straight lines with round corners."""
    (x, y), *rest = edge.points
    if len(rest) == 1:
        ((to_x, to_y),) = rest
        if y == to_y:
            return f"M{number(x)} {number(y)}H{number(to_x)}"
        middle = number((x + to_x) / 2)
        return f"M{number(x)} {number(y)}C{middle} {number(y)} {middle} {number(to_y)} {number(to_x)} {number(to_y)}"
    text = f"M{number(x)} {number(y)}"
    for (corner_x, corner_y), (after_x, after_y) in pairwise(rest):
        before_x, before_y = _towards((corner_x, corner_y), (x, y))
        behind_x, behind_y = _towards((corner_x, corner_y), (after_x, after_y))
        text += f"L{number(before_x)} {number(before_y)}Q{number(corner_x)} {number(corner_y)} "
        text += f"{number(behind_x)} {number(behind_y)}"
        x, y = corner_x, corner_y
    return f"{text}L{number(rest[-1][0])} {number(rest[-1][1])}"


def _towards(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """The point a little from `start` on the way to `end`, at most half of it: where the corner begins."""
    (x, y), (to_x, to_y) = start, end
    length = max(abs(to_x - x), abs(to_y - y))
    part = min(_ROUND / length, 0.5) if length else 0.0
    return x + (to_x - x) * part, y + (to_y - y) * part


def _boxes(layout: GraphLayout, boxes: Sequence[GraphBox], height_px: int) -> list[Markup]:
    drawn = []
    for box, place in zip(boxes, layout.places, strict=True):
        size: Attributes = {"class": "body", "width": BOX_WIDTH_PX, "height": height_px, "rx": 6}
        parts = [element("rect", {**size, "x": 4, "y": 4})] if box.kind == "pile" else []
        parts.append(element("rect", size))
        if _heat(box.share):
            bar: Attributes = {"class": "bar", "x": 2, "y": height_px - 5, "height": 3}
            parts.append(element("rect", {**bar, "width": max(1.0, (BOX_WIDTH_PX - 4) * min(box.share or 0.0, 1.0))}))
        parts += [
            element(
                "text",
                {"x": 8, "y": _PAD_PX + _LINE_PX * n + 11, "class": None if n else "strong"},
                _fit(line, BOX_WIDTH_PX - 16, is_bold=not n),
            )
            for n, line in enumerate(box.lines)
        ]
        inside = (
            link(box.href, *parts, tip(box.words), is_repeated=True) if box.href else join([*parts, tip(box.words)])
        )
        kind = f"box {box.kind} heat-{_heat(box.share)}"
        drawn.append(element("g", {"class": kind, "transform": f"translate({place.x} {place.y})"}, inside))
    return drawn


def _heat(share: float | None) -> int:
    return sum(share is not None and share >= least for least in HEATS)


def _fit(text: str, room_px: float, *, is_bold: bool) -> str:
    """As much of a text as there is room for."""
    text, left_px = printable(text), room_px
    for place, letter in enumerate(text):
        left_px -= _width_px(letter) * (_BOLD if is_bold else 1.0)
        if left_px < 0:
            return f"{text[: max(place - 1, 1)]}…"
    return text


def _width_px(letter: str) -> float:
    if east_asian_width(letter) in "WF":
        return _WIDTHS_PX["double"]
    return _WIDTHS_PX["narrow" if letter in _NARROW else "wide" if letter in _WIDE else "plain"]


def _key(boxes: Sequence[GraphBox]) -> list[LegendEntry]:
    kinds = {box.kind for box in boxes}
    edges = [0.0, *HEATS]
    entries = []
    for heat in sorted({_heat(box.share) for box in boxes if box.share is not None}):
        upper = edges[heat + 1] if heat + 1 < len(edges) else None
        words = f"{100 * edges[heat]:g}% or more" if upper is None else f"{100 * edges[heat]:g} to {100 * upper:g}%"
        entries.append(LegendEntry(_sample(f"task heat-{heat}"), words, "of a run"))
    if "plain" in kinds:
        entries.append(LegendEntry(_sample("plain heat-0"), "runs without a kernel of ours"))
    if "pile" in kinds:
        entries.append(LegendEntry(_sample("pile heat-0"), "stands for several nodes"))
    return entries


def _sample(kind: str) -> Markup:
    shape: Attributes = {"class": "body", "x": 6, "width": 20, "height": 12, "rx": 3}
    body = [element("rect", {**shape, "x": 9, "y": 3})] if kind.startswith("pile") else []
    box: Attributes = {"class": "key", "viewBox": "0 -3 32 18", "width": 32, "height": 18, "aria-hidden": "true"}
    return element("svg", box, element("g", {"class": f"box {kind}"}, *body, element("rect", shape)))
