"""Told: what tuner processes told of jobs, as the database has it: plain data whose form nobody has checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any


def number(data: Mapping[str, Any] | None, name: str) -> float | None:
    """A number that was told, at least 0; None where there is none."""
    return finite(None if data is None else data.get(name))


def finite(value: object) -> float | None:
    """A number that is at least 0; None for all else."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and 0 <= value < 1e15
    return float(value) if usable else None  # type: ignore[arg-type]


def word(data: Mapping[str, Any] | None, name: str) -> str:
    """A text that was told; empty where there is none."""
    value = None if data is None else data.get(name)
    return value if isinstance(value, str) else ""


def interval(data: Mapping[str, Any] | None, name: str) -> tuple[float, float] | None:
    """Both ends of an interval; None where there is none."""
    edges = None if data is None else data.get(name)
    if not isinstance(edges, Sequence) or isinstance(edges, str) or len(edges) != 2:
        return None
    low, high = (number({name: edge}, name) for edge in edges)
    return None if low is None or high is None else (low, high)
