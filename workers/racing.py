"""Racing: how long a schedule is timed depends on the fastest one known, the incumbent.

Most schedules are far slower, and a few runs show it. What is near is timed in turn with the incumbent, so that a slow
phase of the machine meets both. Interruptions only ever add time: that a schedule seems slow is doubted, that it is
fast is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .sampling import FEWEST, LONGEST_S, PRECISION, SAMPLE_S, STEP, Interval, Timed, interval

FIRST = 3
"""Samples after which one that is clearly slower is given up: one of them may be disturbed, and the median holds."""

LONG_S = 2 * SAMPLE_S
"""A run that takes so long is a sample, that of the check the first: what is new to it then, such as its code, is soon
read. Nor are there more than `FIRST` where others have `FEWEST`, before it is known whether it may be the faster one.
"""

CLEARLY = 1.3
"""Times the incumbent's time, above which a schedule is clearly slower, by the median of its samples or by a long run.

Samples that were taken within a second of each other differ by a tenth or two where others work on the machine. What
disturbs a long run by a third of it is rare.
"""

TWICE = 1.02
"""The same for the faster one of two long runs, where it is also slower than all that was seen of the incumbent a
moment ago: they vary by less, and that both are disturbed, but none of the incumbent's, is rare."""

HOPELESS = 2.0
"""Times the fastest time known, above which a schedule is clearly slower, where its schedule isn't at hand to be timed
again: that time may be of a better hour, or of another machine of the kind."""

FRESH_S = 1.0
"""For that long the last look at the incumbent tells how fast the machine is. Its clock follows heat and load, which
takes longer to change; and to look again costs a few milliseconds."""

TURN = 2
"""Samples of each in a turn, unless a run is long: then half of them follow one of the same kernel, as all others do.
As many samples of a long run are enough to see how fast the incumbent is.
"""

TIE = 0.02
"""Two schedules are as good as the same where both intervals lie within this part of each other: more samples would
tell which of them is faster, but not make any model faster."""


SAME = TIE / 2
"""The same for medians, where the incumbent was seen a moment ago: not even a turn is taken then. Which of two
schedules is faster by less is for the comparison that ends a search."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A schedule that can be timed: `repeats` runs make a sample. `once_s` is about what its first run took."""

    timed: Timed
    repeats: int
    once_s: float

    @property
    def is_long(self) -> bool:
        return self.once_s >= LONG_S

    @property
    def few(self) -> int:
        """Samples that show about how fast it is."""
        return TURN if self.is_long else FIRST

    def samples(self, count: int, deadline_s: float) -> list[float]:
        """So many; less where the deadline passes, but at least one."""
        return self.timed.time(count, self.repeats, deadline_s=deadline_s)


@dataclass(slots=True)
class Incumbent:
    """The fastest schedule known, and what was seen of it last."""

    runner: Runner
    seen: Interval
    seen_at_s: float

    def see(self, samples_s: list[float], at_s: float) -> None:
        self.seen, self.seen_at_s = interval(samples_s), at_s


class Outcome(NamedTuple):
    """What a race came to."""

    samples_s: list[float]
    incumbent_s: float | None  # median of the incumbent where it was timed in turn
    is_fastest: bool  # of all that are known, as far as that was found out


