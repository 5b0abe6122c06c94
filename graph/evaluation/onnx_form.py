"""Conversion of a `Node` to the ONNX node that it stands for.

The graph keeps nodes in a normal form (`onnx_import.normal`): known parameters, which ONNX passes as tensors, are
attributes there. `onnx_node` puts them back, so that whatever speaks ONNX (shape inference, the reference evaluator)
can be asked about any node. `infer` asks the first for the types of what a node makes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
    shape_inference,
)

from ..ir import Array, Node, TensorType

NORMAL_VERSION = 20
"""The opset whose meaning a node in the normal form has, and every node that a rewrite makes. (A node that comes from
a newer opset keeps that number: nothing changed for the ops of the normal form since.)"""


FEW_BITS_VERSION = 25
"""The first opset that has all the types of less than a byte."""


class Parameter(NamedTuple):
    """A parameter that the normal form keeps as attribute `attr` and ONNX takes as input number `place`."""

    attr: str
    place: int
    dtype: str = "int64"  # empty: as the first input


REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
"""The ops that fold."""

_AXES = (Parameter("axes", 1),)
_LIMITS = (Parameter("min", 1, ""), Parameter("max", 2, ""))

PARAMETERS: Mapping[str, tuple[Parameter, ...]] = {
    "Clip": _LIMITS,
    "CumProd": (Parameter("axis", 1),),
    "CumSum": (Parameter("axis", 1),),
    "Expand": (Parameter("shape", 1),),
    "Pad": (Parameter("pads", 1), Parameter("value", 2, "")),
    "Reshape": (Parameter("shape", 1),),
    "Resize": (Parameter("roi", 1, "float32"), Parameter("scales", 2, "float32"), Parameter("sizes", 3)),
    "Slice": (Parameter("starts", 1), Parameter("ends", 2), Parameter("axes", 3), Parameter("steps", 4)),
    "Split": (Parameter("split", 1),),
    "Tile": (Parameter("repeats", 1),),
    "TopK": (Parameter("k", 1),),
    "Trilu": (Parameter("k", 1),),
    **dict.fromkeys(REDUCTIONS, _AXES),
}
"""Op -> attributes of the normal form that ONNX takes as inputs."""

SCALARS = frozenset(
    {("Clip", "min"), ("Clip", "max"), ("CumProd", "axis"), ("CumSum", "axis"), ("Pad", "value"), ("Trilu", "k")}
)
"""Parameters of rank 0; the others are vectors."""

CAPTURES = "captures"
"""Attribute of a control-flow node: the names by which its bodies call the last inputs of the node."""

FUNCTIONS = "functions"
"""Attribute of a control-flow node: functions that its bodies call, as those of a serialised ONNX model."""

IN_ELEMENTS = "in_elements"
"""Attribute of GridSample: its grid has places among the elements, from 0 on, instead of such from -1 to 1."""

NOT_IN_ONNX = frozenset({"channels_last", CAPTURES, FUNCTIONS, IN_ELEMENTS})
"""Attributes of the normal form that have no place in the ONNX node; `infer`, `fallback` and the caller see to them."""


def element_type(dtype: str) -> int:
    """ONNX's number for a dtype of `TensorType`."""
    if dtype == "string":
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def dtype_name(array: Any) -> str:
    """The dtype of a value as `TensorType` writes it; "object" for a list (ONNX's sequence)."""
    if not isinstance(array, np.ndarray | np.generic):
        return "object"
    return "string" if array.dtype.kind in "OUST" else array.dtype.name


def cast_version(*dtypes: str) -> int:
    """The opset of a Cast between these types: what has few bits came after the normal form."""
    return FEW_BITS_VERSION if not SUB_BYTE_BITS.keys().isdisjoint(dtypes) else NORMAL_VERSION


def type_proto(tensor: TensorType) -> TypeProto:
    """ONNX's form of a type."""
    return helper.make_tensor_type_proto(element_type(tensor.dtype), tensor.shape)


def attribute_value(attribute: AttributeProto) -> Any:
    """The value of an attribute as `Node.attrs` keeps it. Raises ValueError for kinds that have no plain form."""
    match attribute.type:
        case AttributeProto.STRING:
            return attribute.s.decode()
        case AttributeProto.STRINGS:
            return tuple(item.decode() for item in attribute.strings)
        case AttributeProto.INT | AttributeProto.FLOAT:
            return attribute.i if attribute.type == AttributeProto.INT else attribute.f
        case AttributeProto.INTS | AttributeProto.FLOATS:
            return tuple(attribute.ints if attribute.type == AttributeProto.INTS else attribute.floats)
        case AttributeProto.TENSOR:
            return numpy_helper.to_array(attribute.t)
        case AttributeProto.GRAPH:
            return attribute.g.SerializeToString()
        case kind:
            raise ValueError(f"attribute of kind {AttributeProto.AttributeType.Name(kind)}")


