"""Products of matrices in one form: `MatMul`, its constant operand as it is multiplied, and `Add`."""

from __future__ import annotations

from typing import Any

from tunewright.graph.ir import Graph, Node

from .edit import Edit, apply
from .joining import keeps_range, product


def matrix_products(graph: Graph) -> Graph:
    """Gemm as MatMul, Mul and Add: weights transposed and scaled ahead of time.

    Before: `y = Gemm(x, w, b) alpha=0.5 beta=1 transB=1`. After: `y = Add(MatMul(x, w'), b)` with `w' = 0.5 * w.T`.
    """
    return apply(graph, _rule)


def _rule(edit: Edit, node: Node) -> bool:
    if node.op != "Gemm" or node.domain or edit.shape(node.outputs[0]) is None:
        return False
    a, b = node.inputs[:2]
    if node.attrs["transA"]:
        a = edit.emit("Transpose", a, perm=(1, 0))
    if node.attrs["transB"]:
        b = edit.emit("Transpose", b, perm=(1, 0))
    alpha, beta = node.attrs["alpha"], node.attrs["beta"]
    is_in_weights = alpha == 1.0
    if alpha != 1.0 and edit.may_round(node.outputs[0]):
        for place, name in ((1, b), (0, a)):
            scaled = _scaled(edit, name, alpha)
            if scaled is not None:
                a, b = (scaled, b) if place == 0 else (a, scaled)
                is_in_weights = True
                break
    has_bias, to = len(node.inputs) > 2 and beta != 0.0, node.outputs[0]
    result = edit.emit("MatMul", a, b, to="" if has_bias or not is_in_weights else to)
    if not is_in_weights:
        result = edit.emit("Mul", result, edit.like(result, alpha), to="" if has_bias else to)
    if has_bias:
        c = node.inputs[2]
        if beta != 1.0:
            c = edit.emit("Mul", c, edit.like(c, beta))
        edit.emit("Add", result, c, to=to)
    return True


def _scaled(edit: Edit, name: str, factor: float) -> str | None:
    """A known matrix times a number; None if it is not known, or would lose digits."""
    array: Any = edit.array(name)
    if array is None:
        return None
    joined = product(array, factor)
    return edit.constant(joined) if keeps_range(joined, array, factor) else None
