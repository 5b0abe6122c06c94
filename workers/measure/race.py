"""A race of a new schedule, the challenger, against the fastest one known, the incumbent.

Both are timed in turn, so that a slow moment of the machine disturbs both. Most challengers are far slower, and a few
runs show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from tunewright.codegen.closeable import Closeable

from .noise import BELIEVED_DRIFT, NOISY_SPREAD, drift_noise
from .sampling import (
    MAX_SAMPLING_S,
    MIN_SAMPLES,
    MIN_SAMPLES_OF_LONG_RUNS,
    SAMPLE_S,
    SAMPLES_AT_ONCE,
    Timeable,
    interval,
)

FIRST_SAMPLES = 3
"""Samples of the first turn. A challenger that is clearly slower then is given up: one sample may be disturbed, which
the median ignores."""

LONG_RUN_S = 2 * SAMPLE_S
"""From here on a single run is a sample, the run of the check included: warming up is a small part of it. Such a
challenger takes `FIRST_SAMPLES` instead of `MIN_SAMPLES` before it may be the faster one."""

SLOWER_RATIO = 1.3
"""A schedule is clearly slower above this multiple of the incumbent's time, by the median of its samples or by a long
run. Samples of one turn differ by some percent on a busy machine; disturbances of a third of a long run are rare."""

SLOWER_TWICE_RATIO = 1.02
"""The same for the faster of two long runs, if it is also slower than all runs of the incumbent beside them. That both
are disturbed, and the incumbent's between them is not, is rare."""

SLOWER_THAN_STORED_RATIO = 2.0
"""The same where only the fastest time is known, and not its schedule: that time may be of a faster moment, or of
another machine of the kind."""

FAR_SLOWER_RATIO = 4.0
"""The same for a long run, without timing the incumbent again: its last drift is used. Machines were seen to vary by a
factor of three from one second to the next."""

SETTLING_S = 0.1
"""Shortest timing of the first schedule of a task, as all others are put in proportion to its time. What holds up a
machine mostly passes within hundredths of a second."""

MAX_SETTLING_SAMPLES = 50
"""Samples of that timing that are stored."""

RETIMING_S = 0.5
"""How long a challenger that seems faster is timed anew while its samples do not agree: on a busy machine the few that
decide are the luckiest of thousands of trials, and so the stored time of a kernel of 3 ms fell to six tenths of what it
takes. Quiet machines need none of it."""

PATIENCE_S = 0.25
"""How long an incumbent is timed again that suddenly takes `FAR_SLOWER_RATIO` times as long: something holds it up,
such as another process on one of its processors, and times beside that are worthless."""

SAMPLES_PER_TURN = 2
"""Samples of each schedule in a turn after the first. Half of them follow a run of the same kernel. Long runs take one
sample a turn."""

EQUAL_INTERVALS_WITHIN = 0.02
"""Two schedules are equal if both intervals lie within this part of each other: it makes no model faster."""

EQUAL_MEDIANS_WITHIN = EQUAL_INTERVALS_WITHIN / 2
"""The same for medians: the race ends then. The comparison at the end of a search tells smaller differences."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A schedule to be timed: a sample is the mean of `repeats` runs. `once_s` is about the time of its first run."""

    kernel: Timeable
    repeats: int
    once_s: float

    @property
    def is_long(self) -> bool:
        return self.once_s >= LONG_RUN_S

    def samples(self, count: int, deadline_s: float) -> list[float]:
        """Take so many samples; fewer if the deadline passes, but at least one."""
        return self.kernel.time(count, self.repeats, deadline_s=deadline_s)


