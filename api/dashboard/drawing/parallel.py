"""Parallel coordinates and a scatter of the same marks: what `static/explore.js` brushes. Read `Explored` first.

Both draw each mark at the same place of an order, and each band of them as one path, so that thousands take little
room; the script takes the paths apart at each `M`, and knows again which mark is which. An axis says to it by `data-`
attributes how values and places go together. Figures of the class `brushed` have these gestures to themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from markupsafe import Markup

from tunewright.tuner.text import counted, shorten

from .choices import ChoiceScale
from .frame import Frame, LegendEntry, empty, figure, key, legend
from .scales import Scale
from .svg import Attributes, element, number, percent, tip

BandKind = Literal["best", "fast", "middle", "slow", "failed"]
"""Kinds of bands, from what lies on top downwards."""

DEPTH = 200
"""Units from the top to the bottom of an axis."""
TIMED = 0.9
"""The part of an axis of times that values have where some trials failed: these are at its upper end."""
HEIGHT_PX = 260
AROUND_PX = 56
"""Room above and below the axes together, as the style sheet has it."""
SCATTER_PX = 320
UNKNOWN = DEPTH + 6
"""Where a line passes an axis of which it has no value: below its end."""
NOWHERE = "-9-9"
"""The place of a mark without one: nothing is drawn where nothing follows it."""
_LONGEST = 18  # characters of a name above an axis
_NAMES_PX = (-12, -27)  # names have two lines in turn, for neighbours not to touch
_TICKS = 8


@dataclass(frozen=True, slots=True)
class Band:
    """Marks behind each other in the order that are drawn alike."""

    kind: BandKind
    count: int
    is_kept: bool = True  # False: a brush leaves them out, and they are drawn faintly


@dataclass(frozen=True, slots=True)
class BrushAxis:
    """An axis: values of all marks in their order, and what is chosen of it."""

    name: str  # in addresses
    label: str
    scale: Scale
    values: Sequence[float | None]
    chosen: tuple[float, float] | None = None
    factor: float = 1.0  # from its values to those in addresses
    words: str = ""  # what it is
    fails: bool = False  # whether those that failed lack a value of it
    is_brushable: bool = True
    is_whole: bool = False  # whether its values are whole numbers

    def reach(self) -> tuple[float, float] | None:
        """The part of the scale that is chosen, from its lower end; None for all."""
        if self.chosen is None:
            return None
        low, high = self.chosen
        if isinstance(self.scale, ChoiceScale):
            within = [self.scale.place(value) for value in self.scale.values if low <= value <= high]
            half = 0.5 / len(self.scale.values)
            return (min(within) - half, max(within) + half) if within else (0.0, 0.0)
        return (0.0 if low == -inf else self.scale.place(low), 1.0 if high == inf else self.scale.place(high))

    def data(self) -> dict[str, str]:
        """What a script needs to know of it."""
        scale, factor = self.scale, self.factor
        about = {"data-column": self.name, "data-low": _exact(scale.low * factor)}
        about["data-high"] = _exact(scale.high * factor)
        if scale.is_log:
            about["data-log"] = "1"
        if isinstance(scale, ChoiceScale):
            about["data-values"] = " ".join(_exact(value * factor) for value in scale.values)
        if self.is_whole:
            about["data-whole"] = "1"
        if not self.is_brushable:
            about["data-still"] = "1"
        return about


@dataclass(frozen=True, slots=True)
class Explored:
    """Marks in bands, and what may be drawn of them."""

    bands: Sequence[Band]
    words: str  # what is told of the marks to those who don't see them

    def parallel(self, title: str, axes: Sequence[BrushAxis], nothing: str) -> Markup:
        """A line for each mark, from axis to axis; the fastest thick, those that failed dashed."""
        if len(axes) < 2 or not self.bands:
            return figure("parallel brushed", empty(title, nothing))
        columns = [_depths(axis) for axis in axes]
        lines = [" ".join(f"{n} {y}" for n, y in enumerate(depths)) for depths in zip(*columns, strict=True)]
        box: Attributes = {
            "class": "data marks",
            "viewBox": f"0 0 {len(axes) - 1} {DEPTH}",
            "preserveAspectRatio": "none",
            "width": "100%",
            "height": HEIGHT_PX,
        }
        drawn = [_axis(axis, n, len(axes)) for n, axis in enumerate(axes)]
        frame: Attributes = {"class": "frame", "role": "img", "width": "100%", "height": HEIGHT_PX + AROUND_PX}
        about = f"Axes: {', '.join(axis.label for axis in axes)}. {self.words}"
        drawing = element(
            "svg",
            frame,
            element("title", {}, title),
            element("desc", {}, about),
            element("svg", box, *self._paths("line", lines)),
            *drawn,
        )
        scrolled: Attributes = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": title}
        return figure("parallel brushed", element("div", scrolled, drawing), self._legend("line", lines))

    def scatter(self, title: str, x: BrushAxis, y: BrushAxis, nothing: str) -> Markup:
        """A dot for each mark; those that lack a value of either axis have none."""
        frame = Frame(x.scale, y.scale, x.label, y.label, SCATTER_PX)
        places = [
            NOWHERE if across is None or up is None else "{} {}h.1".format(*frame.at(across, up))
            for across, up in zip(x.values, y.values, strict=True)
        ]
        if all(place is NOWHERE for place in places):
            return figure("scatter brushed", empty(title, nothing))
        picks = [element("g", {"class": "pick", **axis.data()}) for axis in (x, y)]
        drawing = frame.draw(
            title,
            f"{y.label} against {x.label}. {self.words}",
            frame.data_area(*self._paths("dots", places), kind="data marks"),
            _chosen_box(x.reach(), y.reach()),
            *picks,
        )
        return figure("scatter brushed", drawing, self._legend("dot", places))

    def _paths(self, shape: str, places: Sequence[str]) -> list[Markup]:
        """A path a band, the first of them on top."""
        paths, first = [], 0
        for band in self.bands:
            d = "".join(f"M{place}" for place in places[first : first + band.count])
            kind = f"{shape} {band.kind} {'kept' if band.is_kept else 'dropped'}"
            about: Attributes = {"class": kind, "d": d, "data-first": str(first)}
            paths.append((band.is_kept, element("path", about)))
            first += band.count
        return [drawn for is_kept, drawn in paths[::-1] if not is_kept] + [
            drawn for is_kept, drawn in paths[::-1] if is_kept
        ]

    def _legend(self, shape: str, places: Sequence[str]) -> Markup:
        names: dict[BandKind, str] = {
            "best": "of the fastest",
            "fast": "fast",
            "middle": "in the middle",
            "slow": "slow",
            "failed": "failed",
        }
        sums: dict[BandKind, int] = {}
        first = 0
        for band in self.bands:
            drawn = sum(place is not NOWHERE for place in places[first : first + band.count])
            sums[band.kind] = sums.get(band.kind, 0) + drawn
            first += band.count
        entries = [
            LegendEntry(key(kind, shape), names[kind], counted(sums[kind], "trial")) for kind in names if sums.get(kind)
        ]
        return legend(entries)


def _exact(value: float) -> str:
    return f"{value:.12g}"


def _depths(axis: BrushAxis) -> list[int]:
    """How far below the upper end of an axis each line passes it."""
    part = TIMED if axis.fails else 1.0
    missing = 0 if axis.fails else UNKNOWN
    values = {value for value in axis.values if value is not None}
    known = {value: round(DEPTH * (1 - part * axis.scale.place(value))) for value in values}
    return [missing if value is None else known[value] for value in axis.values]


def _axis(axis: BrushAxis, n: int, count: int) -> Markup:
    """An axis with its name, its ticks and what is chosen of it."""
    x, part = percent(n / (count - 1)), TIMED if axis.fails else 1.0
    name: Attributes = {"class": "label strong", "text-anchor": "middle", "x": x, "y": _NAMES_PX[n % 2]}
    parts = [
        element("line", {"class": "axis", "x1": x, "x2": x, "y1": 0, "y2": HEIGHT_PX}),
        element("text", name, tip(axis.words or axis.label), shorten(axis.label, _LONGEST)),
    ]
    ticks = [(tick.place * part, tick.text) for tick in axis.scale.ticks(_TICKS)]
    for place, words in [*ticks, (1.0, "failed")] if axis.fails else ticks:
        y = HEIGHT_PX * (1.0 - place)
        at: Attributes = {"class": "tick halo", "text-anchor": "end", "x": x, "dx": -5, "y": y + 4}
        parts.append(element("text", at, shorten(words, _LONGEST)))
    reach = axis.reach()
    if reach is not None:
        low, high = (HEIGHT_PX * (1.0 - part * end) for end in reach)
        about: Attributes = {"class": "chosen", "x": -7, "y": high, "width": 14, "height": max(low - high, 2.0)}
        parts.append(element("svg", {"x": x, "class": "spot"}, element("rect", about)))
    about = {"class": "pick", **axis.data(), "data-part": number(part), "data-place": f"{n / (count - 1):.6g}"}
    return element("g", about, *parts)


def _chosen_box(x: tuple[float, float] | None, y: tuple[float, float] | None) -> Markup:
    """What is chosen of either axis, as a box."""
    if x is None and y is None:
        return Markup("")
    (left, right), (bottom, top) = x or (0.0, 1.0), y or (0.0, 1.0)
    about: Attributes = {
        "class": "chosen",
        "x": percent(left),
        "y": SCATTER_PX * (1.0 - top),
        "width": percent(max(right - left, 0.004)),
        "height": max(SCATTER_PX * (top - bottom), 2.0),
    }
    return element("rect", about)
