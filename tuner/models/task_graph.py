"""TaskGraph: the steps that run a model, and which of them reads what another made; `graph_of_model` makes one.

It is what people see of a model, as small plain data: a job carries it to wherever its page is read. Ops, shapes and
sizes are in it, and names of the model's nodes only where it was made with them. Tasks are known by their number in the
list of the model's tasks, as in `assembly`. What `of_json` reads may come from a child that a hostile model has taken
over: all of it is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from .assembly import CallRange, TaskChain, Times, whole_number

MOST_NODES = 5000
"""Steps of a model whose graph is kept; of a larger one only their number is."""

MOST_SOURCES = 32
"""Steps that one is known to read from: the last ones of more. Only concatenations have so many."""

MOST_EDGES = 20_000
"""What all steps are known to read from together."""

MOST_LETTERS = 200
"""Letters of an op, a type or a name."""

MOST_NAMED = 100_000
"""Letters of the names of all steps together: what comes behind has none."""

MOST_BYTES = 1 << 40
"""The largest size of a tensor that is told."""


class StepKind(StrEnum):
    """What a step of a model is."""

    TASK = "task"
    FALLBACK = "fallback"  # a node without a kernel
    RUNTIME = "runtime"  # control flow, or a function of the runtime: no task, and nothing of it is tuned
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One step: the occurrence of a task, a node that is none, an input or an output of the model."""

    kind: StepKind
    op: str = ""  # of what is no task; hostile text is possible
    task: int = -1  # its number; -1: it is none
    type: str = ""  # of what it makes first; hostile text is possible
    size_bytes: int = 0  # of that; 0 where only running the model tells
    sources: tuple[int, ...] = ()  # places of the steps that it reads from, ascending: all before its own
    names: tuple[str, ...] = ()  # of the model's nodes in it; hostile text


