"""Analysis of a task's trials: their place below the roofline, and the predictions of cost models.

It is made at once from a sample of the trials, and takes some tenths of a second: see `Descriptions.analyse`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from tunewright.db.store import Store
from tunewright.db.trial import TrialDetail, TrialLine, distinct
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain.calibration import Pair, calibrations
from tunewright.tuner.explain.peak import DOUBT, why_above_bandwidth, why_above_peak
from tunewright.tuner.explain.reasons import SpeedReason, reasons
from tunewright.tuner.explain.roofline import MEMORY, Ceilings, ceilings, roofline_points
from tunewright.tuner.noise import noise_of_line
from tunewright.tuner.text import rounded
from tunewright.tuner.units import in_ms

from ...http.schemas.base import Answer, Digest
from ..views import CalibrationShown, Text
from .schedules import Standing

SAMPLED, FASTEST = 980, 20
"""Trials in a sample, and the fastest beside them. At most 1,000 points are drawn or scored."""

ARITHMETIC = "arithmetic"


class BandwidthShown(Answer):
    """How many bytes a second all threads together can bring nearer."""

    name: Text = Field(description="Where they come from: a cache or memory.")
    bytes_s: float


class CeilingsShown(Answer):
    """What no kernel exceeds on the target."""

    peak_flops_s: float
    bandwidths: list[BandwidthShown] = Field(description="From the nearest cache outwards; the last is memory's.")
    is_measured: bool = Field(description="Whether the peak was measured. All other figures are round ones.")


class Nearness(Answer):
    """How near a schedule is to what the target allows it."""

    flops_s: float | None = Field(description="What it reaches; null where the task computes nothing.")
    bytes_s: float = Field(description="Bytes that it must read and write at least, a second.")
    bound: Text = Field(description="What limits it: `arithmetic`, or where bytes come from.")
    allowed_flops_s: float | None = Field(description="What that allows it.")
    is_measured: bool = Field(
        description="Whether what limits it was measured on the machine: its peak may be, bandwidths are estimates."
    )
    share: float = Field(
        description="What it reaches of what is allowed. More than 1 is possible: operands may stay in caches from run "
        "to run, and some schedules do less arithmetic than the task is counted with."
    )
    why_above: Text = Field(description="Why it is more than 1; empty where it is not clearly so.")

    @property
    def doubt(self) -> str:
        """Why it is not to be trusted; empty where nothing speaks against it."""
        return DOUBT if self.why_above == DOUBT else ""


class PointShown(Answer):
    """A trial that worked, as a point of the pictures."""

    schedule: Digest
    median_ms: float
    noise: Text = Field(description="Why the machine was too busy to rely on the time; empty where it was not.")
    intensity: float | None = Field(
        description="Floating-point operations for each byte from memory; null where that is not known."
    )
    flops_s: float | None
    predicted_ms: list[float | None] = Field(description="By each of the models in `calibrations`.")


class ContributionShown(Answer):
    """What one feature does to the speed that is predicted."""

    feature: Text
    words: Text = Field(description="What it is.")
    value: Text = Field(description="Its value, for people.")
    log2_speed: float = Field(description="What it adds to log2 of the speed.")

    @property
    def factor(self) -> float:
        """The factor on the speed: 2 is twice as fast."""
        return float(2.0**self.log2_speed)


class ReasonShown(ContributionShown):
    """A feature in which a schedule differs from the default, and what the cost model makes of it."""

    default_value: Text = Field(description="The default's.")
    log2_speed: float = Field(description="What it adds to log2 of the speed, more than the default's does.")

    @staticmethod
    def of(reason: SpeedReason) -> ReasonShown:
        """A reason as views show it."""
        return ReasonShown.show(reason, value=reason.value_text, default_value=reason.default_text)


class Analysis(Answer):
    """What a sample of the trials of a task says."""

    sampled: int = Field(description="Trials that were looked at.")
    points: list[PointShown]
    left_out: int = Field(description="Of them, those of another version of their sketch, which are in no picture.")
    calibrations: list[CalibrationShown]
    best: Digest | None = Field(description="Key of the best schedule by then; null: there was none.")
    reasons: list[ReasonShown] | None = Field(
        description="Why the cost model prefers the best to the default; null while that is being found out."
    )

    def told_of(self, best: Schedule | None) -> Analysis:
        """The same without what it says of the best schedule, where that is another one by now."""
        if self.best == (best.key if best else None):
            return self
        unranked = [model.model_copy(update={"best_rank": None}) for model in self.calibrations]
        return self.model_copy(update={"reasons": None, "calibrations": unranked})


def sample(store: Store, known: Standing, schedule: Schedule | None) -> list[TrialLine]:
    """Some of the trials here; the fastest, a schedule's and the default's in any case. Raises StoreError."""
    keys = known.task.key, known.target.key
    lines = store.trials.sample(*keys, SAMPLED)
    if len(lines) >= SAMPLED:
        lines += store.trials.fastest(*keys, FASTEST)
        for other in (schedule, known.default):
            detail = other and store.trials.get(*keys, other.key)
            lines += [detail.line] if detail and not detail.line.is_imported else []
    return distinct(lines)


def analyse(store: Store, known: Standing) -> Analysis:
    """The analysis of a task's trials, and why the best schedule succeeds. Raises StoreError."""
    task, target, best, default = known.task, known.target, known.best_schedule, known.default
    lines = sample(store, known, best)
    roofline = roofline_points(task, target, lines)
    models = calibrations(store, task, target, lines)
    places = {spot.schedule_key: (spot.intensity, spot.flops_s) for spot in roofline.points}
    predicted_s = [{pair.schedule_key: pair.predicted_s for pair in model.points} for model in models]
    measured_s = {line.schedule.key: line.median_s for line in lines if line.status is Status.OK and line.median_s}
    noises = {line.schedule.key: noise_of_line(line) for line in lines}
    why: list[SpeedReason] = []
    if best is not None and default is not None and best != default:
        why = reasons(store, task, target, best, default, [(line.schedule, line) for line in lines])
    points = []
    for key, median_s in measured_s.items():
        intensity, flops_s = map(_short, places.get(key, (None, None)))
        predicted_ms = [_short(in_ms(times_s.get(key))) for times_s in predicted_s]
        point = {"median_ms": _short(1e3 * median_s), "noise": noises[key], "intensity": intensity, "flops_s": flops_s}
        points.append(PointShown.model_validate({"schedule": key, "predicted_ms": predicted_ms, **point}))
    return Analysis(
        sampled=len(lines),
        points=points,
        left_out=roofline.left_out,
        calibrations=[
            CalibrationShown.show(model, trials=len(model.points), best_rank=_rank(model.points, best))
            for model in models
        ],
        best=best.key if best else None,
        reasons=list(map(ReasonShown.of, why)),
    )