def _attribute(name: str, kind: int, value: Any) -> AttributeProto:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value))
    if isinstance(value, bytes):
        return helper.make_attribute(name, GraphProto.FromString(value))
    return helper.make_attribute(name, value, attr_type=kind)


def onnx_node(node: Node, dtype: str) -> tuple[NodeProto, dict[str, Array]]:
    """The ONNX node, with inputs `i0, i1, ...` and outputs `o0, o1, ...`, and the inputs that were attributes.

    `dtype` is the first input's. What a control-flow node captures is no input of the ONNX node: its bodies call it
    by the names in attribute CAPTURES. Raises ValueError for an attribute that the op doesn't have.
    """
    schema: Any = onnx.defs.get_schema(node.op, node.version, node.domain)
    explicit = len(node.inputs) - len(node.attrs.get(CAPTURES, ()))
    inputs = [f"i{k}" if name else "" for k, name in enumerate(node.inputs[:explicit])]
    values: dict[str, Array] = {}
    proto = NodeProto(op_type=node.op, domain=node.domain)
    proto.output.extend(f"o{k}" if name else "" for k, name in enumerate(node.outputs))
    parameters = {p.attr: p for p in PARAMETERS.get(node.op, ())}
    for name, value in node.attrs.items():
        if name in schema.attributes:
            proto.attribute.append(_attribute(name, schema.attributes[name].type.value, value))
        elif name in parameters:
            _, place, kind = parameters[name]
            inputs += [""] * (place + 1 - len(inputs))
            inputs[place] = f"p{place}"
            shape = () if (node.op, name) in SCALARS else (-1,)
            values[inputs[place]] = np.asarray(value, kind or dtype).reshape(shape)
        elif name not in NOT_IN_ONNX:
            raise ValueError(f"{node.op} of opset {node.version} has no attribute {name}")
    proto.input.extend(inputs)
    return proto, values


def model_of(node: Node, inputs: Sequence[TypeProto | None]) -> ModelProto:
    """A model of the one node: inputs `i0, ...` and what it captures, outputs `o0, ...`; parameters initialised.

    `inputs` has the type of each input of `node` (None where it is absent or no tensor).
    """
    first = inputs[0].tensor_type.elem_type if inputs and inputs[0] is not None else 1
    no_number = first in (TensorProto.UNDEFINED, TensorProto.STRING)  # a sequence is undefined here
    dtype = "float32" if no_number else helper.tensor_dtype_to_np_dtype(first).name
    proto, values = onnx_node(node, dtype)
    captures = node.attrs.get(CAPTURES, ())
    names = [f"i{k}" for k in range(len(node.inputs) - len(captures))] + list(captures)
    graph = GraphProto(name="node", node=[proto])
    for name, input_name, kind in zip(names, node.inputs, inputs, strict=True):
        if input_name:
            graph.input.append(onnx.ValueInfoProto(name=name, type=kind))
    graph.output.extend(onnx.ValueInfoProto(name=f"o{k}") for k, name in enumerate(node.outputs) if name)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    opsets = {node.domain: node.version}
    if node.domain:
        opsets[""] = NORMAL_VERSION
    functions = ModelProto.FromString(node.attrs.get(FUNCTIONS, b"")).functions
    opsets |= dict.fromkeys((function.domain for function in functions), 1)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, functions=functions)


# Channels last: a node with the attribute `channels_last=True` computes what its ONNX op does, on tensors whose axes
# are stored in another order:
#
# | tensor                                   | ONNX                 | channels last        |
# | ---------------------------------------- | -------------------- | -------------------- |
# | activation: input 0 and every output     | `[N, C, *spatial]`   | `[N, *spatial, C]`   |
# | weight of Conv, ConvInteger, ConvNarrow  | `[O, I/g, *kernel]`  | `[*kernel, I/g, O]`  |
# | weight of ConvTranspose                  | `[I, O/g, *kernel]`  | `[*kernel, I, O/g]`  |
#
# Everything else (bias, scales, attributes) is as in ONNX.

_CHANNELS_LAST = """
AveragePool BatchNormalization Conv ConvInteger ConvNarrow ConvTranspose DepthToSpace GridSample InstanceNormalization
LpPool LRN MaxPool RoiAlign SpaceToDepth
"""
CHANNELS_LAST_OPS = frozenset(_CHANNELS_LAST.split())
"""The ops that may carry the attribute."""

CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvNarrow", "ConvTranspose"})
"""The channels-last ops whose second operand is a weight."""


def is_channels_last(node: Node) -> bool:
    """Whether the node's tensors have their channels last."""
    return bool(node.attrs.get("channels_last", False))


def last_from_first(rank: int) -> tuple[int, ...]:
    """The axes of `[N, C, *spatial]` in the order `[N, *spatial, C]`, as Transpose takes them."""
    return (0, *range(2, rank), 1)


