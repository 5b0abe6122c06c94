"""The lookup service: answers from memory, then from the ladder; jobs for misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from tunewright.codegen.fields import quote
from tunewright.codegen.target import CPU, CUDA, Target
from tunewright.db.admission import check_size
from tunewright.db.errors import NotFound
from tunewright.db.job import JobSpec, SearchBudget, SpecTask
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.tuner.lookup.ladder import Ladder
from tunewright.tuner.lookup.predictor import Predictor
from tunewright.tuner.lookup.result import Match

from ..problems import Problem, ProblemKind, invalid
from ..schemas.records import LookupAsked
from ..service import in_thread
from .lookup_cache import Item, LookupCache, default_item, result_item, unknown_item


def target_of(lookup: LookupAsked) -> tuple[str, Target | None]:
    """The key of the target that a lookup is for, and the target itself where it was sent. Raises Problem."""
    if isinstance(lookup.target, str):
        return lookup.target, None
    try:
        target = Target.from_json(lookup.target)
        if target.kind not in (CPU, CUDA):
            raise ValueError(f"there are targets of the kinds {CPU} and {CUDA}, not {quote(target.kind)}")
    except ValueError as error:
        raise invalid("body", ["target"], str(error)) from error
    return target.key, target


@dataclass(frozen=True, slots=True)
class AskedTasks:
    """The tasks of a lookup: their keys in order, and what was sent of them."""

    keys: list[str]
    sent: Mapping[str, Task] = field(default_factory=dict)  # of those that came without a key
    names: Sequence[Mapping[str, str] | None] = ()  # of each: name that it came with -> name of the service
    definitions: Mapping[str, Any] = field(default_factory=dict)  # by key, as JSON data

    @staticmethod
    def of(lookup: LookupAsked) -> AskedTasks:
        """Tasks that came without a key get the service's own names, and the key of that. Raises Problem."""
        sent, keys, names = dict[str, Task](), list[str](), list[Mapping[str, str] | None]()
        for number, item in enumerate(lookup.tasks):
            if isinstance(item, str):
                keys.append(item)
                names.append(None)
                continue
            with _faults_at(["tasks", number]):
                written = _read(item)
                task = written.renamed()
            sent[task.key] = task
            keys.append(task.key)
            names.append(written.new_names)
        return AskedTasks(keys, sent, names if sent else (), lookup.definitions)

    def find(self, key: str) -> Task | None:
        """The task of a key, if it was sent. Raises Problem where another one was."""
        if key in self.sent or key not in self.definitions:
            return self.sent.get(key)
        place = ["definitions", key]
        with _faults_at(place):
            task = _read(self.definitions[key])
        if task.key != key:
            raise invalid("body", place, f"it is not this task: its key is {task.key}")
        return task


def _read(data: Any) -> Task:
    """A task from data of any origin. Raises ValueError where it is none, or too large, and RecursionError."""
    task = Task.from_json(data)
    check_size(task)
    return task


@contextmanager
def _faults_at(place: Sequence[str | int]) -> Iterator[None]:
    """Raise Problem for what is no task at a place of a request."""
    try:
        yield
    except RecursionError as error:
        raise invalid("body", place, "it is no task: it is nested too deeply") from error
    except ValueError as error:
        raise invalid("body", place, f"it is no task: {error}") from error


LIMIT_S = 0.4
"""How long one lookup may search for tasks that were not measured on the target: clients wait a second."""

TRIALS_A_TASK = 32
"""SearchBudget of a job for misses, a task."""

PRIORITY = -50
"""Priority of a job for misses: behind those that somebody submitted."""

NOT_TUNED = ("unknown", Match.NONE)
"""Answers that no job would change: there is no definition, or nothing works."""


class LookupService:
    """Answers lookups: the cache and the ladder of one service."""

    def __init__(self, store: Store, most_unfinished: int) -> None:
        self._store = store
        self._most_unfinished = most_unfinished  # jobs of a key
        self._cache = LookupCache(store.catalog)
        self._ladder = Ladder(store, Predictor(store))

    async def cache(self) -> LookupCache:
        """The exact answers, without those that changed. Raises StoreError."""
        if self._cache.is_due:
            await in_thread(self._cache.look)
        return self._cache

    def read(self, target_key: str, target: Target | None, asked: AskedTasks, keys: list[str]) -> LookupItems:
        """Answers for those of the tasks, `keys`, that are not in memory. Raises Problem, StoreError."""
        items = self._cache.read(target_key, keys)
        missing = [key for key in keys if key not in items]
        if not missing:
            return LookupItems(items, {})
        target = target or self._target(target_key)
        definitions = {key: task for key in missing if (task := asked.find(key)) is not None}
        tasks = definitions | self._known([key for key in missing if key not in definitions])
        results = self._ladder.find(tasks.values(), target, LIMIT_S)
        for key in missing:
            if key in results:
                items[key] = result_item(results[key])
            else:
                items[key] = default_item(tasks[key]) if key in tasks else unknown_item(key)
        return LookupItems(items, definitions)

    def _target(self, key: str) -> Target:
        try:
            return self._store.target(key)
        except NotFound as error:
            raise Problem(ProblemKind.NO_SUCH_TARGET, "send the target itself instead of its key") from error

    def _known(self, keys: list[str]) -> dict[str, Task]:
        return {key: Task.from_json(data) for key, data in self._store.catalog.definitions(keys).items()}

    def tune(self, target_key: str, target: Target | None, items: LookupItems, owner: str) -> int | None:
        """Queue a job for what is not measured and compared yet: its id, None where there is nothing.

        Raises QuotaExceeded, StoreError.
        """
        misses = sorted(
            key for key, item in items.by_key.items() if item.match not in NOT_TUNED and not item.is_confirmed
        )
        if not misses:
            return None
        self._store.add_tasks(items.definitions[key] for key in misses if key in items.definitions)
        if target is not None:
            self._store.add_target(target)
        submission = self._store.jobs.submit(
            JobSpec("", target_key, tuple(SpecTask(key, 1) for key in misses), {}),
            "lookup",
            SearchBudget(TRIALS_A_TASK * len(misses)),
            priority=PRIORITY,
            owner=owner,
            most_unfinished=self._most_unfinished,
        )
        return submission.job.id


@dataclass(frozen=True, slots=True)
class LookupItems:
    """The items that answer a lookup."""

    by_key: dict[str, Item]  # of the task
    definitions: dict[str, Task]  # of them, the tasks that came with the request and are not measured on the target


async def lookup_service_of(request: Request) -> LookupService:
    """The lookup service of the service that a request came to."""
    return cast("LookupService", request.app.state.lookup_service)


LookupServiceDep = Annotated[LookupService, Depends(lookup_service_of)]
"""Type of a route's parameter that is the lookup service."""
