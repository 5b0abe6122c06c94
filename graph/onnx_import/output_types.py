"""Types of outputs that inference does not know, or has wrong, and bodies of control flow in ONNX form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from tunewright.graph.ir import Node

from ..evaluation.images import scaled_extent
from ..evaluation.onnx_form import DTYPES, FUNCTIONS, TypeFault, check_shape
from ..evaluation.windows import transposed_window_attributes, unpadded_extents, window_attributes, window_counts
from .protobuf import ModelError, bodies, domain_and_version, place_of, quote
from .shapes import Shape, Shapes, Values
from .weights import Weights

# Bodies, closed: their free names become inputs of the node. A body that stays in ONNX form (its condition or trip
# count is not known) keeps no name of the model: what it computes is called `b0, b1, ...`, and what it takes from
# around it `c0, c1, ...`, which become inputs of the node.


@dataclass(slots=True)
class Captures:
    """Captures of the bodies of one node: our tensor -> the name inside, in order of appearance.

    `outer` gives our tensor for a name of the model, None if there is no such.
    """

    outer: Callable[[str], str | None]
    weights: Weights
    version: int  # of the standard domain, for the node and what is in its bodies
    names: dict[str, str] = field(default_factory=dict)
    functions: list[FunctionProto] = field(default_factory=list)
    local_count: int = 0

    def inner_name(self, name: str, place: str) -> str:
        """The name inside for a name of the model that no body defines. Raises ModelError if nothing does."""
        tensor = self.outer(name)
        if tensor is None:
            raise ModelError(f"{place} reads {quote(name)}, which nothing before it computes")
        return self.names.setdefault(tensor, f"c{len(self.names)}")

    def local(self) -> str:
        """A fresh name inside."""
        self.local_count += 1
        return f"b{self.local_count - 1}"


def close_bodies(
    node: NodeProto, version: int, outer: Callable[[str], str | None], weights: Weights
) -> tuple[NodeProto, Captures]:
    """A copy of a control-flow node with its bodies renamed and their tensors checked, and their captures."""
    copy = NodeProto.FromString(node.SerializeToString())
    captures = Captures(outer, weights, version)
    _rename_bodies(copy, {}, captures)
    return copy, captures


def _rename_bodies(node: NodeProto, scope: Mapping[str, str], captures: Captures) -> None:
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
        if attribute.type == AttributeProto.TENSOR:
            _embed_values(attribute.t, captures)
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
        return scope[name] if name in scope or not name else captures.inner_name(name, place)

    scope[""] = ""
    for tensor in graph.initializer:
        _embed_values(tensor, captures)
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
    """Replace a node of another opset version by a call of a function of that version that consists of the node."""
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


def _embed_values(tensor: TensorProto, captures: Captures) -> None:
    """Embed the checked values: the evaluator that runs the body must not follow a reference to a file."""
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


# ONNX's types, whose shapes may be known in part


def value_info(tensor: TensorProto, name: str = "") -> ValueInfoProto:
    """A weight as an input of its type, by its own name or another."""
    kind = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return ValueInfoProto(name=name or tensor.name, type=kind)


def without_shape(kind: TypeProto) -> TypeProto:
    """A copy of the type without its shape."""
    copy: TypeProto = TypeProto.FromString(kind.SerializeToString())
    if copy.HasField("tensor_type"):
        copy.tensor_type.ClearField("shape")
    return copy


def rank(kind: TypeProto | None) -> int | None:
    """The number of dimensions, if known."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return len(kind.tensor_type.shape.dim)


def known_shape(node: Node, kind: TypeProto) -> Any:
    """The value of a Shape or Size of a tensor of this type; None where an extent is open."""
    tensor = kind.tensor_type
    if node.domain or not tensor.HasField("shape"):
        return None
    dims = list(tensor.shape.dim)
    if node.op == "Shape":
        dims = dims[slice(node.attrs.get("start", 0), node.attrs.get("end"))]
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    extents = np.asarray([dim.dim_value for dim in dims], np.int64)
    return extents if node.op == "Shape" else np.asarray(np.prod(extents), np.int64)


def check_output(value: ValueInfoProto, dtype: str) -> None:
    """Raises ModelError where an output is declared with other elements than are computed. (Shapes often are wrong.)"""
    number = value.type.tensor_type.elem_type
    if number and DTYPES.get(number) != dtype:
        declared = DTYPES.get(number, f"element type {number}")
        raise ModelError(
            f"output {quote(value.name)} is declared as {declared}, but {dtype} is computed; "
            "declare that, or convert it with a Cast"
        )