@dataclass(slots=True)
class Incumbent:
    """A schedule that others are timed against: the fastest one, or an earlier one. `time_s` is its stored time."""

    runner: Runner
    time_s: float
    drift: float = 1.0  # when it was timed last
    anchor: Incumbent | None = None  # an earlier one, which its time is in proportion to
    kernel: Closeable | None = None  # its code, to be closed once nothing is compared with it

    def note(self, now_s: float) -> None:
        """Note what it takes now. What is far faster than its stored time was held up then, and starts over from now.

        Else what is divided by its drift would be as much too slow as that time was.
        """
        self.drift = now_s / self.time_s or 1.0  # a clock may be coarse
        if self.drift < 1 / BELIEVED_DRIFT:
            self.time_s, self.drift = now_s, 1.0

    def successor(self, runner: Runner, time_s: float, drift: float, kernel: Closeable | None = None) -> Incumbent:
        """The next incumbent. It keeps the anchor, or has this one for its anchor; if it is clearly faster, it has
        none. What nothing is compared with any more is closed.

        Two schedules may take each other's place many times, depending on what else the machine does. If each time were
        in proportion to that of the one before, times would drift away from the clock.
        """
        anchor = self.anchor or self
        kept = anchor if time_s * SLOWER_RATIO > anchor.time_s else None
        for entry in dict.fromkeys(each.kernel for each in (self, anchor) if each is not kept):
            if entry is not None:
                entry.close()
        return Incumbent(runner, time_s, drift, kept, kernel)

    def close(self) -> None:
        """Close its code and that of its anchor."""
        for entry in (self, self.anchor):
            if entry is not None and entry.kernel is not None:
                entry.kernel.close()


class RaceResult(NamedTuple):
    """The result of a race.

    `samples_s` are divided by the drift. `incumbent_s` is the stored time of the incumbent, or of its anchor if the
    challenger is the next incumbent; `drift` is that schedule's time now, as a multiple of it. None: there was neither.
    `doubt` is why the samples are those of the clock instead, and the challenger is not believed to be faster.
    """

    samples_s: list[float]
    is_fastest: bool  # of all known schedules, as far as it was timed, and fit to be the next incumbent
    ran: bool  # whether the challenger ran last, so that the outputs are its own
    incumbent_s: float | None = None
    drift: float | None = None
    doubt: str = ""


