"""A browser without a window, a service for it to look at, and what pages do beside what is on them."""

from __future__ import annotations

import gzip
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, ViewportSize, expect

from tunewright.bench.browser import ADVICE, find_browser, open_browser

from ..memory import quick_folder
from .site import Shown, Site

WIDE: ViewportSize = {"width": 1280, "height": 900}

PATIENCE_MS = 120_000
"""How long something may take that a page is waited for: other tests run beside these."""


@dataclass
class Seen:
    """What a page did since it was opened."""

    faults: list[str] = field(default_factory=list)  # errors and warnings of the console, and of scripts
    asked: list[str] = field(default_factory=list)  # addresses of requests
    scripts: dict[str, Response] = field(default_factory=dict)  # by address
    visits: list[str] = field(default_factory=list)  # addresses that it went to

    @property
    def hosts(self) -> set[str]:
        return {urlsplit(address).netloc for address in self.asked}

    def script_bytes(self) -> int:
        """All scripts, compressed as a proxy would."""
        return sum(len(gzip.compress(one.body())) for one in self.scripts.values())

    def forget(self, pattern: str) -> None:
        """Faults that were to be expected."""
        self.faults = [fault for fault in self.faults if not re.search(pattern, fault)]


def watch(page: Page) -> Seen:
    """Note what a page does."""
    seen = Seen()

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            seen.faults.append(f"{message.text} ({message.location['url']})")

    def answered(answer: Response) -> None:
        if answer.request.resource_type == "script":
            seen.scripts[answer.url] = answer

    page.on("console", said)
    page.on("pageerror", lambda error: seen.faults.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.on("response", answered)
    page.on("framenavigated", lambda frame: seen.visits.append(frame.url))
    return seen


@pytest.fixture(scope="session")
def program() -> str:
    """Where the browser is."""
    found = find_browser()
    if found is None:
        pytest.skip(f"no browser is installed: {ADVICE}")
    return found


@pytest.fixture(scope="module")
def browser(program: str) -> Iterator[Browser]:
    """One for all tests of a file: tests elsewhere may not run beside it, since its driver has an event loop."""
    expect.set_options(timeout=PATIENCE_MS)
    with open_browser(program) as one:
        yield one


@pytest.fixture(scope="session")
def site(program: str) -> Iterator[Site]:
    """A service at work; none where nothing could look at it."""
    folder = Path(tempfile.mkdtemp(prefix="tw-", dir=quick_folder())).resolve()
    one = Site(folder)
    yield one
    one.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shown(site: Site) -> Shown:
    """What is on its pages."""
    return Shown(site)


@pytest.fixture(scope="module")
def session(browser: Browser, site: Site) -> Any:
    """What a browser keeps of a session."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(site.link())
        page.wait_for_url(f"{site.url}/")
        return context.storage_state()


Show = Callable[..., tuple[Page, Seen]]
"""`show(path)` gives a page that shows what is at a path of the site, logged in, and what it does."""


@pytest.fixture
def show(browser: Browser, site: Site, session: Any) -> Iterator[Show]:
    contexts: list[BrowserContext] = []
    watched: list[Seen] = []

    def begin(path: str, **settings: Any) -> tuple[Page, Seen]:
        context = browser.new_context(**{"base_url": site.url, "storage_state": session, "viewport": WIDE} | settings)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        seen = watch(page)
        watched.append(seen)
        page.goto(path)
        return page, seen

    yield begin
    for context in contexts:
        context.close()
    for seen in watched:
        assert not seen.faults
        assert seen.hosts <= {urlsplit(site.url).netloc}