def _rank(pairs: Sequence[Pair], schedule: Schedule | None) -> int | None:
    """The place of a schedule by its predicted time, from 1 on."""
    time_s = next((pair.predicted_s for pair in pairs if schedule and pair.schedule_key == schedule.key), None)
    return None if time_s is None else 1 + sum(pair.predicted_s < time_s for pair in pairs)


def _short(figure: float | None) -> float | None:
    """Rounded to the digits that a chart shows, so that a thousand points take little room."""
    return None if figure is None else rounded(figure, 4)


def nearness(known: Standing, trial: TrialDetail | None, time_s: float | None) -> Nearness | None:
    """How near the schedule of a trial that takes so long is to what the target allows it.

    None where it is in no space, or was not timed here. It takes some milliseconds, so each page has it of the time
    that it tells.
    """
    task, target = known.task, known.target
    line = trial.line if trial else None
    if line is None or line.status is not Status.OK or line.is_imported or not time_s:
        return None
    limits = ceilings(task, target, known.peak_gflops)
    bytes_s = task.traffic_bytes / time_s
    if not task.flops:
        return _nearness_to_memory(limits, bytes_s)
    allowed = {
        level.name: spot.intensity * level.bytes_s
        for level in limits.bandwidths
        for spot in roofline_points(task, target, [line], level.name).points
    }
    if not allowed:
        return None  # its loops are not known
    allowed = {ARITHMETIC: limits.peak_flops_s} | allowed
    bound = min(allowed, key=allowed.__getitem__)
    flops_s = task.flops / time_s
    share = flops_s / allowed[bound]
    is_measured = bound == ARITHMETIC and limits.is_measured
    return Nearness(
        flops_s=flops_s,
        bytes_s=bytes_s,
        bound=bound,
        allowed_flops_s=allowed[bound],
        is_measured=is_measured,
        share=share,
        why_above=why_above_peak(share, line.schedule.sketch, is_measured=is_measured)
        if bound == ARITHMETIC
        else why_above_bandwidth(share),
    )


def _nearness_to_memory(limits: Ceilings, bytes_s: float) -> Nearness:
    """That of a task which computes nothing."""
    [memory_bytes_s] = [level.bytes_s for level in limits.bandwidths if level.name == MEMORY]
    share = bytes_s / memory_bytes_s
    return Nearness(
        flops_s=None,
        bytes_s=bytes_s,
        bound=MEMORY,
        allowed_flops_s=None,
        is_measured=False,
        share=share,
        why_above=why_above_bandwidth(share),
    )
