"""A page as tests read it: its tags and its words, with nothing in it that a browser would run."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import httpx

PAGE_BYTES = 300_000
"""No page may be larger, nor its twin."""


class Page(HTMLParser):
    """What is in a page, or in a part of one: its tags, and all of its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self._words: list[str] = []
        self._is_help = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_help = ("class", "help") in attrs or ("popover", None) in attrs

    def handle_endtag(self, tag: str) -> None:
        self._is_help = False

    def handle_data(self, data: str) -> None:
        if not self._is_help:
            self._words.append(data)

    def beside(self, other: Page) -> Page:
        """This page with what another says, which has another part of the same."""
        return Page(self.source + other.source[other.source.index("<main") :])

    @property
    def words(self) -> str:
        """What can be read before anybody opens a help text."""
        return " ".join("".join(self._words).split())

    def of(self, tag: str, **attributes: str) -> list[dict[str, Any]]:
        """The attributes of the tags of a name that have these attributes."""
        return [found for name, found in self.tags if name == tag and attributes.items() <= found.items()]

    def links(self) -> list[str]:
        return [attrs["href"] for attrs in self.of("a") if "href" in attrs]

    def check(self) -> None:
        """Nothing in it is more than it may be, and no two elements have one name."""
        names = [attrs["id"] for _, attrs in self.tags if "id" in attrs]
        assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
        for tag, attrs in self.tags:
            assert tag not in ("style", "iframe", "object")
            assert not [name for name in attrs if name == "style" or name.startswith("on")], (tag, attrs)
            for name in ("href", "src", "action"):
                assert attrs.get(name, "/").startswith(("/", "#", "?")) and not attrs.get(name, "/").startswith("//")
            if tag == "script":
                assert attrs["type"] == "module" and attrs["src"].startswith("/static/")


def whole(answer: httpx.Response) -> Page:
    """The page that an answer is, which is checked."""
    return checked(answer, 200)


def checked(answer: httpx.Response, status: int) -> Page:
    """The same of a page that comes with another status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert len(answer.content) < PAGE_BYTES
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    page = Page(answer.text)
    page.check()
    return page
