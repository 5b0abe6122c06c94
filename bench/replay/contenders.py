"""Contenders: the ways to search that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tunewright.costmodel.base import base
from tunewright.costmodel.forest import Growth
from tunewright.costmodel.labels import Lesson
from tunewright.costmodel.learned import Learned
from tunewright.costmodel.model import AnalyticModel, Trials
from tunewright.costmodel.xgb import XGBModel
from tunewright.search_space.measurement import Record
from tunewright.tuner.jobs.strategies.evolutionary import POLICY, Evolutionary
from tunewright.tuner.jobs.strategies.random import Random

from .cases import Case
from .comparison import Contender

TAUGHT = 80
"""Records of each case that others learn from."""

GROWTH = Growth(rounds=150, max_depth=6, eta=0.1, colsample_bytree=0.3)

MEMBERS = 4

SPREAD_SCALE = 2.0
"""Deviation of the errors of such a model, in deviations between its members."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A case with the records of all of its points."""

    case: Case
    records: Sequence[Record]

    @property
    def operator(self) -> str:
        """The case but for its number of threads."""
        return self.case.name.partition(", threads")[0]


class Elsewhere:
    """What a model can learn from the records of all operators but one: what a database knows of a task that is new."""

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self._recorded = recorded
        self._operators = {each.case.name: each.operator for each in recorded}
        self._learned: dict[str, Learned] = {}  # by the operator left out

    def model(self, case: Case, seed: int) -> XGBModel:
        """A model of a case that knows the others."""
        operator = self._operators[case.name]
        if operator not in self._learned:
            self._learned[operator] = _learned(
                [trials for each in self._recorded if each.operator != operator for trials in _some(each)]
            )
        return XGBModel(self._learned[operator], seed=seed)


def _some(recorded: Recorded) -> list[Trials]:
    case = recorded.case
    rng = np.random.default_rng(int(case.task.key[:12], 16))
    drawn = [recorded.records[n] for n in rng.permutation(len(recorded.records))[:TAUGHT]]
    measured = [(record.schedule, record.measurement) for record in drawn]
    return [Trials.of(case.task, case.target, space, measured) for space in case.spaces]


def _learned(trials: Sequence[Trials]) -> Learned:
    forest = Lesson.of(trials).forest(GROWTH, members=MEMBERS, seed=0)
    return Learned((forest,), None, spread_scale=SPREAD_SCALE)


def contenders(recorded: Sequence[Recorded]) -> Mapping[str, Contender]:
    """By name: the control, the default strategy with each cost model, and with other policies.

    Recorded spaces are so small that the strategy scores all of their points. So three breed instead, from few points,
    as it does in large spaces: a part of these drafted by the estimate, all of them, or none. The base model may have
    learned from the very tasks; what is taught elsewhere has not.
    """
    elsewhere = Elsewhere(recorded)
    bred = replace(POLICY, whole=0, population=24)  # a tenth of what is recorded
    policies = {
        "without deviations": replace(POLICY, kappa=0.0),
        "without crowding": replace(POLICY, crowding=0.0),
        "without descent": replace(POLICY, descent=0.0),
        "all defaults first": replace(POLICY, others_from=0),
        "bred from a draft and others": bred,
        "bred from a draft": replace(bred, draft=1.0),
        "bred from others": replace(bred, draft=0.0),
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
        **_shipped(),
    } | {
        f"taught elsewhere, {name}": Contender(partial(Evolutionary, policy=policy), elsewhere.model)
        for name, policy in policies.items()
    }


def _shipped() -> Mapping[str, Contender]:
    known = base("cpu")
    if known is None:
        return {}
    learned = known.learned
    return {"base model": Contender(Evolutionary, lambda case, seed: XGBModel(learned, seed=seed))}
