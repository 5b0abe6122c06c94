"""Values in unchecked plain data of stored jobs: numbers, words, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import isfinite
from typing import Any, TypeVar

Word = TypeVar("Word", bound=StrEnum)


def number(data: Mapping[str, Any] | None, name: str) -> float | None:
    """The number at `name`, at least 0; None where there is none."""
    return finite(None if data is None else data.get(name))


def finite(value: object) -> float | None:
    """A finite number that is at least 0; None for anything else."""
    is_usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and 0 <= value < 1e15
    return float(value) if is_usable else None  # type: ignore[arg-type]


def word(data: Mapping[str, Any] | None, name: str) -> str:
    """The text at `name`; empty where there is none."""
    value = None if data is None else data.get(name)
    return value if isinstance(value, str) else ""


def member(data: Mapping[str, Any] | None, name: str, kind: type[Word]) -> Word | None:
    """The member of an enumeration at `name`; None where there is none."""
    value = word(data, name)
    return next((item for item in kind if item.value == value), None)


def entries(data: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The tables in the list at `name`; none where there is no list."""
    value = None if data is None else data.get(name)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, Sequence) else []


def interval(data: Mapping[str, Any] | None, name: str) -> tuple[float, float] | None:
    """Both ends of the interval at `name`; None where there is none."""
    edges = None if data is None else data.get(name)
    if not isinstance(edges, Sequence) or isinstance(edges, str) or len(edges) != 2:
        return None
    low, high = (number({name: edge}, name) for edge in edges)
    return None if low is None or high is None else (low, high)
