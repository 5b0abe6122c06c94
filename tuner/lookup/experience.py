"""Experience: the cost model before a job: the base model, and above it a layer from the database's trials.

The database keeps the upper layer as a snapshot, with its quality on tasks held out. So it is fitted once for all who
use it, and again only when there are many more trials.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from tunewright.costmodel.base import Base, base
from tunewright.costmodel.features import version_of
from tunewright.costmodel.layered_model import LayeredModel, fit_layer
from tunewright.costmodel.model import group_trials
from tunewright.costmodel.validation import split_held_out, validate
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.pruning.policy import LEARNED_TRIALS
from tunewright.db.snapshot import NewSnapshot, Snapshot

if TYPE_CHECKING:
    from tunewright.costmodel.model import Trials
    from tunewright.db.store import Store

MOST_TRIALS = LEARNED_TRIALS
"""Trials of the database that a snapshot learns from, the newest."""

FEWEST_TRIALS, GROWTH = 100, 0.2
"""New trials that a new snapshot takes: so many, and so large a part of those of the last one."""

JUDGED_BY = ("pairwise", "peak_1")
"""The figures in which a snapshot must be no worse than the base model, for lookups to pick by it."""

_log = logging.getLogger("tunewright.lookup")


@dataclass(frozen=True, slots=True)
class Experience:
    """The cost model before the next trial."""

    learned: LayeredModel | None  # None without any model
    snapshot: Snapshot | None  # of the last layer; None where that is the base model, or there is no model
    quality: Mapping[str, Any] | None  # on tasks held out: `judging.Quality` as JSON; None: not known
    base_sha256: str = ""  # of the base model below; empty: there is none

    @property
    def sha256s(self) -> list[str]:
        """The digests of the base model and of the snapshot above it, as far as they are there."""
        return [sha256 for sha256 in (self.base_sha256, self.snapshot.sha256 if self.snapshot else "") if sha256]


def experience(store: Store | None, target_kind: str) -> Experience:
    """The newest cost model; without a store the base model. Raises StoreError."""
    return _above_base(_newest_layer(store, target_kind) if store else None, target_kind)


def proven_experience(store: Store | None, target_kind: str) -> Experience:
    """The cost model for picks that are not measured: the newest snapshot only where it is proven.

    A job measures what it picks, and learns where that was wrong. Raises StoreError.
    """
    newest = _newest_layer(store, target_kind) if store else None
    return _above_base(newest if newest is not None and is_proven(newest.snapshot) else None, target_kind)


def is_proven(snapshot: Snapshot) -> bool:
    """Whether a snapshot does no worse than the base model on tasks that it has not learned from."""
    above, below = (snapshot.metrics.get(name) or {} for name in ("held_out", "below"))
    figures = [(above.get(name), below.get(name)) for name in JUDGED_BY]
    return all(
        figure is not None and base_figure is not None and figure >= base_figure for figure, base_figure in figures
    )


class _SnapshotLayer(NamedTuple):
    """A snapshot, and the layer that it holds."""

    snapshot: Snapshot
    layer: LayeredModel


def _above_base(newest: _SnapshotLayer | None, target_kind: str) -> Experience:
    shipped = base(target_kind)
    base_experience = (
        Experience(shipped.learned, None, shipped.card["quality"], shipped.sha256)
        if shipped
        else Experience(None, None, None)
    )
    if newest is None:
        return base_experience
    snapshot, layer = newest
    return Experience(
        layer.on(base_experience.learned) if base_experience.learned else layer,
        snapshot,
        snapshot.metrics.get("held_out"),
        base_experience.base_sha256,
    )


def newest_snapshot(store: Store, target_kind: str) -> Snapshot | None:
    """The last snapshot that stands on the base model at hand; None where there is none, or it can't be read.

    Raises StoreError.
    """
    newest = _newest_layer(store, target_kind)
    return newest.snapshot if newest else None


def _newest_layer(store: Store, target_kind: str) -> _SnapshotLayer | None:
    shipped = base(target_kind)
    snapshot = store.snapshots.newest(target_kind, version_of(target_kind), shipped.sha256 if shipped else None)
    if snapshot is None:
        return None
    try:
        return _SnapshotLayer(snapshot, LayeredModel.read(snapshot.content, snapshot.sha256, target_kind))
    except ValueError as error:  # of another version of Tunewright or of XGBoost: `learn` makes a new one
        _log.warning("snapshot %d of the cost model is not used: %s", snapshot.id, error)
        return None


def learn(store: Store, target_kind: str, job_id: int | None = None) -> Snapshot | None:
    """Fit and keep a new snapshot, where there are enough new trials; else None.

    Takes seconds then. Raises StoreError.
    """
    newest, last_id = newest_snapshot(store, target_kind), store.newest_trial()
    known_id, known_trials = (newest.newest_trial_id, newest.trials) if newest else (0, 0)
    if last_id - known_id < max(FEWEST_TRIALS, GROWTH * known_trials):
        return None
    trials = list(group_trials(islice(store.examples(target_kind, through=last_id), MOST_TRIALS)))
    snapshot = _fit_snapshot(trials, base(target_kind), target_kind, last_id, job_id)
    return store.snapshots.keep(snapshot) if snapshot else None


def _fit_snapshot(
    trials: Sequence[Trials], shipped: Base | None, target_kind: str, last_id: int, job_id: int | None
) -> NewSnapshot | None:
    """A model of all trials, with how good it is; None where they are too few."""
    below = shipped.learned if shipped else None
    above = fit_layer(trials, below)
    if above is None:
        return None
    return NewSnapshot(
        target_kind=target_kind,
        features_version=version_of(target_kind),
        content=above.write(),
        trials=sum(len(each.times_s) for each in trials),
        newest_trial_id=last_id,
        metrics=_metrics(trials, below),
        parent_sha256=shipped.sha256 if shipped else None,
        job_id=job_id,
    )


def _metrics(trials: Sequence[Trials], below: LayeredModel | None) -> dict[str, Any]:
    """The quality of a model trained without some tasks on these, and that of the base model on the same."""
    learned, held_out = split_held_out(trials)
    layer = fit_layer(learned, below)
    if layer is None:
        return {"held_out": None, "below": None}
    qualities = validate(XGBModel(layer.on(below) if below else layer), held_out), validate(XGBModel(below), held_out)
    return {
        name: quality.to_json() if quality else None
        for name, quality in zip(("held_out", "below"), qualities, strict=True)
    }
