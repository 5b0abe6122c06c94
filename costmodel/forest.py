"""Forest: a few ensembles of boosted trees over features, which differ in the tasks that each has learned from.

Their mean is better than any of them, and how far they are apart says how well a point is known. The only home of
xgboost, which is imported when a forest is fitted or explained; it predicts without: see `trees`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .boosted import trees_of

if TYPE_CHECKING:
    import xgboost

Values = NDArray[np.float32]  # [points, features]
Labels = NDArray[np.float32]  # [points]
Members = NDArray[np.float32]  # [members, points]

RANKS, SQUARES = "rank:pairwise", "reg:squarederror"
"""Objectives: to say which of two points of a group has the higher label, and what the label is."""

BINS = 64
"""Values of a feature that a tree tells apart; 256 are no better, and four times as slow to count."""

KEPT = 0.8
"""Chance of a group to be learned from by a member."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How the trees of a member grow: see XGBoost's parameters."""

    rounds: int
    max_depth: int
    eta: float
    colsample_bytree: float
    subsample: float = 0.8
    min_child_weight: float = 1.0


class Forest:
    """Predicts labels. `fit` or `read` makes one: of each member the model in XGBoost's UBJSON."""

    def __init__(self, models: Sequence[bytes]) -> None:
        self._models = list(models)
        self._trees = [trees_of(model) for model in models]

    @staticmethod
    def fit(
        values: Values,
        labels: Labels,
        groups: NDArray[np.int64],
        growth: Growth,
        *,
        members: int,
        seed: int,
        before: Members | None = None,
        objective: str = RANKS,
    ) -> Forest:
        """Learn labels; what `before` [members, points] predicts of them already, each member adds to.

        `groups` [points] are learned from whole or not at all by a member, so that members differ in what they have
        never seen. For an `objective` that ranks, the points of a group must lie together. Equal arguments give equal
        forests.
        """
        models = []
        for member in range(members):
            taken = _taken(groups, member, members, seed)
            margin = None if before is None else before[member][taken]
            parameters = _parameters(growth, seed + member, objective, margin is not None)
            models.append(_boosted(values[taken], labels[taken], groups[taken], margin, parameters, growth.rounds))
        return Forest(models)

    @property
    def members(self) -> int:
        return len(self._models)

    def predict(self, values: Values) -> Members:
        """What each member says of points, without what came before it."""
        return np.stack([trees.sums(values) for trees in self._trees])

    @cached_property
    def _boosters(self) -> list[xgboost.Booster]:
        import xgboost

        return [xgboost.Booster({"nthread": 1}, model_file=bytearray(model)) for model in self._models]

    def contributions(self, values: Values) -> NDArray[np.float32]:
        """What each feature adds to the mean prediction of points [points, features + 1], the last what all start from.

        Shapley values of the trees: Lundberg et al., "Consistent Individualized Feature Attribution for Tree
        Ensembles", 2018.
        """
        import xgboost

        data = xgboost.DMatrix(values)
        parts = [booster.predict(data, pred_contribs=True) for booster in self._boosters]
        return np.asarray(np.mean(parts, axis=0), np.float32)

    def gains(self, features: int) -> NDArray[np.float64]:
        """How much of the error each feature has taken away [features], as a share of all."""
        total = np.zeros(features)
        for booster in self._boosters:
            for name, gain in booster.get_score(importance_type="total_gain").items():
                total[int(name[1:])] += float(gain) if not isinstance(gain, list) else sum(gain)
        return total / max(float(total.sum()), 1e-12)

    def write(self) -> bytes:
        """As bytes: the length of each member's model as JSON, a line end, and these."""
        return json.dumps([len(one) for one in self._models]).encode() + b"\n" + b"".join(self._models)

    @staticmethod
    def read(content: bytes) -> Forest:
        """The inverse of `write`. Only for bytes whose digest is known: XGBoost's reader trusts what it reads.

        Raises ValueError for anything else.
        """
        head, _, rest = content.partition(b"\n")
        lengths = json.loads(head)
        if not isinstance(lengths, list) or not all(isinstance(n, int) and n > 0 for n in lengths):
            raise ValueError(f"no lengths of models: {head[:40]!r}")
        if sum(lengths) != len(rest):
            raise ValueError(f"{len(rest)} bytes of models, not {sum(lengths)}")
        ends = list(accumulate(lengths))
        return Forest([rest[end - length : end] for end, length in zip(ends, lengths, strict=True)])


def _taken(groups: NDArray[np.int64], member: int, members: int, seed: int) -> NDArray[np.bool_]:
    """Which points a member learns from: all where it is alone, or where the draw leaves less than half of them."""
    names = np.unique(groups)
    everything = np.ones(len(groups), np.bool_)
    if members == 1:
        return everything
    kept = names[np.random.default_rng([seed, member]).random(len(names)) < KEPT]
    taken = np.isin(groups, kept)
    return taken if 2 * taken.sum() > len(groups) else everything


def _parameters(growth: Growth, seed: int, objective: str, added: bool) -> Mapping[str, Any]:
    grown = {name: value for name, value in asdict(growth).items() if name != "rounds"}
    fixed = {"tree_method": "hist", "max_bin": BINS, "verbosity": 0, "nthread": 1, "seed": seed}
    return {**grown, **fixed, "objective": objective, **({"base_score": 0.0} if added else {})}


def _boosted(
    values: Values,
    labels: Labels,
    groups: NDArray[np.int64],
    margin: NDArray[np.float32] | None,
    parameters: Mapping[str, Any],
    rounds: int,
) -> bytes:
    """A model in UBJSON."""
    import xgboost

    ranking = {"qid": groups} if str(parameters["objective"]).startswith("rank:") else {}
    data = xgboost.QuantileDMatrix(
        values, label=labels, base_margin=margin, max_bin=BINS, nthread=parameters["nthread"], **ranking
    )
    return bytes(xgboost.train(dict(parameters), data, rounds).save_raw("ubj"))
