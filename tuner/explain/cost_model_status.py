"""CostModelStatus: the cost models of a kind of target, which of them are in use and why, and their main features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import islice

import numpy as np

from tunewright.costmodel.base import Base, base
from tunewright.costmodel.features import names_of, version_of
from tunewright.costmodel.forest import Forest
from tunewright.db.snapshot import Snapshot
from tunewright.db.store import Store

from ..lookup.experience import JUDGED_BY, MOST_TRIALS, experience, is_proven
from ..text import printable
from .meanings import MEANINGS

MOST_WEIGHTS = 20


class SnapshotUse(StrEnum):
    """The use of a snapshot."""

    NEWEST = "newest"  # jobs begin with it
    OLDER = "older"  # it could be used, but there is a newer one
    DROPPED = "dropped"  # its content was dropped, as there are newer ones; what it reached is known
    OTHER_FEATURES = "other_features"  # another version of Tunewright made it, which sees other things
    OTHER_BASE = "other_base"  # it stands on another base model than the one at hand
    UNREADABLE = "unreadable"  # it is damaged, or another version of XGBoost wrote it in another form


class PickReason(StrEnum):
    """The reason why lookups pick by the newest snapshot, or by the base model alone."""

    PROVEN = "proven"  # on tasks held out the snapshot is no worse than what it stands on
    WORSE = "worse"  # it is worse, in one of the figures that count
    UNJUDGED = "unjudged"  # there were too few tasks to judge it by
    ALONE = "alone"  # there is no snapshot that could be used


@dataclass(frozen=True, slots=True)
class Weight:
    """The share of one feature in a model."""

    feature: str  # of `costmodel.features`
    words: str  # what it is
    share: float  # of the error that all features together have taken away


@dataclass(frozen=True, slots=True)
class TrainingTrials:
    """The trials that a snapshot learned from."""

    tasks: int
    trials_by_op: Mapping[str, int]  # those with the most first; texts may be hostile


@dataclass(frozen=True, slots=True)
class CostModelStatus:
    """The cost models for a kind of target."""

    base: Base | None  # None: there is none that can be used
    trouble: str  # why the base model can't be read, one line; empty where nothing is wrong with it
    newest: Snapshot | None  # what jobs begin with, without its content; None: the base model alone
    uses: dict[int, SnapshotUse]  # of the snapshots asked about, by id
    why: PickReason
    worse_in: tuple[str, ...]  # of `JUDGED_BY`, where `why` is WORSE
    base_weights: tuple[Weight, ...]  # the largest first, MOST_WEIGHTS at most
    newest_weights: tuple[Weight, ...]  # of what the newest snapshot adds to the base model
    newest_lessons: TrainingTrials | None  # None where there is no newest snapshot


def cost_model_status(store: Store, target_kind: str, heads: Sequence[Snapshot]) -> CostModelStatus:
    """The status of the models; `heads` are the kind's snapshots, the newest first, as `Snapshots.list` gives them.

    Raises StoreError. Weights and lessons are computed once for each model, in a fraction of a second.
    """
    try:
        shipped = base(target_kind)
    except ValueError as error:
        return CostModelStatus(None, printable(error), None, _uses(heads, None), PickReason.ALONE, (), (), (), None)
    sha256 = shipped.sha256 if shipped else None
    uses = _uses(heads, sha256)
    first = next((head.sha256 for head in heads if uses[head.id] is SnapshotUse.NEWEST), None)
    loaded = _load(_LoadKey(target_kind, sha256, first, store))
    uses |= {
        head.id: SnapshotUse.UNREADABLE
        for head in heads
        if uses[head.id] is SnapshotUse.NEWEST and head.sha256 != loaded.sha256
    }
    newest = next((head for head in heads if head.sha256 == loaded.sha256), None)
    if newest is not None:
        uses[newest.id] = SnapshotUse.NEWEST
    why, worse_in = _verdict(newest)
    lessons = loaded.lessons if newest is not None else None
    return CostModelStatus(
        shipped, "", newest, uses, why, worse_in, loaded.base_weights, loaded.newest_weights, lessons
    )


def _uses(heads: Sequence[Snapshot], base_sha256: str | None) -> dict[int, SnapshotUse]:
    """The use of each snapshot by its id, as far as it shows without reading the content."""
    uses: dict[int, SnapshotUse] = {}
    for head in heads:
        if head.features_version != version_of(head.target_kind):
            uses[head.id] = SnapshotUse.OTHER_FEATURES
        elif head.parent_sha256 != base_sha256:
            uses[head.id] = SnapshotUse.OTHER_BASE
        elif not head.has_content:
            uses[head.id] = SnapshotUse.DROPPED
        else:
            uses[head.id] = SnapshotUse.OLDER if SnapshotUse.NEWEST in uses.values() else SnapshotUse.NEWEST
    return uses


def _verdict(newest: Snapshot | None) -> tuple[PickReason, tuple[str, ...]]:
    if newest is None:
        return PickReason.ALONE, ()
    if is_proven(newest):
        return PickReason.PROVEN, ()
    above, below = (newest.metrics.get(name) or {} for name in ("held_out", "below"))
    if any(figures.get(name) is None for figures in (above, below) for name in JUDGED_BY):
        return PickReason.UNJUDGED, ()
    return PickReason.WORSE, tuple(name for name in JUDGED_BY if above[name] < below[name])


@dataclass(frozen=True, slots=True)
class _LoadKey:
    """The key of a cached load."""

    target_kind: str
    base_sha256: str | None
    newest_sha256: str | None  # of the newest snapshot that might be used
    store: Store = field(compare=False)


@dataclass(frozen=True, slots=True)
class _LoadedModels:
    sha256: str | None  # of the snapshot that was read; None: there is none that can be
    base_weights: tuple[Weight, ...]
    newest_weights: tuple[Weight, ...]
    lessons: TrainingTrials | None


@lru_cache(maxsize=8)
def _load(key: _LoadKey) -> _LoadedModels:
    """Read the models once. Raises StoreError."""
    shipped = base(key.target_kind)
    below = shipped.learned.layers if shipped else ()
    if key.newest_sha256 is None:
        return _LoadedModels(None, weights(below, key.target_kind), (), None)
    known = experience(key.store, key.target_kind)
    if known.snapshot is None or known.learned is None:
        return _LoadedModels(None, weights(below, key.target_kind), (), None)
    above = known.learned.layers[len(below) :]
    lessons = _lessons(key.store, key.target_kind, known.snapshot)
    return _LoadedModels(
        known.snapshot.sha256, weights(below, key.target_kind), weights(above, key.target_kind), lessons
    )


def _lessons(store: Store, target_kind: str, snapshot: Snapshot) -> TrainingTrials:
    """The trials that `learn` took for it: none of them has changed since."""
    examples = islice(store.examples(target_kind, through=snapshot.newest_trial_id), MOST_TRIALS)
    tasks = Counter((candidate.task.key, candidate.task.op) for candidate, _ in examples)
    ops: Counter[str] = Counter()
    for (_, op), trials in tasks.items():
        ops[op] += trials
    return TrainingTrials(len(tasks), dict(ops.most_common()))


def weights(layers: Sequence[Forest], target_kind: str) -> tuple[Weight, ...]:
    """The features that layers for a kind of target go by, the largest first; none of no layers."""
    if not layers:
        return ()
    names = names_of(target_kind)
    gains = np.mean([layer.gains(len(names)) for layer in layers], axis=0)
    order = [n for n in np.argsort(-gains, kind="stable")[:MOST_WEIGHTS] if gains[n] > 0]
    return tuple(Weight(names[n], MEANINGS[names[n]].words, float(gains[n])) for n in order)
