"""Reductions, norms, and what else reads whole rows."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..draft import Draft, Shape, Tensor, Unfit
from ..values import FLOATS, Domain
from .recipes import Recipes, an_axis, at_least, non_scalar, of_rank, some_axes


def reduce(op: str, d: Draft) -> Tensor:
    """Along some axes or all, which are an attribute or, later, an input."""
    of_floats = op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean")  # of integers rounding is anyone's
    x = d.pick(d.dtype_for(op, among=FLOATS if of_floats else ()), known=False)
    rank = max(x.rank, 0)
    axes = some_axes(d, rank) if rank and d.chance(0.8) else None
    if axes is not None and d.opset < 11:
        axes = [axis % rank for axis in axes]
    keep = d.among(None, 0, 1)
    if d.opset >= (13 if op == "ReduceSum" else 18):
        idle = d.among(None, 0, 1)
        given = None if axes is None else d.ints(axes)
        if given is None and idle and d.chance(0.3):
            given = d.ints([])
        return d.op(op, x, given, keepdims=keep, noop_with_empty_axes=idle)
    return d.op(op, x, axes=axes, keepdims=keep)


def arg(op: str, d: Draft) -> Tensor:
    """Where the extreme is."""
    x = d.pick(d.dtype_for(op), lambda shape: len(shape) >= 1 and 0 not in shape, lambda: d.some_shape(low=1))
    axis = an_axis(d, x.rank) if d.opset >= 11 else d.between(0, x.rank - 1)
    last = d.among(None, 0, 1) if d.opset >= 12 else None
    return d.op(op, x, axis=axis, keepdims=d.among(None, 0, 1), select_last_index=last)


def softmax(op: str, d: Draft) -> Tensor:
    """Along any axis; before opset 13 over all from it on."""
    x = d.pick(d.dtype_for(op), at_least(1), lambda: d.some_shape(low=1))
    axis = None if d.chance(0.3) and x.rank > 1 else an_axis(d, x.rank)
    if axis is not None and d.opset < 11:
        axis %= x.rank
    return d.op(op, x, axis=axis)


def cumulative(op: str, d: Draft) -> Tensor:
    """Running sums."""
    x = d.pick(d.dtype_for(op), non_scalar, lambda: d.some_shape(low=1))
    axis = d.constant(np.asarray(an_axis(d, x.rank), d.among("int64", "int32")), plain=True)
    return d.op(op, x, axis, exclusive=d.among(None, 0, 1), reverse=d.among(None, 0, 1))


def _image(d: Draft, op: str, low: int = 3) -> tuple[Tensor, Shape]:
    x = d.pick(
        d.dtype_for(op, among=FLOATS), lambda s: low <= len(s) <= 5 and 0 not in s, lambda: d.some_shape(low=low)
    )
    return x, x.shape or ()


def _positive(d: Draft, dtype: str, shape: Shape) -> Tensor:
    values = d.array_rng.random(shape) + 0.1
    return d.constant(values, dtype)


def batch_norm(d: Draft) -> Tensor:
    """Inference, with statistics that are constants as a rule."""
    x, shape = _image(d, "BatchNormalization", 2)
    channels = (shape[1],)
    dtypes = [x.dtype] * 4
    scale, bias, mean = (d.fresh(t, channels, constant=0.9) for t in dtypes[:3])
    return d.op(
        "BatchNormalization", x, scale, bias, mean, _positive(d, x.dtype, channels),
        epsilon=d.among(None, 1e-3, 0.1), momentum=d.among(None, 0.5),
    )  # fmt: skip


def instance_norm(d: Draft) -> Tensor:
    """Of each channel of each image."""
    x, shape = _image(d, "InstanceNormalization")
    scale, bias = (d.fresh(x.dtype, (shape[1],), constant=0.9) for _ in range(2))
    return d.op("InstanceNormalization", x, scale, bias, epsilon=d.among(None, 1e-3, 0.1))


def layer_norm(d: Draft) -> tuple[Tensor, ...]:
    """From any axis on, with statistics as outputs at times."""
    dtype = d.dtype_for("LayerNormalization", among=FLOATS)
    x = d.pick(dtype, lambda s: len(s) >= 1 and 0 not in s, lambda: d.some_shape(low=1))
    axis = an_axis(d, x.rank) if d.chance(0.5) else -1
    inner = (x.shape or ())[axis % x.rank :]
    scale = d.fresh(dtype, inner, constant=0.8)
    bias = d.fresh(dtype, inner, constant=0.8) if d.chance(0.7) else None
    return d.ops(
        "LayerNormalization", x, scale, bias, outputs=d.among(1, 1, 1, 3), axis=axis, epsilon=d.among(None, 1e-3, 0.1)
    )


def group_norm(d: Draft) -> Tensor:
    """The scale is of groups in opset 18, of channels from 21 on."""
    groups, each = d.between(1, 3), d.between(1, 3)
    tail = d.some_shape(low=1, high=2)
    x = d.fresh(
        d.dtype_for("GroupNormalization", among=FLOATS), (d.between(1, 2), groups * each, *(max(1, e) for e in tail))
    )
    count = (groups if d.opset < 21 else groups * each,)
    scale, bias = (d.fresh(x.dtype, count, constant=0.9) for _ in range(2))
    return d.op("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=d.among(None, 1e-3))


def rms_norm(d: Draft) -> Tensor:
    """From any axis on."""
    dtype = d.dtype_for("RMSNormalization", among=FLOATS)
    x = d.pick(dtype, lambda s: len(s) >= 1 and 0 not in s, lambda: d.some_shape(low=1))
    axis = an_axis(d, x.rank) if d.chance(0.4) else -1
    return d.op("RMSNormalization", x, d.fresh(dtype, (x.shape or ())[axis % x.rank :], constant=0.9), axis=axis)


def lrn(d: Draft) -> Tensor:
    """Over neighbouring channels."""
    x, _ = _image(d, "LRN")
    return d.op(
        "LRN",
        x,
        size=d.among(1, 3, 5),
        alpha=d.among(None, 1e-3, 0.5),
        beta=d.among(None, 0.5),
        bias=d.among(None, 2.0),
    )


def lp_norm(d: Draft) -> Tensor:
    """Along one axis."""
    x = d.pick(d.dtype_for("LpNormalization", among=FLOATS), non_scalar, lambda: d.some_shape(low=1))
    return d.op("LpNormalization", x, axis=an_axis(d, x.rank), p=d.among(None, 1, 2))


def mvn(d: Draft) -> Tensor:
    """Mean and variance of images."""
    x = d.pick(d.dtype_for("MeanVarianceNormalization", among=FLOATS), of_rank(4), lambda: d.some_shape(4))
    return d.op("MeanVarianceNormalization", x, axes=d.among(None, [0, 2, 3], [1, 2, 3], [2]))


def loss(op: str, d: Draft) -> Tensor:
    """Of class scores and labels."""
    batch, classes, tail = d.between(1, 4), d.between(1, 5), d.some_shape(low=1, high=1) if d.chance(0.4) else ()
    if 0 in tail:
        raise Unfit("empty")
    x = d.fresh(d.dtype_for(op, among=("float32", "float64")), (batch, classes, *tail))
    labels = d.fresh(d.among("int64", "int32"), (batch, *tail), Domain(0, classes - 1))
    weights = _positive(d, x.dtype, (classes,)) if d.chance(0.4) else None
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
