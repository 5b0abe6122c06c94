"""What the weights of a model come to before it runs, where that decides what is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, shape_inference

from .folding import FOLDED_OPS
from .inference import DTYPES
from .ir import Array
from .onnx_form import dtype_name
from .onnx_import.check import bodies
from .onnx_import.opsets import domain_and_version, versions
from .onnx_import.order import ordered
from .onnx_import.walk import Walk
from .onnx_import.weights import Weights

DECISIVE_TYPES = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING})
"""Element types of indices, extents and masks."""

DECISIVE_DTYPES = frozenset(DTYPES[kind] for kind in DECISIVE_TYPES)
"""The same, as `dtype_name` calls them."""


def decided(
    model: ModelProto,
    weights: Weights,
    left_out: Mapping[str, TensorProto],
    made_up: Collection[str],
    most_elements: int,
) -> dict[str, Array]:
    """The values, by name, of what nodes make of weights that are `left_out` and of nothing else but constants.

    Only those are given that have a DECISIVE_TYPE or at most `most_elements`, and that import folds. What depends on
    one of `made_up` has no value worth keeping. Of `left_out` types and extents are looked at. Raises ModelError.
    """
    nodes = _computed(model.graph, left_out, made_up)
    wanted = _decisive(model, nodes, left_out, most_elements)
    if not wanted:
        return {}
    chosen = _ancestors([node for node, _ in nodes], wanted)
    read = {name for node in chosen for name in node.input}
    part = _part(model, chosen, [tensor for tensor in model.graph.initializer if tensor.name in read], (), wanted)
    graph = Walk(weights).graph(part, {})
    found = {value.label: graph.constants.get(value.tensor) for value in graph.outputs}
    return {name: array for name, array in found.items() if array is not None and _kept(array, most_elements)}


def _computed(graph: GraphProto, left_out: Collection[str], made_up: Collection[str]) -> list[tuple[NodeProto, bool]]:
    """The nodes that can be computed ahead, in order, and whether what they make depends on a weight left out."""
    tensors = {tensor.name for tensor in graph.initializer}
    known = {name: name in left_out for name in tensors.difference(made_up)}
    every = {name: name for name in tensors | {value.name for value in graph.input} | {""}}
    found = []
    for node in ordered(graph.node, every):
        domain, _ = domain_and_version(node.domain, {})
        if domain or any(True for _ in bodies(node)) or not set(made_up).isdisjoint(node.output):
            continue
        if node.op_type == "Constant":
            tainted = any(name in left_out for name in node.output)
        elif node.op_type in FOLDED_OPS and all(name in known for name in node.input if name):
            tainted = any(known[name] for name in node.input if name)
        else:
            continue
        known.update(dict.fromkeys(filter(None, node.output), tainted))
        found.append((node, tainted))
    return found


def _decisive(
    model: ModelProto,
    nodes: Collection[tuple[NodeProto, bool]],
    left_out: Mapping[str, TensorProto],
    most_elements: int,
) -> list[str]:
    """The outputs whose values matter, as far as inference can tell; those that it can't tell anything about too."""
    made = [node for node, tainted in nodes if tainted and node.op_type != "Constant"]
    if not made:
        return []
    read = {name for node, _ in nodes for name in node.input}
    given = [_described(name, left_out[name]) for name in left_out if name in read]
    known = [tensor for tensor in model.graph.initializer if tensor.name in read and tensor.name not in left_out]
    plain = [node for node, _ in nodes if node.op_type != "Constant" or not set(node.output).intersection(left_out)]
    part = _part(model, plain, known, given, ())
    try:
        types = {value.name: value.type for value in shape_inference.infer_shapes(part).graph.value_info}
    except shape_inference.InferenceError:  # import will say what is wrong, where anything is
        types = {}
    return [name for node in made for name in node.output if name and _matters(types.get(name), most_elements)]


def _matters(kind: TypeProto | None, most_elements: int) -> bool:
    if kind is None or kind.tensor_type.elem_type in DECISIVE_TYPES or not kind.tensor_type.HasField("shape"):
        return True
    dims = kind.tensor_type.shape.dim
    return not all(dim.HasField("dim_value") for dim in dims) or prod(dim.dim_value for dim in dims) <= most_elements


def _kept(array: Array, most_elements: int) -> bool:
    return array.size <= most_elements or dtype_name(array) in DECISIVE_DTYPES


def _described(name: str, tensor: TensorProto) -> ValueInfoProto:
    return ValueInfoProto(name=name, type=helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))


def _ancestors(nodes: Collection[NodeProto], wanted: Iterable[str]) -> list[NodeProto]:
    """The nodes that it takes to compute the tensors, in order."""
    needed = set(wanted)
    kept = []
    for node in reversed(list(nodes)):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]


def _part(
    model: ModelProto,
    nodes: Iterable[NodeProto],
    tensors: Iterable[TensorProto],
    inputs: Iterable[ValueInfoProto],
    outputs: Iterable[str],
) -> ModelProto:
    """A model of some of the nodes."""
    graph = GraphProto(name="part", node=nodes, initializer=tensors, input=inputs)
    graph.output.extend(ValueInfoProto(name=name) for name in outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in versions(model.opset_import).items()]
    return helper.make_model(graph, opset_imports=imports)
