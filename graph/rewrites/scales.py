"""Scales of channels, put into the weights and bias of what comes before.

A constant that multiplies a sum of products multiplies the weights instead, ahead of time. That rounds in another way
(`docs/numerics.md` says how far results move), so it is left where a step function follows (`graph.decisive`), and
where a weight would be lost: see `keeps_range`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tunewright.graph.channels import is_channels_last
from tunewright.graph.ir import Array, Graph, Node

from .edit import Edit, apply
from .joining import keeps_range, product

CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul")


@dataclass(frozen=True, slots=True)
class _Weighted:
    """A sum of products with a known operand, its weights, and what is added to it: a constant for each channel."""

    node: Node
    weights: int  # which operand they are
    bias: Array | None  # [C]

    @staticmethod
    def of(edit: Edit, node: Node) -> _Weighted | None:
        """That which a node computes; None if it is none, or not known well enough."""
        place = 1 if node.inputs[1] in edit.constants else 0
        if node.inputs[place] not in edit.constants or (place == 0 and node.op != "MatMul"):
            return None
        given = node.inputs[2] if len(node.inputs) > 2 else ""
        if given and given not in edit.constants:
            return None
        return _Weighted(node, place, edit.array(given) if given else None)

    def scaled(self, edit: Edit, factor: Any) -> Node | None:
        """The node with its result multiplied, by a number or one for each channel, in float64; None if it can't be."""
        weight: Any = edit.constants[self.node.inputs[self.weights]]
        if factor.size > 1 and (self.weights == 0 or weight.ndim == 1):
            return None
        spread = self._spread(weight, factor)
        inputs = list(self.node.inputs)
        for place, array, times in ((self.weights, weight, spread), (2, self.bias, factor.reshape(-1))):
            if array is None:
                continue
            joined = product(array, times)
            if not keeps_range(joined, array, times):
                return None
            inputs[place] = edit.constant(joined)
        return Node(self.node.op, tuple(inputs), self.node.outputs, self.node.attrs, version=self.node.version)

    def _spread(self, weight: Any, factor: Any) -> Any:
        """The factor of each channel as it meets the weights that make the channel."""
        node = self.node
        if node.op == "MatMul" or factor.size == 1:
            return factor
        if node.op == "Conv":
            return factor if is_channels_last(node) else factor.reshape(-1, *(1,) * (weight.ndim - 1))
        # ConvTranspose: [I, O / groups, *kernel], or [*kernel, I, O / groups]; the result's channels go group by group.
        groups = node.attrs["group"]
        channels = weight.shape[-2 if is_channels_last(node) else 0] // groups
        rows = np.repeat(factor.reshape(groups, -1), channels, axis=0)
        return rows if is_channels_last(node) else rows.reshape(*rows.shape, *(1,) * (weight.ndim - 2))


def _per_channel(edit: Edit, inner: Node, array: Array) -> Any:
    """A constant as `[C]` of the contraction's result, or `[1]`; None if it differs along another axis."""
    shape = edit.shape(inner.outputs[0]) or ()
    if array.size == 1:
        return array.reshape(1)
    axis = len(shape) - 1 if inner.op == "MatMul" or is_channels_last(inner) else 1
    full = (1,) * (len(shape) - array.ndim) + array.shape
    if len(full) != len(shape) or any(extent != 1 for k, extent in enumerate(full) if k != axis):
        return None
    return array.reshape(-1)


# Normalisation with known moments


def batch_norms(graph: Graph) -> Graph:
    """BatchNormalization of known moments in the weights and bias before it, or as a Mul and an Add per channel.

    Before: `a = Conv(x, w, b); y = BatchNormalization(a, scale, bias, mean, var) epsilon=e`.
    After: `y = Conv(x, w * s, (b - mean) * s + bias)` with `s = scale / sqrt(var + e)`.
    Before: `y = BatchNormalization(x, scale, bias, mean, var) epsilon=e`.
    After: `y = Add(Mul(x, s), bias - mean * s)`, both `[C, 1, 1]`.
    """
    return apply(graph, _batch_norm)


def _batch_norm(edit: Edit, node: Node) -> bool:
    if node.op != "BatchNormalization" or node.domain or len(node.outputs) > 1 or not edit.may_round(node.outputs[0]):
        return False
    arrays = [edit.array(name) for name in node.inputs[1:]]
    rank = edit.rank(node.inputs[0])
    if any(array is None for array in arrays) or rank < 2 or node.attrs.keys() - {"epsilon", "channels_last"}:
        return False
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    with np.errstate(all="ignore"):
        inverse = 1 / np.sqrt(variance + node.attrs["epsilon"])
        factor = scale * inverse
    if _into_weights(edit, node, factor, bias, mean):
        return True
    dtype = edit.types[node.outputs[0]].dtype
    places = (-1,) if is_channels_last(node) else (-1, *(1,) * (rank - 2))
    with np.errstate(all="ignore"):
        s, t = (v.astype(dtype) for v in (factor, bias - mean * factor))
    if not keeps_range(s, scale, inverse) or not np.isfinite(t).all():
        return False
    names = [edit.constant(v.reshape(places)) for v in (s, t)]
    edit.emit("Add", edit.emit("Mul", node.inputs[0], names[0]), names[1], to=node.outputs[0])
    return True


