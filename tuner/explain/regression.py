"""What a regression is told as: in the history of a job, and to who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..text import between_ms, change, duration, printable, ratio, shorten
from . import values

LONGEST_ORIGIN = 60
"""Letters of a version that are told; what is stored may have any number."""


def regression_words(data: Mapping[str, Any]) -> str:
    """What the data of an event says, e.g. "1.20 ms (1.19 ms to 1.21 ms), was 1.00 ms (...): +20%; llvm 21, now 22"."""
    now_ms, before_ms = values.number(data, "now_ms"), values.number(data, "before_ms")
    now, before = (
        f"{duration(time_ms)}{between_ms(values.interval(data, name))}"
        for time_ms, name in ((now_ms, "now_interval_ms"), (before_ms, "before_interval_ms"))
    )
    factor = ratio(now_ms, before_ms)
    slower = "" if factor is None else f": {change(factor)}"
    return "; ".join((f"{now}, was {before}{slower}", *origin_texts(*_origins(data))))


def regression_origin(data: Mapping[str, Any]) -> str:
    """What its task was built by, and what before, e.g. "llvm 22 instead of 21"; empty where that is the same."""
    return ", ".join(replaced_texts(*_origins(data)))


def _origins(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the data of an event says of the origin before and now."""
    before, now = ({} if not isinstance(data.get(name), Mapping) else data[name] for name in ("before", "now"))
    return before, now


def origin_texts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two confirmations, besides their times, e.g. "llvm 21, now 22"."""
    names = sorted({*before, *now})
    return [f"{printable(name)} {_origin(before, name)}, now {_origin(now, name)}" for name in names]


def replaced_texts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The same as what was put in the place of what, e.g. "llvm 22 instead of 21"."""
    names = sorted({*before, *now})
    return [f"{printable(name)} {_origin(now, name)} instead of {_origin(before, name)}" for name in names]


def _origin(origins: Mapping[str, Any], name: str) -> str:
    return shorten(printable(origins[name]), LONGEST_ORIGIN) if name in origins else "unknown"
