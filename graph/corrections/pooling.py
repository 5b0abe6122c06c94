"""Pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .. import windows
from ..ir import Array
from .corrected import Corrected


class MaxPool(Corrected):
    """The largest of each window, and where in the tensor it is."""

    def _run(self, x: Any, **_: Any) -> tuple[Array, ...]:
        given = self._attrs()
        extents = x.shape[2:]
        attrs = windows.explicit(given, extents, given["kernel_shape"])
        counts = windows.places(attrs, extents, ceil=bool(given.get("ceil_mode", 0)))
        inner = tuple(range(2 + len(extents), x.ndim + len(extents)))
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        values = _windows(x, attrs, counts, lowest)
        largest = values.max(axis=inner, initial=lowest)
        if len(self.onnx_node.output) < 2:
            return (largest,)
        found = values == np.expand_dims(largest, inner)
        found |= values != values  # a NaN is the largest
        found &= _windows(np.ones_like(x, np.bool_), attrs, counts, False)
        first = found.reshape(*largest.shape, prod(attrs["kernel_shape"])).argmax(axis=-1)
        return largest, _flat(first, attrs, x.shape, columns_first=bool(given.get("storage_order", 0)))


def _windows(x: Any, attrs: Mapping[str, Any], counts: Sequence[int], outside: Any) -> Any:
    """`[N, C, *counts, *kernel]`: a view of the input with `outside` around it."""
    reach = windows.reaches(attrs["kernel_shape"], attrs["dilations"])
    widths = [(0, 0), (0, 0)]
    for extent, before, count, stride, span in zip(
        x.shape[2:], attrs["pads"], counts, attrs["strides"], reach, strict=False
    ):
        widths.append((before, max((count - 1) * stride + span - extent - before, 0)))
    padded = np.pad(x, widths, constant_values=outside)
    if 0 in counts:
        return np.empty((*x.shape[:2], *counts, *attrs["kernel_shape"]), x.dtype)
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, x.ndim)))
    steps = [slice(None, count * stride, stride) for count, stride in zip(counts, attrs["strides"], strict=True)]
    taps = [slice(None, None, dilation) for dilation in attrs["dilations"]]
    return views[(slice(None), slice(None), *steps, *taps)]


def _flat(taps: Any, attrs: Mapping[str, Any], shape: Sequence[int], *, columns_first: bool) -> Array:
    """Where the tap of each window lies in the flat input, whose axes are in order or the spatial ones reversed."""
    places = np.indices(taps.shape, sparse=True)
    offsets = np.unravel_index(taps, attrs["kernel_shape"])
    within = [
        place * stride - before + offset * dilation
        for place, stride, before, offset, dilation in zip(
            places[2:], attrs["strides"], attrs["pads"], offsets, attrs["dilations"], strict=False
        )
    ]
    spatial = list(zip(within, shape[2:], strict=True))
    flat = places[0] * shape[1] + places[1]
    area = 0
    for at, extent in spatial[::-1] if columns_first else spatial:
        area = area * extent + at
    return np.asarray(flat * prod(shape[2:]) + area, np.int64)


class GlobalAveragePool(Corrected):
    """The mean of each channel."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        wide = np.asarray(x, np.result_type(x.dtype, np.float32))
        total = np.sum(wide, axis=tuple(range(2, x.ndim)), keepdims=True)
        return (np.asarray(total / np.float32(prod(x.shape[2:]))).astype(x.dtype),)


class GlobalLpPool(Corrected):
    """The norm of each channel."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        p = self._attrs().get("p", 2)
        total = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
        return (np.asarray(total ** (1 / p), x.dtype),)
