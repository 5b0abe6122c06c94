"""Outputs that are dicts: a list of one for each row, as ONNX Runtime gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunewright.graph.ir import Keys


def as_maps(rows: Any, keys: Keys) -> list[dict[int | str, float]]:
    """A dict for each row `[rows, keys]`; for one row `[keys]` alone too."""
    return [dict(zip(keys, row, strict=True)) for row in rows.reshape(-1, len(keys)).tolist()]


def as_rows(value: Any) -> Any:
    """The values of such dicts in the order of their keys, float32 `[rows, keys]`; anything else as it is."""
    if isinstance(value, Sequence) and value and all(isinstance(row, dict) for row in value):
        return np.asarray([[row[key] for key in sorted(row)] for row in value], np.float32)
    return value
