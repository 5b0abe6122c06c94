"""The ladder: the schedule to use for a task on a target, from the best measured one down to the default.

    exact -> sibling -> nearest or predicted -> default (untried, none)

Each rung answers for all remaining tasks, with a few queries. No result is illegal for its task or known to fail on the
target.

Measured records count on every rung; imported ones for their own target alone, after measured ones: anybody can make up
a target that is like another one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.db.best import Best
from tunewright.db.location import is_absent
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import current, holds

from ..settings import settings
from .near_picks import NearPicks, work_ratio
from .result import LookupResult, Match, Pick, ResultSource, unmeasured_result
from .verdict import ModelVerdict, model_verdict

if TYPE_CHECKING:
    from tunewright.db.catalog import Catalog
    from tunewright.db.store import Store

RELATIVES = 2000
"""Tasks of a family that are compared."""

NEAR = 8
"""Nearest tasks that are tried, on the target and on each sibling."""

FARTHEST = 16.0
"""The distance up to which a relative counts: as of one size that is 8 times as large and occurs 8 times."""

REMEMBERED = 20_000
"""Tasks whose numbers are kept in memory."""


class Picker(Protocol):
    """Picks schedules that were not measured: see `predictor`."""

    def pick(self, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
        """None where there is nothing to pick by yet, or nothing better than the default."""
        ...

    def better(self, task: Task, target: Target, failed: Collection[str], rival: Schedule) -> Pick | None:
        """The pick, or the default where there is none; None where that is not expected to be faster than `rival`."""
        ...


def lookup_measured(store: Store, tasks: Iterable[Task], target: Target) -> dict[str, LookupResult]:
    """Task key -> result, for each of the tasks. Without the rung that needs a cost model."""
    return Ladder(store).find(tasks, target)


@dataclass(slots=True)
class _Lookup:
    """The state of one lookup."""

    target: Target
    tasks: dict[str, Task]
    deadline_s: float
    results: dict[str, LookupResult] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)  # by task key: keys of schedules
    siblings: list[Target] = field(default_factory=list)  # the siblings, the nearest first

    @property
    def remaining(self) -> list[Task]:
        return [task for key, task in self.tasks.items() if key not in self.results]

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline_s

    def is_usable(self, task: Task, schedule: Schedule) -> bool:
        return schedule.key not in self.failed.get(task.key, ()) and holds(task, self.target, schedule)


class Ladder:
    """Looks up in one store. Threads may share one: its cache holds only what never changes."""

    def __init__(self, store: Store, picks: Picker | None = None) -> None:
        self._store = store
        self._picks = picks
        self._numbers: OrderedDict[str, Numbers] = OrderedDict()  # by task key

    def find(self, tasks: Iterable[Task], target: Target, limit_s: float = inf) -> dict[str, LookupResult]:
        """Task key -> result, for each of the tasks that `limit_s` suffices for.

        Raises StoreError.
        """
        search = _Lookup(target, {task.key: task for task in tasks}, time.monotonic() + limit_s)
        self._exact(search)
        if search.remaining:
            search.failed = self._store.catalog.failures([task.key for task in search.remaining], target.key)
            search.siblings = siblings(target, self._store.targets(target.kind))
        for rung in (self._siblings, self._nearest):
            if search.remaining and not search.is_over:
                rung(search)
        self._predictions(search)
        for task in search.remaining:
            if search.is_over:
                break
            search.results[task.key] = unmeasured_result(task, target, search.failed.get(task.key, ()))
        return {key: search.results[key] for key in search.tasks if key in search.results}

    def _exact(self, search: _Lookup) -> None:
        for key, best in usable_records(self._store.catalog, search.tasks, search.target).items():
            search.results[key] = LookupResult(
                search.tasks[key],
                Match.EXACT,
                best.schedule,
                best.measurement,
                best.is_confirmed_here,
                is_imported=best.is_imported,
            )

    def _siblings(self, search: _Lookup) -> None:
        if not search.siblings:
            return
        tasks = search.remaining
        records = self._store.catalog.best([task.key for task in tasks], [target.key for target in search.siblings])
        for task in tasks:
            for target in search.siblings:
                record = records.get((task.key, target.key))
                if (
                    record is not None
                    and not record.is_imported
                    and search.is_usable(task, schedule := record.schedule)
                ):
                    source = ResultSource(task.key, target.key, str(target))
                    search.results[task.key] = LookupResult(
                        task, Match.SIBLING, schedule, record.measurement, False, source
                    )
                    break

    def _nearest(self, search: _Lookup) -> None:
        tasks, targets = search.remaining, [search.target, *search.siblings]
        target_keys = [target.key for target in targets]
        relatives = self._relatives(tasks, target_keys)
        records = self._store.catalog.best({key for keys in relatives.values() for key in keys}, target_keys)
        chosen: dict[str, tuple[Best, Schedule, Target]] = {}
        for task in tasks:
            if search.is_over:
                break
            near = [(target, key) for target in targets for key in relatives.get(task.key, ())]
            known = [(records[key, target.key], target) for target, key in near if (key, target.key) in records]
            timed = [(record, target) for record, target in known if not record.is_imported]
            imported = [(record, target) for record, target in known if record.is_imported and target is search.target]
            for record, target in (*timed, *imported):
                if search.is_usable(task, schedule := record.schedule):
                    chosen[task.key] = record, schedule, target
                    break
        definitions = self._store.catalog.definitions({record.task_key for record, _, _ in chosen.values()})
        for key, (record, schedule, target) in chosen.items():
            if record.task_key not in definitions:
                continue
            search.results[key] = LookupResult(
                search.tasks[key],
                Match.NEAREST,
                schedule,
                record.measurement,
                source=ResultSource(record.task_key, target.key, str(target)),
                scale=work_ratio(search.tasks[key], Task.from_json(definitions[record.task_key])),
                is_imported=record.is_imported,
            )

    def _relatives(self, tasks: Sequence[Task], target_keys: Sequence[str]) -> dict[str, list[str]]:
        """Task key -> keys of the nearest tasks of its family that have a best on one of the targets."""
        families = self._store.catalog.relatives({task.family for task in tasks}, target_keys, RELATIVES)
        known = self._known_numbers({key for keys in families.values() for key in keys})
        nearest = {}
        for task in tasks:
            keys = [key for key in families.get(task.family, ()) if key != task.key and key in known]
            distance = distances(numbers(task.to_json()), (known[key] for key in keys))
            order = distance.argsort(kind="stable")[:NEAR]
            nearest[task.key] = [keys[number] for number in order if distance[number] <= FARTHEST]
        return nearest

    def _known_numbers(self, keys: Collection[str]) -> Mapping[str, Numbers]:
        fresh = [key for key in keys if key not in self._numbers]
        fresh_numbers = (
            {key: numbers(data) for key, data in self._store.catalog.definitions(fresh).items()} if fresh else {}
        )
        # Another thread may be dropping the oldest.
        known = {key: vector for key in keys if (vector := self._numbers.get(key)) is not None} | fresh_numbers
        self._numbers.update(fresh_numbers)
        while len(self._numbers) > REMEMBERED:
            self._numbers.popitem(last=False)
        return known

    def _predictions(self, search: _Lookup) -> None:
        if self._picks is None:
            return
        for task in search.remaining:
            if search.is_over:
                break
            result = predicted_result(self._picks, task, search.target, search.failed.get(task.key, set()))
            if result is not None:
                search.results[task.key] = result
        self._doubt(search, self._picks)

    def _doubt(self, search: _Lookup, picks: Picker) -> None:
        """Don't take over from another task what the model expects to be slower here: its size may suit it alone, and
        after a short search it may be no more than the best of a few.
        """
        for key, result in search.results.items():
            if result.match is Match.NEAREST and not search.is_over:
                task, schedule = result.task, result.schedule
                pick = picks.better(task, search.target, search.failed.get(key, set()), schedule)
                if pick is not None:
                    search.results[key] = _of_pick(task, pick)


def predicted_result(picks: Picker, task: Task, target: Target, failed: Collection[str] = ()) -> LookupResult | None:
    """The pick for a task as a result; None where there is none."""
    pick = picks.pick(task, target, failed)
    return _of_pick(task, pick) if pick else None


def _of_pick(task: Task, pick: Pick) -> LookupResult:
    return LookupResult(task, Match.PREDICTED, pick.schedule, None, predicted_s=pick.time_s)


def usable_records(catalog: Catalog, tasks: Mapping[str, Task], target: Target) -> dict[str, Best]:
    """The best of each task on a target, by key, of those that have one. Raises StoreError."""
    best = {key: record for (key, _), record in catalog.best(tasks, [target.key]).items()}
    outdated = [key for key, record in best.items() if not holds(tasks[key], target, record.schedule)]
    usable = {key: record for key, record in best.items() if key not in outdated}
    if outdated:
        for key, records in catalog.fastest(outdated, target.key, current()).items():
            legal = (record for record in records if holds(tasks[key], target, record.schedule))
            if (fastest := next(legal, None)) is not None:
                usable[key] = fastest
    return usable


Numbers = NDArray[np.float64]

LARGEST = 1e300
"""Stands for infinity."""


def siblings(target: Target, others: Iterable[Target]) -> list[Target]:
    """The other targets on which the same kernels run, the nearest first.

    They have the same kind, system and vector registers. Those of the same processor come before the others; then
    counts the distance in threads and cache sizes.
    """

    def distance(other: Target) -> tuple[bool, float, str]:
        sizes = ("threads", "l1_bytes", "l2_bytes", "l3_bytes")
        apart = sum(abs(log((1 + getattr(other, name)) / (1 + getattr(target, name)))) for name in sizes)
        return (other.cpu, other.features) != (target.cpu, target.features), apart, other.key

    return sorted((other for other in others if other != target and _runs_alike(target, other)), key=distance)


def _runs_alike(target: Target, other: Target) -> bool:
    names = ("kind", "triple", "vector_bits", "vector_registers")
    return all(getattr(target, name) == getattr(other, name) for name in names)


def numbers(definition: dict[str, Any]) -> Numbers:
    """The numbers of a task's JSON data, in an order that tasks of one family share, as signed logarithms.

    So the difference of two is the logarithm of their ratio, or nearly so for the small ones; 0 has a place too.
    """
    data = {name: definition[name] for name in sorted(definition) if name != "op"}
    values = np.nan_to_num(np.fromiter(_numbers(data), np.float64), nan=0.0)
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)), np.float64)


def _numbers(data: Any) -> Iterator[float]:
    match data:
        case bool() | str() | None:
            return
        case int() | float():
            yield float(max(min(data, LARGEST), -LARGEST))
        case list() | tuple():
            for item in data:
                yield from _numbers(item)
        case _:
            for name in sorted(data):
                yield from _numbers(data[name])


def distances(own: Numbers, others: Iterable[Numbers]) -> Numbers:
    """The distances of tasks from one of their family: sums of the logarithms of the ratios of their numbers."""
    return np.array([np.abs(own - other).sum() if own.shape == other.shape else np.inf for other in others])


def lookup_in_database(
    db: str | None, tasks: Sequence[Task], target: Target, near: NearPicks | None = None
) -> tuple[dict[str, LookupResult], ModelVerdict]:
    """The results for all tasks of a model, by the database of that URL and its cost model.

    And the verdict of the model's last job. Without the default database the base model answers. Raises NoDatabase
    where one was named and is not there, StoreError where it can't be read.
    """
    if db is None and is_absent(settings().db):  # before the first job: SQL would be imported to be told so
        return lookup_with_cost_model(None, tasks, target, near), ModelVerdict()
    from tunewright.db.reader import NoDatabase, open_reader

    try:
        with open_reader(db or settings().db) as store:
            results = lookup_with_cost_model(store, tasks, target, near)
            return results, model_verdict(store, results, target.key)
    except NoDatabase:
        if db is not None:
            raise
    return lookup_with_cost_model(None, tasks, target, near), ModelVerdict()


def lookup_with_cost_model(
    store: Store | None, tasks: Sequence[Task], target: Target, near: NearPicks | None = None
) -> dict[str, LookupResult]:
    """The results for tasks by an open database, or by the base model alone. Raises StoreError."""
    from .predictor import FixedPredictor

    predictor = FixedPredictor(store, settings().picks, near)
    if store is not None:
        results = Ladder(store, predictor).find(tasks, target)
    else:
        results = {
            task.key: predicted_result(predictor, task, target) or unmeasured_result(task, target) for task in tasks
        }
    predictor.save()
    return results
