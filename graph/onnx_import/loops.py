"""Loops that carry on only what changes and is needed: exporters carry weights, lengths, and what nobody reads.

What stays is read from around the loop, where its value may be known, and the rest goes with all that computes it.

Before: `y, u = Loop(n, "", x, w) <(i, c, s, k) => (c, t, k) { t = MatMul(s, k) }>`, nobody reads `u`.
After: `y = Loop(n, "", x) <(i, c, s) => (c, t) { t = MatMul(s, w) }>`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, numpy_helper

from .protobuf import bodies, defined_names, own_names, read_names, standard

MAX_COPIES = 8
"""Most copies of a value in a row that are seen through."""


def lean_loops(graph: GraphProto) -> None:
    """Take out of the loops of a graph, and of those inside of them, what they need not carry on or stack up."""
    for node in graph.node:
        for body in bodies(node):
            lean_loops(body)
    if not any(map(_is_loop, graph.node)):
        return
    readers = Counter(name for node in graph.node for name in read_names(node))
    readers.update(value.name for value in graph.output)
    copies: list[NodeProto] = []
    for node in reversed(graph.node):  # what a loop does not read any more may be all that one before it is for
        loop = _Loop.of(node) if _is_loop(node) else None
        if loop is None:
            continue
        read = read_names(node)
        results = loop.lean(readers)
        readers.subtract(read - read_names(node))
        readers.update(copy.input[0] for copy in results)
        copies += results
    graph.node.extend(copies)


def _is_loop(node: NodeProto) -> bool:
    return node.op_type == "Loop" and not standard(node.domain)


@dataclass(frozen=True, slots=True)
class _Carried:
    """A value that a loop carries on: its names before the loop, in the body, at the end of the body, and behind."""

    initial: str
    before: str
    after: str
    result: str


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop whose body has as many inputs and outputs as the node says."""

    node: NodeProto
    body: GraphProto
    carried: tuple[_Carried, ...]

    @staticmethod
    def of(node: NodeProto) -> _Loop | None:
        """The loop of a node; None where it has not the form, which other parts of the import tell people."""
        graphs = [attribute.g for attribute in node.attribute if attribute.name == "body"]
        states = len(node.input) - 2
        if len(graphs) != 1 or states < 0:
            return None
        (body,) = graphs
        if len(body.input) != states + 2 or len(body.output) != len(node.output) + 1 or len(node.output) < states:
            return None
        ends = [value.name for value in body.output[1:]]
        names = zip(node.input[2:], body.input[2:], ends, node.output, strict=False)
        return _Loop(node, body, tuple(_Carried(a, value.name, b, c) for a, value, b, c in names))

    def lean(self, readers: Mapping[str, int]) -> list[NodeProto]:
        """Take out what is not needed. Returns nodes that copy what stays to the names that it had behind the loop."""
        is_read = [bool(name) and readers.get(name, 0) > 0 for name in self.node.output]
        kept = self._constant_places()
        gone = kept | self._dead_places(is_read)
        if len(gone) == len(is_read):  # a Loop has an output
            gone.remove(max(gone))
        if not gone or not any(is_read):
            return []
        still = [self.carried[place] for place in sorted(kept & gone)]
        copies = [
            NodeProto(op_type="Identity", input=[item.initial], output=[item.result])
            for item in still
            if item.result and readers.get(item.result, 0) > 0
        ]
        states = {place for place in gone if place < len(self.carried)}
        _remove(self.node.input, {place + 2 for place in states})
        _remove(self.body.input, {place + 2 for place in states})
        _remove(self.body.output, {place + 1 for place in gone})
        _remove(self.node.output, gone)
        needed = self._needed([value.name for value in self.body.output], {})
        nodes = self.body.node
        _remove(nodes, {place for place, node in enumerate(nodes) if needed.isdisjoint(node.output)})
        _rename_reads(self.body, {item.before: item.initial for item in still})
        return copies

    def _constant_places(self) -> set[int]:
        """The places of tensors that stay what they were, and that the body can read by the names outside."""
        copies = {node.output[0]: node.input[0] for node in self.body.node if node.op_type == "Identity"}
        ends = Counter(value.name for value in self.body.output)
        defined = defined_names(self.body)
        return {place for place, item in enumerate(self.carried) if self._is_kept(place, item, copies, ends, defined)}

    def _is_kept(
        self, place: int, item: _Carried, copies: Mapping[str, str], ends: Mapping[str, int], defined: Collection[str]
    ) -> bool:
        end, steps = item.after, 0
        while end in copies and steps < MAX_COPIES:
            end, steps = copies[end], steps + 1
        is_tensor = self.body.input[place + 2].type.HasField("tensor_type")
        is_other = item.initial != item.before and item.initial in defined
        is_output = ends.get(item.before, 0) > (item.after == item.before)
        return bool(item.initial) and end == item.before and is_tensor and not is_other and not is_output

    def _dead_places(self, is_read: Sequence[bool]) -> set[int]:
        """The places of outputs that no condition and nothing behind the loop depends on."""
        condition, *ends = (value.name for value in self.body.output)
        read = [name for name, flag in zip(ends, is_read, strict=True) if flag]
        needed = self._needed([condition, *read], {item.before: item.after for item in self.carried})
        return {
            place
            for place, flag in enumerate(is_read)
            if not flag and not (place < len(self.carried) and self.carried[place].before in needed)
        }

    def _needed(self, ends: Iterable[str], carried: Mapping[str, str]) -> set[str]:
        """What tensors of the body are computed from, through iterations where `carried` tells what becomes what."""
        makers = {name: node for node in self.body.node for name in node.output if name}
        needed, waiting = set[str](), list(ends)
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            if name in makers:
                waiting += read_names(makers[name])
            elif name in carried:
                waiting.append(carried[name])
        return needed


def _remove(items: Any, places: Collection[int]) -> None:
    for place in sorted(places, reverse=True):
        del items[place]


def _rename_reads(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Read other tensors of what is around a graph, in its bodies too, but where these define the name themselves."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for body in bodies(node):
            own = set(own_names(body))
            _rename_reads(body, {name: new for name, new in names.items() if name not in own})
            for value in body.output:
                if value.name not in own:
                    value.name = names.get(value.name, value.name)


def loop_after(node: NodeProto, first: int) -> NodeProto:
    """A Loop that goes on after so many iterations; its inputs and outputs have names of their own.

    Before: `y = Loop(n, c, x) <(i, d, s) => (d, t) { t = Add(s, i) }>`.
    After: `r0 = Loop(r1, r2, r3) <(r4, d, s) => (d, t) { i = Add(r4, 1) t = Add(s, i) }>`.
    """
    copy: NodeProto = NodeProto.FromString(node.SerializeToString())
    (body,) = bodies(copy)
    taken = defined_names(body) | read_names(node)
    names = (name for name in (f"r{number}" for number in count()) if name not in taken)
    copy.output[:] = [next(names) for _ in node.output]
    copy.input[:] = [next(names) for _ in node.input]
    number, before, step = body.input[0].name, next(names), next(names)
    body.input[0].name = before
    body.initializer.append(numpy_helper.from_array(np.asarray(first, np.int64), step))
    nodes = [NodeProto(op_type="Add", input=[before, step], output=[number]), *body.node]
    del body.node[:]
    body.node.extend(nodes)
    return copy
