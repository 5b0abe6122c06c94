"""Ensembles of trees: random ones of any form, as attributes of each version of classic machine learning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import numpy_helper

from ..draft import LEARNED, DraftTensor, ModelDraft, Shape
from ..values import dtype_of

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

TWO_CLASS_TRANSFORMS = POST_TRANSFORMS[:4]
"""Those of two classes: with PROBIT ONNX Runtime mixes up the rows, and reads what was never written."""

MOST_DEPTH, MOST_NODES = 6, 300

DEEP = 11, 16, 25
"""Depths of trees that are far from perfect."""


@dataclass
class DrawnForest:
    """Trees: a node is its feature, threshold, mode, whether NaN goes where the test holds, and its two children.

    Nodes are numbered through all trees, a child before its parent; one without children is a leaf.
    """

    trees: list[int] = field(default_factory=list)  # of each node
    features: list[int] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    children: list[tuple[int, int] | None] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    @property
    def leaves(self) -> list[int]:
        """The numbers of the leaves."""
        return [node for node, children in enumerate(self.children) if children is None]


def draw_forest(d: ModelDraft, columns: int) -> DrawnForest:
    """One to five trees of a depth of at most MOST_DEPTH, or with one way down that is longer."""
    forest = DrawnForest()
    modes = MODES[:6] if d.chance(0.4) else (d.rng.choice(MODES[:6]),)
    depth = d.among(0 if d.chance(0.1) else 1, 2, 2, 3, 3, 4, MOST_DEPTH)
    more = d.among(*DEEP) if depth and d.chance(0.25) else 0
    for tree in range(d.between(1, 5)):
        forest.roots.append(_grow(d, forest, tree, columns, modes, depth, more))
    return forest


def _grow(
    d: ModelDraft, forest: DrawnForest, tree: int, columns: int, modes: tuple[str, ...], depth: int, more: int = 0
) -> int:
    """A tree; `more` levels hang one under the other before it."""
    is_leaf = not more and (depth == 0 or len(forest.trees) > MOST_NODES or d.chance(0.15))
    children = None
    if not is_leaf:
        ways = [(depth, more - 1), (d.among(0, 0, 1), 0)] if more else [(depth - 1, 0)] * 2
        yes, no = (_grow(d, forest, tree, columns, modes, *way) for way in ways)
        children = d.among((yes, no), (no, yes)) if more else (yes, no)
    forest.trees.append(tree)
    forest.features.append(0 if is_leaf else d.between(0, columns - 1))
    forest.thresholds.append(0.0 if is_leaf else _threshold(d))
    forest.modes.append("LEAF" if is_leaf else d.rng.choice(modes))
    forest.missing.append(0 if is_leaf else d.between(0, 1))
    forest.children.append(children)
    return len(forest.trees) - 1


def _threshold(d: ModelDraft) -> float:
    """A float32: a whole number or a half, which features are too, the next one to it, or any."""
    value = np.float32(d.between(-4, 5) / d.among(1, 1, 2))
    match d.between(0, 9):
        case 0:
            value = np.nextafter(value, np.float32(d.among(-np.inf, np.inf)))
        case 1 | 2:
            value = np.float32(d.array_rng.standard_normal())
        case 3:
            value = np.float32(d.among(-0.0, 1e-40, 16777216.0, 3e38, -3e38))
    return float(value)


def rows(d: ModelDraft, op: str, *, with_missing: bool = False) -> tuple[DraftTensor, Shape]:
    """Rows of features, often whole numbers."""
    dtype = "float32" if d.chance(0.75) else d.rng.choice(d.dtypes(op, 0, LEARNED))
    shape = d.among(1, 2, 3, 5, 17), d.among(1, 2, 3, 5, 8)
    if with_missing and dtype.startswith("float"):
        values = d.array_rng.integers(-4, 6, shape) / d.among(1, 2)
        edges = d.array_rng.choice([np.nan, np.inf, -np.inf, -0.0], shape)
        x = d.constant(np.where(d.array_rng.random(shape) < 0.3, edges, values), dtype)
        return x, shape
    x = d.pick(dtype, lambda s: len(s) == 2 and 0 not in s and s[1] <= 40, lambda: shape)
    if dtype == "float32" and d.chance(0.4):
        x = d.op("Floor", x)
    return x, x.shape or ()


def node_attrs(d: ModelDraft, forest: DrawnForest, dtype: str) -> dict[str, Any]:
    """The attributes of nodes in version 3, where a node is known by its tree and a number within it."""
    order = list(range(len(forest.trees)))
    d.rng.shuffle(order)
    # Tree by tree, roots first: ONNX Runtime ends the process where they are not.
    order.sort(key=lambda node: (forest.trees[node], node not in forest.roots))
    numbers = _numbers(forest)
    pairs = [forest.children[node] for node in order]
    attrs: dict[str, Any] = {
        "nodes_treeids": [forest.trees[node] for node in order],
        "nodes_nodeids": [numbers[node] for node in order],
        "nodes_featureids": [forest.features[node] for node in order],
        "nodes_modes": [forest.modes[node] for node in order],
        "nodes_truenodeids": [numbers[pair[0]] if pair else 0 for pair in pairs],
        "nodes_falsenodeids": [numbers[pair[1]] if pair else 0 for pair in pairs],
    }
    thresholds = [forest.thresholds[node] for node in order]
    attrs |= _numbers_or_tensor(d, "nodes_values", thresholds, dtype)
    if d.chance(0.5):
        attrs["nodes_missing_value_tracks_true"] = [forest.missing[node] for node in order]
    return attrs


def _numbers(forest: DrawnForest) -> list[int]:
    """The number of each node within its tree: a root is 0."""
    return [forest.roots[tree] - node for node, tree in enumerate(forest.trees)]


def _numbers_or_tensor(d: ModelDraft, name: str, values: list[float], dtype: str) -> dict[str, Any]:
    """An attribute of float32, or its double as a tensor where rows are float64."""
    if dtype != "float64":
        return {name: values}
    return {f"{name}_as_tensor": numpy_helper.from_array(np.asarray(values, np.float64))}


def leaf_attrs(d: ModelDraft, forest: DrawnForest, kind: str, targets: list[int], dtype: str) -> dict[str, Any]:
    """The weights of leaves in version 3: for each of the targets, or for that of the tree alone."""
    is_of_one = len(targets) > 1 and d.chance(0.3)
    numbers = _numbers(forest)
    places = [
        (forest.trees[leaf], numbers[leaf], target)
        for leaf in forest.leaves
        for target in ([targets[forest.trees[leaf] % len(targets)]] if is_of_one else targets)
    ]
    weights = _weights(d, len(places))
    names = ("treeids", "nodeids", "ids")
    columns = {f"{kind}_{name}": list(ids) for name, ids in zip(names, zip(*places, strict=True), strict=True)}
    return columns | _numbers_or_tensor(d, f"{kind}_weights", weights, dtype)


def _weights(d: ModelDraft, count: int) -> list[float]:
    """Weights of any sign, or of one, or whole."""
    values = d.array_rng.standard_normal(count)
    match d.between(0, 4):
        case 0:
            values = np.abs(values)
        case 1:
            values = -np.abs(values)
        case 2:
            values = np.round(values * 3)
    return [float(value) for value in values.astype(np.float32)]


def tree_regressor(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A TreeEnsembleRegressor."""
    x, (count, columns) = rows(d, "TreeEnsembleRegressor", with_missing=d.chance(0.3))
    targets = d.among(1, 1, 2, 3)
    forest = draw_forest(d, columns)
    attrs = node_attrs(d, forest, x.dtype)
    attrs |= leaf_attrs(d, forest, "target", list(range(targets)), x.dtype)
    if d.chance(0.3):
        attrs |= _numbers_or_tensor(d, "base_values", _weights(d, targets), x.dtype)
    return d.call(
        LEARNED, "TreeEnsembleRegressor", [x], ("float32", (count, targets)), n_targets=targets,
        aggregate_function=d.among(None, *AGGREGATES), post_transform=d.among(None, None, *POST_TRANSFORMS), **attrs,
    )  # fmt: skip


