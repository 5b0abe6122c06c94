"""Units: seconds inside, milliseconds in output. An unknown time is None in both."""

from __future__ import annotations

from typing import Annotated

from tunewright.codegen.codec import IN_MS

from .text import Interval

Time = Annotated[float | None, IN_MS]
"""Seconds; None where it is not known."""

TimeInterval = Annotated[Interval | None, IN_MS]
"""The 95% interval of a time; likewise."""


def in_ms(seconds: float | None) -> float | None:
    """Milliseconds."""
    return None if seconds is None else 1e3 * seconds


def in_s(ms: float | None) -> float | None:
    """Seconds."""
    return None if ms is None else ms / 1e3
