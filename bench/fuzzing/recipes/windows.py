"""Ops with windows that slide over one to three axes: convolutions and pools, in floats and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..draft import DraftTensor, InvalidNode, ModelDraft, Shape
from ..values import FLOATS, ValueDomain
from .recipe import Recipes, rank_in


def _pick_image(
    d: ModelDraft, op: str, count: int | None = None, dtype: str | None = None
) -> tuple[DraftTensor, Shape]:
    """A tensor with one to three axes after batch and channels."""
    ranks = (count + 2,) if count else d.among((4,), (4,), (3,), (5,))
    dtype = dtype or d.dtype_for(op, among=FLOATS)
    x = d.pick(
        dtype,
        lambda s: len(s) in ranks and 0 not in s and s[1] <= 24,
        lambda: (
            d.among(1, 1, 2),
            d.among(1, 2, 3, 4, 6, 8, 16, 17),
            *(d.between(3, 13 if ranks[0] == 4 else 7) for _ in range(ranks[0] - 2)),
        ),
    )
    return x, x.shape or ()


def _begin_inside(
    spatial: Shape, reach: Sequence[int], strides: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> bool:
    """Whether all windows begin before the end, if there are as many as reach beyond it: ONNX's inference counts others
    in some opsets, where its text says that there are none.
    """
    sides = zip(spatial, reach, strides, before, after, strict=True)
    return all(-(-(b + e + a - r) // s) * s < b + e for e, r, s, b, a in sides)


def window(
    d: ModelDraft, spatial: Shape, *, dilated: bool = True, ceil: bool = False, least_pad: bool = False
) -> dict[str, Any]:
    """Attributes of a window that fits at least once: kernel_shape, strides, dilations, pads or auto_pad."""
    kernel = [d.between(1, min(e + 1, 5)) if d.chance(0.9) else d.among(7, 9, 11, 13) for e in spatial]
    dilations = (
        [d.among(1, 1, 2, 3) if dilated and k > 1 else 1 for k in kernel] if d.chance(0.3) else [1] * len(kernel)
    )
    strides = [d.among(1, 1, 1, 2, 2, 3) for _ in kernel]
    reach = [(k - 1) * g + 1 for k, g in zip(kernel, dilations, strict=True)]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if d.chance(0.2) and max(dilations) == 1:
        auto = d.among("SAME_UPPER", "SAME_LOWER", "VALID")
        if auto == "VALID" and any(r > e for r, e in zip(reach, spatial, strict=True)):
            auto = "SAME_UPPER"
        attrs["auto_pad"] = auto
    else:
        before, after = [], []
        for r, e, k in zip(reach, spatial, kernel, strict=True):
            most = k - 1 if least_pad else r
            b, a = (most // 2, most // 2) if d.chance(0.5) else (d.between(0, most), d.between(0, most))
            if b + e + a < r:
                b = a = min(most, -(-(r - e) // 2))
            if b + e + a < r:
                raise InvalidNode("window too large")
            before.append(b)
            after.append(a)
        if any(before + after) or d.chance(0.3):
            attrs["pads"] = before + after
        if ceil and d.chance(0.25) and _begin_inside(spatial, reach, strides, before, after):
            attrs["ceil_mode"] = 1
    if any(s > 1 for s in strides) or d.chance(0.3):
        attrs["strides"] = strides
    if any(g > 1 for g in dilations) or d.chance(0.2):
        attrs["dilations"] = dilations
    return attrs


def conv(d: ModelDraft) -> DraftTensor:
    """Groups, depthwise, biases, weights that are constants as a rule."""
    x, shape = _pick_image(d, "Conv")
    attrs = window(d, shape[2:])
    group, outs = _channels(d, shape[1])
    w = d.fresh(x.dtype, (outs, shape[1] // group, *attrs["kernel_shape"]), constant=0.85)
    b = d.fresh(x.dtype, (outs,), constant=0.85) if d.chance(0.5) else None
    return d.op("Conv", x, w, b, group=group if group > 1 or d.chance(0.2) else None, **_with_optional_kernel(d, attrs))


def _channels(d: ModelDraft, channels: int) -> tuple[int, int]:
    """Numbers of groups and output channels."""
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    group = channels if d.chance(0.25) else d.rng.choice(divisors) if d.chance(0.3) else 1
    return group, group * d.among(1, 1, 2, 3) if group > 1 else d.among(1, 2, 3, 5, 8, 16, 17)


def _with_optional_kernel(d: ModelDraft, attrs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k != "kernel_shape" or d.chance(0.7)}


def conv_transpose(d: ModelDraft) -> DraftTensor:
    """With output padding and an output shape at times."""
    x, shape = _pick_image(d, "ConvTranspose")
    if prod(shape[1:]) > 120:  # the evaluator computes it element by element
        raise InvalidNode("large")
    count = len(shape) - 2
    group, outs = _channels(d, shape[1])
    outs = outs if group > 1 else min(outs, 5)
    kernel = [d.between(1, 4) for _ in range(count)]
    strides = [d.among(1, 1, 2, 3) for _ in range(count)]
    dilations = [d.among(1, 1, 1, 2) for _ in range(count)]
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "kernel_shape": kernel}
    if d.chance(0.4):
        attrs["pads"] = [d.between(0, (k - 1) // 2) for k in (*kernel, *kernel)]
    elif d.chance(0.2):
        attrs["auto_pad"] = d.among("SAME_UPPER", "SAME_LOWER", "VALID")
    if d.chance(0.3):
        attrs["output_padding"] = [d.between(0, max(s, g) - 1) for s, g in zip(strides, dilations, strict=True)]
    w = d.fresh(x.dtype, (shape[1], outs // group, *kernel), constant=0.85)
    b = d.fresh(x.dtype, (outs,), constant=0.85) if d.chance(0.5) else None
    return d.op("ConvTranspose", x, w, b, group=group if group > 1 else None, **_with_optional_kernel(d, attrs))


def pool(op: str, d: ModelDraft) -> tuple[DraftTensor, ...]:
    """All attributes of pools, and the indices of a maximum."""
    types = (*FLOATS, "int8", "uint8") if op == "MaxPool" else FLOATS
    x, shape = _pick_image(d, op, dtype=d.dtype_for(op, among=types))
    has_dilations = d.opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    has_ceil = d.opset >= {"MaxPool": 10, "AveragePool": 10, "LpPool": 18}[op]
    attrs = window(d, shape[2:], dilated=has_dilations, ceil=has_ceil, least_pad=True)
    if not has_dilations:
        attrs.pop("dilations", None)
    if op == "AveragePool":
        attrs["count_include_pad"] = d.among(None, 0, 1)
    if op == "LpPool":
        attrs["p"] = d.among(None, 1, 2, 3)
    if op == "MaxPool":
        attrs["storage_order"] = d.among(None, None, 0, 1)
    return d.ops(op, x, outputs=2 if op == "MaxPool" and d.chance(0.15) else 1, **attrs)


def whole_pool(op: str, d: ModelDraft) -> DraftTensor:
    """Over all of an image."""
    x, _ = _pick_image(d, op)
    return d.op(op, x, **({"p": d.among(None, 1, 3)} if op == "GlobalLpPool" else {}))


def max_unpool(d: ModelDraft) -> DraftTensor:
    """Back to where the maxima were. With another shape, ONNX's tests and ONNX Runtime count places differently."""
    x, shape = _pick_image(d, "MaxPool", 2, "float32")
    if min(shape[2:]) < 2 or any(extent % 2 for extent in shape[2:]):
        raise InvalidNode("odd")
    attrs: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, index = d.ops("MaxPool", x, outputs=2, **attrs)
    return d.op("MaxUnpool", y, index, **attrs)


