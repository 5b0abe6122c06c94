"""What the trials of a task say: where they are below the roofline, and what cost models make of them.

It is found out in one go from a sample of the trials, and takes some tenths of a second: see `Looks.judged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.sql_store import SqlStore
from tunewright.db.trials import TrialLine
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.insight import told
from tunewright.tuner.insight.calibration import Calibration, calibrations
from tunewright.tuner.insight.reasons import Reason, reasons
from tunewright.tuner.insight.roofline import MEMORY, Ceilings, ceilings, spots

from ..schemas import Answer, Digest
from .said import Said

SAMPLED, FASTEST = 980, 20
"""Trials that are looked at: so many of all, and the fastest. No more than 1,000 points are drawn or scored."""

ARITHMETIC = "arithmetic"


class BandwidthShown(Answer):
    """How many bytes a second all threads together can bring nearer."""

    name: Said = Field(description="Where they come from: a cache or memory.")
    bytes_s: float


class CeilingsShown(Answer):
    """What no kernel exceeds on the target."""

    peak_flops_s: float
    bandwidths: list[BandwidthShown] = Field(description="From the nearest cache outwards; the last is memory's.")
    is_measured: bool = Field(description="Whether the peak was measured. All other figures are round ones.")

    @staticmethod
    def of(target: Target, peak_gflops: float | None) -> CeilingsShown:
        """Those of a target; `peak_gflops` where it was measured."""
        found = ceilings(target, peak_gflops)
        return CeilingsShown(
            peak_flops_s=found.peak_flops_s,
            bandwidths=[BandwidthShown(name=one.name, bytes_s=one.bytes_s) for one in found.bandwidths],
            is_measured=found.is_measured,
        )


class Nearness(Answer):
    """How near a schedule is to what the target allows it."""

    flops_s: float | None = Field(description="What it reaches; null where the task computes nothing.")
    bytes_s: float = Field(description="Bytes that it must read and write at least, a second.")
    bound: Said = Field(description="What limits it: `arithmetic`, or where bytes come from.")
    allowed_flops_s: float | None = Field(description="What that allows it.")
    is_measured: bool = Field(
        description="Whether what limits it was measured on the machine: its peak may be, bandwidths are estimates."
    )
    share: float = Field(
        description="What it reaches of what is allowed. More than 1 is possible: operands may stay in caches from run "
        "to run, and some schedules do less arithmetic than the task is counted with."
    )


class PointShown(Answer):
    """A trial that worked, as a point of the pictures."""

    schedule: Digest
    median_ms: float
    intensity: float | None = Field(
        description="Floating-point operations for each byte from memory; null where that is not known."
    )
    flops_s: float | None
    predicted_ms: list[float | None] = Field(description="By each of the models in `calibrations`.")


class CalibrationShown(Answer):
    """How well a cost model ranks the trials, and so how far it can be trusted."""

    model: Said
    trials: int = Field(description="That it was asked about and that worked.")
    rank_correlation: float | None = Field(description="Spearman's: 1 is perfect, 0 is chance.")
    pairwise: float | None = Field(description="Share of the pairs that it puts in the right order.")
    peak_1: float | None = Field(description="Speed of the schedule that it ranks first, relative to the best.")
    peak_5: float | None = Field(description="The same of the best of the first five.")
    has_learned_from_these: bool
    best_rank: int | None = Field(description="Where among the trials it ranks the best schedule known: 1 is first.")


class ReasonShown(Answer):
    """A feature in which a schedule differs from the default, and what the cost model makes of it."""

    feature: Said
    words: Said = Field(description="What it is.")
    value: Said = Field(description="Its value, for people.")
    default_value: Said = Field(description="The default's.")
    log2_speed: float = Field(description="What it adds to log2 of the speed, more than the default's does.")

    @staticmethod
    def of(reason: Reason) -> ReasonShown:
        """A reason as views show it."""
        return ReasonShown(
            feature=reason.feature,
            words=reason.words,
            value=reason.shown,
            default_value=reason.default_shown,
            log2_speed=reason.log2_speed,
        )

    @property
    def factor(self) -> float:
        """What it does to the speed: 2 is twice as fast."""
        return float(2.0**self.log2_speed)


class Judged(Answer):
    """What a sample of the trials of a task says."""

    sampled: int = Field(description="Trials that were looked at.")
    points: list[PointShown]
    left_out: int = Field(description="Of them, those of another version of their sketch, which are in no picture.")
    calibrations: list[CalibrationShown]
    reasons: list[ReasonShown] = Field(description="Why the cost model prefers the best to the default.")
    nearness: Nearness | None


@dataclass(frozen=True, slots=True)
class Question:
    """A task on a target, and the schedule whose success is to be explained."""

    task: Task
    target: Target
    default: Schedule | None
    best: Schedule | None
    best_s: float | None
    peak_gflops: float | None


def measured_peak(result: Mapping[str, Any] | None) -> float | None:
    """The GFLOP/s that a job's machine was measured to reach, by its result; None where it was not."""
    return told.number(result, "peak_gflops") or None


