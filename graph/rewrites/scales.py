"""Multiplications and additions of constants: gathered, and put into the weights of what comes before."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tunewright.graph.channels import is_channels_last
from tunewright.graph.ir import Array, Graph, Node

from .edit import Edit, apply

CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul")


def batch_norms(graph: Graph) -> Graph:
    """BatchNormalization of known moments as a Mul and an Add per channel.

    Before: `y = BatchNormalization(x, scale, bias, mean, var) epsilon=e`.
    After: `y = Add(Mul(x, s), t)` with `s = scale / sqrt(var + e)` and `t = bias - mean * s`, both `[C, 1, 1]`.
    """
    return apply(graph, _batch_norm)


def _batch_norm(edit: Edit, node: Node) -> bool:
    if node.op != "BatchNormalization" or node.domain or len(node.outputs) > 1:
        return False
    parameters = [edit.array(name) for name in node.inputs[1:]]
    rank = edit.rank(node.inputs[0])
    if any(array is None for array in parameters) or rank < 2 or node.attrs.keys() - {"epsilon", "channels_last"}:
        return False
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in parameters)
    factor = scale / np.sqrt(variance + node.attrs["epsilon"])
    dtype = edit.types[node.outputs[0]].dtype
    places = (-1,) if is_channels_last(node) else (-1, *(1,) * (rank - 2))
    s, t = (edit.constant(v.astype(dtype).reshape(places)) for v in (factor, bias - mean * factor))
    edit.emit("Add", edit.emit("Mul", node.inputs[0], s), t, to=node.outputs[0])
    return True


def scales(graph: Graph) -> Graph:
    """Constants that multiply or are added, gathered, and merged into the weights and bias before them.

    Before: `a = Conv(x, w, b); c = Mul(a, s); y = Add(c, t)`. After: `y = Conv(x, w * s, b * s + t)`.
    Before: `a = Add(x, s); y = Add(a, t)`. After: `y = Add(x, s + t)`; the same with Mul.
    Before: `a = MatMul(x, w); b = Add(a, t); c = Reshape(b); y = Mul(c, 0.5)`.
    After: `a = MatMul(x, 0.5 * w); b = Add(a, 0.5 * t); y = Reshape(b)`.
    """
    return apply(graph, _scale_rule)


def _scale_rule(edit: Edit, node: Node) -> bool:
    if node.op not in ("Mul", "Add") or node.domain:
        return False
    x, c = node.inputs
    array = edit.array(c)
    inner = edit.made_by(x, "Add", "Mul", "Reshape", "Transpose", *CONTRACTIONS)
    if array is None or inner is None or not edit.single(x) or edit.types[x] != edit.types[node.outputs[0]]:
        return False
    if not edit.is_float(x):
        return False
    if inner.op in CONTRACTIONS:
        return (_scaled if node.op == "Mul" else _shifted)(edit, node, inner, array)
    if inner.op in ("Reshape", "Transpose"):
        return node.op == "Mul" and _before(edit, node, inner, array)
    return _gathered(edit, node, inner, array)


def _before(edit: Edit, node: Node, inner: Node, array: Array) -> bool:
    """A scalar goes in front of what moves elements, towards the weights."""
    if array.size != 1:
        return False
    source = inner.inputs[0]
    scaled = edit.emit("Mul", source, edit.constant(array.reshape(())))
    edit.add(Node(inner.op, (scaled, *inner.inputs[1:]), node.outputs, inner.attrs, version=inner.version))
    return True


def _gathered(edit: Edit, node: Node, inner: Node, array: Array) -> bool:
    """Two constants in a row as one; (x + a) * b as x * b + a * b where the Mul may then go further."""
    x, known = inner.inputs[0], edit.array(inner.inputs[1])
    if known is None or edit.types[x] != edit.types[inner.outputs[0]]:
        return False
    joined = np.broadcast_shapes(known.shape, array.shape)
    if prod(joined) > max(known.size, array.size):
        return False
    to = node.outputs[0]
    match inner.op, node.op:
        case "Add", "Add":
            edit.emit("Add", x, edit.constant(known + array), to=to)  # type: ignore[operator]
        case "Mul", "Mul":
            edit.emit("Mul", x, edit.constant(known * array), to=to)  # type: ignore[operator]
        case "Add", "Mul":
            further = edit.made_by(x, "Mul", "Reshape", "Transpose", *CONTRACTIONS)
            if further is None or not edit.single(x):
                return False
            shift = edit.constant(known * array)  # type: ignore[operator]
            edit.emit("Add", edit.emit("Mul", x, edit.constant(array)), shift, to=to)
        case _:
            return False
    return True


def _per_channel(edit: Edit, inner: Node, array: Array) -> Array | None:
    """The constant as `[C]` of the contraction's result, or `[1]`; None if it differs along another axis."""
    shape = edit.shape(inner.outputs[0]) or ()
    if array.size == 1:
        return array.reshape(1)
    axis = len(shape) - 1 if inner.op == "MatMul" or is_channels_last(inner) else 1
    full = (1,) * (len(shape) - array.ndim) + array.shape
    if len(full) != len(shape) or any(extent != 1 for k, extent in enumerate(full) if k != axis):
        return None
    return array.reshape(-1)


