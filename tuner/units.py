"""Units: seconds inside, milliseconds in output. An unknown time is None in both."""

from __future__ import annotations


def in_ms(seconds: float | None) -> float | None:
    """Milliseconds."""
    return None if seconds is None else 1e3 * seconds


def in_s(ms: float | None) -> float | None:
    """Seconds."""
    return None if ms is None else ms / 1e3
