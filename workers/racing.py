"""Racing: how long a schedule is timed depends on the fastest one known, the incumbent.

Both are timed in turn, so that a slow moment of the machine meets both. Most schedules are far slower, and a few runs
show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .sampling import FEWEST, FEWEST_LONG, LONGEST_S, SAMPLE_S, STEP, Timed, interval

FIRST = 3
"""Samples after which one that is clearly slower is given up: one of them may be disturbed, and the median holds."""

LONG_S = 2 * SAMPLE_S
"""A run that takes so long is a sample, that of the check the first: what is new to it then, such as its code, is soon
read. Nor are there more than `FIRST` where others have `FEWEST`, before it is known whether it may be the faster one.
"""

CLEARLY = 1.3
"""Times the incumbent's time, above which a schedule is clearly slower, by the median of its samples or by a long run.

Samples in one turn differ by some percent where others work on the machine. What disturbs a long run by a third of it
is rare.
"""

TWICE = 1.02
"""The same for the faster one of two long runs, where it is also slower than all that was seen of the incumbent beside
them: they vary by less, and that both are disturbed, but not the incumbent's between them, is rare."""

HOPELESS = 2.0
"""Times the fastest time known, above which a schedule is clearly slower, where its schedule isn't at hand to be timed
again: that time may be of a better hour, or of another machine of the kind."""

FAR = 4.0
"""The same of a long run, for which the incumbent is not timed again but taken to be as fast as when it was last:
machines were seen to vary by a factor of three from one second to the next."""

SETTLING_S = 0.1
"""So long the first schedule of a task is timed at least: all others are put in proportion to its time, and what holds
up a machine passes within hundredths of a second, mostly."""

SETTLED = 50
"""Samples that are kept of that: so few tell as much of it as all of them."""

PATIENCE_S = 0.25
"""So long an incumbent is timed again that takes `FAR` times as long as just before: something holds it up, such as
another process on a processor of one of its threads, and beside that no other time tells anything."""

TURN = 2
"""Samples of each in a turn after the first, unless a run is long: then half of them follow one of the same kernel, as
all others do."""

TIE = 0.02
"""Two schedules are as good as the same where both intervals lie within this part of each other: more samples would
tell which of them is faster, but not make any model faster."""


SAME = TIE / 2
"""The same for medians: no more turns are taken then. Which of two schedules is faster by less is for the comparison
that ends a search."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A schedule that can be timed: `repeats` runs make a sample. `once_s` is about what its first run took."""

    timed: Timed
    repeats: int
    once_s: float

    @property
    def is_long(self) -> bool:
        return self.once_s >= LONG_S

    def samples(self, count: int, deadline_s: float) -> list[float]:
        """So many; less where the deadline passes, but at least one."""
        return self.timed.time(count, self.repeats, deadline_s=deadline_s)


@dataclass(slots=True)
class Incumbent:
    """A schedule that others' times are put in proportion to: the fastest one known, or one that was. `time_s` is what
    was noted of it.
    """

    runner: Runner
    time_s: float
    pace: float = 1.0  # how many times as long it took when it was timed last
    standard: Incumbent | None = None  # an earlier one, which its own time was put in proportion to

    def successor(self, runner: Runner, time_s: float, pace: float) -> Incumbent:
        """The next one. Its standard is this one's, or this one, unless it is clearly faster: then it is one itself.

        Were each one's time put in proportion to that of the one before, times would drift from what clocks say. Which
        of two schedules is faster may depend on what else the machine does: they would take each other's place, each
        time at a lower time.
        """
        standard = self.standard or self
        return Incumbent(runner, time_s, pace, standard if time_s * CLEARLY > standard.time_s else None)


class Outcome(NamedTuple):
    """What a race came to.

    `samples_s` are as if the machine were as fast as when `beside_s` was noted of the incumbent, or of its standard
    where the challenger is the next one. That took `pace` times as long now. None: there was neither.
    """

    samples_s: list[float]
    is_fastest: bool  # of all that are known, as far as that was found out
    ran: bool  # the challenger, as the last one: the outputs that lie there are its own
    beside_s: float | None = None
    pace: float | None = None


