"""Figures: series of points and marks on two axes, as plain data, and the one renderer of them. Read `Figure.draw`.

What of a series depends on its shape is in `_draw`. What `static/charts.js` is told of a figure, to answer for it and
to draw it anew, is in `_data`: values as they were given, not as they are drawn. Some pages have thousands of points,
so each is two numbers in a row of all, and what is nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from tunewright.tuner.text import counted, printable

from .frame import GRID, REST, SERIES, SHAPES, Frame, LegendEntry, empty, enumeration, figure, key, legend, series_class
from .scales import AxisSpec, Scale, is_drawable, scale, spread, value_text
from .svg import address, dot, element, join, json_text, link, path, pixel_group, text, tip

LINKS = 100
"""So many points are links at most: each is a stop of the keyboard, and takes a few hundred bytes."""
TIPS = 500
"""So many points have a tooltip at most."""
DOTTED = 40
"""A curve of more steps than this has no dots: they would hide it."""
BINS = 32
"""Columns beside each other."""
NOTHING = "No candidate has been measured yet."
_FREE = {"steps": (0.0, 0.06), "scatter": (0.03, 0.03), "histogram": (0.0, 0.12)}
"""Of the length of each axis: free at its ends."""
_NUMBER_PX = 13  # between the numbers at the ends of curves
_NAME_PX = 14  # between names below each other
_LABEL = 0.3  # of the width: what a mark's label takes on a phone
_EDGE = 0.6  # marks beyond this part of the width have their label on the left
_GAP = 3  # units of the frame between neighbouring columns


class Point(NamedTuple):
    """A place, with its tooltip and where it leads. Without both it takes about ten bytes.

    `text` is its height in words, where that needs marks.
    """

    x: float
    y: float
    tip: str = ""
    href: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points that are drawn as one: as `steps`, each of which holds until the next, as a `line`, `dots` or `columns`.

    `note` stands beside the name in the legend; dots are called by a noun there, of which there are so many. `kind` is
    the class of the style sheet; steps have the next colour. `short` is the name of a line in the frame: beneath its
    first point, or above its last.
    """

    name: str
    points: Sequence[Point]
    shape: Literal["steps", "line", "dots", "columns"] = "steps"
    kind: str = "candidate"
    note: str = ""
    href: str | None = None
    short: str = ""
    is_named_last: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that is drawn large, with its kind beside it."""

    x: float
    y: float
    kind: Literal["best", "default"]
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with two axes; `words` are told of it to those who don't see it, beyond what is counted here.

    Of steps the first six have a colour, a dash and a number of their own, all others are thin and grey: give what
    weighs most first. Of dots with a link the first `LINKS` are links. `name` is what addresses of a view call it: one
    that lasts, where the title does not.
    """

    kind: Literal["steps", "scatter", "histogram"]
    title: str
    x: AxisSpec
    y: AxisSpec
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    words: str = ""
    nothing: str = NOTHING  # the sentence where there is nothing to draw
    until: float | None = None  # steps are drawn on to there
    across: Scale | None = None  # the x axis, where it is not of all points
    corner: str = ""  # what is said above the end of the x axis
    height_px: int = 250
    is_square: bool = False
    name: str = ""

    def draw(self) -> Markup:
        """The figure as markup. What has no place on the axes is left out."""
        series = [part for part in map(self._fit, self.series) if part.points]
        marks = [mark for mark in self.marks if self._fits(mark)]
        if not marks and all(part.shape == "line" for part in series):
            return figure(self.kind, empty(self.title, self.nothing))
        frame = self._frame(series, marks)
        mark_texts = [f"{mark.kind}: {self._place(mark)}" for mark in marks]
        is_numbered = self.kind == "steps" and len(series) > 1
        drawings = [self._draw(frame, index, part) for index, part in enumerate(series)]
        drawing = frame.draw(
            self.title,
            self._words(series, mark_texts),
            frame.data_area(*(drawings[::-1] if self.kind == "steps" else drawings)),  # what weighs most lies on top
            _numbers(frame, series) if is_numbered else _line_names(frame, series),
            _draw_marks(frame, marks, mark_texts),
            element("text", {"class": "label", "text-anchor": "end", "x": "100%", "y": -10}, self.corner)
            if self.corner
            else Markup(""),
            has_links=any(mark.href for mark in marks)
            or any(part.href or any(point.href for point in part.points) for part in series),
        )
        entries = _curve_entries(series, self.until) if is_numbered else _entries(series, marks)
        data = json_text(self._data(frame, series, marks))
        return figure(f"{self.kind} square" if self.is_square else self.kind, drawing, legend(entries), data=data)

    def _fits(self, place: Point | Mark) -> bool:
        return self.x.fits(place.x) and self.y.fits(place.y)

    def _fit(self, series: Series) -> Series:
        """The series without the points that have no place. A line has all: it is made for these axes."""
        if series.shape == "line":
            return series
        points = [point for point in series.points if self._fits(point)]
        return replace(series, points=sorted(points, key=lambda point: point.x) if series.shape == "steps" else points)

    def _frame(self, series: Sequence[Series], marks: Sequence[Mark]) -> Frame:
        spots: list[Point | Mark] = [*marks, *(point for part in series for point in part.points)]
        free_x, free_y = _FREE[self.kind]
        ends = [] if self.until is None else [self.until]
        across = self.across or scale([spot.x for spot in spots] + ends, self.x, free_x)
        up = scale([spot.y for spot in spots], self.y, free_y)
        return Frame(across, up, self.x.label, self.y.label, self.height_px)

    def _place(self, place: Point | Mark) -> str:
        return f"{value_text(place.x, self.x.unit)}, {value_text(place.y, self.y.unit)}"

    def _words(self, series: Sequence[Series], mark_texts: Sequence[str]) -> str:
        about = f"{self.y.label} against {self.x.label}."
        match self.kind:
            case "histogram":
                return self.words
            case "scatter":
                dots = sum(len(part.points) for part in series if part.shape == "dots")
                return f"{about} {counted(dots, 'candidate')}. {self.words} {enumeration(mark_texts)}".strip()
            case "steps":
                each = [f"{part.name} from {self._reach(part)}" for part in series]
                return f"{about} {enumeration(each)}."

    def _data(self, frame: Frame, series: Sequence[Series], marks: Sequence[Mark]) -> dict[str, Any]:
        return _known(
            name=printable(self.name) or None,
            kind=self.kind,
            height=frame.height_px,
            x=_axis_data(self.x, frame.x),
            y=_axis_data(self.y, frame.y),
            until=self.until,
            corner=printable(self.corner),
            series=list(map(_series_data, series)),
            marks=[_known(x=mark.x, y=mark.y, kind=mark.kind, href=mark.href and address(mark.href)) for mark in marks],
        )

    def _height(self, point: Point) -> str:
        return point.text or value_text(point.y, self.y.unit)

    def _reach(self, series: Series) -> str:
        """Where a curve begins and ends, in words."""
        return f"{self._height(series.points[0])} to {self._height(series.points[-1])}"

    def _draw(self, frame: Frame, index: int, series: Series) -> Markup:
        match series.shape:
            case "steps":
                return self._draw_steps(frame, index, series)
            case "line":
                d = "M" + "L".join("{} {}".format(*frame.at(point.x, point.y)) for point in series.points)
                return path(f"line {series.kind}", d, series.name)
            case "dots":
                return self._draw_dots(frame, series)
            case "columns":
                return join([path(f"fill {series.kind}", _column(frame, point), point.tip) for point in series.points])

    def _draw_steps(self, frame: Frame, index: int, series: Series) -> Markup:
        points = series.points
        kind, places = series_class(index), [frame.at(point.x, point.y) for point in points]
        d, (at_x, at_y) = f"M{places[0][0]} {places[0][1]}", places[0]
        for to_x, to_y in places[1:]:
            if to_y != at_y:
                d += f"H{to_x}V{to_y}" if to_x != at_x else f"V{to_y}"
                at_x, at_y = to_x, to_y
        if at_x < GRID:
            d += f"H{GRID}"
        words = f"{series.name}: {self._reach(series)}"
        reach = path("reach", d)  # a wider line that nobody sees, for the pointer
        group = element("g", {}, tip(words), reach, path(f"line {kind}", d))
        whole = link(series.href, group, label=words, is_repeated=index < SERIES)  # the legend has it too
        if index >= SERIES or len(points) > DOTTED:
            return whole
        tips = [
            f"{series.name}: {self._height(point)} ({self.x.label} {value_text(point.x, self.x.unit)})"
            for point in points
        ]
        dots = [path("dot", dot(*place), words) for place, words in zip(places, tips, strict=True)]
        return join([whole, element("g", {"class": kind}, *dots)])

    def _draw_dots(self, frame: Frame, series: Series) -> Markup:
        """All points: those of which there is nothing more to say are one path."""
        plain: dict[str, None] = {}
        told: list[Markup] = []
        links = 0
        for point in series.points:
            d = dot(*frame.at(point.x, point.y))
            is_link = point.href is not None and links < LINKS
            links += is_link
            if is_link or (point.tip and len(told) < TIPS):
                words = point.tip or self._place(point)
                shape = element("path", {"d": d}, tip(words))
                told.append(link(point.href if is_link else None, shape, label=words))
            else:
                plain[d] = None  # points that lie upon each other are drawn once
        kind = f"dots {series.kind}"
        together = path(kind, "".join(plain)) if plain else Markup("")
        return join([together, element("g", {"class": kind}, *told)])


