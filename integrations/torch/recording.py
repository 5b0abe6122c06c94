"""`tuning`: tunes the graphs that are run within it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tunewright.graph.onnx_import import ModelError
from tunewright.tuner import tune
from tunewright.tuner.arguments import check_minutes
from tunewright.tuner.errors import Refused, message

from .options import BackendOptions

LEAST_MINUTES = 0.01
"""The least that a graph is given."""


class Tunable(Protocol):
    """A part of a graph, which opens its sessions anew after `renew`, and no more after `leave`."""

    options: BackendOptions

    def model(self, tensors: Sequence[Any]) -> bytes | Path: ...
    def renew(self) -> None: ...
    def leave(self, why: str) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What was run: a part of a graph, at one size."""

    part: Tunable
    dims: Mapping[str, int]
    tensors: Sequence[Any]  # its inputs, of which the weights matter

    def is_like(self, other: Run) -> bool:
        """Whether both have the same tasks."""
        return self.part is other.part and self.dims == other.dims


@dataclass(slots=True)
class TuningRuns:
    """The runs within one `with tuning(...)`, and the reports once it is over."""

    runs: list[Run] = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Keep a run, unless there is one like it."""
        if not any(run.is_like(known) for known in self.runs):
            self.runs.append(run)


_recordings: list[TuningRuns] = []


def recording() -> TuningRuns | None:
    """What records runs now."""
    return _recordings[-1] if _recordings else None


@contextmanager
def tuning(*, minutes: float = 5.0, trials: int | None = None) -> Iterator[TuningRuns]:
    """Tune what is run within, at its sizes, when the block ends: `minutes` in all, and `trials` a graph at most.

    Within the block PyTorch itself runs the graphs. The first run behind it opens sessions, which take what was found.
    What `torch.compile` was told with `options` holds for tuning too. Raises what `tunewright.tuner.tune` raises; and
    Refused where nothing was run, or where schedules come from a server, which has tuner processes of its own.
    """
    check_minutes(minutes)
    record = TuningRuns()
    _recordings.append(record)
    try:
        yield record
    finally:
        _recordings.remove(record)
    if not record.runs:
        raise Refused(
            "nothing was tuned: no model compiled with backend='tunewright' was run within `with tuning(...)`, "
            "or all of it was left to PyTorch"
        )
    _tune(record, minutes, trials)


def _tune(record: TuningRuns, minutes: float, trials: int | None) -> None:
    """Tune the runs one after the other; each gets its share of the time that is left."""
    for run in record.runs:
        if (server := run.part.options.server) is not None:
            raise Refused(f"schedules come from {server}, and `tuning` keeps them in a database: give `db`")
    try:
        _tune_runs(record, time.monotonic() + minutes * 60, trials)
    finally:
        for run in record.runs:
            run.part.renew()


def _tune_runs(record: TuningRuns, end_s: float, trials: int | None) -> None:
    for number, run in enumerate(record.runs):
        options = run.part.options
        left = (end_s - time.monotonic()) / 60 / (len(record.runs) - number)
        share = max(left, LEAST_MINUTES)
        model = run.part.model(run.tensors)
        try:
            found = tune(
                model,
                db=options.db,
                threads=options.threads,
                dims=run.dims,
                precision=options.precision,
                minutes=share,
                trials=trials,
            )
            record.reports.append(found)
        except ModelError as error:
            run.part.leave(message(error))