def tree_classifier(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A TreeEnsembleClassifier, of two classes often with weights of one of them alone."""
    x, (count, columns) = rows(d, "TreeEnsembleClassifier", with_missing=d.chance(0.3))
    classes = d.among(2, 2, 3, 4)
    forest = draw_forest(d, columns)
    targets = [d.between(0, 1)] if classes == 2 and d.chance(0.7) else list(range(classes))
    attrs = node_attrs(d, forest, x.dtype) | leaf_attrs(d, forest, "class", targets, x.dtype)
    if d.chance(0.2):
        attrs |= _numbers_or_tensor(d, "base_values", _weights(d, d.among(1, classes)), x.dtype)
    labels = d.among(list(range(classes)), [7, -2, 0, 4][:classes])
    transforms = POST_TRANSFORMS if classes > 2 else TWO_CLASS_TRANSFORMS
    return d.call(
        LEARNED, "TreeEnsembleClassifier", [x], ("int64", (count,)), ("float32", (count, classes)),
        classlabels_int64s=labels, post_transform=d.among(None, None, *transforms), **attrs,
    )  # fmt: skip


def tree_ensemble(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A TreeEnsemble of version 5, whose leaves have numbers of their own; each tree has a node that is none."""
    dtype = d.among("float32", "float32", "float64")
    shape = d.among(1, 3, 5, 17), d.among(1, 2, 3, 5)
    x = d.pick(dtype, lambda s: len(s) == 2 and 0 not in s and s[1] <= 40, lambda: shape)
    count, columns = x.shape or ()
    forest = draw_forest(d, columns)
    targets = d.among(1, 1, 2, 3)
    has_sets = d.chance(0.3)
    attrs = ensemble_attrs(d, forest, targets, dtype, has_sets=has_sets)
    if has_sets:  # whose members ONNX Runtime takes for whole, and features with them
        x = d.op("Floor", x)
    return d.call(
        LEARNED, "TreeEnsemble", [x], (dtype, (count, targets)), n_targets=targets,
        aggregate_function=d.among(None, 0, 1, 2, 3), post_transform=d.among(None, 0, 0, 1, 2, 3), **attrs,
    )  # fmt: skip


def ensemble_attrs(d: ModelDraft, forest: DrawnForest, targets: int, dtype: str, *, has_sets: bool) -> dict[str, Any]:
    """The attributes of version 5. A tree of a single leaf becomes a node with that leaf on both sides."""
    inner = [node for node, children in enumerate(forest.children) if children is not None]
    inner += [root for root in forest.roots if forest.children[root] is None]
    places = {node: place for place, node in enumerate(inner)}
    leaves = {node: place for place, node in enumerate(forest.leaves)}
    kind = dtype_of(dtype)
    members = {node: _members(d) for node in inner if d.chance(0.15)} if has_sets else {}
    modes = [6 if node in members else MODES.index(_mode(forest, node)) for node in inner]
    attrs: dict[str, Any] = {
        "tree_roots": [places[root] for root in forest.roots],
        "nodes_featureids": [forest.features[node] for node in inner],
        "nodes_modes": numpy_helper.from_array(np.asarray(modes, np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.asarray([forest.thresholds[node] for node in inner], kind)),
        "leaf_targetids": [d.between(0, targets - 1) for _ in leaves],
        "leaf_weights": numpy_helper.from_array(np.asarray(_weights(d, len(leaves)), kind)),
    }
    for side, name in enumerate(("true", "false")):
        children = [(forest.children[node] or (node, node))[side] for node in inner]
        attrs[f"nodes_{name}nodeids"] = [leaves.get(child, places.get(child, 0)) for child in children]
        attrs[f"nodes_{name}leafs"] = [int(child in leaves) for child in children]
    if members:
        sets = [number for node in inner for number in members.get(node, ())]
        attrs["membership_values"] = numpy_helper.from_array(np.asarray(sets, kind))
    if d.chance(0.4):
        attrs["nodes_missing_value_tracks_true"] = [forest.missing[node] for node in inner]
    return attrs


def _mode(forest: DrawnForest, node: int) -> str:
    return MODES[0] if forest.modes[node] == "LEAF" else forest.modes[node]


def _members(d: ModelDraft) -> list[float]:
    """A set of whole numbers with NaN at its end."""
    return [*map(float, d.rng.sample(range(-4, 6), d.between(1, 4))), float("nan")]
