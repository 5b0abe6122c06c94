"""Noise: what else kept the processors busy while something was timed, and how far its times differ.

Steal is time in which the processors of a virtual machine run something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tunewright.codegen.host import available_cores
from tunewright.search_space.counts import percentage
from tunewright.search_space.measurement import DRIFT, NOISE

from . import proc

MAX_ATTEMPTS = 3
"""Attempts to time something undisturbed: steal that lasts longer may go on for minutes."""

MAX_STEAL_SHARE = 0.1
"""Largest part of an attempt that may be stolen: it hardly changes medians. The kernel counts in hundredths of a
second, so attempts shorter than a tenth of a second allow none."""

MAX_RETRIED_S = 0.5
"""Longest attempt that is repeated: requests have a time limit, and nearly every long attempt has some steal."""

Result = TypeVar("Result")


def steal_s() -> float:
    """Seconds of steal time since the machine started, the mean of the processors of this process; 0 if unknown."""
    times = proc.own_times()
    return times.steal_s / times.processors if times else 0.0


def busy_s() -> float:
    """Busy seconds since the machine started, all processors of this process together; 0 if unknown."""
    times = proc.own_times()
    return times.busy_s if times else 0.0


def run_undisturbed(
    attempt: Callable[[], Result],
    prepare_retry: Callable[[], None] = lambda: None,
    *,
    steal_clock_s: Callable[[], float] = steal_s,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """The result of the first attempt with hardly any steal, else of that of `MAX_ATTEMPTS` with the least.

    `prepare_retry` is called before each attempt but the first.
    """
    outcomes: list[tuple[float, Result]] = []
    while True:
        before_s, start_s = steal_clock_s(), clock()
        result = attempt()
        elapsed_s = clock() - start_s
        outcomes.append(((steal_clock_s() - before_s) / max(elapsed_s, 1e-9), result))
        if outcomes[-1][0] <= MAX_STEAL_SHARE or len(outcomes) == MAX_ATTEMPTS or elapsed_s > MAX_RETRIED_S:
            return min(outcomes, key=lambda outcome: outcome[0])[1]
        prepare_retry()


NOISY_STEAL = 0.05
"""Part of the time that may be stolen: more disturbs most samples, and so the median."""

NOISY_OTHERS = 0.1
"""Part of the needed processors that others may use: all threads of a kernel wait for the slowest."""

NOISY_SPREAD = 0.1
"""Largest width of the interval of a median, as a part of it: smaller gains can't be seen."""

SPREAD_WORDS = "times of one and the same schedule lie"
"""How a reason tells of a spread."""

BELIEVED_DRIFT = 2.2
"""The largest drift beside which a schedule may be found faster. At a larger one the incumbent may be held up, or its
stored time be too good, and what is divided by the drift would be too good as well: the next incumbent's time, and so
those of all that are timed beside it. Such samples are kept as the clock has them. A drift as far below 1 says that the
stored time is of a moment that held the incumbent up: it is put right."""

MIN_WATCH_S = 0.25
"""Shortest time to judge other processes by: the kernel counts in hundredths of a second."""


class Disturbance(NamedTuple):
    """Disturbances while something was timed, in seconds."""

    elapsed_s: float = 0.0
    steal_s: float = 0.0  # mean of the processors
    others_s: float = 0.0  # of other processes, on all processors together

    @staticmethod
    def total(several: Iterable[Disturbance]) -> Disturbance:
        """The sum of several, one after the other."""
        return Disturbance(*map(sum, zip(UNDISTURBED, *several, strict=True)))


UNDISTURBED = Disturbance()
"""No disturbance, as far as is known."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far times can be relied on: 0 is best."""

    steal: float = 0.0  # part of the time that other virtual machines took
    others: float = 0.0  # part of the needed processors that other processes took
    spread: float = 0.0  # width of the 95% interval of the median, as a part of it

    @staticmethod
    def of(disturbance: Disturbance, threads: int, spread: float = 0.0) -> Noise:
        """The effect of a disturbance on a kernel with so many threads."""
        if disturbance.elapsed_s < MIN_WATCH_S:
            return Noise(spread=spread)
        spare_cores = max(len(available_cores()) - threads, 0)
        return Noise(
            min(disturbance.steal_s / disturbance.elapsed_s, 1.0),
            min(max(disturbance.others_s / disturbance.elapsed_s - spare_cores, 0.0) / threads, 1.0),
            spread,
        )

    @property
    def reason(self) -> str:
        """Why times are unreliable, for people, without a full stop; empty if they are reliable."""
        reasons = []
        if self.steal > NOISY_STEAL:
            reasons.append(f"its processors were away at other virtual machines for {self.steal:.0%} of the time")
        if self.others > NOISY_OTHERS:
            reasons.append(f"other processes took {self.others:.0%} of the processors that it ran on")
        if self.spread > NOISY_SPREAD:
            apart = percentage(self.spread, "their median")
            reasons.append(f"{SPREAD_WORDS} {apart} apart")
        return ", ".join(reasons)


def drift_noise(drift: float) -> str:
    """Why what was timed beside a schedule with such a drift is unreliable."""
    return f"the schedule that it was timed beside took {drift:{'.1f' if drift >= 1 else '.2g'}} times its time"


def noise_note(provenance: Mapping[str, str]) -> str:
    """The note of a provenance why its time is unreliable; empty where it is reliable, as far as that tells.

    Older versions divided by any drift, also where it was far below 1, and noted nothing.
    """
    if note := provenance.get(NOISE):
        return note
    with suppress(ValueError):  # what was imported may have any text
        if 0 < (drift := float(provenance.get(DRIFT) or 1)) < 1 / BELIEVED_DRIFT:
            return drift_noise(drift)
    return ""


def noise_of(spread: float, note: str = "") -> str:
    """Why a time is unreliable: its stored `note`, and the spread of its samples where that is too wide.

    Of trials only the spread is known: steal and other processes are not watched during a search. A note that tells of
    a spread is of this time and another one that it was compared with: it is the reason of both.
    """
    reason = Noise(spread=spread).reason
    if SPREAD_WORDS in note:
        return note
    return "; ".join(filter(None, (note, reason)))  # a note has commas of its own


class Watch:
    """Watches for disturbances from its creation on. `pids` are other processes whose work is no disturbance."""

    def __init__(
        self, pids: Callable[[], Iterable[int | None]] = tuple, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pids, self._clock = pids, clock
        self._start_s, self._steal_s, self._busy_s = clock(), steal_s(), busy_s()
        self._own_s = self._processor_s()

    def disturbance(self) -> Disturbance:
        """The disturbance so far."""
        elapsed_s = self._clock() - self._start_s
        own_s = self._processor_s() - self._own_s
        return Disturbance(elapsed_s, steal_s() - self._steal_s, max(busy_s() - self._busy_s - own_s, 0.0))

    def _processor_s(self) -> float:
        return time.process_time() + sum(proc.spent_s(pid) for pid in self._pids() if pid is not None)
