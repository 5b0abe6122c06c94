"""The same element under another shape."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tunewright.codegen.expr import Expr, Var, const, evaluate, op
from tunewright.graph.reindex import reindex

FACTORS = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5)


@st.composite
def two_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two ways to write the same number of elements, by putting neighbouring factors together."""
    factors = draw(FACTORS)

    def shape() -> tuple[int, ...]:
        cuts = sorted(draw(st.sets(st.integers(1, len(factors)), max_size=len(factors))))
        ends = [*cuts, len(factors)]
        return tuple(prod(factors[a:b]) for a, b in zip([0, *ends], ends, strict=False))

    return shape(), shape()


@given(two_shapes())
def test_the_element_stays_the_same(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    source, target = shapes
    index = tuple(Var(f"i{d}") if extent > 1 else const(0) for d, extent in enumerate(source))
    found = reindex(index, source, target, {f"i{d}": extent for d, extent in enumerate(source)})
    assume(found is not None)
    assert found is not None
    env = {f"i{d}": at for d, at in enumerate(np.indices(source))}
    places = [np.broadcast_to(evaluate(at, env, _no_loads), source) for at in found]
    flat = np.ravel_multi_index(places, target) if target else np.zeros(source, int)
    np.testing.assert_array_equal(flat, np.arange(prod(source)).reshape(source))


def _no_loads(*_: object) -> object:
    raise AssertionError


I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741
EXTENTS = {"i": 5, "j": 3, "k": 4}


@pytest.mark.parametrize(
    ("index", "source", "target", "found"),
    [
        ((I, J, K), (5, 3, 4), (5, 12), (I, op("add", J * 4, K))),
        ((I, op("add", J * 4, K)), (5, 12), (5, 3, 4), (I, J, K)),
        ((I, op("add", K, 8)), (5, 12), (5, 3, 4), (I, const(2), K)),
        ((I, const(0), J), (5, 1, 3), (1, 5, 3), (const(0), I, J)),
        ((I % 2, J), (5, 3), (5, 3), (I % 2, J)),
        ((I,), (12,), (3, 4), None),
        ((op("max", I, 2),), (12,), (3, 4), None),
        ((op("add", J * 4, op("add", K, 1)),), (16,), (4, 4), None),
    ],
)
def test_what_comes_out(
    index: tuple[Expr, ...], source: tuple[int, ...], target: tuple[int, ...], found: tuple[Expr, ...] | None
) -> None:
    assert reindex(index, source, target, EXTENTS) == found
