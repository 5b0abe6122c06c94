"""The page of the cost model: its versions, their training sets and quality, and which of them is in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query
from markupsafe import Markup
from pydantic import Field

from tunewright.codegen.target import CUDA
from tunewright.costmodel.base import Base
from tunewright.costmodel.features import names_of, version_of
from tunewright.db.snapshot import Snapshot
from tunewright.tuner.explain import values
from tunewright.tuner.explain.cost_model_status import (
    CostModelStatus,
    PickReason,
    SnapshotUse,
    cost_model_status,
)
from tunewright.tuner.lookup.experience import FEWEST_TRIALS, GROWTH
from tunewright.tuner.text import counted, share

from ..http.problems import ProblemKind
from ..http.schemas.base import Answer
from ..http.service import ServiceDep
from .drawing.bars import Bar, bars
from .drawing.figure import Figure, Point, Series
from .drawing.scales import AxisSpec, Unit
from .page import add_page
from .page_query import PageQuery
from .views import Text

router = APIRouter(tags=["pages"])

LISTED = 100
"""Snapshots that are shown: the newest."""

MOST_OPS = 20
"""Ops of a training set that are shown: those with the most trials."""

USUAL_KIND = "cpu"


class CostModelTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template `cost_model_TAB.html`."""

    OVERVIEW = "overview"
    SNAPSHOTS = "snapshots"
    TRAINING = "training"
    FEATURES = "features"


class CostModelAsked(PageQuery):
    """What of the cost model was asked for."""

    kind: str = Field(
        default="", pattern=f"^({USUAL_KIND}|{CUDA})?$", description="Kind of targets; empty: of processors."
    )
    tab: CostModelTab = Field(
        default=CostModelTab.OVERVIEW, description="What the page shows, whose data has all of it in any case."
    )


class Picks(StrEnum):
    """What picks schedules that nobody measured."""

    SNAPSHOT = "snapshot"  # the newest one, above the base model
    BASE = "base"  # the base model alone
    NONE = "none"  # nothing was learned: an analytic estimate ranks, and lookups answer with defaults


class RankingFigures(Answer):
    """How well a model ranks; null for what the tasks could not tell."""

    pairwise: float | None = Field(description="Share of pairs in the right order, of those that intervals tell apart.")
    pairwise_all: float | None = Field(description="The same of all pairs.")
    peak_1: float | None = Field(description="Speed of the schedule ranked first, beside that of the best.")
    peak_5: float | None = Field(description="The same of the best of the first five.")


class Figures(RankingFigures):
    """How good a model is on tasks that it has not learned from; null for what they could not tell."""

    tasks: int
    trials: int
    time_error: float | None = Field(description="Median of how far predicted times are off: 0.1 is 10%.")
    covered: float | None = Field(description="Share of times within two deviations of those predicted; 0.95 is right.")


class OpLine(Answer):
    """How much of a training set is of one op."""

    op: Text
    trials: int
    held_out: int | None = Field(description="Trials that it is judged by; null where nobody knows.")


class TrainingSet(Answer):
    """What a model learned from."""

    tasks: int
    trials: int
    ops: list[OpLine] = Field(description="Those with the most trials first.")
    other_trials: int = Field(description="Of ops that are not listed.")


class Rival(RankingFigures):
    """What else was tried on the tasks that the base model is judged by."""

    name: Text


class BaseShown(Answer):
    """The base model, which is a part of the package, by its data card."""

    sha256: Text
    made: Text = Field(description="The day.")
    learned_from: TrainingSet
    quality: Figures | None
    rivals: list[Rival]
    targets: list[Text] = Field(description="That it has trials of, for people.")
    machine: dict[Text, Text] = Field(description="What they were measured with.")
    told: list[Text] = Field(description="That an older model told of: their trials are gone.")


class SnapshotLine(Answer):
    """What the trials of this database taught, at a moment."""

    id: int
    made_at: datetime
    sha256: Text
    size_bytes: int
    job: int | None = Field(description="That taught it; null: the service did.")
    trials: int = Field(description="That it learned from.")
    use: SnapshotUse
    held_out: Figures | None = Field(description="On tasks held out; null where they were too few.")
    below: Figures | None = Field(description="Of what it stands on, on the same tasks.")


