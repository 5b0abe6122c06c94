"""What an op with axes among its attributes becomes on a tensor whose axes are stored in another order.

`perm` is that of `tensor = Transpose(stored, perm)`: axis `a` of the tensor is axis `perm[a]` of what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tunewright.graph.ir import Node

Perm = tuple[int, ...]
Moved = tuple[dict[str, Any], list[Perm]]
"""The attributes on stored tensors, and the perms under which the outputs are held."""


def moved(node: Node, perm: Perm) -> Moved | None:
    """The op on stored operands; None if it can't be done there."""
    return _MOVES[node.op](node, perm)


def _concat(node: Node, perm: Perm) -> Moved:
    return {**node.attrs, "axis": perm[node.attrs["axis"]]}, [perm]


def _one_axis(node: Node, perm: Perm) -> Moved | None:
    if len(node.inputs) > 1:
        return None
    return {**node.attrs, "axis": perm[node.attrs["axis"]]}, [perm] * len(node.outputs)


def _reduce(node: Node, perm: Perm) -> Moved | None:
    if len(node.inputs) > 1 or "axes" not in node.attrs:
        return None
    axes = node.attrs["axes"]
    attrs = {**node.attrs, "axes": tuple(sorted(perm[axis] for axis in axes))}
    if node.attrs["keepdims"]:
        return attrs, [perm]
    kept = [perm[axis] for axis in range(len(perm)) if axis not in axes]
    return attrs, [tuple(sorted(kept).index(place) for place in kept)]


def _arg(node: Node, perm: Perm) -> Moved | None:
    single = Node(
        node.op, node.inputs, node.outputs, {"axes": (node.attrs["axis"],), "keepdims": node.attrs["keepdims"]}
    )
    result = _reduce(single, perm)
    return None if result is None else ({**node.attrs, "axis": perm[node.attrs["axis"]]}, result[1])


def _slice(node: Node, perm: Perm) -> Moved | None:
    if len(node.inputs) > 1:
        return None
    names = ("axes", "starts", "ends", "steps")
    columns = [node.attrs[name] for name in names]
    rows = sorted((perm[axis], *rest) for axis, *rest in zip(*columns, strict=True))
    return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict(node.attrs), [perm]


def _pad(node: Node, perm: Perm) -> Moved | None:
    if len(node.inputs) > 1:
        return None
    pads, rank = node.attrs["pads"], len(perm)
    stored = [0] * len(pads)
    for axis, place in enumerate(perm):
        stored[place], stored[rank + place] = pads[axis], pads[rank + axis]
    return {**node.attrs, "pads": tuple(stored)}, [perm]


def _every_axis(*names: str) -> Callable[[Node, Perm], Moved | None]:
    """Attributes with one entry an axis."""

    def move(node: Node, perm: Perm) -> Moved | None:
        if len(node.inputs) > 1:
            return None
        attrs = dict(node.attrs)
        for name in names:
            if name in attrs:
                attrs[name] = tuple(attrs[name][perm.index(place)] for place in range(len(perm)))
        return attrs, [perm]

    return move


def _rows(node: Node, perm: Perm) -> Moved | None:
    """Trailing axes must be the trailing ones in store as well."""
    axis = node.attrs["axis"]
    return (dict(node.attrs), [perm]) if perm[axis:] == tuple(range(axis, len(perm))) else None


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

_MOVES: Mapping[str, Callable[[Node, Perm], Moved | None]] = {
    **dict.fromkeys(("CumSum", "Hardmax", "LogSoftmax", "Softmax", "Split"), _one_axis),
    **{f"Reduce{kind}": _reduce for kind in _REDUCTIONS},
    "ArgMax": _arg,
    "ArgMin": _arg,
    "LayerNormalization": _rows,
    "RMSNormalization": _rows,
    "Concat": _concat,
    "Pad": _pad,
    "Resize": _every_axis("scales", "sizes"),
    "Slice": _slice,
    "Tile": _every_axis("repeats"),
}

MOVED_OPS = frozenset(_MOVES)
"""The ops that `moved` knows."""
