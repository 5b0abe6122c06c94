"""Products with copies of a tensor, as keys and values that several heads share are written. No bit changes."""

from __future__ import annotations

from tunewright.graph.ir import Node

from .edit import Edit, Result, each


@each("MatMul")
def repeated_operands(edit: Edit, node: Node) -> Result:
    """Read a tensor where its copies are multiplied with.

    Before: `e = Expand(k) shape=(2, 7, 9, 8); r = Reshape(e) shape=(14, 9, 8); y = MatMul(q, r)`, q `[14, 5, 9]`.
    After: `p = Reshape(q) shape=(2, 7, 5, 9); m = MatMul(p, k); y = Reshape(m) shape=(14, 5, 8)`, k `[2, 1, 9, 8]`.
    """
    left, right = node.inputs
    left_shape, right_shape = edit.shape(left) or (), edit.shape(right) or ()
    if len(right_shape) < 3 or left_shape[:-2] != right_shape[:-2]:
        return None
    source = _source(edit, right)
    if source is None:
        return None
    *batch, heads = left_shape[:-2]
    sources = (edit.shape(source) or ())[-4]
    parts = edit.emit("Reshape", left, shape=(*batch, sources, heads // sources, *left_shape[-2:]))
    return edit.emit("Reshape", edit.emit("MatMul", parts, source), shape=edit.shape(node.outputs[0]))


def _source(edit: Edit, name: str) -> str | None:
    """What a tensor `[.., K * N, R, C]` has N copies of along its third last axis, as `[.., K, 1, R, C]`."""
    node = edit.producer(name, "Reshape", "Transpose", "Mul", "Div")
    if node is None:
        return None
    if node.op == "Reshape":
        return _expanded(edit, node)
    rank = edit.rank(name)
    if node.op == "Transpose":
        if tuple(node.attrs["perm"]) != (*range(rank - 2), rank - 1, rank - 2):
            return None
        source = _source(edit, node.inputs[0])
        return source and edit.emit("Transpose", source, perm=(*range(rank - 1), rank, rank - 1))
    factor = edit.array(node.inputs[1])
    if factor is None or factor.size != 1 or factor.ndim > rank:
        return None
    source = _source(edit, node.inputs[0])
    return source and edit.emit(node.op, source, node.inputs[1])


def _expanded(edit: Edit, node: Node) -> str | None:
    """What a Reshape of an Expand has copies of."""
    expand = edit.producer(node.inputs[0], "Expand")
    if expand is None or len(expand.inputs) != 1:
        return None
    before, after = edit.shape(expand.inputs[0]) or (), edit.shape(expand.outputs[0]) or ()
    if len(before) != len(after) or len(after) < 4 or (*after[:-3], 1, *after[-2:]) != before:
        return None
    joined = (*after[:-4], after[-4] * after[-3], *after[-2:])
    return expand.inputs[0] if edit.shape(node.outputs[0]) == joined and 0 not in joined else None