class WeightLine(Answer):
    """How much of what a model has learned is by one feature."""

    feature: Text
    words: Text
    share: float


class CostModelPage(Answer):
    """The cost models for a kind of target."""

    asked: CostModelAsked
    kind: Text
    kinds: list[Text] = Field(description="Kinds of targets that there is anything of.")
    features: int = Field(description="How many numbers the model sees of a schedule.")
    features_version: Text = Field(description="A model of another version is left alone.")
    base: BaseShown | None = Field(description="Null: there is none that could be used.")
    trouble: Text = Field(description="Why the base model can't be read; empty where nothing is wrong with it.")
    snapshots: list[SnapshotLine] = Field(description="The newest first.")
    is_cut: bool = Field(description="Whether there are older ones.")
    newest: int | None = Field(description="The snapshot that jobs begin with; null: they begin with the base model.")
    picks: Picks = Field(description="What lookups pick by.")
    why: PickReason
    worse_in: list[Text] = Field(description="Figures in which the newest snapshot is worse than what it stands on.")
    new_trials: int = Field(description="Trials that no snapshot in use has learned from, of all kinds of targets.")
    wanted_trials: int = Field(description="So many make the next snapshot.")
    base_weights: list[WeightLine] = Field(description="What the base model goes by, the largest first.")
    newest_learned_from: TrainingSet | None = Field(description="The trials of the newest snapshot; null without one.")
    newest_weights: list[WeightLine] = Field(description="What the newest snapshot adds goes by.")


# Charts

AGE = AxisSpec("time since the first of these", Unit.CLOCK, include=(0.0,))

HISTORY = {
    "pairwise": ("Pairs in the right order", 1.0),
    "peak_1": ("Speed of the first pick, beside the best", 1.0),
    "time_error": ("How far predicted times are off", 0.0),
    "covered": ("Times within two deviations; 95% is right", 0.95),
}
"""Title and ideal value of each figure."""

NEVER = "No snapshot was judged yet: it takes some hundred trials of five tasks or more."


def cost_model_charts(view: CostModelPage) -> dict[str, Markup]:
    """One of each figure in `HISTORY`, `ops` and `newest_ops`, `base_weights` and `newest_weights`."""
    charts = {figure: _history(view, figure, *spec) for figure, spec in HISTORY.items()}
    return charts | {
        "ops": _op_bars("Training set of the base model", view.base.learned_from if view.base else None),
        "newest_ops": _op_bars("Training set of the newest snapshot", view.newest_learned_from),
        "base_weights": _weight_bars("Feature importance of the base model", view.base_weights),
        "newest_weights": _weight_bars("Feature importance of the newest snapshot", view.newest_weights),
    }


def _history(view: CostModelPage, figure: str, title: str, right: float) -> Markup:
    """A figure of all snapshots that have it, and of what each of them stands on."""
    first = min((snapshot.made_at for snapshot in view.snapshots), default=None)

    def points(of: Callable[[SnapshotLine], Figures | None]) -> list[Point]:
        return [
            Point((snapshot.made_at - first).total_seconds(), value)
            for snapshot in reversed(view.snapshots)
            if first and (value := getattr(of(snapshot), figure, None)) is not None
        ]

    series = [
        Series("snapshots", points(lambda snapshot: snapshot.held_out)),
        Series("what they stand on", points(lambda snapshot: snapshot.below)),
    ]
    share_of = AxisSpec(title, Unit.SHARE, include=(right,))
    return Figure("steps", title, AGE, share_of, series, nothing=NEVER).draw()


def _op_bars(title: str, learned_from: TrainingSet | None) -> Markup:
    rows = [
        Bar(
            line.op or "-",
            float(line.trials),
            f"{line.trials:,}",
            "" if line.held_out is None else f"{counted(line.held_out, 'trial')} to judge it by",
        )
        for line in (learned_from.ops if learned_from else ())
    ]
    return bars(title, rows, heads=("op", "trials"), nothing="There is no such model.")


