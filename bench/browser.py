"""A browser for whoever looks at the pages of the dashboard: their tests, and `./dev pictures`.

It is one that the machine has: the first of `NAMES` on the path, or what TUNEWRIGHT_BROWSER names. Chromium and what is
made of it will do.
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
"""For those who have none."""


def find_browser() -> str | None:
    """Where a browser is; None where there is none."""
    named = os.environ.get("TUNEWRIGHT_BROWSER")
    return next(filter(None, map(shutil.which, (named,) if named else NAMES)), None)


@contextmanager
def browsing(program: str) -> Iterator[Browser]:
    """A browser without a window, until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # what it draws with the processor looks the same everywhere
        browser = driver.chromium.launch(executable_path=program, args=["--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
