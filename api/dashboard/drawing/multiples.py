"""Small multiples: a small chart of each of many things, all against the same axis, each on a scale of its own.

Each is a name, a curve of steps and a line of figures; what it shows is in words too. Read `multiples` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .figure import Point
from .frame import GRID, Frame
from .scales import AxisSpec, Scale, scale, value_text
from .svg import Attributes, dot, element, join, link, path, text

HEIGHT_PX = 44
"""Of a curve."""

_FREE = 0.12  # of the height of each, free at its upper end


@dataclass(frozen=True, slots=True)
class Multiple:
    """One of the small charts: `figure` is what it comes to, and `notes` are told beside that."""

    name: str
    points: Sequence[Point]
    figure: str
    notes: Sequence[str] = ()
    href: str | None = None
    is_most: bool = False  # whether it stands out


def multiples(title: str, entries: Sequence[Multiple], x: AxisSpec, y: AxisSpec, *, until: float) -> Markup:
    """The charts as a list, in the order given. Each reaches from where `x` begins to `until`."""
    across = scale([until], x)
    charts = [
        element("li", {"class": "most" if entry.is_most else None}, *_chart(entry, across, x, y)) for entry in entries
    ]
    return element("ul", {"class": "multiples", "aria-label": title}, *charts)


def _chart(entry: Multiple, across: Scale, x: AxisSpec, y: AxisSpec) -> list[Markup]:
    points = sorted((point for point in entry.points if x.fits(point.x) and y.fits(point.y)), key=lambda one: one.x)
    told = element("strong", {}, entry.figure)
    notes = "".join(f", {note}" for note in entry.notes)
    return [
        element("p", {"class": "name"}, link(entry.href, element("span", {"title": entry.name}, entry.name))),
        element("figure", {"class": "chart multiple"}, _curve(entry.name, points, across, x, y)),
        element("p", {"class": "note"}, told, notes),
    ]


def _curve(name: str, points: Sequence[Point], across: Scale, x: AxisSpec, y: AxisSpec) -> Markup:
    """The curve on a scale of its own."""
    words, parts = "No time is known.", [text("label", 0, HEIGHT_PX / 2 + 4, "no time is known")]
    if points:
        up = scale([point.y for point in points], y, _FREE)
        frame = Frame(across, up, x.label, y.label, HEIGHT_PX)
        ends = [point.text or value_text(point.y, y.unit) for point in (points[0], points[-1])]
        words = f"{y.label}, against {x.label}: from {ends[0]} to {ends[1]}."
        parts = [frame.data_area(_steps(frame, points))]
    floor: Attributes = {"class": "axis", "x2": "100%", "y1": HEIGHT_PX, "y2": HEIGHT_PX}
    about = element("title", {}, name), element("desc", {}, words)
    shape: Attributes = {"role": "img", "width": "100%", "height": HEIGHT_PX}
    return element("svg", shape, *about, element("line", floor), *parts)


def _steps(frame: Frame, points: Sequence[Point]) -> Markup:
    """The line, on to the end of the axis, and a dot where it came to what it ends with."""
    places = [frame.at(point.x, point.y) for point in points]
    d = "M{} {}".format(*places[0]) + "".join(f"H{to_x}V{to_y}" for to_x, to_y in places[1:])
    whole = path("line series-0", f"{d}H{GRID}")
    return join([whole, element("g", {"class": "series-0"}, path("dot", dot(*places[-1])))])
