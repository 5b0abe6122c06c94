"""Demand: what makes a Ray cluster grow with the work, and lets it shrink afterwards.

Nodes of a group that may grow offer one of a resource with the group's name. Whoever holds one of it keeps a node for
itself; whoever waits for one makes Ray's autoscaler start another node of that group, and of no other, until the group
is as large as it may be. Builds must not wait in line for processors of any node: that would be demand too, for nodes
of any group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

GROUP = "tunewright-group-"
"""How names of such resources begin. The chart in deploy/helm gives them to the groups that have `maxReplicas`."""

Call = Callable[..., Any]


def group_of(resources: Mapping[str, float]) -> str | None:
    """The group of a node that offers these resources; None where it does not grow."""
    return next((name for name in sorted(resources) if name.startswith(GROUP)), None)


def wanted(nodes: int, devices: int, candidates: int) -> int:
    """How many more nodes are asked for to time so many candidates: at most as many again as there are."""
    left = max(candidates - devices, 0)
    return min(nodes, -(-left * nodes // devices)) if devices else 0


class Demand:
    """Nodes that this process asks for. They are its own as long as it is connected, or until it lets go.

    `call` calls a function of Ray.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._seats: dict[str, list[Any]] = {}  # placement groups, by the group of nodes

    def ask(self, group: str, more: int) -> None:
        """Wait for so many more nodes of a group than there are; what was granted is kept."""
        from ray.util import placement_group

        seats = self._seats.setdefault(group, [])
        waiting = [seat for seat in seats if not self._is_granted(seat)]
        for seat in waiting[more:]:
            seats.remove(seat)
            self._give_up(seat)
        seats += [self._call(placement_group, [{group: 1}]) for _ in range(more - len(waiting))]

    def let_go(self) -> None:
        """Ask for nothing, and hold nothing."""
        while self._seats:
            for seat in self._seats.popitem()[1]:
                self._give_up(seat)

    def _is_granted(self, seat: Any) -> bool:
        from ray.util import placement_group_table

        return bool(self._call(placement_group_table, seat)["state"] == "CREATED")

    def _give_up(self, seat: Any) -> None:
        from ray.util import remove_placement_group

        self._call(remove_placement_group, seat)
