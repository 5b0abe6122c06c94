"""Sums of products as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .correcting import agree, by_peer, computed, imported, ints, normal


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": (2, 3), "output_padding": (1, 2)},
        {"strides": (2, 3), "dilations": (2, 1), "pads": (1, 0, 2, 1)},
        {"strides": (2, 2), "auto_pad": "SAME_UPPER"},
        {"strides": (2, 3), "auto_pad": "SAME_LOWER"},  # a stride of more than the kernel
        {"strides": (2, 3), "output_shape": (9, 13), "auto_pad": "SAME_UPPER"},
    ],
)
def test_conv_transpose(attrs: dict[str, Any], runs: Any):
    x, w, b = normal(2, 4, 5, 5), normal(4, 3, 3, 2), normal(6)
    agree("ConvTranspose", [x, w, b], 11, group=2, **attrs)
    given = ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {list(v)}" for k, v in attrs.items())
    body = f"g (float[2,4,5,5] x, float[4,3,3,2] w) => (float[] y) {{ y = ConvTranspose<group = 2, {given}>(x, w) }}"
    (found,) = runs.nodes(imported(body), {"v0": x, "v1": w})
    np.testing.assert_allclose(found, by_peer("ConvTranspose", [x, w], 11, group=2, **attrs)[0], rtol=1e-4, atol=1e-5)


def test_col2im():
    agree("Col2Im", [normal(2, 12, 12), ints(4, 5), ints(2, 2)])
    agree("Col2Im", [normal(2, 12, 9), ints(5, 5), ints(2, 2)], strides=(2, 2), pads=(1, 0, 0, 1))
    agree("Col2Im", [normal(1, 10, 12), ints(4, 5), ints(1, 5)], dilations=(1, 1), pads=(0, 1, 0, 1))


def test_a_product_of_integers_is_exact():
    most = 2**61 - 1
    [found] = computed("Gemm", [np.array([[most, 3]]), np.array([[2], [5]]), np.array([[7]])], 13)
    assert found.tolist() == [[2 * most + 22]]
    two, three, four = (np.full((1, 1), value, np.float32) for value in (2, 3, 4))
    [halved] = computed("Gemm", [two, three, four], 13, 1, alpha=0.5, beta=0.25)
    assert halved.tolist() == [[4]]
