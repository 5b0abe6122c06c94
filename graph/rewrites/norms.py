"""Softmax and normalisation of rows out of the pieces that exporters write them in.

Only where no step function follows (`graph.decisive`): the whole rounds in another way than the pieces, as
`docs/numerics.md` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tunewright.graph.ir import Array, Graph, Node

from .edit import Edit, apply
from .joining import keeps_range, product


def softmaxes(graph: Graph) -> Graph:
    """Softmax from exponentials over their sum.

    Before: `m = ReduceMax(x) axes=(1,); a = Sub(x, m); e = Exp(a); s = ReduceSum(e) axes=(1,); y = Div(e, s)`.
    After: `y = Softmax(x) axis=1`. Not without the maximum: then large operands overflow, as the model says.
    """
    return apply(graph, _softmax)


def _softmax(edit: Edit, node: Node) -> bool:
    quotient = _quotient(edit, node)
    if quotient is None or not edit.may_round(node.outputs[0]):
        return False
    top, bottom = quotient
    power, total = edit.made_by(top, "Exp"), edit.made_by(bottom, "ReduceSum")
    if power is None or total is None or total.inputs != (top,) or not total.attrs["keepdims"]:
        return False
    axes = total.attrs["axes"]
    if len(axes) != 1:
        return False
    shifted = edit.made_by(power.inputs[0], "Sub")
    highest = edit.made_by(shifted.inputs[1], "ReduceMax") if shifted else None
    if not shifted or not highest or highest.inputs != shifted.inputs[:1] or highest.attrs != total.attrs:
        return False
    edit.emit("Softmax", shifted.inputs[0], to=node.outputs[0], axis=axes[0])
    return True


def _quotient(edit: Edit, node: Node) -> tuple[str, str] | None:
    """a and b of a / b or a * (1 / b)."""
    if node.domain:
        return None
    if node.op == "Div":
        return node.inputs[0], node.inputs[1]
    if node.op == "Mul":
        for a, b in (node.inputs, node.inputs[::-1]):
            inverse = edit.made_by(b, "Reciprocal")
            if inverse is not None:
                return a, inverse.inputs[0]
    return None


def layer_norms(graph: Graph) -> Graph:
    """LayerNormalization and RMSNormalization from means of squares, and their scale and bias into them.

    Before: `m = ReduceMean(x) axes=(2,); d = Sub(x, m); v = ReduceMean(d * d) axes=(2,); y = Div(d, Sqrt(v + e))`.
    After: `y = LayerNormalization(x, 1) axis=2 epsilon=e`. Without the mean: RMSNormalization.
    Before: `a = LayerNormalization(x, s, b); y = Add(Mul(a, t), c)`.
    After: `y = LayerNormalization(x, s * t, b * t + c)`.
    """
    return apply(graph, _norm)


def _norm(edit: Edit, node: Node) -> bool:
    if node.domain or node.op not in ("Add", "Div", "Mul") or not edit.may_round(node.outputs[0]):
        return False
    return _affine(edit, node) or _whitened(edit, node) or _folded_moments(edit, node)


def _whitened(edit: Edit, node: Node) -> bool:
    """d / sqrt(mean(d * d) + epsilon)."""
    pair = _over_root(edit, node)
    moment = _moment(edit, pair[1]) if pair else None
    if pair is None or moment is None or edit.types[pair[0]] != edit.types[node.outputs[0]]:
        return False
    centred, axis, epsilon = moment
    if pair[0] != centred:
        return False
    x = _uncentred(edit, centred, axis)
    _emit_norm(edit, node, "RMSNormalization" if x is None else "LayerNormalization", x or centred, axis, epsilon)
    return True


def _over_root(edit: Edit, node: Node) -> tuple[str, str] | None:
    """a and b of a / sqrt(b), a * (1 / sqrt(b)) and a * b ** -0.5."""
    quotient = _quotient(edit, node)
    if quotient is not None:
        root = _rooted(edit, quotient[1])
        return None if root is None else (quotient[0], root)
    if node.op != "Mul":
        return None
    for a, b in (node.inputs, node.inputs[::-1]):
        root = _rooted(edit, b, -0.5)
        if root is not None:
            return a, root
    return None


def _rooted(edit: Edit, name: str, exponent: float = 0.5) -> str | None:
    """x of x to the power 0.5, as sqrt(x) too, or to another power."""
    node = edit.made_by(name, "Sqrt", "Pow")
    if node is None:
        return None
    if node.op == "Sqrt":
        return node.inputs[0] if exponent == 0.5 else None
    return node.inputs[0] if edit.scalar(node.inputs[1]) == exponent else None


def _inverse_root(edit: Edit, name: str) -> str | None:
    """x of 1 / sqrt(x)."""
    inverse = edit.made_by(name, "Reciprocal")
    return _rooted(edit, inverse.inputs[0]) if inverse else _rooted(edit, name, -0.5)


def _emit_norm(edit: Edit, node: Node, op: str, x: str, axis: int, epsilon: float) -> None:
    shape = (edit.shape(x) or ())[axis:]
    ones = edit.constant(np.ones(shape, edit.types[x].dtype))
    edit.emit(op, x, ones, to=node.outputs[0], axis=axis, epsilon=epsilon)


def _moment(edit: Edit, name: str) -> tuple[str, int, float] | None:
    """d, the first axis and epsilon of mean(d * d) + epsilon over all axes from the first on."""
    total = edit.made_by(name, "Add")
    epsilon = edit.scalar(total.inputs[1]) if total else None
    mean = edit.made_by(total.inputs[0], "ReduceMean") if total else None
    square = edit.made_by(mean.inputs[0], "Mul") if mean else None
    if mean is None or square is None or epsilon is None or square.inputs[0] != square.inputs[1]:
        return None
    axis = _trailing(edit, mean)
    return None if axis is None else (square.inputs[0], axis, epsilon)


def _trailing(edit: Edit, mean: Node) -> int | None:
    """The first axis of a mean that keeps its dimensions and runs over all axes from there on."""
    rank, axes = edit.rank(mean.inputs[0]), mean.attrs.get("axes")  # else they are computed
    if not mean.attrs["keepdims"] or not axes or tuple(axes) != tuple(range(axes[0], rank)):
        return None
    return int(axes[0])


def _uncentred(edit: Edit, name: str, axis: int) -> str | None:
    """x of x - mean(x)."""
    centred = edit.made_by(name, "Sub")
    mean = edit.made_by(centred.inputs[1], "ReduceMean") if centred else None
    if centred is None or mean is None or mean.inputs[0] != centred.inputs[0] or _trailing(edit, mean) != axis:
        return None
    return centred.inputs[0]


def _folded_moments(edit: Edit, node: Node) -> bool:
    """TensorFlow's form: x * a + (b - mean * a) with a = scale / sqrt(variance + epsilon)."""
    if node.op != "Add" or node.domain:
        return False
    for left, right in (node.inputs, node.inputs[::-1]):
        scaled, shift = edit.made_by(left, "Mul"), edit.made_by(right, "Sub")
        moved = edit.made_by(shift.inputs[1], "Mul") if shift else None
        if scaled is None or shift is None or moved is None:
            continue
        for x, a in (scaled.inputs, scaled.inputs[::-1]):
            for mean, same in (moved.inputs, moved.inputs[::-1]):
                if same == a and _emit_folded(edit, node, x, a, mean, shift.inputs[0]):
                    return True
    return False


