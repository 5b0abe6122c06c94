"""Images: resized, seen through a grid, and boxes in them. Formulas: ONNX's operator documentation.

ONNX's reference resizes pixel by pixel; here, along each axis, elements are picked, or multiplied by a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Array
from .corrections import Correction, OnnxCall, widen
from .onnx_form import IN_ELEMENTS

Floats = NDArray[np.floating[Any]]

CROP_AND_RESIZE = "tf_crop_and_resize"
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
    cropped = attrs["coordinate_transformation_mode"] == CROP_AND_RESIZE
    result: Any = x if nearest or x.dtype == np.float32 else x.astype(np.float64)
    outside: Any = np.zeros((), np.bool_)
    for axis, extent in enumerate(x.shape):
        size, scale = _target_extent(attrs, axis, extent)
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
    if cropped:
        result = np.where(outside, attrs["extrapolation_value"], result)
    if x.dtype.kind in "iu":  # cubic weights lead out of its range
        info = np.iinfo(x.dtype.name)
        result = np.clip(result, info.min, info.max)
    return np.asarray(result, x.dtype)


def taps(attrs: Mapping[str, Any], axis: int, extent: int) -> tuple[NDArray[np.int64], Floats | None] | None:
    """The elements along an axis that each result is made of, `[size, K]`, and their weights; no weights for copies.

    None where nothing changes along the axis. Of a Resize in the normal form.
    """
    size, scale = _target_extent(attrs, axis, extent)
    if size == extent and scale == 1.0 and not _is_cut(attrs, axis):
        return None
    if attrs["mode"] == "nearest":
        places = _places(axis, extent, size, np.float32(scale), attrs)
        return _nearest(places, extent, scale, attrs["nearest_mode"]).reshape(size, 1), None
    weights = _weights(extent, _places(axis, extent, size, np.float64(scale), attrs), scale, attrs)
    count = max(int(np.count_nonzero(weights, axis=1).max()), 1)
    elements = np.sort(np.argsort(weights == 0, axis=1, kind="stable")[:, :count], axis=1)
    return elements, np.take_along_axis(weights, elements, axis=1)


def outside(attrs: Mapping[str, Any], axis: int, extent: int) -> NDArray[np.bool_]:
    """Which results along an axis lie outside of the input, where a part is cut out that may reach beyond it."""
    size, scale = _target_extent(attrs, axis, extent)
    is_nearest = attrs["mode"] == "nearest"
    places = _places(axis, extent, size, np.float32(scale) if is_nearest else np.float64(scale), attrs)
    return np.asarray((places < 0) | (places > extent - 1))


def _is_cut(attrs: Mapping[str, Any], axis: int) -> bool:
    """Whether a part is cut out along an axis."""
    if attrs["coordinate_transformation_mode"] != CROP_AND_RESIZE:
        return False
    return tuple(attrs["roi"][axis :: len(attrs["roi"]) // 2]) != (0, 1)


def _target_extent(attrs: Mapping[str, Any], axis: int, extent: int) -> tuple[int, float]:
    """The new extent of an axis, and by how much it is scaled: by their quotient, unless both are given."""
    if "sizes" not in attrs:
        scale = float(attrs["scales"][axis])
        return scaled_extent(extent, scale), scale
    size = int(attrs["sizes"][axis])
    return size, float(attrs["scales"][axis]) if "scales" in attrs else size / max(extent, 1)


def scaled_extent(extent: int, scale: float) -> int:
    """The extent of an axis after scaling, in single precision as ONNX Runtime computes it."""
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
    """The place in the input of each result, in the precision of `scale`."""
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
        case mode if mode == CROP_AND_RESIZE:
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


# Resize and Upsample of all opsets


_RESIZE_DEFAULTS = {
    "mode": "nearest",
    "coordinate_transformation_mode": "half_pixel",
    "nearest_mode": "round_prefer_floor",
    "cubic_coeff_a": -0.75,
    "extrapolation_value": 0.0,
}


def _resize(call: OnnxCall, x: Any, *operands: Any) -> Array:
    attrs = {**_RESIZE_DEFAULTS, **call.attrs}
    old = call.op == "Upsample" or call.version < 11
    roi, scales, sizes = (None, *operands, None) if old else (*operands, None, None, None)[:3]
    if old:
        scales = attrs["scales"] if scales is None else scales
        attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": OUTWARD}
    axes = [int(axis) % x.ndim for axis in attrs.get("axes") or range(x.ndim)]
    if attrs["coordinate_transformation_mode"] == CROP_AND_RESIZE:
        attrs["roi"] = whole_roi(roi, axes, x.ndim)
    if sizes is not None and np.size(sizes):
        target_sizes = _scatter_values(sizes, axes, x.shape)
        return resize(x, {**attrs, **_aspect_sizes(attrs, x.shape, axes, target_sizes)})
    return resize(x, {**attrs, "scales": _scatter_values(scales, axes, [1.0] * x.ndim)})


def whole_roi(roi: Any, axes: list[int], rank: int) -> list[float]:
    """The starts, then the ends of a part, along all axes."""
    halves = np.split(np.asarray(roi), 2)
    return [bound for k, half in enumerate(halves) for bound in _scatter_values(half, axes, [float(k)] * rank)]


def _scatter_values(values: Any, axes: list[int], others: Any) -> list[Any]:
    """Put the values of some axes among those of the others."""
    result = list(others)
    for axis, value in zip(axes, np.asarray(values).tolist(), strict=True):
        result[axis] = value
    return result


def _aspect_sizes(attrs: Mapping[str, Any], shape: Any, axes: list[int], sizes: list[int]) -> dict[str, Any]:
    """The sizes, as attributes; with an aspect ratio policy those of one scale for all axes, and that scale."""
    policy = attrs.get("keep_aspect_ratio_policy") or "stretch"
    if policy == "stretch":
        return {"sizes": sizes}
    scale = aspect_scale(policy, shape, axes, [sizes[axis] for axis in axes])
    rounded = [int(scale * extent + 0.5) if axis in axes else extent for axis, extent in enumerate(shape)]
    return {"sizes": rounded, "scales": [scale if axis in axes else 1.0 for axis in range(len(shape))]}


def aspect_scale(policy: str, shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int]) -> float:
    """The one scale of all axes, by which they get no larger, or no smaller, than the sizes."""
    choose = {"not_larger": min, "not_smaller": max}[policy]
    return float(choose(size / shape[axis] for axis, size in zip(axes, sizes, strict=True)))


# Pictures seen through a grid


_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names that opset 20 changed."""

