"""What tables of ops have in common: a recipe draws one op, or a few that belong together."""

from __future__ import annotations

from collections.abc import Callable

from ..draft import Draft, Shape, Tensor

Recipe = Callable[[Draft], object]
"""Adds nodes to a draft. Raises Unfit where what it chose turns out to be invalid."""

Recipes = dict[str, Recipe]
"""By the op that is drawn, or the name of the idiom."""


def non_scalar(shape: Shape) -> bool:
    """At least one dimension."""
    return len(shape) >= 1


def at_least(rank: int) -> Callable[[Shape], bool]:
    """So many dimensions or more."""
    return lambda shape: len(shape) >= rank


def of_rank(*ranks: int) -> Callable[[Shape], bool]:
    """One of these numbers of dimensions."""
    return lambda shape: len(shape) in ranks


def broadcast_to(d: Draft, shape: Shape) -> Shape:
    """A shape that broadcasts to this one, or with it to a larger one."""
    made = list(shape)
    for axis, extent in enumerate(made):
        if d.chance(0.25):
            made[axis] = 1
        elif extent == 1 and d.chance(0.2):
            made[axis] = d.among(2, 3, 5)
    if d.chance(0.5):
        made = made[d.between(0, len(made)) :]
    elif d.chance(0.1) and len(made) < 5:
        made = [d.among(1, 2), *made]
    return tuple(made)


def fits_beside(shape: Shape) -> Callable[[Shape], bool]:
    """Whether shapes broadcast together, to nothing huge."""

    def fits(other: Shape) -> bool:
        return all(a in (b, 1) or b == 1 for a, b in zip(reversed(shape), reversed(other), strict=False))

    return fits


def partner(d: Draft, one: Tensor, dtype: str | None = None) -> Tensor:
    """Something to be an operand beside another: a tensor, the same one again, or a constant."""
    dtype = dtype or one.dtype
    if one.shape is None:
        return d.scalar(d.number(1.0, 2.0, 0.5), dtype)
    shape = one.shape
    if d.chance(0.25):
        return d.constant(d.array_rng.integers(1, 4, ()) if dtype not in ("bool",) else True, dtype)
    return d.pick(dtype, fits_beside(shape), lambda: broadcast_to(d, shape))


def an_axis(d: Draft, rank: int) -> int:
    """An axis, counted from either end."""
    axis = d.between(0, rank - 1)
    return axis - rank if d.chance(0.4) else axis


def some_axes(d: Draft, rank: int) -> list[int]:
    """Distinct axes, at least one where there is one."""
    count = d.between(min(1, rank), rank)
    axes = d.rng.sample(range(rank), count)
    return [axis - rank if d.chance(0.3) else axis for axis in axes]
