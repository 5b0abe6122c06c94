"""A graph of ONNX Runtime's as ONNX: nodes, types, weights and bodies."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from .c_api import OrtApi, OrtFault

IR_VERSION = 10
"""Of the models that are written here: the newest that all versions with plug-ins read."""

TENSOR = 1  # of ONNXType


class _Kind(IntEnum):
    """What an attribute holds: OrtOpAttrType."""

    INT, INTS, FLOAT, FLOATS, STRING, STRINGS, GRAPH, TENSOR = range(1, 9)


ELEMENT_BITS: Mapping[int, int] = {
    TensorProto.FLOAT: 32, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 16, TensorProto.BFLOAT16: 16,
    TensorProto.BOOL: 8, TensorProto.INT8: 8, TensorProto.INT16: 16, TensorProto.INT32: 32, TensorProto.INT64: 64,
    TensorProto.UINT8: 8, TensorProto.UINT16: 16, TensorProto.UINT32: 32, TensorProto.UINT64: 64,
    TensorProto.INT4: 4, TensorProto.UINT4: 4,
}  # fmt: skip
"""Element types that are read here, and their bits."""


class UnreadableNode(ValueError):
    """A node has something that is not read here, such as texts."""


@dataclass(frozen=True)
class OrtValueInfo:
    """A tensor that nodes read or make."""

    api: OrtApi
    address: int

    @cached_property
    def name(self) -> str:
        return self.api.text("GetValueInfoName", self.address)

    @cached_property
    def _tensor_info(self) -> int | None:
        info = self.api.word("GetValueInfoTypeInfo", self.address)
        kind = c_int()
        if not info:
            return None
        self.api.call("GetOnnxTypeFromTypeInfo", info, byref(kind))
        return self.api.word("CastTypeInfoToTensorInfo", info) if kind.value == TENSOR else None

    @cached_property
    def element(self) -> int | None:
        """The number of its element type; None where it is no tensor of a type that is read here."""
        if self._tensor_info is None:
            return None
        number = c_int()
        self.api.call("GetTensorElementType", self._tensor_info, byref(number))
        return number.value if number.value in ELEMENT_BITS else None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Its extents, -1 where they are open; none too where not even their number is known."""
        return self.api.shape(self._tensor_info) if self._tensor_info is not None else ()

    def proto(self) -> ValueInfoProto:
        """Name and type. Raises UnreadableNode."""
        if self.element is None:
            raise UnreadableNode(f"{self.name} is no tensor of numbers")
        shape = self.shape
        names = (c_char_p * len(shape))()
        self.api.call("GetSymbolicDimensions", self._tensor_info, names, len(shape))
        kind = TypeProto(tensor_type=TypeProto.Tensor(elem_type=self.element))
        kind.tensor_type.shape.SetInParent()
        for extent, name in zip(shape, names, strict=True):
            dimension = kind.tensor_type.shape.dim.add()
            if extent >= 0:
                dimension.dim_value = extent
            elif name:
                dimension.dim_param = name.decode()
        return ValueInfoProto(name=self.name, type=kind)

    @cached_property
    def is_weight(self) -> bool:
        """Whether it is a constant of the model."""
        return self.api.flag("ValueInfo_IsConstantInitializer", self.address)

    def weight(self) -> TensorProto | None:
        """Its value, if it is a constant of the model. Raises UnreadableNode."""
        if not self.is_weight:
            return None
        value = self.api.word("ValueInfo_GetInitializerValue", self.address)
        if self.element is None or not value:
            raise UnreadableNode(f"{self.name} is no tensor of numbers")
        return tensor_proto(self.api, value, self.name)


def tensor_proto(api: OrtApi, value: int, name: str = "") -> TensorProto:
    """An OrtValue's tensor, copied. Raises UnreadableNode."""
    info = api.word("GetTensorTypeAndShape", value)
    assert info is not None
    number = c_int()
    api.call("GetTensorElementType", info, byref(number))
    shape = api.shape(info)
    api.plain("ReleaseTensorTypeAndShapeInfo", info)
    bits = ELEMENT_BITS.get(number.value)
    if bits is None:
        raise UnreadableNode(f"a tensor has elements of type {number.value}")
    size_bytes = (prod(shape) * bits + 7) // 8
    address = api.word("GetTensorMutableData", value) if size_bytes else None
    content = ctypes.string_at(address, size_bytes) if address else b""
    return TensorProto(name=name, data_type=number.value, dims=shape, raw_data=content)


