"""A group of nodes as an ONNX model, for a runtime that takes models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import ModelProto, TypeProto, helper, numpy_helper

from ..ir import Node, TensorType
from .onnx_form import CAPTURES, FUNCTIONS, IN_ELEMENTS, NORMAL_VERSION, element_type, onnx_node, type_proto

OF_OURS = frozenset({"channels_last", IN_ELEMENTS})
"""Attributes that change what an op of ONNX computes."""


def common_versions(nodes: Sequence[Node]) -> dict[str, int] | None:
    """The opset versions, by domain, under which all nodes mean what they say; None if there are no such.

    None too for what `model_of_group` can't have: ops and attributes that are not ONNX's, and two nodes that capture.
    """
    versions: dict[str, int] = {"": 0}
    for node in nodes:
        versions[node.domain] = max(versions.get(node.domain, 0), node.version)
    versions[""] = versions[""] or NORMAL_VERSION
    closed = [node for node in nodes if CAPTURES in node.attrs]
    if len(closed) > 1 or any(node.version != versions[""] or FUNCTIONS in node.attrs for node in closed):
        return None
    is_plain = all(node.attrs.keys().isdisjoint(OF_OURS) and _since(node, node.version) for node in nodes)
    same = all(_since(node, node.version) == _since(node, versions[node.domain]) for node in nodes)
    return versions if is_plain and same else None


def _since(node: Node, version: int) -> int | None:
    """The version that brought a node's op as it is in this one; None where ONNX does not have it."""
    try:
        return int(onnx.defs.get_schema(node.op, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return None


def model_of_group(
    nodes: Sequence[Node],
    types: Mapping[str, TensorType],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    tell_sizes: bool = True,
) -> ModelProto | None:
    """A model of several nodes, in an order that computes them; tensors have the names that they have here.

    `tell_sizes`: whether it says of inputs and outputs how large they are. None where no one version of ONNX suits all
    of them, or a type is not told.
    """
    versions = common_versions(nodes)
    if versions is None or any(types[name].dtype == "object" for name in (*inputs, *outputs)):
        return None
    graph = onnx.GraphProto(name="group")
    for number, node in enumerate(nodes):
        dtype = types[node.inputs[0]].dtype if node.inputs and node.inputs[0] else "float32"
        proto, values = onnx_node(node, dtype)
        captures = node.attrs.get(CAPTURES, ())
        explicit = len(node.inputs) - len(captures)
        for name, outer in zip(captures, node.inputs[explicit:], strict=True):
            graph.node.append(helper.make_node("Identity", [outer], [name]))
        own = {f"i{k}": name for k, name in enumerate(node.inputs)} | {name: f"{name}_{number}" for name in values}
        proto.input[:] = [own[name] if name else "" for name in proto.input]
        proto.output[:] = node.outputs
        graph.node.append(proto)
        graph.initializer.extend(numpy_helper.from_array(value, own[name]) for name, value in values.items())
    describe = type_proto if tell_sizes else _sizeless_type
    graph.input.extend(onnx.ValueInfoProto(name=name, type=describe(types[name])) for name in inputs)
    graph.output.extend(onnx.ValueInfoProto(name=name, type=describe(types[name])) for name in outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _sizeless_type(tensor: TensorType) -> TypeProto:
    """The type with its rank, where that is known, and no sizes."""
    rank = None if tensor.shape is None else [None] * len(tensor.shape)
    return helper.make_tensor_type_proto(element_type(tensor.dtype), rank)
