"""TaskState: the trials of one task of a job, and its strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf, isqrt
from typing import Any, Self

from tunewright.codegen.codec import to_json
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.host import machine
from tunewright.codegen.target import CUDA, Target
from tunewright.costmodel.model import CostModel
from tunewright.graph.task import Task
from tunewright.search_space.measurement import DEFAULT_INTERVAL, NOISE, Measurement, Record, Status
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, holds, spaces
from tunewright.search_space.space import Space

from ..noise import noise_of_measurement, total_noise
from ..text import Interval
from .report import Time, TimeInterval
from .strategies.history import SearchProblem
from .strategies.strategy import STRATEGIES, Strategy

FEWEST_FINALISTS, MOST_FINALISTS = 6, 24
"""Bounds of how many schedules are compared with the default and the last winner when the search is over;
docs/measuring.md says why so many."""

LOADED_BYTES = 1 << 30
"""Memory of constants, in the form that each finalist reads, all together: more than `FEWEST_FINALISTS` have
to fit into it."""

PACKED = 4
"""Times the size of constants that they take at most in the form that a kernel reads: transformed for Winograd's
method with tiles of 4 x 4."""

OF_EACH, WITHIN = 2, 2.0
"""Finalists of each sketch, where trials don't tell which sketch is the fastest, and times that of the first finalist
besides the default that theirs may have taken: constants close by halve none by more."""

VERSIONS, GPU_VERSIONS = ("tunewright", "llvmlite", "llvm"), ("tunewright", "nvrtc")
"""Entries of a measurement's provenance with the compiler's versions: another version may make other code."""


@cache
def _compiler_versions(kind: str) -> Mapping[str, str]:
    """The versions of the present compiler for a kind of target. NVRTC's is unknown where only nodes have it."""
    versions = machine()
    if kind == CUDA:
        with suppress(nvrtc.NoCompiler):
            versions["nvrtc"] = nvrtc.version()
    return {name: versions[name] for name in (GPU_VERSIONS if kind == CUDA else VERSIONS) if name in versions}


def is_current(provenance: Mapping[str, str], target: Target) -> bool:
    """Whether the measured code came from the present version of the compiler for its target."""
    return _compiler_versions(target.kind).items() <= provenance.items()


def time_s(measurement: Measurement) -> float:
    """The median; infinite where it has none."""
    return measurement.median_s if measurement.median_s is not None else inf


def finalist_count(task: Task, trials: int) -> int:
    """The number of trials, of those that worked, that are compared besides the default and the last winner.

    The root of their number, within bounds: the more trials, the more of the fastest are so by luck.
    """
    room = LOADED_BYTES // (PACKED * max(task.constant_bytes, 1))
    return max(FEWEST_FINALISTS, min(isqrt(trials), MOST_FINALISTS, room))


