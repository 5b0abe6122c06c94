"""The figure around a drawing: the legend beneath it, the key of each class, and the colours' order.

A legend is a list in HTML, because it wraps on a phone and SVG doesn't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .svg import Attributes, element, link

SERIES = 6
"""How many series have a colour, a dash and a number of their own; what comes after them is drawn thin and grey."""

STAR = "M0-8 2.1-2.8 7.6-2.5 3.3 1 4.7 6.5 0 3.4-4.7 6.5-3.3 1-7.6-2.5-2.1-2.8z"
DIAMOND = "M0-6.5 6.5 0 0 6.5-6.5 0z"
SHAPES = {"best": STAR, "default": DIAMOND}
"""The path of each marked point around (0, 0), in pixels: told apart by shape as well as by colour."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a legend: its key, what it stands for, a figure or two beside it, and where it leads."""

    key: Markup
    name: str
    note: str = ""
    href: str | None = None


def series(index: int) -> str:
    """The class of the series with this index."""
    return f"series-{index}" if index < SERIES else "other"


def key(kind: str, shape: str) -> Markup:
    """A small picture for a legend of what is drawn with the class `kind`; shapes: line, block, dot, best, default."""
    match shape:
        case "line":
            drawn = element("path", {"class": f"line {kind}", "d": "M1 6h30"})
        case "block":
            drawn = element("rect", {"class": f"fill {kind}", "x": 10, "width": 12, "height": 12, "rx": 2})
        case "dot":
            drawn = element("path", {"class": f"dots {kind}", "d": "M16 6h.1"})
        case _:
            drawn = element("path", {"class": f"mark {kind}", "d": SHAPES[shape], "transform": "translate(16 6)"})
    box: Attributes = {"class": "key", "viewBox": "0 -3 32 18", "width": 32, "height": 18, "aria-hidden": "true"}
    return element("svg", box, drawn)


def legend(entries: Sequence[Entry]) -> Markup:
    """The legend; nothing where there are no entries."""
    if not entries:
        return Markup("")
    return element("ul", {"class": "legend"}, *map(_line, entries))


def _line(entry: Entry) -> Markup:
    name = element("span", {"class": "name"}, link(entry.href, entry.name))
    note = element("span", {"class": "note"}, entry.note) if entry.note else Markup("")
    return element("li", {}, entry.key, element("span", {"class": "words"}, name, note))


def figure(kind: str, *parts: Markup) -> Markup:
    """A chart as it goes into a page; `kind` is the class of its sort."""
    return element("figure", {"class": f"chart {kind}"}, *parts)
