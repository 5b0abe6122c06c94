"""Experience: what cost models know before a job: the base model, and above it what a database's trials add.

The upper layer is kept in the database as a snapshot, with how well it does on tasks held out, so that it is fitted
once for all who use it, and again only when there is much more to learn from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tunewright.costmodel.base import Base, base
from tunewright.costmodel.examples import grouped
from tunewright.costmodel.features import VERSION
from tunewright.costmodel.judging import judge, parted
from tunewright.costmodel.layer import layer_of
from tunewright.costmodel.learned import Learned
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.cost_models import CostModels, NewSnapshot, Snapshot

if TYPE_CHECKING:
    from tunewright.costmodel.model import Trials
    from tunewright.search_space.measurement import Candidate, Measurement

MOST_TRIALS = 10_000
"""Trials of the database that are learned from, the newest."""

FEWEST_TRIALS, GROWTH = 100, 0.2
"""A snapshot is made when there are so many trials that none has learned from, and so large a part of those it has."""

JUDGED_BY = ("pairwise", "peak_1")
"""The figures in which a snapshot must be no worse than what it stands on, for lookups to pick by it."""

_log = logging.getLogger("tunewright.lookup")


class Taught(Protocol):
    """What a store must have to be learned from."""

    @property
    def costs(self) -> CostModels: ...

    def newest_trial(self) -> int:
        """See `Store`."""
        ...

    def examples(
        self, target_kind: str, after: int = 0, through: int | None = None
    ) -> Iterator[tuple[Candidate, Measurement]]:
        """See `Store`."""
        ...


@dataclass(frozen=True, slots=True)
class Experience:
    """What is known before the next trial."""

    learned: Learned | None  # None where nothing is
    snapshot: Snapshot | None  # the last layer of it; None where that is the base model, or nothing is known
    quality: Mapping[str, Any] | None  # of it on tasks held out: `judging.Quality` as JSON; None where nobody knows


def experience(store: Taught | None, target_kind: str) -> Experience:
    """What is known so far, without a store the base model. Raises StoreError."""
    return _above_base(_newest(store, target_kind) if store else None, target_kind)


def proven(store: Taught | None, target_kind: str) -> Experience:
    """The same to pick by what nobody will measure: without a snapshot that is not known to be worth it.

    A job measures what it picks, and learns where that was wrong. Raises StoreError.
    """
    newest = _newest(store, target_kind) if store else None
    return _above_base(newest if newest is not None and is_proven(newest.snapshot) else None, target_kind)


def is_proven(snapshot: Snapshot) -> bool:
    """Whether it is known to do no worse on tasks that it has not learned from than what it stands on."""
    above, below = (snapshot.metrics.get(name) or {} for name in ("held_out", "below"))
    figures = [(above.get(name), below.get(name)) for name in JUDGED_BY]
    return all(own is not None and other is not None and own >= other for own, other in figures)


class _Newest(NamedTuple):
    """A snapshot, and the layer that it holds."""

    snapshot: Snapshot
    layer: Learned


def _above_base(newest: _Newest | None, target_kind: str) -> Experience:
    shipped = base(target_kind)
    alone = Experience(shipped.learned, None, shipped.card["quality"]) if shipped else Experience(None, None, None)
    if newest is None:
        return alone
    snapshot, layer = newest
    return Experience(layer.on(alone.learned) if alone.learned else layer, snapshot, snapshot.metrics.get("held_out"))


def newest_snapshot(store: Taught, target_kind: str) -> Snapshot | None:
    """The last snapshot that stands on the base model at hand; None where there is none, or it can't be read.

    Raises StoreError.
    """
    newest = _newest(store, target_kind)
    return newest.snapshot if newest else None


def _newest(store: Taught, target_kind: str) -> _Newest | None:
    shipped = base(target_kind)
    snapshot = store.costs.newest(target_kind, VERSION, shipped.sha256 if shipped else None)
    if snapshot is None:
        return None
    try:
        return _Newest(snapshot, Learned.read(snapshot.content, snapshot.sha256))
    except ValueError as error:  # of another version of Tunewright or of XGBoost: `learn` makes a new one
        _log.warning("snapshot %d of the cost model is not used: %s", snapshot.id, error)
        return None


def learn(store: Taught, target_kind: str, job_id: int | None = None) -> Snapshot | None:
    """Keep a new snapshot, where there is much that none has learned from; None where that is not so.

    Takes seconds then. Raises StoreError.
    """
    newest, last_id = newest_snapshot(store, target_kind), store.newest_trial()
    known_id, known = (newest.newest_trial_id, newest.trials) if newest else (0, 0)
    if last_id - known_id < max(FEWEST_TRIALS, GROWTH * known):
        return None
    trials = list(grouped(islice(store.examples(target_kind, through=last_id), MOST_TRIALS)))
    made = _made(trials, base(target_kind), target_kind, last_id, job_id)
    return store.costs.keep(made) if made else None


def _made(
    trials: Sequence[Trials], shipped: Base | None, target_kind: str, last_id: int, job_id: int | None
) -> NewSnapshot | None:
    """A model of all trials, with how good it is; None where they are too few."""
    below = shipped.learned if shipped else None
    above = layer_of(trials, below)
    if above is None:
        return None
    return NewSnapshot(
        target_kind=target_kind,
        features_version=VERSION,
        content=above.write(),
        trials=sum(len(each.times_s) for each in trials),
        newest_trial_id=last_id,
        metrics=_metrics(trials, below),
        parent_sha256=shipped.sha256 if shipped else None,
        job_id=job_id,
    )


def _metrics(trials: Sequence[Trials], below: Learned | None) -> dict[str, Any]:
    """How a model does that was not given those of some tasks, and how what it stands on does on the same."""
    learned, held_out = parted(trials)
    part = layer_of(learned, below)
    if part is None:
        return {"held_out": None, "below": None}
    judged = judge(XGBModel(part.on(below) if below else part), held_out), judge(XGBModel(below), held_out)
    return {name: one.to_json() if one else None for name, one in zip(("held_out", "below"), judged, strict=True)}
