"""Samples of pictures at the places of a grid, as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from .correcting import RNG, agree, computed, ints, normal


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding_mode: str, align_corners: int):
    attrs = {"padding_mode": padding_mode, "align_corners": align_corners}
    x, grid = normal(2, 3, 5, 4), (1.7 * RNG.standard_normal((2, 3, 7, 2))).astype(np.float32)
    grid[0, 0, :5] = [[-1, 1], [1, -1], [-1, -1], [0, 0], [5, -9]]
    agree("GridSample", [x, grid], 20, mode=mode, **attrs)
    agree("GridSample", [x, grid], 16, mode={"nearest": mode}.get(mode, f"bi{mode}"), **attrs)
    if mode != "cubic":
        volume, places = normal(2, 1, 3, 5, 4), (1.7 * RNG.standard_normal((2, 3, 2, 3, 3))).astype(np.float32)
        agree("GridSample", [volume, places], 20, mode=mode, **attrs)


def test_grid_sample_of_one_element():
    x, grid = np.full((1, 1, 1, 1), 3, np.float32), np.array([[[[0, 0], [9, -9], [np.inf, np.nan]]]], np.float32)
    for mode in ("linear", "nearest", "cubic"):
        for border in ("border", "reflection"):
            (found,) = computed("GridSample", [x, grid], 20, mode=mode, padding_mode=border, align_corners=1)
            np.testing.assert_allclose(found, np.full((1, 1, 1, 3), 3))
    assert computed("GridSample", [x, grid], 20, mode="linear")[0].tolist() == [[[[3, 0, 0]]]]


@pytest.mark.parametrize("align_corners", [0, 1])
def test_affine_grid(align_corners: int):
    agree("AffineGrid", [normal(2, 2, 3), ints(2, 3, 4, 5)], align_corners=align_corners)
    agree("AffineGrid", [normal(2, 3, 4, dtype=np.float64), ints(2, 3, 4, 5, 6)], align_corners=align_corners)
    assert np.isfinite(
        computed("AffineGrid", [normal(1, 2, 3), ints(1, 1, 1, 2)], align_corners=align_corners)[0]
    ).all()
