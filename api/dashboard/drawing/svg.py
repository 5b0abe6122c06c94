"""Elements of SVG and HTML as safe markup: every text and every attribute goes through escaping here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from tunewright.tuner.text import printable

Content = Markup | str
Attributes = Mapping[str, str | float | None]

_EMPTY = frozenset({"circle", "line", "path", "rect"})
_HREF = re.compile(r"(?:https?://|/(?![/\\])|[?#])[^\s\\]*")


def number(value: float) -> str:
    """A number with at most one decimal, as short as it can be written."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def percent(part: float) -> str:
    """A part of one as a length, e.g. "12.5%"."""
    text = f"{100 * part:.2f}".rstrip("0").rstrip(".")
    return f"{'0' if text == '-0' else text}%"


def safe(content: Content) -> Markup:
    """Markup as it is; any other text on one line, escaped, without characters that XML doesn't know."""
    return content if isinstance(content, Markup) else escape(printable(content))


def _attribute(name: str, value: str | float) -> str:
    """An attribute between quotes that its value has none of: markup may have one kind, escaped text has neither."""
    text = safe(number(value) if isinstance(value, float | int) else value)
    quote = "'" if '"' in text else '"'
    return f" {name}={quote}{text}{quote}"


def element(name: str, attributes: Attributes, *children: Content) -> Markup:
    """One element; attributes that are None are left out."""
    attribute_text = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    inside = "".join(map(safe, children))
    # Safe: names are those of this package, and all the rest was escaped above.
    return Markup(
        f"<{name}{attribute_text}/>" if not inside and name in _EMPTY else f"<{name}{attribute_text}>{inside}</{name}>"
    )


def join(parts: list[Markup]) -> Markup:
    """Pieces of markup, one after the other."""
    return Markup("").join(parts)


def address(href: str) -> str:
    """An address as it is. Raises ValueError for what is neither one of this site nor of the web."""
    if not href.isprintable() or not _HREF.fullmatch(href):
        raise ValueError(f"{href!r} is no address to link to")
    return href


def link(href: str | None, *children: Content, label: str | None = None, is_repeated: bool = False) -> Markup:
    """A link to `href`, or the bare children where that is None.

    `label` is its name where no text is in it. The keyboard doesn't stop at what is repeated elsewhere.
    Raises ValueError for what is neither an address of this site nor of the web: no stranger's text becomes a script.
    """
    if href is None:
        return join([safe(child) for child in children])
    about: Attributes = {"href": address(href), "aria-label": label, "tabindex": "-1" if is_repeated else None}
    return element("a", about, *children)


_IN_QUOTES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;"})


def json_text(value: Mapping[str, Any]) -> Markup:
    """JSON as the value of an attribute. Its own double quotes, of which there are many, stay as they are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Safe: nothing is left that ends an attribute in single quotes, which `element` puts around it.
    return Markup(text.translate(_IN_QUOTES))


def tip(text: str) -> Markup:
    """The tooltip of the element around it; nothing for an empty text."""
    return element("title", {}, text) if text else Markup("")


def dot(x: int, y: int) -> str:
    """Path data of a round dot: with round caps, a stroke of hardly any length. Its size is the width of the stroke."""
    return f"M{x} {y}h.1"


def path(kind: str, d: str, words: str = "") -> Markup:
    """A path of a class, with a tooltip."""
    return element("path", {"class": kind, "d": d}, tip(words))


def pixel_group(
    kind: str, where: tuple[str, float], *parts: Markup, words: str = "", href: str | None = None
) -> Markup:
    """Parts drawn in pixels around a place within the frame."""
    x, y = where
    box: Attributes = {"class": kind, "x": x, "y": y, "width": 1, "height": 1}
    return element("svg", box, link(href, *parts, tip(words), label=words or None))


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> Markup:
    """A line of text."""
    return element("text", {"class": kind, "text-anchor": None if anchor == "start" else anchor, "x": x, "y": y}, words)
