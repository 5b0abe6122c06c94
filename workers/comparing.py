"""Comparing: schedules of one task timed side by side, in one fresh process after the other.

Where its arrays lie in memory makes a kernel faster or slower, and a process puts them somewhere for good: what is the
fastest in one may only lie well there. So it takes several until it is known which is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from tunewright.graph.task import Task
from tunewright.search_space.measurement import NOISE, Measurement, Status

from . import sampling
from .builder import Built
from .cold import LASTING_S
from .noise import Disturbance, Noise, Watch
from .pool import Limits, ReferenceFailed
from .process import Child, Failed, Stopped
from .racing import SAME

FEWEST_PLACES, MOST_PLACES = 2, 5
"""Processes of a comparison: it ends with the fewest where these tell which is the fastest."""

ROUNDS = sampling.FEWEST
"""Samples of each candidate in a process."""

SHARE = 20
"""How many times the budget of a measurement each candidate of a comparison has: after that, and the fewest processes,
no other begins."""

DEATHS = 3
"""How often the process of a comparison may die between two requests until what ran last is to blame for it."""


@dataclass(slots=True)
class Taken:
    """A candidate that works so far, and its samples, those of one process after those of another."""

    begun: Measurement
    samples_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)

    @property
    def is_lasting(self) -> bool:
        """Whether a run took so long, in a process at least, that one sample with warm caches was enough there."""
        return len(self.warm_s) < len(self.samples_s)


class Comparison:
    """The built candidates of one task, their samples, and which of them may still be the fastest.

    It ends: after `MOST_PLACES` processes in which all went well, and of others there are `DEATHS` for a candidate at
    most, and as many before any.
    """

    def __init__(
        self,
        task: Task,
        several: Sequence[Built],
        threads: int,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._several, self._threads, self._limits = task, several, threads, limits
        self._clock = clock
        self._left = list(range(len(several)))  # numbers of those that the next process times
        self._taken: dict[int, Taken] = {}  # also of what failed later: what others took beside it is put in proportion
        self._failures: dict[int, Measurement] = {}
        self._deaths: Counter[int] = Counter()  # by the candidate that had run last
        self._places = 0
        self._disturbances: list[Disturbance] = []  # in each process
        self._patience_s = SHARE * limits.timing_s * len(several)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be timed."""
        return not self._left

    @property
    def is_enough(self) -> bool:
        """Whether there were the fewest processes, so that it may end."""
        return self._places >= FEWEST_PLACES

    def go_on(self, child: Child) -> None:
        """Time what is left in a process that has computed the reference of the task.

        In another order each time: where in memory something lies depends on what was loaded before it. Raises
        ReferenceFailed where processes die each time before a candidate has run.
        """
        place = _Place(child, self._task, self._threads, self._limits)
        first = self._places % len(self._left)
        watch = Watch(lambda: [child.pid])
        with self.spending():
            try:
                found = place.run({n: self._several[n] for n in self._left[first:] + self._left[:first]})
            except Stopped as stopped:  # killed from outside, or by what ran last, a while after it had answered
                self._bury(place.ran, child, stopped)
            except Failed as failed:
                self._failures[place.running] = self._several[place.running].failed(failed, child.provenance)
            else:
                self._disturbances.append(watch.seen())
                self._add(found)
        self._left = self._open()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What is done meanwhile, such as computing the reference in a process, takes of the candidates' time."""
        start_s = self._clock()
        try:
            yield
        finally:
            self._patience_s -= self._clock() - start_s

    def _add(self, found: Mapping[int, Taken]) -> None:
        """What one process told. The others must run without those that went wrong: they may have written anywhere."""
        if wrong := {n: one.begun for n, one in found.items() if one.begun.status is not Status.OK}:
            self._failures |= wrong
            return
        for n, one in found.items():
            known = self._taken.setdefault(n, Taken(one.begun))
            known.samples_s += one.samples_s
            known.warm_s += one.warm_s
        self._places += 1

    def _bury(self, ran: int, child: Child, stopped: Stopped) -> None:
        self._deaths[ran] += 1
        if self._deaths[ran] < DEATHS:
            return
        died = f"its process died {DEATHS} times between two requests"
        if ran < 0:
            text = f"task {self._task.key[:12]} ({self._task.op}): with its reference computed, {died}"
            raise ReferenceFailed(self._task.key, text) from stopped
        self._failures[ran] = self._several[ran].failed(Failed(Status.CRASH, died), child.provenance)

    def _open(self) -> list[int]:
        """Those left that work and may be the fastest, with cold caches or with warm ones."""
        left = [n for n in self._left if n not in self._failures]
        if not self.is_enough:
            return left
        if self._places == MOST_PLACES or self._patience_s <= 0:
            return []
        cold = _may_be_fastest({n: self._taken[n].samples_s for n in left})
        warm = _may_be_fastest({n: self._taken[n].warm_s for n in left if not self._taken[n].is_lasting})
        return [n for n in left if n in cold | warm]

    def measurements(self) -> list[Measurement]:
        """Of each candidate, in their order, once it is over. All samples are at the pace of the middle round.

        Where the machine was too busy to tell, the provenance has it as `NOISE`.
        """
        cold_s = sampling.paced({n: one.samples_s for n, one in self._taken.items()})
        warm_s = {n: one.warm_s for n, one in self._taken.items()}
        warm_s |= sampling.paced({n: one.warm_s for n, one in self._taken.items() if not one.is_lasting})
        found = {
            n: self._noted(
                replace(sampling.timed(one.begun, cold_s[n]), warm_s=median(warm_s[n]), warm_samples_s=tuple(warm_s[n]))
            )
            for n, one in self._taken.items()
            if n not in self._failures
        }
        found |= self._failures
        return [replace(found[n], build_s=built.build_s) for n, built in enumerate(self._several)]

    def _noted(self, measurement: Measurement) -> Measurement:
        """With what disturbed it: others on a machine's processors leave its GPU alone."""
        is_gpu = any("launches" in one.artifact for one in self._several)
        if is_gpu or not (noise := Noise.of(Disturbance.total(self._disturbances), self._threads).reason):
            return measurement
        return replace(measurement, provenance=measurement.provenance | {NOISE: noise})


