"""Comparison: schedules of one task timed in turn, in one fresh process after the other.

Memory addresses make a kernel faster or slower, and are fixed for the life of a process: what is the fastest in one may
only be lucky there. So it takes several processes until the fastest is known.
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

from ..measure import sampling
from ..measure.cache_flush import LASTING_S
from ..measure.noise import Disturbance, Noise, Watch
from ..measure.race import EQUAL_MEDIANS_WITHIN
from ..pool import Limits, ReferenceFailed
from ..sandbox.process import Child, RequestFailed, RequestStopped
from .builder import Build

MIN_PROCESSES, MAX_PROCESSES = 2, 5
"""Processes of a comparison: it ends after the fewest if these tell which candidate is the fastest."""

ROUNDS = sampling.MIN_SAMPLES
"""Samples of each candidate in a process."""

MAX_BUDGETS = 20
"""Time of a comparison for each candidate, in budgets of a trial. After that, and the fewest processes, no other
process starts."""

MAX_DEATHS = 3
"""Deaths of a process between two requests after which the candidate that ran last is to blame."""


@dataclass(slots=True)
class Samples:
    """The samples of a candidate that works so far, process by process."""

    measurement: Measurement  # without samples yet
    samples_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)

    @property
    def is_lasting(self) -> bool:
        """Whether a run was so long, in a process at least, that it has a single sample with warm caches there."""
        return len(self.warm_s) < len(self.samples_s)


class Comparison:
    """The built candidates of one task, their samples, and which of them may still be the fastest.

    It ends after at most `MAX_PROCESSES` processes without a failure. Of others there are at most `MAX_DEATHS` for each
    candidate, and as many before any candidate has run.
    """

    def __init__(
        self,
        task: Task,
        builds: Sequence[Build],
        threads: int,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._builds, self._threads, self._limits = task, builds, threads, limits
        self._clock = clock
        self._open = list(range(len(builds)))  # the candidates that the next process times
        self._samples: dict[int, Samples] = {}  # also of candidates that failed later, as they show the drift
        self._failures: dict[int, Measurement] = {}
        self._deaths: Counter[int] = Counter()  # by the candidate that had run last
        self._process_count = 0
        self._disturbances: list[Disturbance] = []  # in each process
        self._patience_s = MAX_BUDGETS * limits.timing_s * len(builds)

    @property
    def is_over(self) -> bool:
        """Whether no candidate is left to be timed."""
        return not self._open

    @property
    def is_enough(self) -> bool:
        """Whether there were the fewest processes, so that it may end."""
        return self._process_count >= MIN_PROCESSES

    def time_in(self, child: Child) -> None:
        """Time the open candidates in a process that has computed the reference of the task.

        The order differs from process to process, as memory addresses depend on what was loaded before. Raises
        ReferenceFailed where processes die each time before a candidate has run.
        """
        process = _ComparisonProcess(child, self._task, self._threads, self._limits)
        first = self._process_count % len(self._open)
        order = self._open[first:] + self._open[:first]
        watch = Watch(lambda: [child.pid])
        with self.count_time():
            try:
                samples = process.run({candidate: self._builds[candidate] for candidate in order})
            except RequestStopped as stop:  # killed from outside, or by the last candidate, a while after its reply
                self._note_death(process.ran, child, stop)
            except RequestFailed as failure:
                self._failures[process.running] = self._builds[process.running].failure(failure, child.provenance)
            else:
                self._disturbances.append(watch.disturbance())
                self._add(samples)
        self._open = self._open_candidates()

    @contextmanager
    def count_time(self) -> Iterator[None]:
        """Count the time of the block, such as that of computing the reference, as the comparison's."""
        start_s = self._clock()
        try:
            yield
        finally:
            self._patience_s -= self._clock() - start_s

    def _add(self, process_samples: Mapping[int, Samples]) -> None:
        """Add the samples of a process, unless a candidate failed: it may have written to the memory of others."""
        failures = {
            candidate: samples.measurement
            for candidate, samples in process_samples.items()
            if samples.measurement.status is not Status.OK
        }
        if failures:
            self._failures |= failures
            return
        for candidate, samples in process_samples.items():
            total = self._samples.setdefault(candidate, Samples(samples.measurement))
            total.samples_s += samples.samples_s
            total.warm_s += samples.warm_s
        self._process_count += 1

    def _note_death(self, candidate: int, child: Child, stop: RequestStopped) -> None:
        self._deaths[candidate] += 1
        if self._deaths[candidate] < MAX_DEATHS:
            return
        reason = f"its process died {MAX_DEATHS} times between two requests"
        if candidate < 0:
            text = f"task {self._task.key[:12]} ({self._task.op}): with its reference computed, {reason}"
            raise ReferenceFailed(self._task.key, text) from stop
        failure = RequestFailed(Status.CRASH, reason)
        self._failures[candidate] = self._builds[candidate].failure(failure, child.provenance)

    def _open_candidates(self) -> list[int]:
        """Candidates that work and may be the fastest, with cold caches or with warm ones."""
        candidates = [candidate for candidate in self._open if candidate not in self._failures]
        if not self.is_enough:
            return candidates
        if self._process_count == MAX_PROCESSES or self._patience_s <= 0:
            return []
        samples = {candidate: self._samples[candidate] for candidate in candidates}
        cold = _fastest({candidate: each.samples_s for candidate, each in samples.items()})
        warm = _fastest({candidate: each.warm_s for candidate, each in samples.items() if not each.is_lasting})
        return [candidate for candidate in candidates if candidate in cold | warm]

    def measurements(self) -> list[Measurement]:
        """The measurement of each candidate, in their order, once it is over. The drift is removed from all samples.

        If the machine was too busy, the provenance has the reason as `NOISE`.
        """
        samples = self._samples
        cold_s = sampling.remove_drift({candidate: each.samples_s for candidate, each in samples.items()})
        warm_s = {candidate: each.warm_s for candidate, each in samples.items()}
        warm_s |= sampling.remove_drift({n: each.warm_s for n, each in samples.items() if not each.is_lasting})
        measurements = dict(self._failures)
        for candidate in samples.keys() - measurements.keys():
            measurement = sampling.with_samples(samples[candidate].measurement, cold_s[candidate])
            warm = tuple(warm_s[candidate])
            measurements[candidate] = self._with_noise(replace(measurement, warm_s=median(warm), warm_samples_s=warm))
        return [replace(measurements[n], build_s=build.build_s) for n, build in enumerate(self._builds)]

    def _with_noise(self, measurement: Measurement) -> Measurement:
        """The measurement with its noise. Other processes on a machine's processors do not disturb its GPU."""
        is_gpu = any("launches" in build.artifact for build in self._builds)
        if is_gpu or not (noise := Noise.of(Disturbance.total(self._disturbances), self._threads).reason):
            return measurement
        return replace(measurement, provenance=measurement.provenance | {NOISE: noise})


