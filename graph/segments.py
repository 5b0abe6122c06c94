"""Segments: runs of calls that may be computed as one task too, so that what passes between them stays in the cache.

A chain is calls of which each makes a tensor that the next one alone reads. A segment is a few neighbours of a chain,
their stages one after the other in one task. It computes the same and saves writing what passes between to memory and
reading it back; whether that pays, only measuring tells. So segments are offered beside the calls, and only where
there is something to win: where a call that does little with each element stands beside a product, and what passes
between is larger than a second-level cache. Nothing here depends on a machine: the tasks of a model are the same
everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import prod

from tunewright.codegen.expr import Load, Var, free_vars, loads

from .fusion import Call, Fallback, Step, View
from .groups import Group, chained, is_product
from .ir import Graph, Node
from .task import Stage, Task

SMALLEST_BYTES = 256 << 10
"""What passes between two calls of a segment is larger: what fits into a second-level cache, of this size or more on
today's cores, costs little to pass."""

MOST_FLOPS_ELEMENT = 512.0
"""Operations a segment does for each element that passes between its calls. Where it does more, what passing them
through memory takes is lost in the computing, on all of today's machines: these do so many the faster, the fewer bytes
an element has."""


class Role(StrEnum):
    """What a task does with the tensor that the call before it makes."""

    PRODUCT = "product"  # sums products over whole rows of it: matrix product, pointwise convolution
    WINDOW = "window"  # sums over a window of each channel: depthwise convolution
    ROWS = "rows"  # several passes over each row: softmax, normalisation


PATTERNS = (
    (Role.WINDOW, Role.PRODUCT),
    (Role.PRODUCT, Role.WINDOW, Role.PRODUCT),
    (Role.PRODUCT, Role.ROWS, Role.PRODUCT),
)
"""The segments that are offered: a separable convolution, one with an expansion before it, attention."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The calls of a chain from `start` to before `stop`, as one call. It may run where the last of them stands."""

    start: int
    stop: int
    call: Call


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls of which each makes one tensor, which the next alone reads; and the segments that may stand for some."""

    calls: tuple[Call, ...]
    segments: tuple[Segment, ...]


def chains(graph: Graph, steps: Sequence[Step]) -> tuple[Chain, ...]:
    """The chains that have segments, among the steps that compute a graph. No two have a call in common.

    No segment is a task that one of the steps is.
    """
    calls = [step for step in steps if isinstance(step, Call)]
    tasks = {call.task.key: call.task for call in calls}
    roles = {key: role(task) for key, task in tasks.items()}
    found = []
    for members in _linked(calls, _readers(graph, steps), roles):
        segments = tuple(s for s in _segments(graph, members, roles) if s.call.task.key not in tasks)
        if segments:
            found.append(Chain(tuple(members), segments))
    return tuple(found)


Roles = Mapping[str, Role | None]  # by task key


def _readers(graph: Graph, steps: Sequence[Step]) -> Counter[str]:
    """How often a tensor's memory is read: by calls, by the reference evaluator, by the caller of the model."""
    counts = Counter(value.tensor for value in graph.outputs)
    for step in steps:
        match step:
            case Call(inputs=names) | Fallback(node=Node(inputs=names)):
                counts.update(names)
            case View(input=name):  # for others than calls
                counts[name] += 1
    return counts


def _linked(calls: Sequence[Call], readers: Mapping[str, int], roles: Roles) -> Iterator[list[Call]]:
    """Runs of calls that feed each other alone, as long as can be, where neighbours are such in a pattern."""
    numbers = {call.outputs[0]: number for number, call in enumerate(calls) if len(call.outputs) == 1}
    neighbours = {pair for pattern in PATTERNS for pair in pairwise(pattern)}
    after: dict[int, int] = {}  # number of a call -> that of the one that goes on with what it makes
    for number, call in enumerate(calls):
        for name, tensor in zip(call.inputs, call.task.inputs, strict=True):
            maker = numbers.get(name)
            if maker is None or readers[name] > 1 or tensor.size_bytes <= SMALLEST_BYTES:
                continue
            first = calls[maker].task
            pair = roles[first.key], roles[call.task.key]
            if pair in neighbours and _goes_on(first, call.task, tensor.name, pair):
                after[maker] = number
                break
    for head in sorted(after.keys() - set(after.values())):
        members = [head]
        while members[-1] in after:
            members.append(after[members[-1]])
        yield [calls[number] for number in members]