class Race:
    """One schedule, the challenger, against the incumbent, or against a mere time where none is at hand.

    Machines have faster and slower moments: neighbours on the same chip, clocks that follow heat. So both are timed in
    turn from the first sample on, and each sample of the challenger is divided by the incumbent's pace beside it.
    `best_s` is the fastest time known, wherever it was taken: it counts where there is no incumbent. `clock` is that of
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
        self._taken: list[float] = []  # of the challenger, by the clock
        self._paced: list[float] = []  # the same at the incumbent's pace
        self._others: list[float] = []  # of the incumbent, by the clock
        self._standards: list[float] = []  # of its standard, by the clock, once the challenger seems faster
        self._ran = False  # the challenger, after its check

    def run(self, budget_s: float) -> Outcome:
        """Take samples until it is clear which is faster, or that neither is, or `budget_s` is spent.

        The fewest are taken whatever they cost, unless the challenger is clearly slower.
        """
        start_s = self._clock()
        if self._incumbent is None:
            return self._alone(start_s)
        return self._beside(self._incumbent, start_s, budget_s)

    def _alone(self, start_s: float) -> Outcome:
        """There is nothing to be faster than but a time. What may be faster takes `SETTLING_S` whatever the budget."""
        challenger, limit_s = self._challenger, start_s + LONGEST_S
        taken = [challenger.once_s] if challenger.is_long else []
        for count in range(1, FIRST + 1) if challenger.is_long else (FIRST, FEWEST):
            if count > len(taken):
                taken += challenger.samples(count - len(taken), limit_s)
            if self._best_s is not None and self._about_s(taken) > HOPELESS * self._best_s:
                return Outcome(taken, False, True)
            if self._clock() >= limit_s:
                break
        settled_s = start_s + SETTLING_S
        while self._clock() < settled_s and len(taken) < SETTLED:
            taken += challenger.samples(STEP, settled_s)[-1:]
        return Outcome(taken, True, True)

    def _about_s(self, taken: list[float]) -> float:
        """What it takes, so far: what disturbs one long run must not make it seem slow."""
        return min(taken) if self._challenger.is_long else interval(taken).median_s

    def _beside(self, incumbent: Incumbent, start_s: float, budget_s: float) -> Outcome:
        """Turn by turn; the last run is one of the challenger's, if any is after its check.

        What seems faster is timed anew, in turn with the incumbent's standard as well, and only that counts: of many it
        is partly the luckiest, and all that comes after is put in proportion to it.
        """
        is_long, limit_s = self._challenger.is_long, start_s + LONGEST_S
        if is_long:
            once_s = self._challenger.once_s
            if (about_s := once_s / incumbent.pace) > FAR * incumbent.time_s:
                return Outcome([about_s], False, False, incumbent.time_s, incumbent.pace)
            others, has_waited = self._beside_s(incumbent, 1, limit_s)
            if not has_waited:  # else the run of the check may have been held up, too
                self._add([once_s], others, incumbent)
                if self._is_slower(incumbent):
                    return self._outcome(incumbent, is_fastest=False)
        is_proven = False
        while True:
            self._turn(incumbent, limit_s, incumbent.standard if is_proven else None)
            is_one_alone = is_proven and len(self._paced) == 1  # a long run, and it may be disturbed
            if not is_one_alone and (self._is_slower(incumbent) or self._is_same(incumbent)):
                return self._outcome(incumbent, is_fastest=False)
            now_s = self._clock()
            is_enough = len(self._paced) >= (FIRST if is_long else FEWEST)
            if not (now_s >= limit_s or (is_enough and (self._is_decided(incumbent) or now_s >= start_s + budget_s))):
                continue
            is_faster = interval(self._paced).median_s < incumbent.time_s
            if is_proven or not is_faster or now_s >= limit_s:
                return self._outcome(incumbent, is_fastest=is_faster)
            is_proven, start_s, limit_s = True, now_s, now_s + LONGEST_S
            self._taken, self._paced, self._others = [], [], []

    def _turn(self, incumbent: Incumbent, limit_s: float, standard: Incumbent | None) -> None:
        is_long = self._challenger.is_long
        size = 1 if is_long else TURN if self._taken else FIRST
        # The incumbent's last run lies between two of the challenger's: after its check, and before this one.
        is_between = is_long and bool(self._others) and not self._ran
        others = self._others[-1:] if is_between else self._beside_s(incumbent, size, limit_s)[0]
        if standard is not None:
            standard.pace = incumbent.pace  # it may have been timed long ago
            self._standards += self._beside_s(standard, size, limit_s)[0]
        self._ran = True
        self._add(self._challenger.samples(size, limit_s), others, incumbent)

    def _beside_s(self, other: Incumbent, size: int, limit_s: float) -> tuple[list[float], bool]:
        """Samples of another one that nothing holds up, for `PATIENCE_S` at most, and whether that was waited for."""
        patient_s = min(self._clock() + PATIENCE_S, limit_s)
        has_waited = False
        while True:
            others = other.runner.samples(size, limit_s)
            median_s = interval(others).median_s
            if median_s <= FAR * other.pace * other.time_s or self._clock() >= patient_s:
                other.pace = median_s / other.time_s or 1.0  # a clock may be coarse
                return others, has_waited
            has_waited = True

    def _add(self, taken: list[float], others: list[float], incumbent: Incumbent) -> None:
        """Each sample at the pace of the one beside it; a deadline may have cut one side short."""
        self._taken += taken
        self._others += others
        self._paced += _at_pace(taken, others, incumbent.time_s)

    def _outcome(self, incumbent: Incumbent, *, is_fastest: bool) -> Outcome:
        samples_s, others, beside_s = self._paced, self._others, incumbent.time_s
        if is_fastest and incumbent.standard is not None and self._standards:
            others, beside_s = self._standards, incumbent.standard.time_s
            samples_s = _at_pace(self._taken, others, beside_s)
        return Outcome(samples_s, is_fastest, self._ran, beside_s, interval(others).median_s / beside_s)

    def _is_slower(self, incumbent: Incumbent) -> bool:
        """Whether that is clear by now."""
        seen, count = interval(self._paced), len(self._paced)
        if self._challenger.is_long and count > 1:
            return min(self._taken) > max(TWICE * interval(self._others).median_s, *self._others)
        if count < FEWEST:
            return seen.median_s > CLEARLY * incumbent.time_s
        return seen.low_s > incumbent.time_s

    def _is_same(self, incumbent: Incumbent) -> bool:
        """Whether more would tell nothing of use."""
        is_enough = len(self._paced) >= (FEWEST_LONG if self._challenger.is_long else FEWEST)
        return is_enough and abs(interval(self._paced).median_s / incumbent.time_s - 1) <= SAME

    def _is_decided(self, incumbent: Incumbent) -> bool:
        """Whether it is clear which is faster, or that neither is."""
        seen, known_s = interval(self._paced), incumbent.time_s
        is_tied = seen.low_s >= (1 - TIE) * known_s and seen.high_s <= (1 + TIE) * known_s
        return seen.low_s > known_s or seen.high_s < known_s or is_tied


def _at_pace(taken: list[float], others: list[float], time_s: float) -> list[float]:
    """Samples as if those of the other beside them had taken `time_s` each. A clock may be coarse."""
    return [one_s * time_s / (other_s or time_s) for one_s, other_s in zip(taken, others, strict=False)]
