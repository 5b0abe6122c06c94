"""FlatProgram: a model as a flat list of nodes that the evaluator can run one by one.

It is made from the ONNX form, not by the importer, whose faults would else be in every answer but ONNX Runtime's.
Functions are inlined; nothing is folded, so that rounding can be followed from the first node on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, numpy_helper

from tunewright.graph import contrib
from tunewright.graph.evaluation.onnx_form import CAPTURES, attribute_value
from tunewright.graph.ir import Array, Node

from .case import Feeds


@dataclass
class FlatProgram:
    """Nodes in order. `constants` are initialisers and values of Constant nodes; feeds override them.

    `calls`: of tensors that stand in for a call of an op of another domain (`foreign.py`), that op.
    """

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)

    def initial_values(self, feeds: Feeds) -> dict[str, Any]:
        """The values of tensors before the first node."""
        return {**self.constants, **feeds}

    def for_output(self, output: int) -> FlatProgram:
        """The program of one of the outputs."""
        names, nodes = {self.outputs[output]}, []
        for node in reversed(self.nodes):
            if names.intersection(node.outputs):
                names.update(node.inputs)
                nodes.append(node)
        constants = {name: array for name, array in self.constants.items() if name in names or name in self.outputs}
        return FlatProgram(nodes[::-1], constants, [self.outputs[output]], self.calls)

    def has_calls(self) -> bool:
        """Whether it has ops of other domains, or what stands in for them."""
        return any(node.domain or self.called_op(node) for node in self.nodes)

    def called_op(self, node: Node) -> str:
        """The op of another domain that a node is part of; the empty string if it is of none."""
        return self.calls.get(next(filter(None, node.outputs)), "")


def flatten(model: ModelProto) -> FlatProgram:
    """The flat program of a model."""
    program = FlatProgram(outputs=[value.name for value in model.graph.output])
    program.constants.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in model.graph.initializer)
    program.constants.update((sparse.values.name, _dense(sparse)) for sparse in model.graph.sparse_initializer)
    functions = {(function.domain, function.name): function for function in model.functions}
    versions = {_standard(opset.domain): opset.version for opset in model.opset_import}
    _Flattener(program, functions).add(model.graph.node, versions, {}, {})
    return program


def flatten_body(body: GraphProto, version: int) -> FlatProgram | None:
    """The flat program of a body of an opset; None where it calls functions."""
    if any(_standard(node.domain) for node in body.node):
        return None
    program = FlatProgram(outputs=[value.name for value in body.output])
    program.constants.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in body.initializer)
    _Flattener(program, {}).add(body.node, {"": version}, {}, {})
    return program


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


class _Flattener:
    def __init__(self, program: FlatProgram, functions: Mapping[tuple[str, str], FunctionProto]) -> None:
        self._program, self._functions = program, functions
        self._calls = 0

    def add(
        self,
        nodes: Sequence[NodeProto],
        versions: Mapping[str, int],
        names: Mapping[str, str],
        arguments: Mapping[str, AttributeProto],
    ) -> dict[str, str]:
        """Add the nodes of a graph or function. `names`: the new names of its tensors, `arguments`: its attributes."""
        new_names = dict(names)
        prefix = f"call{self._calls}." if names or arguments else ""
        for proto in nodes:
            attributes = _bind_attributes(proto, arguments)
            outputs = tuple(f"{prefix}{name}" if name else "" for name in proto.output)
            inputs = [new_names.get(name, name) for name in proto.input]
            new_names.update(zip(proto.output, outputs, strict=True))
            function = self._functions.get((proto.domain, proto.op_type))
            if function is not None:
                self._call(function, attributes, inputs, outputs)
            elif proto.op_type == "Constant":
                self._program.constants[outputs[0]] = constant_of(attributes)
            else:
                self._program.nodes.append(node_of(proto, attributes, inputs, outputs, versions, new_names))
        return new_names

    def _call(
        self,
        function: FunctionProto,
        attributes: Mapping[str, AttributeProto],
        inputs: list[str],
        outputs: Sequence[str],
    ) -> None:
        self._calls += 1
        arguments = {attribute.name: attribute for attribute in function.attribute_proto} | dict(attributes)
        versions = {opset.domain: opset.version for opset in function.opset_import}
        names = dict(zip(function.input, inputs + [""] * len(function.input), strict=False))
        new_names = self.add(function.node, versions, names, arguments)
        for name, output in zip(function.output, outputs, strict=False):
            if output:
                self._program.nodes.append(Node("Identity", (new_names[name],), (output,), {}, "", versions[""]))


def _bind_attributes(proto: NodeProto, arguments: Mapping[str, AttributeProto]) -> dict[str, AttributeProto]:
    """The attributes of a node, with references to the function's attributes resolved."""
    attributes = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in arguments:
                attributes[attribute.name] = arguments[attribute.ref_attr_name]
        else:
            attributes[attribute.name] = attribute
    return attributes


def constant_of(attributes: Mapping[str, AttributeProto]) -> Array:
    """The value of a Constant node."""
    [(name, attribute)] = attributes.items()
    value = attribute_value(attribute)
    match name:
        case "value":
            return np.asarray(value)
        case "value_int" | "value_ints":
            return np.asarray(value, np.int64)
        case _:
            return np.asarray(value, np.float32)


def node_of(
    proto: NodeProto,
    attributes: Mapping[str, AttributeProto],
    inputs: Sequence[str],
    outputs: tuple[str, ...],
    versions: Mapping[str, int],
    new_names: Mapping[str, str],
) -> Node:
    """The node with its own names of tensors. `new_names` are those of tensors that bodies read."""
    attrs = _defaults(proto, versions[proto.domain])
    attrs |= {name: attribute_value(attribute) for name, attribute in attributes.items()}
    captured = sorted({name for a in proto.attribute if a.HasField("g") for name in _free_names(a.g)})
    if any(attribute.HasField("g") for attribute in proto.attribute):
        attrs[CAPTURES] = tuple(captured)
    operands = (*inputs, *(new_names.get(name, name) for name in captured))
    return Node(proto.op_type, operands, outputs, attrs, proto.domain, versions[proto.domain])


def _defaults(proto: NodeProto, version: int) -> dict[str, Any]:
    """The default values of a node's attributes."""
    contributed = contrib.OPS.get((proto.domain, proto.op_type))
    schema: Any = contributed.schema if contributed else onnx.defs.get_schema(proto.op_type, version, proto.domain)
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {name: attribute_value(value) for name, value in defaults.items() if value.type != AttributeProto.UNDEFINED}


def _free_names(graph: GraphProto) -> Iterator[str]:
    """Names that a body reads but does not define."""
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        reads = [*node.input, *(name for a in node.attribute if a.HasField("g") for name in _free_names(a.g))]
        yield from (name for name in reads if name and name not in defined)
        defined.update(node.output)
    yield from (value.name for value in graph.output if value.name not in defined)
