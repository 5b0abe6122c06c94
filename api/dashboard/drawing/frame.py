"""What stands around drawings: the frame that all charts with two axes share, legends, and the order of the colours.

A frame is as wide as the page allows while its text stays as large as it is: nothing that scales holds any text. What
is drawn along lines lies in a square of `GRID` by `GRID` units that is stretched over the frame, with strokes that are
not (`vector-effect` in the style sheet); what has a size of its own is put at a percentage of the width and height. The
style sheet leaves room around the frame for labels, on the left as many characters as the longest has. There are two
rows of labels below, of which it shows one: the one with fewer ticks on narrow screens. A legend is a list in HTML,
because it wraps on a phone and SVG doesn't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from markupsafe import Markup

from .scales import Scale, Tick
from .svg import Attributes, element, join, link, number, percent, safe

SERIES = 6
"""How many series have a colour, a dash and a number of their own; what comes after them is drawn thin and grey."""

REST = "rest"
"""In a legend: all series after those."""

STAR = "M0-8 2.1-2.8 7.6-2.5 3.3 1 4.7 6.5 0 3.4-4.7 6.5-3.3 1-7.6-2.5-2.1-2.8z"
DIAMOND = "M0-6.5 6.5 0 0 6.5-6.5 0z"
SHAPES = {"best": STAR, "default": DIAMOND}
"""The path of each marked point around (0, 0), in pixels: told apart by shape as well as by colour."""

GRID = 1000
"""Units of the stretched square along each side."""
HEIGHT_PX = 250
EMPTY_PX = 120
MARGINS_PX = 72
"""Room above and below all frames together, as the style sheet has it."""
_NARROW, _WIDE = 33.0, 76.0
"""Characters that fit below a frame on a phone and on a screen."""
_GUTTERS = range(3, 11)  # classes of the style sheet
_LINE_PX = 17
_SENTENCE = 30  # characters in a line within an empty frame


@dataclass(frozen=True, slots=True)
class Frame:
    """Two scales with their labels, and what places mean in it."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str
    height_px: int = HEIGHT_PX

    def at(self, x: float, y: float) -> tuple[int, int]:
        """Units from the left and from the top of the stretched square."""
        return round(GRID * self.x.place(x)), round(GRID * (1.0 - self.y.place(y)))

    def spot(self, x: float, y: float) -> tuple[str, float]:
        """A place as a percentage of the width, and pixels from the top."""
        return percent(self.x.place(x)), self.height_px * (1.0 - self.y.place(y))

    def axes(self) -> Markup:
        """Grid, ticks and the names of both axes."""
        lines = [self._y_tick(tick) for tick in self.y.ticks(5)]
        for kind, room in (("narrow", _NARROW), ("wide", _WIDE)):
            lines.append(element("g", {"class": kind}, *map(self._x_tick, self.x.ticks_within(room))))
        bottom = self.height_px
        lines.append(element("line", {"class": "axis", "x2": "100%", "y1": bottom, "y2": bottom}))
        name: Attributes = {"class": "label", "text-anchor": "end", "x": "100%", "y": bottom + 36}
        lines.append(element("text", name, self.x_label))
        lines.append(element("text", {"class": "label", "y": -10}, self.y_label))
        return join(lines)

    def _y_tick(self, tick: Tick) -> Markup:
        y = self.height_px * (1.0 - tick.place)
        words = element("text", {"class": "tick", "text-anchor": "end", "x": -8, "y": y + 4}, tick.text)
        return join([element("line", {"class": "grid", "x2": "100%", "y1": y, "y2": y}), words])

    def _x_tick(self, tick: Tick) -> Markup:
        x, bottom = percent(tick.place), self.height_px
        line = element("line", {"class": "axis", "x1": x, "x2": x, "y1": bottom, "y2": bottom + 4})
        words: Attributes = {"class": "tick", "text-anchor": "middle", "x": x, "y": bottom + 18}
        return join([line, element("text", words, tick.text)])

    def data_area(self, *parts: Markup, kind: str = "data") -> Markup:
        """The drawing in units of the stretched square; `kind` is its class."""
        box: Attributes = {
            "class": kind,
            "viewBox": f"0 0 {GRID} {GRID}",
            "preserveAspectRatio": "none",
            "width": "100%",
            "height": self.height_px,
        }
        return element("svg", box, *parts)

    def draw(self, title: str, words: str, *parts: Markup, has_links: bool = False) -> Markup:
        """The whole drawing; `words` say what it shows to those who don't see it.

        A drawing with links is a group of things, not an image: an image has nothing in it that could be followed.
        """
        gutter = min(max((len(tick.text) for tick in self.y.ticks(5)), default=3), _GUTTERS[-1])
        shape: Attributes = {
            "class": f"frame gutter-{max(gutter, _GUTTERS[0])}",
            "role": "group" if has_links else "img",
            "width": "100%",
            "height": self.height_px + MARGINS_PX,
        }
        about = element("title", {}, title), element("desc", {}, words)
        return element("svg", shape, *about, self.axes(), *parts)