def _column(frame: Frame, point: Point) -> str:
    """Path data of a bin that begins at a point; one beyond the end of the axis is behind it, with some room before."""
    width = GRID / BINS
    n = BINS + 0.3 if point.x > frame.x.high else round(frame.x.place(point.x) * BINS)
    _, top = frame.at(frame.x.low, point.y)
    return f"M{round(n * width) + _GAP // 2} {GRID}V{min(top, GRID - 4)}h{round(width) - _GAP}V{GRID}z"


def _numbers(frame: Frame, curves: Sequence[Series]) -> Markup:
    """The number of each series at the end of its curve, moved apart where they would overlap."""
    heights = [frame.spot(curve.points[-1].x, curve.points[-1].y)[1] for curve in curves[:SERIES]]
    return join(
        [
            pixel_group(series_class(index), ("100%", y), text("number", 7, 4, str(index + 1)))
            for index, y in enumerate(spread(heights, _NUMBER_PX, 0, frame.height_px))
        ]
    )


def _line_names(frame: Frame, series: Sequence[Series]) -> Markup:
    """The short names of lines at their ends, as far as they have room below each other; the legend has them all."""
    labels: list[Markup] = []
    label_tops: list[float] = []
    for line in (line for line in series if line.short):
        end = line.points[-1 if line.is_named_last else 0]
        where = frame.spot(end.x, end.y)
        if where[1] > frame.height_px - _NAME_PX:
            continue  # there are the labels of the axis
        if line.is_named_last:
            labels.append(pixel_group("named", where, text("label halo", -2, -6, line.short, "end")))
        elif all(abs(where[1] - other) >= _NAME_PX for other in label_tops):
            label_tops.append(where[1])
            labels.append(pixel_group("named", where, text("label halo", 6, 15, line.short)))
    return join(labels)


