"""ONNX's own definitions of composite ops, as nodes of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import FunctionProto, NodeProto, TypeProto, inliner
from onnx.defs import get_schema

from tunewright.graph.ir import Node

from ..evaluation.onnx_form import CAPTURES, FUNCTIONS, model_of
from .protobuf import versions


@dataclass(frozen=True, slots=True)
class FunctionBody:
    """What a node consists of. `inputs` go with those of the node, captured tensors included."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    opsets: Mapping[str, int]


def definition_of(node: Node, kinds: Sequence[TypeProto | None]) -> FunctionBody | None:
    """The definition of a node whose operands have these types (None: absent), if ONNX has one for them."""
    if FUNCTIONS in node.attrs:
        return None
    model = model_of(node, kinds)
    captures = node.attrs.get(CAPTURES, ())
    try:
        definition = inliner.inline_selected_functions(
            model, [(node.domain, node.op)], exclude=False, inline_schema_functions=True
        )
    except RuntimeError:  # onnx 1.23.2 fails on optional operands that are absent
        return _function_for(node, model.graph.node[0], kinds)
    names = (*(f"i{k}" for k in range(len(node.inputs) - len(captures))), *captures)
    results = tuple(f"o{k}" for k in range(len(node.outputs)))
    return FunctionBody(names, results, tuple(definition.graph.node), versions(definition.opset_import))


def _function_for(node: Node, call: NodeProto, kinds: Sequence[TypeProto | None]) -> FunctionBody | None:
    """The function that ONNX writes for one call, which leaves out what is absent; None where it needs attributes."""
    schema: Any = get_schema(node.op, node.version, node.domain)
    known = [version for version in schema.context_dependent_function_opset_versions if version <= node.version]
    if not known:
        return None
    types = [(kind or TypeProto()).SerializeToString() for kind in kinds[: len(call.input)]]
    data = schema.get_context_dependent_function_with_opset_version(max(known), call.SerializeToString(), types)
    function = FunctionProto.FromString(data)
    formal = function.input[: len(call.input)]
    if not function.node or any(attribute.ref_attr_name for item in function.node for attribute in item.attribute):
        return None
    captures = node.attrs.get(CAPTURES, ())
    return FunctionBody(
        (*formal, *captures), tuple(function.output), tuple(function.node), versions(function.opset_import)
    )