TIME_FIELDS = ("default_ms", "best_ms", "default_interval_ms", "best_interval_ms", "noise")
"""What reports and events have of two times that were confirmed."""


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """Seconds of a task's default and best, as they are told; None where they are not known."""

    default_s: Time
    best_s: Time
    noise: str = ""  # why the machine was too busy to rely on both; empty where it was not
    is_confirmed: bool = False  # whether they were timed side by side, in fresh processes; else the best's is a trial's
    is_default_confirmed: bool = False  # whether that of the default is of such a comparison, too
    is_as_trials: bool = False  # whether constants were cold then, and the default that of this version, as in trials
    default_interval_s: TimeInterval = None
    best_interval_s: TimeInterval = None

    @classmethod
    def of_confirmation(cls, measurement: Measurement, target: Target) -> Self:
        """The times of a confirmation, as `confirmation` makes it and the database keeps it."""
        is_warm = measurement.warm_s is not None and measurement.median_s == measurement.warm_s
        return cls(
            measurement.incumbent_s,
            measurement.median_s,
            noise_of_measurement(measurement),
            is_confirmed=True,
            is_default_confirmed=True,
            is_as_trials=not is_warm and is_current(measurement.provenance, target),
            default_interval_s=_interval_beside(measurement),
            best_interval_s=measurement.interval_s,
        )

    @classmethod
    def of_trial(cls, best: Measurement | None, default: KnownDefault, apart_noise: str = "") -> Self:
        """The times of a best that is a trial. `apart_noise`: why the two are hard to compare, of different moments."""
        return cls(
            default.time_s,
            best.median_s if best else None,
            noise_of_measurement(best) or default.noise or apart_noise,
            is_default_confirmed=default.is_confirmed,
            default_interval_s=default.interval_s,
            best_interval_s=best.interval_s if best else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as events have it of a task."""
        data = to_json(self)
        return {name: data[name] for name in TIME_FIELDS}


@dataclass(frozen=True, slots=True)
class KnownDefault:
    """The time of a task's default, as it is told beside a best that is a trial; None where it is not known."""

    time_s: float | None
    interval_s: Interval | None
    noise: str  # why the machine was too busy to rely on it; empty where it was not
    is_confirmed: bool  # whether it is of a comparison; else of its trial

    @classmethod
    def beside_trial(cls, trial: Measurement | None, confirmed: KnownTimes | None) -> Self:
        """As it was confirmed last, where it was timed as trials are; else of its trial, which must work in any case.

        A single trial may be of a bad moment, and would stay.
        """
        works = trial is not None and trial.status is Status.OK
        if works and confirmed is not None and confirmed.default_s is not None and confirmed.is_as_trials:
            return cls(confirmed.default_s, confirmed.default_interval_s, confirmed.noise, is_confirmed=True)
        time_s, noise = trial.median_s if trial else None, noise_of_measurement(trial)
        return cls(time_s, trial.interval_s if trial else None, noise, is_confirmed=False)


def confirmation(best: Measurement, default: Measurement | None) -> Measurement:
    """The measurement to keep of what was chosen, with the default beside it; None where that failed.

    It is noisy where either is: from then on one mark is told of the two times and of their ratio.
    """
    provenance = {name: value for name, value in best.provenance.items() if name != DEFAULT_INTERVAL}
    if noise := total_noise(map(noise_of_measurement, (best, default))):
        provenance[NOISE] = noise
    if default is not None and (interval := default.interval_s) is not None:
        provenance[DEFAULT_INTERVAL] = " ".join(repr(float(edge_s)) for edge_s in interval)
    return replace(best, provenance=provenance, incumbent_s=default.median_s if default else None)


def _interval_beside(measurement: Measurement) -> Interval | None:
    """The interval of the default beside a confirmation; older versions kept none, and what is imported may be any."""
    with suppress(ValueError):
        low_s, high_s = map(float, measurement.provenance.get(DEFAULT_INTERVAL, "").split())
        if 0 < low_s < high_s < inf:
            return low_s, high_s
    return None


@dataclass(slots=True)
class TaskState:
    """The trials of one task, those of other jobs among them, and who proposes the next ones."""

    task: Task
    occurrences: int
    default: Schedule
    spaces: tuple[Space, ...]
    strategy: Strategy
    measured: dict[str, tuple[Schedule, Measurement]] = field(default_factory=dict)  # by schedule key
    refuted: set[str] = field(default_factory=set)  # keys of schedules that worked once, but not when compared
    best: tuple[Schedule, Measurement] | None = None  # the fastest trial; the first of equals
    borrowed: list[Schedule] = field(default_factory=list)  # best for a similar target or task, and yet to be proposed
    compared: KnownTimes | None = None  # as default and best were confirmed last; None: they were not, or all failed
    found: tuple[Schedule, Measurement] | None = None  # the fastest trial since then that was faster; without, of all
    apart_noise: str = ""  # why the best is hard to compare with the default, which was timed at another moment

    @staticmethod
    def of(
        task: Task,
        occurrences: int,
        target: Target,
        records: Iterable[Record],
        costs: CostModel,
        *,
        strategy: str,
        seed: int,
    ) -> TaskState:
        """The state before the first trial of this process. `strategy` is a name out of `STRATEGIES`."""
        records, task_spaces = list(records), spaces(task, target)
        search_strategy = STRATEGIES[strategy](SearchProblem.of(task, target, task_spaces, costs, seed, records))
        state = TaskState(task, occurrences, default_schedule(task, target), task_spaces, search_strategy)
        for record in records:
            state._add(record.schedule, record.measurement)
        return state

    def ask(self, n: int) -> list[Schedule]:
        """Up to `n` schedules to measure next, none where the spaces hold no more.

        The default comes first, then what is borrowed: the sooner something fast is known, the less time goes into what
        is slower. All others are proposed by the strategy.
        """
        first = [] if self.default.key in self.measured else self.strategy.ask(min(n, 1))
        borrowed = [s for s in self.borrowed if s.key not in self.measured and s not in first][: n - len(first)]
        self.borrowed = [s for s in self.borrowed if s not in borrowed]
        proposals = self.strategy.ask(n - len(first) - len(borrowed))
        return first + borrowed + [schedule for schedule in proposals if schedule not in borrowed]

    def tell(self, schedule: Schedule, measurement: Measurement) -> None:
        """Add a trial. Of two of one schedule the first stays."""
        if self._add(schedule, measurement):
            with suppress(Illegal):  # measured by another version of the sketch
                self.strategy.tell([(schedule, measurement)])

    def _add(self, schedule: Schedule, measurement: Measurement) -> bool:
        if schedule.key in self.measured:
            return False
        entry = self.measured[schedule.key] = schedule, measurement
        if measurement.status is Status.OK and (self.best is None or time_s(measurement) < time_s(self.best[1])):
            self.best = entry
        if self.improves(measurement):
            self.found = entry
        return True

    def improves(self, measurement: Measurement) -> bool:
        """Whether a trial that ends now is the best from then on: faster than what sessions use so far, if anything.

        By the rule of `Store.best`: a trial from before the last confirmation, however fast, was compared then.
        """
        standing_s = time_s(self.found[1]) if self.found else self.compared.best_s if self.compared else None
        return measurement.status is Status.OK and (standing_s is None or time_s(measurement) < standing_s)

    def recall(self, confirmed: Record | None, best: Record | None, target: Target) -> None:
        """Take in what the database has of the task: its newest confirmation that was made here, and its best."""
        before = self.found
        self.compared = None
        if confirmed is not None and confirmed.measurement.status is Status.OK:
            self.compared = KnownTimes.of_confirmation(confirmed.measurement, target)
            if self.fails(self.default):  # it was taken back
                self.compared = replace(self.compared, default_s=None, default_interval_s=None)
        if best is not None and best.schedule.key in self.measured:  # others are imported
            self.found = None if best == confirmed else (best.schedule, best.measurement)
        else:
            self.found = None if confirmed else self.best
        if self.found != before:
            self.apart_noise = ""

    @property
    def times(self) -> KnownTimes:
        """The times that are told of it: as confirmed, unless something faster was found since; else of trials."""
        return self.compared if self.compared and self.found is None else self.times_of(self.found and self.found[1])

    def times_of(self, found: Measurement | None) -> KnownTimes:
        """What they are where this trial is the best."""
        return KnownTimes.of_trial(found, self.default_time, self.apart_noise)

    @property
    def default_time(self) -> KnownDefault:
        """The time of the default schedule, as it is told beside trials."""
        entry = self.measured.get(self.default.key)
        return KnownDefault.beside_trial(entry[1] if entry else None, self.compared)

    @property
    def best_s(self) -> float | None:
        """The time of the fastest trial."""
        return self.best[1].median_s if self.best else None

    @property
    def known_s(self) -> float | None:
        """The best time that is told; infinite where all that was tried fails, None where nothing was tried."""
        best_s = self.times.best_s
        return best_s if best_s is not None or not self.measured else inf

    def fails(self, schedule: Schedule) -> bool:
        """Whether a schedule is known to fail."""
        entry = self.measured.get(schedule.key)
        return schedule.key in self.refuted or (entry is not None and entry[1].status is not Status.OK)

    def finalists(
        self, target: Target, confirmed: Schedule | None, *, of_each_sketch: bool
    ) -> list[tuple[Schedule, Measurement]]:
        """The schedules to compare: the default, the one confirmed last, and the fastest few of the others.

        Only what worked and is a legal point still, of each object code one. Times from before an upgrade can't be
        held against those after it, so there are the fastest few of either. `of_each_sketch`: whether some of each
        sketch are among them.
        """
        works = {key: entry for key, entry in self.measured.items() if entry[1].status is Status.OK}
        count = finalist_count(self.task, len(works))
        chosen = [
            works[s.key]
            for s in dict.fromkeys((self.default, confirmed))
            if s and s.key in works and holds(self.task, target, s)
        ]
        digests = {measurement.object_sha256 for _, measurement in chosen} - {""}
        counts: Counter[bool] = Counter()  # by whether the code is of the compiler at hand
        sketch_counts: Counter[tuple[bool, str]] = Counter()
        fastest_s: dict[bool, float] = {}
        for schedule, measurement in sorted(works.values(), key=lambda entry: time_s(entry[1])):
            is_of_compiler = is_current(measurement.provenance, target)
            sketch = is_of_compiler, schedule.sketch
            is_near = time_s(measurement) <= WITHIN * fastest_s.get(is_of_compiler, inf)
            is_wanted = of_each_sketch and is_near and sketch_counts[sketch] < OF_EACH
            is_other = measurement.object_sha256 not in digests and all(schedule != s for s, _ in chosen)
            if (counts[is_of_compiler] < count or is_wanted) and is_other and holds(self.task, target, schedule):
                fastest_s.setdefault(is_of_compiler, time_s(measurement))
                chosen.append((schedule, measurement))
                digests |= {measurement.object_sha256} - {""}
                counts[is_of_compiler] += 1
                sketch_counts[sketch] += 1
        return chosen
