"""Trees as arrays of places, of two kinds.

Perfect trees: the children of place k of a level are 2k and 2k + 1 of the next. Deep ones are far from perfect: their
places say where their children are, side by side, and what comes to a leaf early stays there.

Every test is brought into one form, whether a feature is at most a threshold: `x < t` is `x <= t'` with the next
number below t, `x > t` is the other way round, and `x = t` is two tests in a row. So a walk down a tree has no
branches, and takes as many steps in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .call import Unsupported

MOST_PERFECT_DEPTH = 10
"""Deepest trees that are laid out as perfect ones."""

MOST_DEPTH = 48
"""Deepest trees: every walk takes as many steps as the longest, and a step is a term of an expression."""

LEAST_DEPTH = 2
"""Least depth: what has a level of one node alone has another form, for which kernels are not written."""

MOST_ELEMENTS = 1 << 24
"""Most thresholds, and values in leaves."""

Floats = NDArray[np.floating]
Integers = NDArray[np.integer]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Splits:
    """The nodes of all trees, of whichever kind; a leaf has itself for both children.

    `modes`: what is asked of a feature, as in TreeEnsembleRegressor. `members` has the set for a node of BRANCH_MEMBER.
    `weights` [nodes, targets] are what a leaf adds.
    """

    roots: Integers
    modes: Sequence[str]
    features: Integers
    thresholds: Floats
    yes: Integers
    no: Integers
    missing_is_yes: Bools
    members: dict[int, Floats]
    weights: Floats


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Nodes that all ask whether a feature is at most a threshold: `low` if so. NaN is where `nan_is_low`."""

    features: Integers
    thresholds: Floats
    low: Integers
    high: Integers
    nan_is_low: Bools


@dataclass(frozen=True, slots=True)
class TreeTables:
    """Trees of one depth, as the op `Trees` has them (`graph/ops/trees.py`): each table has a row a tree.

    `leaves` are nodes: where no walk ends any leaf of the tree. A feature is beyond the last one where it is to be
    read as -infinity if it is NaN.
    """

    depth: int
    features: Integers
    thresholds: Floats
    leaves: Integers
    children: Integers | None = None


