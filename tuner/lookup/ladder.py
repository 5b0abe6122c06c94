"""The ladder: what to use for tasks on a target, from the best that was measured there down to the default.

    exact -> sibling -> nearest -> predicted -> default (untried, none)

Each rung is asked for all tasks that are left, with a few queries however many they are. No answer is illegal for its
task, and none is known to fail on the target.

What was timed in this database speaks on every rung. What was imported speaks for its own target alone, behind what was
timed: anybody can make up a target that is like another one, and nobody here has seen its times.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from tunewright.codegen.target import Target
from tunewright.db.known import Best, Known
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import current, holds

from .found import Found, Match, Source, unmeasured
from .likeness import Numbers, distances, numbers, siblings, work_ratio

RELATIVES = 2000
"""Tasks of a family among which the nearest are looked for."""

NEAR = 8
"""How many of the nearest are tried, on the target and on each sibling."""

FARTHEST = 16.0
"""The distance up to which a relative counts: as of one size that is 8 times as large and occurs 8 times."""

REMEMBERED = 20_000
"""Tasks whose numbers are kept in memory."""


class Recorded(Protocol):
    """What a store must have to be looked up in."""

    @property
    def known(self) -> Known: ...

    def targets(self, kind: str | None = None) -> list[Target]:
        """See `Store`."""
        ...


class Pick(NamedTuple):
    """A schedule that nobody measured, and the seconds that it is expected to take."""

    schedule: Schedule
    time_s: float


class Picks(Protocol):
    """Picks schedules that nobody measured: see `predictor`."""

    def pick(self, task: Task, target: Target, failed: Collection[str]) -> Pick | None:
        """None where there is nothing to pick by yet, or nothing better than the default."""
        ...


def lookup(store: Recorded, tasks: Iterable[Task], target: Target) -> dict[str, Found]:
    """Task key -> what to use for it, for each of the tasks. Without the rung that needs a cost model."""
    return Ladder(store).find(tasks, target)


@dataclass(slots=True)
class _Search:
    """One lookup on its way down."""

    target: Target
    wanted: dict[str, Task]
    deadline_s: float
    found: dict[str, Found] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)  # by task key: keys of schedules
    near: list[Target] = field(default_factory=list)  # the siblings, the nearest first

    @property
    def left(self) -> list[Task]:
        return [task for key, task in self.wanted.items() if key not in self.found]

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline_s

    def usable(self, task: Task, schedule: Schedule) -> bool:
        return schedule.key not in self.failed.get(task.key, ()) and holds(task, self.target, schedule)


class Ladder:
    """Looks up in one store. Threads may share one: what it remembers never changes."""

    def __init__(self, store: Recorded, picks: Picks | None = None) -> None:
        self._store = store
        self._picks = picks
        self._numbers: OrderedDict[str, Numbers] = OrderedDict()  # by task key

    def find(self, tasks: Iterable[Task], target: Target, limit_s: float = inf) -> dict[str, Found]:
        """Task key -> what to use for it, for each of the tasks but those that `limit_s` does not suffice for.

        Raises StoreError.
        """
        search = _Search(target, {task.key: task for task in tasks}, time.monotonic() + limit_s)
        self._exact(search)
        if search.left:
            search.failed = self._store.known.failures([task.key for task in search.left], target.key)
            search.near = siblings(target, self._store.targets(target.kind))
        for rung in (self._siblings, self._nearest, self._predicted):
            if search.left and not search.is_over:
                rung(search)
        for task in search.left:
            if search.is_over:
                break
            search.found[task.key] = unmeasured(task, target, search.failed.get(task.key, ()))
        return {key: search.found[key] for key in search.wanted if key in search.found}

    def _exact(self, search: _Search) -> None:
        best = {key: one for (key, _), one in self._store.known.best(search.wanted, [search.target.key]).items()}
        outdated = [key for key, one in best.items() if not holds(search.wanted[key], search.target, one.schedule)]
        usable = {key: one for key, one in best.items() if key not in outdated}
        if outdated:  # found by another version of its sketch
            for key, measured in self._store.known.fastest(outdated, search.target.key, current()).items():
                legal = (one for one in measured if holds(search.wanted[key], search.target, one.schedule))
                if (one := next(legal, None)) is not None:
                    usable[key] = one
        for key, one in usable.items():
            search.found[key] = Found(
                search.wanted[key],
                Match.EXACT,
                one.schedule,
                one.measurement,
                one.is_confirmed and not one.is_imported,
                is_imported=one.is_imported,
            )

    def _siblings(self, search: _Search) -> None:
        if not search.near:
            return
        best = self._store.known.best([task.key for task in search.left], [one.key for one in search.near])
        for task in search.left:
            for sibling in search.near:
                one = best.get((task.key, sibling.key))
                if one is not None and not one.is_imported and search.usable(task, schedule := one.schedule):
                    source = Source(task.key, sibling.key, str(sibling))
                    search.found[task.key] = Found(task, Match.SIBLING, schedule, one.measurement, False, source)
                    break

    def _nearest(self, search: _Search) -> None:
        left = search.left
        places = [search.target, *search.near]
        relatives = self._relatives(left, [place.key for place in places])
        best = self._store.known.best(
            {key for keys in relatives.values() for key in keys}, [place.key for place in places]
        )
        chosen: dict[str, tuple[Best, Schedule, Target]] = {}
        for task in left:
            if search.is_over:
                break
            near = [(place, key) for place in places for key in relatives.get(task.key, ())]
            known = [(best[key, place.key], place) for place, key in near if (key, place.key) in best]
            timed = [(one, place) for one, place in known if not one.is_imported]
            imported = [(one, place) for one, place in known if one.is_imported and place is search.target]
            for one, place in (*timed, *imported):
                if search.usable(task, schedule := one.schedule):
                    chosen[task.key] = one, schedule, place
                    break
        measured = self._store.known.definitions({one.task_key for one, _, _ in chosen.values()})
        for key, (one, schedule, place) in chosen.items():
            if one.task_key not in measured:
                continue
            source = Source(one.task_key, place.key, str(place))
            scale = work_ratio(search.wanted[key], Task.from_json(measured[one.task_key]))
            search.found[key] = Found(
                search.wanted[key],
                Match.NEAREST,
                schedule,
                one.measurement,
                source=source,
                scale=scale,
                is_imported=one.is_imported,
            )

    def _relatives(self, tasks: Sequence[Task], target_keys: Sequence[str]) -> dict[str, list[str]]:
        """Task key -> keys of the nearest tasks of its family that have a best on one of the targets."""
        families = self._store.known.relatives({task.family for task in tasks}, target_keys, RELATIVES)
        known = self._known_numbers({key for keys in families.values() for key in keys})
        nearest = {}
        for task in tasks:
            keys = [key for key in families.get(task.family, ()) if key != task.key and key in known]
            apart = distances(numbers(task.to_json()), (known[key] for key in keys))
            order = apart.argsort(kind="stable")[:NEAR]
            nearest[task.key] = [keys[place] for place in order if apart[place] <= FARTHEST]
        return nearest

    def _known_numbers(self, keys: Collection[str]) -> Mapping[str, Numbers]:
        fresh = [key for key in keys if key not in self._numbers]
        made = {key: numbers(data) for key, data in self._store.known.definitions(fresh).items()} if fresh else {}
        # Another thread may be dropping the oldest.
        known = {key: kept for key in keys if (kept := self._numbers.get(key)) is not None} | made
        self._numbers.update(made)
        while len(self._numbers) > REMEMBERED:
            self._numbers.popitem(last=False)
        return known

    def _predicted(self, search: _Search) -> None:
        if self._picks is None:
            return
        for task in search.left:
            if search.is_over:
                break
            found = picked(self._picks, task, search.target, search.failed.get(task.key, set()))
            if found is not None:
                search.found[task.key] = found


def picked(picks: Picks, task: Task, target: Target, failed: Collection[str] = ()) -> Found | None:
    """What is picked for a task, as an answer; None where nothing is."""
    pick = picks.pick(task, target, failed)
    return Found(task, Match.PREDICTED, pick.schedule, None, predicted_s=pick.time_s) if pick else None
