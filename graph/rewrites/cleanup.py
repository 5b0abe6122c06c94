"""Rewrites that need to know nothing of what ops mean: the unused, the repeated, the known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tunewright.graph.draft import live
from tunewright.graph.ir import Graph, Node

from .edit import Edit, apply

MAX_MERGED_BYTES = 1 << 16
"""Largest constants that are compared with each other."""

COMMUTATIVE_OPS = frozenset({"Add", "And", "Equal", "Max", "Min", "Mul", "Or", "Xor"})

UNREPEATABLE_OPS = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Ops whose result differs from call to call."""


def dead_code(graph: Graph) -> Graph:
    """Without what no output needs.

    Before: `y = Relu(x); z = Neg(x); return y`. After: `y = Relu(x); return y`.
    """
    pruned = live(graph)
    same = len(pruned.nodes) == len(graph.nodes) and len(pruned.constants) == len(graph.constants)
    return graph if same else pruned


def constant_folding(graph: Graph) -> Graph:
    """With the value of every node that depends on constants alone (adding to a `Draft` folds; see `folding`).

    Before: `a = Transpose(w) perm=(1, 0); y = MatMul(x, a)`. After: `y = MatMul(x, a)` with a constant `a`.
    """
    known = graph.constants.keys()
    if not any(all(name in known for name in node.inputs if name) for node in graph.nodes):
        return graph
    edit = Edit(graph)
    for node in graph.nodes:
        edit.add(node)
    folded = edit.finish(graph.inputs, graph.outputs)
    return graph if len(folded.nodes) == len(graph.nodes) else folded


def common_subexpressions(graph: Graph) -> Graph:
    """With one node for nodes that compute the same, and one for small constants that are the same.

    Before: `a = Sub(x, m); b = Sub(x, m); y = Mul(a, b)`. After: `a = Sub(x, m); y = Mul(a, a)`.
    """
    seen: dict[Any, tuple[str, ...]] = {}
    constants: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, array in graph.constants.items():
        if array.dtype.kind != "O" and array.nbytes <= MAX_MERGED_BYTES:
            same[name] = constants.setdefault((array.dtype.str, array.shape, array.tobytes()), name)

    def rule(edit: Edit, node: Node) -> bool:
        if node.op in UNREPEATABLE_OPS:
            return False
        inputs = tuple(same.get(name, name) for name in node.inputs)
        operands = tuple(sorted(inputs)) if node.op in COMMUTATIVE_OPS else inputs
        key = (node.op, node.domain, node.version, operands, _frozen(node), tuple(map(bool, node.outputs)))
        first = seen.setdefault(key, node.outputs)
        if first is not node.outputs:
            for old, new in zip(node.outputs, first, strict=True):
                if old:
                    edit.alias(old, new)
            return True
        if inputs == node.inputs:
            return False
        edit.add(replace(node, inputs=inputs))
        return True

    return apply(graph, rule)


def _frozen(node: Node) -> tuple[Any, ...]:
    return tuple(sorted((name, _key(value)) for name, value in node.attrs.items()))


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return ("float", value.hex())  # -0 is another value than 0
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes() if value.dtype.kind != "O" else tuple(value.flat))
    return (type(value).__name__, value)
