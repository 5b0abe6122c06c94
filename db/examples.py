"""Examples: the trials that a cost model learns from, read a page at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.schedule import Schedule

EXAMPLES_OF_PAGE = 2000
"""Trials of a page."""


@dataclass(frozen=True, slots=True)
class StoredExample:
    """A trial as a cost model learns from it."""

    id: int  # ascends with time
    task_key: str
    target_key: str
    schedule: Schedule
    measurement: Measurement  # its numbers only: no samples, error, object and provenance


class ExampleSource(Protocol):
    """Where examples are read from: a store, here or behind a server."""

    def example_page(self, target_kind: str, after: int = 0, through: int | None = None) -> list[StoredExample]: ...

    def tasks(self, task_keys: Iterable[str]) -> dict[str, Task]: ...

    def target(self, target_key: str) -> Target: ...


def read_examples(
    source: ExampleSource, target_kind: str, after: int = 0, through: int | None = None
) -> Iterator[tuple[Candidate, Measurement]]:
    """The trials on targets of a kind, the newest first, so that a reader can stop when it has enough.

    Those with ids above `after`, up to `through` (`newest_trial`), without those taken back. Tasks and targets are the
    same objects throughout. Each page is a transaction: none stays open while the caller works. Trials stored
    meanwhile may be missing; an imported one may be gone, as its schedule was timed here: that is a newer trial.
    """
    tasks: dict[str, Task] = {}
    targets: dict[str, Target] = {}
    while page := source.example_page(target_kind, after, through):
        tasks |= source.tasks({example.task_key for example in page} - tasks.keys())
        targets |= {key: source.target(key) for key in {example.target_key for example in page} - targets.keys()}
        for example in page:
            candidate = Candidate(tasks[example.task_key], targets[example.target_key], example.schedule)
            yield candidate, example.measurement
        through = page[-1].id - 1
