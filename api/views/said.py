"""Said: texts as views have them, whoever chose them: labels, names in models, errors, provenance of imports.

Each is cut to what a page has room for, and ends with "..." then. So no text of a view is a plain `str`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Annotated

from pydantic import BeforeValidator, Field

from tunewright.tuner.text import shortened

LONGEST = 300
"""Characters of a text that stands in a line or a table."""

LONGEST_REPORT = 2000
"""Characters of one that has room of its own."""

MOST_FACTS, MOST_KNOBS = 50, 100
"""Entries of a provenance, and knobs of a schedule: what was imported may have any number."""


def _cut(text: object, most: int) -> object:
    return shortened(text, most) if isinstance(text, str) else text


def _first(entries: object, most: int) -> object:
    return dict(islice(entries.items(), most)) if isinstance(entries, Mapping) else entries


Said = Annotated[str, Field(max_length=LONGEST), BeforeValidator(partial(_cut, most=LONGEST))]
"""A text."""

SaidAtLength = Annotated[str, Field(max_length=LONGEST_REPORT), BeforeValidator(partial(_cut, most=LONGEST_REPORT))]
"""A text of which more is shown, such as what went wrong."""

Provenance = Annotated[
    dict[Said, Said], Field(max_length=MOST_FACTS), BeforeValidator(partial(_first, most=MOST_FACTS))
]
"""What something was measured with: machine, compiler and library versions."""

KnobValues = Annotated[dict[Said, int], Field(max_length=MOST_KNOBS), BeforeValidator(partial(_first, most=MOST_KNOBS))]
"""The values of a schedule's knobs, by name."""
