"""Tuning for ONNX Runtime: what a session with our provider runs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunewright.tuner import tune as tune_model
from tunewright.tuner.arguments import check_dims, check_model
from tunewright.tuner.search.report import Report

from .options import ProviderOptions
from .registration import groups, options_with


def tune(model: Path | str | bytes, *, dims: Mapping[str, int] | None = None, **arguments: Any) -> list[Report]:
    """Search for fast schedules of each group of nodes that such a session runs on our kernels; a report of each.

    A model that is ours as a whole is one group. `dims` gives open dimensions a size by their name. `arguments` are
    those of `tunewright.tuner.tune`, whose bounds hold for each group.

    Raises what that raises, and what ONNX Runtime raises for a model that it refuses.
    """
    model, dims = check_model(model), check_dims(dims, None)
    return [
        tune_model(part, dims=dims if isinstance(part, Path) else None, **arguments)
        for part in models_of_groups(model, dims)
    ]


def models_of_groups(model: Path | str | bytes, dims: Mapping[str, int]) -> list[Path | bytes]:
    """The model of each group, with the dimensions bound; the model's own file where all of it is one group."""
    options = options_with(ProviderOptions(runs=False))
    for name, size in dims.items():
        options.add_free_dimension_override_by_name(name, size)
    before = set(groups())
    import onnxruntime

    session = onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options)
    found = [group.model for group in groups() if group not in before]
    del session  # it has to be there until then
    return found
