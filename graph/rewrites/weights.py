"""Constants in the weights and bias of what comes before: scales, norms, pads. Products of matrices in one form.

A constant that multiplies a sum of products multiplies the weights instead, ahead of time. That rounds in another way
(`docs/numerics.md` says how far results move), so it is left where a step function follows (`rounding`), and
where a weight would be lost: see `keeps_range`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tunewright.graph.ir import Array, Node

from ..evaluation.onnx_form import is_channels_last
from .edit import Edit, Result, each

CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul")


@dataclass(frozen=True, slots=True)
class _WeightedSum:
    """A sum of products with a known operand, its weights, and what is added to it: a constant for each channel."""

    node: Node
    weights: int  # which operand they are
    bias: Array | None  # [C]

    @staticmethod
    def of(edit: Edit, node: Node) -> _WeightedSum | None:
        """The weighted sum of a node; None if its weights or bias are not known."""
        place = 1 if node.inputs[1] in edit.constants else 0
        if node.inputs[place] not in edit.constants or (place == 0 and node.op != "MatMul"):
            return None
        bias_name = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias_name and bias_name not in edit.constants:
            return None
        return _WeightedSum(node, place, edit.array(bias_name) if bias_name else None)

    def scale(self, edit: Edit, factor: Any) -> Node | None:
        """The node with its result multiplied, by a number or one for each channel, in float64; None if it can't be."""
        weight: Any = edit.constants[self.node.inputs[self.weights]]
        if factor.size > 1 and (self.weights == 0 or weight.ndim == 1):
            return None
        spread = self._weight_factors(weight, factor)
        inputs = list(self.node.inputs)
        for place, array, times in ((self.weights, weight, spread), (2, self.bias, factor.reshape(-1))):
            if array is None:
                continue
            result = product(array, times)
            if not keeps_range(result, array, times):
                return None
            inputs[place] = edit.constant(result)
        return replace(self.node, inputs=tuple(inputs))

    def _weight_factors(self, weight: Any, factor: Any) -> Any:
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
    """A constant as `[C]`, the channels of the contraction's result, or `[1]`; None if it varies along another axis."""
    shape = edit.shape(inner.outputs[0]) or ()
    if array.size == 1:
        return array.reshape(1)
    axis = len(shape) - 1 if inner.op == "MatMul" or is_channels_last(inner) else 1
    full = (1,) * (len(shape) - array.ndim) + array.shape
    if len(full) != len(shape) or any(extent != 1 for k, extent in enumerate(full) if k != axis):
        return None
    return array.reshape(-1)


# Normalisation with known moments


@each("BatchNormalization")
def batch_norms(edit: Edit, node: Node) -> Result:
    """BatchNormalization of known moments in the weights and bias before it, or as a Mul and an Add per channel.

    Before: `a = Conv(x, w, b); y = BatchNormalization(a, scale, bias, mean, var) epsilon=e`.
    After: `y = Conv(x, w * s, (b - mean) * s + bias)` with `s = scale / sqrt(var + e)`.
    Before: `y = BatchNormalization(x, scale, bias, mean, var) epsilon=e`.
    After: `y = Add(Mul(x, s), bias - mean * s)`, both `[C, 1, 1]`.
    """
    if len(node.outputs) > 1 or not edit.may_round(node.outputs[0]):
        return None
    arrays = [edit.array(name) for name in node.inputs[1:]]
    rank = edit.rank(node.inputs[0])
    if any(array is None for array in arrays) or rank < 2 or node.attrs.keys() - {"epsilon", "channels_last"}:
        return None
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    with np.errstate(all="ignore"):
        inverse = 1 / np.sqrt(variance + node.attrs["epsilon"])
        factor = scale * inverse
    result = _into_weights(edit, node, factor, bias, mean)
    if result is not None:
        return result
    dtype = edit.types[node.outputs[0]].dtype
    places = (-1,) if is_channels_last(node) else (-1, *(1,) * (rank - 2))
    with np.errstate(all="ignore"):
        s, t = (v.astype(dtype) for v in (factor, bias - mean * factor))
    if not keeps_range(s, scale, inverse) or not np.isfinite(t).all():
        return None
    names = [edit.constant(v.reshape(places)) for v in (s, t)]
    return edit.emit("Add", edit.emit("Mul", node.inputs[0], names[0]), names[1])


