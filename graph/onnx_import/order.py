"""The order in which the nodes of a graph can be computed, and what they need from around them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from onnx import GraphProto, NodeProto

from .check import bodies
from .errors import ModelError, place_of, shown


def ordered(nodes: Iterable[NodeProto], known: Mapping[str, str]) -> Iterator[NodeProto]:
    """The nodes in an order that computes them, as close to the given one as can be.

    Raises ModelError for a tensor that nothing computes, or nodes that depend on each other.
    """
    items = list(nodes)
    makers = {name: k for k, node in enumerate(items) for name in node.output if name}
    needs = [{name for name in reads(node) if name and (name in makers or name not in known)} for node in items]
    readers: dict[str, list[int]] = {}
    for k, names in enumerate(needs):
        for name in names:
            readers.setdefault(name, []).append(k)
    waiting = [len(names) for names in needs]
    ready = [k for k, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    done = 0
    while ready:
        k = heapq.heappop(ready)
        done += 1
        yield items[k]
        for name in set(items[k].output):
            for reader in readers.get(name, ()):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, reader)
    if done < len(items):
        _explain(items, needs, makers, waiting, known)


def _explain(
    items: Sequence[NodeProto],
    needs: Sequence[set[str]],
    makers: Mapping[str, int],
    waiting: list[int],
    known: Collection[str],
) -> None:
    for k, count in enumerate(waiting):
        missing = sorted(name for name in needs[k] if name not in makers)
        if count and missing:
            raise ModelError(f"{place_of(items[k])} reads {shown(missing[0])}, which nothing computes")
        twice = sorted(name for name in needs[k] if name in known)
        if count and twice:
            made = place_of(items[makers[twice[0]]])
            raise ModelError(f"{shown(twice[0])} is defined twice: it is an input or a weight, and {made} computes it")
    k = next(k for k, count in enumerate(waiting) if count)
    raise ModelError(f"nodes depend on each other in a circle, among them {place_of(items[k])}")


def reads(node: NodeProto) -> set[str]:
    """The names that a node needs, those that only its bodies need included."""
    return set(node.input).union(*(free_names(body) for body in bodies(node)))


def free_names(graph: GraphProto) -> set[str]:
    """The names that a graph takes from around it."""
    inside = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    inside.update(name for node in graph.node for name in node.output)
    wanted = {value.name for value in graph.output}.union(*(reads(node) for node in graph.node))
    return wanted - inside
