"""Sequences and optional values of which it is known what they hold: their readers get the tensors themselves.

Before: `s = SequenceConstruct(x, y); z = SequenceAt(s, 1)`. After: z is y. What makes sequences is pruned where no one
else needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Node

MAX_ITEMS = 1024
"""Longest sequence that is followed."""


class Sequences:
    """What the sequences and optional values of a graph under construction hold, by their names there."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._items: dict[str, tuple[str, ...]] = {}
        self._optional: dict[str, str] = {}  # "" where it is empty

    def note(self, node: Node) -> None:
        """Remember what the node makes, if it is known."""
        if node.domain:
            return
        if node.op == "Optional":
            self._optional[node.outputs[0]] = node.input(0)
            return
        items = self._items_of(node)
        if items is not None and len(items) <= MAX_ITEMS:
            self._items[node.outputs[0]] = tuple(items)

    def _items_of(self, node: Node) -> Sequence[str] | None:
        """The items of the sequence that a node makes; None where it makes none, or one that only a run tells."""
        match node.op:
            case "SequenceEmpty":
                return ()
            case "SequenceConstruct":
                return node.inputs
            case "SplitToSequence":
                return self._split(node)
            case "SequenceInsert" | "SequenceErase":
                return self._edit(node)
        return None

    def _edit(self, node: Node) -> Sequence[str] | None:
        items = self._items.get(node.inputs[0])
        is_longer = node.op == "SequenceInsert"
        place = self._place(node, 2 if is_longer else 1, default=len(items or ()) if is_longer else -1)
        if items is None or place is None:
            return None
        count = len(items)
        at = place + count if place < 0 else place
        if not 0 <= at < count + is_longer:
            return None
        return (*items[:at], node.inputs[1], *items[at:]) if is_longer else (*items[:at], *items[at + 1 :])

    def _place(self, node: Node, position: int, default: int) -> int | None:
        """The value of an operand, which may be absent; None where only a run tells."""
        if not node.input(position):
            return default
        array = self._draft.array(node.inputs[position])
        return int(array.item()) if array is not None and array.size == 1 else None

    def _split(self, node: Node) -> Sequence[str] | None:
        draft, x = self._draft, node.inputs[0]
        shape, given = draft.shape(x), node.input(1)
        sizes = draft.array(given) if given else np.asarray(1)
        if not shape or 0 in shape or sizes is None:
            return None
        axis = node.attrs["axis"] % len(shape)
        extent = shape[axis]
        if sizes.ndim == 0:
            size = int(sizes)
            sizes = np.asarray([min(size, extent - start) for start in range(0, extent, max(size, 1))])
        if sizes.sum() != extent or sizes.min() < 1 or len(sizes) > MAX_ITEMS:
            return None
        parts = []
        for end, size in zip(accumulate(map(int, sizes)), map(int, sizes), strict=True):
            part = draft.emit("Slice", x, starts=(end - size,), ends=(end,), axes=(axis,), steps=(1,))
            if not given and not node.attrs["keepdims"]:
                part = draft.emit("Reshape", part, shape=(*shape[:axis], *shape[axis + 1 :]))
            parts.append(part)
        return parts

    def read(self, node: Node) -> str | None:
        """The tensor that a node makes of known sequences or optional values; None where it does not."""
        match node.op if not node.domain else "":
            case "OptionalHasElement" | "OptionalGetElement":
                return self._optional_value(node)
            case "SequenceAt" | "SequenceLength" | "ConcatFromSequence":
                items = self._items.get(node.inputs[0])
                return None if items is None else self._read(node, items)
        return None

    def _optional_value(self, node: Node) -> str | None:
        name = node.input(0)
        held = self._optional.get(name)
        if held is None:
            if name and self._draft.types[name].dtype == "object":
                return None
            held = name
        if node.op == "OptionalHasElement":
            return self._draft.constant(np.asarray(bool(held)))
        return held or None

    def _read(self, node: Node, items: Sequence[str]) -> str | None:
        draft = self._draft
        if node.op == "SequenceLength":
            return draft.constant(np.asarray(len(items), np.int64))
        if node.op == "SequenceAt":
            place = self._place(node, 1, default=0)
            return items[place] if place is not None and -len(items) <= place < len(items) else None
        shapes = [draft.shape(name) for name in items]
        is_new, rank = bool(node.attrs.get("new_axis", 0)), len(shapes[0] or ()) if shapes else 0
        if None in shapes or not rank + is_new:
            return None
        axis = node.attrs["axis"] % (rank + is_new)
        if is_new:
            wider = [(*shape[:axis], 1, *shape[axis:]) for shape in shapes if shape is not None]
            items = [draft.emit("Reshape", name, shape=shape) for name, shape in zip(items, wider, strict=True)]
        return draft.emit("Concat", *items, axis=axis)
