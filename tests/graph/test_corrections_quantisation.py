"""Ops on quantised tensors as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from .correcting import RNG, by_peer, computed, empty


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("scales", [1, 4])
def test_quantised_convolution(rank: int, scales: int):
    x, w = (
        RNG.integers(0, 40, shape).astype(np.uint8) for shape in ((2, 3, *(6, 5, 4)[:rank]), (4, 3, *(3, 2, 2)[:rank]))
    )
    zeros = np.full(scales, 20, np.uint8)
    x_scale, scale = (np.full((), value, np.float32) for value in (0.1, 0.9))
    x_zero, zero = (np.full((), value, np.uint8) for value in (17, 100))
    weights = [w, np.linspace(0.1, 0.3, scales, dtype=np.float32), zeros]
    operands = [x, x_scale, x_zero, *weights, scale, zero, RNG.integers(-50, 50, 4).astype(np.int32)]
    [found] = computed("QLinearConv", operands, 13, 1, pads=(1,) * 2 * rank)
    [right] = by_peer("QLinearConv", operands, 13, 1, pads=(1,) * 2 * rank)
    assert found.shape == right.shape and found.dtype == right.dtype
    assert np.abs(found.astype(int) - right.astype(int)).max() <= 1


def test_quantising_nothing():
    [found] = computed("QuantizeLinear", [empty(1, 0), empty(0)], 19, 1, axis=1)
    assert found.shape == (1, 0) and found.dtype == np.uint8
