"""Ops on boxes as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from .correcting import RNG, agree, ints, normal


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("given", range(4))
def test_non_max_suppression(given: int, center: int):
    boxes, scores = RNG.random((2, 23, 4)).astype(np.float32), RNG.random((2, 3, 23)).astype(np.float32).round(1)
    limits = [np.array(5), np.array([0.3], np.float32), np.float32(0.4)][:given]
    agree("NonMaxSuppression", [boxes, scores, *map(np.asarray, limits)], 11, center_point_box=center)


@pytest.mark.parametrize("version", [10, 16])
def test_roi_align(version: int):
    boxes = np.array([[0.5, 1, 3, 4.5], [0, 0, 2, 2]], np.float32)
    sizes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    agree("RoiAlign", [normal(2, 3, 6, 5), boxes, ints(0, 1)], version, 1, **sizes)


def test_max_roi_pool():
    boxes = np.array([[0, 0, 1, 4, 5], [1, 2, 2, 2, 2], [1, 1, 0, 3, 4]], np.float32)
    for scale in (1.0, 0.5):
        agree("MaxRoiPool", [normal(2, 3, 7, 6), boxes], 13, 1, pooled_shape=(2, 3), spatial_scale=scale)
