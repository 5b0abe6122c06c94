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

MAX_STEPS = 64
"""Most nodes in a row that are looked at."""


def is_rank_free(graph: GraphProto, name: str, rank: int, steps: int = MAX_STEPS) -> bool:
    """Whether no result of a graph tells how many axes, up to `rank`, a tensor of one element has."""
    if not steps or any(value.name == name for value in graph.output):
        return False
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if name not in read_names(node):
            continue
        if name not in node.input or node.domain or node.op_type not in _UNARY | _BROADCAST:
            return False
        others = [_least_rank(graph, makers, other, steps) for other in node.input if other != name]
        if max(others, default=0) < rank and not is_rank_free(graph, node.output[0], rank, steps - 1):
            return False
    return True


def _least_rank(graph: GraphProto, makers: Mapping[str, NodeProto], name: str, steps: int) -> int:
    """How many axes a tensor has at least, as far as constants tell."""
    node = makers.get(name)
    if node is None:
        return next((len(tensor.dims) for tensor in graph.initializer if tensor.name == name), 0)
    if node.domain or not steps:
        return 0
    if node.op_type == "Constant":
        lists = (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS)
        return max((len(a.t.dims) if a.type not in lists else 1 for a in node.attribute), default=0)
    if node.op_type in _UNARY | _BROADCAST:
        return max(_least_rank(graph, makers, other, steps - 1) for other in node.input)
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
