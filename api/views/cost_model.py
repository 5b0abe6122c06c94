"""The view of the cost model: its versions, what each learned from, how good they are, and which of them is gone by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from tunewright.costmodel.base import Base
from tunewright.costmodel.features import NAMES, VERSION
from tunewright.db.cost_models import Snapshot
from tunewright.db.sql_store import SqlStore
from tunewright.tuner.insight import told
from tunewright.tuner.insight.standing import Lessons, Standing, Use, Weight, Why, standing
from tunewright.tuner.lookup.experience import FEWEST_TRIALS, GROWTH

from ..schemas import Answer
from .said import Said

LISTED = 100
"""Snapshots that are shown: the newest."""

MOST_OPS = 20
"""Ops of a training set that are shown: those with the most trials."""

USUAL_KIND = "cpu"


class Picks(StrEnum):
    """What picks schedules that nobody measured."""

    SNAPSHOT = "snapshot"  # the newest one, above the base model
    BASE = "base"  # the base model alone
    NONE = "none"  # nothing was learned: an analytic estimate ranks, and lookups answer with defaults


class Figures(Answer):
    """How good a model is on tasks that it has not learned from; null for what they could not tell."""

    tasks: int
    trials: int
    pairwise: float | None = Field(description="Share of pairs in the right order, of those that intervals tell apart.")
    pairwise_all: float | None = Field(description="The same of all pairs.")
    peak_1: float | None = Field(description="Speed of the schedule ranked first, beside that of the best.")
    peak_5: float | None = Field(description="The same of the best of the first five.")
    time_error: float | None = Field(description="Median of how far predicted times are off: 0.1 is 10%.")
    covered: float | None = Field(description="Share of times within two deviations of those predicted; 0.95 is right.")


class OpLine(Answer):
    """How much of a training set is of one op."""

    op: Said
    trials: int
    held_out: int | None = Field(description="Trials that it is judged by; null where nobody knows.")


class TrainingSet(Answer):
    """What a model learned from."""

    tasks: int
    trials: int
    ops: list[OpLine] = Field(description="Those with the most trials first.")
    other_trials: int = Field(description="Of ops that are not listed.")


class Rival(Answer):
    """What else was tried on the tasks that the base model is judged by."""

    name: Said
    pairwise: float | None
    pairwise_all: float | None
    peak_1: float | None
    peak_5: float | None


class BaseShown(Answer):
    """The base model, which is a part of the package, by its data card."""

    sha256: Said
    made: Said = Field(description="The day.")
    learned_from: TrainingSet
    quality: Figures | None
    rivals: list[Rival]
    targets: list[Said] = Field(description="That it has trials of, for people.")
    machine: dict[Said, Said] = Field(description="What they were measured with.")
    told: list[Said] = Field(description="That an older model told of: their trials are gone.")


class SnapshotLine(Answer):
    """What the trials of this database taught, at a moment."""

    id: int
    made_at: datetime
    sha256: Said
    size_bytes: int
    job: int | None = Field(description="That taught it; null: the service did.")
    trials: int = Field(description="That it learned from.")
    use: Use
    held_out: Figures | None = Field(description="On tasks held out; null where they were too few.")
    below: Figures | None = Field(description="Of what it stands on, on the same tasks.")


class WeightLine(Answer):
    """How much of what a model has learned is by one feature."""

    feature: Said
    words: Said
    share: float


class CostModelPage(Answer):
    """The cost models for a kind of target."""

    kind: Said
    kinds: list[Said] = Field(description="Kinds of targets that there is anything of.")
    features: int = Field(description="How many numbers the model sees of a schedule.")
    features_version: Said = Field(description="A model of another version is left alone.")
    base: BaseShown | None = Field(description="Null: there is none that could be used.")
    trouble: Said = Field(description="Why the base model can't be read; empty where nothing is wrong with it.")
    snapshots: list[SnapshotLine] = Field(description="The newest first.")
    is_cut: bool = Field(description="Whether there are older ones.")
    newest: int | None = Field(description="The snapshot that jobs begin with; null: they begin with the base model.")
    picks: Picks = Field(description="What lookups pick by.")
    why: Why
    worse_in: list[Said] = Field(description="Figures in which the newest snapshot is worse than what it stands on.")
    new_trials: int = Field(description="Trials that no snapshot in use has learned from, of all kinds of targets.")
    wanted_trials: int = Field(description="So many make the next snapshot.")
    base_weights: list[WeightLine] = Field(description="What the base model goes by, the largest first.")
    newest_learned_from: TrainingSet | None = Field(description="The trials of the newest snapshot; null without one.")
    newest_weights: list[WeightLine] = Field(description="What the newest snapshot adds goes by.")


def cost_model_page(store: SqlStore, kind: str = "") -> CostModelPage:
    """The cost models for a kind of target, by default that of processors. Raises StoreError."""
    kind = kind or USUAL_KIND
    heads = store.costs.list(kind, LISTED + 1)
    stands = standing(store, kind, heads)
    learned = stands.newest
    known_id, known = (learned.newest_trial_id, learned.trials) if learned else (0, 0)
    return CostModelPage(
        kind=kind,
        kinds=sorted({USUAL_KIND, kind, *(target.kind for target in store.targets())}),
        features=len(NAMES),
        features_version=VERSION,
        base=_base(stands.base) if stands.base else None,
        trouble=stands.trouble,
        snapshots=[_snapshot(head, stands) for head in heads[:LISTED]],
        is_cut=len(heads) > LISTED,
        newest=learned.id if learned else None,
        picks=_picks(stands),
        why=stands.why,
        worse_in=list(stands.worse_in),
        new_trials=max(store.newest_trial() - known_id, 0),
        wanted_trials=round(max(FEWEST_TRIALS, GROWTH * known)),
        base_weights=_weights(stands.base_weights),
        newest_learned_from=_lessons(stands.newest_lessons) if stands.newest_lessons else None,
        newest_weights=_weights(stands.newest_weights),
    )


def _picks(stands: Standing) -> Picks:
    if stands.why is Why.PROVEN:
        return Picks.SNAPSHOT
    return Picks.BASE if stands.base else Picks.NONE


def _base(shipped: Base) -> BaseShown:
    card = shipped.card
    held_out = _table(card, "held_out")
    return BaseShown(
        sha256=shipped.sha256,
        made=told.word(card, "made"),
        learned_from=_training_set(_table(card, "learned_from"), _table(held_out, "trials_by_op")),
        quality=_figures(_table(card, "quality")),
        rivals=[
            Rival(name=name, **{figure: told.number(figures, figure) for figure in RANKING})
            for name, figures in _table(card, "objectives").items()
        ],
        targets=[str(target) for target in card.get("targets", ())],
        told=[str(target) for target in _table(card, "told").get("targets", ())],
        machine={name: str(text) for name, text in _table(card, "machine").items()},
    )


RANKING = ("pairwise", "pairwise_all", "peak_1", "peak_5")
"""Figures of how well a model ranks."""


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of what was told of a model; empty where there is none."""
    part = data.get(name)
    return part if isinstance(part, Mapping) else {}


