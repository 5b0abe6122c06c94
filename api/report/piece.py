"""Alone: what a page of the service says, as a piece of a file that no service stands behind. Read `Piece` first.

A page is taken as it was rendered, so that the file says what the page does. What needs a service is left out: what the
templates call `served`, and what is there for the script, is sent or leads to other pages. A link to a page that the
file has a piece of leads there, and any other link is no more than its text. How long ago something was becomes when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

DEEPEST = 6
"""The last level of headings."""


@dataclass(slots=True)
class Element:
    """An element of a page: names are in small letters, texts are as they are read."""

    name: str
    attributes: dict[str, str | None]
    content: list[Element | str] = field(default_factory=list)

    @property
    def classes(self) -> set[str]:
        """What `class` says."""
        return set((self.attributes.get("class") or "").split())

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to see in it."""
        return all(isinstance(part, str) and not part.strip() for part in self.content)


def parsed(page: str) -> Element:
    """A page as the element that has all of it. Its elements must be closed, as those of the templates are."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    return parser.root


def found(root: Element, name: str) -> Element:
    """The first element of that name. Raises ValueError where there is none."""
    for element in _all(root):
        if element.name == name:
            return element
    raise ValueError(f"the page has no {name}")


@dataclass(frozen=True, slots=True)
class Piece:
    """How a page becomes a piece of a file.

    `prefix` goes before the names of its elements, which other pieces may have too; headings are `deeper` by so many
    levels. `places` are the pages that the file has a piece of: their path, and the name of the element that has it.
    """

    prefix: str = ""
    deeper: int = 0
    places: Mapping[str, str] = field(default_factory=dict)

    def of(self, page: str) -> Markup:
        """What is in the `main` of a page."""
        main = found(parsed(page), "main")
        # Safe: written by `_written`, which escapes all texts; the rest is of the page, which was safe before.
        return Markup("".join(_written(part) for one in main.content for part in self._kept(one)).strip())

    def _kept(self, part: Element | str) -> list[Element | str]:
        """What becomes of a part of the page."""
        if isinstance(part, str):
            return [part]
        if part.name in LEFT_OUT or part.classes & SERVED or not part.attributes.keys().isdisjoint(("hidden", AGAIN)):
            return []
        content = [kept for one in part.content for kept in self._kept(one)]
        attributes = self._attributes(part)
        if part.name == "a":
            place = self._place(part.attributes.get("href") or "")
            return content if place is None else [Element("a", attributes | {"href": place}, content)]
        if part.name == "time":
            content = [part.attributes.get("title") or ""]
            del attributes["title"]
        made = Element(self._name(part.name), attributes, content)
        return [] if made.name in EMPTY and made.is_blank else [made]

    def _name(self, name: str) -> str:
        if len(name) == 2 and name[0] == "h" and name[1].isdigit():
            return f"h{min(int(name[1]) + self.deeper, DEEPEST)}"
        return name

    def _attributes(self, element: Element) -> dict[str, str | None]:
        """Those that mean something without a service."""
        kept: dict[str, str | None] = {}
        for name, value in element.attributes.items():
            if name.startswith("data-") or name == "href":
                continue
            if name in REFERENCES and value:
                value = " ".join(self.prefix + one for one in value.split())
            kept[name] = value
        return kept

    def _place(self, href: str) -> str | None:
        """Where a link leads within the file; None: nowhere."""
        if href.startswith("#"):
            return f"#{self.prefix}{href[1:]}"
        place = self.places.get(urlsplit(href).path)
        return None if place is None else f"#{place}"


def _all(element: Element) -> Iterator[Element]:
    yield element
    for part in element.content:
        if isinstance(part, Element):
            yield from _all(part)


def _written(part: Element | str) -> str:
    """As HTML that is XML too, but for void elements and attributes without a value."""
    if isinstance(part, str):
        return str(escape(part))
    named = "".join(
        f" {CASED.get(name, name)}" + ("" if value is None else f'="{escape(value)}"')
        for name, value in part.attributes.items()
    )
    if part.name in VOID:
        return f"<{part.name}{named}>"
    inside = "".join(map(_written, part.content))
    return f"<{part.name}{named}>{inside}</{part.name}>"


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
