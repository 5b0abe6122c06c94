"""Answering: how lookups are answered: from memory, then by the ladder; and the jobs that are queued for misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from tunewright.codegen.target import Target
from tunewright.db.errors import NotFound
from tunewright.db.jobs import Budget, JobSpec, JobTask
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.tuner.lookup import Ladder, Match
from tunewright.tuner.lookup.predictor import Predictor

from ..problems import Kind, Problem
from ..schemas import LookupAsked
from ..service import in_thread
from .definitions import task_of
from .prepared import Item, Prepared, other, unanswered, unknown

LIMIT_S = 0.4
"""How long one lookup may search for tasks that were not measured on the target: clients wait a second."""

TRIALS_A_TASK = 32
"""Budget of a job for misses, a task."""

PRIORITY = -50
"""Of such a job: behind those that somebody submitted."""

NOT_TUNED = ("unknown", Match.NONE)
"""Answers that no job would change: there is no definition, or nothing works."""


class Answering:
    """What lookups of one service share."""

    def __init__(self, store: SqlStore, most_unfinished: int) -> None:
        self._store = store
        self._most_unfinished = most_unfinished  # jobs of a key
        self._prepared = Prepared(store.known)
        self._ladder = Ladder(store, Predictor(store))

    async def prepared(self) -> Prepared:
        """The exact answers, without those that changed. Raises StoreError."""
        if self._prepared.is_due:
            await in_thread(self._prepared.look)
        return self._prepared

    def read(self, target_key: str, target: Target | None, asked: LookupAsked, keys: list[str]) -> Read:
        """Answers for those of the tasks that are not in memory. Raises Problem, StoreError."""
        items = self._prepared.read(target_key, keys)
        left = [key for key in keys if key not in items]
        if not left:
            return Read(items, {})
        target = target or self._target(target_key)
        sent = {key: task_of(key, asked.definitions[key]) for key in left if key in asked.definitions}
        tasks = sent | self._known([key for key in left if key not in sent])
        found = self._ladder.find(tasks.values(), target, LIMIT_S)
        for key in left:
            if key in found:
                items[key] = other(found[key])
            else:
                items[key] = unanswered(tasks[key]) if key in tasks else unknown(key)
        return Read(items, sent)

    def _target(self, key: str) -> Target:
        try:
            return self._store.target(key)
        except NotFound as error:
            raise Problem(Kind.NO_SUCH_TARGET, "send the target itself instead of its key") from error

    def _known(self, keys: list[str]) -> dict[str, Task]:
        return {key: Task.from_json(data) for key, data in self._store.known.definitions(keys).items()}

    def tune(self, target_key: str, target: Target | None, read: Read, owner: str) -> int | None:
        """Queue a job for what is not measured and compared yet: its id, None where there is nothing.

        Raises QuotaExceeded, StoreError.
        """
        misses = sorted(
            key for key, item in read.items.items() if item.match not in NOT_TUNED and not item.is_confirmed
        )
        if not misses:
            return None
        self._store.add_tasks(read.sent[key] for key in misses if key in read.sent)
        if target is not None:
            self._store.add_target(target)
        submitted = self._store.jobs.submit(
            JobSpec("", target_key, tuple(JobTask(key, 1) for key in misses), {}),
            "lookup",
            Budget(TRIALS_A_TASK * len(misses)),
            priority=PRIORITY,
            owner=owner,
            most_unfinished=self._most_unfinished,
        )
        return submitted.job.id


@dataclass(frozen=True, slots=True)
class Read:
    """The answers to a lookup."""

    items: dict[str, Item]  # by task key
    sent: dict[str, Task]  # of them, the tasks that came with the request and are not measured on the target


async def answering_of(request: Request) -> Answering:
    """What lookups share."""
    return cast("Answering", request.app.state.answering)


Lookups = Annotated[Answering, Depends(answering_of)]
"""Type of a route's parameter that is what lookups share."""
