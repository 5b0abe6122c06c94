"""Boxes in pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Array
from .corrected import Corrected


class HalfPixelFrom16:
    """Ahead of the evaluator's RoiAlign among the bases of a class: opset 16 brought the shift by half a pixel."""

    def _run(self, *operands: Any, coordinate_transformation_mode: str | None = None, **attrs: Any) -> Any:
        is_old = self.run_params["opsets"][""] < 16  # type: ignore[attr-defined]
        mode = "output_half_pixel" if is_old else coordinate_transformation_mode
        return super()._run(*operands, coordinate_transformation_mode=mode, **attrs)  # type: ignore[misc]


class MaxRoiPool(Corrected):
    """The largest of each cell of a grid over a box: `rois [boxes, 5]` has rows of image and corners, ends included."""

    def _run(self, x: Any, rois: Any, **_: Any) -> tuple[Array]:
        given = self._attrs()
        grid = given["pooled_shape"]
        result = np.zeros((len(rois), x.shape[1], *grid), x.dtype)
        corners = np.floor(np.asarray(rois[:, 1:], np.float64) * given.get("spatial_scale", 1.0) + 0.5).astype(np.int64)
        for box, (left, top, right, bottom) in enumerate(corners):
            image = x[int(rois[box, 0])]
            rows = _cells(top, bottom, grid[0], x.shape[2])
            columns = _cells(left, right, grid[1], x.shape[3])
            for i, j in np.ndindex(*grid):
                cell = image[:, rows[i], columns[j]]
                if cell.size:
                    result[box, :, i, j] = cell.max(axis=(1, 2))
        return (result,)


def _cells(first: int, last: int, count: int, extent: int) -> list[slice]:
    """A range cut into `count` parts, which may share elements, as far as they are in 0 to `extent`."""
    step = max(last - first + 1, 1) / count
    ends = [(np.floor(k * step) + first, np.ceil((k + 1) * step) + first) for k in range(count)]
    return [slice(*(int(np.clip(end, 0, extent)) for end in pair)) for pair in ends]


class NonMaxSuppression(Corrected):
    """The best boxes of each class, none of which lies much over a better one.

    `boxes [batch, boxes, 4]`, `scores [batch, classes, boxes]`; the result has rows of (batch, class, box).
    """

    def _run(
        self, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None, **_: Any
    ) -> tuple[Array]:
        most, overlap, least = (_scalar(most, 0), _scalar(overlap, 0.0), _scalar(least, None))
        found = []
        for batch, corners in enumerate(map(self._corners, boxes)):
            for kind, row in enumerate(scores[batch]):
                order = np.argsort(-row, kind="stable")
                kept: list[int] = []
                for box in order if least is None else order[row[order] > least]:
                    if len(kept) >= most:
                        break
                    if not (_overlaps(corners[box], corners[kept]) > overlap).any():
                        kept.append(int(box))
                found += [(batch, kind, box) for box in kept]
        return (np.asarray(found, np.int64).reshape(-1, 3),)

    def _corners(self, boxes: Any) -> Any:
        """`[boxes, 2, 2]`: the lower and the higher corner."""
        first, second = boxes[:, :2], boxes[:, 2:]
        if self._attrs().get("center_point_box", 0):
            return np.stack([first - second / 2, first + second / 2], axis=1)
        return np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _scalar(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None or not np.size(value) else np.reshape(value, -1)[0]


def _overlaps(box: Any, others: Any) -> Any:
    """How much of the area of both is common to them, for each of the others; 0 for a box without area."""
    shared = np.maximum(np.minimum(box[1], others[:, 1]) - np.maximum(box[0], others[:, 0]), 0).prod(axis=-1)
    area, areas = np.prod(box[1] - box[0]), (others[:, 1] - others[:, 0]).prod(axis=-1)
    return np.where((area > 0) & (areas > 0), shared / (area + areas - shared), 0)
