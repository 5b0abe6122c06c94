"""The lookup cache: answers as JSON text, made once a record and kept in memory until it changes.

Lookups are asked for by the thousand, and most are for the same few thousand tasks. So what is best for them is read
from the database once. Twice a second, while anybody asks, the database tells for which tasks something was stored
since, by any process, and those are read anew: an answer is half a second behind at most.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from tunewright.db.best import Best, Marks
from tunewright.db.catalog import Catalog
from tunewright.graph.task import Task
from tunewright.search_space.sketches import current
from tunewright.tuner.lookup.result import Basis, LookupResult, Match

LOOK_S = 0.5
"""How often the database is asked what changed, while there are lookups."""

OVERLAP_S = 10.0
"""How far back it is asked: a transaction may be committed after one with higher numbers that began later."""

MANY = 50_000
"""More changes than this, and everything is read anew."""

KEPT = 50_000
"""Answers kept in memory, about a kilobyte each."""


class Item(NamedTuple):
    """The answer for one task."""

    text: bytes  # a JSON object
    match: str
    is_confirmed: bool


class LookupCache:
    """The exact answers of one store. Threads may share it."""

    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.monotonic) -> None:
        self._catalog = catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[str, str], Item] = OrderedDict()  # by target key and task key
        self._marks: deque[tuple[float, Marks]] = deque()  # when they were read, the oldest first
        self._look_due_s = 0.0
        self._looking = threading.Lock()

    @property
    def is_due(self) -> bool:
        """Whether `look` should be called before anything else."""
        return self._clock() >= self._look_due_s

    def recall(self, target_key: str, task_keys: Iterable[str]) -> dict[str, Item]:
        """Task key -> answer, of those in memory."""
        items = self._items
        return {key: item for key in task_keys if (item := items.get((target_key, key))) is not None}

    def look(self) -> None:
        """Forget what changed. Raises StoreError."""
        with self._looking:
            if not self.is_due:
                return
            self._look_due_s = self._clock() + LOOK_S
            try:
                self._forget_changed()
            except BaseException:
                self._look_due_s = 0.0
                raise

    def _forget_changed(self) -> None:
        now_s, marks = self._clock(), self._catalog.marks()
        while len(self._marks) > 1 and self._marks[1][0] <= now_s - OVERLAP_S:
            self._marks.popleft()
        since = self._marks[0][1] if self._marks else marks
        self._marks.append((now_s, marks))
        if marks == since:
            return
        if sum(marks) - sum(since) > MANY:
            with self._lock:
                self._items.clear()
            return
        changed = self._catalog.changes(since)
        with self._lock:
            for task_key, target_key in changed:
                self._items.pop((target_key, task_key), None)

    def read(self, target_key: str, task_keys: Collection[str]) -> dict[str, Item]:
        """Task key -> answer, of those that have an exact one. Raises StoreError.

        A schedule that was measured for a task on a target is legal there as long as its sketch has the same version,
        and so is one that was imported: an import looks at that.
        """
        items, of_this_version = {}, current()
        for (task_key, _), best in self._catalog.best(task_keys, [target_key]).items():
            if (best.sketch, best.sketch_version) in of_this_version:
                items[task_key] = exact_item(best)
        with self._lock:
            for task_key, item in items.items():
                self._items[target_key, task_key] = item
            while len(self._items) > KEPT:
                self._items.popitem(last=False)
        return items


def exact_item(best: Best) -> Item:
    """The answer that a best is, as `LookupResult.to_json` would put it: what is JSON already is not read."""
    interval = "null"
    if best.interval_s is not None:
        low_s, high_s = best.interval_s
        interval = f"[{1e3 * low_s!r}, {1e3 * high_s!r}]"
    provenance = best.provenance_json if best.spread is None else json.dumps(best.measurement.provenance)
    basis = Basis.IMPORTED if best.is_imported else Basis.MEASURED
    text = (
        f'{{"key": "{best.task_key}", "op": {json.dumps(best.op)}, "match": "{Match.EXACT}", '
        f'"basis": "{basis}", "confirmed": {"true" if best.is_confirmed_here else "false"}, '
        f'"expected_ms": {1e3 * best.median_s!r}, "interval_ms": {interval}, "schedule": {best.schedule_json}, '
        f'"source": null, "provenance": {provenance}}}'
    )
    return Item(text.encode(), Match.EXACT, best.is_confirmed_here)


def result_item(result: LookupResult) -> Item:
    """The answer of any rung."""
    return Item(json.dumps(result.to_json()).encode(), result.match, result.confirmed)


def unknown_item(task_key: str) -> Item:
    """The answer for a task whose definition is not known: it should be sent."""
    return Item(json.dumps({"key": task_key, "match": "unknown"}).encode(), "unknown", is_confirmed=False)


def default_item(task: Task) -> Item:
    """The answer for a task that the time did not suffice for."""
    data: Mapping[str, object] = {
        "key": task.key,
        "op": task.op,
        "match": Match.DEFAULT,
        "basis": Basis.NONE,
        "confirmed": False,
        "expected_ms": None,
        "interval_ms": None,
        "schedule": None,
        "source": None,
        "provenance": {},
    }
    return Item(json.dumps(data).encode(), Match.DEFAULT, is_confirmed=False)