def _figures(data: Mapping[str, Any]) -> Figures | None:
    if not data:
        return None
    return Figures(
        tasks=int(told.number(data, "tasks") or 0),
        trials=int(told.number(data, "trials") or 0),
        time_error=told.number(data, "time_error"),
        covered=told.number(data, "covered"),
        **{name: told.number(data, name) for name in RANKING},
    )


def _training_set(data: Mapping[str, Any], held_out: Mapping[str, Any]) -> TrainingSet:
    """By a data card; `held_out` has the trials by op that the model is judged by."""
    by_op = _table(data, "trials_by_op")
    trials, judged = ({op: int(told.number(part, op) or 0) for op in part} for part in (by_op, held_out))
    return _ops(int(told.number(data, "tasks") or 0), trials, judged)


def _lessons(lessons: Lessons) -> TrainingSet:
    by_op = lessons.trials_by_op
    return _ops(lessons.tasks, by_op, dict.fromkeys(by_op))


def _ops(tasks: int, trials: Mapping[str, int], held_out: Mapping[str, int | None]) -> TrainingSet:
    """Trials by op, and those to judge by."""
    listed = sorted(trials, key=lambda op: -trials[op])[:MOST_OPS]
    return TrainingSet(
        tasks=tasks,
        trials=sum(trials.values()),
        ops=[OpLine(op=op, trials=trials[op], held_out=held_out.get(op, 0)) for op in listed],
        other_trials=sum(trials.values()) - sum(trials[op] for op in listed),
    )


def _snapshot(head: Snapshot, stands: Standing) -> SnapshotLine:
    return SnapshotLine(
        id=head.id,
        made_at=head.made_at,
        sha256=head.sha256,
        size_bytes=head.size_bytes,
        job=head.job_id,
        trials=head.trials,
        use=stands.uses[head.id],
        held_out=_figures(_table(head.metrics, "held_out")),
        below=_figures(_table(head.metrics, "below")),
    )


def _weights(weights: Sequence[Weight]) -> list[WeightLine]:
    return [WeightLine(feature=one.feature, words=one.words, share=one.share) for one in weights]
