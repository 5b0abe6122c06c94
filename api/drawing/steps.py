"""Step curves: the best so far of many tasks against trials or time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .figure import SERIES, Entry, figure, key, legend, series
from .frame import GRID, Frame, empty, listed, path, placed, text
from .scales import Axis, scale, spread, told
from .svg import dot, element, joined, link

DOTTED = 40
"""A curve of more steps than this has no dots: they would hide it."""
_NUMBER_PX = 13  # between the numbers at the ends of curves


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: points (x, y), each of which holds until the next. `note` stands beside its name in the legend."""

    name: str
    points: Sequence[tuple[float, float]]
    note: str = ""
    href: str | None = None


def steps(
    title: str,
    x: Axis,
    y: Axis,
    curves: Sequence[Curve],
    *,
    until: float | None = None,
    nothing: str,
) -> Markup:
    """A figure with the curves, drawn on to `until`.

    The first six have a colour, a dash and a number of their own, all others are thin and grey: give what weighs most
    first. Points that have no place on the axes are left out, and so are curves without any.
    """
    kept = [(curve, _sorted(curve, x, y)) for curve in curves]
    kept = [(curve, points) for curve, points in kept if points]
    if not kept:
        return figure("steps", empty(title, nothing))
    ends = [] if until is None else [until]
    frame = Frame(
        scale([point[0] for _, points in kept for point in points] + ends, x),
        scale([point[1] for _, points in kept for point in points], y, pad=0.06),
        x.label,
        y.label,
    )
    drawings = [_drawn(frame, index, curve, points, x, y) for index, (curve, points) in enumerate(kept)]
    is_numbered = len(kept) > 1
    drawn = frame.drawn(
        title,
        _words(kept, x, y),
        frame.stretched(joined(drawings[::-1])),  # those that weigh most lie on top
        _numbers(frame, kept) if is_numbered else Markup(""),
        has_links=any(curve.href for curve, _ in kept),
    )
    return figure("steps", drawn, _legend(kept) if is_numbered else Markup(""))


Points = list[tuple[float, float]]


def _sorted(curve: Curve, x: Axis, y: Axis) -> Points:
    return sorted((point for point in curve.points if x.fits(point[0]) and y.fits(point[1])), key=lambda p: p[0])


def _drawn(frame: Frame, index: int, curve: Curve, points: Points, x: Axis, y: Axis) -> Markup:
    kind, places = series(index), [frame.at(*point) for point in points]
    d, (at_x, at_y) = f"M{places[0][0]} {places[0][1]}", places[0]
    for to_x, to_y in places[1:]:
        if to_y != at_y:
            d += f"H{to_x}V{to_y}" if to_x != at_x else f"V{to_y}"
            at_x, at_y = to_x, to_y
    if at_x < GRID:
        d += f"H{GRID}"
    words = f"{curve.name}: {told(points[0][1], y.unit)} to {told(points[-1][1], y.unit)}"
    line = path(f"line {kind}", d)
    reach = path("reach", d)  # a wider line that nobody sees, for the pointer
    group = element("g", {}, element("title", {}, words), reach, line)
    whole = link(curve.href, group, label=words, is_repeated=index < SERIES)  # the legend has it too
    if index >= SERIES or len(points) > DOTTED:
        return whole
    dots = [
        path("dot", dot(*place), f"{curve.name}: {told(point[1], y.unit)} ({x.label} {told(point[0], x.unit)})")
        for place, point in zip(places, points, strict=True)
    ]
    return joined([whole, element("g", {"class": kind}, *dots)])


def _numbers(frame: Frame, kept: list[tuple[Curve, Points]]) -> Markup:
    """The number of each series at the end of its curve, moved apart where they would overlap."""
    wanted = [frame.height_px * (1.0 - frame.y.place(points[-1][1])) for _, points in kept[:SERIES]]
    moved = spread(wanted, _NUMBER_PX, 0, frame.height_px)
    return joined(
        [placed(series(index), ("100%", y), text("number", 7, 4, str(index + 1))) for index, y in enumerate(moved)]
    )


def _legend(kept: list[tuple[Curve, Points]]) -> Markup:
    entries = [
        Entry(key(series(index), "line"), f"{index + 1} {curve.name}", curve.note, curve.href)
        for index, (curve, _) in enumerate(kept[:SERIES])
    ]
    if len(kept) > SERIES:
        more = len(kept) - SERIES
        entries.append(Entry(key("other", "line"), f"{more} more" if more > 1 else kept[-1][0].name))
    return legend(entries)


def _words(kept: list[tuple[Curve, Points]], x: Axis, y: Axis) -> str:
    each = [
        f"{curve.name} from {told(points[0][1], y.unit)} to {told(points[-1][1], y.unit)}" for curve, points in kept
    ]
    return f"{y.label} against {x.label}. {listed(each)}."
