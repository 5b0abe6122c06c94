"""Convolutions that are spread over their results, and pools, as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .correcting import RNG, agree, by_peer, computed, imported, ints, normal, parsed, run_by_peer


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
    attributes = ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {list(v)}" for k, v in attrs.items())
    body = (
        f"g (float[2,4,5,5] x, float[4,3,3,2] w) => (float[] y) {{ y = ConvTranspose<group = 2, {attributes}>(x, w) }}"
    )
    (result,) = runs.nodes(imported(body), {"v0": x, "v1": w})
    np.testing.assert_allclose(result, by_peer("ConvTranspose", [x, w], 11, group=2, **attrs)[0], rtol=1e-4, atol=1e-5)


def test_col2im():
    agree("Col2Im", [normal(2, 12, 12), ints(4, 5), ints(2, 2)])
    agree("Col2Im", [normal(2, 12, 9), ints(5, 5), ints(2, 2)], strides=(2, 2), pads=(1, 0, 0, 1))
    agree("Col2Im", [normal(1, 10, 12), ints(4, 5), ints(1, 5)], dilations=(1, 1), pads=(0, 1, 0, 1))


def test_a_product_of_integers_is_exact():
    most = 2**61 - 1
    [result] = computed("Gemm", [np.array([[most, 3]]), np.array([[2], [5]]), np.array([[7]])], 13)
    assert result.tolist() == [[2 * most + 22]]
    two, three, four = (np.full((1, 1), value, np.float32) for value in (2, 3, 4))
    [halved] = computed("Gemm", [two, three, four], 13, 1, alpha=0.5, beta=0.25)
    assert halved.tolist() == [[4]]


# Pools as they should be: any pads, any rank, and where the largest are


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": (2, 3)},
        {"kernel_shape": (3, 2), "pads": (1, 0, 2, 1), "strides": (2, 3)},
        {"kernel_shape": (3, 2), "dilations": (2, 3)},
        {"kernel_shape": (2, 2), "strides": (3, 2), "ceil_mode": 1},
        {"kernel_shape": (3, 2), "auto_pad": "SAME_LOWER", "strides": (2, 2)},
    ],
)
def test_max_pool_tells_where(attrs: dict[str, Any], storage_order: int):
    agree("MaxPool", [normal(2, 3, 7, 5)], 12, 2, storage_order=storage_order, **attrs)
    agree("MaxPool", [RNG.integers(0, 9, (2, 3, 7, 5)).astype(np.uint8)], 12, 2, **attrs)


def test_max_pool_rounded_up_tells_where(runs: Any):
    body = """g (float[1,3,7,5] x) => (float[] y, int64[] at)
        { y, at = MaxPool<kernel_shape = [3, 2], pads = [1, 0, 2, 1], strides = [4, 4], ceil_mode = 1>(x) }"""
    x, graph = normal(1, 3, 7, 5), imported(body, 12)
    for name, result, expected in zip(
        graph.outputs, runs.nodes(graph, {"v0": x}), run_by_peer(parsed(body, 12), {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
        assert graph.types[name.tensor].shape == expected.shape


def test_max_pool_of_other_ranks():
    agree("MaxPool", [normal(2, 3, 9)], 12, 2, kernel_shape=(4,), strides=(3,), pads=(1, 2))
    agree("MaxPool", [normal(1, 2, 5, 4, 3)], 12, 2, kernel_shape=(2, 1, 3), pads=(0, 0, 1, 1, 0, 0))
    indices = computed("MaxPool", [np.full((1, 1, 3), -np.inf, np.float32)], 12, 2, kernel_shape=(2,), pads=(1, 0))[1]
    assert indices.tolist() == [[[0, 0, 1]]]


POOLS: list[dict[str, Any]] = [
    {"kernel_shape": (3, 2)},
    {"kernel_shape": (3, 4), "strides": (2, 3), "pads": (1, 2, 0, 1)},
    {"kernel_shape": (2, 3), "strides": (3, 2), "pads": (0, 1, 1, 1), "ceil_mode": 1},
    {"kernel_shape": (2, 2), "auto_pad": "SAME_UPPER", "strides": (2, 2)},
]


@pytest.mark.parametrize("attrs", POOLS)
def test_pools(attrs: dict[str, Any]):
    x = normal(2, 3, 7, 5)
    for include in (0, 1):
        agree("AveragePool", [x], 19, 1, count_include_pad=include, **attrs)
    agree("LpPool", [x], 18, 1, p=3, **attrs)
    x[0, 0, 3, 2] = np.nan
    for op in ("AveragePool", "LpPool"):
        [result] = computed(op, [x], 19, 1, kernel_shape=(3, 3))
        assert np.isnan(result).sum() == 9


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_global_max_pool(rank: int):
    agree("GlobalMaxPool", [normal(2, 3, *(5, 4, 3)[:rank])])


def test_a_tensor_of_unknown_rank_may_have_windows(runs: Any):
    graph = imported("""g (float[5,1,2,7] x) => (float[] y) {
        s = SplitToSequence<axis = 0>(x) i = Constant<value_int = 1>() t = SequenceAt(s, i)
        y = MaxPool<kernel_shape = [1, 2], strides = [1, 3], pads = [0, 1, 0, 1]>(t) }""")
    [result] = runs.nodes(graph, {"v0": normal(5, 1, 2, 7)})
    assert result.shape == (1, 1, 2, 3)
