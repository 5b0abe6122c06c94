"""Forest: a few ensembles of boosted trees over features, each of which has learned from other tasks.

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

from .ensemble import Ensemble

if TYPE_CHECKING:
    import xgboost

Values = NDArray[np.float32]  # [points, features]
Labels = NDArray[np.float32]  # [points]
Members = NDArray[np.float32]  # [members, points]

RANKS, SQUARES = "rank:pairwise", "reg:squarederror"
"""Objectives: which of two points of a group has the higher label, and the label itself."""

BINS = 64
"""Most values of a feature that a tree tells apart; 256 are no better, and four times as slow to count."""

SAMPLE_CHANCE = 0.8
"""The chance that a member learns from a group."""


@dataclass(frozen=True, slots=True)
class Growth:
    """XGBoost's parameters for the trees of a member."""

    rounds: int
    max_depth: int
    eta: float
    colsample_bytree: float
    subsample: float = 0.8
    min_child_weight: float = 1.0


class Forest:
    """Predicts labels: an ensemble for each member. `fit` and `read` make one."""

    def __init__(self, ensembles: Sequence[Ensemble]) -> None:
        self._ensembles = list(ensembles)
        self._trees = [ensemble.trees() for ensemble in ensembles]

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
        """Learn labels; each member adds to its predictions `before` [members, points].

        `groups` [points] are learned from whole or not at all by a member, so that members differ in what they have
        never seen. For an `objective` that ranks, the points of a group must lie together. Equal arguments give equal
        forests.
        """
        ensembles = []
        for member in range(members):
            sample = _sample(groups, member, members, seed)
            margin = None if before is None else before[member][sample]
            parameters = _parameters(growth, seed + member, objective, margin is not None)
            ensembles.append(_boost(values[sample], labels[sample], groups[sample], margin, parameters, growth.rounds))
        return Forest(ensembles)

    @property
    def members(self) -> int:
        return len(self._ensembles)

    def predict(self, values: Values) -> Members:
        """The prediction of each member, without those of the layers before."""
        return np.stack([trees.sums(values) for trees in self._trees])

    @cached_property
    def _boosters(self) -> list[xgboost.Booster]:
        import xgboost

        models = (bytearray(ensemble.to_json()) for ensemble in self._ensembles)
        return [xgboost.Booster({"nthread": 1}, model_file=model) for model in models]

    def contributions(self, values: Values) -> NDArray[np.float32]:
        """The part of each feature in the mean prediction of points [points, features + 1]; the last is the base score.

        Shapley values of the trees: Lundberg et al., "Consistent Individualized Feature Attribution for Tree
        Ensembles", 2018.
        """
        import xgboost

        data = xgboost.DMatrix(values)
        parts = [booster.predict(data, pred_contribs=True) for booster in self._boosters]
        return np.asarray(np.mean(parts, axis=0), np.float32)

    def gains(self, features: int) -> NDArray[np.float64]:
        """The share of each feature in the reduction of the error [features]."""
        total = np.zeros(features)
        for booster in self._boosters:
            for name, gain in booster.get_score(importance_type="total_gain").items():
                total[int(name[1:])] += float(gain) if not isinstance(gain, list) else sum(gain)
        return total / max(float(total.sum()), 1e-12)

    def write(self) -> bytes:
        """As bytes: the length of each member's ensemble as JSON, a line end, and these."""
        parts = [ensemble.write() for ensemble in self._ensembles]
        return json.dumps([len(part) for part in parts]).encode() + b"\n" + b"".join(parts)

    @staticmethod
    def read(content: bytes) -> Forest:
        """The inverse of `write`. Raises ValueError for anything else."""
        return Forest([Ensemble.read(part) for part in _parts(content)])

    @staticmethod
    def read_ubjson(content: bytes) -> Forest:
        """A forest in its first form, of models in XGBoost's UBJSON. Raises ValueError for anything else.

        Imports xgboost. Only for bytes whose digest is known: its reader trusts what it reads.
        """
        import xgboost

        try:
            boosters = [xgboost.Booster({"nthread": 1}, model_file=bytearray(part)) for part in _parts(content)]
        except xgboost.core.XGBoostError as error:
            raise ValueError(f"no model of XGBoost: {str(error).splitlines()[0]}") from error
        return Forest([_ensemble(booster) for booster in boosters])


def _parts(content: bytes) -> list[bytes]:
    """The bytes of each member. Raises ValueError where there are more or fewer than their lengths say."""
    head, _, rest = content.partition(b"\n")
    lengths = json.loads(head)
    if not isinstance(lengths, list) or not all(isinstance(n, int) and n > 0 for n in lengths):
        raise ValueError(f"no lengths of models: {head[:40]!r}")
    if sum(lengths) != len(rest):
        raise ValueError(f"{len(rest)} bytes of models, not {sum(lengths)}")
    ends = list(accumulate(lengths))
    return [rest[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _ensemble(booster: xgboost.Booster) -> Ensemble:
    return Ensemble.of(bytes(booster.save_raw("json")))


def _sample(groups: NDArray[np.int64], member: int, members: int, seed: int) -> NDArray[np.bool_]:
    """The points that a member learns from: all where it is alone, or where the draw leaves less than half of them."""
    group_numbers = np.unique(groups)
    all_points = np.ones(len(groups), np.bool_)
    if members == 1:
        return all_points
    sampled_groups = group_numbers[np.random.default_rng([seed, member]).random(len(group_numbers)) < SAMPLE_CHANCE]
    sample = np.isin(groups, sampled_groups)
    return sample if 2 * sample.sum() > len(groups) else all_points


def _parameters(growth: Growth, seed: int, objective: str, has_margin: bool) -> Mapping[str, Any]:
    growth_parameters = {name: value for name, value in asdict(growth).items() if name != "rounds"}
    fixed = {"tree_method": "hist", "max_bin": BINS, "verbosity": 0, "nthread": 1, "seed": seed}
    return {**growth_parameters, **fixed, "objective": objective, **({"base_score": 0.0} if has_margin else {})}


def _boost(
    values: Values,
    labels: Labels,
    groups: NDArray[np.int64],
    margin: NDArray[np.float32] | None,
    parameters: Mapping[str, Any],
    rounds: int,
) -> Ensemble:
    import xgboost

    ranking = {"qid": groups} if str(parameters["objective"]).startswith("rank:") else {}
    data = xgboost.QuantileDMatrix(
        values, label=labels, base_margin=margin, max_bin=BINS, nthread=parameters["nthread"], **ranking
    )
    return _ensemble(xgboost.train(dict(parameters), data, rounds))
