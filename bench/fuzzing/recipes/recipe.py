"""Recipes, which draw one op or a few that belong together, and what they share."""

from __future__ import annotations

from collections.abc import Callable

from ..draft import DraftTensor, ModelDraft, Shape

Recipe = Callable[[ModelDraft], object]
"""Adds nodes to a draft. Raises InvalidNode where its choice is invalid."""

Recipes = dict[str, Recipe]
"""Recipes by op or name of the idiom."""


def is_non_scalar(shape: Shape) -> bool:
    """At least one dimension."""
    return len(shape) >= 1


def rank_at_least(rank: int) -> Callable[[Shape], bool]:
    """So many dimensions or more."""
    return lambda shape: len(shape) >= rank


def rank_in(*ranks: int) -> Callable[[Shape], bool]:
    """One of these numbers of dimensions."""
    return lambda shape: len(shape) in ranks


def broadcast_shape(d: ModelDraft, shape: Shape) -> Shape:
    """A shape that broadcasts to this one, or with it to a larger one."""
    extents = list(shape)
    for axis, extent in enumerate(extents):
        if d.chance(0.25):
            extents[axis] = 1
        elif extent == 1 and d.chance(0.2):
            extents[axis] = d.among(2, 3, 5)
    if d.chance(0.5):
        extents = extents[d.between(0, len(extents)) :]
    elif d.chance(0.1) and len(extents) < 5:
        extents = [d.among(1, 2), *extents]
    return tuple(extents)


def broadcasts_with(shape: Shape) -> Callable[[Shape], bool]:
    """Whether shapes broadcast together, to nothing huge."""

    def fits(other: Shape) -> bool:
        return all(a in (b, 1) or b == 1 for a, b in zip(reversed(shape), reversed(other), strict=False))

    return fits


def pick_partner(d: ModelDraft, tensor: DraftTensor, dtype: str | None = None) -> DraftTensor:
    """A second operand: a tensor that broadcasts with the first, the same one, or a constant."""
    dtype = dtype or tensor.dtype
    if tensor.shape is None:
        return d.scalar(d.number(1.0, 2.0, 0.5), dtype)
    shape = tensor.shape
    if d.chance(0.25):
        return d.constant(d.array_rng.integers(1, 4, ()) if dtype not in ("bool",) else True, dtype)
    return d.pick(dtype, broadcasts_with(shape), lambda: broadcast_shape(d, shape))


def pick_axis(d: ModelDraft, rank: int) -> int:
    """An axis, counted from either end."""
    axis = d.between(0, rank - 1)
    return axis - rank if d.chance(0.4) else axis


def pick_axes(d: ModelDraft, rank: int) -> list[int]:
    """Distinct axes, at least one where there is one."""
    count = d.between(min(1, rank), rank)
    axes = d.rng.sample(range(rank), count)
    return [axis - rank if d.chance(0.3) else axis for axis in axes]
