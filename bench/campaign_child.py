"""The process that times a case for `campaign`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunewright.tuner.cli.comparison import compare
from tunewright.tuner.lookup.source import ScheduleSource


def time_beside_peers(model: str, against: list[str], db: str, threads: int, thorough: bool) -> dict[str, Any]:
    """Times of a model and its peers, as `tunewright bench` gives them.

    If `thorough`, also the time on default schedules and the memory of each runtime.
    """
    return compare(Path(model), against, ScheduleSource(db), {}, threads, default=thorough, memory=thorough)


CALLS: dict[str, Callable[..., Any]] = {"time_beside_peers": time_beside_peers}
