"""Roofline: trials by arithmetic intensity and speed, below the ceilings of a machine.

Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", 2009.
Bytes follow from the loops of a schedule by the rules that the cost model has; nothing is lowered for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.costmodel.loops import Loops
from tunewright.costmodel.roofline import last_bytes, map_loops, peak_factor, peak_flops_s, rates_bytes_s
from tunewright.db.trial import TrialLine
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Status

from .trial_points import trials_by_space

MEMORY = "memory"
"""The source of bytes that pass into the last cache."""


@dataclass(frozen=True, slots=True)
class MemoryBandwidth:
    """The bandwidth of all threads together from one level."""

    name: str  # where the bytes come from: "L2", "L3" or "memory"
    bytes_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Upper bounds of any kernel: multiply-adds of float32, two operations each, and bytes from each level."""

    peak_flops_s: float
    bandwidths: tuple[MemoryBandwidth, ...]  # from the nearest cache outwards; the last is memory's
    is_measured: bool  # whether the peak is: all others are round figures, that today's machines are near


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A trial that worked, in a roofline."""

    schedule_key: str
    intensity: float  # floating-point operations for each byte that is moved
    flops_s: float


@dataclass(frozen=True, slots=True)
class RooflinePoints:
    """The trials of a task in a roofline."""

    points: tuple[RooflinePoint, ...]
    left_out: int  # that worked, and are in no space of today: of another version of a sketch, as a rule


def ceilings(task: Task, target: Target, peak_gflops: float | None = None) -> Ceilings:
    """The ceilings of a machine for a task; `peak_gflops` is the measured peak of a job's report, of float32."""
    factor = peak_factor(task, target)
    rates = rates_bytes_s(target)
    outer = [MemoryBandwidth("L3", rates["l2"])] if target.l3_bytes else []
    bandwidths = (MemoryBandwidth("L2", rates["l1"]), *outer, MemoryBandwidth(MEMORY, rates["l3"]))
    if peak_gflops is not None:
        return Ceilings(1e9 * peak_gflops * factor, bandwidths, is_measured=True)
    return Ceilings(peak_flops_s(target) * factor, bandwidths, is_measured=False)


def roofline_points(task: Task, target: Target, lines: Sequence[TrialLine], name: str = MEMORY) -> RooflinePoints:
    """The trials that worked, by the bytes that come from `name`: a bandwidth of `ceilings`.

    Each byte that the task has to read or write is counted once at least: what a run finds in a cache, something else
    has brought there. A task that computes nothing has no spots. Raises KeyError where nothing has that name.
    """
    into_bytes = _into_bytes(target)[name]
    timed_lines = [line for line in lines if line.status is Status.OK]
    parts = trials_by_space(task, target, timed_lines)
    left_out = len(timed_lines) - sum(len(part.lines) for part in parts)
    if not parts or not task.flops:
        return RooflinePoints((), left_out)

    def moved_bytes(loops: Loops) -> NDArray[np.float64]:
        return loops.traffic_bytes(into_bytes)

    points = []
    for part in parts:
        trials = part.trials
        bytes_moved = np.maximum(map_loops(task, target, trials.space, trials.rows, moved_bytes), task.traffic_bytes)
        for line, intensity, time_s in zip(part.lines, task.flops / bytes_moved, trials.times_s, strict=True):
            points.append(RooflinePoint(line.schedule.key, float(intensity), task.flops / float(time_s)))
    return RooflinePoints(tuple(points), left_out)


def _into_bytes(target: Target) -> dict[str, int]:
    """The size of the cache that bytes from there pass into."""
    inner = {"L2": target.l1_bytes} | ({"L3": target.l2_bytes} if target.l3_bytes else {})
    return inner | {MEMORY: last_bytes(target)}
