"""Pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .. import windows
from ..ir import Array
from .corrected import Corrected, widened


class MaxPool(Corrected):
    """The largest of each window, and where in the tensor it is."""

    def _run(self, x: Any, **_: Any) -> tuple[Array, ...]:
        attrs, counts, inner = _plan(self._attrs(), x)
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        values = _windows(x, attrs, counts, lowest)
        largest = values.max(axis=inner, initial=lowest)
        if len(self.onnx_node.output) < 2:
            return (largest,)
        found = values == np.expand_dims(largest, inner)
        found |= values != values  # a NaN is the largest
        found &= _windows(np.ones_like(x, np.bool_), attrs, counts, False)
        first = found.reshape(*largest.shape, prod(attrs["kernel_shape"])).argmax(axis=-1)
        return largest, _flat(first, attrs, x.shape, columns_first=bool(self._attrs().get("storage_order", 0)))


class AveragePool(Corrected):
    """The mean of each window, of the elements in the tensor or, on demand, of those in its padding too."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        attrs, counts, inner = _plan(self._attrs(), x)
        before, after = np.reshape(attrs["pads"], (2, -1)) * int(bool(self._attrs().get("count_include_pad", 0)))
        around = [(0, 0), (0, 0), *zip(before, after, strict=True)]
        counted = np.pad(np.ones((1, 1, *x.shape[2:]), np.bool_), around, constant_values=True)
        own = {**attrs, "pads": tuple(pad - more for pad, more in zip(attrs["pads"], (*before, *after), strict=True))}
        wide = widened(x)
        total = _windows(wide, attrs, counts, 0).sum(axis=inner)
        return (np.asarray(total / _windows(counted, own, counts, False).sum(axis=inner)).astype(x.dtype),)


class LpPool(Corrected):
    """The norm of each window."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        attrs, counts, inner = _plan(self._attrs(), x)
        p = self._attrs().get("p", 2)
        wide = np.abs(widened(x)) ** p
        return (np.asarray(_windows(wide, attrs, counts, 0).sum(axis=inner) ** (1 / p)).astype(x.dtype),)


def _plan(given: Mapping[str, Any], x: Any) -> tuple[dict[str, Any], list[int], tuple[int, ...]]:
    """Explicit attributes of a pool, how many windows there are along each axis, and the axes within a window."""
    extents = x.shape[2:]
    attrs = windows.explicit(given, extents, given["kernel_shape"])
    counts = windows.places(attrs, extents, ceil=bool(given.get("ceil_mode", 0)))
    return attrs, counts, tuple(range(2 + len(extents), x.ndim + len(extents)))


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
        wide = widened(x)
        total = np.sum(wide, axis=tuple(range(2, x.ndim)), keepdims=True)
        return (np.asarray(total / np.float32(prod(x.shape[2:]))).astype(x.dtype),)


class GlobalMaxPool(Corrected):
    """The largest of each channel."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(Corrected):
    """The norm of each channel."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        p = self._attrs().get("p", 2)
        total = np.sum(np.abs(widened(x)) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
        return (np.asarray(total ** (1 / p)).astype(x.dtype),)
