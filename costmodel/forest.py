"""Forest: a few ensembles of boosted trees over features, which differ in the tasks that each has learned from.

Their mean is better than any of them, and how far they are apart says how well a point is known. The only home of
xgboost, which is imported when a forest is first fitted or read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    """Predicts labels. `fit` or `read` makes one."""

    def __init__(self, boosters: Sequence[xgboost.Booster]) -> None:
        self._boosters = list(boosters)

    @staticmethod
    def fit(
        values: Values,
        labels: Labels,
        groups: NDArray[np.int64],
        growth: Growth,
        *,
        members: int,
        seed: int,
        threads: int = 1,
        before: Members | None = None,
        objective: str = RANKS,
    ) -> Forest:
        """Learn labels; what `before` [members, points] predicts of them already, each member adds to.

        `groups` [points] are learned from whole or not at all by a member, so that members differ in what they have
        never seen. For an `objective` that ranks, the points of a group must lie together. Equal arguments give equal
        forests.
        """
        boosters = []
        for member in range(members):
            taken = _taken(groups, member, members, seed)
            margin = None if before is None else before[member][taken]
            parameters = _parameters(growth, seed + member, threads, objective, margin is not None)
            boosters.append(_boosted(values[taken], labels[taken], groups[taken], margin, parameters, growth.rounds))
        return Forest(boosters)

    @property
    def members(self) -> int:
        return len(self._boosters)

    def predict(self, values: Values) -> Members:
        """What each member says of points, without what came before it."""
        if not len(values):
            return np.empty((self.members, 0), np.float32)
        return np.stack([booster.inplace_predict(values) for booster in self._boosters])

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
        """As bytes: the length of each booster in XGBoost's UBJSON as JSON, a line end, and these."""
        raw = [bytes(booster.save_raw("ubj")) for booster in self._boosters]
        return json.dumps([len(one) for one in raw]).encode() + b"\n" + b"".join(raw)

    @staticmethod
    def read(content: bytes) -> Forest:
        """The inverse of `write`. Only for bytes whose digest is known: XGBoost's reader trusts what it reads.

        Raises ValueError where the lengths don't match.
        """
        import xgboost

        head, _, rest = content.partition(b"\n")
        lengths = json.loads(head)
        if not isinstance(lengths, list) or not all(isinstance(n, int) and n > 0 for n in lengths):
            raise ValueError(f"no lengths of boosters: {head[:40]!r}")
        if sum(lengths) != len(rest):
            raise ValueError(f"{len(rest)} bytes of boosters, not {sum(lengths)}")
        boosters = []
        for length in lengths:
            boosters.append(xgboost.Booster({"nthread": 1}, model_file=bytearray(rest[:length])))
            rest = rest[length:]
        return Forest(boosters)


def _taken(groups: NDArray[np.int64], member: int, members: int, seed: int) -> NDArray[np.bool_]:
    """Which points a member learns from: all where it is alone, or where the draw leaves less than half of them."""
    names = np.unique(groups)
    everything = np.ones(len(groups), np.bool_)
    if members == 1:
        return everything
    kept = names[np.random.default_rng([seed, member]).random(len(names)) < KEPT]
    taken = np.isin(groups, kept)
    return taken if 2 * taken.sum() > len(groups) else everything


def _parameters(growth: Growth, seed: int, threads: int, objective: str, added: bool) -> Mapping[str, Any]:
    grown = {name: value for name, value in asdict(growth).items() if name != "rounds"}
    fixed = {"tree_method": "hist", "max_bin": BINS, "verbosity": 0, "nthread": threads, "seed": seed}
    return {**grown, **fixed, "objective": objective, **({"base_score": 0.0} if added else {})}


def _boosted(
    values: Values,
    labels: Labels,
    groups: NDArray[np.int64],
    margin: NDArray[np.float32] | None,
    parameters: Mapping[str, Any],
    rounds: int,
) -> xgboost.Booster:
    import xgboost

    ranking = {"qid": groups} if str(parameters["objective"]).startswith("rank:") else {}
    data = xgboost.QuantileDMatrix(
        values, label=labels, base_margin=margin, max_bin=BINS, nthread=parameters["nthread"], **ranking
    )
    return xgboost.train(dict(parameters), data, rounds)
