"""Calls of ops of other domains than ONNX's main one, written in its ops, for bounds.

ONNX's evaluator does not know ONNX Runtime's own ops, and has other answers for classic models than ONNX Runtime, so
it is not asked. What float64 says of such a model is computed of the ops that ours puts in their place: a wrong one
shows as a difference of ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto

from tunewright.graph import contrib
from tunewright.graph.evaluation import fallback
from tunewright.graph.evaluation.onnx_form import dtype_name
from tunewright.graph.ir import Node, TensorType

from .case import Feeds, op_name
from .program import FlatProgram, constant_of, node_of

VERSIONS = {"": contrib.OPSET, contrib.CLASSIC: contrib.CLASSIC_OPSET}
"""Versions of the ops that stand in for others."""


def is_foreign(node: Node) -> bool:
    """Whether a node's op is one that ONNX's evaluator is not asked about."""
    return node.domain == contrib.CLASSIC or (node.domain, node.op) in contrib.OPS


def evaluate_node(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a node by name. Raises EvaluationError.

    A call of another op that can't be computed has none, nor has what depends on one.
    """
    if any(name and name not in values for name in node.inputs):
        return {}
    try:
        results = fallback.evaluate(node, [values[name] if name else None for name in node.inputs])
    except fallback.EvaluationError:
        if is_foreign(node):
            return {}
        raise
    return {name: result for name, result in zip(node.outputs, results, strict=True) if name}


def write_calls(flat: FlatProgram, feeds: Feeds) -> FlatProgram:
    """The program with main ops in the place of calls of others, where these can be written so.

    Shapes are those that the feeds lead to. Raises EvaluationError.
    """
    if not any(map(is_foreign, flat.nodes)):
        return flat
    writer = _Writer(flat, feeds)
    for node in flat.nodes:
        writer.add(node)
    return writer.program


class _Writer:
    """Runs a program node by node, so that it knows all types, and collects the nodes that it runs."""

    def __init__(self, flat: FlatProgram, feeds: Feeds) -> None:
        self.program = FlatProgram([], dict(flat.constants), list(flat.outputs))
        self._values = flat.initial_values(feeds)
        self._count = 0

    def add(self, node: Node) -> None:
        """Add a node, or what stands in for it."""
        if not (is_foreign(node) and self._write(node)):
            self._run(node)

    def _run(self, node: Node) -> None:
        self._values |= evaluate_node(node, self._values)
        self.program.nodes.append(node)

    def _write(self, node: Node) -> bool:
        """Whether a call can be written in other ops; then they are added."""
        is_known = (node.domain, node.op) in contrib.OPS.keys() | contrib.STANDARD.keys()
        if not is_known or any(name and name not in self._values for name in node.inputs):
            return False
        call = _CallWriter(self, node, f"call {self._count} ")
        self._count += 1
        try:
            results = call.results()
        except (contrib.Unsupported, fallback.EvaluationError):  # as ours, which leaves it as it is
            return False
        pairs = [(name, result) for name, result in zip(node.outputs, results, strict=False) if name]
        if not all(result for _, result in pairs):
            return False
        for name, result in pairs:
            self._run(Node("Identity", (result,), (name,), {}, "", contrib.OPSET))
        return True

    def put(self, node: Node, called_op: str) -> None:
        """Add a node that stands in for part of a call."""
        self.program.calls |= dict.fromkeys(node.outputs, called_op)
        self._run(node)

    def put_constant(self, name: str, value: Any) -> None:
        """Add a tensor of known value."""
        self.program.constants[name] = self._values[name] = value

    def value(self, name: str) -> Any:
        """The value of a tensor."""
        return self._values[name]


class _CallWriter:
    """Puts main ops in the place of one call. Names of its own tensors begin with a prefix."""

    def __init__(self, writer: _Writer, node: Node, prefix: str) -> None:
        self._writer, self._prefix = writer, prefix
        self._op = op_name(NodeProto(op_type=node.op, domain=node.domain))
        self._names = {"": "", **{f"i{k}": name for k, name in enumerate(node.inputs) if name}}
        inputs = list(node.inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        trimmed = replace(node, inputs=tuple(inputs))
        self._call = contrib.ContribCall(trimmed, self._add, self._put, self._kind, self._value)

    def results(self) -> Sequence[str]:
        """Adds the nodes; returns the names of the results, "" for what is not computed. Raises Unsupported."""
        return [self._names[name] for name in self._call.write()]

    def _rename(self, outputs: Sequence[str]) -> tuple[str, ...]:
        self._names |= {name: f"{self._prefix}{name}" for name in outputs if name}
        return tuple(self._names[name] for name in outputs)

    def _add(self, proto: NodeProto) -> None:
        attributes = {attribute.name: attribute for attribute in proto.attribute}
        inputs = [self._names[name] for name in proto.input]
        outputs = self._rename(proto.output)
        if proto.op_type == "Constant":
            self._writer.put_constant(outputs[0], constant_of(attributes))
        else:
            self._writer.put(node_of(proto, attributes, inputs, outputs, VERSIONS, {}), self._op)

    def _put(self, node: Node, kind: TensorType) -> None:
        inputs = tuple(self._names[name] for name in node.inputs)
        self._writer.put(replace(node, inputs=inputs, outputs=self._rename(node.outputs)), self._op)

    def _value(self, name: str) -> Any:
        return self._writer.value(self._names[name])

    def _kind(self, name: str) -> TensorType:
        value = self._value(name)
        return TensorType(dtype_name(value), np.shape(value))
