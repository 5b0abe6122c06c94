"""Convolutions at places that are computed, and what puts the largest elements back where they were."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ..evaluation.onnx_form import IN_ELEMENTS
from .call import ContribCall, Unsupported, standard_op


@standard_op("DeformConv")
def _deform_conv(call: ContribCall) -> str:
    """Every tap of each place has an offset of its own: a GridSample of images, then products with the weights.

    Channels of an offset group share the offsets `[N, groups * taps * 2, *places]`, rows before columns.
    """
    x, w, offsets = (call.operand(name) for name in ("X", "W", "offset"))
    (batch, channels, *extents), (out_channels, _, *kernel) = call.shape(x), call.shape(w)
    groups, offset_groups = call.count("group"), call.count("offset_group")
    places, taps = call.shape(offsets)[2:], prod(kernel)
    if len(extents) != 2 or 0 in (*call.shape(x), *call.shape(w), *call.shape(offsets)):
        raise Unsupported("what is no image, or has no elements")
    if call.shape(offsets)[1] != offset_groups * taps * 2 or channels % offset_groups or channels % groups:
        raise Unsupported("offsets or groups of another number")
    grid = call.emit("Add", _by_tap(call, offsets, batch * offset_groups, taps, 2), _corners(call, kernel, places))
    grid = call.emit("Transpose", grid, perm=[0, 1, 3, 4, 2])  # [N * groups, taps, rows, columns, (y, x)]
    grid = call.emit("Gather", grid, call.constant([1, 0], "int64"), axis=-1)
    grid = call.reshape(grid, batch * offset_groups, taps * places[0], places[1], 2)
    images = call.reshape(x, batch * offset_groups, channels // offset_groups, *extents)
    kind = replace(call.kind(x), shape=(*call.shape(images)[:2], taps * places[0], places[1]))
    attrs = {"mode": "linear", "padding_mode": "zeros", IN_ELEMENTS: True}
    samples = call.emit_own("GridSample", [images, grid], kind, **attrs)
    if mask := call.operand("mask"):
        factors = _by_tap(call, mask, batch * offset_groups, taps, 1)
        factors = call.reshape(factors, batch * offset_groups, 1, taps * places[0], places[1])
        samples = call.emit("Mul", samples, factors)
    columns = call.reshape(samples, batch, groups, channels // groups * taps, prod(places))
    weights = call.reshape(w, groups, out_channels // groups, channels // groups * taps)
    result = call.reshape(call.emit("MatMul", weights, columns), batch, out_channels, *places)
    bias = call.operand("B")
    return call.emit("Add", result, call.reshape(bias, out_channels, 1, 1)) if bias else result


def _by_tap(call: ContribCall, name: str, images: int, taps: int, parts: int) -> str:
    """`[N, groups * taps * parts, *places]` as `[N * groups, taps, parts, *places]`."""
    return call.reshape(name, images, taps, parts, *call.shape(name)[2:])


def _corners(call: ContribCall, kernel: list[int], places: tuple[int, ...]) -> str:
    """Where the taps are without offsets, `[taps, 2, *places]`, in elements."""
    strides, dilations = (call.attr(name) or (1, 1) for name in ("strides", "dilations"))
    before = (call.attr("pads") or (0, 0, 0, 0))[:2]
    at = [
        np.arange(places[k]) * strides[k] - before[k] + np.arange(kernel[k])[:, None] * dilations[k] for k in range(2)
    ]
    shape = (*kernel, *places)
    rows = np.broadcast_to(at[0][:, None, :, None], shape)
    columns = np.broadcast_to(at[1][None, :, None, :], shape)
    whole = np.stack([rows, columns], 2).reshape(prod(kernel), 2, *places)
    return call.constant(whole, call.kind(call.operand("X")).dtype)


@standard_op("MaxUnpool")
def _max_unpool(call: ContribCall) -> str:
    """Zeros, with the elements at the places that indices count through the whole result."""
    x, indices, wanted = call.operand("X"), call.operand("I"), call.operand("output_shape")
    shape, kernel = call.shape(x), call.attr("kernel_shape")
    strides, pads = call.attr("strides") or (1,) * len(kernel), call.attr("pads") or (0,) * (2 * len(kernel))
    sides = zip(shape[2:], kernel, strides, pads, pads[len(kernel) :], strict=False)
    inner = [(extent - 1) * stride - before - after + size for extent, size, stride, before, after in sides]
    whole = (*shape[:2], *inner)
    if 0 in shape or min(inner) < 1:
        raise Unsupported("no elements")
    zeros = call.constant(np.zeros(prod(whole)), call.kind(x).dtype)
    flat = call.emit("ScatterElements", zeros, call.reshape(indices, -1), call.reshape(x, -1))
    result = call.reshape(flat, *whole)
    if not wanted:
        return result
    more = np.subtract(call.numbers("output_shape"), whole)
    if more.min() < 0:
        raise Unsupported("a shape that is smaller than what is there")
    return call.emit("Pad", result, call.constant([0] * len(shape) + more.tolist(), "int64")) if more.any() else result
