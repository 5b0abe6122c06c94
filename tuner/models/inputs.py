"""Inputs made up for a model, to run it without the user's data."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .model import Model


def example_feeds(model: Model, seed: int = 0) -> dict[str, Any]:
    """One array for each input, by its label: floats around zero, zeros and ones, false and true, short texts."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for value in model.graph.inputs:
        kind = model.graph.type(value.tensor)
        shape = kind.shape or ()
        if kind.dtype == "string":
            feeds[value.label] = np.array([f"text {n}" for n in range(prod(shape))], object).reshape(shape)
        elif kind.dtype == "bfloat16" or np.issubdtype(np.dtype(kind.dtype), np.floating):
            feeds[value.label] = rng.standard_normal(shape).astype(kind.dtype)
        else:
            feeds[value.label] = rng.integers(0, 2, shape).astype(kind.dtype)
    return feeds