def _into_weights(edit: Edit, node: Node, factor: Any, bias: Any, mean: Any) -> Result:
    """Write the normalisation of a contraction, perhaps with a constant added to it, as one with other constants."""
    name, shift = node.inputs[0], None
    added = edit.producer(name, "Add")
    if added is not None and edit.has_one_reader(name):
        name, shift = added.inputs[0], edit.array(added.inputs[1])
        if shift is None:
            return None
    inner = edit.producer(name, *CONTRACTIONS)
    weighted = _WeightedSum.of(edit, inner) if inner and edit.has_one_reader(name) else None
    if inner is None or weighted is None or (weighted.bias is not None and shift is not None):
        return None
    if is_channels_last(inner) != is_channels_last(node) or (inner.op == "MatMul" and edit.rank(name) != 2):
        return None
    own = weighted.bias if shift is None else _per_channel(edit, inner, shift)
    plain = _WeightedSum(inner, weighted.weights, None).scale(edit, factor)
    if plain is None or (shift is not None and own is None):
        return None
    dtype = edit.types[node.outputs[0]].dtype
    with np.errstate(all="ignore"):
        total = ((0 if own is None else np.asarray(own, np.float64)) - mean) * factor + bias
        total = total.astype(dtype)
    if not np.isfinite(total).all():
        return None
    if inner.op == "MatMul":
        return edit.emit("Add", edit.emit("MatMul", *plain.inputs), edit.constant(total))
    return replace(inner, inputs=(*plain.inputs[:2], edit.constant(total)))


# Constants that multiply, or are added


@each("Add", "Div", "Mul")
def scales(edit: Edit, node: Node) -> Result:
    """Constants that multiply in the weights and bias before them; constants that are added as the bias, if none is.

    Before: `a = Conv(x, w); c = Mul(a, s); y = Add(c, t)`. After: `y = Conv(x, w * s, t)`.
    Before: `a = MatMul(x, w); b = Add(a, t); c = Reshape(b); y = Div(c, 4)`.
    After: `a = MatMul(x, w / 4); b = Add(a, t / 4); y = Reshape(b)`.
    """
    x, c = node.inputs
    array = edit.array(c)
    if (
        array is None
        or not edit.is_float(x)
        or not edit.has_one_reader(x)
        or edit.types[x] != edit.types[node.outputs[0]]
    ):
        return None
    if node.op == "Add":
        return _add_bias(edit, node, array)
    if not edit.may_round(node.outputs[0]) or not _has_weights_before(edit, x, array):
        return None
    inner = edit.producers[x]
    return _SCALE_RULES.get(inner.op, _scale_sum)(edit, node, inner, array)


