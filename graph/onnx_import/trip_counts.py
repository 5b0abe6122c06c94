"""Counters of loops, and how often a loop runs whose condition depends on them alone, as exporters write `for`.

A counter is a single number that is known before the loop, and grows by the same step in each iteration. That it does
is checked, not recognised: all its values are guessed from the first step, and what the body computes from them must be
the values of one iteration later. So it may be counted in any way, as by way of floats and with axes of one element.

Before: `(i, c, k) => (d, k2) { k2 = Add(k, 1) f = Cast<to = 1>(k2) d = Less(f, 5.0) }`, k is 0 at first.
After: 5 iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from tunewright.graph.ir import Array, Graph, Node

from ..evaluation.fallback import EvaluationError, evaluate

MAX_TRIPS = 1 << 20
"""Most iterations that are counted."""

MAX_WAY = 1 << 16
"""Most iterations in which counters are followed through a body."""

MAX_NUMBERS = 1 << 24
"""Most numbers that are computed for one loop at a time."""

MAX_FLAGS = 3
"""Most flags that are tried out in a condition."""

MAX_START = 1 << 40
"""Largest number that a counter begins with: it fits 64 bits all the way."""

_SHAPES_ONLY = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_ELEMENTWISE = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Sub", "Sum", "Where", "Xor",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Count:
    """The iterations of a loop, None where more than counters tell it, and its counters.

    `ways` has for inputs of the body, by their places, the values in each iteration that there may be.
    """

    trips: int | None
    ways: Mapping[int, Array]


def count_trips(body: Graph, initial: Sequence[Array | None], most: int | None) -> Count:
    """The count of a Loop whose condition holds at first.

    `initial` are the values of its states, as far as they are known; `most` is the trip count, if there is one.
    """
    known = body.constants.get(body.outputs[0].tensor)
    is_endless = known is not None and bool(known.all())
    end = MAX_TRIPS if most is None else min(most, MAX_TRIPS)
    states = {
        number: value.reshape(())
        for number, value in enumerate(initial)
        if value is not None and value.size == 1 and value.dtype.kind in "biu"
    }
    longest = _count(body, dict(states), most)[0] if most is not None and most <= MAX_WAY else {}
    if is_endless:
        return Count(most, longest)
    count = min(end, 64)
    while True:
        ways, condition = _count(body, dict(states), count)
        if condition is None:
            return Count(None, longest)
        if not condition.all():
            trips = int(condition.argmin()) + 1
            return Count(trips, {place: way[:trips] for place, way in ways.items()})
        if count == end:
            return Count(most, ways) if end == most else Count(None, {})
        count = min(count * 16, end)


def _count(body: Graph, states: dict[int, Array], count: int) -> tuple[dict[int, Array], Array | None]:
    """The counters in so many iterations, by places, and whether the body wants another one after each.

    None for the latter where more than counters tell it.
    """
    end, *ends = (port.tensor for port in body.outputs)
    number, holds, *inputs = (port.tensor for port in body.inputs)
    nodes = _counting_nodes(body, [end, *(ends[place] for place in states)])
    if len(nodes) * count > MAX_NUMBERS:
        return {}, None
    while True:
        around = {number: np.zeros(1, np.int64), holds: np.ones(1, bool)}
        first = _values(body, nodes, around | {inputs[place]: value[None] for place, value in states.items()})
        ways = {place: _way(value, first.get(ends[place]), count) for place, value in states.items()}
        guessed = {inputs[place]: way[:-1] for place, way in ways.items() if way is not None}
        values = _values(body, nodes, around | {number: np.arange(count)} | guessed)
        wrong = [place for place, way in ways.items() if way is None or not _is_same(values.get(ends[place]), way[1:])]
        if not wrong:
            counters = {0: np.arange(count)} | {2 + place: way[:-1] for place, way in ways.items() if way is not None}
            if end in values:
                return counters, np.broadcast_to(values[end], count)
            last = _last_possible(body, nodes, around | {number: np.arange(count)} | guessed, count)
            return {place: way[:last] for place, way in counters.items()}, None
        for place in wrong:
            del states[place]


def _last_possible(body: Graph, nodes: Sequence[Node], known: Mapping[str, Array], count: int) -> int:
    """The most iterations that there can be, whatever the flags are that the condition depends on beside counters."""
    end = body.outputs[0].tensor
    made = {name for node in nodes for name in node.outputs}
    read = {name for node in nodes for name in node.inputs if name} | {end}
    flags = [
        name
        for name in sorted(read - made - known.keys() - body.constants.keys())
        if body.types[name].dtype == "bool" and prod(body.types[name].shape or (1,)) == 1
    ]
    if len(flags) > MAX_FLAGS:
        return count
    may_go_on = np.zeros(count, bool)
    for choice in product((False, True), repeat=len(flags)):
        values = _values(
            body, nodes, {**known, **{name: np.array([flag]) for name, flag in zip(flags, choice, strict=True)}}
        )
        if end not in values:
            return count
        may_go_on |= values[end]
    return count if may_go_on.all() else int(may_go_on.argmin()) + 1


def _way(start: Array, step: Array | None, count: int) -> Array | None:
    """The values of a counter before each of so many iterations and behind the last, from the first two of them."""
    if step is None or step.dtype != start.dtype:
        return None
    if start.dtype == bool:
        return np.full(count + 1, start)
    if max(abs(int(start)), abs(int(step.item()))) > MAX_START:
        return None
    way = int(start) + (int(step.item()) - int(start)) * np.arange(count + 1)
    limits = np.iinfo(start.dtype.name)
    return way.astype(start.dtype) if limits.min <= way.min() and way.max() <= limits.max else None


def _is_same(values: Array | None, way: Array) -> bool:
    return values is not None and values.dtype == way.dtype and bool((values == way).all())


def _counting_nodes(body: Graph, ends: Sequence[str]) -> list[Node]:
    """The nodes that make some tensors and may be counting, in order."""
    needed, nodes = set(ends), []
    for node in reversed(body.nodes):
        if node.op in _SHAPES_ONLY | _ELEMENTWISE and not node.domain and not needed.isdisjoint(node.outputs):
            needed.update(node.inputs[:1] if node.op in _SHAPES_ONLY else node.inputs)
            nodes.append(node)
    return nodes[::-1]


def _values(body: Graph, nodes: Sequence[Node], known: Mapping[str, Array]) -> dict[str, Array]:
    """What tensors of one number are in each iteration, where that is told: vectors, of one element for constants."""
    values = dict(known)

    def of(name: str) -> Array | None:
        return values[name] if name in values else single(body.constants.get(name))

    for node in nodes:
        result = computed_way(node, body.types[node.outputs[0]].shape, of)
        if result is not None:
            values[node.outputs[0]] = result
    for port in body.outputs:
        array = single(body.constants.get(port.tensor))
        if array is not None:
            values[port.tensor] = array
    return values


def single(array: Array | None) -> Array | None:
    """One number as a vector; None for anything else."""
    return array.reshape(1) if array is not None and array.size == 1 else None


def computed_way(node: Node, shape: Sequence[int] | None, way: Callable[[str], Array | None]) -> Array | None:
    """What a node makes in each iteration, of operands that are single numbers; None where that is not told."""
    if node.domain or shape is None or prod(shape) != 1 or node.op not in _SHAPES_ONLY | _ELEMENTWISE:
        return None
    operands = [way(name) for name in (node.inputs[:1] if node.op in _SHAPES_ONLY else node.inputs) if name]
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands) or not known:
        return None
    if node.op in _SHAPES_ONLY:
        return known[0]
    try:
        return np.asarray(evaluate(node, known)[0])
    except EvaluationError:
        return None