# Fixes of types where inference infers less than is known, or something wrong


MOST_SCALE = 1 << 31
"""The scale of an axis is smaller than this."""


def fix_types(node: Node, protos: Sequence[TypeProto], shapes: Shapes, values: Values) -> list[TypeProto]:
    """The types of the outputs. `shapes` and `values` are those of the inputs, as far as they are known.

    Raises TypeFault for a shape beyond the limits.
    """
    complete = _FIXES.get(node.op) if not node.domain else None
    extents = complete(node, shapes, values) if complete and shapes and shapes[0] is not None else None
    if extents is None:
        return list(protos)
    check_shape(extents)
    return [helper.make_tensor_type_proto(proto.tensor_type.elem_type, extents) for proto in protos]


def _one_hot_extents(node: Node, shapes: Sequence[Any], values: Values) -> Shape | None:
    """Inference leaves out the extent that the depth says."""
    shape, depth = shapes[0], values[1]
    if depth is None or depth.size != 1:
        return None
    axis = node.attrs["axis"] % (len(shape) + 1)
    return (*shape[:axis], int(depth.reshape(-1)[0]), *shape[axis:])


def _pool_extents(node: Node, shapes: Sequence[Any], values: Values) -> Shape | None:
    """Rounded up, a window that would start behind the input and its padding in front is left out in every opset."""
    shape, kernel = shapes[0], node.attrs.get("kernel_shape", ())
    if not node.attrs.get("ceil_mode", 0) or node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    if len(kernel) != len(shape) - 2:
        return None
    extents = window_counts(window_attributes(node.attrs, shape[2:], kernel), shape[2:], ceil=True)
    return (*shape[:2], *extents)


def _conv_transpose_extents(node: Node, shapes: Sequence[Any], values: Values) -> Shape | None:
    """Inference does not cut `output_padding` off again where `auto_pad` says how far the result extends."""
    shape, weight = shapes[:2]
    is_same = node.attrs.get("auto_pad", "NOTSET").startswith("SAME")
    if not is_same or "output_padding" not in node.attrs or weight is None or len(weight) != len(shape):
        return None
    windows = transposed_window_attributes(node.attrs, shape[2:], weight[2:])
    count = len(shape) - 2
    whole = unpadded_extents(windows, shape[2:], windows["output_padding"])
    extents = [extent - windows["pads"][i] - windows["pads"][count + i] for i, extent in enumerate(whole)]
    return (shape[0], weight[1] * node.attrs.get("group", 1), *extents)


def _squeeze_extents(node: Node, shapes: Sequence[Any], values: Values) -> Shape | None:
    """Before opset 13 inference takes the axes to be in order."""
    shape, axes = shapes[0], node.attrs.get("axes")
    if axes is None or not shape:
        return None
    squeezed_axes = {axis % len(shape) for axis in axes}
    return tuple(extent for axis, extent in enumerate(shape) if axis not in squeezed_axes)


def _resize_extents(node: Node, shapes: Sequence[Any], values: Values) -> Shape | None:
    """Inference multiplies extents and scales in double precision, where ONNX Runtime and exporters do in single."""
    shape: Shape = shapes[0]
    place = 1 if node.op == "Upsample" or node.version < 11 else 2
    scale_values = node.attrs.get("scales", values[place] if place < len(values) else None)
    axes = [axis % len(shape) for axis in node.attrs.get("axes") or range(len(shape))]
    if scale_values is None or len(scale_values) != len(axes):
        return None
    if not ((np.asarray(scale_values) > 0) & (np.asarray(scale_values) < MOST_SCALE)).all():
        raise TypeFault(f"scales {', '.join(map(str, scale_values))[:80]} are not all above 0 and below {MOST_SCALE:,}")
    scales = dict(zip(axes, scale_values, strict=True))
    return tuple(scaled_extent(extent, float(scales.get(axis, 1.0))) for axis, extent in enumerate(shape))


_FIXES: Mapping[str, Callable[[Node, Sequence[Any], Values], Shape | None]] = {
    "AveragePool": _pool_extents,
    "ConvTranspose": _conv_transpose_extents,
    "LpPool": _pool_extents,
    "MaxPool": _pool_extents,
    "MeanVarianceNormalization": lambda _, shapes, __: shapes[0],
    "OneHot": _one_hot_extents,
    "Resize": _resize_extents,
    "Squeeze": _squeeze_extents,
    "Upsample": _resize_extents,
}
"""Op -> the extents of its outputs, all of which have the same; None where inference is right."""
