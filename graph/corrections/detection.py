"""Boxes in pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Array
from .corrected import Corrected


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
