"""Trees as perfect ones: arrays in which the children of place k of a level are 2k and 2k + 1 of the next.

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

MOST_DEPTH = 10
"""Deepest trees that are laid out so: deeper ones are far from perfect."""

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
class PerfectTrees:
    """Trees of one depth.

    `features` and `thresholds` [trees, 2^depth - 1] are level by level, `leaves` [trees, 2^depth] nodes. A feature is
    beyond the last one where it is to be read as -infinity if it is NaN.
    """

    depth: int
    features: Integers
    thresholds: Floats
    leaves: Integers


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


def perfect_trees(roots: Integers, comparisons: Comparisons, columns: int) -> PerfectTrees:
    """The trees, all as deep as the deepest, LEAST_DEPTH at least. Raises Unsupported where that is too much."""
    nodes = np.asarray(roots)[:, None]
    features: list[Integers] = []
    thresholds: list[Floats] = []
    is_leaf = comparisons.low == np.arange(len(comparisons.low))
    while len(features) < LEAST_DEPTH or not is_leaf[nodes].all():
        if len(features) == MOST_DEPTH or 2 * nodes.size > MOST_ELEMENTS:
            raise Unsupported("trees that are deeper or more than are laid out as perfect ones")
        features.append(comparisons.features[nodes] + columns * comparisons.nan_is_low[nodes])
        thresholds.append(comparisons.thresholds[nodes])
        nodes = np.stack([comparisons.low[nodes], comparisons.high[nodes]], -1).reshape(len(nodes), -1)
    return PerfectTrees(len(features), np.concatenate(features, 1), np.concatenate(thresholds, 1), nodes)
