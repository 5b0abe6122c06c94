"""Assembly: how often a model runs each task, where some tasks may replace others.

Where a model has segments (see `graph.fusion.segments`), their tasks are tuned beside those of the calls that they may
stand for, and which of them the model runs is chosen from the times that were measured. Tasks are known here by their
number in the list of the model's tasks, and chains that are alike are counted, so an assembly is small plain data: a
job carries it to wherever the job is worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

Times = Sequence[float | None]
"""Seconds by number of the task; infinite where nothing works, None where it isn't known."""


@dataclass(frozen=True, slots=True)
class CallRange:
    """The calls of a chain from `start` to before `stop`, which one task may compute."""

    start: int
    stop: int
    task: int


@dataclass(frozen=True, slots=True)
class TaskChain:
    """Calls by their tasks, and the runs of them that may be one call instead."""

    calls: tuple[int, ...]
    runs: tuple[CallRange, ...]

    @property
    def parts(self) -> tuple[CallRange, ...]:
        """The parts that can make up the chain: each call alone, and the runs."""
        return (*(CallRange(place, place + 1, task) for place, task in enumerate(self.calls)), *self.runs)

    def fastest(self, times_s: Times) -> tuple[CallRange, ...]:
        """The parts, in order, that take the least time together.

        A run is among them only if it and each of its calls was timed, and it is faster than they are.
        """

        def cost_s(part: CallRange) -> float:
            known = times_s[part.task]
            calls = self.calls[part.start : part.stop]
            if part in self.runs and (known is None or any(times_s[task] is None for task in calls)):
                return inf
            return known or 0.0

        return self.cheapest(cost_s)[1]

    def cheapest(self, cost_s: Callable[[CallRange], float]) -> tuple[float, tuple[CallRange, ...]]:
        """The parts that cover the chain at the least cost, and that cost. Of equal ones calls alone are preferred."""
        ending: list[list[CallRange]] = [[] for _ in range(len(self.calls) + 1)]
        for part in self.parts:
            ending[part.stop].append(part)
        least_s, last = [0.0], [CallRange(0, 0, 0)]  # by how many calls are covered
        for parts in ending[1:]:
            total_s, part = min(((least_s[p.start] + cost_s(p), p) for p in parts), key=lambda way: way[0])
            least_s.append(total_s)
            last.append(part)
        chosen: list[CallRange] = []
        place = len(self.calls)
        while place:
            chosen.append(last[place])
            place = last[place].start
        return least_s[-1], tuple(reversed(chosen))


@dataclass(frozen=True, slots=True)
class Assembly:
    """The occurrences of each task in a model, and the chains in which segments may replace calls.

    The task of a segment occurs as often as the segment may replace calls.
    """

    occurrences: tuple[int, ...] = ()
    chains: tuple[tuple[TaskChain, int], ...] = ()  # and how often each is there

    @property
    def alternatives(self) -> frozenset[int]:
        """The tasks of segments, which replace calls."""
        return frozenset(run.task for chain, _ in self.chains for run in chain.runs)

    @property
    def separate_uses(self) -> list[int]:
        """The uses of each task where no segment is chosen."""
        return [0 if task in self.alternatives else count for task, count in enumerate(self.occurrences)]

    def uses(self, times_s: Times) -> list[int]:
        """The uses of each task where the fastest parts are chosen."""
        counts = self.separate_uses
        for chain, count in self.chains:
            for task in chain.calls:
                counts[task] -= count
            for part in chain.fastest(times_s):
                counts[part.task] += count
        return counts

    @property
    def settings(self) -> dict[str, Any]:
        """The entry of a job's settings."""
        return {"chains": self.to_json()} if self.chains else {}

    def to_json(self) -> list[dict[str, Any]]:
        """The chains as plain data; `of_json` inverts it."""
        return [
            {
                "calls": list(chain.calls),
                "runs": [[run.start, run.stop, run.task] for run in chain.runs],
                "occurrences": count,
            }
            for chain, count in self.chains
        ]

    @staticmethod
    def of_json(occurrences: Sequence[int], data: Any) -> Assembly:
        """Raises KeyError, TypeError or ValueError for what can't be an assembly of so many tasks."""
        most = max(occurrences, default=0)
        chains = tuple((_chain(item, len(occurrences)), whole_number(item["occurrences"], 1, most)) for item in data)
        assembly = Assembly(tuple(occurrences), chains)
        needed = [0] * len(occurrences)
        for chain, count in chains:
            for part in chain.parts:
                needed[part.task] += count
        if any(count > available for count, available in zip(needed, occurrences, strict=True)):
            raise ValueError("chains have tasks that the model has not so often")
        if assembly.alternatives & {task for chain, _ in chains for task in chain.calls}:
            raise ValueError("a task stands for itself")
        return assembly


def total_s(counts: Sequence[int], times_s: Times) -> float | None:
    """Seconds of tasks that are run so often; None while the time of one isn't known."""
    used = [(count, time_s) for count, time_s in zip(counts, times_s, strict=True) if count]
    if any(time_s is None for _, time_s in used):
        return None
    return sum(count * (time_s or 0.0) for count, time_s in used)


def _chain(data: Any, tasks: int) -> TaskChain:
    calls = tuple(whole_number(task, 0, tasks - 1) for task in data["calls"])
    runs = tuple(
        CallRange(
            whole_number(start, 0, len(calls)),
            whole_number(stop, start + 2, len(calls)),
            whole_number(task, 0, tasks - 1),
        )
        for start, stop, task in data["runs"]
    )
    return TaskChain(calls, runs)


def whole_number(value: Any, least: int, most: int) -> int:
    """A number of plain data, within bounds. Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is not in {least} .. {most}")
    return value
