"""Edges and poles: where a root, a logarithm or a quotient ends, or has no bound.

A rounding carries a result over the edge: the root of an exact 0 becomes that of -1e-8, which is NaN, and 1 / 0 a large
number. So what is read there must not be rounded in another way.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tunewright.codegen.dtype import DType

from . import sums
from .ir import Array, Graph, Node

FLOATS = frozenset(dtype.value for dtype in DType if dtype.is_float)

EDGED = frozenset({"Acos", "Acosh", "Asin", "Atanh", "Log", "LpNormalization", "Reciprocal", "ReduceLogSum", "Sqrt"})
"""Ops of one operand that has an edge or a pole; Div has one in its divisor, Pow in its base."""

POSITIVE = frozenset({"Exp", "Sigmoid", "Softmax", "Softplus"})
"""Ops whose results are above 0, and as far from it as before if their operands are rounded in another way."""

SQUARES = frozenset({"ReduceL2", "ReduceSumSquare"})


def before_edges(graph: Graph) -> set[str]:
    """The tensors of floats on whose last bits an op with an edge depends, as far as sums that are rounded anyhow.

    The way back also ends where no edge is near: at what is positive, as the sum of exponentials that Softmax divides
    by, and at squares to which a constant is added, as in norms.

    Example: of `a = MatMul(x, w); b = Mul(a, c); d = Sub(1, b); y = Sqrt(d)` these are a, b, d and the constant.
    """
    found: set[str] = set()  # at the edge
    moved: set[str] = set()  # away from it, if squares are what this is made of
    for node in reversed(graph.nodes):
        found.update(floats(graph, _at_the_edge(graph, node)))
        if node.op in POSITIVE or sums.is_rounded(graph, node):
            continue
        if not found.isdisjoint(node.outputs):
            (moved if _adds_a_constant(graph, node) else found).update(floats(graph, node.inputs))
        elif not moved.isdisjoint(node.outputs) and not _is_square(graph, node):
            moved.update(floats(graph, node.inputs))
    return found | moved


def floats(graph: Graph, names: Iterable[str]) -> Iterable[str]:
    """Those of the tensors that hold floats."""
    return (name for name in names if name and graph.types[name].dtype in FLOATS)


def _at_the_edge(graph: Graph, node: Node) -> tuple[str, ...]:
    """What the node reads that has an edge or a pole."""
    if node.domain:
        return ()
    if node.op == "Div":
        return node.inputs[1:]
    if node.op == "Pow":
        base, exponent = node.inputs
        known = graph.constants.get(exponent)
        if known is not None:
            return () if np.all(np.abs(known) == np.rint(known)) else (base,)
        return () if _is_positive(graph.constants.get(base)) else node.inputs
    return node.inputs[:1] if node.op in EDGED else ()


def _adds_a_constant(graph: Graph, node: Node) -> bool:
    """Whether the node adds a positive constant."""
    return node.op == "Add" and not node.domain and any(_is_positive(graph.constants.get(name)) for name in node.inputs)


def _is_positive(array: Array | None) -> bool:
    return array is not None and bool(np.all(np.sign(array) == 1))


def _is_square(graph: Graph, node: Node) -> bool:
    """Whether the node makes squares, or sums of squares."""
    if node.op == "Pow":
        exponent = graph.constants.get(node.inputs[1])
        return exponent is not None and bool(np.all(exponent == np.asarray(2.0, exponent.dtype)))
    return node.op in SQUARES or (node.op == "Mul" and node.inputs[0] == node.inputs[1])
