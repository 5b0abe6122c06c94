"""What a Reshape becomes on a tensor whose axes are stored in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Perm = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Rows flattened in stored order: axes of `extents` lie in `order` in `stored`."""

    extents: tuple[int, ...]
    order: Perm
    stored: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Reshape the stored tensor to `shape`; the result is then held under `perm`.

    `order` is the perm under which the source must be stored first; None if it is as it should be.
    """

    shape: tuple[int, ...]
    perm: Perm
    order: Perm | None


def regroup(given: Sequence[int], made: Sequence[int], perm: Perm) -> Plan | None:
    """How to reshape `given` to `made` when source = Transpose(stored, perm).

    A Reshape splits and joins axes in groups: `[N, C, H, W] -> [N, g, C / g, H * W]` has the groups N, C and (H, W).
    A group whose axes are stored side by side and in order can be reshaped where it is.
    None if there are extents of 0.

    >>> regroup((1, 8, 4, 4), (1, 8, 16), (0, 3, 1, 2))
    Plan(shape=(1, 16, 8), perm=(0, 2, 1), order=None)
    """
    if 0 in given or 0 in made:
        return None
    groups = _groups(given, made)
    position = {axis: perm[axis] for axis in range(len(given)) if given[axis] != 1}
    ranks = {axis: rank for rank, axis in enumerate(sorted(position, key=position.__getitem__))}
    in_place = all(
        [ranks[axis] for axis in inner] == list(range(ranks[inner[0]], ranks[inner[0]] + len(inner)))
        for inner, _ in groups
    )
    ordered = sorted(groups, key=lambda group: min(ranks[axis] for axis in group[0]))
    shape, held = _outer(made, ordered)
    if in_place:
        return Plan(shape, held, None)
    # Stored again with each group together: extents of 1 in front, then the groups.
    units = [axis for axis in range(len(given)) if given[axis] == 1]
    stored = [*units, *(axis for inner, _ in ordered for axis in inner)]
    order = tuple(stored.index(axis) for axis in range(len(given)))
    return Plan(shape, held, order)


def _groups(given: Sequence[int], made: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The smallest runs of axes, before and after, with equal products; without extents of 1."""
    before = [axis for axis, extent in enumerate(given) if extent != 1]
    after = [axis for axis, extent in enumerate(made) if extent != 1]
    groups = []
    while before:
        inner, outer = [before.pop(0)], [after.pop(0)]
        while (left := prod(given[k] for k in inner)) != (right := prod(made[k] for k in outer)):
            (inner if left < right else outer).append((before if left < right else after).pop(0))
        groups.append((tuple(inner), tuple(outer)))
    return groups


def _outer(
    made: Sequence[int], groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> tuple[tuple[int, ...], Perm]:
    """The stored shape after the Reshape and the perm: an extent of 1 stays behind the axis that it follows."""
    stored = [axis for _, outer in groups for axis in outer]
    for axis, extent in enumerate(made):
        if extent == 1:
            stored.insert(stored.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(made[axis] for axis in stored), tuple(stored.index(axis) for axis in range(len(made)))
