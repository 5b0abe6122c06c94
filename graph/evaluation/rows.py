"""An op of our own for what ScatterElements and ScatterND write.

`WriteRows(x, places, rows)`, x of any type [n, m], places int64 [k], rows [k, m]: x with rows in the places of others.
Of several for a place the last one stays; a place below 0, or from n on, is for none.
"""

from __future__ import annotations

from typing import Any

from ..ir import Array, Node

WRITE = "WriteRows"


def write_rows(_: Node, x: Array, places: Any, rows: Array) -> Array:
    """What WriteRows computes."""
    result = x.copy()
    is_there = (places >= 0) & (places < len(x))
    result[places[is_there]] = rows[is_there]
    return result
