"""Fragments: the content of a page as part of a file without a service. Read `Fragment` first.

A page is taken as it was rendered, so that the file says what the page does. What needs a service is left out: what the
templates call `served`, and what is there for the script, is sent or leads to other pages. A link to a page that the
file has a piece of leads there, and any other link is no more than its text. How long ago something was becomes when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlsplit

from markupsafe import Markup, escape

VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
"""Elements of HTML without content, which have no end tag."""

CASED = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}
"""Attributes of SVG as XML wants them: HTML knows no case."""

LEFT_OUT = frozenset({"button", "form", "iframe", "img", "input", "link", "nav", "object", "script", "select", "style"})
"""Elements that stand for what only a service does, or that load something."""

SERVED = frozenset({"served", "scripted-only"})
"""Classes of what needs a service, or the script."""

EMPTY = frozenset({"p", "li"})
"""Elements that are left out where nothing is left in them."""

REFERENCES = frozenset({"id", "for", "aria-labelledby", "aria-describedby", "aria-controls"})
"""Attributes with names of elements."""

AGAIN = "data-again"
"""An attribute of links that ask for the same page once more."""

UNSEEN = frozenset({"hidden", "popover", AGAIN})
"""Attributes of what is seen only once somebody asks for it."""

DEEPEST = 6
"""The last level of headings."""


@dataclass(slots=True)
class Element:
    """An element of a page: names are in small letters, texts are as they are read."""

    name: str
    attributes: dict[str, str | None]
    content: list[Element | str] = field(default_factory=list)

    def find(self, name: str) -> Element | None:
        """The first element of that name in it, or itself."""
        if self.name == name:
            return self
        parts = (part.find(name) for part in self.content if isinstance(part, Element))
        return next((part for part in parts if part is not None), None)


@dataclass(frozen=True, slots=True)
class Fragment:
    """How a page becomes a piece of a file.

    `prefix` goes before the names of its elements, which other pieces may have too; headings are `deeper` by so many
    levels. `places` are the pages that the file has a piece of: their path, and the name of the element that has it.
    """

    prefix: str = ""
    deeper: int = 0
    places: Mapping[str, str] = field(default_factory=dict)

    def of(self, page: str) -> Markup:
        """The content of the `main` of a page, all of whose elements are closed. Raises ValueError without one."""
        parser = _Parser()
        parser.feed(page)
        parser.close()
        main = parser.root.find("main")
        if main is None:
            raise ValueError("the page has no main")
        # Safe: written by `_write`, which escapes all texts; the rest is of the page, which was safe before.
        return Markup("".join(map(self._write, main.content)).strip())

    def _write(self, part: Element | str) -> str:
        """A part as HTML, which is XML but for void elements and attributes without a value; empty if left out."""
        if isinstance(part, str):
            return str(escape(part))
        classes = set((part.attributes.get("class") or "").split())
        if part.name in LEFT_OUT or classes & SERVED or part.attributes.keys() & UNSEEN:
            return ""
        inside = "".join(map(self._write, part.content))
        if part.name in EMPTY and not inside.strip():
            return ""
        attributes = self._attributes(part)
        if part.name == "a":
            place = self._place(part.attributes.get("href") or "")
            if place is None:
                return inside
            attributes["href"] = place
        if part.name == "time":
            inside = str(escape(attributes.pop("title") or ""))
        name = self._name(part.name)
        named = "".join(
            f" {CASED.get(name, name)}" + ("" if value is None else f'="{escape(value)}"')
            for name, value in attributes.items()
        )
        return f"<{name}{named}>" if name in VOID else f"<{name}{named}>{inside}</{name}>"

    def _name(self, name: str) -> str:
        if len(name) == 2 and name[0] == "h" and name[1].isdigit():
            return f"h{min(int(name[1]) + self.deeper, DEEPEST)}"
        return name

    def _attributes(self, element: Element) -> dict[str, str | None]:
        """The attributes that mean something without a service."""
        attributes: dict[str, str | None] = {}
        for name, value in element.attributes.items():
            if name.startswith("data-") or name == "href":
                continue
            if name in REFERENCES and value:
                value = " ".join(self.prefix + identifier for identifier in value.split())
            attributes[name] = value
        return attributes

    def _place(self, href: str) -> str | None:
        """The target of a link within the file; None where it has none."""
        if href.startswith("#"):
            return f"#{self.prefix}{href[1:]}"
        place = self.places.get(urlsplit(href).path)
        return None if place is None else f"#{place}"


class _Parser(HTMLParser):
    """Builds elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self._open[-1].content.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].content.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in (element.name for element in self._open):
            while self._open.pop().name != tag:
                pass

    def handle_data(self, data: str) -> None:
        self._open[-1].content.append(data)
