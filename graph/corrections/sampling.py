"""Pictures seen through a grid. Formulas: ONNX's operator documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from ..ir import Array
from ..resize import keys_kernel
from .corrected import Corrected, widened

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names that opset 20 changed."""

_KERNELS: Mapping[str, tuple[Sequence[int], Callable[[Any], Any]]] = {
    "nearest": ((0,), np.ones_like),
    "linear": ((0, 1), lambda distance: 1 - distance),
    "cubic": ((-1, 0, 1, 2), lambda distance: keys_kernel(distance, -0.75)),
}
"""Which elements count, from the one before a place on, and how much, by their distance."""


class GridSample(Corrected):
    """Interpolated values of `x [N, C, *extents]` at the places of `grid [N, *places, rank]`, the last axis first."""

    def _run(self, x: Any, grid: Any, **_: Any) -> tuple[Array]:
        attrs = self._attrs()
        mode, border = attrs.get("mode", "linear"), attrs.get("padding_mode", "zeros")
        mode = _MODES.get(mode, mode)
        aligned = bool(attrs.get("align_corners", 0))
        wide = x if mode == "nearest" else widened(x)
        taps = []
        for axis, extent in enumerate(x.shape[2:]):
            at = widened(grid[..., -1 - axis])
            at = (at + 1) / 2 * (extent - 1) if aligned else ((at + 1) * extent - 1) / 2
            at = np.rint(at) if mode == "nearest" else at
            taps.append(_taps(_within(at, extent, border, aligned), extent, mode, border, aligned))
        result = np.zeros((*grid.shape[:-1], x.shape[1]), wide.dtype)
        batch = np.arange(len(x)).reshape(-1, *(1,) * (grid.ndim - 2))
        channels = np.moveaxis(wide, 1, -1)
        for chosen in product(*taps):
            if not channels.size:
                break  # zeros, where anything is asked for
            values = channels[(batch, *(place for place, _, _ in chosen))]
            for _, weight, inside in chosen:
                values = np.where(inside[..., None], values, 0) * np.asarray(weight[..., None], wide.dtype)
            result += values
        return (np.moveaxis(result, -1, 1).astype(x.dtype),)


def _within(at: Any, extent: int, border: str, aligned: bool) -> Any:
    """Places far outside moved to where they come to the same. What is no number is outside."""
    far = np.nan_to_num(at, nan=-2.0 * extent - 3, posinf=2.0 * extent + 3, neginf=-2.0 * extent - 3)
    return _mirrored(far, extent, aligned) if border == "reflection" else np.clip(far, -3, extent + 2)


def _mirrored(at: Any, extent: int, aligned: bool) -> Any:
    """Reflected at both borders as often as need be: at the outermost elements, or at their outer edges."""
    low, span = (0.0, extent - 1) if aligned else (-0.5, extent)
    if span == 0:
        return at * 0
    distance = np.abs(at - low) % (2 * span)
    return np.where((at < low) | (at > low + span), np.minimum(distance, 2 * span - distance) + low, at)


def _taps(at: Any, extent: int, mode: str, border: str, aligned: bool) -> list[tuple[Any, Any, Any]]:
    """The elements that count along one axis: their places, how much each does, and whether it is no zero outside."""
    offsets, weigh = _KERNELS[mode]
    first = np.floor(at)
    found = []
    for offset in offsets:
        place = first + offset
        moved = _mirrored(place, extent, aligned) if border == "reflection" else place
        inside = (place >= 0) & (place < extent) if border == "zeros" else np.ones_like(place, np.bool_)
        found.append((np.clip(moved, 0, max(extent - 1, 0)).astype(np.int64), weigh(np.abs(at - place)), inside))
    return found


class AffineGrid(Corrected):
    """The grid for GridSample that an affine map `theta [N, rank, rank + 1]` makes of the places of a picture."""

    def _run(self, theta: Any, size: Any, **_: Any) -> tuple[Array]:
        aligned = bool(self._attrs().get("align_corners", 0))
        axes = [_regular(int(extent), aligned) for extent in size[2:]]
        homogeneous = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones([len(axis) for axis in axes])], -1)
        wide = np.asarray(theta, np.result_type(theta.dtype, np.float64))
        return (np.einsum("nij,...j->n...i", wide, homogeneous).astype(theta.dtype),)


def _regular(extent: int, aligned: bool) -> Any:
    """Where the elements of an axis lie between -1 and 1."""
    if aligned:
        return np.linspace(-1, 1, extent) if extent > 1 else np.zeros(extent)
    return (2 * np.arange(extent) + 1) / max(extent, 1) - 1
