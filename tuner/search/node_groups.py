"""Tuning of a model for another runtime: a job for each group of its nodes that runs on our kernels there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import Refused
from .budget_shares import budget_shares
from .progress import Progress
from .report import Report
from .tuning import tune


def tune_groups(
    name: str,
    groups: Sequence[Path | str | bytes],
    *,
    trials: int | None = None,
    minutes: float | None = None,
    dims: Mapping[str, int] | None = None,
    begin: Callable[[int, int], None] = lambda number, count: None,
    watch: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Iterable[Report]:
    """The report of the job of each group of the model `name` in turn; they share `trials` and `minutes` evenly.

    `groups` are of `Integration.models_of_groups`, which was given `dims`. `settings` are those of `tune`. `begin` is
    told the group's number and how many there are. Raises what `tune` raises, and Refused where there are no groups.
    """
    if not groups:
        raise Refused("nothing to tune: at these sizes no group of the model's nodes is ours and does enough work")
    shares = budget_shares(trials, minutes, len(groups), "groups of nodes")
    with TemporaryDirectory(prefix="tunewright-") as folder:
        for number, (model, share) in enumerate(zip(groups, shares, strict=True), start=1):
            begin(number, len(groups))
            if isinstance(model, bytes):
                path, bound = Path(folder) / f"{name}.group{number}.onnx", None
                path.write_bytes(model)
            else:
                path, bound = Path(model), dims
            yield tune(path, trials=share.trials, minutes=share.minutes, dims=bound, watch=watch, **settings)