def empty(title: str, sentence: str) -> Markup:
    """A frame with nothing in it but a sentence that says why."""
    lines = wrap(safe(sentence).unescape(), _SENTENCE) or [""]
    top = EMPTY_PX / 2 - _LINE_PX * (len(lines) - 1) / 2 + 4
    spans = [
        element("tspan", {"x": "50%", "y": number(top + _LINE_PX * n)}, line if n == len(lines) - 1 else f"{line} ")
        for n, line in enumerate(lines)
    ]
    box = element("rect", {"class": "nothing", "width": "100%", "height": EMPTY_PX, "rx": 6})
    words = element("text", {"class": "label", "text-anchor": "middle"}, *spans)
    shape: Attributes = {"class": "blank", "role": "img", "width": "100%", "height": EMPTY_PX}
    return element("svg", shape, element("title", {}, title), element("desc", {}, sentence), box, words)


def enumeration(texts: Sequence[str], most: int = 6) -> str:
    """Some of many in a sentence, e.g. "a; b; and 12 more"."""
    more = len(texts) - most
    return "; ".join([*texts[:most], f"and {more:,} more"] if more > 0 else texts)


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One line of a legend: its key, what it stands for, a figure or two beside it, and where it leads.

    `of` is what the script switches on and off by it: the index of a series, the kind of a mark, or `REST`.
    """

    key: Markup
    name: str
    note: str = ""
    href: str | None = None
    of: str | None = None


def series_class(index: int) -> str:
    """The class of the series with this index."""
    return f"series-{index}" if index < SERIES else "other"


def key(kind: str, shape: str) -> Markup:
    """A small picture for a legend of what is drawn with the class `kind`, of a shape.

    Shapes are line, block, spot (a point of a curve), dot, best and default.
    """
    match shape:
        case "line":
            drawing = element("path", {"class": f"line {kind}", "d": "M1 6h30"})
        case "block":
            drawing = element("rect", {"class": f"fill {kind}", "x": 10, "width": 12, "height": 12, "rx": 2})
        case "spot":
            drawing = element("path", {"class": f"dot {kind}", "d": "M16 6h.1"})
        case "dot":
            drawing = element("path", {"class": f"dots {kind}", "d": "M16 6h.1"})
        case _:
            drawing = element("path", {"class": f"mark {kind}", "d": SHAPES[shape], "transform": "translate(16 6)"})
    box: Attributes = {"class": "key", "viewBox": "0 -3 32 18", "width": 32, "height": 18, "aria-hidden": "true"}
    return element("svg", box, drawing)


def legend(entries: Sequence[LegendEntry]) -> Markup:
    """The legend; nothing where there are no entries."""
    if not entries:
        return Markup("")
    return element("ul", {"class": "legend"}, *map(_line, entries))


def _line(entry: LegendEntry) -> Markup:
    name = element("span", {"class": "name"}, link(entry.href, entry.name))
    note = element("span", {"class": "note"}, entry.note) if entry.note else Markup("")
    return element("li", {"data-of": entry.of}, entry.key, element("span", {"class": "words"}, name, note))


def figure(kind: str, *parts: Markup, data: Markup | None = None) -> Markup:
    """A chart as it goes into a page; `kind` is the class of its sort, `data` what its script is told."""
    return element("figure", {"class": f"chart {kind}", "data-figure": data}, *parts)
