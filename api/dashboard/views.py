"""Views: what a page says, as plain data. `Answer.show` makes one of what the rest of the product knows.

No text of a view is a plain `str`, whoever chose it: labels, names in models, errors, provenance of imports. Each is
cut to what a page has room for, and ends with "..." then. A lone surrogate, which UTF-8 can't have, is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Annotated

from pydantic import BeforeValidator, Field

from tunewright.codegen.target import Target
from tunewright.db.job import LONGEST_NOTES, MOST_TAGS
from tunewright.db.store import Store
from tunewright.tuner.text import shorten

from ..http.schemas.base import Answer

LONGEST = 300
"""Longest text in a line or a table, in characters."""

LONGEST_NAME = 60
"""Longest text of which a page has many in each row, in characters."""

LONGEST_REPORT = 2000
"""Longest text with room of its own, in characters."""

MOST_FACTS, MOST_KNOBS = 50, 100
"""Entries of a provenance, and knobs of a schedule: what was imported may have any number."""


def _shorten(text: object, most: int) -> object:
    if not isinstance(text, str):
        return text
    return shorten(text[: most + 1].encode(errors="backslashreplace").decode(), most)


def _truncate(entries: object, most: int) -> object:
    return dict(islice(entries.items(), most)) if isinstance(entries, Mapping) else entries


Text = Annotated[str, Field(max_length=LONGEST), BeforeValidator(partial(_shorten, most=LONGEST))]
"""A text in a line or a table."""

ShortText = Annotated[str, Field(max_length=LONGEST_NAME), BeforeValidator(partial(_shorten, most=LONGEST_NAME))]
"""A name of which there are many in each row."""

LongText = Annotated[str, Field(max_length=LONGEST_REPORT), BeforeValidator(partial(_shorten, most=LONGEST_REPORT))]
"""A longer text, such as an error."""

Notes = Annotated[str, Field(max_length=LONGEST_NOTES), BeforeValidator(partial(_shorten, most=LONGEST_NOTES))]
"""What people noted of a job: all of it."""

Provenance = Annotated[
    dict[Text, Text], Field(max_length=MOST_FACTS), BeforeValidator(partial(_truncate, most=MOST_FACTS))
]
"""What something was measured with: machine, compiler and library versions."""

KnobValues = Annotated[
    dict[Text, int], Field(max_length=MOST_KNOBS), BeforeValidator(partial(_truncate, most=MOST_KNOBS))
]
"""The values of a schedule's knobs, by name."""


IS_IMPORTED = Field(description="Whether it was timed elsewhere and imported: its time is none of a machine here.")


Tags = Annotated[list[Text], Field(max_length=MOST_TAGS)]
"""The tags of a job."""


class OwnerName(Answer):
    """A key that owns something, by name."""

    id: Text
    name: Text = Field(description="For people; empty where the key is gone.")


class TargetName(Answer):
    """A kind of machine, by name."""

    key: Text
    name: Text = Field(description="For people.")

    @staticmethod
    def of(target: Target) -> TargetName:
        """The name of a target."""
        return TargetName(key=target.key, name=str(target))

    @staticmethod
    def known(key: str, names: Mapping[str, str]) -> TargetName:
        """The name of a target by its key; empty where `target_names` lacks it."""
        return TargetName(key=key, name=names.get(key, ""))


class CalibrationShown(Answer):
    """How well a cost model ranks the trials, and so how far it can be trusted."""

    model: Text
    trials: int = Field(description="That it was asked about and that worked.")
    rank_correlation: float | None = Field(description="Spearman's: 1 is perfect, 0 is chance.")
    pairwise: float | None = Field(description="Share of the pairs that it puts in the right order.")
    peak_1: float | None = Field(description="Speed of the schedule that it ranks first, relative to the best.")
    peak_5: float | None = Field(description="The same of the best of the first five.")
    has_learned_from_these: bool
    best_rank: int | None = Field(description="Where among the trials it ranks the best schedule known: 1 is first.")


def target_names(store: Store) -> dict[str, str]:
    """The names of all targets, by key. Raises StoreError."""
    return {target.key: str(target) for target in store.targets()}
