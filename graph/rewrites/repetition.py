"""Products with copies of a tensor, as keys and values that several heads share are written. No bit changes.

Everywhere: K groups of N heads each, R rows, C columns.
"""

from __future__ import annotations

from math import prod

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


SCORE_OPS = ("Add", "Cast", "CausalMask", "Div", "Max", "Min", "Mul", "Softmax", "Sub", "Tanh", "Where")
"""What becomes of scores between the product that they are and the next one."""


@each(*SCORE_OPS)
def grouped_scores(edit: Edit, node: Node) -> Result:
    """Compute with scores by groups of heads, as a product made them: so the next product takes them as they are.

    Before: `m = MatMul(q, k); s = Reshape(m) shape=(14, 5, 8); y = Add(s, bias)`, m `[2, 7, 5, 8]`.
    After: `t = Add(m, bias); y = Reshape(t) shape=(14, 5, 8)`.
    """
    rank = edit.rank(node.outputs[0])
    operands = [_grouped(edit, name) for name in node.inputs]
    sources = [source for source in operands if source is not None]
    if not sources or (node.op == "Softmax" and node.attrs["axis"] != rank - 1):
        return None
    shape = edit.shape(sources[0]) or ()
    is_alike = all((edit.shape(source) or ())[-4:-2] == shape[-4:-2] for source in sources)
    if not is_alike or edit.shape(node.outputs[0]) != _by_heads(shape):
        return None
    pairs = zip(operands, node.inputs, strict=True)
    inputs = [source or _broadcast_to_groups(edit, name, shape) for source, name in pairs]
    if node.op == "Cast":
        scores = edit.cast(inputs[0], edit.types[node.outputs[0]].dtype)
    else:
        attrs = {**node.attrs, "axis": rank} if node.op == "Softmax" else node.attrs
        scores = edit.emit(node.op, *inputs, **attrs)
    return edit.emit("Reshape", scores, shape=_by_heads(shape))


def _by_heads(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[.., K * N, R, C]` of `[.., K, N, R, C]`."""
    return (*shape[:-4], shape[-4] * shape[-3], *shape[-2:])


def _grouped(edit: Edit, name: str) -> str | None:
    """Scores by groups `[.., K, N, R, C]` that a tensor is a view of by heads, `[.., K * N, R, C]`."""
    view = edit.producer(name, "Reshape")
    shape = edit.shape(view.inputs[0]) if view is not None and len(view.inputs) == 1 else None
    if view is None or shape is None or len(shape) < 4 or edit.shape(name) != _by_heads(shape):
        return None
    return view.inputs[0] if shape[-3] > 1 and _is_of_product(edit, view.inputs[0]) else None


def _is_of_product(edit: Edit, name: str) -> bool:
    """Whether a tensor is a product, or made of one of its shape."""
    shape = edit.shape(name)
    while (node := edit.producer(name, "MatMul", *SCORE_OPS)) is not None and node.op != "MatMul":
        operands = [operand for operand in node.inputs if edit.shape(operand) == shape and operand in edit.producers]
        if not operands:
            return False
        name = operands[0]
    return node is not None


def _broadcast_to_groups(edit: Edit, name: str, shape: tuple[int, ...]) -> str:
    """An operand that broadcasts to scores by heads, for scores by groups."""
    own = edit.shape(name) or ()
    if len(own) < 3 or prod(own) == 1:
        return name if len(own) < 3 else edit.emit("Reshape", name, shape=())
    groups = shape[-4:-2] if own[-3] > 1 else (1, 1)
    return edit.emit("Reshape", name, shape=(*own[:-3], *groups, *own[-2:]))
