"""Products of matrices in one form: `MatMul`, its constant operand as it is multiplied, and `Add`."""

from __future__ import annotations

from tunewright.graph.ir import Graph, Node

from .edit import Edit, apply


def matrix_products(graph: Graph) -> Graph:
    """Gemm as MatMul and Add: weights transposed and scaled ahead of time.

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
    if alpha != 1.0:
        if a in edit.constants:
            a = edit.emit("Mul", a, edit.like(a, alpha))
        else:
            b = edit.emit("Mul", b, edit.like(b, alpha))
    if len(node.inputs) == 2 or beta == 0.0:
        edit.emit("MatMul", a, b, to=node.outputs[0])
        return True
    c = node.inputs[2]
    if beta != 1.0:
        c = edit.emit("Mul", c, edit.like(c, beta))
    edit.emit("Add", edit.emit("MatMul", a, b), c, to=node.outputs[0])
    return True
