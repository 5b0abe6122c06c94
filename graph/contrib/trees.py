"""Classic machine learning: ensembles of trees, as the op `Trees` (`graph/ops/trees.py`) and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.graph.ir import TensorType

from .call import CLASSIC, ContribCall, Unsupported, standard_op
from .linear_models import rows_of
from .scores import best_label, both_classes, class_labels, post_transform, second_label
from .tree_layout import MOST_ELEMENTS, Floats, Integers, Splits, TreeTables, comparisons_of, tree_tables

_COMBINERS = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}
_NOTHING = {"sum": 0.0, "min": np.inf, "max": -np.inf}
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_MODES = (
    "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Leaves:
    """What leaves add: `weights` to `targets` at the nodes of the numbers `nodes`."""

    nodes: Integers
    targets: Integers
    weights: Floats


def _numbers(call: ContribCall, name: str, dtype: Any) -> NDArray[Any]:
    """An attribute of numbers, or its double as a tensor."""
    tensor = call.attr(f"{name}_as_tensor")
    return np.asarray(call.attr(name, ()) if tensor is None else tensor, dtype).reshape(-1)


def _splits(call: ContribCall, kind: str, dtype: Any, aggregate: str, targets: int) -> Splits:
    """The nodes of an ensemble of opset 1 or 3, whose leaves are given by attributes `kind_...`."""
    trees, numbers = (_numbers(call, name, np.int64) for name in ("nodes_treeids", "nodes_nodeids"))
    features, thresholds = _numbers(call, "nodes_featureids", np.int64), _numbers(call, "nodes_values", dtype)
    children = [_numbers(call, f"nodes_{side}nodeids", np.int64) for side in ("true", "false")]
    missing = _missing(call, len(trees))
    _check_counts(len(trees), numbers, features, thresholds, *children, missing, call.attr("nodes_modes") or ())
    count, base = len(trees), MOST_ELEMENTS
    if max(np.abs(ids).max(initial=0) for ids in (trees, numbers, *children)) >= base:
        raise Unsupported("trees or nodes of large numbers")
    keys = trees * base + numbers
    order = np.argsort(keys, kind="stable")
    modes = call.attr("nodes_modes") or ()
    if not count or (np.diff(keys[order]) == 0).any():
        raise Unsupported("nodes that are given twice, or not at all")

    def find(tree: Integers, number: Integers) -> Integers:
        wanted = tree * base + number
        place = np.minimum(np.searchsorted(keys[order], wanted), count - 1)
        found = order[place]
        if (keys[found] != wanted).any():
            raise Unsupported("children or leaves that are no nodes")
        return found

    is_leaf, own = np.asarray([mode == "LEAF" for mode in modes]), np.arange(count)
    yes, no = (np.where(is_leaf, own, find(trees, np.where(is_leaf, numbers, child))) for child in children)
    leaf_trees, leaf_numbers = (_numbers(call, f"{kind}_{name}", np.int64) for name in ("treeids", "nodeids"))
    _check_counts(len(leaf_trees), leaf_numbers)
    leaves = Leaves(
        find(leaf_trees, leaf_numbers),
        _numbers(call, f"{kind}_ids", np.int64),
        _numbers(call, f"{kind}_weights", dtype),
    )
    roots = np.setdiff1d(own, np.concatenate([yes[~is_leaf], no[~is_leaf]]))
    if len(np.unique(trees[roots])) != len(roots) or len(roots) != len(np.unique(trees)):
        raise Unsupported("trees with several roots, or none")
    weights = _weights(leaves, count, targets, aggregate, is_leaf)
    return Splits(roots, modes, features, thresholds, yes, no, missing, {}, weights)


def _missing(call: ContribCall, count: int) -> NDArray[np.bool_]:
    """Whether NaN goes where a test holds, for each node."""
    given = _numbers(call, "nodes_missing_value_tracks_true", np.int64)
    return given.astype(bool) if len(given) else np.zeros(count, bool)


def _check_counts(count: int, *columns: Sequence[Any] | NDArray[Any]) -> None:
    if any(len(column) != count for column in columns):
        raise Unsupported("attributes of different numbers of nodes")


def _weights(leaves: Leaves, count: int, targets: int, aggregate: str, is_leaf: NDArray[np.bool_]) -> Floats:
    """`[nodes, targets]`. Raises Unsupported where a row may be without any score that a minimum could be taken of."""
    if not len(leaves.nodes) == len(leaves.targets) == len(leaves.weights) or count * targets > MOST_ELEMENTS:
        raise Unsupported("leaves that don't go together, or too many")
    if leaves.targets.min(initial=0) < 0 or leaves.targets.max(initial=0) >= targets or not is_leaf[leaves.nodes].all():
        raise Unsupported("weights of other targets, or of what is no leaf")
    combiner = _COMBINERS[aggregate]
    weights = np.full((count, targets), _NOTHING[combiner], leaves.weights.dtype)
    put = {"sum": np.add, "min": np.minimum, "max": np.maximum}[combiner]
    put.at(weights, (leaves.nodes, leaves.targets), leaves.weights)
    return weights


def _splits_of_opset_5(call: ContribCall, dtype: Any, aggregate: str, targets: int) -> Splits:
    """The nodes of a TreeEnsemble, of which leaves have numbers of their own: here they follow the others."""
    features = _numbers(call, "nodes_featureids", np.int64)
    count = len(features)
    leaf_targets = _numbers(call, "leaf_targetids", np.int64)
    total = count + len(leaf_targets)
    own, is_leaf = np.arange(total), np.arange(total) >= count
    sides: list[Integers] = []
    for side in ("true", "false"):
        child, is_end = (_numbers(call, f"nodes_{side}{name}", np.int64) for name in ("nodeids", "leafs"))
        _check_counts(count, child, is_end)
        sides.append(np.concatenate([np.where(is_end != 0, child + count, child), own[count:]]))
    numbers = np.reshape(call.attr("nodes_modes"), -1).astype(int)
    if not np.isin(numbers, range(len(_MODES))).all():
        raise Unsupported("nodes of unknown modes")
    modes = [*(_MODES[number] for number in numbers), *["LEAF"] * len(leaf_targets)]
    members, sets = {}, np.asarray(call.attr("membership_values", np.zeros(0)), dtype).reshape(-1)
    ends = np.flatnonzero(np.isnan(sets))
    asking = np.flatnonzero(numbers == _MODES.index("BRANCH_MEMBER"))
    if len(ends) < len(asking):
        raise Unsupported("fewer sets than nodes that ask for membership")
    for node, begin, end in zip(asking, (-1, *ends[:-1]), ends, strict=False):
        members[int(node)] = sets[begin + 1 : end]
    thresholds, missing = np.reshape(call.attr("nodes_splits"), -1).astype(dtype), _missing(call, count)
    roots = _numbers(call, "tree_roots", np.int64)
    _check_counts(count, numbers, thresholds, missing)
    if not all(np.isin(places, own).all() for places in (roots, *sides)) or not len(roots):
        raise Unsupported("roots or children that are no nodes")
    thresholds[asking] = 0  # which is what is not read
    weights = np.reshape(call.attr("leaf_weights"), -1).astype(dtype)
    leaves = Leaves(own[count:], leaf_targets, weights)
    filler = np.zeros(len(leaf_targets), np.int64)
    return Splits(
        roots, modes, np.concatenate([features, filler]), np.concatenate([thresholds, filler.astype(dtype)]),
        sides[0], sides[1],
        np.concatenate([missing, filler.astype(bool)]), members, _weights(leaves, total, targets, aggregate, is_leaf),
    )  # fmt: skip


def _operand(call: ContribCall) -> tuple[str, Any]:
    """The rows, float32 or float64, and their type."""
    x = call.operand("X")
    if call.kind(x).dtype == "float16" or 0 in call.shape(x) or len(call.shape(x)) != 2:
        raise Unsupported("rows of other types or ranks")
    if call.kind(x).dtype != "float64":
        return rows_of(call, "X"), np.float32
    return x, np.float64


def _tables(call: ContribCall, x: str, splits: Splits) -> TreeTables:
    columns, comparisons = call.shape(x)[1], comparisons_of(splits)
    if comparisons.features.min(initial=0) < 0 or comparisons.features.max(initial=0) >= columns:
        raise Unsupported("a feature that the rows don't have")
    return tree_tables(splits.roots, comparisons, columns)


def _sums(call: ContribCall, x: str, splits: Splits, tables: TreeTables, combiner: str) -> str:
    """`[rows, targets]`: the leaves that a row comes to, combined."""
    columns = call.shape(x)[1]
    groups = _by_target(splits, tables) if combiner == "sum" else None
    order = np.arange(len(tables.leaves))[None] if groups is None else groups
    values = splits.weights[tables.leaves][order]
    if groups is not None:
        values = np.stack([values[k, ..., k : k + 1] for k in range(len(groups))])
        values[groups < 0] = 0
    if values.size > MOST_ELEMENTS:
        raise Unsupported("too many values in leaves")
    if (tables.features >= columns).any():
        is_missing = call.emit("Where", call.emit("IsNaN", x), call.like(x, -np.inf), x)
        x = call.emit("Concat", x, is_missing, axis=1)
    dtype = call.kind(x).dtype
    constants = [
        call.constant(tables.features[order], _small(call.shape(x)[1])),
        call.constant(tables.thresholds[order], dtype),
        call.constant(values, dtype),
    ]
    if tables.children is not None:
        constants.append(call.constant(tables.children[order], _small(tables.children.shape[1])))
    kind = TensorType(dtype, (call.shape(x)[0], splits.weights.shape[1]))
    return call.emit_own("Trees", (x, *constants), kind, combiner=combiner, depth=tables.depth)


def _small(count: int) -> str:
    """The smallest type of so many indices that there is a kernel for."""
    return next(kind for kind in ("uint8", "uint16", "int32") if count <= np.iinfo(kind).max + 1)


def _always_scored(splits: Splits, tables: TreeTables) -> NDArray[np.bool_]:
    """Whether some tree has a weight for the target in each leaf, for each target."""
    has_weight = np.isfinite(splits.weights) & (splits.weights != 0)
    return np.asarray(has_weight[tables.leaves].all(axis=1).any(axis=0))


def _by_target(splits: Splits, tables: TreeTables) -> Integers | None:
    """Trees by target `[targets, trees]`, -1 for none, where each tree is for one target; None where that is no use."""
    targets = splits.weights.shape[1]
    is_for = (splits.weights[tables.leaves] != 0).any(axis=1)
    if targets == 1 or (is_for.sum(axis=1) > 1).any():
        return None
    lists = [np.flatnonzero(is_for[:, target]) for target in range(targets)]
    most = max(map(len, lists))
    if not most or most * targets > 1.5 * len(tables.leaves) + targets:
        return None
    table = np.full((targets, most), -1)
    for target, numbers in enumerate(lists):
        table[target, : len(numbers)] = numbers
    return table


def _regress(
    call: ContribCall, x: str, splits: Splits, aggregate: str, base: Floats, *, is_ranked: bool = False
) -> str:
    """The scores `[rows, targets]`, of which the best is wanted if they are ranked."""
    tables, targets, combiner = _tables(call, x, splits), splits.weights.shape[1], _COMBINERS[aggregate]
    is_partial = combiner != "sum" or (targets > 1 and (len(base) or (splits.weights.min() < 0 and is_ranked)))
    if is_partial and not _always_scored(splits, tables).all():  # ONNX Runtime leaves out what has no score
        raise Unsupported("rows without a score")
    scores = _sums(call, x, splits, tables, combiner)
    if aggregate == "AVERAGE":
        scores = call.emit("Div", scores, call.like(scores, len(splits.roots)))
    if len(base) not in (0, targets):
        raise Unsupported("base values for other targets")
    return call.sum(scores, call.constant(base, call.kind(scores).dtype) if len(base) else "")


@standard_op("TreeEnsembleRegressor", CLASSIC)
def _tree_ensemble_regressor(call: ContribCall) -> str:
    x, dtype = _operand(call)
    targets, aggregate = call.count("n_targets", 1), call.attr("aggregate_function")
    splits = _splits(call, "target", dtype, aggregate, targets)
    scores = call.cast(_regress(call, x, splits, aggregate, _numbers(call, "base_values", dtype)), "float32")
    if targets == 1 and call.attr("post_transform") != "PROBIT":  # as ONNX Runtime: a single score stays as it is
        return scores
    return post_transform(call, scores)


@standard_op("TreeEnsemble", CLASSIC)
def _tree_ensemble(call: ContribCall) -> str:
    x, dtype = _operand(call)
    targets, number, kind = call.count("n_targets", 1), call.attr("aggregate_function"), call.attr("post_transform")
    if number not in range(4) or kind not in range(5):
        raise Unsupported("an unknown aggregate_function or post_transform")
    splits = _splits_of_opset_5(call, dtype, _AGGREGATES[number], targets)
    scores = _regress(call, x, splits, _AGGREGATES[number], np.zeros(0))
    name = _POST_TRANSFORMS[kind]
    return scores if targets == 1 and name != "PROBIT" else post_transform(call, scores, name)


@standard_op("TreeEnsembleClassifier", CLASSIC)
def _tree_ensemble_classifier(call: ContribCall) -> Sequence[str]:
    """The label and the scores of the classes. Where all weights are of one class, they are of the second of two."""
    x, dtype = _operand(call)
    labels, classes = class_labels(call, "classlabels_int64s"), np.unique(_numbers(call, "class_ids", np.int64))
    base = _numbers(call, "base_values", dtype)
    if len(labels) > 2:
        splits = _splits(call, "class", dtype, "SUM", len(labels))
        scores = _regress(call, x, splits, "SUM", base, is_ranked=True)
        return best_label(call, scores, labels), post_transform(call, call.cast(scores, "float32"))
    if len(labels) < 2 or len(classes) != 1 or len(base) > 1 - classes[0]:
        raise Unsupported("two classes with weights of both, or one label")
    splits = _splits(call, "class", dtype, "SUM", classes[0] + 1)
    scores = _regress(call, x, splits, "SUM", base)
    is_positive = bool((_numbers(call, "class_weights", dtype) >= 0).all())
    only = call.slice(scores, 1, 1, 2) if classes[0] else scores
    label = second_label(call, only, 0.5 if is_positive else 0, labels)
    if classes[0]:
        return label, post_transform(call, call.cast(scores, "float32"))
    return label, both_classes(call, call.cast(scores, "float32"), is_complement=is_positive)
