"""Points against two axes: the roofline of a task, and what was predicted against what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from tunewright.tuner.text import counted, duration, large

from .figure import SHAPES, Entry, figure, key, legend
from .frame import Frame, empty, listed, path, placed, text
from .scales import Axis, Unit, scale, told
from .svg import dot, element, joined, link, tip

LINKS = 100
"""So many points are links at most: each is a stop of the keyboard, and takes a few hundred bytes."""
TIPS = 500
"""So many points have a tooltip at most."""
DASHES = 5
"""How many dashes the style sheet has for ceilings."""
NOTHING = "No candidate has been measured yet."
_SPREAD = 0.03  # of the length of an axis: free at its ends
_NAME_PX = 14  # between names below each other
_LABEL = 0.3  # of the width: what a mark's label takes on a phone
_EDGE = 0.6  # marks beyond this part of the width have their label on the left


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate. Without a tooltip or a link it takes about ten bytes."""

    x: float
    y: float
    tip: str = ""
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that is drawn large, with its kind beside it."""

    x: float
    y: float
    kind: Literal["best", "default"]
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points. `short` is its name in the frame: beneath its first point, or above its last."""

    points: Sequence[tuple[float, float]]
    label: str
    kind: Literal["ceiling", "diagonal"] = "ceiling"
    dash: int = 0
    short: str = ""
    is_named_last: bool = False


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How fast a level of the memory gives its bytes."""

    name: str
    bytes_s: float


def scatter(
    title: str,
    x: Axis,
    y: Axis,
    points: Sequence[Point],
    *,
    marks: Sequence[Mark] = (),
    lines: Sequence[Line] = (),
    words: str,
    is_square: bool = False,
    nothing: str = NOTHING,
) -> Markup:
    """A figure with the points, the marks above them and the lines beneath.

    `words` describe it, beyond what is counted here. Points that have no place on the axes are left out. Of those with
    a link the first `LINKS` are links; give the ones that matter first.
    """
    points = [point for point in points if x.fits(point.x) and y.fits(point.y)]
    marks = [mark for mark in marks if x.fits(mark.x) and y.fits(mark.y)]
    if not points and not marks:
        return figure("scatter", empty(title, nothing))
    all_spots: list[Point | Mark] = [*points, *marks]
    spots = [(spot.x, spot.y) for spot in all_spots] + [place for line in lines for place in line.points]
    frame = Frame(
        scale([place[0] for place in spots], x, _SPREAD),
        scale([place[1] for place in spots], y, _SPREAD),
        x.label,
        y.label,
    )
    told_marks = [f"{mark.kind}: {told(mark.x, x.unit)}, {told(mark.y, y.unit)}" for mark in marks]
    about = f"{y.label} against {x.label}. {counted(len(points), 'candidate')}. {words}"
    drawn = frame.drawn(
        title,
        f"{about} {listed(told_marks)}".strip(),
        frame.stretched(*(_line(frame, line) for line in lines), _points(frame, points, x.unit, y.unit)),
        _line_names(frame, lines),
        _marks(frame, marks, told_marks),
        has_links=any(spot.href for spot in all_spots),
    )
    return figure("scatter square" if is_square else "scatter", drawn, legend(_entries(points, marks, lines)))


def _fitting(points: Sequence[Point], marks: Sequence[Mark]) -> list[Point | Mark]:
    """All that has a place on two log axes."""
    either = Axis("", is_log=True)
    spots: list[Point | Mark] = [*points, *marks]
    return [spot for spot in spots if either.fits(spot.x) and either.fits(spot.y)]


def _points(frame: Frame, points: Sequence[Point], x_unit: Unit, y_unit: Unit) -> Markup:
    """All points: those of which there is nothing more to say are one path."""
    plain: dict[str, None] = {}
    told_points: list[Markup] = []
    links = 0
    for point in points:
        d = dot(*frame.at(point.x, point.y))
        is_link = point.href is not None and links < LINKS
        links += is_link
        if is_link or (point.tip and len(told_points) < TIPS):
            words = point.tip or f"{told(point.x, x_unit)}, {told(point.y, y_unit)}"
            shape = element("path", {"d": d}, tip(words))
            told_points.append(link(point.href if is_link else None, shape, label=words))
        else:
            plain[d] = None  # points that lie upon each other are drawn once
    together = path("dots candidate", "".join(plain)) if plain else Markup("")
    return joined([together, element("g", {"class": "dots candidate"}, *told_points)])


def _kind(line: Line) -> str:
    return f"{line.kind} dash-{line.dash}" if line.dash else line.kind


def _line(frame: Frame, line: Line) -> Markup:
    places = [frame.at(*point) for point in line.points]
    d = "M" + "L".join(f"{x} {y}" for x, y in places)
    return path(f"line {_kind(line)}", d, line.label)


def _line_names(frame: Frame, lines: Sequence[Line]) -> Markup:
    """The short names of lines at their ends, as far as they have room below each other; the legend has them all."""
    made: list[Markup] = []
    taken: list[float] = []
    for line in (line for line in lines if line.short):
        where = frame.spot(*line.points[-1 if line.is_named_last else 0])
        if where[1] > frame.height_px - _NAME_PX:
            continue  # there are the labels of the axis
        if line.is_named_last:
            made.append(placed("named", where, text("label halo", -2, -6, line.short, "end")))
        elif all(abs(where[1] - other) >= _NAME_PX for other in taken):
            taken.append(where[1])
            made.append(placed("named", where, text("label halo", 6, 15, line.short)))
    return joined(made)


def _marks(frame: Frame, marks: Sequence[Mark], told_marks: Sequence[str]) -> Markup:
    """The marks with their labels beside them, each a line lower where it would lie upon the one before."""
    made: list[Markup] = []
    taken: list[tuple[float, float]] = []
    for mark, words in zip(marks, told_marks, strict=True):
        where, place = frame.spot(mark.x, mark.y), frame.x.place(mark.x)
        is_left, down = place > _EDGE, 4.0
        while any(abs(place - x) < _LABEL and abs(where[1] + down - y) < _NAME_PX for x, y in taken):
            down += _NAME_PX
        taken.append((place, where[1] + down))
        shape = element("path", {"class": f"mark {mark.kind}", "d": SHAPES[mark.kind]})
        anchor = "end" if is_left else "start"
        label = text("halo strong", -11 if is_left else 11, down, mark.kind, anchor)
        made.append(placed("spot", where, shape, label, words=words, href=mark.href))
    return joined(made[::-1])  # the first lies on top


def _entries(points: Sequence[Point], marks: Sequence[Mark], lines: Sequence[Line]) -> list[Entry]:
    entries = [Entry(key(mark.kind, mark.kind), mark.kind) for mark in marks]
    if points:
        entries.append(Entry(key("candidate", "dot"), counted(len(points), "candidate")))
    return entries + [Entry(key(_kind(line), "line"), line.label) for line in lines]


def roofline(
    title: str,
    points: Sequence[Point],
    *,
    peak_flops_s: float,
    bandwidths: Sequence[Bandwidth],
    marks: Sequence[Mark] = (),
    is_measured: bool,
    nothing: str,
) -> Markup:
    """The roofline: x is FLOPs per byte, y FLOPs per second, under what computing and each level of memory allow."""
    bandwidths = sorted((b for b in bandwidths if b.bytes_s > 0), key=lambda b: -b.bytes_s)
    spots = _fitting(points, marks)
    if not spots:
        return figure("scatter", empty(title, nothing))
    ridges = [peak_flops_s / b.bytes_s for b in bandwidths]
    low = min([spot.x for spot in spots] + ridges[:1]) / 2
    high = max([spot.x for spot in spots] + ridges) * 2
    x = Axis("FLOP per byte from memory", Unit.PLAIN, is_log=True, include=(low, high))
    floor = min([spot.y for spot in spots] + [level.bytes_s * low for level in bandwidths[-1:]])
    y = Axis("FLOP/s", Unit.RATE, is_log=True, include=(floor / 2,))  # with room for the name of the lowest line
    lines = [
        Line(
            [(low, level.bytes_s * low), (ridge, peak_flops_s)],
            f"{level.name} {large(level.bytes_s, 'B/s')}",
            dash=1 + n % DASHES,
            short=level.name,
        )
        for n, (level, ridge) in enumerate(zip(bandwidths, ridges, strict=True))
    ]
    peak = f"{'measured' if is_measured else 'estimated'} peak {large(peak_flops_s, 'FLOP/s')}"
    top = [(min(ridges, default=low), peak_flops_s), (high, peak_flops_s)]
    lines.append(Line(top, peak, short="peak", is_named_last=True))
    words = f"Ceilings: {listed([line.label for line in lines])}."
    return scatter(title, x, y, points, marks=marks, lines=lines, words=words, nothing=nothing)


def agreement(title: str, points: Sequence[Point], *, marks: Sequence[Mark] = ()) -> Markup:
    """What was predicted (x) against what was measured (y), both in seconds: on the diagonal they are the same."""
    spots = _fitting(points, marks)
    if not spots:
        return figure("scatter", empty(title, NOTHING))
    times_s = [time_s for spot in spots for time_s in (spot.x, spot.y)]
    ends = min(times_s), max(times_s)
    lines = [Line([(ends[0], ends[0]), (ends[1], ends[1])], "predicted = measured", "diagonal")]
    x, y = Axis("predicted", Unit.TIME, is_log=True), Axis("measured", Unit.TIME, is_log=True)
    words = f"Times from {duration(1e3 * ends[0])} to {duration(1e3 * ends[1])}."
    return scatter(title, x, y, points, marks=marks, lines=lines, words=words, is_square=True)