class Race:
    """A race of one challenger against the incumbent, or against a mere time where no incumbent is loaded.

    Machines have faster and slower moments: neighbours on the same chip, clocks that follow heat. So both are timed in
    turn from the first sample on, and each sample of the challenger is divided by the incumbent's drift beside it.
    `best_s` is the fastest time known, from anywhere: it counts where there is no incumbent. `clock` is the clock of
    the deadlines.
    """

    def __init__(
        self,
        challenger: Runner,
        incumbent: Incumbent | None,
        best_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._challenger, self._incumbent, self._best_s, self._clock = challenger, incumbent, best_s, clock
        self._challenger_s: list[float] = []  # of the challenger, by the clock
        self._incumbent_s: list[float] = []  # of the incumbent beside each, by the clock
        self._anchor_s: list[float] = []  # of its anchor, by the clock, once the challenger seems faster
        self._ran = False  # the challenger, after its check

    def run(self, budget_s: float) -> RaceResult:
        """Take samples until one is clearly faster, or both are equal, or `budget_s` is spent.

        The fewest samples are taken even if they exceed the budget, unless the challenger is clearly slower.
        """
        start_s = self._clock()
        if self._incumbent is None:
            return self._run_alone(start_s)
        return self._run_beside(self._incumbent, start_s, budget_s)

    def _run_alone(self, start_s: float) -> RaceResult:
        """Time it against `best_s`. A schedule that may be faster is timed for `SETTLING_S`, whatever the budget.

        It is no incumbent if its time is hardly known then: something held it up now and then.
        """
        challenger, limit_s = self._challenger, start_s + MAX_SAMPLING_S
        samples_s = [challenger.once_s] if challenger.is_long else []
        for count in range(1, FIRST_SAMPLES + 1) if challenger.is_long else (FIRST_SAMPLES, MIN_SAMPLES):
            if count > len(samples_s):
                samples_s += challenger.samples(count - len(samples_s), limit_s)
            if self._best_s is not None and self._estimate_s(samples_s) > SLOWER_THAN_STORED_RATIO * self._best_s:
                return RaceResult(samples_s, False, True)
            if self._clock() >= limit_s:
                break
        settled_s = start_s + SETTLING_S
        while self._clock() < settled_s and len(samples_s) < MAX_SETTLING_SAMPLES:
            samples_s += challenger.samples(SAMPLES_AT_ONCE, settled_s)[-1:]
        estimate = interval(samples_s)
        return RaceResult(samples_s, estimate.high_s <= BELIEVED_DRIFT * estimate.low_s, True)

    def _estimate_s(self, samples_s: list[float]) -> float:
        """Its time so far. Of long runs the fastest counts, as one may be disturbed."""
        return min(samples_s) if self._challenger.is_long else interval(samples_s).median_s

    def _run_beside(self, incumbent: Incumbent, start_s: float, budget_s: float) -> RaceResult:
        """Take turns; a run of the challenger is the last, if it has any after its check.

        A challenger that seems faster is timed anew, in turn with the incumbent's anchor too, and only these samples
        count: the first ones of the fastest of many are partly luck, and all later times are in proportion to them.
        For the same reason they are to agree, which may take until `RETIMING_S`.
        """
        is_long, limit_s = self._challenger.is_long, start_s + MAX_SAMPLING_S
        if is_long:
            once_s = self._challenger.once_s
            if (estimate_s := once_s / incumbent.drift) > FAR_SLOWER_RATIO * incumbent.time_s:
                return RaceResult([estimate_s], False, False, incumbent.time_s, incumbent.drift)
            other_samples_s, has_waited = self._time_other(incumbent, 1, limit_s)
            if not has_waited:  # else the run of the check may have been held up, too
                self._add([once_s], other_samples_s)
                if self._is_slower(incumbent):
                    return self._outcome(incumbent, is_fastest=False)
        is_retimed = False
        while True:
            self._take_turn(incumbent, limit_s, incumbent.anchor if is_retimed else None)
            is_single_long_run = is_retimed and len(self._samples_s) == 1  # it may be disturbed
            if not is_single_long_run and (self._is_slower(incumbent) or self._is_same(incumbent)):
                return self._outcome(incumbent, is_fastest=False)
            now_s = self._clock()
            has_enough = self._has_enough(must_agree=is_retimed and now_s < start_s + RETIMING_S)
            if not (now_s >= limit_s or (has_enough and (self._is_decided(incumbent) or now_s >= start_s + budget_s))):
                continue
            is_faster = interval(self._samples_s).median_s < incumbent.time_s
            if is_retimed or not is_faster or now_s >= limit_s:
                return self._outcome(incumbent, is_fastest=is_faster)
            is_retimed, start_s, limit_s = True, now_s, now_s + MAX_SAMPLING_S
            self._challenger_s, self._incumbent_s = [], []

    def _take_turn(self, incumbent: Incumbent, limit_s: float, anchor: Incumbent | None) -> None:
        is_long = self._challenger.is_long
        size = 1 if is_long else SAMPLES_PER_TURN if self._challenger_s else FIRST_SAMPLES
        # The incumbent's last run lies between two of the challenger's: after its check, and before this one.
        is_between = is_long and bool(self._incumbent_s) and not self._ran
        incumbent_samples_s = self._incumbent_s[-1:] if is_between else self._time_other(incumbent, size, limit_s)[0]
        if anchor is not None:
            anchor.drift = incumbent.drift  # it may have been timed long ago
            self._anchor_s += self._time_other(anchor, size, limit_s)[0]
        self._ran = True
        self._add(self._challenger.samples(size, limit_s), incumbent_samples_s)

    def _time_other(self, other: Incumbent, size: int, limit_s: float) -> tuple[list[float], bool]:
        """Samples of another schedule, repeated for up to `PATIENCE_S` while it is held up; and whether it was."""
        patience_end_s = min(self._clock() + PATIENCE_S, limit_s)
        has_waited = False
        while True:
            samples_s = other.runner.samples(size, limit_s)
            median_s = interval(samples_s).median_s
            if median_s <= FAR_SLOWER_RATIO * other.drift * other.time_s or self._clock() >= patience_end_s:
                other.note(median_s)
                return samples_s, has_waited
            has_waited = True

    def _add(self, samples_s: list[float], incumbent_samples_s: list[float]) -> None:
        """Add samples of a turn. A deadline may have cut one side short."""
        count = min(len(samples_s), len(incumbent_samples_s))
        self._challenger_s += samples_s[:count]
        self._incumbent_s += incumbent_samples_s[:count]

    @property
    def _samples_s(self) -> list[float]:
        """The samples of the challenger divided by the drift; the incumbent may have started over meanwhile."""
        assert self._incumbent is not None
        return without_drift(self._challenger_s, self._incumbent_s, self._incumbent.time_s)

    def _outcome(self, incumbent: Incumbent, *, is_fastest: bool) -> RaceResult:
        samples_s, baseline_s, incumbent_s = self._samples_s, self._incumbent_s, incumbent.time_s
        if is_fastest and incumbent.anchor is not None and self._anchor_s:
            baseline_s, incumbent_s = self._anchor_s, incumbent.anchor.time_s
            samples_s = without_drift(self._challenger_s, baseline_s, incumbent_s)
        drift = interval(baseline_s).median_s / incumbent_s
        if drift > BELIEVED_DRIFT and interval(samples_s).median_s < incumbent.time_s:
            return RaceResult(self._challenger_s, False, self._ran, doubt=drift_noise(drift))
        return RaceResult(samples_s, is_fastest, self._ran, incumbent_s, drift)

    def _has_enough(self, *, must_agree: bool) -> bool:
        """Whether the challenger has the fewest samples; where they must agree, long runs too need more than a few."""
        if must_agree:
            return len(self._samples_s) >= MIN_SAMPLES and interval(self._samples_s).width <= NOISY_SPREAD
        return len(self._samples_s) >= (FIRST_SAMPLES if self._challenger.is_long else MIN_SAMPLES)

    def _is_slower(self, incumbent: Incumbent) -> bool:
        """Whether the challenger is clearly slower."""
        estimate, count = interval(self._samples_s), len(self._samples_s)
        if self._challenger.is_long and count > 1:
            median_s = interval(self._incumbent_s).median_s
            return min(self._challenger_s) > max(SLOWER_TWICE_RATIO * median_s, *self._incumbent_s)
        if count < MIN_SAMPLES:
            return estimate.median_s > SLOWER_RATIO * incumbent.time_s
        return estimate.low_s > incumbent.time_s

    def _is_same(self, incumbent: Incumbent) -> bool:
        """Whether both are so equal that more samples are useless."""
        has_enough = len(self._samples_s) >= (MIN_SAMPLES_OF_LONG_RUNS if self._challenger.is_long else MIN_SAMPLES)
        return has_enough and abs(interval(self._samples_s).median_s / incumbent.time_s - 1) <= EQUAL_MEDIANS_WITHIN

    def _is_decided(self, incumbent: Incumbent) -> bool:
        """Whether one is clearly faster, or both are equal."""
        estimate, incumbent_s = interval(self._samples_s), incumbent.time_s
        is_equal = (
            estimate.low_s >= (1 - EQUAL_INTERVALS_WITHIN) * incumbent_s
            and estimate.high_s <= (1 + EQUAL_INTERVALS_WITHIN) * incumbent_s
        )
        return estimate.low_s > incumbent_s or estimate.high_s < incumbent_s or is_equal


def without_drift(samples_s: list[float], baseline_samples_s: list[float], time_s: float) -> list[float]:
    """Samples divided by the drift beside them. A coarse clock may show no time for a sample.

    What holds up the machine holds up both. Where a quotient is far below the others, the baseline's sample alone was
    held up: the middle of them is what the drift was.
    """
    pairs = [(own_s, other_s or time_s) for own_s, other_s in zip(samples_s, baseline_samples_s, strict=False)]
    if not pairs:
        return []
    least = median(own_s / other_s for own_s, other_s in pairs) / BELIEVED_DRIFT
    usual_s = median(other_s for _, other_s in pairs)
    return [
        time_s * own_s / (other_s if own_s >= least * other_s else min(other_s, usual_s)) for own_s, other_s in pairs
    ]
