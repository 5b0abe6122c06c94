"""Elements of SVG and HTML as safe markup: every text and every attribute goes through escaping here."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def element(name: str, attributes: Attributes, *children: Content) -> Markup:
    """One element; attributes that are None are left out."""
    made = "".join(
        f' {key}="{safe(number(value) if isinstance(value, float | int) else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(map(safe, children))
    # Safe: names are those of this package, and all the rest was escaped above.
    return Markup(f"<{name}{made}/>" if not inside and name in _EMPTY else f"<{name}{made}>{inside}</{name}>")


def joined(parts: list[Markup]) -> Markup:
    """Pieces of markup, one after the other."""
    return Markup("").join(parts)


def link(href: str | None, *children: Content, label: str | None = None, is_repeated: bool = False) -> Markup:
    """What leads to `href`, or the bare children where that is None.

    `label` is its name where no text is in it. The keyboard doesn't stop at what is repeated elsewhere.
    Raises ValueError for what is neither an address of this site nor of the web: no stranger's text becomes a script.
    """
    if href is None:
        return joined([safe(child) for child in children])
    if not href.isprintable() or not _HREF.fullmatch(href):
        raise ValueError(f"{href!r} is no address to link to")
    about: Attributes = {"href": href, "aria-label": label, "tabindex": "-1" if is_repeated else None}
    return element("a", about, *children)


def tip(text: str) -> Markup:
    """What is shown where the pointer rests on the element around it; nothing for an empty text."""
    return element("title", {}, text) if text else Markup("")


def dot(x: int, y: int) -> str:
    """Path data of a round dot: with round caps, a stroke of hardly any length. Its size is the width of the stroke."""
    return f"M{x} {y}h.1"
