"""What the process does that a case is timed in: see `campaign`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunewright.tuner.commands.bench import bench
from tunewright.tuner.lookup.place import Place


def beside(model: str, against: list[str], db: str, threads: int, thorough: bool) -> dict[str, Any]:
    """Times of a tuned model and its peers, as `tunewright bench` gives them.

    Where it is `thorough` also the time on default schedules, and what the runtimes take of the memory.
    """
    return bench(Path(model), against, Place(db), {}, threads, default=thorough, memory=thorough)


CALLS: dict[str, Callable[..., Any]] = {"beside": beside}