@dataclass(frozen=True, slots=True)
class PlacedChain:
    """Steps that some tasks may stand for: see `graph.fusion.segments`."""

    places: tuple[int, ...]
    runs: tuple[CallRange, ...]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The steps of a model, each behind those that it reads from. `left_out`: it has so many, too many to keep."""

    steps: tuple[ModelStep, ...]
    chains: tuple[PlacedChain, ...] = ()
    left_out: int = 0

    def fastest(self, times_s: Times) -> TaskGraph:
        """The graph as the model is run: with the tasks that take less time than the steps they stand for."""
        merged: dict[int, tuple[int, ModelStep]] = {}  # place -> where it goes, and what that becomes
        for chain in self.chains:
            calls = tuple(self.steps[place].task for place in chain.places)
            for part in TaskChain(calls, chain.runs).fastest(times_s):
                places = chain.places[part.start : part.stop]
                if len(places) > 1:
                    merged |= dict.fromkeys(places, (places[-1], self._merge(places, part.task)))
        kept = [place for place in range(len(self.steps)) if merged.get(place, (place,))[0] == place]
        numbers = {place: number for number, place in enumerate(kept)}
        steps = []
        for place in kept:
            step = merged[place][1] if place in merged else self.steps[place]
            sources = {numbers[merged.get(source, (source,))[0]] for source in step.sources}
            steps.append(replace(step, sources=tuple(sorted(sources - {numbers[place]}))))
        return TaskGraph(tuple(steps))

    def _merge(self, places: Sequence[int], task: int) -> ModelStep:
        steps = [self.steps[place] for place in places]
        return replace(
            steps[-1],
            task=task,
            sources=tuple(sorted({source for step in steps for source in step.sources} - set(places))),
            names=tuple(dict.fromkeys(name for step in steps for name in step.names)),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, of about ten bytes a step; `of_json` inverts it.

        A step has the number of its task, or behind -1 that of its kind and op among `others`; that of its type; and
        how far before it stands what it reads from.
        """
        others = _numbered((step.kind.value, step.op) for step in self.steps if step.kind is not StepKind.TASK)
        types = _numbered((step.type, step.size_bytes) for step in self.steps)
        steps = [
            [
                step.task if step.kind is StepKind.TASK else -1 - others[step.kind.value, step.op],
                types[step.type, step.size_bytes],
                *(place - source for source in step.sources),
            ]
            for place, step in enumerate(self.steps)
        ]
        data: dict[str, Any] = {"steps": steps, "others": list(map(list, others)), "types": list(map(list, types))}
        data["chains"] = [
            [list(chain.places), [[run.start, run.stop, run.task] for run in chain.runs]] for chain in self.chains
        ]
        data["left_out"] = self.left_out
        if any(step.names for step in self.steps):
            data["names"] = [list(step.names) for step in self.steps]
        return data

    @staticmethod
    def of_json(data: Any, tasks: int) -> TaskGraph:
        """Raises KeyError, TypeError, ValueError or IndexError for what is no graph of so many tasks."""
        if max(len(data["others"]), len(data["types"])) > MOST_NODES:
            raise ValueError("more ops or types than steps that are kept")
        others = [(StepKind(kind), _text(op)) for kind, op in data["others"]]
        if any(kind is StepKind.TASK for kind, _ in others):
            raise ValueError("a task has its number, and no op")
        types = [(_text(kind), _count(size_bytes)) for kind, size_bytes in data["types"]]
        rows = data["steps"]
        names = data.get("names") or [()] * len(rows)
        if len(rows) > MOST_NODES or sum(map(len, rows)) > MOST_EDGES + 2 * MOST_NODES or len(names) != len(rows):
            raise ValueError("a graph of more steps than are kept")
        steps = []
        for place, (row, own) in enumerate(zip(rows, names, strict=True)):
            number, kind, *back = row
            what, op = others[_count(-1 - number)] if number < 0 else (StepKind.TASK, "")
            steps.append(
                ModelStep(
                    what,
                    op,
                    -1 if number < 0 else _count(number, tasks - 1),
                    *types[_count(kind)],
                    sources=tuple(place - _count(step, place, 1) for step in back[:MOST_SOURCES]),
                    names=tuple(map(_text, own)),
                )
            )
        if sum(len(name) for step in steps for name in step.names) > MOST_NAMED:
            raise ValueError("more names than are kept")
        chains = tuple(_chain(places, runs, tasks) for places, runs in data["chains"])
        _check_chains(steps, chains)
        return TaskGraph(tuple(steps), chains, _count(data["left_out"]))


def _numbered(items: Iterable[tuple[str, Any]]) -> dict[tuple[str, Any], int]:
    return {item: number for number, item in enumerate(dict.fromkeys(items))}


def _text(value: Any) -> str:
    """A line that every database keeps: no NUL, and nothing that UTF-8 has no bytes for."""
    if not isinstance(value, str) or len(value) > MOST_LETTERS or not value.isprintable():
        raise ValueError("a text that is no line, or too long")
    return value


def _count(value: Any, most: int = MOST_BYTES, least: int = 0) -> int:
    return whole_number(value, least, most)


def _chain(places: Any, runs: Any, tasks: int) -> PlacedChain:
    return PlacedChain(
        tuple(map(_count, places)),
        tuple(
            CallRange(_count(start, len(places)), _count(stop, len(places), start + 2), _count(task, tasks - 1))
            for start, stop, task in runs
        ),
    )


def _check_chains(steps: Sequence[ModelStep], chains: Sequence[PlacedChain]) -> None:
    """Raises ValueError where a step of a chain is no task, or is read by others than the next one."""
    places = [place for chain in chains for place in chain.places]
    if len(places) != len(set(places)) or max(places, default=-1) >= len(steps):
        raise ValueError("a step is in no chain but one")
    if sum(len(chain.runs) for chain in chains) > MOST_EDGES or any(steps[place].task < 0 for place in places):
        raise ValueError("a chain is of tasks")
    readers = Counter(source for step in steps for source in step.sources)
    pairs = [pair for chain in chains for pair in pairwise(chain.places)]
    if any(readers[place] != 1 or place not in steps[following].sources for place, following in pairs):
        raise ValueError("each step of a chain is read by the next one alone")
