"""Ops that move elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ..ir import Array
from .corrected import Corrected


class CastLike(Corrected):
    """The values of one tensor in the type of another."""

    def _run(self, x: Array, like: Array, **_: Any) -> tuple[Array]:
        return (x.astype(like.dtype),)


class Flatten(Corrected):
    """Two axes of all."""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        axis = self._attrs().get("axis", 1)
        return (x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])),)


class GatherElements(Corrected):
    """Single elements, each chosen along one axis."""

    def _run(self, data: Array, indices: Any, **_: Any) -> tuple[Array]:
        axis = self._attrs().get("axis", 0) % data.ndim
        part = tuple(slice(None) if k == axis else slice(0, extent) for k, extent in enumerate(indices.shape))
        return (np.take_along_axis(data[part], indices, axis),)


class GatherND(Corrected):
    """Slices chosen by index vectors, the last axis of the indices."""

    def _run(self, data: Array, indices: Any, **_: Any) -> tuple[Array]:
        batches = np.indices(indices.shape[:-1], sparse=True)[: self._attrs().get("batch_dims", 0)]
        return (np.asarray(data[(*batches, *np.moveaxis(indices, -1, 0))]),)


class OneHot(Corrected):
    """One value at the index, another elsewhere."""

    def _run(self, indices: Any, depth: Any, values: Any, **_: Any) -> tuple[Array]:
        count = int(np.asarray(depth).reshape(-1)[0])
        indices = np.asarray(indices, np.result_type(indices.dtype, np.int64))  # the depth may be beyond their own type
        axis = self._attrs().get("axis", -1) % (indices.ndim + 1)
        places = np.arange(count).reshape(-1, *(1,) * (indices.ndim - axis))
        chosen = np.expand_dims(np.mod(indices, count), axis) == places
        inside = np.expand_dims((indices >= -count) & (indices < count), axis)
        return (np.where(chosen & inside, values[1], values[0]),)


class Scatter(Corrected):
    """Single elements replaced, each at a place along one axis."""

    def _run(self, data: Array, indices: Any, updates: Array, **_: Any) -> tuple[Array]:
        axis = self._attrs().get("axis", 0) % data.ndim
        result = data.copy()
        places = list(np.indices(indices.shape, sparse=True))
        places[axis] = indices
        result[tuple(places)] = updates
        return (result,)


class Pad(Corrected):
    """Elements added around, or taken away where pads are negative."""

    def _run(self, data: Any, pads: Any, value: Any = None, axes: Any = None, **attrs: Any) -> tuple[Array]:
        chosen = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in axes]
        widths = [(0, 0)] * data.ndim
        for axis, before, after in zip(chosen, *np.reshape(pads, (2, -1)).tolist(), strict=True):
            widths[axis] = before, after
        mode = attrs.get("mode") or "constant"
        if mode == "constant":
            return (_surrounded(data, widths, _scalar(value, data.dtype)),)
        for axis, (before, after) in enumerate(widths):
            data = np.take(data, _sources(data.shape[axis], before, after, mode), axis)
        return (data,)


def _scalar(value: Any, dtype: Any) -> Any:
    if value is None:
        return "" if dtype.kind in "OUST" else 0
    return np.asarray(value).reshape(-1)[0]


def _surrounded(data: Any, widths: Sequence[tuple[int, int]], value: Any) -> Array:
    """With one value around. What is cut off at one end beyond all elements is missing from the pads at the other."""
    spans = list(zip(data.shape, widths, strict=True))
    shape = [extent + before + after for extent, (before, after) in spans]
    result = np.full(shape, value, object if data.dtype.kind in "OUST" else data.dtype)
    to = tuple(slice(max(before, 0), max(before + extent, 0)) for extent, (before, _) in spans)
    kept = tuple(slice(max(-before, 0), max(extent + min(after, 0), 0)) for extent, (before, after) in spans)
    result[to] = data[kept]
    return result


def _sources(extent: int, before: int, after: int, mode: str) -> Any:
    """Which element lies at each place, along one axis: what is left after cutting is continued in both directions."""
    first, left = max(-before, 0), extent + min(before, 0) + min(after, 0)
    if left < 0 or (left == 0 and max(before, after) > 0):
        raise ValueError(f"{extent} elements can't be padded by ({before}, {after}) with mode {mode}")
    return first + BORDERS[mode](np.arange(-max(before, 0), left + max(after, 0)), max(left, 1))


def _mirrored(places: Any, extent: int) -> Any:
    period = max(2 * (extent - 1), 1)
    inside = places % period
    return np.minimum(inside, period - inside) if extent > 1 else inside


BORDERS: Mapping[str, Callable[[Any, int], Any]] = {
    "edge": lambda places, extent: np.clip(places, 0, extent - 1),
    "reflect": _mirrored,
    "wrap": lambda places, extent: places % extent,
}
"""What lies around the input: from places and the extent to the places inside that are read."""


class Squeeze(Corrected):
    """Without some dimensions of extent 1, or without any."""

    def _run(self, x: Any, axes: Any = None, **_: Any) -> tuple[Array]:
        given = self._attrs().get("axes", axes)
        return (np.squeeze(x, None if given is None else tuple(map(int, np.reshape(given, -1)))),)


class Unsqueeze(Corrected):
    """More dimensions of extent 1, counted from either end of the result."""

    def _run(self, x: Any, axes: Any = None, **_: Any) -> tuple[Array]:
        given = np.asarray(self._attrs().get("axes", axes)).reshape(-1)
        return (np.expand_dims(x, tuple(map(int, given))),)


class Compress(Corrected):
    """The slices, or elements, for which a condition holds, which may be shorter than there are."""

    def _run(self, x: Any, condition: Any, **_: Any) -> tuple[Array]:
        axis = self._attrs().get("axis")
        whole = x.reshape(-1) if axis is None else x
        kept = np.flatnonzero(condition[: whole.shape[axis or 0]])
        return (np.take(whole, kept, axis or 0),)


class Unique(Corrected):
    """The different elements, or slices along an axis, in ascending order or in that of first occurrence.

    NaN is one element, above all others. Where each is first, which of them stands at each place and how often each
    occurs are the other results.
    """

    def _run(self, x: Any, **_: Any) -> tuple[Array, ...]:
        attrs = self._attrs()
        axis = attrs.get("axis")
        whole = x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)
        # Ranks, not values: numpy has slices that hold NaN differ, and can't compare those of texts.
        ranks = np.unique(whole, return_inverse=True)[1].reshape(len(whole), prod(whole.shape[1:]))
        first, places, counts = np.unique(ranks, True, True, True, axis=0)[1:]
        order = np.arange(len(first)) if attrs.get("sorted", 1) else np.argsort(first)
        values = np.moveaxis(whole[first[order]], 0, axis or 0)
        results = (values, first[order], np.argsort(order)[places.reshape(-1)], counts[order])
        return results[: len(self.onnx_node.output)]
