"""Maps at the end of a model: ZipMap gives scores as a dict for each row. The graph ends with the scores themselves."""

from __future__ import annotations

from tunewright.graph.draft import Draft
from tunewright.graph.ir import GraphPort, Keys

from ..contrib import CLASSIC
from .protobuf import ModelError, quote

MAP_OPS = frozenset({(CLASSIC, "ZipMap")})
"""Ops that make maps, which nothing but an output takes."""


def output_port(draft: Draft, label: str, tensor: str) -> GraphPort:
    """The output of a model that a tensor is, or the rows that it makes dicts of. Raises ModelError for any other."""
    node = draft.producers.get(tensor)
    if node is not None and (node.domain, node.op) in MAP_OPS:
        (scores,) = node.inputs
        keys: Keys = node.attrs.get("classlabels_strings") or node.attrs.get("classlabels_int64s") or ()
        shape = draft.shape(scores)
        if shape is None or len(shape) not in (1, 2) or draft.types[scores].dtype != "float32":
            raise ModelError(f"output {quote(label)} has dicts of {draft.types[scores]}; rows of floats are needed")
        if len(keys) != shape[-1]:
            raise ModelError(f"output {quote(label)} has dicts of {len(keys)} keys for {shape[-1]} values")
        return GraphPort(label, scores, keys=keys)
    if draft.types[tensor].dtype == "object":
        raise ModelError(f"output {quote(label)} is no tensor; only tensors, and dicts of ZipMap, can leave a model")
    return GraphPort(label, tensor)
