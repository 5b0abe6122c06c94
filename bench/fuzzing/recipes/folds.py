"""Reductions, norms, and other ops over whole rows."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..draft import DraftTensor, InvalidNode, ModelDraft, Shape
from ..values import FLOATS, ValueDomain
from .recipe import Recipes, is_non_scalar, pick_axes, pick_axis, rank_at_least, rank_in


def reduce(op: str, d: ModelDraft) -> DraftTensor:
    """A reduction along some axes or all, as an attribute or, in later opsets, an input."""
    of_floats = op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean")  # of integers rounding is anyone's
    x = d.pick(d.dtype_for(op, among=FLOATS if of_floats else ()), known=False)
    rank = max(x.rank, 0)
    axes = pick_axes(d, rank) if rank and d.chance(0.8) else None
    if axes is not None and d.opset < 11:
        axes = [axis % rank for axis in axes]
    keep = d.among(None, 0, 1)
    if d.opset >= (13 if op == "ReduceSum" else 18):
        idle = d.among(None, 0, 1)
        axes_input = None if axes is None else d.ints(axes)
        if axes_input is None and idle and d.chance(0.3):
            axes_input = d.ints([])
        return d.op(op, x, axes_input, keepdims=keep, noop_with_empty_axes=idle)
    return d.op(op, x, axes=axes, keepdims=keep)


def arg(op: str, d: ModelDraft) -> DraftTensor:
    """The index of an extreme."""
    x = d.pick(d.dtype_for(op), lambda shape: len(shape) >= 1 and 0 not in shape, lambda: d.some_shape(low=1))
    axis = pick_axis(d, x.rank) if d.opset >= 11 else d.between(0, x.rank - 1)
    last = d.among(None, 0, 1) if d.opset >= 12 else None
    return d.op(op, x, axis=axis, keepdims=d.among(None, 0, 1), select_last_index=last)


def softmax(op: str, d: ModelDraft) -> DraftTensor:
    """Along any axis; before opset 13 over all from it on."""
    x = d.pick(d.dtype_for(op), rank_at_least(1), lambda: d.some_shape(low=1))
    axis = None if d.chance(0.3) and x.rank > 1 else pick_axis(d, x.rank)
    if axis is not None and d.opset < 11:
        axis %= x.rank
    return d.op(op, x, axis=axis)


def cumulative(op: str, d: ModelDraft) -> DraftTensor:
    """Running sums."""
    x = d.pick(d.dtype_for(op), is_non_scalar, lambda: d.some_shape(low=1))
    axis = d.constant(np.asarray(pick_axis(d, x.rank), d.among("int64", "int32")), plain=True)
    return d.op(op, x, axis, exclusive=d.among(None, 0, 1), reverse=d.among(None, 0, 1))


def _pick_image(d: ModelDraft, op: str, low: int = 3) -> tuple[DraftTensor, Shape]:
    x = d.pick(
        d.dtype_for(op, among=FLOATS), lambda s: low <= len(s) <= 5 and 0 not in s, lambda: d.some_shape(low=low)
    )
    return x, x.shape or ()


def _positive_constant(d: ModelDraft, dtype: str, shape: Shape) -> DraftTensor:
    values = d.array_rng.random(shape) + 0.1
    return d.constant(values, dtype)


def batch_norm(d: ModelDraft) -> DraftTensor:
    """Inference, with statistics that are constants as a rule."""
    x, shape = _pick_image(d, "BatchNormalization", 2)
    channels = (shape[1],)
    dtypes = [x.dtype] * 4
    scale, bias, mean = (d.fresh(t, channels, constant=0.9) for t in dtypes[:3])
    return d.op(
        "BatchNormalization", x, scale, bias, mean, _positive_constant(d, x.dtype, channels),
        epsilon=d.among(None, 1e-3, 0.1), momentum=d.among(None, 0.5),
    )  # fmt: skip


def instance_norm(d: ModelDraft) -> DraftTensor:
    """Of each channel of each image."""
    x, shape = _pick_image(d, "InstanceNormalization")
    scale, bias = (d.fresh(x.dtype, (shape[1],), constant=0.9) for _ in range(2))
    return d.op("InstanceNormalization", x, scale, bias, epsilon=d.among(None, 1e-3, 0.1))


def layer_norm(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """From any axis on, with statistics as outputs at times."""
    dtype = d.dtype_for("LayerNormalization", among=FLOATS)
    x = d.pick(dtype, lambda s: len(s) >= 1 and 0 not in s, lambda: d.some_shape(low=1))
    axis = pick_axis(d, x.rank) if d.chance(0.5) else -1
    inner = (x.shape or ())[axis % x.rank :]
    scale = d.fresh(dtype, inner, constant=0.8)
    bias = d.fresh(dtype, inner, constant=0.8) if d.chance(0.7) else None
    return d.ops(
        "LayerNormalization", x, scale, bias, outputs=d.among(1, 1, 1, 3), axis=axis, epsilon=d.among(None, 1e-3, 0.1)
    )


def group_norm(d: ModelDraft) -> DraftTensor:
    """The scale is of groups in opset 18, of channels from 21 on."""
    groups, group_size = d.between(1, 3), d.between(1, 3)
    tail = d.some_shape(low=1, high=2)
    x = d.fresh(
        d.dtype_for("GroupNormalization", among=FLOATS),
        (d.between(1, 2), groups * group_size, *(max(1, e) for e in tail)),
    )
    count = (groups if d.opset < 21 else groups * group_size,)
    scale, bias = (d.fresh(x.dtype, count, constant=0.9) for _ in range(2))
    return d.op("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=d.among(None, 1e-3))


def rms_norm(d: ModelDraft) -> DraftTensor:
    """From any axis on."""
    dtype = d.dtype_for("RMSNormalization", among=FLOATS)
    x = d.pick(dtype, lambda s: len(s) >= 1 and 0 not in s, lambda: d.some_shape(low=1))
    axis = pick_axis(d, x.rank) if d.chance(0.4) else -1
    return d.op("RMSNormalization", x, d.fresh(dtype, (x.shape or ())[axis % x.rank :], constant=0.9), axis=axis)


def lrn(d: ModelDraft) -> DraftTensor:
    """Over neighbouring channels."""
    x, _ = _pick_image(d, "LRN")
    return d.op(
        "LRN",
        x,
        size=d.among(1, 3, 5),
        alpha=d.among(None, 1e-3, 0.5),
        beta=d.among(None, 0.5),
        bias=d.among(None, 2.0),
    )


def lp_norm(d: ModelDraft) -> DraftTensor:
    """Along one axis."""
    x = d.pick(d.dtype_for("LpNormalization", among=FLOATS), is_non_scalar, lambda: d.some_shape(low=1))
    return d.op("LpNormalization", x, axis=pick_axis(d, x.rank), p=d.among(None, 1, 2))


def mvn(d: ModelDraft) -> DraftTensor:
    """Mean and variance of images."""
    x = d.pick(d.dtype_for("MeanVarianceNormalization", among=FLOATS), rank_in(4), lambda: d.some_shape(4))
    return d.op("MeanVarianceNormalization", x, axes=d.among(None, [0, 2, 3], [1, 2, 3], [2]))


def loss(op: str, d: ModelDraft) -> DraftTensor:
    """Of class scores and labels."""
    batch, classes, tail = d.between(1, 4), d.between(1, 5), d.some_shape(low=1, high=1) if d.chance(0.4) else ()
    if 0 in tail:
        raise InvalidNode("empty")
    x = d.fresh(d.dtype_for(op, among=("float32", "float64")), (batch, classes, *tail))
    labels = d.fresh(d.among("int64", "int32"), (batch, *tail), ValueDomain(0, classes - 1))
    weights = _positive_constant(d, x.dtype, (classes,)) if d.chance(0.4) else None
    return d.op(
        op, x, labels, weights, reduction=d.among(None, "none", "sum", "mean"), ignore_index=d.among(None, 0, classes)
    )


FOLDS: Recipes = {
    **{op: partial(reduce, op) for op in (
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare",
    )},
    **{op: partial(arg, op) for op in ("ArgMax", "ArgMin")},
    **{op: partial(softmax, op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    **{op: partial(loss, op) for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    **{op: partial(cumulative, op) for op in ("CumSum", "CumProd")},
    "BatchNormalization": batch_norm,
    "GroupNormalization": group_norm,
    "InstanceNormalization": instance_norm,
    "LRN": lrn,
    "LayerNormalization": layer_norm,
    "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mvn,
    "RMSNormalization": rms_norm,
}  # fmt: skip
