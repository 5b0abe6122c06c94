"""Ops that move elements, choose some or repeat them."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from ..draft import DraftTensor, InvalidNode, ModelDraft, Shape, element_type
from ..values import ValueDomain
from .recipe import Recipes, pick_axes, pick_axis, rank_at_least, rank_in


def _pick(d: ModelDraft, op: str, rank: int = 0) -> tuple[DraftTensor, Shape]:
    x = d.pick(d.dtype_for(op), rank_at_least(rank), lambda: d.some_shape(low=rank))
    if x.shape is None:
        raise InvalidNode(op)
    return x, x.shape


def reshape(d: ModelDraft) -> DraftTensor:
    """Another shape of the same size, with -1 and 0 in it at times."""
    x, shape = _pick(d, "Reshape")
    size = prod(shape)
    if not size:
        new_shape = list(shape)
    else:
        new_shape, rest = [], size
        for _ in range(d.between(0, 3)):
            factor = d.rng.choice([n for n in range(1, rest + 1) if rest % n == 0][:12])
            new_shape.append(factor)
            rest //= factor
        new_shape.insert(d.between(0, len(new_shape)), rest)
        for axis, extent in enumerate(new_shape):
            if axis < len(shape) and shape[axis] == extent and d.chance(0.3):
                new_shape[axis] = 0
        if d.chance(0.4):
            new_shape[d.rng.randrange(len(new_shape))] = -1
    allowzero = d.among(None, 0) if d.opset >= 14 else None
    return d.op("Reshape", x, d.ints(new_shape), allowzero=allowzero)


def transpose(d: ModelDraft) -> DraftTensor:
    """Any order, the usual ones of images rather."""
    x, shape = _pick(d, "Transpose", 1)
    if len(shape) == 4 and d.chance(0.5):
        perm = d.among([0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2], [0, 2, 1, 3])
    else:
        perm = d.rng.sample(range(len(shape)), len(shape))
    return d.op("Transpose", x, perm=None if d.chance(0.15) else perm)


def squeeze(d: ModelDraft) -> DraftTensor:
    """Remove axes of one element."""
    x = d.pick(d.dtype_for("Squeeze"), lambda shape: 1 in shape, lambda: (*d.some_shape(2), 1))
    ones = [axis for axis, extent in enumerate(x.shape or ()) if extent == 1]
    axes = None if d.chance(0.3) else d.rng.sample(ones, d.between(1, len(ones)))
    if d.opset >= 13:
        return d.op("Squeeze", x, d.ints(axes) if axes else None)
    return d.op("Squeeze", x, axes=sorted(axes) if axes else None)  # inference has another shape for others


def unsqueeze(d: ModelDraft) -> DraftTensor:
    """Insert axes of one element."""
    x, shape = _pick(d, "Unsqueeze")
    count = d.among(1, 1, 2)
    axes = d.rng.sample(range(len(shape) + count), count)
    if d.opset >= 11:
        axes = [axis - len(shape) - count if d.chance(0.3) else axis for axis in axes]
    else:
        axes.sort()
    if d.opset >= 13:
        return d.op("Unsqueeze", x, d.ints(axes))
    return d.op("Unsqueeze", x, axes=axes)


def flatten(d: ModelDraft) -> DraftTensor:
    """A matrix of any tensor."""
    x, shape = _pick(d, "Flatten", 0)
    axis = d.between(0, len(shape))
    if d.opset >= 11 and axis < len(shape) and d.chance(0.3):
        axis -= len(shape)
    return d.op("Flatten", x, axis=None if d.chance(0.3) and len(shape) else axis)


def expand(d: ModelDraft) -> DraftTensor:
    """Broadcasting, two ways."""
    x, shape = _pick(d, "Expand")
    new_shape = [d.among(1, 2, 3) if e == 1 else d.among(1, e) for e in shape]
    if d.chance(0.3):
        new_shape = [d.among(1, 2), *new_shape]
    elif new_shape and d.chance(0.2):
        new_shape = new_shape[1:]
    return d.op("Expand", x, d.ints(new_shape))


def tile(d: ModelDraft) -> DraftTensor:
    """Repeated along axes; not at all along some."""
    x, shape = _pick(d, "Tile", 1)
    return d.op("Tile", x, d.ints([d.among(1, 1, 2, 3, 0 if d.chance(0.1) else 1) for _ in shape]))


def slice_op(d: ModelDraft) -> DraftTensor:
    """Slices: negative starts, steps and ends beyond the end."""
    x, shape = _pick(d, "Slice", 1)
    axes = sorted(set(d.rng.sample(range(len(shape)), d.between(1, len(shape)))))
    starts, ends, steps = [], [], []
    for axis in axes:
        e = shape[axis]
        backwards = d.opset >= 10 and d.chance(0.2)
        start = d.between(0, max(e - 1, 0))
        end = d.between(start, e) if not backwards else d.between(-1, start)
        steps.append(-d.among(1, 2) if backwards else d.among(1, 1, 1, 2, 3))
        starts.append(start - e if d.chance(0.3) and start < e else start)
        if backwards:
            ends.append(-(e + 1) if end < 0 else end)
        else:
            ends.append(
                d.among(2**31 - 1, 10**6, 2**63 - 1) if d.chance(0.3) else end - e if end < e and d.chance(0.3) else end
            )
    if d.opset < 10:
        return d.op("Slice", x, axes=axes, starts=starts, ends=ends)
    if d.chance(0.3):
        axes = [axis - len(shape) for axis in axes]
    kind = d.among("int64", "int64", "int32")
    if kind == "int32":
        ends = [min(end, 2**31 - 1) for end in ends]
    rest = (
        [d.ints(axes, kind), d.ints(steps, kind)]
        if any(s != 1 for s in steps) or d.chance(0.5)
        else [d.ints(axes, kind)]
    )
    return d.op("Slice", x, d.ints(starts, kind), d.ints(ends, kind), *rest)


def split(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Equal parts or any."""
    x, shape = _pick(d, "Split", 1)
    axis = pick_axis(d, len(shape)) if d.opset >= 11 else d.between(0, len(shape) - 1)
    extent = shape[axis]
    count = d.between(1, min(max(extent, 1), 3))
    first = [d.between(0 if d.chance(0.1) else min(1, extent // count), extent // count) for _ in range(count - 1)]
    parts = [*first, extent - sum(first)]
    if d.chance(0.3) and extent % count == 0:
        extra: dict[str, Any] = {"num_outputs": count} if d.opset >= 18 else {}
        return d.ops("Split", x, outputs=count, axis=axis, **extra)
    if d.opset >= 13:
        return d.ops("Split", x, d.ints(parts), outputs=count, axis=axis)
    return d.ops("Split", x, outputs=count, axis=axis, split=parts)


def concat(d: ModelDraft) -> DraftTensor:
    """Two to four, some of them the same."""
    x, shape = _pick(d, "Concat", 1)
    axis = d.between(0, len(shape) - 1)

    def fits(other: Shape) -> bool:
        return len(other) == len(shape) and all(
            a == b for k, (a, b) in enumerate(zip(other, shape, strict=True)) if k != axis
        )

    others = [
        d.pick(x.dtype, fits, lambda: tuple(d.among(1, 2, 3) if k == axis else e for k, e in enumerate(shape)))
        for _ in range(d.among(0, 1, 1, 2, 3))
    ]
    return d.op("Concat", x, *others, axis=axis - len(shape) if d.opset >= 11 and d.chance(0.3) else axis)


def pad(d: ModelDraft) -> DraftTensor:
    """All modes, negative pads too; reflection may be wider than the axis only where ONNX has a meaning for it."""
    x, shape = _pick(d, "Pad", 1)
    mode = d.among("constant", "constant", "edge", "reflect", *(("wrap",) if d.opset >= 19 else ()))
    if 0 in shape and mode != "constant":
        raise InvalidNode("nothing to repeat")
    most = [3 if mode in ("constant", "edge") else max(e - 1, 0) for e in shape]
    pads = [d.among(0, 0, min(m, 1), min(m, 2), m) for m in (*most, *most)]
    for axis, e in enumerate(shape):
        if e > 3 and mode == "constant" and d.chance(0.15):
            pads[axis] = -d.among(1, 2)
        elif e > 3 and mode in ("edge", "reflect") and d.chance(0.05):
            pads[axis + len(shape)] = -1
    value = d.number(0.0, 1.0, -1.0) if d.chance(0.4) and mode == "constant" else None
    if d.opset < 11:
        return d.op("Pad", x, mode=mode, pads=pads, value=value)
    axes = None
    if d.opset >= 18 and d.chance(0.3):
        padded_axes = d.rng.sample(range(len(shape)), d.between(1, len(shape)))
        pads = [pads[a] for a in padded_axes] + [pads[a + len(shape)] for a in padded_axes]
        axes = d.ints([a - len(shape) if d.chance(0.3) else a for a in padded_axes])
    border = None if value is None else d.constant(np.asarray(value), x.dtype)
    return d.op("Pad", x, d.ints(pads), border, axes, mode=None if mode == "constant" and d.chance(0.5) else mode)


def _indices(d: ModelDraft, extent: int, shape: Shape) -> DraftTensor:
    if not extent:
        raise InvalidNode("no element to choose")
    return d.fresh(
        d.among("int64", "int32"), shape, ValueDomain(-extent if d.opset >= 11 else 0, extent - 1), constant=0.5
    )


def gather(d: ModelDraft) -> DraftTensor:
    """Slices by index."""
    x, shape = _pick(d, "Gather", 1)
    axis = pick_axis(d, len(shape))
    return d.op("Gather", x, _indices(d, shape[axis], d.some_shape(high=2)), axis=axis)


def gather_elements(d: ModelDraft) -> DraftTensor:
    """Elements by index along an axis."""
    x, shape = _pick(d, "GatherElements", 1)
    axis = pick_axis(d, len(shape))
    at = axis % len(shape)
    index_shape = tuple(d.between(1, 6) if k == at else d.between(min(e, 1), e) for k, e in enumerate(shape))
    return d.op("GatherElements", x, _indices(d, shape[axis], index_shape), axis=axis)


def gather_nd(d: ModelDraft) -> DraftTensor:
    """Slices by index vectors."""
    x, shape = _pick(d, "GatherND", 1)
    batch = d.between(0, len(shape) - 1) if d.opset >= 12 and d.chance(0.4) else 0
    depth = d.between(1, len(shape) - batch)
    extent = min(shape[batch : batch + depth], default=0)
    index_shape = (*shape[:batch], *d.some_shape(high=1), depth)
    if not extent:
        raise InvalidNode("no element to choose")
    index = d.fresh("int64", index_shape, ValueDomain(-extent if d.opset >= 12 else 0, extent - 1), constant=0.5)
    return d.op("GatherND", x, index, batch_dims=batch or None)


def scatter_elements(op: str, d: ModelDraft) -> DraftTensor:
    """Elements put elsewhere; each place once unless they are joined."""
    x, shape = _pick(d, op, 1)
    axis = pick_axis(d, len(shape)) if d.opset >= 11 else d.between(0, len(shape) - 1)
    at = axis % len(shape)
    reduction = (
        d.among(None, "add", "mul", *(("max", "min") if d.opset >= 18 else ()))
        if d.opset >= 16 and op != "Scatter"
        else None
    )
    update_shape = tuple(d.between(min(e, 1), e) for e in shape)
    if not prod(update_shape):
        raise InvalidNode("nothing to put")
    order = d.array_rng.permuted(
        np.broadcast_to(np.arange(shape[at]), (*update_shape[:at], *update_shape[at + 1 :], shape[at])), axis=-1
    )
    index = np.moveaxis(order[..., : update_shape[at]], -1, at)
    updates = d.fresh(x.dtype, update_shape)
    return d.op(op, x, d.constant(index.astype(np.int64), plain=True), updates, axis=axis, reduction=reduction)


def scatter_nd(d: ModelDraft) -> DraftTensor:
    """Slices put elsewhere, each place once."""
    x, shape = _pick(d, "ScatterND", 1)
    depth = d.between(1, len(shape))
    places = prod(shape[:depth])
    if not places:
        raise InvalidNode("no place")
    count = d.between(1, min(places, 5))
    flat = d.array_rng.permutation(places)[:count]
    index = np.stack(np.unravel_index(flat, shape[:depth]), axis=-1).astype(np.int64)
    reduction = d.among(None, None, "add", "mul") if d.opset >= 16 else None
    return d.op(
        "ScatterND", x, d.constant(index, plain=True), d.fresh(x.dtype, (count, *shape[depth:])), reduction=reduction
    )


def blocks(op: str, d: ModelDraft) -> DraftTensor:
    """Between channels and blocks of the image."""
    size = d.among(2, 2, 3)
    n, c, h, w = d.between(1, 2), d.between(1, 3), d.between(1, 4), d.between(1, 4)
    shape = (n, c * size * size, h, w) if op == "DepthToSpace" else (n, c, h * size, w * size)
    x = d.pick(d.dtype_for(op), lambda s: s == shape, lambda: shape)
    mode = d.among(None, "DCR", "CRD") if op == "DepthToSpace" and d.opset >= 11 else None
    return d.op(op, x, blocksize=size, mode=mode)


NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def resize(d: ModelDraft) -> DraftTensor:
    """By scales or to sizes, in all modes that the opset has."""
    x = d.pick(
        d.dtype_for("Resize", among=("float32", "float32", "float16", "float64", "uint8")),
        rank_in(3, 4),
        lambda: (*d.some_shape(2), d.between(2, 6), d.between(2, 7)),
    )
    shape = x.shape or ()
    if 0 in shape:
        raise InvalidNode("empty")
    scales = [1.0, 1.0, *(d.among(1.0, 2.0, 3.0, 0.5, 1.5, 0.7, 2.3) for _ in shape[2:])]
    if d.opset < 11:
        return d.op(
            "Resize", x, d.constant(np.array(scales, np.float32), plain=True), mode=d.among("nearest", "linear")
        )
    mode = d.among("nearest", "nearest", "linear", "cubic")
    if mode == "cubic" and len(shape) != 4:
        mode = "linear"
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": d.among(
            None, "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
            *(("half_pixel_symmetric",) if d.opset >= 19 else ()),
        ),
        "nearest_mode": d.among(None, *NEAREST) if mode == "nearest" else None,
        "cubic_coeff_a": d.among(None, -0.5) if mode == "cubic" else None,
        "exclude_outside": d.among(None, 0, 1) if mode == "cubic" else None,
        "antialias": d.among(None, 0, 1) if d.opset >= 18 and mode != "nearest" else None,
    }  # fmt: skip
    roi = None if d.opset >= 13 else d.constant(np.zeros(0, np.float32), plain=True)
    if d.chance(0.5):
        return d.op("Resize", x, roi, d.constant(np.array(scales, np.float32), plain=True), **attrs)
    empty = None if d.opset >= 13 else d.constant(np.zeros(0, np.float32), plain=True)
    sizes = [*shape[:2], *(max(1, round(e * s)) for e, s in zip(shape[2:], scales[2:], strict=True))]
    return d.op("Resize", x, roi, empty, d.ints(sizes), **attrs)


def upsample(d: ModelDraft) -> DraftTensor:
    """Upsample of opset 9."""
    x = d.pick(d.dtype_for("Upsample", among=("float32",)), rank_in(4), lambda: (1, d.between(1, 3), 3, 5))
    scales = [1.0, 1.0, d.among(1.0, 2.0, 3.0), d.among(1.0, 2.0)]
    return d.op("Upsample", x, d.constant(np.array(scales, np.float32), plain=True), mode=d.among("nearest", "linear"))


def trilu(d: ModelDraft) -> DraftTensor:
    """A triangle."""
    x, _ = _pick(d, "Trilu", 2)
    return d.op(
        "Trilu",
        x,
        d.constant(np.array(d.between(-3, 3)), plain=True) if d.chance(0.6) else None,
        upper=d.among(None, 0, 1),
    )


def one_hot(d: ModelDraft) -> DraftTensor:
    """Indices, some of them outside; before opset 11 there are none from the end."""
    depth = d.among(1, 3, 7)
    shape, lowest = d.some_shape(high=2), -depth - 1 if d.chance(0.3) else -depth
    index = d.fresh("int64", shape, ValueDomain(0 if d.opset < 11 else lowest, depth - 1))
    values = d.constant(
        np.array([d.number(0.0), d.number(1.0)]), d.dtype_for("OneHot", 2, ("float32", "int64", "float64"))
    )
    return d.op("OneHot", index, d.ints([depth]) if d.chance(0.3) else d.ints(depth), values, axis=d.among(None, -1, 0))


def reverse_sequence(d: ModelDraft) -> DraftTensor:
    """The first so many of each."""
    x = d.pick(d.dtype_for("ReverseSequence"), rank_at_least(2), lambda: d.some_shape(low=2))
    axes = d.among((0, 1), (1, 0))
    shape = x.shape or ()
    if not shape[axes[0]]:
        raise InvalidNode("empty")
    lengths = d.fresh("int64", (shape[axes[1]],), ValueDomain(1, shape[axes[0]]))
    return d.op("ReverseSequence", x, lengths, time_axis=axes[0], batch_axis=axes[1])


def compress(d: ModelDraft) -> DraftTensor:
    """The elements that a mask selects."""
    x, shape = _pick(d, "Compress", 1)
    axis = pick_axis(d, len(shape)) if d.chance(0.7) else None
    if axis is not None and d.opset < 11:
        axis %= len(shape)
    count = shape[axis] if axis is not None else prod(shape)
    return d.op("Compress", x, d.fresh("bool", (max(1, count - d.among(0, 0, 1)),)), axis=axis)


def non_zero(d: ModelDraft) -> DraftTensor:
    """The indices of nonzero elements."""
    x, _ = _pick(d, "NonZero", 1)
    return d.op("NonZero", x)


def unique(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Unique elements or slices; those of vectors in order of first occurrence too, for which the evaluator has it."""
    x, shape = _pick(d, "Unique", 1)
    axis = pick_axis(d, len(shape)) if d.chance(0.3) else None
    order = d.among(0, 1) if axis is None and len(shape) == 1 else 1
    return d.ops("Unique", x, outputs=d.among(1, 2, 4), axis=axis, sorted=order)


def shape_of(op: str, d: ModelDraft) -> DraftTensor:
    """The shape or the size."""
    x = d.pick(d.dtype_for(op), known=False)
    attrs = {"start": d.among(None, 0, 1, -1), "end": d.among(None, 2, -1)} if op == "Shape" and d.opset >= 15 else {}
    return d.op(op, x, **attrs)


def constant_of_shape(d: ModelDraft) -> DraftTensor:
    """One value all over, of a shape that is known or computed."""
    shape = d.ints(list(d.some_shape())) if d.chance(0.5) else d.op("Shape", d.pick(d.main))
    dtype = d.among("float32", "int64", "bool", "float64", "float16")
    value = helper.make_tensor("value", element_type(dtype), [1], [d.among(0, 1, 3)])
    return d.op("ConstantOfShape", shape, value=None if d.chance(0.3) else value)


def range_of(d: ModelDraft) -> DraftTensor:
    """From, to, step."""
    dtype = d.dtype_for("Range", among=("float32", "int64", "int32", "float64"))
    start, count, step = d.between(-3, 3), d.between(0, 9), d.among(1, 2, -1, 3)
    values = [start, start + count * step, step]
    return d.op("Range", *(d.constant(np.array(v), dtype, plain=True) for v in values))


def eye_like(d: ModelDraft) -> DraftTensor:
    """Ones on a diagonal."""
    x = d.pick(d.dtype_for("EyeLike"), rank_in(2), lambda: d.some_shape(2))
    return d.op("EyeLike", x, k=d.among(None, 0, 1, -2))


def center_crop_pad(d: ModelDraft) -> DraftTensor:
    """Cut or padded to a size."""
    x, shape = _pick(d, "CenterCropPad", 1)
    axes = pick_axes(d, len(shape)) if d.chance(0.5) else list(range(len(shape)))
    extents = [d.between(1, 8) for _ in axes]
    return d.op("CenterCropPad", x, d.ints(extents), axes=axes if len(axes) < len(shape) or d.chance(0.5) else None)


def top_k(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """The largest or smallest, and where they were."""
    x, shape = _pick(d, "TopK", 1)
    axis = pick_axis(d, len(shape))
    k = d.between(0 if d.chance(0.05) else min(1, shape[axis]), shape[axis])
    extra: dict[str, Any] = {"largest": d.among(None, 0, 1), "sorted": 1} if d.opset >= 11 else {}
    return d.ops("TopK", x, d.ints([k]), outputs=2, axis=axis, **extra)


def tensor_scatter(d: ModelDraft) -> DraftTensor:
    """A cache that is written to."""
    batch, length, depth, count = d.between(1, 2), d.between(3, 6), d.between(1, 4), d.between(1, 2)
    cache = d.fresh(d.dtype_for("TensorScatter"), (batch, length, depth))
    update = d.fresh(cache.dtype, (batch, count, depth))
    mode = d.among("linear", "circular")
    where = d.fresh("int64", (batch,), ValueDomain(0, length - count)) if d.chance(0.8) else None
    return d.op("TensorScatter", cache, update, where, mode=mode, axis=1)


MOVEMENT: Recipes = {
    **{op: partial(blocks, op) for op in ("DepthToSpace", "SpaceToDepth")},
    **{op: partial(scatter_elements, op) for op in ("ScatterElements", "Scatter")},
    **{op: partial(shape_of, op) for op in ("Shape", "Size")},
    "CenterCropPad": center_crop_pad,
    "Compress": compress,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "EyeLike": eye_like,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "NonZero": non_zero,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": range_of,
    "Reshape": reshape,
    "Resize": resize,
    "ReverseSequence": reverse_sequence,
    "ScatterND": scatter_nd,
    "Slice": slice_op,
    "Split": split,
    "Squeeze": squeeze,
    "TensorScatter": tensor_scatter,
    "Tile": tile,
    "TopK": top_k,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unique": unique,
    "Unsqueeze": unsqueeze,
    "Upsample": upsample,
}
