"""Tuning for ONNX Runtime: what a session with our provider runs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunewright.graph.onnx_import import faults_named, open_signature, read_model
from tunewright.tuner.arguments import check_dims, check_model
from tunewright.tuner.errors import Refused, message
from tunewright.tuner.search.node_groups import tune_groups
from tunewright.tuner.search.report import Report
from tunewright.tuner.session.ort_session import ort_errors
from tunewright.tuner.text import ONNX_RUNTIME

from .options import ProviderOptions
from .registration import groups, options_with


def tune(model: Path | str | bytes, *, dims: Mapping[str, int] | None = None, **settings: Any) -> list[Report]:
    """Search for fast schedules of each group of nodes that such a session runs on our kernels; a report of each.

    A model that is ours as a whole is one group. `dims` gives open dimensions a size by their name. `settings` are
    those of `tunewright.tuner.tune`; groups share `trials` and `minutes` evenly.

    Raises what that raises, and Refused for a model that ONNX Runtime refuses.
    """
    for name in ("vendor", "bind"):
        if settings.get(name):
            raise Refused(f"{name} is for sessions of ours, which those of {ONNX_RUNTIME} are not: leave it out")
    model, dims = check_model(model), check_dims(dims, None)
    name = "model" if isinstance(model, bytes) else Path(model).stem
    return list(tune_groups(name, models_of_groups(model, dims), dims=dims, **settings))


def models_of_groups(model: Path | str | bytes, dims: Mapping[str, int]) -> list[Path | str | bytes]:
    """The model of each group, with the dimensions bound; the model's own file where all of it is one group.

    Raises ModelError for a file that is no model and for a dimension that it has not, Refused where ONNX Runtime is not
    there or refuses it.
    """
    with faults_named(model):
        proto, _ = read_model(model)
        left = [dimension.key for dimension in open_signature(proto, dims).dimensions]
        names = {dimension.name for dimension in open_signature(proto, {}).dimensions}
    options = options_with(ProviderOptions(runs=False))
    options.log_severity_level = 3  # that nodes are left to others is what is asked for
    for name, size in dims.items():
        options.add_free_dimension_override_by_name(name, size)
    before = set(groups())
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options)
    except ort_errors() as error:
        raise Refused(f"{ONNX_RUNTIME} refuses the model: {message(error)}") from error
    found = [model if isinstance(group.model, Path) else group.model for group in groups() if group not in before]
    del session  # it has to be there until then
    if found != [model] and (unnamed := dims.keys() - names):
        raise Refused(f"{ONNX_RUNTIME} binds dimensions by name, and {min(unnamed)!r} has none: name it in the model")
    if found not in ([], [model]) and left:
        raise Refused(f"the model is ours in part, and its groups are tuned at one size: --dim {left[0]}=SIZE")
    return found
