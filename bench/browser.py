"""A browser of this machine, for tests of the dashboard, for `./dev pictures` and for `./dev bench pages`.

It is the first of `NAMES` on the path, or what TUNEWRIGHT_BROWSER names: Chromium or a derivative.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")

ADVICE = "install one, on Debian `apt-get install chromium`, or name it: TUNEWRIGHT_BROWSER=/path/to/chrome"
"""What to do where there is no browser."""


def find_browser() -> str | None:
    """The path of a browser; None where there is none."""
    program = os.environ.get("TUNEWRIGHT_BROWSER")
    return next(filter(None, map(shutil.which, (program,) if program else NAMES)), None)


def require_browser() -> str:
    """The path of a browser. Raises SystemExit where there is none."""
    program = find_browser()
    if program is None:
        raise SystemExit(f"there is no browser: {ADVICE}")
    return program


@contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    """A headless browser, which is closed when the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # drawing by the processor is the same on all machines
        browser = driver.chromium.launch(executable_path=program, args=["--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
