"""Ensemble: the boosted trees of one model of XGBoost as plain arrays, kept and read without it.

XGBoost's JSON is taken apart: the arrays of all trees are concatenated field by field, and the rest stays JSON. Put
together again it is the same model, to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .trees import Trees

DEEPEST = 12
"""Most levels of a tree that is read."""

MOST_LEAVES = 1 << 22
"""Most leaves of the complete trees of an ensemble that is read; the base model's have 30,720."""

FIELDS = {
    "base_weights": "<f4",
    "default_left": "u1",
    "left_children": "<i4",  # -1 of a leaf
    "loss_changes": "<f4",
    "parents": "<i4",
    "right_children": "<i4",
    "split_conditions": "<f4",  # the threshold, or the value of a leaf
    "split_indices": "<i4",  # the feature
    "split_type": "u1",  # 0 of a number, 1 of a category
    "sum_hessian": "<f4",
}
"""XGBoost's arrays of a tree, which have one element per node, and their types."""

Nodes = Mapping[str, NDArray[Any]]  # field -> [nodes], those of all trees


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """The trees of one model.

    `model` is XGBoost's JSON, whose trees lack FIELDS; `sizes` are the numbers of nodes of the trees.
    """

    model: Mapping[str, Any]
    sizes: Sequence[int]
    nodes: Nodes

    @staticmethod
    def of(text: bytes) -> Ensemble:
        """The ensemble of a model in XGBoost's JSON."""
        model = json.loads(text)
        trees = _trees(model)
        sizes = [len(tree["left_children"]) for tree in trees]
        nodes = {
            name: np.concatenate([np.empty(0, kind), *(np.asarray(tree.pop(name), kind) for tree in trees)])
            for name, kind in FIELDS.items()
        }
        return Ensemble(model, sizes, nodes)

    def to_json(self) -> bytes:
        """The model in XGBoost's JSON."""
        model = deepcopy(dict(self.model))
        begin = 0
        for tree, size in zip(_trees(model), self.sizes, strict=True):
            for name, values in self.nodes.items():
                part = values[begin : begin + size]
                # As text: the few digits of a float32 that XGBoost's reader takes
                tree[name] = [float(str(x)) for x in part] if part.dtype.kind == "f" else part.tolist()
            begin += size
        return json.dumps(model).encode()

    def write(self) -> bytes:
        """As bytes: JSON, a line end, and the arrays in the order of FIELDS."""
        head = {"sizes": self.sizes, "model": self.model}
        return json.dumps(head).encode() + b"\n" + b"".join(self.nodes[name].tobytes() for name in FIELDS)

    @staticmethod
    def read(content: bytes) -> Ensemble:
        """The inverse of `write`. Raises ValueError for anything else."""
        head, _, rest = content.partition(b"\n")
        match json.loads(head):
            case {"sizes": list(sizes), "model": dict(model)} if all(isinstance(n, int) and n > 0 for n in sizes):
                count = sum(sizes)
            case _:
                raise ValueError(f"no sizes of trees: {head[:40]!r}")
        if len(rest) != count * sum(np.dtype(kind).itemsize for kind in FIELDS.values()):
            raise ValueError(f"{len(rest)} bytes of {count} nodes")
        nodes, begin = {}, 0
        for name, kind in FIELDS.items():
            nodes[name] = np.frombuffer(rest, kind, count, begin)
            begin += nodes[name].nbytes
        return Ensemble(model, sizes, nodes)

    def trees(self) -> Trees:
        """The trees, whose predictions are the sums of their leaves.

        A leaf above the lowest level becomes a tree of leaves that are all the same. NaN, for which XGBoost has a
        default side in each node, goes right. Raises ValueError for models of other kinds, and for trees of categories.
        """
        try:
            learner = self.model["learner"]
            booster, objective = learner["gradient_booster"]["name"], learner["objective"]["name"]
            base = float(learner["learner_model_param"]["base_score"].strip("[]"))
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no trees of XGBoost: {error}") from error
        if booster != "gbtree" or not (objective == "reg:squarederror" or objective.startswith("rank:")):
            raise ValueError(f"no trees of XGBoost: booster {booster!r} of objective {objective!r}")
        if self.nodes["split_type"].any():
            raise ValueError("no trees of XGBoost: trees of categories")
        if not self.sizes:
            return Trees(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32), np.empty((0, 1), np.float32), base)
        return _complete(self.nodes, np.asarray(self.sizes), base)


def _trees(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    trees: list[dict[str, Any]] = model["learner"]["gradient_booster"]["model"]["trees"]
    return trees


def _complete(nodes: Nodes, sizes: NDArray[np.int64], base: float) -> Trees:
    """Complete trees of one depth. Raises ValueError for a child outside of its tree, and for trees too deep."""
    count = len(sizes)
    starts = np.cumsum(sizes) - sizes
    offsets, ends = np.repeat(starts, sizes), np.repeat(starts + sizes, sizes)
    is_leaf = nodes["left_children"] < 0
    numbers = np.arange(len(is_leaf))
    left, right = (np.where(is_leaf, numbers, nodes[name] + offsets) for name in ("left_children", "right_children"))
    if ((left < offsets) | (left >= ends) | (right < offsets) | (right >= ends)).any():
        raise ValueError("no trees of XGBoost: a node whose child is not there")
    levels = [starts[:, None]]
    while not is_leaf[levels[-1]].all():
        if len(levels) > DEEPEST or count << len(levels) > MOST_LEAVES:
            raise ValueError(f"no trees of XGBoost: {count} trees deeper than {len(levels) - 1} levels")
        parents = levels[-1]
        levels.append(np.stack([left[parents], right[parents]], axis=-1).reshape(count, -1))
    features = np.where(is_leaf, 0, nodes["split_indices"])
    inner = np.concatenate([np.empty((count, 0), np.int64), *levels[:-1]], axis=1)
    thresholds = nodes["split_conditions"].astype(np.float32)
    return Trees(features[inner].astype(np.int32), thresholds[inner], thresholds[levels[-1]], base)
