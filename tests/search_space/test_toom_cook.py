"""Winograd's matrices give convolutions, and products with them what matrix products give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Op, Var, evaluate, op, walk
from tunewright.search_space.cpu.loops.toom_cook import multiply, transforms


@pytest.mark.parametrize(("m", "r"), [(2, 3), (3, 3), (4, 3), (2, 5), (4, 2), (6, 3), (1, 3), (3, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_matrices_give_a_correlation(m: int, r: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    given_, taps = rng.standard_normal(stride * (m - 1) + r), rng.standard_normal(r)
    by_input, by_filter, by_output = map(np.array, transforms(m, r, stride))
    assert by_input.shape == (len(given_), len(given_))
    actual = by_output @ ((by_filter @ taps) * (by_input @ given_))
    np.testing.assert_allclose(actual, np.correlate(given_, taps, "valid")[::stride], atol=1e-12)


def test_what_takes_more_points_is_refused() -> None:
    with pytest.raises(ValueError, match="points"):
        transforms(8, 3)


@pytest.mark.parametrize("m", [2, 4, 6])
@given(numbers=st.lists(st.integers(-64, 64), min_size=8, max_size=8))
def test_a_product_is_that_of_the_matrix(m: int, numbers: list[int]) -> None:
    for matrix in transforms(m, 3):
        values = numbers[: len(matrix[0])]
        floats = [op("cast", Var(f"v{n}"), dtype=DType.F32) for n in range(len(values))]
        env = {f"v{n}": value for n, value in enumerate(values)}
        actual = [evaluate(expr, env, lambda load, index: None) for expr in multiply(matrix, floats)]
        np.testing.assert_allclose(actual, np.array(matrix) @ values, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize(("name", "most"), [("input", 13), ("output", 10)])
def test_points_that_mirror_each_other_share_their_work(name: str, most: int) -> None:
    """Row by row the input's matrix takes 17 sums and products, the output's 14."""
    matrix = getattr(transforms(4, 3), name)
    results = multiply(matrix, [op("cast", Var(f"v{n}"), dtype=DType.F32) for n in range(6)])
    work = {id(node) for node in walk(*results) if isinstance(node, Op) and node.name != "cast"}
    assert len(work) == most