def _emit_folded(edit: Edit, node: Node, x: str, a: str, mean: str, bias: str) -> bool:
    average = edit.made_by(mean, "ReduceMean")
    axis = _trailing(edit, average) if average and average.inputs == (x,) else None
    scaled = edit.made_by(a, "Mul")
    root = _inverse_root(edit, scaled.inputs[0] if scaled else a)
    moment = _moment(edit, root) if root else None
    if axis is None or moment is None or moment[1] != axis or _uncentred(edit, moment[0], axis) != x:
        return False
    shape = (edit.shape(x) or ())[axis:]
    scale = edit.array(scaled.inputs[1]) if scaled else np.ones((), edit.types[x].dtype)
    parts = [scale, edit.array(bias)]
    values = [_filled(part, shape) for part in parts]
    if values[0] is None or values[1] is None or edit.types[x] != edit.types[node.outputs[0]]:
        return False
    names = [edit.constant(value) for value in values]
    edit.emit("LayerNormalization", x, *names, to=node.outputs[0], axis=axis, epsilon=moment[2])
    return True


def _filled(array: Array | None, shape: tuple[int, ...]) -> Any:
    """The constant over the normalised axes; None if it isn't one value a place there."""
    if array is None or array.size > np.prod(shape):
        return None
    while array.ndim > len(shape):
        if array.shape[0] != 1:
            return None
        array = array[0]
    try:
        return np.ascontiguousarray(np.broadcast_to(array, shape))
    except ValueError:
        return None


def _affine(edit: Edit, node: Node) -> bool:
    """A constant that multiplies after the normalisation, or is added where none was yet."""
    if node.op not in ("Mul", "Add") or node.domain:
        return False
    inner = edit.made_by(node.inputs[0], "LayerNormalization", "RMSNormalization")
    constant = edit.array(node.inputs[1])
    if inner is None or constant is None or not edit.single(node.inputs[0]):
        return False
    axis = inner.attrs["axis"]
    value = _filled(constant, (edit.shape(node.outputs[0]) or ())[axis:])
    if value is None or edit.types[inner.outputs[0]] != edit.types[node.outputs[0]]:
        return False
    parts = [edit.array(name) for name in inner.inputs[1:]]
    if any(part is None for part in parts):
        return False
    if node.op == "Mul":
        joined = [product(part, value) for part in parts]
        if not all(keeps_range(made, part, value) for made, part in zip(joined, parts, strict=True)):
            return False
    elif inner.op == "LayerNormalization" and len(parts) == 1:
        joined = [*parts, value]
    else:
        return False
    names = [edit.constant(np.ascontiguousarray(np.broadcast_to(made, value.shape))) for made in joined]
    edit.add(Node(inner.op, (inner.inputs[0], *names), node.outputs, inner.attrs, version=inner.version))
    return True
