"""Resize by linear and cubic interpolation: along each axis a product with a matrix of weights.

ONNX's reference errs where a coordinate is whole but for rounding. Formulas: ONNX's operator documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ir import Array

COORDINATES = frozenset({"align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"})
"""The ways to place the result over the input that are known here (not those that crop)."""

Floats = NDArray[np.float64]


def resize(x: Array, attrs: Mapping[str, Any]) -> Array:
    """The Resize of a node in the normal form, with mode "linear" or "cubic" and a mode of COORDINATES."""
    result: Any = x.astype(np.float64) if x.dtype != np.float32 else x
    for axis, extent in enumerate(x.shape):
        if "scales" in attrs:
            scale = float(attrs["scales"][axis])
            size = floor(np.float32(scale) * np.float32(extent))  # in this precision, as shape inference does it
        else:
            size = int(attrs["sizes"][axis])
            scale = size / extent
        if size != extent or scale != 1.0:
            weights = _weights(extent, size, scale, attrs).astype(result.dtype)
            result = np.moveaxis(np.tensordot(weights, result, (1, axis)), 0, axis)
    return np.asarray(result, x.dtype)


def _weights(extent: int, size: int, scale: float, attrs: Mapping[str, Any]) -> Floats:
    """`[size, extent]`: how much each input counts for each result."""
    cubic = attrs["mode"] == "cubic"
    stretch = min(scale, 1.0) if attrs.get("antialias", 0) else 1.0
    reach = floor((2 if cubic else 1) / stretch) + 1
    weights = np.zeros((size, extent))
    for row, place in enumerate(_places(extent, size, scale, attrs["coordinate_transformation_mode"])):
        taps = floor(place) + np.arange(1 - reach, reach + 1)
        distances = np.abs(taps - place) * stretch
        shares = keys_kernel(distances, attrs["cubic_coeff_a"]) if cubic else np.maximum(1 - distances, 0)
        if attrs.get("exclude_outside", 0):
            shares = np.where((taps >= 0) & (taps < extent), shares, 0)
        np.add.at(weights[row], np.clip(taps, 0, extent - 1), shares / shares.sum())
    return weights


def _places(extent: int, size: int, scale: float, mode: str) -> Floats:
    """Where in the input each result lies."""
    x = np.arange(size, dtype=np.float64)
    match mode:
        case "align_corners":
            return x * (extent - 1) / (scale * extent - 1) if size > 1 else x * 0
        case "asymmetric":
            return x / scale
        case "half_pixel_symmetric":
            middle = extent / 2 * (1 - size / (scale * extent))
            return middle + (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel" if size == 1:
            return x * 0
        case _:
            return (x + 0.5) / scale - 0.5


def keys_kernel(d: Floats, a: float) -> Floats:
    """Keys' kernel of cubic interpolation at distances `d`."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
