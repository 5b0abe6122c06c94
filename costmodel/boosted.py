"""What XGBoost has learned, as trees that are gone down without it: see `trees`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .trees import Trees
from .ubjson import parsed

DEEPEST = 12
"""Levels of a tree that is read."""

MOST_LEAVES = 1 << 22
"""Of all complete trees of a booster that is read; the base model's have 30,720."""

PARTS = {
    "left_children": np.int64,
    "right_children": np.int64,
    "split_indices": np.int64,
    "split_conditions": np.float32,
}
"""Of each tree, by the number of a node: its children, -1 of a leaf; the feature; the threshold, or a leaf's value."""

Parts = Mapping[str, list[NDArray[Any]]]


def trees_of(model: bytes) -> Trees:
    """The trees of one booster, in XGBoost's UBJSON, whose predictions are the sums of their leaves.

    A leaf above the lowest level becomes a tree of leaves that are all the same. NaN, for which XGBoost has a default
    side in each node, goes right. Raises ValueError for anything else, and for trees of categories.
    """
    try:
        return _trees(parsed(model)["learner"])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no trees of XGBoost: {error}") from error


def _trees(learner: Mapping[str, Any]) -> Trees:
    booster, objective = learner["gradient_booster"], learner["objective"]["name"]
    if booster["name"] != "gbtree" or not (objective == "reg:squarederror" or objective.startswith("rank:")):
        raise ValueError(f"booster {booster['name']!r} of objective {objective!r}")
    grown = booster["model"]["trees"]
    base = float(learner["learner_model_param"]["base_score"].strip("[]"))
    if not grown:
        return Trees(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32), np.empty((0, 1), np.float32), base)
    if any(np.any(tree["split_type"]) for tree in grown):
        raise ValueError("trees of categories")
    return _complete({name: [np.asarray(tree[name], dtype) for tree in grown] for name, dtype in PARTS.items()}, base)


def _complete(parts: Parts, base: float) -> Trees:
    shapes = [one.shape for one in parts["left_children"]]
    if any(len(shape) != 1 or shape == (0,) for shape in shapes):
        raise ValueError("a tree without nodes")
    if any([one.shape for one in several] != shapes for several in parts.values()):
        raise ValueError("nodes that lack a part")
    left, right, features, values = (np.concatenate(several) for several in parts.values())
    sizes = [size for (size,) in shapes]
    starts = np.cumsum([0, *sizes[:-1]])
    offsets, ends = np.repeat(starts, sizes), np.repeat(starts + sizes, sizes)
    is_leaf, own = left < 0, np.arange(len(left))
    left, right = (np.where(is_leaf, own, children + offsets) for children in (left, right))
    if ((left < offsets) | (left >= ends) | (right < offsets) | (right >= ends)).any():
        raise ValueError("a node whose child is not there")
    if (features >= 1 << 31).any():
        raise ValueError(f"feature {features.max()}")
    levels = [starts[:, None]]
    while not is_leaf[levels[-1]].all():
        if len(levels) > DEEPEST or len(sizes) << len(levels) > MOST_LEAVES:
            raise ValueError(f"{len(sizes)} trees deeper than {len(levels) - 1} levels")
        at = levels[-1]
        levels.append(np.stack([left[at], right[at]], axis=-1).reshape(len(sizes), -1))
    features = np.where(is_leaf, 0, features)
    inner = np.concatenate([np.empty((len(sizes), 0), np.int64), *levels[:-1]], axis=1)
    return Trees(features[inner].astype(np.int32), values[inner], values[levels[-1]], base)