@dataclass(frozen=True)
class OrtNode:
    """A node of a graph."""

    api: OrtApi
    address: int

    @cached_property
    def op(self) -> str:
        return self.api.text("Node_GetOperatorType", self.address)

    @cached_property
    def domain(self) -> str:
        name = self.api.text("Node_GetDomain", self.address)
        return "" if name == "ai.onnx" else name

    @property
    def graph(self) -> OrtGraph | None:
        """The graph that it is in."""
        address = self.api.word("Node_GetGraph", self.address)
        return OrtGraph(self.api, address) if address else None

    @cached_property
    def inputs(self) -> tuple[OrtValueInfo | None, ...]:
        """None where one is left out."""
        return self._values("Inputs")

    @cached_property
    def outputs(self) -> tuple[OrtValueInfo | None, ...]:
        return self._values("Outputs")

    @cached_property
    def captures(self) -> tuple[OrtValueInfo, ...]:
        """What bodies read from around the node."""
        return tuple(filter(None, self._values("ImplicitInputs")))

    def _values(self, kind: str) -> tuple[OrtValueInfo | None, ...]:
        addresses = self.api.items("Node", kind, self.address)
        return tuple(OrtValueInfo(self.api, address) if address else None for address in addresses)

    @cached_property
    def bodies(self) -> dict[str, OrtGraph]:
        """The bodies of control flow, by attribute."""
        count = self.api.size("Node_GetNumSubgraphs", self.address)
        graphs, names = (ctypes.c_void_p * count)(), (c_char_p * count)()
        if count:
            self.api.call("Node_GetSubgraphs", self.address, graphs, count, names)
        pairs = zip(names, graphs, strict=True)
        return {(name or b"").decode(): OrtGraph(self.api, address) for name, address in pairs if address}

    @cached_property
    def is_readable(self) -> bool:
        """Whether `proto` can tell it."""
        try:
            self.proto()
        except UnreadableNode:
            return False
        return True

    def proto(self) -> NodeProto:
        """The node in ONNX's form. Raises UnreadableNode."""
        inputs, outputs = ([value.name if value else "" for value in values] for values in (self.inputs, self.outputs))
        proto = NodeProto(op_type=self.op, domain=self.domain, input=inputs, output=outputs)
        proto.name = self.api.text("Node_GetName", self.address)
        for address in self.api.items("Node", "Attributes", self.address):
            if address and (attribute := _attribute(self.api, address)) is not None:
                proto.attribute.append(attribute)
        for name, body in self.bodies.items():
            proto.attribute.append(helper.make_attribute(name, body.proto()))
        return proto


def _attribute(api: OrtApi, address: int) -> AttributeProto | None:
    """An attribute; None for a body, which its node tells. Raises UnreadableNode."""
    number = c_int()
    api.call("OpAttr_GetType", address, byref(number))
    name = api.text("OpAttr_GetName", address)
    match number.value:
        case _Kind.GRAPH:
            return None
        case _Kind.TENSOR:
            value = api.word("OpAttr_GetTensorAttributeAsOrtValue", address)
            assert value is not None
            try:
                return helper.make_attribute(name, tensor_proto(api, value))
            finally:
                api.plain("ReleaseValue", value)
        case _Kind.INT:
            return AttributeProto(name=name, type=AttributeProto.INT, i=_numbers(api, address, _Kind.INT)[0])
        case _Kind.INTS:
            return AttributeProto(name=name, type=AttributeProto.INTS, ints=_numbers(api, address, _Kind.INTS))
        case _Kind.FLOAT:
            return AttributeProto(name=name, type=AttributeProto.FLOAT, f=_numbers(api, address, _Kind.FLOAT)[0])
        case _Kind.FLOATS:
            return AttributeProto(name=name, type=AttributeProto.FLOATS, floats=_numbers(api, address, _Kind.FLOATS))
        case _Kind.STRING:
            return AttributeProto(name=name, type=AttributeProto.STRING, s=_content(api, address, _Kind.STRING))
        case _Kind.STRINGS:
            texts = _content(api, address, _Kind.STRINGS).split(b"\0")[:-1]
            return AttributeProto(name=name, type=AttributeProto.STRINGS, strings=texts)
    raise UnreadableNode(f"attribute {name} is of type {number.value}")