def _fastest(samples_s: Mapping[int, Sequence[float]]) -> set[int]:
    """Candidates that may be the fastest, by their medians in each process; none if one is, or all are equal."""
    if len(samples_s) < 2:
        return set()
    medians_s = {
        candidate: [median(times_s[first : first + ROUNDS]) for first in range(0, len(times_s), ROUNDS)]
        for candidate, times_s in sampling.remove_drift(samples_s).items()
    }
    limit_s = (1 + EQUAL_MEDIANS_WITHIN) * min(map(max, medians_s.values()))
    fastest = {candidate for candidate, times_s in medians_s.items() if min(times_s) <= limit_s}
    middle_s = [median(medians_s[candidate]) for candidate in fastest]
    is_tie = max(middle_s) <= (1 + EQUAL_MEDIANS_WITHIN) * min(middle_s)
    return set() if len(fastest) == 1 or is_tie else fastest


class _ComparisonProcess:
    """One process of a comparison.

    A failing request is the fault of the candidate `running`; a death before a request that of `ran`; -1: none yet.
    """

    def __init__(self, child: Child, task: Task, threads: int, limits: Limits) -> None:
        self._child, self._task, self._threads, self._limits = child, task, threads, limits
        self.running = self.ran = -1

    def run(self, builds: Mapping[int, Build]) -> dict[int, Samples]:
        """Samples of all candidates, the cold ones first, in rounds that begin with another candidate each.

        They are worthless if a candidate fails; there are none if one can't be loaded.
        """
        numbers, samples = {}, {}
        for candidate, build in builds.items():
            numbers[candidate], samples[candidate] = self._load(candidate, build)
        if any(each.measurement.status is not Status.OK for each in samples.values()):
            return samples
        order = list(builds)
        for candidate in _rounds(order, ROUNDS):
            samples[candidate].samples_s.append(self._request(candidate, "sample", number=numbers[candidate]))
        lasting = [candidate for candidate in order if median(samples[candidate].samples_s) >= LASTING_S]
        short = [candidate for candidate in order if candidate not in lasting]
        for candidate in [*_rounds(short, ROUNDS), *lasting]:
            samples[candidate].warm_s.append(self._request(candidate, "warm", number=numbers[candidate]))
        for candidate in order:
            reply = self._request(candidate, "recheck", number=numbers[candidate])
            measurement = replace(samples[candidate].measurement, provenance=reply["provenance"])
            if fault := reply["fault"]:
                measurement = replace(measurement, status=Status.WRONG_RESULT, error=fault)
            samples[candidate].measurement = measurement
        return samples

    def _load(self, candidate: int, build: Build) -> tuple[int, Samples]:
        """Load a candidate: its number in the process, and no samples yet."""
        arguments = {"task_key": self._task.key, "artifact": build.artifact, "threads": self._threads}
        reply = self._request(candidate, "load", **arguments)
        return reply["number"], Samples(Measurement.from_json(reply["measurement"]))

    def _request(self, candidate: int, call: str, **arguments: Any) -> Any:
        """Make a call for a candidate."""
        self.ran, self.running = self.running, candidate
        return self._child.request(call, self._limits.run_s, **arguments)


def _rounds(order: Sequence[int], rounds: int) -> list[int]:
    """Each candidate once a round; each round begins with the next of them."""
    return [order[(first + n) % len(order)] for first in range(rounds) for n in range(len(order))]
