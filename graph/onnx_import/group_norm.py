"""GroupNormalization by the rows that its groups are.

ONNX's own definition subtracts the square of the mean from the mean of the squares, which cancels where the mean is
large beside the deviation. A LayerNormalization squares differences, and is one kernel.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tunewright.graph.corrections.normalisation import dtype_of_moments
from tunewright.graph.draft import Draft
from tunewright.graph.ir import Node


def group_normalization(draft: Draft, node: Node) -> str:
    """Add what a GroupNormalization of known shapes comes to; returns the result, of the type of the input.

    Before: `y = GroupNormalization(x, s, b) num_groups=2`, x `[1, 4, 3]`, s and b `[4]`.
    After: `n = LayerNormalization(Reshape(x), 1) axis=2`, of `[1, 2, 6]`; `y = Reshape(n) * s + b`, s and b `[4, 1]`.
    Before opset 21 s and b are of groups: the channels of a group have theirs. That all fits is checked before
    (`guards`).
    """
    x = node.inputs[0]
    shape, dtype, groups = draft.shape(x) or (), draft.types[x].dtype, int(node.attrs["num_groups"])
    if 0 in shape:
        return draft.emit("Identity", x)
    rows = draft.emit("Reshape", x, shape=(shape[0], groups, prod(shape[1:]) // groups))
    rows = _cast(draft, rows, dtype_of_moments(node.attrs, dtype))
    one = draft.constant(np.ones(1, draft.types[rows].dtype))
    normal = draft.emit("LayerNormalization", rows, one, axis=2, epsilon=node.attrs["epsilon"])
    normal = _cast(draft, draft.emit("Reshape", normal, shape=shape), dtype)
    scale, bias = (_of_channels(draft, name, shape) for name in node.inputs[1:])
    return draft.emit("Add", draft.emit("Mul", normal, scale), bias)


def _cast(draft: Draft, name: str, dtype: str) -> str:
    return name if draft.types[name].dtype == dtype else draft.cast(name, dtype)


def _of_channels(draft: Draft, name: str, shape: tuple[int, ...]) -> str:
    """A parameter of channels, or of groups, as it goes with all."""
    (count,) = draft.shape(name) or ()
    if count != shape[1]:
        name = draft.emit("Expand", draft.emit("Reshape", name, shape=(count, 1)), shape=(count, shape[1] // count))
    return draft.emit("Reshape", name, shape=(shape[1], *(1,) * (len(shape) - 2)))