def conv_integer(d: ModelDraft) -> DraftTensor:
    """Bytes, with zero points of one element."""
    x, shape = _pick_image(d, "ConvInteger", dtype=d.among("uint8", "int8"))
    attrs = window(d, shape[2:])
    group, outs = _channels(d, shape[1])
    w = d.fresh(d.among("uint8", "int8"), (outs, shape[1] // group, *attrs["kernel_shape"]), constant=0.9)
    zx = d.constant(d.between(0, 100), x.dtype) if d.chance(0.6) else None
    zw = d.constant(d.between(0, 100), w.dtype) if d.chance(0.4) else None
    return d.op("ConvInteger", x, w, zx, zw, group=group if group > 1 else None, **_with_optional_kernel(d, attrs))


def qlinear_conv(d: ModelDraft) -> DraftTensor:
    """Quantised throughout, with a scale for all or each channel."""
    x, shape = _pick_image(d, "QLinearConv", dtype=d.among("uint8", "int8"))
    attrs = window(d, shape[2:])
    group, outs = _channels(d, shape[1])
    wide = d.among("uint8", "int8") if x.dtype == "uint8" else "int8"
    w = d.fresh(wide, (outs, shape[1] // group, *attrs["kernel_shape"]), constant=0.95)
    scale_shape: Shape = (outs,) if d.chance(0.4) else ()
    sw = d.constant((d.array_rng.random(scale_shape) + 0.1) / 50, "float32", plain=True)
    zw = d.constant(np.zeros(scale_shape), wide, plain=True)
    b = d.constant(d.array_rng.integers(-200, 200, (outs,)), "int32", plain=True) if d.chance(0.5) else None
    y = x.dtype
    numbers = [
        d.constant(np.float32(d.among(0.02, 0.1, 0.031)), plain=True),
        d.constant(d.between(0, 100), x.dtype, plain=True),
    ]
    after = [d.constant(np.float32(d.among(0.05, 0.2, 0.13)), plain=True), d.constant(d.between(0, 100), y, plain=True)]
    return d.op(
        "QLinearConv",
        x,
        *numbers,
        w,
        sw,
        zw,
        *after,
        b,
        group=group if group > 1 else None,
        **_with_optional_kernel(d, attrs),
    )


def grid_sample(d: ModelDraft) -> DraftTensor:
    """Samples inside and outside of images."""
    x = d.pick(
        d.dtype_for("GridSample", among=("float32", "float64")),
        rank_in(4),
        lambda: (d.between(1, 2), d.between(1, 3), d.between(2, 6), d.between(2, 6)),
    )
    shape = x.shape or ()
    if 0 in shape:
        raise InvalidNode("empty")
    values = d.array_rng.uniform(-1.3, 1.3, (shape[0], d.between(1, 4), d.between(1, 4), 2))
    kinds = ("linear", "nearest", "cubic") if d.opset >= 20 else ("bilinear", "nearest", "bicubic")
    return d.op(
        "GridSample", x, d.constant(values, x.dtype), mode=d.among(None, *kinds),
        padding_mode=d.among(None, "zeros", "border", "reflection"), align_corners=d.among(None, 0, 1),
    )  # fmt: skip


def roi_align(d: ModelDraft) -> DraftTensor:
    """Boxes of images."""
    x, shape = _pick_image(d, "RoiAlign", 2, "float32")
    count = d.between(1, 3)
    low = d.array_rng.uniform(0, 2, (count, 2))
    boxes = np.concatenate([low, low + d.array_rng.uniform(0.5, 4, (count, 2))], axis=1)
    index = d.fresh("int64", (count,), ValueDomain(0, shape[0] - 1), constant=0.7)
    return d.op(
        "RoiAlign", x, d.constant(boxes, "float32"), index, mode=d.among(None, "avg", "max"),
        output_height=d.between(1, 3), output_width=d.between(1, 3), sampling_ratio=d.among(None, 1, 2),
        spatial_scale=d.among(None, 0.5),
        coordinate_transformation_mode=d.among(None, "half_pixel", "output_half_pixel") if d.opset >= 16 else None,
    )  # fmt: skip


def col2im(d: ModelDraft) -> DraftTensor:
    """Blocks summed up into an image."""
    h, w, kh, kw = d.between(2, 5), d.between(2, 5), d.between(1, 2), d.between(1, 2)
    n, c = d.between(1, 2), d.between(1, 3)
    x = d.fresh(d.dtype_for("Col2Im", among=("float32", "float64")), (n, c * kh * kw, (h - kh + 1) * (w - kw + 1)))
    return d.op("Col2Im", x, d.ints([h, w]), d.ints([kh, kw]))


def affine_grid(d: ModelDraft) -> DraftTensor:
    """Places for GridSample."""
    n = d.between(1, 2)
    theta = d.fresh(d.dtype_for("AffineGrid", among=("float32",)), (n, 2, 3))
    return d.op(
        "AffineGrid", theta, d.ints([n, 2, d.between(1, 4), d.between(2, 5)]), align_corners=d.among(None, 0, 1)
    )


def deform_conv(d: ModelDraft) -> DraftTensor:
    """A convolution with offsets of its taps."""
    n, c, h, w, k, outs = 1, d.between(1, 3), d.between(3, 5), d.between(3, 5), 2, d.between(1, 3)
    x = d.fresh("float32", (n, c, h, w))
    weight = d.fresh("float32", (outs, c, k, k))
    offset = d.constant(d.array_rng.uniform(-1, 1, (n, 2 * k * k, h - k + 1, w - k + 1)), "float32")
    bias = d.fresh("float32", (outs,)) if d.chance(0.5) else None
    mask = d.fresh("float32", (n, k * k, h - k + 1, w - k + 1)) if d.chance(0.5) else None
    return d.op("DeformConv", x, weight, offset, bias, mask, kernel_shape=[k, k])


WINDOWS: Recipes = {
    **{op: partial(pool, op) for op in ("AveragePool", "LpPool", "MaxPool")},
    **{op: partial(whole_pool, op) for op in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")},
    "AffineGrid": affine_grid,
    "Col2Im": col2im,
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "DeformConv": deform_conv,
    "GridSample": grid_sample,
    "MaxUnpool": max_unpool,
    "QLinearConv": qlinear_conv,
    "RoiAlign": roi_align,
}
