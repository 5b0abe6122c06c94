"""Which nodes of a graph become ours: convex groups, as few and as large as can be."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A node as far as groups are concerned: what it reads and makes, and whether we compute it."""

    inputs: tuple[str, ...]  # what bodies read from around it too
    outputs: tuple[str, ...]
    is_ours: bool
    work: int = 0  # about how many operations it does; 0 where it moves values alone


LEAST_WORK = 1 << 18
"""Operations below which a group is not worth the call that it costs. About 20 us of one core."""


def choose_groups(nodes: Sequence[GroupNode]) -> list[list[int]]:
    """The numbers of the nodes of each group. No path leads out of a group and back into it.

    `nodes` are in an order in which they can be computed. Groups of little work are left out, unless the whole graph is
    ours.
    """
    groups = _groups(nodes, {number for number, node in enumerate(nodes) if node.is_ours})
    if sum(map(len, groups)) == len(nodes):
        return groups
    worth = {number for group in groups if _work(nodes, group) >= LEAST_WORK for number in group}
    return _groups(nodes, worth)


def _work(nodes: Sequence[GroupNode], group: Sequence[int]) -> int:
    return sum(nodes[number].work for number in group)


def _groups(nodes: Sequence[GroupNode], ours: Collection[int]) -> list[list[int]]:
    """Nodes of one side between the same changes of side.

    A node's stage is how often the side changes on a path to it, at most. Along a path that leaves a group the stage
    grows, so it can't come back.
    """
    stages: dict[str, tuple[int, bool]] = {}  # by tensor: of who makes it
    groups: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        side = number in ours
        before = [stages[name] for name in node.inputs if name in stages]
        stage = max((own + (other is not side) for own, other in before), default=0)
        for name in node.outputs:
            stages[name] = stage, side
        if side:
            groups.setdefault(stage, []).append(number)
    return list(groups.values())
