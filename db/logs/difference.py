"""What is different between two releases, or a release and what the rule serves now, key by key."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from .choice import LogRival
from .entry import LogEnvironment
from .lines import cost_to_json


class ChangeKind(StrEnum):
    """What became of a key in an environment."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class LogChange:
    """A key that two sides do not serve alike in an environment. A side without it has None."""

    key: str
    environment: LogEnvironment
    before: LogRival | None
    after: LogRival | None

    @property
    def kind(self) -> ChangeKind:
        """What became of the key."""
        if self.before is None:
            return ChangeKind.ADDED
        return ChangeKind.REMOVED if self.after is None else ChangeKind.CHANGED

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "change": self.kind.value,
            "key": self.key,
            "environment": self.environment.to_json(),
            "fingerprint": self.environment.fingerprint,
            "before": None if self.before is None else rival_to_json(self.before),
            "after": None if self.after is None else rival_to_json(self.after),
        }


def rival_to_json(rival: LogRival) -> dict[str, Any]:
    """A value by its choice, and what is known of it, as JSON data."""
    return {"choice": rival.choice.hex(), "state": rival.state.value, **cost_to_json(rival.cost)}


def pairs(before: Iterable[Any], after: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The rows of both sides, or None, of the same key and environment. Both are in the order of `rows.in_order`."""
    marked = heapq.merge(_mark(before, 0), _mark(after, 1), key=lambda item: item[:2])
    for _, group in groupby(marked, key=lambda item: item[0]):
        found = {side: row for _, side, row in group}
        yield found.get(0), found.get(1)


def _mark(rows: Iterable[Any], side: int) -> Iterator[tuple[tuple[bytes, int], int, Any]]:
    for row in rows:
        yield (row.key_digest, row.environment_id), side, row