_INTERPOLATIONS: Mapping[str, tuple[Sequence[int], Callable[[Any], Any]]] = {
    "nearest": ((0,), np.ones_like),
    "linear": ((0, 1), lambda distance: 1 - distance),
    "cubic": ((-1, 0, 1, 2), lambda distance: keys_kernel(distance, -0.75)),
}
"""Interpolation mode -> offsets of the elements from the one before a place, and their weight by distance."""


def _grid_sample(call: OnnxCall, x: Any, grid: Any) -> Array:
    return sample_images(call.attrs, x, grid)


def sample_images(attrs: Mapping[str, Any], x: Any, grid: Any) -> Array:
    """Interpolated values of `x [N, C, *extents]` at the places of `grid [N, *places, rank]`, the last axis first.

    `attrs` are GridSample's, IN_ELEMENTS among them.
    """
    mode, border = attrs.get("mode", "linear"), attrs.get("padding_mode", "zeros")
    mode = _MODES.get(mode, mode)
    aligned = bool(attrs.get("align_corners", 0))
    wide = x if mode == "nearest" else widen(x)
    taps = []
    for axis, extent in enumerate(x.shape[2:]):
        at = widen(grid[..., -1 - axis])
        if not attrs.get(IN_ELEMENTS):
            at = (at + 1) / 2 * (extent - 1) if aligned else ((at + 1) * extent - 1) / 2
        at = np.rint(at) if mode == "nearest" else at
        taps.append(_taps(_bound_places(at, extent, border, aligned), extent, mode, border, aligned))
    result = np.zeros((*grid.shape[:-1], x.shape[1]), wide.dtype)
    batch = np.arange(len(x)).reshape(-1, *(1,) * (grid.ndim - 2))
    channels = np.moveaxis(wide, 1, -1)
    for corner in product(*taps):
        if not channels.size:
            break  # zeros, where anything is asked for
        values = channels[(batch, *(place for place, _, _ in corner))]
        for _, weight, inside in corner:
            values = np.where(inside[..., None], values, 0) * np.asarray(weight[..., None], wide.dtype)
        result += values
    return np.moveaxis(result, -1, 1).astype(x.dtype)


def _bound_places(at: Any, extent: int, border: str, aligned: bool) -> Any:
    """Move places far outside to nearer ones with the same values. NaN is outside."""
    far = np.nan_to_num(at, nan=-2.0 * extent - 3, posinf=2.0 * extent + 3, neginf=-2.0 * extent - 3)
    return _reflect_places(far, extent, aligned) if border == "reflection" else np.clip(far, -3, extent + 2)


def _reflect_places(at: Any, extent: int, aligned: bool) -> Any:
    """Reflect places at both borders until they are inside: at the outermost elements, or at their outer edges."""
    low, span = (0.0, extent - 1) if aligned else (-0.5, extent)
    if span == 0:
        return at * 0
    distance = np.abs(at - low) % (2 * span)
    return np.where((at < low) | (at > low + span), np.minimum(distance, 2 * span - distance) + low, at)


def _taps(at: Any, extent: int, mode: str, border: str, aligned: bool) -> list[tuple[Any, Any, Any]]:
    """The taps along one axis: their places, their weights, and whether they are inside."""
    offsets, weigh = _INTERPOLATIONS[mode]
    first = np.floor(at)
    taps = []
    for offset in offsets:
        place = first + offset
        source = _reflect_places(place, extent, aligned) if border == "reflection" else place
        inside = (place >= 0) & (place < extent) if border == "zeros" else np.ones_like(place, np.bool_)
        taps.append((np.clip(source, 0, max(extent - 1, 0)).astype(np.int64), weigh(np.abs(at - place)), inside))
    return taps


