"""The types of what a node makes, from the types of what it reads.

ONNX's own shape inference does the work, one node at a time, so that whatever it answers is checked against the limits
before the next node sees it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference

from . import channels
from .ir import Array, Node, TensorType
from .onnx_form import dtype_name, onnx_node, type_proto

MAX_ELEMENTS = 2**31 - 1
"""Most elements of one tensor."""

MAX_RANK = 8
"""Most dimensions of one tensor."""

MAX_VALUES = 1024
"""Most elements of a constant that shape inference is told the values of."""

DTYPES: Mapping[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.FLOAT16: "float16",
    TensorProto.INT8: "int8", TensorProto.INT16: "int16", TensorProto.INT32: "int32", TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8", TensorProto.UINT16: "uint16", TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64", TensorProto.BOOL: "bool", TensorProto.STRING: "string",
    TensorProto.COMPLEX64: "complex64", TensorProto.COMPLEX128: "complex128", TensorProto.BFLOAT16: "bfloat16",
}  # fmt: skip
"""The element types that a tensor may have."""


class TypeFault(ValueError):
    """A node whose operands don't fit, or a tensor beyond a limit."""


def tensor_type(proto: TypeProto) -> TensorType:
    """The type as the graph keeps it: shape None unless every extent is known; dtype "object" for a sequence.

    Raises TypeFault for an element type that isn't supported and for shapes beyond the limits.
    """
    match proto.WhichOneof("value"):
        case "tensor_type":
            pass
        case "sequence_type" | "optional_type":
            return TensorType("object", None)
        case None:
            return TensorType("object", None)
        case kind:
            raise TypeFault(f"values of kind {kind} are not supported")
    number = proto.tensor_type.elem_type
    if number not in DTYPES:
        known = number in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(number) if known else str(number)
        raise TypeFault(f"element type {name} is not supported; supported: {', '.join(DTYPES.values())}")
    if not proto.tensor_type.HasField("shape"):
        return TensorType(DTYPES[number], None)
    dims = proto.tensor_type.shape.dim
    check_shape([d.dim_value for d in dims if d.HasField("dim_value")], len(dims))
    static = all(d.HasField("dim_value") for d in dims)
    return TensorType(DTYPES[number], tuple(d.dim_value for d in dims) if static else None)


def check_shape(extents: Sequence[int], rank: int | None = None) -> None:
    """Raises TypeFault if a tensor with these extents is beyond the limits."""
    rank = len(extents) if rank is None else rank
    if rank > MAX_RANK:
        raise TypeFault(f"{rank} dimensions are more than {MAX_RANK}")
    if any(extent < 0 for extent in extents):
        raise TypeFault(f"an extent of {min(extents)} is negative")
    if prod(extents) > MAX_ELEMENTS:
        shape = " x ".join(map(str, extents))
        raise TypeFault(f"{prod(extents):,} elements ({shape}) are more than {MAX_ELEMENTS:,}")


def infer_protos(node: Node, inputs: Sequence[TypeProto | None], values: Sequence[Array | None]) -> list[TypeProto]:
    """ONNX's types of the outputs of a node; an output that it can't tell anything about is an empty type.

    `inputs` and `values` go with `node.inputs`: the types (None where absent), and the arrays of those that are known.
    Raises TypeFault if the operands don't fit. Not for control flow.
    """
    try:
        found = _infer(node, inputs, values)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise TypeFault(first_line(error)) from error
    return [found.get(f"o{k}", TypeProto()) for k, name in enumerate(node.outputs)]


_PLAIN_WORDS: Mapping[str, str] = {
    r"^(\[\w+\] )+": "",
    r"Dimension mismatch in unification between (\d+) and (\d+)": r"extents \1 and \2 where they must be equal",
    r"Incompatible dimensions$": "the shapes don't fit together",
    r"Can't merge shape info\. Both inferred and declared dimension have different values\. "
    r"Inferred=(-?\d+) Declared=(-?\d+) Dimension=(\d+)": r"axis \3 has extent \1, but is declared with \2",
    r"Mismatch between number of inferred and declared dimensions\. inferred=(\d+) declared=(\d+)": (
        r"there are \1 dimensions, but \2 are declared"
    ),
}
"""What onnx says, as patterns, in words for people who don't know its insides."""


