"""Transposed convolutions with strides, as dense convolutions with the taps of each phase of the stride."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from tunewright.graph.ir import Array, Node

from ..evaluation.onnx_form import inverse, is_channels_last, weight_last_from_first
from .edit import Edit, Result, each

MAX_PHASES = 16
"""Most convolutions that a transposed one becomes: each reads the input anew."""

FEATURES = 16
"""Features that are computed at a time: fewer take as long."""


class _Phase(NamedTuple):
    """The places `q * stride + number` along an axis: their first tap, how many there are, and what a Conv pads."""

    first_tap: int
    taps: int
    before: int
    after: int


class _Space(NamedTuple):
    """The spatial axes of a node: their phases, and the places of each phase."""

    is_last: bool  # channels
    strides: tuple[int, ...]
    phases: list[list[_Phase]]
    places: list[int]
    outputs: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.strides)

    @property
    def first_axis(self) -> int:
        return 1 if self.is_last else 2

    def shape(self, batch: int, space: Iterable[int], features: int) -> tuple[int, ...]:
        """Of an activation."""
        return (batch, *space, features) if self.is_last else (batch, features, *space)


@each("ConvTranspose")
def sub_kernels(edit: Edit, node: Node) -> Result:
    """Dense convolutions whose results interleave, where the input would be spread out with zeros between.

    Before: `y = ConvTranspose(x, w) strides=(2,) pads=(1, 1)`, x `[1, 3, 5]`, w `[3, 32, 4]`, y `[1, 32, 10]`.
    After: `a = Conv(x, u) pads=(1, 0); b = Conv(x, v) pads=(0, 1)`, of `[1, 32, 5]`, with every second tap, turned
    round; `y = Reshape(Concat(Reshape(a), Reshape(b)))`, of `[1, 32, 5, 2]`.
    Few features, as in w `[3, 2, 4]`: `c = Conv(x, t) pads=(1, 1)`, of `[1, 4, 5]`, and
    `y = Reshape(Transpose(Reshape(c)))`.
    """
    weight, shape, outputs = edit.array(node.inputs[1]), edit.shape(node.inputs[0]), edit.shape(node.outputs[0])
    if weight is None or shape is None or outputs is None or 0 in (*shape, *outputs):
        return None
    space = _space(node, shape, outputs)
    if space is None or not edit.may_round(node.outputs[0]):
        return None
    if space.is_last:
        weight = weight.transpose(inverse(weight_last_from_first(node.op, weight.ndim)))
    weight = _dense_order(weight, int(node.attrs["group"]))
    write = _together if _is_faster_together(space, node, len(weight)) else _one_by_one
    y = write(edit, node, space, weight, outputs[0])
    if edit.shape(y) == outputs:
        return y
    axes = tuple(range(space.first_axis, space.first_axis + space.rank))
    return edit.emit("Slice", y, starts=(0,) * len(axes), ends=space.outputs, axes=axes, steps=(1,) * len(axes))


def _space(node: Node, shape: tuple[int, ...], outputs: tuple[int, ...]) -> _Space | None:
    """The phases of each axis; None where there is one alone, or a Conv can't say them.

    Output `o = q * stride + number` has the taps `t` for which `o + pad - t` is a multiple of the stride.
    """
    is_last = is_channels_last(node)
    space = slice(1, -1) if is_last else slice(2, None)
    extents, ends = shape[space], outputs[space]
    strides, kernel, pads = (tuple(node.attrs[name]) for name in ("strides", "kernel_shape", "pads"))
    tiles = all(e * k == o for e, k, o in zip(extents, kernel, ends, strict=True))
    is_one_product = kernel == strides and tiles and not any(pads)
    is_dilated = any(dilation != 1 for dilation in node.attrs["dilations"])
    if is_one_product or is_dilated or not 1 < prod(strides) <= MAX_PHASES:
        return None
    places = [-(-end // stride) for end, stride in zip(ends, strides, strict=True)]
    phases: list[list[_Phase]] = []
    for stride, extent, pad, taps, count in zip(strides, extents, pads, kernel, places, strict=False):
        own = []
        for number in range(stride):
            turns, first_tap = divmod(number + pad, stride)
            own_taps = -(-(taps - first_tap) // stride)
            own.append(_Phase(first_tap, own_taps, own_taps - 1 - turns, count + turns - extent))
        phases.append(own)
    if any(phase.taps < 1 or phase.before < 0 or phase.after < 0 for own in phases for phase in own):
        return None
    return _Space(is_last, strides, phases, places, ends)


def _dense_order(weight: Array, groups: int) -> Array:
    """`[I, O / groups, *kernel]` as a Conv has it, `[O, I / groups, *kernel]`, turned round."""
    weight = np.flip(weight, tuple(range(2, weight.ndim)))
    weight = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
    return weight.reshape(-1, *weight.shape[2:])


def _is_faster_together(space: _Space, node: Node, features: int) -> bool:
    """Whether all phases are one convolution, with zeros for taps that a phase has not: where features are few."""
    kernel: tuple[int, ...] = node.attrs["kernel_shape"]
    if node.attrs["group"] != 1:
        return False
    whole = prod(max(p.before for p in own) + max(p.taps - p.before for p in own) for own in space.phases)
    vectors, all_vectors = -(-features // FEATURES), -(-features * prod(space.strides) // FEATURES)
    return whole * all_vectors < prod(kernel) * vectors


def _taps(weight: Array, space: _Space, phases: Sequence[_Phase]) -> Array:
    """The taps of a phase. In the weight, turned round, a tap `t` is at `extent - 1 - t`."""
    last = (extent - 1 - phase.first_tap for extent, phase in zip(weight.shape[2:], phases, strict=True))
    chosen = [slice(end % stride, end + 1, stride) for end, stride in zip(last, space.strides, strict=True)]
    return weight[:, :, *chosen]


def _convolution(edit: Edit, node: Node, space: _Space, weight: Array, bias: Sequence[str], pads: Iterable[int]) -> str:
    kernel = weight.shape[2:]
    if space.is_last:
        weight = weight.transpose(weight_last_from_first("Conv", weight.ndim))
    attrs = {
        "kernel_shape": kernel,
        "strides": (1,) * space.rank,
        "dilations": (1,) * space.rank,
        "group": node.attrs["group"],
        "pads": tuple(pads),
        **({"channels_last": 1} if space.is_last else {}),
    }
    return edit.emit("Conv", node.inputs[0], edit.constant(np.ascontiguousarray(weight)), *bias, **attrs)


def _together(edit: Edit, node: Node, space: _Space, weight: Array, batch: int) -> str:
    """One convolution that has the features of all phases, which are then moved between the places."""
    before = [max(phase.before for phase in own) for own in space.phases]
    counts = [max(phase.taps - phase.before for phase in own) + b for own, b in zip(space.phases, before, strict=True)]
    after = [max(phase.after for phase in own) for own in space.phases]
    parts = []
    for phases in product(*space.phases):
        part = np.zeros((*weight.shape[:2], *counts), weight.dtype)
        starts = [b - phase.before for b, phase in zip(before, phases, strict=True)]
        window = [slice(start, start + phase.taps) for start, phase in zip(starts, phases, strict=True)]
        part[:, :, *window] = _taps(weight, space, phases)
        parts.append(part)
    bias = [edit.emit("Concat", name, *[name] * (len(parts) - 1), axis=0) for name in node.inputs[2:] if name]
    y = _convolution(edit, node, space, np.concatenate(parts), bias, (*before, *after))
    rank, features = space.rank, len(weight)
    if space.is_last:
        y = edit.emit("Reshape", y, shape=(batch, *space.places, *space.strides, features))
        order = (0, *(axis for k in range(rank) for axis in (1 + k, 1 + rank + k)), 1 + 2 * rank)
    else:
        y = edit.emit("Reshape", y, shape=(batch, *space.strides, features, *space.places))
        order = (0, 1 + rank, *(axis for k in range(rank) for axis in (2 + rank + k, 1 + k)))
    whole = (q * s for q, s in zip(space.places, space.strides, strict=True))
    return edit.emit("Reshape", edit.emit("Transpose", y, perm=order), shape=space.shape(batch, whole, features))


def _one_by_one(edit: Edit, node: Node, space: _Space, weight: Array, batch: int) -> str:
    """A convolution for each phase, and their results interleaved along one axis after the other, from the last on."""
    parts = []
    for phases in product(*space.phases):
        pads = (*(phase.before for phase in phases), *(phase.after for phase in phases))
        parts.append(_convolution(edit, node, space, _taps(weight, space, phases), node.inputs[2:], pads))
    extents = list(space.places)
    for axis in reversed(range(space.rank)):
        stride, split = space.strides[axis], space.first_axis + axis + 1
        shape = space.shape(batch, extents, len(weight))
        pairs = (*shape[:split], 1, *shape[split:])
        extents[axis] *= stride
        whole = space.shape(batch, extents, len(weight))
        columns = [edit.emit("Reshape", part, shape=pairs) for part in parts]
        rows = [columns[start : start + stride] for start in range(0, len(columns), stride)]
        parts = [edit.emit("Reshape", edit.emit("Concat", *row, axis=split), shape=whole) for row in rows]
    return parts[0]
