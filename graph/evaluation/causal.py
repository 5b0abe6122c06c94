"""An op of our own for attention in which no query sees a key after it. Light to import.

`CausalMask(x)`, x scores [.., queries, keys]: -infinity added where a key comes after its query, with `past` keys
before the first query. So the order of keys and queries is known where no mask's values are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import Array, Node

CAUSAL = "CausalMask"


def later_keys(shape: Sequence[int], past: int) -> Array:
    """Which keys come after which queries, [queries, keys], of scores of some shape."""
    queries, keys = shape[-2:]
    return np.asarray(np.arange(keys) > np.arange(queries)[:, None] + past)


def causal_bias(shape: Sequence[int], past: int, dtype: str) -> Array:
    """What is added to scores of some shape, [queries, keys]."""
    return np.where(later_keys(shape, past), -np.inf, 0).astype(dtype)


def causal_mask(node: Node, x: Array) -> Array:
    """What CausalMask computes."""
    return np.asarray(np.add(x, causal_bias(x.shape, node.attrs["past"], x.dtype.name)), x.dtype)
