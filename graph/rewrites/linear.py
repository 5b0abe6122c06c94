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
    if alpha != 1.0 and edit.may_round(node.outputs[0]):
        a, b, alpha = _scaled_operands(edit, a, b, alpha)
    steps = [("MatMul", b)]
    if alpha != 1.0:
        steps.append(("Mul", edit.like(a, alpha)))
    if len(node.inputs) > 2 and beta != 0.0:
        c = node.inputs[2]
        steps.append(("Add", c if beta == 1.0 else edit.emit("Mul", c, edit.like(c, beta))))
    *before, (last, operand) = steps
    result = a
    for op, factor in before:
        result = edit.emit(op, result, factor)
    edit.emit(last, result, operand, to=node.outputs[0])
    return True


def _scaled_operands(edit: Edit, a: str, b: str, alpha: float) -> tuple[str, str, float]:
    """The operands of a product, one that is known times `alpha`, and what is left of `alpha` to multiply by."""
    if (scaled := _scaled(edit, b, alpha)) is not None:
        return a, scaled, 1.0
    if (scaled := _scaled(edit, a, alpha)) is not None:
        return scaled, b, 1.0
    return a, b, alpha


def _scaled(edit: Edit, name: str, factor: float) -> str | None:
    """A known matrix times a number; None if it is not known, or would lose digits."""
    array: Any = edit.array(name)
    if array is None:
        return None
    joined = product(array, factor)
    return edit.constant(joined) if keeps_range(joined, array, factor) else None
