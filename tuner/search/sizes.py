"""Tuning of a model with open dimensions: jobs at a few sizes, whose schedules those in between take over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

from tunewright.graph.onnx_import import faults_named, open_signature, read_model

from ..arguments import check_model
from ..errors import Refused
from .budget_shares import budget_shares
from .progress import Progress
from .report import Report
from .tuning import tune

MOST_OF_RANGE, MOST_JOBS = 4, 16
"""Most sizes that are picked from a range, and most combinations of sizes that are tuned."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """All sizes of a dimension from one to another."""

    least: int
    most: int

    def picks(self) -> tuple[int, ...]:
        """Its ends, and up to two sizes between them at about equal ratios: powers of two, which batches are."""
        ratio = log2(self.most / self.least)
        count = min(MOST_OF_RANGE, 1 + round(ratio))  # neighbours at least half as large as the next
        inner = (round(log2(self.least) + ratio * step / (count - 1)) for step in range(1, count - 1))
        return tuple(sorted({self.least, *(min(max(2**power, self.least), self.most) for power in inner), self.most}))


Choice = SizeRange | Sequence[int]
"""The sizes of a dimension to tune for: some of a range, or these."""


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The report of the job at one size."""

    dims: Mapping[str, int]
    report: Report

    def to_json(self) -> dict[str, Any]:
        """The report as plain data, with its dimensions."""
        return {"dims": dict(self.dims), **self.report.to_json()}


def combinations(choices: Mapping[str, Choice]) -> list[dict[str, int]]:
    """All sizes to tune for. Raises Refused where these are more than MOST_JOBS."""
    picks = {
        name: choice.picks() if isinstance(choice, SizeRange) else tuple(choice) for name, choice in choices.items()
    }
    combined = [dict(zip(picks, sizes, strict=True)) for sizes in product(*picks.values())]
    if len(combined) > MOST_JOBS:
        factors = " x ".join(str(len(sizes)) for sizes in picks.values())
        count = f"{factors} sizes are {len(combined)}" if len(picks) > 1 else f"{factors} sizes are too many"
        raise Refused(f"{count}, each a job of its own; give {MOST_JOBS} at most")
    return combined


def tune_sizes(
    model: Path | str | bytes,
    choices: Mapping[str, Choice],
    *,
    trials: int | None = None,
    minutes: float | None = None,
    dims: Mapping[str, int] | None = None,
    begin: Callable[[Mapping[str, int], int, int], None] = lambda dims, number, count: None,
    watch: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Iterable[SizeReport]:
    """The report of the job of each size in turn; they share `trials` and `minutes` evenly.

    `dims` binds the other open dimensions; `settings` are those of `tune`. `begin` is told the size, its number and how
    many there are. Raises what `tune` raises, and Refused where there are too many sizes.
    """
    model = check_model(model)
    sizes = combinations(choices)
    shares = budget_shares(trials, minutes, len(sizes), "sizes")
    if twice := (dims or {}).keys() & choices.keys():
        raise Refused(f"{min(twice)!r} is given a size, and sizes to tune for; give one of them")
    with faults_named(model):  # before anything is said of the first job
        open_signature(read_model(model)[0], {**(dims or {}), **sizes[0]})
    for number, (own, share) in enumerate(zip(sizes, shares, strict=True)):
        begin(own, number + 1, len(sizes))
        bound = {**(dims or {}), **own}
        report = tune(model, trials=share.trials, minutes=share.minutes, dims=bound, watch=watch, **settings)
        yield SizeReport(own, report)