def _weight_bars(title: str, weights: Sequence[WeightLine]) -> Markup:
    rows = [Bar(line.words, line.share, share(line.share), line.feature) for line in weights]
    return bars(title, rows, heads=("feature", "importance"), kind="series-0", nothing="There is no such model.")


# View


@add_page(
    router,
    "/cost-model",
    "cost_model.html",
    summary="The cost model",
    charts=cost_model_charts,
    refusals=(ProblemKind.INVALID,),
)
def cost_model(service: ServiceDep, query: Annotated[CostModelAsked, Query()]) -> CostModelPage:
    """The base model and the snapshots of what this database's trials taught: what each learned from, how good it is on
    tasks held out, which of them jobs begin with and lookups pick by, and which features they go by.
    """
    store, kind = service.store, query.kind or USUAL_KIND
    heads = store.snapshots.list(kind, LISTED + 1)
    status = cost_model_status(store, kind, heads)
    newest, lessons = status.newest, status.newest_lessons
    known_id, known_trials = (newest.newest_trial_id, newest.trials) if newest else (0, 0)
    return CostModelPage.show(
        status,
        asked=query,
        kind=kind,
        kinds=sorted({USUAL_KIND, kind, *(target.kind for target in store.targets())}),
        features=len(names_of(kind)),
        features_version=version_of(kind),
        base=_base(status.base) if status.base else None,
        snapshots=[_snapshot(head, status) for head in heads[:LISTED]],
        is_cut=len(heads) > LISTED,
        newest=newest.id if newest else None,
        picks=_picks(status),
        new_trials=max(store.newest_trial() - known_id, 0),
        wanted_trials=round(max(FEWEST_TRIALS, GROWTH * known_trials)),
        newest_learned_from=_ops(lessons.tasks, lessons.trials_by_op, dict.fromkeys(lessons.trials_by_op))
        if lessons
        else None,
    )


def _picks(status: CostModelStatus) -> Picks:
    if status.why is PickReason.PROVEN:
        return Picks.SNAPSHOT
    return Picks.BASE if status.base else Picks.NONE


def _base(shipped: Base) -> BaseShown:
    card = shipped.card
    learned_from = _table(card, "learned_from")
    trials, held_out = (
        {op: int(values.number(by_op, op) or 0) for op in by_op}
        for by_op in (_table(part, "trials_by_op") for part in (learned_from, _table(card, "held_out")))
    )
    return BaseShown.show(
        shipped,
        made=values.word(card, "made"),
        learned_from=_ops(int(values.number(learned_from, "tasks") or 0), trials, held_out),
        quality=_figures(_table(card, "quality")),
        rivals=[
            Rival(name=name, **{figure: values.number(figures, figure) for figure in RankingFigures.model_fields})
            for name, figures in _table(card, "objectives").items()
        ],
        targets=[str(target) for target in card.get("targets", ())],
        told=[str(target) for target in _table(card, "told").get("targets", ())],
        machine={name: str(text) for name, text in _table(card, "machine").items()},
    )


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table within a data card; empty where there is none."""
    part = data.get(name)
    return part if isinstance(part, Mapping) else {}


def _figures(data: Mapping[str, Any]) -> Figures | None:
    if not data:
        return None
    counts = {name: int(values.number(data, name) or 0) for name in ("tasks", "trials")}
    return Figures.model_validate({name: values.number(data, name) for name in Figures.model_fields} | counts)


def _ops(tasks: int, trials: Mapping[str, int], held_out: Mapping[str, int | None]) -> TrainingSet:
    """Trials by op, and those that the model is judged by; None where nobody knows."""
    ops = sorted(trials, key=lambda op: -trials[op])[:MOST_OPS]
    return TrainingSet(
        tasks=tasks,
        trials=sum(trials.values()),
        ops=[OpLine(op=op, trials=trials[op], held_out=held_out.get(op, 0)) for op in ops],
        other_trials=sum(trials.values()) - sum(trials[op] for op in ops),
    )


def _snapshot(head: Snapshot, status: CostModelStatus) -> SnapshotLine:
    return SnapshotLine.show(
        head,
        job=head.job_id,
        use=status.uses[head.id],
        held_out=_figures(_table(head.metrics, "held_out")),
        below=_figures(_table(head.metrics, "below")),
    )