def first_line(error: Exception) -> str:
    """What an error says, without what onnx adds around it."""
    text = str(error).strip().split("\n")[0]
    for theirs, plain in _PLAIN_WORDS.items():
        text = re.sub(theirs, plain, text)
    return text


def _infer(node: Node, inputs: Sequence[TypeProto | None], values: Sequence[Array | None]) -> dict[str, TypeProto]:
    first = inputs[0].tensor_type.elem_type if inputs and inputs[0] is not None else TensorProto.FLOAT
    dtype = DTYPES.get(first, "float32")
    proto, parameters = onnx_node(node, "float32" if dtype == "string" else dtype)
    kinds = {f"i{k}": kind for k, kind in enumerate(inputs) if kind is not None}
    data = {
        f"i{k}": numpy_helper.from_array(value, f"i{k}")
        for k, value in enumerate(values)
        if value is not None and value.size <= MAX_VALUES and value.dtype.kind != "O"
    }
    for name, value in parameters.items():
        kinds[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        data[name] = numpy_helper.from_array(value, name)
    opsets = [helper.make_opsetid(node.domain, node.version)]
    schema = onnx.defs.get_schema(node.op, node.version, node.domain)
    return shape_inference.infer_node_outputs(schema, proto, kinds, data, opset_imports=opsets)


def infer_body(
    body: GraphProto, opsets: Mapping[str, int], inputs: Sequence[TypeProto], around: Mapping[str, Any]
) -> list[TypeProto]:
    """The types of what a body of control flow makes, as far as they can be told.

    `inputs` are the types of what it is given, `around` the values by name of what it may read besides. Its own names
    are not among these. What its outputs are declared as counts where inference has nothing to say.
    """
    graph: GraphProto = GraphProto.FromString(body.SerializeToString())
    for value, kind in zip(graph.input, inputs, strict=True):
        value.type.CopyFrom(kind)
    for name, array in around.items():
        if not isinstance(array, np.ndarray):
            continue
        graph.input.append(onnx.ValueInfoProto(name=name, type=value_type(array)))
        if array.size <= MAX_VALUES and array.dtype.kind == "i":
            graph.initializer.append(numpy_helper.from_array(array, name))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*opset) for opset in opsets.items()])
    found = shape_inference.infer_shapes(model, data_prop=True)
    return [value.type for value in found.graph.output]


def value_type(array: Array) -> TypeProto:
    """ONNX's type of a value."""
    return type_proto(TensorType(dtype_name(array), np.shape(array)))


def infer(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> tuple[TensorType, ...]:
    """The types of the outputs of a node in the normal form, channels last or not; "" outputs get one too.

    Raises TypeFault as `infer_protos` does.
    """
    if node.op == "Silu":
        return (types[node.inputs[0]],)
    inputs = [types[name] if name else None for name in node.inputs]
    last = channels.is_channels_last(node)
    if last:
        inputs = [
            kind and _permuted(kind, channels.input_to_first(node, k, rank(kind))) for k, kind in enumerate(inputs)
        ]
    protos = [type_proto(kind) if kind and kind.dtype != "object" else None for kind in inputs]
    values = [constants.get(name) if name else None for name in node.inputs]
    found = tuple(tensor_type(proto) for proto in infer_protos(node, protos, [None] * len(values) if last else values))
    return tuple(_permuted(kind, channels.last_from_first(rank(kind))) for kind in found) if last else found


def rank(kind: TensorType) -> int:
    """The number of dimensions. Raises TypeFault if it isn't known."""
    if kind.shape is None:
        raise TypeFault("the rank is not known")
    return len(kind.shape)


def _permuted(kind: TensorType, perm: tuple[int, ...] | None) -> TensorType:
    if perm is None or kind.shape is None:
        return kind
    return TensorType(kind.dtype, tuple(kind.shape[axis] for axis in perm))
