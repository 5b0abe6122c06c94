"""The graphs inside control-flow nodes, cut loose from the model around them.

A body that stays in ONNX form (its condition or trip count is not known) keeps no name of the model: what it computes
is called `b0, b1, ...`, and what it takes from around it `c0, c1, ...`, which become inputs of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from tunewright.graph.onnx_form import FUNCTIONS

from .check import bodies
from .errors import ModelError, place_of, shown
from .opsets import domain_and_version
from .weights import Weights


@dataclass(slots=True)
class Captures:
    """What the bodies of one node take from around it: our tensor -> the name inside, in order of appearance.

    `outer` gives our tensor for a name of the model, None if there is no such.
    """

    outer: Callable[[str], str | None]
    weights: Weights
    version: int  # of the standard domain, for the node and what is in its bodies
    names: dict[str, str] = field(default_factory=dict)
    functions: list[FunctionProto] = field(default_factory=list)
    locals_made: int = 0

    def inside(self, name: str, place: str) -> str:
        """The name inside for a name of the model that no body defines. Raises ModelError if nothing does."""
        tensor = self.outer(name)
        if tensor is None:
            raise ModelError(f"{place} reads {shown(name)}, which nothing before it computes")
        return self.names.setdefault(tensor, f"c{len(self.names)}")

    def local(self) -> str:
        """A fresh name inside."""
        self.locals_made += 1
        return f"b{self.locals_made - 1}"


def closed(
    node: NodeProto, version: int, outer: Callable[[str], str | None], weights: Weights
) -> tuple[NodeProto, Captures]:
    """A copy of a control-flow node with its bodies renamed and their tensors checked, and what they capture."""
    copy = NodeProto.FromString(node.SerializeToString())
    captures = Captures(outer, weights, version)
    _rename_bodies(copy, {}, captures)
    return copy, captures


def _rename_bodies(node: NodeProto, scope: Mapping[str, str], captures: Captures) -> None:
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
        if attribute.type == AttributeProto.TENSOR:
            _check_in(attribute.t, captures)
        if attribute.type == AttributeProto.GRAPH:
            _rename(attribute.g, scope, captures)
        for graph in attribute.graphs:
            _rename(graph, scope, captures)


def _rename(graph: GraphProto, outer_scope: Mapping[str, str], captures: Captures) -> None:
    scope = dict(outer_scope)

    def define(name: str) -> str:
        if name:
            scope[name] = captures.local()
        return scope[name] if name else ""

    def resolve(name: str, place: str) -> str:
        return scope[name] if name in scope or not name else captures.inside(name, place)

    scope[""] = ""
    for tensor in graph.initializer:
        _check_in(tensor, captures)
        tensor.name = (
            scope[tensor.name] if tensor.name in scope and tensor.name not in outer_scope else define(tensor.name)
        )
    for value in graph.input:
        value.name = define(value.name)
        _forget_names(value.type)
    for node in graph.node:
        place = place_of(node)
        node.name, node.doc_string = "", ""
        node.ClearField("metadata_props")
        node.input[:] = [resolve(name, place) for name in node.input]
        _rename_bodies(node, scope, captures)
        _set_version(node, captures)
        node.output[:] = [define(name) for name in node.output]
    for value in graph.output:
        value.name = resolve(value.name, "a body of control flow")
        _forget_names(value.type)
    graph.name = "body"
    for field_name in ("doc_string", "value_info", "quantization_annotation", "metadata_props"):
        graph.ClearField(field_name)


def _set_version(node: NodeProto, captures: Captures) -> None:
    """Have a node of another version call a function that is of that version and consists of the node."""
    domain, version = domain_and_version(node.domain, {})
    if version is None or (not domain and version == captures.version):
        node.domain = domain
        return
    if any(True for _ in bodies(node)):
        raise ModelError(f"{place_of(node)}: opset {version} inside of control flow of another is not supported")
    inner = NodeProto(op_type=node.op_type, domain=domain, attribute=node.attribute)
    inner.input.extend(f"x{k}" if name else "" for k, name in enumerate(node.input))
    inner.output.extend(f"y{k}" if name else "" for k, name in enumerate(node.output))
    function = FunctionProto(domain=FUNCTIONS, name=f"f{len(captures.functions)}", node=[inner])
    function.input.extend(filter(None, inner.input))
    function.output.extend(filter(None, inner.output))
    function.opset_import.append(helper.make_opsetid(domain, version))
    for name in function.output:  # without any of these the evaluator refuses ops whose definition depends on types
        function.value_info.add(name=name)
    captures.functions.append(function)
    call = NodeProto(op_type=function.name, domain=FUNCTIONS)
    call.input.extend(filter(None, node.input))
    call.output.extend(filter(None, node.output))
    node.CopyFrom(call)


def _check_in(tensor: TensorProto, captures: Captures) -> None:
    """Put the checked values in place: what runs the body later must not follow a reference to a file."""
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(captures.weights.array(tensor), name))


def _forget_names(kind: TypeProto) -> None:
    """Keep the extents that a type declares, and no names of dimensions."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim]
            ranked = kind.tensor_type.HasField("shape")
            kind.CopyFrom(helper.make_tensor_type_proto(kind.tensor_type.elem_type, dims if ranked else None))
        case "sequence_type":
            _forget_names(kind.sequence_type.elem_type)
        case "optional_type":
            _forget_names(kind.optional_type.elem_type)
