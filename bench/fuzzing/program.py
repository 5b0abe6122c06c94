"""Program: a model as a flat list of nodes that the evaluator can run one by one, with nothing of it worked out.

It is made here from the ONNX form, and not by the importer, whose faults would else be in every answer but ONNX
Runtime's. Functions are put in the place of their calls; nothing is folded, so that rounding can be followed from the
first node on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, numpy_helper

from tunewright.graph.ir import Array, Node
from tunewright.graph.onnx_form import CAPTURES, plain

from .case import Feeds


@dataclass
class Program:
    """`constants` are initialisers and what Constant nodes hold; a feed goes before them."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def start(self, feeds: Feeds) -> dict[str, Any]:
        """What is known before the first node."""
        return {**self.constants, **feeds}

    def only(self, output: int) -> Program:
        """What one of the outputs takes."""
        wanted, nodes = {self.outputs[output]}, []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs)
                nodes.append(node)
        constants = {name: array for name, array in self.constants.items() if name in wanted or name in self.outputs}
        return Program(nodes[::-1], constants, [self.outputs[output]])


def program(model: ModelProto) -> Program:
    """The program of a model."""
    made = Program(outputs=[value.name for value in model.graph.output])
    made.constants.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in model.graph.initializer)
    made.constants.update((sparse.values.name, _dense(sparse)) for sparse in model.graph.sparse_initializer)
    functions = {(function.domain, function.name): function for function in model.functions}
    versions = {_standard(opset.domain): opset.version for opset in model.opset_import}
    _Flattening(made, functions).add(model.graph.node, versions, {}, {})
    return made


def _standard(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _dense(sparse: SparseTensorProto) -> Array:
    values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    if places.ndim == 1:
        array.reshape(-1)[places] = values
    else:
        array[tuple(places.T)] = values
    return array


class _Flattening:
    def __init__(self, made: Program, functions: Mapping[tuple[str, str], FunctionProto]) -> None:
        self._made, self._functions = made, functions
        self._calls = 0

    def add(
        self,
        nodes: Sequence[NodeProto],
        versions: Mapping[str, int],
        names: Mapping[str, str],
        given: Mapping[str, AttributeProto],
    ) -> dict[str, str]:
        """Nodes of a graph or a function: `names` are what its tensors are called here, `given` its attributes."""
        called = dict(names)
        prefix = f"call{self._calls}." if names or given else ""
        for proto in nodes:
            attributes = _given(proto, given)
            outputs = tuple(f"{prefix}{name}" if name else "" for name in proto.output)
            inputs = [called.get(name, name) for name in proto.input]
            called.update(zip(proto.output, outputs, strict=True))
            function = self._functions.get((proto.domain, proto.op_type))
            if function is not None:
                self._call(function, attributes, inputs, outputs)
            elif proto.op_type == "Constant":
                self._made.constants[outputs[0]] = _constant(attributes)
            else:
                self._made.nodes.append(_node(proto, attributes, inputs, outputs, versions, called))
        return called

    def _call(
        self,
        function: FunctionProto,
        attributes: Mapping[str, AttributeProto],
        inputs: list[str],
        outputs: Sequence[str],
    ) -> None:
        self._calls += 1
        given = {one.name: one for one in function.attribute_proto} | dict(attributes)
        versions = {opset.domain: opset.version for opset in function.opset_import}
        names = dict(zip(function.input, inputs + [""] * len(function.input), strict=False))
        called = self.add(function.node, versions, names, given)
        for name, output in zip(function.output, outputs, strict=False):
            if output:
                self._made.nodes.append(Node("Identity", (called[name],), (output,), {}, "", versions[""]))


def _given(proto: NodeProto, given: Mapping[str, AttributeProto]) -> dict[str, AttributeProto]:
    """The attributes of a node, those that are the function's own put in."""
    found = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                found[attribute.name] = given[attribute.ref_attr_name]
        else:
            found[attribute.name] = attribute
    return found


def _constant(attributes: Mapping[str, AttributeProto]) -> Array:
    [(name, attribute)] = attributes.items()
    value = plain(attribute)
    match name:
        case "value":
            return np.asarray(value)
        case "value_int" | "value_ints":
            return np.asarray(value, np.int64)
        case _:
            return np.asarray(value, np.float32)


def _node(
    proto: NodeProto,
    attributes: Mapping[str, AttributeProto],
    inputs: Sequence[str],
    outputs: tuple[str, ...],
    versions: Mapping[str, int],
    called: Mapping[str, str],
) -> Node:
    attrs = _defaults(proto, versions[proto.domain])
    attrs |= {name: plain(attribute) for name, attribute in attributes.items()}
    captured = sorted({name for a in proto.attribute if a.HasField("g") for name in _free(a.g)})
    if any(attribute.HasField("g") for attribute in proto.attribute):
        attrs[CAPTURES] = tuple(captured)
    operands = (*inputs, *(called.get(name, name) for name in captured))
    return Node(proto.op_type, operands, outputs, attrs, proto.domain, versions[proto.domain])


def _defaults(proto: NodeProto, version: int) -> dict[str, Any]:
    """The attributes that a node has where it doesn't say so."""
    schema: Any = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {name: plain(value) for name, value in defaults.items() if value.type != AttributeProto.UNDEFINED}


def _free(graph: GraphProto) -> Iterator[str]:
    """Names that a body reads and does not define."""
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        reads = [*node.input, *(name for a in node.attribute if a.HasField("g") for name in _free(a.g))]
        yield from (name for name in reads if name and name not in defined)
        defined.update(node.output)
    yield from (value.name for value in graph.output if value.name not in defined)