def _scaled(edit: Edit, node: Node, inner: Node, array: Array) -> bool:
    factor: Any = _per_channel(edit, inner, array)
    weight: Any = edit.array(inner.inputs[1])
    bias: Any = edit.array(inner.inputs[2]) if len(inner.inputs) > 2 and inner.inputs[2] else None
    if inner.op == "MatMul" and weight is None and array.size == 1 and edit.array(inner.inputs[0]) is not None:
        left = edit.constant(np.asarray(edit.constants[inner.inputs[0]]) * factor)
        edit.add(Node("MatMul", (left, inner.inputs[1]), node.outputs, inner.attrs, version=inner.version))
        return True
    if factor is None or weight is None or (len(inner.inputs) > 2 and bias is None):
        return False
    if inner.op == "MatMul" and weight.ndim == 1 and factor.size > 1:
        return False
    inputs = [inner.inputs[0], edit.constant(_scaled_weight(inner, weight, factor))]
    if bias is not None:
        inputs.append(edit.constant(bias * factor))
    edit.add(Node(inner.op, tuple(inputs), node.outputs, inner.attrs, version=inner.version))
    return True


def _scaled_weight(inner: Node, weight: Any, factor: Any) -> Any:
    if inner.op == "MatMul" or factor.size == 1:
        return weight * factor
    if inner.op == "Conv":
        return weight * (factor if is_channels_last(inner) else factor.reshape(-1, *(1,) * (weight.ndim - 1)))
    # ConvTranspose: [I, O / groups, *kernel], or [*kernel, I, O / groups]; the result's channels count group by group.
    groups = inner.attrs["group"]
    rows = np.repeat(factor.reshape(groups, -1), (weight.shape[-2 if is_channels_last(inner) else 0]) // groups, axis=0)
    return weight * (rows if is_channels_last(inner) else rows.reshape(*rows.shape, *(1,) * (weight.ndim - 2)))


def _shifted(edit: Edit, node: Node, inner: Node, array: Array) -> bool:
    """An addition goes into the bias of a convolution; after a MatMul it stays."""
    if inner.op == "MatMul":
        return False
    shift: Any = _per_channel(edit, inner, array)
    shape = edit.shape(inner.outputs[0]) or ()
    bias: Any = edit.array(inner.inputs[2]) if len(inner.inputs) > 2 and inner.inputs[2] else None
    if shift is None or (len(inner.inputs) > 2 and bias is None):
        return False
    channels = shape[-1 if is_channels_last(inner) else 1]
    total = np.broadcast_to(shift, (channels,)) + (0 if bias is None else bias)
    inputs = (*inner.inputs[:2], edit.constant(np.asarray(total, array.dtype)))
    edit.add(Node(inner.op, inputs, node.outputs, inner.attrs, version=inner.version))
    return True
