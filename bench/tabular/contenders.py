"""Contenders: the strategies and cost models that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tunewright.costmodel.base import base
from tunewright.costmodel.forest import Growth
from tunewright.costmodel.labels import TrainingData
from tunewright.costmodel.layered_model import LayeredModel
from tunewright.costmodel.model import AnalyticModel, Trials
from tunewright.costmodel.xgb import XGBModel
from tunewright.search_space.measurement import Record
from tunewright.tuner.search.strategies.evolutionary import POLICY, Evolutionary
from tunewright.tuner.search.strategies.strategy import Random

from .cases import TabularCase
from .comparison import Contender

SAMPLED_RECORDS = 80
"""Records of each case that models of others learn from."""

GROWTH = Growth(rounds=150, max_depth=6, eta=0.1, colsample_bytree=0.3)

MEMBERS = 4

SPREAD_SCALE = 2.0
"""The deviation of such a model's errors, in units of the deviation between its members."""


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """A case with the records of all of its points."""

    case: TabularCase
    records: Sequence[Record]

    @property
    def operator(self) -> str:
        """The name of the case without its number of threads."""
        return self.case.name.partition(", threads")[0]


class TransferModels:
    """Models that learn from the records of all operators but the case's: a new task for a known database."""

    def __init__(self, recorded: Sequence[RecordedCase]) -> None:
        self._recorded = recorded
        self._operators = {recorded_case.case.name: recorded_case.operator for recorded_case in recorded}
        self._learned: dict[str, LayeredModel] = {}  # by the operator left out

    def model(self, case: TabularCase, seed: int) -> XGBModel:
        """A model for a case that has learned from the other operators."""
        operator = self._operators[case.name]
        if operator not in self._learned:
            self._learned[operator] = _learn(
                [
                    trials
                    for recorded_case in self._recorded
                    if recorded_case.operator != operator
                    for trials in _sample_trials(recorded_case)
                ]
            )
        return XGBModel(self._learned[operator], seed=seed)


def _sample_trials(recorded: RecordedCase) -> list[Trials]:
    case = recorded.case
    rng = np.random.default_rng(int(case.task.key[:12], 16))
    sample = [recorded.records[n] for n in rng.permutation(len(recorded.records))[:SAMPLED_RECORDS]]
    measurements = [(record.schedule, record.measurement) for record in sample]
    return [Trials.of(case.task, case.target, space, measurements) for space in case.spaces]


def _learn(trials: Sequence[Trials]) -> LayeredModel:
    forest = TrainingData.of(trials).forest(GROWTH, members=MEMBERS, seed=0)
    return LayeredModel((forest,), None, spread_scale=SPREAD_SCALE)


def contenders(recorded: Sequence[RecordedCase]) -> Mapping[str, Contender]:
    """By name: the control, the default strategy with each cost model, and with other policies.

    Recorded spaces are so small that the strategy scores all of their points. So three breed instead, from few points,
    as in large spaces: some of these drafted by the estimate, all of them, or none. The base model may have learned
    from these very tasks; models taught elsewhere have not.
    """
    elsewhere = TransferModels(recorded)
    bred_policy = replace(POLICY, whole=0, population=24)  # a tenth of the recorded points
    policies = {
        "without deviations": replace(POLICY, kappa=0.0),
        "without crowding": replace(POLICY, crowding=0.0),
        "without descent": replace(POLICY, descent=0.0),
        "all defaults first": replace(POLICY, others_from=0),
        "bred from a draft and others": bred_policy,
        "bred from a draft": replace(bred_policy, draft=1.0),
        "bred from others": replace(bred_policy, draft=0.0),
    }
    return {
        "random": Contender(Random, lambda case, seed: AnalyticModel()),
        "estimate": Contender(Evolutionary, lambda case, seed: AnalyticModel()),
        "trees": Contender(Evolutionary, lambda case, seed: XGBModel(seed=seed)),
        "trees, nothing at random": Contender(
            partial(Evolutionary, policy=replace(POLICY, explored=0.0, untaught=0.0)),
            lambda case, seed: XGBModel(seed=seed),
        ),
        "trees taught elsewhere": Contender(Evolutionary, elsewhere.model),
        **_base_model_contender(),
    } | {
        f"taught elsewhere, {name}": Contender(partial(Evolutionary, policy=policy), elsewhere.model)
        for name, policy in policies.items()
    }


def _base_model_contender() -> Mapping[str, Contender]:
    base_model = base("cpu")
    if base_model is None:
        return {}
    layered_model = base_model.learned
    return {"base model": Contender(Evolutionary, lambda case, seed: XGBModel(layered_model, seed=seed))}