def first_from_last(rank: int) -> tuple[int, ...]:
    """The inverse of `last_from_first`."""
    return inverse(last_from_first(rank))


def weight_last_from_first(op: str, rank: int) -> tuple[int, ...]:
    """The axes of ONNX's weight in the order of the channels-last node."""
    return (*range(2, rank), 0, 1) if op == "ConvTranspose" else (*range(2, rank), 1, 0)


def input_to_first(node: Node, position: int, rank: int) -> tuple[int, ...] | None:
    """The permutation that brings an input of a channels-last node to ONNX's order; None if it is so already."""
    if position == 0:
        return first_from_last(rank)
    if position == 1 and node.op in CONVOLUTIONS:
        return inverse(weight_last_from_first(node.op, rank))
    return None


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


# Inference: ONNX's own does the work, one node at a time, so that whatever it answers is checked against the limits
# before the next node sees it.

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
    TensorProto.INT4: "int4", TensorProto.UINT4: "uint4", TensorProto.INT2: "int2", TensorProto.UINT2: "uint2",
}  # fmt: skip
"""The element types that a tensor may have."""

SUB_BYTE_BITS: Mapping[str, int] = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Bits of the types of which a byte in a file has several elements. In memory each has a byte."""


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
        types = _infer(node, inputs, values)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise TypeFault(first_line(error)) from error
    return [types.get(f"o{k}", TypeProto()) for k, name in enumerate(node.outputs)]


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
"""Patterns of onnx's messages -> words for people who don't know its insides."""


def first_line(error: Exception) -> str:
    """The first line of an error in plain words."""
    text = str(error).strip().split("\n")[0]
    for pattern, plain in _PLAIN_WORDS.items():
        text = re.sub(pattern, plain, text)
    return text


INFERRED_FROM: Mapping[str, int] = {"GreaterOrEqual": 16, "LessOrEqual": 16}
"""Opset from which inference knows an op that meant the same before."""


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
    version = node.version if node.domain else max(node.version, INFERRED_FROM.get(node.op, 0))
    opsets = [helper.make_opsetid(node.domain, version)]
    schema = onnx.defs.get_schema(node.op, version, node.domain)
    return shape_inference.infer_node_outputs(schema, proto, kinds, data, opset_imports=opsets)


def infer_body(
    body: GraphProto, opsets: Mapping[str, int], inputs: Sequence[TypeProto], outer_values: Mapping[str, Any]
) -> list[TypeProto]:
    """The types of the outputs of a body of control flow, as far as inference or the body's declarations give them.

    `inputs` are the types of the body's inputs. `outer_values` are the values, by name, that it may read from outside;
    the body's own names are not among them.
    """
    graph: GraphProto = GraphProto.FromString(body.SerializeToString())
    for value, kind in zip(graph.input, inputs, strict=True):
        value.type.CopyFrom(kind)
    for name, array in outer_values.items():
        if not isinstance(array, np.ndarray):
            continue
        graph.input.append(onnx.ValueInfoProto(name=name, type=value_type(array)))
        if array.size <= MAX_VALUES and array.dtype.kind == "i":
            graph.initializer.append(numpy_helper.from_array(array, name))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*opset) for opset in opsets.items()])
    typed_model = shape_inference.infer_shapes(model, data_prop=True)
    return [value.type for value in typed_model.graph.output]


def value_type(array: Array) -> TypeProto:
    """ONNX's type of a value."""
    return type_proto(TensorType(dtype_name(array), np.shape(array)))


KEEPS_TYPE = ("CausalMask", "RoundBlocks", "Silu", "WriteRows")
"""Ops of this package alone whose result has the type of the first operand."""


def infer(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> tuple[TensorType, ...]:
    """The types of the outputs of a node in the normal form, channels last or not; "" outputs get one too.

    Raises TypeFault as `infer_protos` does.
    """
    if node.op in KEEPS_TYPE:
        return (types[node.inputs[0]],)
    inputs = [types[name] if name else None for name in node.inputs]
    last = is_channels_last(node)
    if last:
        inputs = [kind and _permute(kind, input_to_first(node, k, rank(kind))) for k, kind in enumerate(inputs)]
    protos = [type_proto(kind) if kind and kind.dtype != "object" else None for kind in inputs]
    values = [constants.get(name) if name else None for name in node.inputs]
    kinds = tuple(tensor_type(proto) for proto in infer_protos(node, protos, [None] * len(values) if last else values))
    return tuple(_permute(kind, last_from_first(rank(kind))) for kind in kinds) if last else kinds


def rank(kind: TensorType) -> int:
    """The number of dimensions. Raises TypeFault if it isn't known."""
    if kind.shape is None:
        raise TypeFault("the rank is not known")
    return len(kind.shape)


def _permute(kind: TensorType, perm: tuple[int, ...] | None) -> TensorType:
    if perm is None or kind.shape is None:
        return kind
    return TensorType(kind.dtype, tuple(kind.shape[axis] for axis in perm))
