"""Trees in machine code, against going down each by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.costmodel import trees
from tunewright.costmodel.trees import Trees, text


def grown(rng: np.random.Generator, count: int, depth: int, features: int = 5) -> Trees:
    shape = count, 2**depth - 1
    return Trees(
        rng.integers(0, features, shape).astype(np.int32),
        rng.integers(0, 9, shape).astype(np.float32),
        rng.standard_normal((count, 2**depth)).astype(np.float32),
        0.25,
    )


def by_hand(of: Trees, point: np.ndarray) -> np.float32:
    total = np.float32(of.base)
    for features, thresholds, leaves in zip(of.features, of.thresholds, of.leaves, strict=True):
        node = 0
        while node < len(features):
            node = 2 * node + (1 if point[features[node]] < thresholds[node] else 2)
        total += leaves[node - len(features)]
    return total


@pytest.mark.parametrize("depth", [0, 1, 3, 5, 6, 7, 12])
@pytest.mark.parametrize(("count", "points"), [(1, 1), (3, 7), (5, 129), (0, 3), (2, 0)])
def test_sums_are_those_of_each_tree(depth, count, points):
    rng = np.random.default_rng([depth, count, points])
    of = grown(rng, count, depth)
    values = rng.integers(0, 9, (points, 5)).astype(np.float32)  # some are equal to a threshold
    assert of.depth == depth
    np.testing.assert_array_equal(of.sums(values), np.array([by_hand(of, p) for p in values], np.float32))


@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
def test_any_number_of_lanes(lanes, monkeypatch):
    rng = np.random.default_rng(lanes)
    of, values = grown(rng, 4, 7), rng.random((37, 5), dtype=np.float32) * 9
    trees._evaluator.cache_clear()
    try:
        monkeypatch.setattr(trees, "_lanes", lambda target: lanes)
        np.testing.assert_array_equal(of.sums(values), np.array([by_hand(of, p) for p in values], np.float32))
        assert trees._evaluator(7).lanes == lanes
    finally:
        trees._evaluator.cache_clear()


def test_what_is_no_number_goes_right():
    of = Trees(np.zeros((1, 1), np.int32), np.full((1, 1), np.inf, np.float32), np.array([[1, 2]], np.float32))
    assert of.sums(np.array([[np.nan], [-np.inf], [0]], np.float32)).tolist() == [2, 1, 1]
    deep = grown(np.random.default_rng(0), 3, 7)
    assert deep.sums(np.full((1, 5), np.nan, np.float32)).tolist() == [0.25 + deep.leaves[:, -1].sum()]


def test_values_may_lie_anywhere_in_memory():
    rng = np.random.default_rng(0)
    of, values = grown(rng, 3, 4), rng.random((40, 5), dtype=np.float32) * 9
    np.testing.assert_array_equal(of.sums(np.asfortranarray(values)), of.sums(values))
    np.testing.assert_array_equal(of.sums(values[::2]), of.sums(values)[::2])


def test_what_does_not_go_together_is_refused():
    rng = np.random.default_rng(0)
    of = grown(rng, 2, 3)
    for features, leaves in ((of.features, of.leaves[:, 1:]), (of.features[:, 1:], of.leaves)):
        with pytest.raises(ValueError, match="no complete trees"):
            Trees(features, of.thresholds[:, : features.shape[1]], leaves)
    with pytest.raises(ValueError, match="no feature has the number -1"):
        Trees(of.features - of.features.max() - 1 + np.int32(of.features.max()), of.thresholds, of.leaves)
    with pytest.raises(ValueError, match="of int32, float64, float32, not"):
        Trees(of.features, of.thresholds.astype(np.float64), of.leaves)
    with pytest.raises(ValueError, match="feature 4 of points that have 4"):
        of.sums(np.zeros((3, 4), np.float32))


def test_golden_text(golden):
    golden("trees.ll", text(depth=6, lanes=4))
