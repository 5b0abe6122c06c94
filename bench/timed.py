"""What the process does that a case is timed in: see `campaign`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunewright.tuner.commands.bench import bench
from tunewright.tuner.place import Place


def beside(model: str, against: list[str], db: str, threads: int) -> dict[str, Any]:
    """Times of a tuned model and its peers, as `tunewright bench` gives them."""
    return bench(Path(model), against, Place(db), {}, threads, default=True)


CALLS: dict[str, Callable[..., Any]] = {"beside": beside}
