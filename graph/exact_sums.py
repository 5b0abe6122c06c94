"""Sums of products, and which of them are rounded anyhow."""

from __future__ import annotations

import numpy as np

from .ir import Array, Graph, Node
from .singularities import FLOATS

OPS = frozenset({"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN", "Recurrence"})

SHORT_BITS = 12
"""Weights are short that are whole numbers of so many bits, or such times a power of two: their products with other
short numbers, and the sums of these, are exact."""

SAMPLE = 64
"""Weights that are looked at first: of trained ones hardly any is short."""


def is_rounded(graph: Graph, node: Node) -> bool:
    """Whether the node sums products, of weights that are not short.

    Then the order of the terms, which is free, decides on the last bits, and not those of its operands.
    """
    return node.op in OPS and not node.domain and not has_short_weights(graph, node)


def has_short_weights(graph: Graph, node: Node) -> bool:
    """Whether a sum of products has known weights, and they are whole numbers of SHORT_BITS, times a power of two."""
    known = [graph.constants[name] for name in node.inputs[:2] if name in graph.constants]
    return bool(known) and all(_is_short(array.reshape(-1)[:SAMPLE]) and _is_short(array) for array in known)


def _is_short(array: Array) -> bool:
    if array.dtype.name not in FLOATS:
        return False
    wide = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        _, exponent = np.frexp(np.abs(wide).max(initial=0))
        whole = np.ldexp(wide, SHORT_BITS - int(exponent))
        return bool(np.all(whole == np.rint(whole)))
