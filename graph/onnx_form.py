"""Between a `Node` and the ONNX node that it stands for.

The graph keeps nodes in a normal form (`onnx_import.normal`): known parameters, which ONNX passes as tensors, are
attributes there. `onnx_node` puts them back, so that whatever speaks ONNX (shape inference, the reference evaluator)
can be asked about any node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from .ir import Array, Node, TensorType

NORMAL_VERSION = 20
"""The opset whose meaning a node in the normal form has, and every node that a rewrite makes. (A node that comes from
a newer opset keeps that number: nothing changed for the ops of the normal form since.)"""


class Parameter(NamedTuple):
    """A parameter that the normal form keeps as attribute `attr` and ONNX takes as input number `place`."""

    attr: str
    place: int
    dtype: str = "int64"  # empty: as the first input


_AXES = (Parameter("axes", 1),)
_LIMITS = (Parameter("min", 1, ""), Parameter("max", 2, ""))

PARAMETERS: Mapping[str, tuple[Parameter, ...]] = {
    "Clip": _LIMITS,
    "CumSum": (Parameter("axis", 1),),
    "Expand": (Parameter("shape", 1),),
    "Pad": (Parameter("pads", 1), Parameter("value", 2, "")),
    "Reshape": (Parameter("shape", 1),),
    "Resize": (Parameter("scales", 2, "float32"), Parameter("sizes", 3)),
    "Slice": (Parameter("starts", 1), Parameter("ends", 2), Parameter("axes", 3), Parameter("steps", 4)),
    "Split": (Parameter("split", 1),),
    "Tile": (Parameter("repeats", 1),),
    "TopK": (Parameter("k", 1),),
    "Trilu": (Parameter("k", 1),),
    **{
        f"Reduce{kind}": _AXES
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
"""Which attributes of the normal form ONNX takes as inputs."""

SCALARS = frozenset({("Clip", "min"), ("Clip", "max"), ("CumSum", "axis"), ("Pad", "value"), ("Trilu", "k")})
"""Parameters of rank 0; the others are vectors."""

CAPTURES = "captures"
"""Attribute of a control-flow node: the names by which its bodies call the last inputs of the node."""

FUNCTIONS = "functions"
"""Attribute of a control-flow node: functions that its bodies call, as those of a serialised ONNX model."""

PASSED_OVER = frozenset({"channels_last", CAPTURES, FUNCTIONS})
"""Attributes of the normal form that have no place in the ONNX node; `channels` and the caller see to them."""


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


def type_proto(tensor: TensorType) -> TypeProto:
    """ONNX's form of a type."""
    return helper.make_tensor_type_proto(element_type(tensor.dtype), tensor.shape)


def plain(attribute: AttributeProto) -> Any:
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
        return helper.make_attribute(name, onnx.GraphProto.FromString(value))
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
        elif name not in PASSED_OVER:
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
    graph = onnx.GraphProto(name="node", node=[proto])
    for name, given, kind in zip(names, node.inputs, inputs, strict=True):
        if given:
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
