"""Masks of attention. No bit changes."""

from __future__ import annotations

from tunewright.graph.ir import Node

from ..evaluation.causal import CAUSAL, causal_bias
from .edit import Edit, Result, each


@each(CAUSAL)
def causal_masks(edit: Edit, node: Node) -> Result:
    """Add a constant where nothing is won by knowing that keys come after queries.

    Before: `y = CausalMask(x) past=0`, x `[8, 5, 5]`. After: `y = Add(x, m)`, m `[5, 5]`, 0 and -infinity.
    """
    [x] = node.inputs
    kind = edit.types[x]
    assert kind.shape is not None
    mask = edit.constant(causal_bias(kind.shape, node.attrs["past"], kind.dtype))
    return edit.emit("Add", x, mask)
