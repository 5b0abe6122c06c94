"""Parts of tensors between counters: as large in each iteration, though where they are only the iteration tells.

Before: `y = Slice(x, i, j)`, where i counts iterations, and j is i + 2 in all of them.
After: `y = Gather(x, Add(i, [0, 1]))`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Array, Node

from .trip_counts import MAX_NUMBERS, MAX_WAY, computed_way, single


class Counters:
    """What single numbers of a body under construction are in each iteration, by their names there."""

    def __init__(self, draft: Draft, ways: Mapping[str, Array]) -> None:
        self._draft = draft
        self._ways = {name: way for name, way in ways.items() if len(way) <= MAX_WAY}
        self._left = MAX_NUMBERS

    def note(self, node: Node) -> None:
        """Remember what the node makes, if it is known."""
        if self._left > 0 and node.outputs[0] and any(name in self._ways for name in node.inputs):
            way = computed_way(node, self._draft.shape(node.outputs[0]), self._way)
            if way is not None:
                self._ways[node.outputs[0]] = way
                self._left -= len(way)

    def read(self, node: Node) -> str | None:
        """The part of a tensor, or the range, that a node makes, where it has the same size in each iteration."""
        if node.domain or not any(name in self._ways for name in node.inputs):
            return None
        match node.op:
            case "Slice":
                return self._slice(node)
            case "Range":
                return self._range(node)
        return None

    def _way(self, name: str) -> Array | None:
        return self._ways[name] if name in self._ways else single(self._draft.array(name))

    def _slice(self, node: Node) -> str | None:
        draft, x = self._draft, node.inputs[0]
        shape, axes, step = draft.shape(x), self._number(node, 3, 0), self._number(node, 4, 1)
        start, end = (self._way(name) for name in node.inputs[1:3])
        if not shape or start is None or end is None or axes is None or not step or draft.shape(node.inputs[1]) != (1,):
            return None
        axis = axes % len(shape)
        extent, (first, last) = shape[axis], np.broadcast_arrays(start.astype(np.int64), end.astype(np.int64))
        last = np.clip(np.where(last < 0, last + extent, last), 0, extent)  # as steps go forward
        count = _common_count(first, last, step)
        if step < 0 or count is None or first.min() < 0 or int(first.max()) + (count - 1) * step >= extent:
            return None
        places = draft.emit("Add", self._int64(node.inputs[1]), draft.constant(step * np.arange(count)))
        return draft.emit("Gather", x, places, axis=axis)

    def _range(self, node: Node) -> str | None:
        draft, kind = self._draft, self._draft.types[node.inputs[0]]
        start, end = (self._way(name) for name in node.inputs[:2])
        step = self._number(node, 2, 1)
        if start is None or end is None or not step or kind.dtype not in ("int32", "int64") or kind.shape != ():
            return None
        first, last = np.broadcast_arrays(start.astype(np.int64), end.astype(np.int64))
        count = _common_count(first, last, step)
        if count is None:
            return None
        return draft.emit("Add", node.inputs[0], draft.constant((step * np.arange(count)).astype(kind.dtype)))

    def _number(self, node: Node, position: int, default: int) -> int | None:
        """An operand that is a known whole number, the default where it is absent; None where it is not known."""
        if not node.input(position):
            return default
        array: Any = single(self._draft.array(node.inputs[position]))
        return None if array is None else int(array.item())

    def _int64(self, name: str) -> str:
        return name if self._draft.types[name].dtype == "int64" else self._draft.cast(name, "int64")


def _common_count(first: Array, last: Array, step: int) -> int | None:
    """How many steps lead from one number to before another, where that is the same and more than 0 all the time."""
    way: Any = np.subtract(last, first)
    counts = -(-way // step)
    return int(counts[0]) if counts[0] > 0 and (counts == counts[0]).all() else None