def _draw_marks(frame: Frame, marks: Sequence[Mark], mark_texts: Sequence[str]) -> Markup:
    """The marks with their labels beside them, each a line lower where it would lie upon the one before."""
    drawings: list[Markup] = []
    label_places: list[tuple[float, float]] = []
    for mark, words in zip(marks, mark_texts, strict=True):
        where, place = frame.spot(mark.x, mark.y), frame.x.place(mark.x)
        is_left, down = place > _EDGE, 4.0
        while any(abs(place - x) < _LABEL and abs(where[1] + down - y) < _NAME_PX for x, y in label_places):
            down += _NAME_PX
        label_places.append((place, where[1] + down))
        shape = element("path", {"class": f"mark {mark.kind}", "d": SHAPES[mark.kind]})
        label = text("halo strong", -11 if is_left else 11, down, mark.kind, "end" if is_left else "start")
        drawings.append(pixel_group("spot", where, shape, label, words=words, href=mark.href))
    return join(drawings[::-1])  # the first lies on top


def _curve_entries(curves: Sequence[Series], until: float | None) -> list[LegendEntry]:
    entries = [
        LegendEntry(
            key(series_class(index), "spot" if until and curve.points[0].x == until else "line"),
            f"{index + 1} {curve.name}",
            curve.note,
            curve.href,
            str(index),
        )
        for index, curve in enumerate(curves[:SERIES])
    ]
    if len(curves) > SERIES:
        more = len(curves) - SERIES
        entries.append(LegendEntry(key("other", "line"), f"{more} more" if more > 1 else curves[-1].name, of=REST))
    return entries


def _entries(series: Sequence[Series], marks: Sequence[Mark]) -> list[LegendEntry]:
    entries = [LegendEntry(key(mark.kind, mark.kind), mark.kind, of=mark.kind) for mark in marks]
    parts = list(enumerate(series))
    entries += [
        LegendEntry(key(part.kind, "dot"), counted(len(part.points), part.name), of=str(index))
        for index, part in parts
        if part.shape == "dots"
    ]
    return entries + [
        LegendEntry(key(part.kind, "line"), part.name, of=str(index)) for index, part in parts if part.shape == "line"
    ]


def _known(**values: Any) -> dict[str, Any]:
    """Without what is nothing: zero is a value."""
    return {name: value for name, value in values.items() if value is not None and value not in ("", [])}


def _axis_data(spec: AxisSpec, across: Scale) -> dict[str, Any]:
    return {
        "label": printable(spec.label),
        "unit": spec.unit.value,
        "log": across.is_log,
        "low": across.low,
        "high": across.high,
        "include": list(filter(is_drawable, spec.include)),
    }


def _series_data(series: Series) -> dict[str, Any]:
    """A series with as many links and tooltips as are drawn: more would only be weight."""
    points = [point for point in series.points if is_drawable(point.x) and is_drawable(point.y)]
    return _known(
        name=printable(series.name),
        shape=series.shape,
        kind=series.kind,
        href=series.href and address(series.href),
        short=printable(series.short),
        last=series.is_named_last or None,
        points=[value for point in points for value in (point.x, point.y)],
        tips=_first([printable(point.tip) for point in points], TIPS),
        texts=_first([printable(point.text) for point in points], len(points)),
        hrefs=_first([address(point.href) if point.href else "" for point in points], LINKS),
    )


def _first(texts: Sequence[str], most: int) -> list[str]:
    """What is said of points, a text each, up to the last of those of which anything is."""
    numbers = [n for n, words in enumerate(texts) if words][:most]
    return list(texts[: numbers[-1] + 1]) if numbers else []