def _content(api: OrtApi, address: int, kind: int) -> bytes:
    """The bytes of an attribute."""
    size = c_size_t()
    try:  # without room it tells how much it takes
        api.call("ReadOpAttr", address, kind, None, 0, byref(size))
    except OrtFault:
        if not size.value:
            return b""
    buffer = ctypes.create_string_buffer(size.value)
    api.call("ReadOpAttr", address, kind, buffer, size.value, byref(size))
    return buffer.raw[: size.value]


def _numbers(api: OrtApi, address: int, kind: _Kind) -> list[Any]:
    element: Any = c_int64 if kind in (_Kind.INT, _Kind.INTS) else c_float
    content = _content(api, address, kind)
    return list((element * (len(content) // ctypes.sizeof(element))).from_buffer_copy(content))


@dataclass(frozen=True)
class OrtGraph:
    """A graph: a whole model, a body, or nodes that are to be one."""

    api: OrtApi
    address: int

    @cached_property
    def nodes(self) -> tuple[OrtNode, ...]:
        """In an order in which they can be computed."""
        return tuple(
            OrtNode(self.api, address) for address in self.api.items("Graph", "Nodes", self.address) if address
        )

    @cached_property
    def inputs(self) -> tuple[OrtValueInfo, ...]:
        return self._values("Inputs")

    @cached_property
    def outputs(self) -> tuple[OrtValueInfo, ...]:
        return self._values("Outputs")

    @cached_property
    def initializers(self) -> tuple[OrtValueInfo, ...]:
        return self._values("Initializers")

    def _values(self, kind: str) -> tuple[OrtValueInfo, ...]:
        addresses = self.api.items("Graph", kind, self.address)
        return tuple(OrtValueInfo(self.api, address) for address in addresses if address)

    @property
    def parent(self) -> OrtNode | None:
        """The node whose body it is."""
        address = self.api.word("Graph_GetParentNode", self.address)
        return OrtNode(self.api, address) if address else None

    @property
    def model_path(self) -> Path | None:
        """The file that the model was read from; None where it was given as bytes."""
        text = self.api.text("Graph_GetModelPath", self.address)
        return Path(text).absolute() if text else None

    @property
    def opsets(self) -> dict[str, int]:
        """Domain -> version."""
        count = self.api.size("Graph_GetNumOperatorSets", self.address)
        domains, versions = (c_char_p * count)(), (c_int64 * count)()
        self.api.call("Graph_GetOperatorSets", self.address, domains, versions, count)
        return {(domain or b"").decode(): version for domain, version in zip(domains, versions, strict=True)}

    def proto(self) -> GraphProto:
        """The graph in ONNX's form, with its constants. Raises UnreadableNode."""
        graph = GraphProto(name="graph", node=[node.proto() for node in self.nodes])
        graph.input.extend(value.proto() for value in self.inputs)
        graph.output.extend(value.proto() for value in self.outputs)
        graph.initializer.extend(self.weights())
        return graph

    def weights(self) -> Iterator[TensorProto]:
        """The constants. Raises UnreadableNode."""
        return (weight for value in self.initializers if (weight := value.weight()) is not None)


def model_of(graph: OrtGraph, inputs: Sequence[OrtValueInfo], outputs: Sequence[OrtValueInfo]) -> ModelProto:
    """A model that computes `outputs` of `inputs` by a graph's nodes. Raises UnreadableNode."""
    given = {value.name for value in inputs}
    body = GraphProto(name="group", node=[node.proto() for node in graph.nodes])
    body.input.extend(value.proto() for value in inputs)
    body.output.extend(value.proto() for value in outputs)
    read = {value.name: value for node in graph.nodes for value in (*node.inputs, *node.captures) if value}
    weights = (value.weight() for name, value in read.items() if name not in given)  # of graphs around it too
    body.initializer.extend(weight for weight in weights if weight is not None)
    opsets = [helper.make_opsetid(domain, version) for domain, version in graph.opsets.items()]
    return ModelProto(ir_version=IR_VERSION, graph=body, opset_import=opsets, producer_name="tunewright")
