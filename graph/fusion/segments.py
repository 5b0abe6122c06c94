"""Segments: runs of calls that may be computed as one task too, so that what passes between them stays in the cache.

A chain is calls of which each makes a tensor that the next one alone reads. A segment is a few neighbours of a chain,
their stages one after the other in one task. It computes the same and saves writing what passes between to memory and
reading it back; whether that pays, only measuring tells. So segments are offered beside the calls, and only where
there is something to win: where a call that does little with each element stands beside a product, and on processors
what passes between is larger than a second-level cache. On GPUs, where each call is a launch, it is attention alone, of
any size. Nothing else here depends on a machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import prod

from tunewright.codegen.expr.expr import Expr, Load, Var, free_vars, loads
from tunewright.codegen.expr.index import linear

from ..ir import Graph, Node
from ..task import Stage, Task
from .fusion import Fallback, Step, TaskCall, TensorView
from .groups import Group, is_product
from .merge import concatenate

SMALLEST_BYTES = 256 << 10
"""What passes between two calls of a segment is larger: what fits into a second-level cache, of this size or more on
today's cores, costs little to pass."""

MOST_FLOPS_ELEMENT = 512.0
"""Operations a segment does for each element that passes between its calls. Where it does more, what passing them
through memory takes is lost in the computing, on all of today's machines: these do so many the faster, the fewer bytes
an element has."""


class SegmentRole(StrEnum):
    """The role of a task in a segment: what it does with the tensor of the call before it."""

    PRODUCT = "product"  # sums products over whole rows of it: matrix product, pointwise convolution
    WINDOW = "window"  # sums over a window of each channel: depthwise convolution
    ROWS = "rows"  # several passes over each row: softmax, normalisation


ATTENTION = SegmentRole.PRODUCT, SegmentRole.ROWS, SegmentRole.PRODUCT

PATTERNS = (
    (SegmentRole.WINDOW, SegmentRole.PRODUCT),
    (SegmentRole.PRODUCT, SegmentRole.WINDOW, SegmentRole.PRODUCT),
    ATTENTION,
)
"""The segments that are offered on processors: a separable convolution, one with an expansion before it, attention."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The calls of a chain from `start` to before `stop`, as one call. It may run where the last of them stands."""

    start: int
    stop: int
    call: TaskCall


@dataclass(frozen=True, slots=True)
class CallChain:
    """Calls of which each makes one tensor, which the next alone reads; and the segments that may stand for some."""

    calls: tuple[TaskCall, ...]
    segments: tuple[Segment, ...]


def chains(graph: Graph, steps: Sequence[Step], *, on_gpu: bool = False) -> tuple[CallChain, ...]:
    """The chains that have segments, among the steps that compute a graph. No two have a call in common.

    No segment is a task that one of the steps is.
    """
    patterns, least_bytes = ((ATTENTION,), 0) if on_gpu else (PATTERNS, SMALLEST_BYTES)
    calls = [step for step in steps if isinstance(step, TaskCall)]
    tasks = {call.task.key: call.task for call in calls}
    roles = {key: role(task) for key, task in tasks.items()}
    result = []
    for members in _link_calls(calls, _readers(graph, steps), roles, patterns, least_bytes):
        segments = tuple(s for s in _segments(graph, members, roles, patterns) if s.call.task.key not in tasks)
        if segments:
            result.append(CallChain(tuple(members), segments))
    return tuple(result)


Roles = Mapping[str, SegmentRole | None]  # by task key
Patterns = Sequence[tuple[SegmentRole, ...]]


def _readers(graph: Graph, steps: Sequence[Step]) -> Counter[str]:
    """The number of reads of a tensor's memory: by calls, by the reference evaluator, by the caller of the model."""
    counts = Counter(value.tensor for value in graph.outputs)
    for step in steps:
        match step:
            case TaskCall(inputs=names) | Fallback(node=Node(inputs=names)):
                counts.update(names)
            case TensorView(input=name):  # for others than calls
                counts[name] += 1
    return counts


def _link_calls(
    calls: Sequence[TaskCall], readers: Mapping[str, int], roles: Roles, patterns: Patterns, least_bytes: int
) -> Iterator[list[TaskCall]]:
    """Runs of calls that feed each other alone, as long as can be, where neighbours are such in a pattern.

    What they pass is larger than `least_bytes`.
    """
    numbers = {call.outputs[0]: number for number, call in enumerate(calls) if len(call.outputs) == 1}
    neighbours = {pair for pattern in patterns for pair in pairwise(pattern)}
    after: dict[int, int] = {}  # number of a call -> that of the one that goes on with what it makes
    for number, call in enumerate(calls):
        for name, tensor in zip(call.inputs, call.task.inputs, strict=True):
            maker = numbers.get(name)
            if maker is None or readers[name] > 1 or tensor.size_bytes <= least_bytes:
                continue
            first = calls[maker].task
            pair = roles[first.key], roles[call.task.key]
            if pair in neighbours and _is_fusible(first, call.task, tensor.name, pair):
                after[maker] = number
                break
    for head in sorted(after.keys() - set(after.values())):
        members = [head]
        while members[-1] in after:
            members.append(after[members[-1]])
        yield [calls[number] for number in members]


