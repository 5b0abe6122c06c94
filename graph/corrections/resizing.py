"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir import Array
from ..resize import CROPPED, OUTWARD, resize
from .corrected import Corrected

RESIZING = ("Resize", "Upsample")
"""The ops that resize."""

_DEFAULTS = {
    "mode": "nearest",
    "coordinate_transformation_mode": "half_pixel",
    "nearest_mode": "round_prefer_floor",
    "cubic_coeff_a": -0.75,
    "extrapolation_value": 0.0,
}


class Resizing(Corrected):
    """Any of RESIZING, of all opsets."""

    def _run(self, x: Any, *operands: Any, **_: Any) -> tuple[Array]:
        attrs = {**_DEFAULTS, **self._attrs()}
        old = self.onnx_node.op_type == "Upsample" or self.run_params["opsets"][""] < 11
        roi, scales, sizes = (None, *operands, None) if old else (*operands, None, None, None)[:3]
        if old:
            scales = attrs["scales"] if scales is None else scales
            attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": OUTWARD}
        axes = [int(axis) % x.ndim for axis in attrs.get("axes") or range(x.ndim)]
        if attrs["coordinate_transformation_mode"] == CROPPED:
            attrs["roi"] = [bound for half in (0, 1) for bound in _placed(_half(roi, half), axes, [half] * x.ndim)]
        if sizes is not None and np.size(sizes):
            wanted = _placed(sizes, axes, x.shape)
            return (resize(x, {**attrs, **_kept_aspect(attrs, x.shape, axes, wanted)}),)
        return (resize(x, {**attrs, "scales": _placed(scales, axes, [1.0] * x.ndim)}),)


def _half(bounds: Any, which: int) -> Any:
    """The starts or the ends of a region."""
    return np.split(np.asarray(bounds), 2)[which]


def _placed(values: Any, axes: list[int], others: Any) -> list[Any]:
    """Values of some axes among those of the others."""
    placed = list(others)
    for axis, value in zip(axes, np.asarray(values).tolist(), strict=True):
        placed[axis] = value
    return placed


def _kept_aspect(attrs: Mapping[str, Any], shape: Any, axes: list[int], sizes: list[int]) -> dict[str, Any]:
    """The sizes; with a policy about the aspect, those that one scale for all axes makes of them, and that scale."""
    policy = attrs.get("keep_aspect_ratio_policy") or "stretch"
    if policy == "stretch":
        return {"sizes": sizes}
    scale = {"not_larger": min, "not_smaller": max}[policy](sizes[axis] / shape[axis] for axis in axes)
    rounded = [int(scale * extent + 0.5) if axis in axes else extent for axis, extent in enumerate(shape)]
    return {"sizes": rounded, "scales": [scale if axis in axes else 1.0 for axis in range(len(shape))]}