def sample(store: SqlStore, question: Question) -> list[TrialLine]:
    """Some of the trials, and the fastest, the best and the default in any case. Raises StoreError."""
    task_key, target_key = question.task.key, question.target.key
    found = store.trials.sample(task_key, target_key, SAMPLED)
    if len(found) >= SAMPLED:
        found += store.trials.fastest(task_key, target_key, FASTEST)
        for schedule in (question.best, question.default):
            detail = schedule and store.trials.one(task_key, target_key, schedule.key)
            found += [detail.line] if detail else []
    return list({line.id: line for line in found}.values())


def judged(store: SqlStore, question: Question) -> Judged:
    """What the trials say. Raises StoreError."""
    lines = sample(store, question)
    task, target, best = question.task, question.target, question.best
    drawn = spots(task, target, lines)
    opinions = calibrations(store, task, target, lines)
    places = {spot.schedule_key: (spot.intensity, spot.flops_s) for spot in drawn.spots}
    predicted = [{pair.schedule_key: pair.predicted_s for pair in one.points} for one in opinions]
    measured = {line.schedule.key: line.median_s for line in lines if line.status is Status.OK and line.median_s}
    why: list[Reason] = []
    if best is not None and question.default is not None and best != question.default:
        own = [(line.schedule, line) for line in lines]
        why = reasons(store, task, target, best, question.default, own)
    return Judged(
        sampled=len(lines),
        points=[_point(key, median_s, places, predicted) for key, median_s in measured.items()],
        left_out=drawn.left_out,
        calibrations=[_calibration(one, best.key if best else "") for one in opinions],
        reasons=list(map(ReasonShown.of, why)),
        nearness=nearness(question, lines),
    )


def _point(
    key: str,
    median_s: float,
    places: Mapping[str, tuple[float, float]],
    predicted: Sequence[Mapping[str, float]],
) -> PointShown:
    intensity, flops_s = places.get(key, (None, None))
    times_s = [of_model.get(key) for of_model in predicted]
    return PointShown(
        schedule=key,
        median_ms=_short(1e3 * median_s),
        intensity=None if intensity is None else _short(intensity),
        flops_s=None if flops_s is None else _short(flops_s),
        predicted_ms=[None if time_s is None else _short(1e3 * time_s) for time_s in times_s],
    )


def _short(figure: float) -> float:
    """With as many digits as a picture shows, so that a thousand points take little room."""
    return float(f"{figure:.4g}")


def _calibration(found: Calibration, best_key: str) -> CalibrationShown:
    best_s = next((pair.predicted_s for pair in found.points if pair.schedule_key == best_key), None)
    return CalibrationShown(
        model=found.model,
        trials=len(found.points),
        rank_correlation=found.rank_correlation,
        pairwise=found.pairwise,
        peak_1=found.peak_1,
        peak_5=found.peak_5,
        has_learned_from_these=found.has_learned_from_these,
        best_rank=None if best_s is None else 1 + sum(pair.predicted_s < best_s for pair in found.points),
    )


def nearness(question: Question, lines: Sequence[TrialLine]) -> Nearness | None:
    """How near the best is to what the target allows it; None where it is not among the trials, or in no space."""
    task, target, time_s = question.task, question.target, question.best_s
    line = [line for line in lines if line.schedule == question.best and line.status is Status.OK][:1]
    if not line or not time_s:
        return None
    found = ceilings(target, question.peak_gflops)
    bytes_s = task.traffic_bytes / time_s
    if not task.flops:
        [memory_bytes_s] = [one.bytes_s for one in found.bandwidths if one.name == MEMORY]
        share = bytes_s / memory_bytes_s
        return Nearness(
            flops_s=None, bytes_s=bytes_s, bound=MEMORY, allowed_flops_s=None, is_measured=False, share=share
        )
    allowed = _allowed(task, target, line, found)
    if not allowed:
        return None
    bound = min(allowed, key=allowed.__getitem__)
    flops_s = task.flops / time_s
    return Nearness(
        flops_s=flops_s,
        bytes_s=bytes_s,
        bound=bound,
        allowed_flops_s=allowed[bound],
        is_measured=bound == ARITHMETIC and found.is_measured,
        share=flops_s / allowed[bound],
    )


def _allowed(task: Task, target: Target, line: Sequence[TrialLine], found: Ceilings) -> dict[str, float]:
    """FLOP/s by what might limit a schedule; nothing where its loops are not known."""
    allowed: dict[str, float] = {}
    for bandwidth in found.bandwidths:
        for spot in spots(task, target, line, bandwidth.name).spots:
            allowed[bandwidth.name] = spot.intensity * bandwidth.bytes_s
    return {ARITHMETIC: found.peak_flops_s} | allowed if allowed else {}