def _segments(graph: Graph, members: Sequence[TaskCall], roles: Roles, patterns: Patterns) -> Iterator[Segment]:
    member_roles = tuple(roles[call.task.key] for call in members)
    for start in range(len(members)):
        for pattern in patterns:
            stop = start + len(pattern)
            inside = members[start:stop]
            if member_roles[start:stop] == pattern and _is_worthwhile([call.task for call in inside]):
                group = _concatenate_groups([call.group for call in inside])
                if group is not None:
                    is_decisive = any(call.task.is_decisive for call in inside)
                    yield Segment(start, stop, TaskCall.of(graph, group, is_decisive=is_decisive))


def _is_worthwhile(tasks: Sequence[Task]) -> bool:
    """Whether tasks that feed each other spend a part of their time on what passes between them."""
    passed = sum(prod(tensor.shape) for task in tasks[:-1] for tensor in task.outputs)
    return sum(task.flops for task in tasks) <= MOST_FLOPS_ELEMENT * passed


def _concatenate_groups(groups: Sequence[Group | None]) -> Group | None:
    """Groups of which each makes one tensor for the next, as one."""
    result, *others = groups
    for group in others:
        if result is None or group is None:
            return None
        result = concatenate(result, group, result.outputs[0])
    return result


# Roles


def role(task: Task) -> SegmentRole | None:
    """The role of a task; None if it can't be part of a segment."""
    match _reduction_stages(task):
        case [stage] if is_product(stage):
            return _role_of_product(task, stage)
        case [_, _, *_] if _row_extent(task) is not None:
            return SegmentRole.ROWS
    return None


def _reduction_stages(task: Task) -> list[Stage]:
    return [stage for stage in task.stages if stage.reduce]


def _role_of_product(task: Task, stage: Stage) -> SegmentRole | None:
    reduced = {axis.name for axis in stage.reduce}
    sides = [(load, _sliding_axes(load, stage)) for load in loads(stage.body)]
    if not any(slid for _, slid in sides):
        return SegmentRole.PRODUCT
    data = [load for load, slid in sides if slid == reduced]
    weights = [load for load, slid in sides if not slid and task.tensor(load.tensor).constant]
    if len(data) == len(weights) == 1:
        channels = set(free_vars(*weights[0].index)) - reduced
        if channels and channels <= set(free_vars(*data[0].index)):
            return SegmentRole.WINDOW
    return None


def _sliding_axes(load: Load, stage: Stage) -> set[str]:
    """The reduction axes that a window slides along: that are part of an index and not all of it, nor a head's."""
    *outer, last = load.index
    names = [name for at in outer if not isinstance(at, Var) for name in free_vars(at)]
    names += [name for name in free_vars(last) if not _is_of_head(last, name, stage)]
    return set(names).intersection(axis.name for axis in stage.reduce)


def _is_of_head(at: Expr, name: str, stage: Stage) -> bool:
    """Whether the last index runs along an axis within one of several parts of a row that don't overlap."""
    form = linear(at)
    if form is None or form.coefficients.get(name) != 1:
        return False
    others = (coefficient for axis, coefficient in form.coefficients.items() if axis != name)
    return all(coefficient % stage.extents[name] == 0 for coefficient in others)


def _row_extent(task: Task) -> int | None:
    """The extent of the rows along which all reductions of a task run; None if one of them does anything else."""
    extents = set()
    for stage in _reduction_stages(task):
        [axis, *others] = stage.reduce
        inside = [load for load in loads(stage.body) if axis.name in free_vars(*load.index)]
        along = all(
            load.index[-1] == Var(axis.name) and axis.name not in free_vars(*load.index[:-1]) for load in inside
        )
        if others or not along or is_product(stage):
            return None
        extents.add(axis.extent)
    return extents.pop() if len(extents) == 1 else None


def _is_fusible(first: Task, second: Task, tensor: str, roles: tuple[SegmentRole | None, SegmentRole | None]) -> bool:
    """Whether what `second` reduces is `tensor`, and a block of its rows takes a block of whole rows of the tensor."""
    [main, *_] = _reduction_stages(second)
    epilogue_loads = [load for stage in second.stages if not stage.reduce for load in loads(stage.body)]
    tensor_loads = [load for load in (*loads(main.body), *epilogue_loads) if load.tensor == tensor]
    if roles[1] is not SegmentRole.PRODUCT:
        return bool(tensor_loads)
    reduced = {axis.name: axis.extent for axis in main.reduce}
    rows = _row_extent(first) if roles[0] is SegmentRole.ROWS else None
    tensor_loads = [load for load in loads(main.body) if load.tensor == tensor]
    ends = [reduced.get(load.index[-1].name) if isinstance(load.index[-1], Var) else None for load in tensor_loads]
    return bool(tensor_loads) and all(extent is not None and rows in (None, extent) for extent in ends)
