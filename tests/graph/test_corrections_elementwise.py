"""Ops element by element as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .correcting import agree, computed, imported, normal, parsed, run_by_peer


def test_softsign_of_a_scalar():
    [found] = computed("Softsign", [np.full((), -3, np.float32)])
    assert found == np.float32(-0.75) and found.shape == ()


def test_mean_of_what_broadcasts():
    agree("Mean", [normal(2, 1), normal(1, 3), normal(2, 3)], 13)


def test_prelu_leaves_zero_alone():
    [found] = computed("PRelu", [np.array([0, -1, 2], np.float32), np.full(1, np.inf, np.float32)])
    assert found.tolist() == [0, -np.inf, 2]


@pytest.mark.parametrize("op", ["Floor", "Identity"])
def test_clip_of_old_opsets_has_limits(op: str, runs: Any):
    """Those are the ends of float32: what is beyond, infinities too, comes to them."""
    body = f"g (float[4] x) => (float[] y) {{ a = Clip(x) y = {op}(a) }}"
    x = np.array([np.inf, -np.inf, 2, 3e38], np.float32)
    [found], [right] = runs.nodes(imported(body, 9), {"v0": x}), run_by_peer(parsed(body, 9), {"x": x})
    np.testing.assert_array_equal(found, right)


def test_whole_powers_may_be_negative():
    [found] = computed("Pow", [np.array([32, 1, -1, -1, 0, 3]), np.array([-2, -5, -3, -2, 2, 0], np.int32)], 18)
    np.testing.assert_array_equal(found, [0, 1, -1, 1, 0, 1])
    [found] = computed("Pow", [np.array([3], np.int32), np.array([4], np.uint64)], 18)
    np.testing.assert_array_equal(found, [81])