def _has_weights_before(edit: Edit, name: str, array: Array) -> bool:
    """Whether nothing but additions of constants, and movement for a scalar, lies between a tensor and weights."""
    while True:
        inner = edit.producer(name, "Add", "Reshape", "Transpose", *CONTRACTIONS)
        if inner is None or not edit.has_one_reader(name):
            return False
        if inner.op in CONTRACTIONS:
            return _per_channel(edit, inner, array) is not None and _WeightedSum.of(edit, inner) is not None
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
    """The factor of a Mul or Div by a constant, in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(array, np.float64) if node.op == "Mul" else 1 / np.asarray(array, np.float64)


def _before_movement(edit: Edit, node: Node, inner: Node, array: Any) -> Result:
    """Move a scalar factor in front of a movement op."""
    scaled_source = edit.emit(node.op, inner.inputs[0], edit.constant(array.reshape(())))
    return replace(inner, inputs=(scaled_source, *inner.inputs[1:]))


def _before_addition(edit: Edit, node: Node, inner: Node, array: Any) -> Result:
    """(x + a) * b as x * b + a * b."""
    known: Any = edit.array(inner.inputs[1])
    factor = _factor(node, array)
    shift = product(known, factor)
    if not keeps_range(shift, known, factor):
        return None
    return edit.emit("Add", edit.emit(node.op, inner.inputs[0], node.inputs[1]), edit.constant(shift))


def _scale_sum(edit: Edit, node: Node, inner: Node, array: Any) -> Result:
    weighted = _WeightedSum.of(edit, inner)
    return weighted.scale(edit, _per_channel(edit, inner, _factor(node, array))) if weighted else None


_SCALE_RULES: dict[str, Callable[[Edit, Node, Node, Any], Result]] = {
    "Add": _before_addition,
    "Reshape": _before_movement,
    "Transpose": _before_movement,
}


def _add_bias(edit: Edit, node: Node, array: Array) -> Result:
    """Replace a constant added to a convolution without a bias by a bias."""
    inner = edit.producer(node.inputs[0], "Conv", "ConvTranspose")
    shift = _per_channel(edit, inner, array) if inner else None
    if inner is None or shift is None or (len(inner.inputs) > 2 and inner.inputs[2]):
        return None
    shape = edit.shape(inner.outputs[0]) or ()
    channels = shape[-1 if is_channels_last(inner) else 1]
    bias = edit.constant(np.ascontiguousarray(np.broadcast_to(shift, (channels,))))
    return replace(inner, inputs=(*inner.inputs[:2], bias))


# Products of matrices in one form


@each("Gemm")
def matrix_products(edit: Edit, node: Node) -> Result:
    """Gemm as MatMul, Mul and Add: weights transposed and scaled ahead of time.

    Before: `y = Gemm(x, w, b) alpha=0.5 beta=1 transB=1`. After: `y = Add(MatMul(x, w'), b)` with `w' = 0.5 * w.T`.
    """
    if edit.shape(node.outputs[0]) is None:
        return None
    a, b = node.inputs[:2]
    if node.attrs["transA"]:
        a = edit.emit("Transpose", a, perm=(1, 0))
    if node.attrs["transB"]:
        b = edit.emit("Transpose", b, perm=(1, 0))
    alpha, beta = node.attrs["alpha"], node.attrs["beta"]
    if alpha != 1.0 and edit.may_round(node.outputs[0]):
        a, b, alpha = _scale_operands(edit, a, b, alpha)
    result = edit.emit("MatMul", a, b)
    if alpha != 1.0:
        result = edit.emit("Mul", result, edit.scalar_like(a, alpha))
    if len(node.inputs) > 2 and beta != 0.0:
        c = node.inputs[2]
        result = edit.emit("Add", result, c if beta == 1.0 else edit.emit("Mul", c, edit.scalar_like(c, beta)))
    return result


def _scale_operands(edit: Edit, a: str, b: str, alpha: float) -> tuple[str, str, float]:
    """The operands of a product, one that is known times `alpha`, and what is left of `alpha` to multiply by."""
    if (scaled := _scale(edit, b, alpha)) is not None:
        return a, scaled, 1.0
    if (scaled := _scale(edit, a, alpha)) is not None:
        return scaled, b, 1.0
    return a, b, alpha


def _scale(edit: Edit, name: str, factor: float) -> str | None:
    """A known matrix times a number; None if it is not known, or would lose digits."""
    array: Any = edit.array(name)
    if array is None:
        return None
    result = product(array, factor)
    return edit.constant(result) if keeps_range(result, array, factor) else None


# Pools and padding in one form


@each("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
def whole_pools(edit: Edit, node: Node) -> Result:
    """Pools over a whole image as reductions.

    Before: `y = GlobalAveragePool(x)`, or an AveragePool whose one window covers x `[1, 64, 7, 7]`.
    After: `y = ReduceMean(x) axes=(2, 3) keepdims=1`. The same with MaxPool and ReduceMax.
    """
    shape = edit.shape(node.inputs[0])
    if shape is None or len(node.outputs) > 1 or is_channels_last(node):
        return None
    if not node.op.startswith("Global") and (
        tuple(node.attrs.get("kernel_shape", ())) != shape[2:]
        or any(node.attrs.get("pads", (1,)))
        or edit.shape(node.outputs[0]) != shape[:2] + (1,) * (len(shape) - 2)
        or any(dilation != 1 for dilation in node.attrs.get("dilations", ()))
    ):
        return None
    axes = tuple(range(2, len(shape)))
    return edit.emit("ReduceMax" if "Max" in node.op else "ReduceMean", node.inputs[0], axes=axes, keepdims=1)


@each("AveragePool", "Conv")
def pads(edit: Edit, node: Node) -> Result:
    """Zeros around an image as pads of the convolution, or of the average that counts them.

    Before: `a = Pad(x) pads=(0, 0, 1, 1, 0, 0, 1, 1) value=0; y = Conv(a, w) pads=(0, 0, 0, 0)`.
    After: `y = Conv(x, w) pads=(1, 1, 1, 1)`.
    """
    if "pads" not in node.attrs or is_channels_last(node):
        return None
    inner = edit.producer(node.inputs[0], "Pad")
    if inner is None or len(inner.inputs) > 1 or inner.attrs.get("mode") != "constant" or inner.attrs.get("value") != 0:
        return None
    outer_pads, inner_pads = inner.attrs["pads"], node.attrs["pads"]
    rank = len(outer_pads) // 2
    if any(outer_pads[k] for k in (0, 1, rank, rank + 1)):
        return None
    attrs = dict(node.attrs)
    if node.op == "AveragePool":
        if any(inner_pads):
            return None
        attrs["count_include_pad"] = 1
    outside = outer_pads[2:rank] + outer_pads[rank + 2 :]
    attrs["pads"] = tuple(a + b for a, b in zip(outside, inner_pads, strict=True))
    return replace(node, inputs=(inner.inputs[0], *node.inputs[1:]), attrs=attrs)


# Products of constants ahead of time


def product(array: Any, factor: Any) -> Any:
    """An array times numbers in float64, rounded once, to its type."""
    with np.errstate(all="ignore"):
        return (np.asarray(array, np.float64) * factor).astype(array.dtype)


def keeps_range(result: Any, array: Any, factor: Any) -> bool:
    """Whether a product is as good as the constant that was multiplied: finite, and nowhere small where that was not.

    Small is zero or subnormal, which has fewer digits; multiplying by zero makes zero. All have the shape of `result`,
    or broadcast to it.
    """
    least = ml_dtypes.finfo(result.dtype).tiny  # type: ignore[no-untyped-call]
    lost = (np.abs(result) < least) & (np.abs(array) >= least) & (np.asarray(factor) != 0)
    return bool(np.isfinite(result).all()) and not bool(lost.any())
