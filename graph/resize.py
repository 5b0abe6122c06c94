"""Resize: along each axis elements picked, or a product with a matrix of weights. ONNX's reference goes pixel by pixel.

Formulas: ONNX's operator documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ir import Array

Floats = NDArray[np.floating[Any]]

CROPPED = "tf_crop_and_resize"
"""The coordinates of a part of the input, which attribute `roi` gives: all starts, then all ends, each from 0 to 1."""

OUTWARD = "outward"
"""The rounding of opset 10: up where the result is smaller, down where it is larger."""

ROUNDINGS: Mapping[str, Callable[[Floats], Floats]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - x.dtype.type(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + x.dtype.type(0.5)),
}
"""The ways to choose between two neighbours, by `nearest_mode`."""


def resize(x: Array, attrs: Mapping[str, Any]) -> Array:
    """The Resize of a node in the normal form, which here may be CROPPED and rounded OUTWARD as well."""
    nearest = attrs["mode"] == "nearest"
    cropped = attrs["coordinate_transformation_mode"] == CROPPED
    result: Any = x if nearest or x.dtype == np.float32 else x.astype(np.float64)
    outside: Any = np.zeros((), np.bool_)
    for axis, extent in enumerate(x.shape):
        size, scale = _target(attrs, axis, extent)
        if size == extent and scale == 1.0 and not cropped:
            continue
        if not size or not extent:
            result = np.zeros((*result.shape[:axis], size, *result.shape[axis + 1 :]), result.dtype)
            continue
        # what is picked hangs on the last bit: it is worked out as ONNX Runtime does it
        places = _places(axis, extent, size, np.float32(scale) if nearest else np.float64(scale), attrs)
        if nearest:
            result = np.take(result, _nearest(places, extent, scale, attrs["nearest_mode"]), axis)
        else:
            weights = _weights(extent, places, scale, attrs).astype(result.dtype)
            result = np.moveaxis(np.tensordot(weights, result, (1, axis)), 0, axis)
        outside = outside | ((places < 0) | (places > extent - 1)).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return np.asarray(np.where(outside, attrs["extrapolation_value"], result) if cropped else result, x.dtype)


def _target(attrs: Mapping[str, Any], axis: int, extent: int) -> tuple[int, float]:
    """The new extent of an axis, and by how much it is scaled: by their quotient, unless both are given."""
    if "sizes" not in attrs:
        scale = float(attrs["scales"][axis])
        return resized(extent, scale), scale
    size = int(attrs["sizes"][axis])
    return size, float(attrs["scales"][axis]) if "scales" in attrs else size / max(extent, 1)


def resized(extent: int, scale: float) -> int:
    """How far an axis extends after scaling: worked out in single precision, as ONNX Runtime does."""
    return floor(np.float32(extent) * np.float32(scale))


def _nearest(places: Floats, extent: int, scale: float, rounding: str) -> Any:
    if rounding == OUTWARD:
        rounding = "ceil" if scale < 1 else "floor"
    return np.clip(ROUNDINGS[rounding](places), 0, extent - 1).astype(np.int64)


def _weights(extent: int, places: Floats, scale: float, attrs: Mapping[str, Any]) -> Floats:
    """`[places, extent]`: how much each input counts for each result."""
    cubic = attrs["mode"] == "cubic"
    stretch = min(scale, 1.0) if attrs.get("antialias", 0) else 1.0
    reach = floor((2 if cubic else 1) / stretch) + 1
    weights = np.zeros((len(places), extent))
    for row, place in enumerate(places):
        taps = floor(place) + np.arange(1 - reach, reach + 1)
        distances = np.abs(taps - place) * stretch
        shares = keys_kernel(distances, attrs["cubic_coeff_a"]) if cubic else np.maximum(1 - distances, 0)
        if attrs.get("exclude_outside", 0):
            shares = np.where((taps >= 0) & (taps < extent), shares, 0)
        np.add.at(weights[row], np.clip(taps, 0, extent - 1), shares / shares.sum())
    return weights


def _places(axis: int, extent: int, size: int, scale: Any, attrs: Mapping[str, Any]) -> Any:
    """Where in the input each result lies, in the precision of `scale`."""
    x = np.arange(size, dtype=scale.dtype)
    # Before it is rounded, as ONNX's test cases have it where corners are aligned; a part of the input ends at the last
    # result, as the text says.
    length = scale * extent if "scales" in attrs else scale.dtype.type(size)
    match attrs["coordinate_transformation_mode"]:
        case "align_corners":
            return x * (extent - 1) / (length - 1) if size > 1 else x * 0
        case "asymmetric":
            # Products of whole numbers, which single precision does not hold for long rows.
            return x / scale if "scales" in attrs else x.astype(np.float64) * extent / size
        case "half_pixel_symmetric":
            middle = extent / 2 * (1 - size / length)
            return middle + (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel" if size == 1:
            return x * 0
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case mode if mode == CROPPED:
            start, end = (scale.dtype.type(bound) for bound in attrs["roi"][axis :: len(attrs["roi"]) // 2])
            whole = extent - 1
            if size == 1:
                return (start + end) * whole / 2 + x
            return start * whole + x * (end - start) * whole / (size - 1)
        case _:
            return (x + 0.5) / scale - 0.5


def keys_kernel(d: Floats, a: float) -> Floats:
    """Keys' kernel of cubic interpolation at distances `d`."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