def _may_be_fastest(samples_s: Mapping[int, Sequence[float]]) -> set[int]:
    """By the medians in each process; none where it is known, or does not matter, which of them is the fastest."""
    if len(samples_s) < 2:
        return set()
    medians_s = {
        n: [median(one_s[first : first + ROUNDS]) for first in range(0, len(one_s), ROUNDS)]
        for n, one_s in sampling.paced(samples_s).items()
    }
    best_high_s = min(map(max, medians_s.values()))
    left = {n for n, one_s in medians_s.items() if min(one_s) <= (1 + SAME) * best_high_s}
    middle_s = [median(medians_s[n]) for n in left]
    return set() if len(left) == 1 or max(middle_s) <= (1 + SAME) * min(middle_s) else left


class _Place:
    """One process of a comparison.

    `running` is the candidate that is to blame if a request fails, `ran` the one if the process dies before a request;
    -1: none yet.
    """

    def __init__(self, child: Child, task: Task, threads: int, limits: Limits) -> None:
        self._child, self._task, self._threads, self._limits = child, task, threads, limits
        self.running = self.ran = -1

    def run(self, several: Mapping[int, Built]) -> dict[int, Taken]:
        """Samples of all, which tell nothing where one of them is wrong; none where one can't even be loaded.

        In rounds, in an order that goes round, cold ones first.
        """
        numbers, taken = {}, {}
        for n, built in several.items():
            numbers[n], taken[n] = self._load(n, built)
        if any(one.begun.status is not Status.OK for one in taken.values()):
            return taken
        order = list(several)
        for n in _in_rounds(order, ROUNDS):
            taken[n].samples_s.append(self._request(n, "sample", number=numbers[n]))
        lasting = [n for n in order if median(taken[n].samples_s) >= LASTING_S]
        short = [n for n in order if n not in lasting]
        for n in [*_in_rounds(short, ROUNDS), *lasting]:
            taken[n].warm_s.append(self._request(n, "warm", number=numbers[n]))
        for n in order:
            found = self._request(n, "recheck", number=numbers[n])
            taken[n].begun = replace(taken[n].begun, provenance=found["provenance"])
            if fault := found["fault"]:
                taken[n].begun = replace(taken[n].begun, status=Status.WRONG_RESULT, error=fault)
        return taken

    def _load(self, n: int, built: Built) -> tuple[int, Taken]:
        """Its number in the process, and no samples yet."""
        reply = self._request(n, "load", task_key=self._task.key, artifact=built.artifact, threads=self._threads)
        return reply["number"], Taken(Measurement.from_json(reply["measurement"]))

    def _request(self, n: int, call: str, **arguments: Any) -> Any:
        """What the call for a candidate returns."""
        self.ran, self.running = self.running, n
        return self._child.request(call, self._limits.run_s, **arguments)


def _in_rounds(order: Sequence[int], rounds: int) -> list[int]:
    """Each once a round; each round begins with the next of them."""
    return [order[(first + n) % len(order)] for first in range(rounds) for n in range(len(order))]
