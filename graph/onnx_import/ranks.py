"""Tensors of one element whose axes nobody sees: a branch may make a scalar where the other makes a vector.

Before: `b = If(c) <{ p = true }, { q = [false] }>; y = And(b, [true])`. After: the first branch makes `[true]` too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, numpy_helper

from .protobuf import defined_names, read_names

_UNARY = frozenset({"Abs", "Cast", "Ceil", "Floor", "Identity", "Neg", "Not", "Round", "Sign", "Sqrt"})
_BROADCAST = frozenset({
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Or",
    "Pow", "Sub", "Where", "Xor",
})  # fmt: skip

MAX_NODES = 256
"""Most tensors that are followed."""

MAX_DEPTH = 64
"""Most nodes in a row that are looked at for how many axes a tensor has."""


def is_rank_free(graph: GraphProto, name: str, rank: int) -> bool:
    """Whether no result of a graph tells how many axes, up to `rank`, a tensor of one element has."""
    return _Ranks(graph).is_free(name, rank)


class _Ranks:
    """How many axes the tensors of a graph have, as far as constants tell."""

    def __init__(self, graph: GraphProto) -> None:
        self._outputs = {value.name for value in graph.output}
        self._least = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
        self._makers = {output: node for node in graph.node for output in node.output}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in read_names(node):
                self._readers.setdefault(name, []).append(node)

    def is_free(self, name: str, rank: int) -> bool:
        waiting, seen = [name], {name}
        while waiting:
            name = waiting.pop()
            if name in self._outputs or len(seen) > MAX_NODES:
                return False
            for node in self._readers.get(name, ()):
                if name not in node.input or node.domain or node.op_type not in _UNARY | _BROADCAST:
                    return False
                others = [self._least_rank(other, MAX_DEPTH) for other in node.input if other != name]
                if max(others, default=0) < rank and node.output[0] not in seen:
                    seen.add(node.output[0])
                    waiting.append(node.output[0])
        return True

    def _least_rank(self, name: str, depth: int) -> int:
        """How many axes a tensor has at least; nothing is known of one that takes more than `depth` nodes in a row."""
        node = self._makers.get(name)
        if name not in self._least and node is not None and depth:
            self._least[name] = self._made_rank(node, depth)
        return self._least.get(name, 0)

    def _made_rank(self, node: NodeProto, depth: int) -> int:
        if node.domain:
            return 0
        if node.op_type == "Constant":
            lists = (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS)
            return max((len(a.t.dims) if a.type not in lists else 1 for a in node.attribute), default=0)
        if node.op_type in _UNARY | _BROADCAST:
            return max((self._least_rank(name, depth - 1) for name in node.input), default=0)
        return 0


def with_ranks(node: NodeProto, ranks: Mapping[int, int]) -> NodeProto:
    """An If whose branches leave outputs of one element with so many axes, by the outputs' places."""
    copy: NodeProto = NodeProto.FromString(node.SerializeToString())
    for attribute in copy.attribute:
        branch = attribute.g
        taken = defined_names(branch) | read_names(node)
        names = (name for name in (f"r{number}" for number in range(len(taken) + 2 * len(ranks))) if name not in taken)
        for place, rank in ranks.items():
            shape, result = next(names), next(names)
            branch.initializer.append(numpy_helper.from_array(np.ones(rank, np.int64), shape))
            branch.node.append(NodeProto(op_type="Reshape", input=[branch.output[place].name, shape], output=[result]))
            branch.output[place].name = result
            branch.output[place].type.tensor_type.ClearField("shape")
    return copy