def _affine_grid(call: OnnxCall, theta: Any, size: Any) -> Array:
    """The grid for GridSample that an affine map `theta [N, rank, rank + 1]` makes of the places of a picture."""
    aligned = bool(call.attrs.get("align_corners", 0))
    axes = [grid_coordinates(int(extent), aligned) for extent in size[2:]]
    homogeneous = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones([len(axis) for axis in axes])], -1)
    wide = np.asarray(theta, np.result_type(theta.dtype, np.float64))
    return np.asarray(np.einsum("nij,...j->n...i", wide, homogeneous), theta.dtype)


def grid_coordinates(extent: int, aligned: bool) -> Any:
    """The coordinates of the elements of an axis, from -1 to 1."""
    if aligned:
        return np.linspace(-1, 1, extent) if extent > 1 else np.zeros(extent)
    return (2 * np.arange(extent) + 1) / max(extent, 1) - 1


# Boxes


class RoiAlignBefore16:
    """Ahead of the evaluator's RoiAlign among the bases of a class: opset 16 brought the shift by half a pixel."""

    def _run(self, *operands: Any, coordinate_transformation_mode: str | None = None, **attrs: Any) -> Any:
        is_old = self.run_params["opsets"][""] < 16  # type: ignore[attr-defined]
        mode = "output_half_pixel" if is_old else coordinate_transformation_mode
        return super()._run(*operands, coordinate_transformation_mode=mode, **attrs)  # type: ignore[misc]


def _max_roi_pool(call: OnnxCall, x: Any, rois: Any) -> Array:
    """The largest of each cell of a grid over a box: `rois [boxes, 5]` has rows of image and corners, ends included."""
    attrs = call.attrs
    grid = attrs["pooled_shape"]
    result = np.zeros((len(rois), x.shape[1], *grid), x.dtype)
    corners = np.floor(np.asarray(rois[:, 1:], np.float64) * attrs.get("spatial_scale", 1.0) + 0.5).astype(np.int64)
    for box, (left, top, right, bottom) in enumerate(corners):
        image = x[int(rois[box, 0])]
        rows = _cells(top, bottom, grid[0], x.shape[2])
        columns = _cells(left, right, grid[1], x.shape[3])
        for i, j in np.ndindex(*grid):
            cell = image[:, rows[i], columns[j]]
            if cell.size:
                result[box, :, i, j] = cell.max(axis=(1, 2))
    return result


def _cells(first: int, last: int, count: int, extent: int) -> list[slice]:
    """A range cut into `count` parts, which may share elements, as far as they are in 0 to `extent`."""
    step = max(last - first + 1, 1) / count
    ends = [(np.floor(k * step) + first, np.ceil((k + 1) * step) + first) for k in range(count)]
    return [slice(*(int(np.clip(end, 0, extent)) for end in pair)) for pair in ends]


def _non_max_suppression(
    call: OnnxCall, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None
) -> Array:
    """The best boxes of each class, none of which lies much over a better one.

    `boxes [batch, boxes, 4]`, `scores [batch, classes, boxes]`; the result has rows of (batch, class, box).
    """
    most, overlap, least = (_scalar(most, 0), _scalar(overlap, 0.0), _scalar(least, None))
    rows = []
    for batch, corners in enumerate(_corners(call, item) for item in boxes):
        for kind, class_scores in enumerate(scores[batch]):
            order = np.argsort(-class_scores, kind="stable")
            selection: list[int] = []
            for box in order if least is None else order[class_scores[order] > least]:
                if len(selection) >= most:
                    break
                if not (_overlap_ratios(corners[box], corners[selection]) > overlap).any():
                    selection.append(int(box))
            rows += [(batch, kind, box) for box in selection]
    return np.asarray(rows, np.int64).reshape(-1, 3)


def _corners(call: OnnxCall, boxes: Any) -> Any:
    """`[boxes, 2, 2]`: the lower and the higher corner."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if call.attrs.get("center_point_box", 0):
        return np.stack([first - second / 2, first + second / 2], axis=1)
    return np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _scalar(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None or not np.size(value) else np.reshape(value, -1)[0]


def _overlap_ratios(box: Any, others: Any) -> Any:
    """Intersection over union of a box with each of the others, below all limits where they share nothing."""
    shared = np.maximum(np.minimum(box[1], others[:, 1]) - np.maximum(box[0], others[:, 0]), 0).prod(axis=-1)
    area, areas = np.prod(box[1] - box[0]), (others[:, 1] - others[:, 0]).prod(axis=-1)
    return np.where((shared > 0) & (area > 0) & (areas > 0), shared / (area + areas - shared), -np.inf)


IMAGES: Mapping[str, Correction] = {
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
    "MaxRoiPool": _max_roi_pool,
    "NonMaxSuppression": _non_max_suppression,
}