def _segments(graph: Graph, members: Sequence[Call], roles: Roles) -> Iterator[Segment]:
    here = tuple(roles[call.task.key] for call in members)
    for start in range(len(members)):
        for pattern in PATTERNS:
            stop = start + len(pattern)
            inside = members[start:stop]
            if here[start:stop] == pattern and _is_worth_it([call.task for call in inside]):
                group = _joined([call.group for call in inside])
                if group is not None:
                    is_decisive = any(call.task.is_decisive for call in inside)
                    yield Segment(start, stop, Call.of(graph, group, is_decisive=is_decisive))


def _is_worth_it(tasks: Sequence[Task]) -> bool:
    """Whether tasks that feed each other spend a part of their time on what passes between them."""
    passed = sum(prod(tensor.shape) for task in tasks[:-1] for tensor in task.outputs)
    return sum(task.flops for task in tasks) <= MOST_FLOPS_ELEMENT * passed


def _joined(groups: Sequence[Group | None]) -> Group | None:
    """Groups of which each makes one tensor for the next, as one."""
    joined, *others = groups
    for group in others:
        if joined is None or group is None:
            return None
        joined = chained(joined, group, joined.outputs[0])
    return joined


# Roles


def role(task: Task) -> Role | None:
    """What a task does, as far as it can be part of a segment."""
    match _reducing(task):
        case [stage] if is_product(stage):
            return _role_of_product(task, stage)
        case [_, _, *_] if _row_extent(task) is not None:
            return Role.ROWS
    return None


def _reducing(task: Task) -> list[Stage]:
    return [stage for stage in task.stages if stage.reduce]


def _role_of_product(task: Task, stage: Stage) -> Role | None:
    reduced = {axis.name for axis in stage.reduce}
    sides = [(load, _slid(load, reduced)) for load in loads(stage.body)]
    if not any(slid for _, slid in sides):
        return Role.PRODUCT
    data = [load for load, slid in sides if slid == reduced]
    weights = [load for load, slid in sides if not slid and task.tensor(load.tensor).constant]
    if len(data) == len(weights) == 1:
        channels = set(free_vars(*weights[0].index)) - reduced
        if channels and channels <= set(free_vars(*data[0].index)):
            return Role.WINDOW
    return None


def _slid(load: Load, reduced: set[str]) -> set[str]:
    """The reduction axes that are part of an index and not all of it: a window slides along them."""
    return {name for at in load.index if not isinstance(at, Var) for name in free_vars(at) if name in reduced}


def _row_extent(task: Task) -> int | None:
    """How long the rows are along which each reduction of a task runs; None where one does anything else."""
    extents = set()
    for stage in _reducing(task):
        [axis, *others] = stage.reduce
        inside = [load for load in loads(stage.body) if axis.name in free_vars(*load.index)]
        along = all(
            load.index[-1] == Var(axis.name) and axis.name not in free_vars(*load.index[:-1]) for load in inside
        )
        if others or not along or is_product(stage):
            return None
        extents.add(axis.extent)
    return extents.pop() if len(extents) == 1 else None


def _goes_on(first: Task, then: Task, tensor: str, roles: tuple[Role | None, Role | None]) -> bool:
    """Whether what `then` reduces is `tensor`, and a block of its rows takes a block of whole rows of the tensor."""
    [main, *_] = _reducing(then)
    moved = [load for stage in then.stages if not stage.reduce for load in loads(stage.body)]
    own = [load for load in (*loads(main.body), *moved) if load.tensor == tensor]
    if roles[1] is not Role.PRODUCT:
        return bool(own)
    reduced = {axis.name: axis.extent for axis in main.reduce}
    rows = _row_extent(first) if roles[0] is Role.ROWS else None
    own = [load for load in loads(main.body) if load.tensor == tensor]
    ends = [reduced.get(load.index[-1].name) if isinstance(load.index[-1], Var) else None for load in own]
    return bool(own) and all(extent is not None and rows in (None, extent) for extent in ends)