class Race:
    """One schedule, the challenger, against the incumbent, or against a mere time where none is at hand.

    `best_s` is the fastest time known, wherever it was taken. `clock` is that of the deadlines.
    """

    def __init__(
        self,
        challenger: Runner,
        incumbent: Incumbent | None,
        best_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._challenger, self._incumbent, self._best_s, self._clock = challenger, incumbent, best_s, clock
        self._taken = [challenger.once_s] if challenger.is_long else []

    def run(self, budget_s: float) -> Outcome:
        """Take samples until it is clear which is faster, both are known precisely, or `budget_s` is spent.

        The fewest are taken whatever they cost, unless the challenger is clearly slower. The last run is one of the
        challenger's: its outputs are there.
        """
        start_s = self._clock()
        if not self._first(start_s + LONGEST_S):
            return Outcome(self._taken, None, False)
        incumbent, deadline_s = self._incumbent, start_s + budget_s
        if incumbent is None:
            while interval(self._taken).width > PRECISION and self._clock() < deadline_s:
                self._taken += self._challenger.samples(STEP, deadline_s)
            return Outcome(self._taken, None, True)
        self._look(incumbent)
        if interval(self._taken).low_s > incumbent.seen.high_s or self._is_same(incumbent):
            return Outcome(self._taken, None, False)
        incumbent_s = self._in_turn(incumbent, deadline_s)
        return Outcome(self._taken, incumbent_s, interval(self._taken).median_s < incumbent_s)

    def _first(self, deadline_s: float) -> bool:
        """Take the fewest samples, or less where the deadline passes. Whether the challenger may be the faster one."""
        for count in range(1, FIRST + 1) if self._challenger.is_long else (FIRST, FEWEST):
            if count > len(self._taken):
                self._taken += self._challenger.samples(count - len(self._taken), deadline_s)
            if self._is_slow() or self._is_long_and_same():
                return False
            if self._clock() >= deadline_s:
                break
        return True

    def _is_slow(self) -> bool:
        """Whether the challenger is clearly slower, by its first samples."""
        if self._best_s is not None and self._exceeds(HOPELESS * self._best_s):
            return True
        known = self._incumbent
        if known is None or not self._is_beyond(known):
            return False
        self._look(known)
        return self._is_beyond(known)

    def _is_beyond(self, known: Incumbent) -> bool:
        if self._challenger.is_long and len(self._taken) > 1:
            return self._exceeds(max(TWICE * known.seen.median_s, known.seen.high_s))
        return self._exceeds(CLEARLY * known.seen.median_s)

    def _is_long_and_same(self) -> bool:
        """Whether two long runs show that more would tell nothing of use."""
        known, is_known = self._incumbent, self._challenger.is_long and len(self._taken) > 1
        return is_known and known is not None and self._is_fresh(known) and self._is_same(known)

    def _is_same(self, known: Incumbent) -> bool:
        return abs(interval(self._taken).median_s - known.seen.median_s) <= SAME * known.seen.median_s

    def _is_fresh(self, known: Incumbent) -> bool:
        return self._clock() - known.seen_at_s <= FRESH_S

    def _exceeds(self, limit_s: float) -> bool:
        """Whether the challenger takes longer than that, so far: what disturbs one run must not make it seem slow."""
        about_s = min(self._taken) if self._challenger.is_long else interval(self._taken).median_s
        return about_s > limit_s

    def _look(self, incumbent: Incumbent) -> None:
        """See how fast the incumbent is now, if that was too long ago; then, beside it, the challenger."""
        start_s = self._clock()
        if not self._is_fresh(incumbent):
            incumbent.see(incumbent.runner.samples(incumbent.runner.few, start_s + LONGEST_S), self._clock())
            self._taken += self._challenger.samples(1, start_s + LONGEST_S)

    def _in_turn(self, incumbent: Incumbent, deadline_s: float) -> float:
        """More samples of both, the challenger's last; the median of the incumbent's."""
        turn = 1 if self._challenger.is_long else TURN
        others: list[float] = []
        while len(others) < self._challenger.few or (
            not _is_decided(self._taken, others) and self._clock() < deadline_s
        ):
            others += incumbent.runner.samples(turn, deadline_s)
            self._taken += self._challenger.samples(turn, deadline_s)
        incumbent.see(others, self._clock())
        return incumbent.seen.median_s


def _is_decided(some_s: list[float], others_s: list[float]) -> bool:
    """Whether it is clear which is faster, or that neither is."""
    one, other = interval(some_s), interval(others_s)
    low_s, high_s = min(one.low_s, other.low_s), max(one.high_s, other.high_s)
    return one.low_s > other.high_s or one.high_s < other.low_s or high_s <= (1 + TIE) * low_s
