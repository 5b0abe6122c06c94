"""TaskState: the trials of one task of a job, and its strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, isqrt

from tunewright.codegen.target import Target
from tunewright.costmodel.model import CostModel
from tunewright.db.best import TaskComparisons
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, holds, spaces
from tunewright.search_space.space import Space

from ..known_times import KnownDefault, KnownTimes, is_current
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


def time_s(measurement: Measurement) -> float:
    """The median; infinite where it has none."""
    return measurement.median_s if measurement.median_s is not None else inf


def finalist_count(task: Task, trials: int) -> int:
    """The number of trials, of those that worked, that are compared besides the default and the last winner.

    The root of their number, within bounds: the more trials, the more of the fastest are so by luck.
    """
    room = LOADED_BYTES // (PACKED * max(task.constant_bytes, 1))
    return max(FEWEST_FINALISTS, min(isqrt(trials), MOST_FINALISTS, room))


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

    def recall(self, compared: TaskComparisons | None, best: Record | None, target: Target) -> None:
        """Take in what the database has of the task: its comparisons, and its best."""
        before = self.found
        standing = compared.standing if compared else None
        self.compared = KnownTimes.of_comparisons(compared, target)
        if self.compared is not None and self.fails(self.default):  # it was taken back
            self.compared = replace(self.compared, default_s=None, default_interval_s=None)
        if best is not None and best.schedule.key in self.measured:  # others are imported
            self.found = None if best == standing else (best.schedule, best.measurement)
        else:
            self.found = None if standing else self.best
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
