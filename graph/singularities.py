"""Edges and poles: where a root, a logarithm or a quotient ends, or has no bound.

A rounding carries a result over the edge: the root of an exact 0 becomes that of -1e-8, which is NaN, and 1 / 0 a large
number. So what is read there must not be rounded in another way. Most edges are at 0, and most of what is divided by is
away from it: sums of exponentials in Softmax, of squares and a constant in norms. That is told by the signs of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

import numpy as np

from tunewright.codegen.dtype import DType

from .ir import Array, Graph, Node

FLOATS = frozenset(dtype.value for dtype in DType if dtype.is_float)

AT_ONE = frozenset({"Acos", "Acosh", "Asin", "Atanh"})
"""Ops with edges at 1, or at 1 and -1."""

AT_ZERO = frozenset({"Log", "LpNormalization", "Reciprocal", "ReduceLogSum", "Sqrt"})
"""Ops with an edge or a pole at 0. So have Div, where 0 / 0 is one too, and Pow."""

POSITIVE = frozenset({"Exp", "Sigmoid", "Softmax", "Softplus"})
"""Ops whose results are above 0, with an error that is relative to them."""

NOT_NEGATIVE = frozenset({"Abs", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu"})

_KEEPING = """
AveragePool Concat Div Expand Flatten Gather GatherElements GatherND GlobalAveragePool GlobalMaxPool Identity MaxPool
Mean Min Mul Pow Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Reshape Slice Split Sqrt Squeeze Tile
Transpose Unsqueeze Where
"""
KEEPING = frozenset(_KEEPING.split())
"""Ops whose results are as far from 0 as the nearest of their operands, about."""

LEAST = 2.0**-20
"""Of what is away from 0: from there on single precision has its rounding errors below it."""


class Sign(IntEnum):
    """What is known of the elements of a tensor: that they are not negative, or LEAST and more."""

    ANY = 0
    NOT_NEGATIVE = 1
    AWAY = 2


def read_at_edges(graph: Graph) -> Iterable[str]:
    """The tensors of floats that ops read at an edge or a pole, or perhaps there.

    Example: of `a = MatMul(x, w); b = Sub(1, a); y = Sqrt(b)` this is b; of `b = Exp(a); y = Sqrt(b)` none.
    """
    signs = _signs(graph)
    for node in graph.nodes:
        if not node.domain:
            yield from floats(graph, _at_an_edge(graph, node, signs))


def floats(graph: Graph, names: Iterable[str]) -> Iterable[str]:
    """Those of the tensors that hold floats."""
    return (name for name in names if name and graph.types[name].dtype in FLOATS)


def _at_an_edge(graph: Graph, node: Node, signs: Mapping[str, Sign]) -> tuple[str, ...]:
    if node.op in AT_ONE:
        return node.inputs[:1]
    if node.op in AT_ZERO and signs[node.inputs[0]] < Sign.AWAY:
        return node.inputs[:1]
    if node.op == "Div" and signs[node.inputs[1]] < Sign.AWAY:
        divisor = graph.constants.get(node.inputs[1])
        return node.inputs if divisor is None or not np.all(divisor) else ()  # the dividend too: 0 / 0 is NaN
    if node.op == "Pow" and signs[node.inputs[0]] < Sign.AWAY:
        exponent = graph.constants.get(node.inputs[1])
        is_whole = exponent is not None and np.all(np.abs(exponent) == np.rint(exponent))
        return () if is_whole else node.inputs
    return ()


def _signs(graph: Graph) -> dict[str, Sign]:
    """The sign of each tensor."""
    signs = dict.fromkeys(graph.types, Sign.ANY)
    signs.update((name, _of_constant(array)) for name, array in graph.constants.items())
    for node in graph.nodes:
        if not node.domain:
            operands = [signs[name] for name in floats(graph, node.inputs)]
            signs.update(dict.fromkeys(node.outputs, _sign(graph, node, operands)))
    return signs


def _of_constant(array: Array) -> Sign:
    if array.dtype.name not in FLOATS or not array.size:
        return Sign.ANY
    least = float(array.astype(np.float64).min())
    return Sign.AWAY if least >= LEAST else Sign.NOT_NEGATIVE if least >= 0 else Sign.ANY


def _sign(graph: Graph, node: Node, operands: list[Sign]) -> Sign:
    """That of the results of a node, whose operands that are floats have these."""
    if node.op in POSITIVE:
        return Sign.AWAY
    least, most = min(operands, default=Sign.ANY), max(operands, default=Sign.ANY)
    match node.op:
        case "Add" | "Sum":
            return most if least else Sign.ANY
        case "Max":
            return most
        case "Clip" if "min" in node.attrs:
            return max(most, _of_constant(np.asarray(node.attrs["min"], np.float64)))
    if node.op in NOT_NEGATIVE or _is_square(graph, node):
        return max(least, Sign.NOT_NEGATIVE)
    return least if node.op in KEEPING else Sign.ANY


def _is_square(graph: Graph, node: Node) -> bool:
    if node.op == "Pow":
        exponent = graph.constants.get(node.inputs[1])
        return exponent is not None and bool(np.all(exponent == np.asarray(2.0, exponent.dtype)))
    return node.op == "Mul" and node.inputs[0] == node.inputs[1]