def _into_weights(edit: Edit, node: Node, factor: Any, bias: Any, mean: Any) -> bool:
    """Write the normalisation of a contraction, perhaps with a constant added to it, as one with other constants."""
    name, shift = node.inputs[0], None
    added = edit.made_by(name, "Add")
    if added is not None and edit.single(name):
        name, shift = added.inputs[0], edit.array(added.inputs[1])
        if shift is None:
            return False
    inner = edit.made_by(name, *CONTRACTIONS)
    weighted = _Weighted.of(edit, inner) if inner and edit.single(name) else None
    if inner is None or weighted is None or (weighted.bias is not None and shift is not None):
        return False
    if is_channels_last(inner) != is_channels_last(node) or (inner.op == "MatMul" and edit.rank(name) != 2):
        return False
    own = weighted.bias if shift is None else _per_channel(edit, inner, shift)
    plain = _Weighted(inner, weighted.weights, None).scaled(edit, factor)
    if plain is None or (shift is not None and own is None):
        return False
    dtype = edit.types[node.outputs[0]].dtype
    with np.errstate(all="ignore"):
        total = ((0 if own is None else np.asarray(own, np.float64)) - mean) * factor + bias
        total = total.astype(dtype)
    if not np.isfinite(total).all():
        return False
    if inner.op == "MatMul":
        edit.emit("Add", edit.emit("MatMul", *plain.inputs), edit.constant(total), to=node.outputs[0])
    else:
        inputs = (*plain.inputs[:2], edit.constant(total))
        edit.add(Node(inner.op, inputs, node.outputs, inner.attrs, version=inner.version))
    return True


# Constants that multiply, or are added


def scales(graph: Graph) -> Graph:
    """Constants that multiply in the weights and bias before them; constants that are added as the bias, if none is.

    Before: `a = Conv(x, w); c = Mul(a, s); y = Add(c, t)`. After: `y = Conv(x, w * s, t)`.
    Before: `a = MatMul(x, w); b = Add(a, t); c = Reshape(b); y = Div(c, 4)`.
    After: `a = MatMul(x, w / 4); b = Add(a, t / 4); y = Reshape(b)`.
    """
    return apply(graph, _scale_rule)


def _scale_rule(edit: Edit, node: Node) -> bool:
    if node.domain or node.op not in ("Add", "Div", "Mul"):
        return False
    x, c = node.inputs
    array = edit.array(c)
    if array is None or not edit.is_float(x) or not edit.single(x) or edit.types[x] != edit.types[node.outputs[0]]:
        return False
    if node.op == "Add":
        return _shifted(edit, node, array)
    if not edit.may_round(node.outputs[0]) or not _leads_to_weights(edit, x, array):
        return False
    inner = edit.producers[x]
    return _SCALED.get(inner.op, _scaled_sum)(edit, node, inner, array)


def _leads_to_weights(edit: Edit, name: str, array: Array) -> bool:
    """Whether nothing but additions of constants, and movement for a scalar, lies between a tensor and weights."""
    while True:
        inner = edit.made_by(name, "Add", "Reshape", "Transpose", *CONTRACTIONS)
        if inner is None or not edit.single(name):
            return False
        if inner.op in CONTRACTIONS:
            return _per_channel(edit, inner, array) is not None and _Weighted.of(edit, inner) is not None
        if inner.op == "Add":
            known = edit.array(inner.inputs[1])
            if known is None or edit.types[inner.inputs[0]] != edit.types[name]:
                return False
            if prod(np.broadcast_shapes(known.shape, array.shape)) > max(known.size, array.size):
                return False
        elif array.size != 1:
            return False
        name = inner.inputs[0]


def _factor(node: Node, array: Any) -> Any:
    """What a Mul or Div by a constant multiplies by, in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(array, np.float64) if node.op == "Mul" else 1 / np.asarray(array, np.float64)


def _before_movement(edit: Edit, node: Node, inner: Node, array: Any) -> bool:
    """A scalar goes in front of what moves elements."""
    source = inner.inputs[0]
    number = edit.constant(array.reshape(()))
    moved = edit.emit(node.op, source, number)
    edit.add(Node(inner.op, (moved, *inner.inputs[1:]), node.outputs, inner.attrs, version=inner.version))
    return True


def _before_addition(edit: Edit, node: Node, inner: Node, array: Any) -> bool:
    """(x + a) * b as x * b + a * b."""
    known: Any = edit.array(inner.inputs[1])
    factor = _factor(node, array)
    shift = product(known, factor)
    if not keeps_range(shift, known, factor):
        return False
    edit.emit("Add", edit.emit(node.op, inner.inputs[0], node.inputs[1]), edit.constant(shift), to=node.outputs[0])
    return True


def _scaled_sum(edit: Edit, node: Node, inner: Node, array: Any) -> bool:
    weighted = _Weighted.of(edit, inner)
    scaled = weighted.scaled(edit, _per_channel(edit, inner, _factor(node, array))) if weighted else None
    if scaled is None:
        return False
    edit.add(Node(scaled.op, scaled.inputs, node.outputs, scaled.attrs, version=scaled.version))
    return True


_SCALED: dict[str, Callable[[Edit, Node, Node, Any], bool]] = {
    "Add": _before_addition,
    "Reshape": _before_movement,
    "Transpose": _before_movement,
}


def _shifted(edit: Edit, node: Node, array: Array) -> bool:
    """What is added to a convolution without a bias is one."""
    inner = edit.made_by(node.inputs[0], "Conv", "ConvTranspose")
    shift = _per_channel(edit, inner, array) if inner else None
    if inner is None or shift is None or (len(inner.inputs) > 2 and inner.inputs[2]):
        return False
    shape = edit.shape(inner.outputs[0]) or ()
    channels = shape[-1 if is_channels_last(inner) else 1]
    bias = edit.constant(np.ascontiguousarray(np.broadcast_to(shift, (channels,))))
    edit.add(Node(inner.op, (*inner.inputs[:2], bias), node.outputs, inner.attrs, version=inner.version))
    return True
