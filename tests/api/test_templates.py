"""Templates: what is renewed is on a page from the begin, so that what it will say has a place there."""

import re
from pathlib import Path

from tunewright.api import dashboard

OF_ADDRESS = {"not is_alone", "view.trial_page"}
"""Conditions that stay as they are while a page is open: its address decides them."""

TAGS = re.compile(r"\{%[-+]?\s*(if|endif)\b([^%]*)%\}|data-live")


def test_what_is_renewed_is_there_whatever_holds():
    """live.js puts new elements in the place of old ones: where there was none, nothing would appear."""
    folder = Path(dashboard.__file__).parent
    renewed = 0
    for path in sorted(folder.rglob("*.html")):
        conditions = []
        for tag in TAGS.finditer(path.read_text()):
            if tag[1] == "if":
                conditions.append(tag[2].strip())
            elif tag[1]:
                conditions.pop()
            else:
                renewed += 1
                assert set(conditions) <= OF_ADDRESS, (path.relative_to(folder), conditions)
    assert renewed > 10