def comparisons_of(splits: Splits) -> Comparisons:
    """The splits in one form. Raises Unsupported for thresholds that have no neighbour."""
    modes = np.asarray(splits.modes)
    is_leaf = modes == "LEAF"
    thresholds = splits.thresholds.copy()
    if np.isnan(thresholds[~is_leaf]).any():
        raise Unsupported("a threshold that is NaN")
    before = np.nextafter(thresholds, thresholds.dtype.type(-np.inf))
    is_below, is_swapped = np.isin(modes, ("BRANCH_LT", "BRANCH_GTE")), np.isin(modes, ("BRANCH_GTE", "BRANCH_GT"))
    if (np.isinf(thresholds) & ~is_leaf & (modes != "BRANCH_LEQ")).any():
        raise Unsupported("a threshold that is infinite")
    thresholds[is_below] = before[is_below]
    low, high = (np.where(is_swapped, a, b) for a, b in ((splits.no, splits.yes), (splits.yes, splits.no)))
    nan_is_low = splits.missing_is_yes ^ is_swapped
    table = _Table(list(splits.features), list(thresholds), list(low), list(high), list(nan_is_low), thresholds.dtype)
    for number in np.flatnonzero(~is_leaf & ~np.isin(modes, ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"))):
        yes, no = int(splits.yes[number]), int(splits.no[number])
        values = splits.members.get(int(number), splits.thresholds[number : number + 1])
        if modes[number] == "BRANCH_NEQ":
            table.put_equality(int(number), values, no, yes, missing_is_yes=False)
        elif modes[number] in ("BRANCH_EQ", "BRANCH_MEMBER") and len(values):
            table.put_equality(int(number), values, yes, no, bool(splits.missing_is_yes[number]))
        else:
            raise Unsupported(f"nodes of mode {modes[number]}")
    return table.comparisons()


@dataclass(slots=True)
class _Table:
    """Comparisons under construction."""

    features: list[int]
    thresholds: list[float]
    low: list[int]
    high: list[int]
    nan_is_low: list[bool]
    dtype: np.dtype[np.floating]

    def put_equality(self, number: int, values: Floats, equal: int, other: int, missing_is_yes: bool) -> None:
        """Ask for equality with any of some values, at a node: for each, whether x <= v, and then whether x < v."""
        feature = self.features[number]
        for place, value in enumerate(np.sort(values)):
            below = self.dtype.type(value)
            inner = self.add(feature, float(np.nextafter(below, self.dtype.type(-np.inf))), other, equal)
            following = other if place + 1 == len(values) else self.add(feature, 0.0, other, other)
            self.thresholds[number], self.low[number], self.high[number] = float(below), inner, following
            self.nan_is_low[number] = missing_is_yes and place == 0
            number = following

    def add(self, feature: int, threshold: float, low: int, high: int) -> int:
        """A new test; returns its number."""
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.low.append(low)
        self.high.append(high)
        self.nan_is_low.append(False)
        return len(self.low) - 1

    def comparisons(self) -> Comparisons:
        return Comparisons(
            np.asarray(self.features, np.int64),
            np.asarray(self.thresholds, self.dtype),
            np.asarray(self.low, np.int64),
            np.asarray(self.high, np.int64),
            np.asarray(self.nan_is_low, bool),
        )


def tree_tables(roots: Integers, comparisons: Comparisons, columns: int) -> TreeTables:
    """The trees, all as deep as the deepest. Raises Unsupported where that is too much."""
    is_leaf = comparisons.low == np.arange(len(comparisons.low))
    perfect = _perfect(roots, comparisons, is_leaf, columns)
    return perfect or _linked(roots, comparisons, is_leaf, columns)


def _perfect(roots: Integers, comparisons: Comparisons, is_leaf: Bools, columns: int) -> TreeTables | None:
    """Perfect trees of LEAST_DEPTH at least; None where they are too deep for that, or too many."""
    nodes = np.asarray(roots)[:, None]
    features: list[Integers] = []
    thresholds: list[Floats] = []
    while len(features) < LEAST_DEPTH or not is_leaf[nodes].all():
        if len(features) == MOST_PERFECT_DEPTH or 2 * nodes.size > MOST_ELEMENTS:
            return None
        features.append(_feature(comparisons, nodes, columns))
        thresholds.append(comparisons.thresholds[nodes])
        nodes = np.stack([comparisons.low[nodes], comparisons.high[nodes]], -1).reshape(len(nodes), -1)
    return TreeTables(len(features), np.concatenate(features, 1), np.concatenate(thresholds, 1), nodes)


def _feature(comparisons: Comparisons, nodes: Integers, columns: int) -> Integers:
    return np.asarray(comparisons.features[nodes] + columns * comparisons.nan_is_low[nodes])


def _linked(roots: Integers, comparisons: Comparisons, is_leaf: Bools, columns: int) -> TreeTables:
    """Trees whose places say where to go on: of each a root, then the two children of each of its other nodes.

    What several nodes lead to has its children once. NaN stays in a leaf as all else does.
    """
    sides, total, own = (comparisons.low, comparisons.high), len(is_leaf), np.arange(len(roots))
    inner, depth = _inner_nodes(roots, comparisons, is_leaf)
    tree, node = np.divmod(inner, total)
    first = 1 + 2 * (np.arange(len(inner)) - np.searchsorted(tree, tree))
    shape = len(roots), 1 << int(first.max(initial=0) + 1).bit_length()
    if shape[0] * shape[1] > MOST_ELEMENTS:
        raise Unsupported("trees of too many nodes")
    trees = np.concatenate([own, tree, tree])
    places = np.concatenate([0 * own, first, first + 1])
    nodes = np.concatenate([np.asarray(roots), *(side[node] for side in sides)])
    ends = is_leaf[nodes]
    following = np.minimum(np.searchsorted(inner, trees * total + nodes), len(inner) - 1)
    features, children, leaves = (np.zeros(shape, np.int64) for _ in range(3))
    thresholds = np.full(shape, np.inf, comparisons.thresholds.dtype)
    features[trees, places] = np.where(ends, columns, _feature(comparisons, nodes, columns))
    thresholds[trees[~ends], places[~ends]] = comparisons.thresholds[nodes[~ends]]
    children[trees, places] = np.where(ends, places, first[following])
    some = np.zeros(len(roots), np.int64)
    some[trees[ends]] = nodes[ends]
    leaves[:] = some[:, None]
    leaves[trees[ends], places[ends]] = nodes[ends]
    return TreeTables(depth, features, thresholds, leaves, children)


def _inner_nodes(roots: Integers, comparisons: Comparisons, is_leaf: Bools) -> tuple[Integers, int]:
    """All that are no leaves, once for each tree, as tree * nodes + node in order; and the depth of the trees."""
    total = len(is_leaf)
    level = np.arange(len(roots)) * total + np.asarray(roots)
    levels: list[Integers] = []
    while len(level := level[~is_leaf[level % total]]):
        if len(levels) == MOST_DEPTH or len(level) > MOST_ELEMENTS:
            raise Unsupported("trees that are too deep or too many")
        levels.append(level)
        tree, node = np.divmod(level, total)
        level = np.unique(np.concatenate([tree * total + side[node] for side in (comparisons.low, comparisons.high)]))
    if not levels:
        raise Unsupported("too many trees of one leaf")
    return np.unique(np.concatenate(levels)), len(levels)
