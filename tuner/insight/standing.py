"""Standing: which cost models there are for a kind of target, which of them are gone by, why, and what they go by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import islice

import numpy as np

from tunewright.costmodel.base import Base, base
from tunewright.costmodel.features import NAMES, VERSION
from tunewright.costmodel.forest import Forest
from tunewright.db.cost_models import Snapshot

from ..lookup.experience import JUDGED_BY, MOST_TRIALS, Taught, experience, is_proven
from ..text import printable
from .meanings import MEANINGS

MOST_WEIGHTS = 20


class Use(StrEnum):
    """What a snapshot is good for."""

    NEWEST = "newest"  # jobs begin with it
    OLDER = "older"  # it could be used, but there is a newer one
    DROPPED = "dropped"  # its content was dropped, as there are newer ones; what it reached is known
    OTHER_FEATURES = "other_features"  # another version of Tunewright made it, which sees other things
    OTHER_BASE = "other_base"  # it stands on another base model than the one at hand
    UNREADABLE = "unreadable"  # it is damaged, or another version of XGBoost wrote it in another form


class Why(StrEnum):
    """Why lookups pick by the newest snapshot, or by the base model alone."""

    PROVEN = "proven"  # on tasks held out the snapshot is no worse than what it stands on
    WORSE = "worse"  # it is worse, in one of the figures that count
    UNJUDGED = "unjudged"  # there were too few tasks to judge it by
    ALONE = "alone"  # there is no snapshot that could be used


@dataclass(frozen=True, slots=True)
class Weight:
    """How much of what a model has learned is by one feature."""

    feature: str  # of `costmodel.features`
    words: str  # what it is
    share: float  # of the error that all features together have taken away


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a snapshot learned from."""

    tasks: int
    trials_by_op: Mapping[str, int]  # those with the most first; texts may be hostile


@dataclass(frozen=True, slots=True)
class Standing:
    """The cost models for a kind of target."""

    base: Base | None  # None: there is none that can be used
    trouble: str  # why the base model can't be read, one line; empty where nothing is wrong with it
    newest: Snapshot | None  # what jobs begin with, without its content; None: the base model alone
    uses: dict[int, Use]  # of the snapshots asked about, by id
    why: Why
    worse_in: tuple[str, ...]  # of `JUDGED_BY`, where `why` is WORSE
    base_weights: tuple[Weight, ...]  # the largest first, MOST_WEIGHTS at most
    newest_weights: tuple[Weight, ...]  # of what the newest snapshot adds to the base model
    newest_lessons: Lessons | None  # None where there is no newest snapshot


def standing(store: Taught, target_kind: str, heads: Sequence[Snapshot]) -> Standing:
    """How things stand; `heads` are the snapshots of the kind, the newest first, as `CostModels.list` gives them.

    Raises StoreError. What models go by, and have learned from, is worked out once for each: that takes a part of a
    second.
    """
    try:
        shipped = base(target_kind)
    except ValueError as error:
        return Standing(None, printable(error), None, _uses(heads, None), Why.ALONE, (), (), (), None)
    sha256 = shipped.sha256 if shipped else None
    uses = _uses(heads, sha256)
    first = next((head.sha256 for head in heads if uses[head.id] is Use.NEWEST), None)
    loaded = _loaded(_Asked(target_kind, sha256, first, store))
    uses |= {head.id: Use.UNREADABLE for head in heads if uses[head.id] is Use.NEWEST and head.sha256 != loaded.sha256}
    newest = next((head for head in heads if head.sha256 == loaded.sha256), None)
    if newest is not None:
        uses[newest.id] = Use.NEWEST
    why, worse_in = _judged(newest)
    lessons = loaded.lessons if newest is not None else None
    return Standing(shipped, "", newest, uses, why, worse_in, loaded.base_weights, loaded.newest_weights, lessons)


def _uses(heads: Sequence[Snapshot], base_sha256: str | None) -> dict[int, Use]:
    """By id, as far as one can tell without reading them."""
    uses: dict[int, Use] = {}
    for head in heads:
        if head.features_version != VERSION:
            uses[head.id] = Use.OTHER_FEATURES
        elif head.parent_sha256 != base_sha256:
            uses[head.id] = Use.OTHER_BASE
        elif not head.has_content:
            uses[head.id] = Use.DROPPED
        else:
            uses[head.id] = Use.OLDER if Use.NEWEST in uses.values() else Use.NEWEST
    return uses


def _judged(newest: Snapshot | None) -> tuple[Why, tuple[str, ...]]:
    if newest is None:
        return Why.ALONE, ()
    if is_proven(newest):
        return Why.PROVEN, ()
    above, below = (newest.metrics.get(name) or {} for name in ("held_out", "below"))
    if any(figures.get(name) is None for figures in (above, below) for name in JUDGED_BY):
        return Why.UNJUDGED, ()
    return Why.WORSE, tuple(name for name in JUDGED_BY if above[name] < below[name])


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be loaded: equal where the same would be."""

    target_kind: str
    base_sha256: str | None
    newest_sha256: str | None  # of the newest snapshot that might be used
    store: Taught = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Loaded:
    sha256: str | None  # of the snapshot that was read; None: there is none that can be
    base_weights: tuple[Weight, ...]
    newest_weights: tuple[Weight, ...]
    lessons: Lessons | None


@lru_cache(maxsize=8)
def _loaded(asked: _Asked) -> _Loaded:
    """Read the models once. Raises StoreError."""
    shipped = base(asked.target_kind)
    below = shipped.learned.layers if shipped else ()
    if asked.newest_sha256 is None:
        return _Loaded(None, weights(below), (), None)
    known = experience(asked.store, asked.target_kind)
    if known.snapshot is None or known.learned is None:
        return _Loaded(None, weights(below), (), None)
    above = known.learned.layers[len(below) :]
    lessons = _lessons(asked.store, asked.target_kind, known.snapshot)
    return _Loaded(known.snapshot.sha256, weights(below), weights(above), lessons)


def _lessons(store: Taught, target_kind: str, snapshot: Snapshot) -> Lessons:
    """The trials that `learn` took for it: none of them has changed since."""
    examples = islice(store.examples(target_kind, through=snapshot.newest_trial_id), MOST_TRIALS)
    tasks = Counter((candidate.task.key, candidate.task.op) for candidate, _ in examples)
    ops: Counter[str] = Counter()
    for (_, op), trials in tasks.items():
        ops[op] += trials
    return Lessons(len(tasks), dict(ops.most_common()))


def weights(layers: Sequence[Forest]) -> tuple[Weight, ...]:
    """The features that layers go by, the largest first; none of no layers."""
    if not layers:
        return ()
    gains = np.mean([layer.gains(len(NAMES)) for layer in layers], axis=0)
    order = [n for n in np.argsort(-gains, kind="stable")[:MOST_WEIGHTS] if gains[n] > 0]
    return tuple(Weight(NAMES[n], MEANINGS[NAMES[n]].words, float(gains[n])) for n in order)
