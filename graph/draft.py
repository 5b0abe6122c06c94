"""Draft: a graph under construction, to which import and every rewrite add nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from onnx.defs import has, onnx_opset_version

from .evaluation.fallback import FoldingBudget
from .evaluation.onnx_form import NORMAL_VERSION, TypeFault, cast_version, dtype_name, element_type, infer
from .ir import Array, Graph, GraphPort, Node, TensorType

LATER_OPS = frozenset({"DequantizeLinear"})
"""Ops that fold late, but for single numbers: rewrites look for them, and their bytes are less to read than floats."""

MOST_NAMES = 16
"""Names of the model's nodes that a node has: those of all that a rewrite made it of, but no more."""


class Draft:
    """Nodes added in an order that computes them. A node whose operands are all known folds at once, but for LATER_OPS.

    `types` and `constants` are as in `Graph`; `producers` maps a tensor to the node already added that makes it.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        self.types: dict[str, TensorType] = dict(graph.types) if graph else {}
        self.constants: dict[str, Array] = dict(graph.constants) if graph else {}
        self.producers: dict[str, Node] = {}
        self._nodes: list[Node] = []
        self._next = 1 + max((int(name[1:]) for name in self.types), default=-1)
        self._budget: FoldingBudget | None = None
        self._origin: tuple[str, ...] = ()  # names of the model's nodes that are being worked on

    def work_on(self, names: Sequence[str]) -> None:
        """Have what is added from now on bear the names of these nodes of the model."""
        self._origin = tuple(names)

    def new_tensor(self, kind: TensorType) -> str:
        """A new tensor."""
        name = f"v{self._next}"
        self._next += 1
        self.types[name] = kind
        return name

    def constant(self, array: Any) -> str:
        """A new tensor of known value."""
        array = np.asarray(array)
        name = self.new_tensor(TensorType(dtype_name(array), array.shape))
        self.constants[name] = array
        return name

    def scalar_like(self, name: str, value: float) -> str:
        """A new constant scalar of the dtype of `name`."""
        return self.constant(np.asarray(value, self.types[name].dtype))

    def array(self, name: str) -> Array | None:
        """The value of a tensor, if it is known."""
        return self.constants.get(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, if it is known."""
        return self.types[name].shape

    def emit(self, op: str, *inputs: str, to: str = "", **attrs: Any) -> str:
        """Add a node of one output in the normal form, of type as inferred; returns the output.

        `to` names the output if it exists already (what the node stands in for). Raises TypeFault if the operands
        don't fit, or the result is not of the type that `to` has.
        """
        version = NORMAL_VERSION if has(op, NORMAL_VERSION, "") or not has(op) else onnx_opset_version()
        if op == "Reshape" and 0 in attrs.get("shape", ()):
            attrs["allowzero"] = 1  # no 0 copies an extent
        node = Node(op, inputs, (to or "result",), attrs, version=version)
        (kind,) = infer(node, self.types, self.constants)
        if not to:
            to = self.new_tensor(kind)
        elif self.types[to] != kind:
            raise TypeFault(f"{node} makes {kind} where {self.types[to]} is needed")
        self.add(Node(op, inputs, (to,), attrs, version=version))
        return to

    def cast(self, name: str, dtype: str, to: str = "") -> str:
        """Add a node that makes a tensor another type; returns the output. `to` as in `emit`."""
        to = to or self.new_tensor(TensorType(dtype, self.shape(name)))
        version = cast_version(self.types[name].dtype, dtype)
        self.add(Node("Cast", (name,), (to,), {"to": element_type(dtype)}, version=version))
        return to

    def add(self, node: Node) -> None:
        """Add a node whose outputs have types. If all its operands are known, add its values as constants instead."""
        is_later = node.op in LATER_OPS and prod(self.types[node.outputs[0]].shape or (2,)) > 1
        if not is_later and self.fold(node):
            return
        names = (*dict.fromkeys((*self._origin, *node.names)),)[:MOST_NAMES]
        if names != node.names:
            node = replace(node, names=names)
        self._nodes.append(node)
        self.producers.update((name, node) for name in node.outputs if name)

    def fold(self, node: Node) -> bool:
        """Add the values of a node as constants. False if an operand is not known, or the node is left to run time."""
        if "" in node.outputs or any(name and name not in self.constants for name in node.inputs):
            return False
        if self._budget is None:
            self._budget = FoldingBudget(self.constants)
        arrays = [self.constants.get(name) for name in node.inputs]
        values = self._budget.fold(node, arrays, [self.types[name] for name in node.outputs])
        if values is None:
            return False
        for name, value in zip(node.outputs, values, strict=True):
            self.constants[name] = value
            self.types[name] = TensorType(self.types[name].dtype, value.shape)
        return True

    def finish(self, inputs: Sequence[GraphPort], outputs: Sequence[GraphPort]) -> Graph:
        """The graph, without what no output needs."""
        return prune(Graph(tuple(inputs), tuple(outputs), tuple(self._nodes), self.constants, self.types))


def prune(graph: Graph) -> Graph:
    """The graph without nodes, constants and optional results that no output needs.

    Before: `y = Relu(x); z = Neg(x); return y`. After: `y = Relu(x); return y`.
    """
    needed = {value.tensor for value in graph.outputs}
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        nodes.append(_trim_outputs(node, needed))
        needed.update(node.inputs)
    nodes.reverse()
    names = {value.tensor for value in (*graph.inputs, *graph.outputs)}
    names.update(*(node.inputs for node in nodes), *(node.outputs for node in nodes))
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    types = {name: kind for name, kind in graph.types.items() if name in names or name in constants}
    return Graph(graph.inputs, graph.outputs, tuple(nodes), constants, types)


_ANY_RESULT_OPTIONAL = frozenset({"GRU", "LSTM", "RNN", "Recurrence"})
_OPTIONAL_RESULTS = _ANY_RESULT_OPTIONAL | {"BatchNormalization", "Dropout", "LayerNormalization", "MaxPool"}


def _trim_outputs(node: Node, needed: set[str]) -> Node:
    if node.op not in _OPTIONAL_RESULTS or node.domain:
        return node
    outputs = [name if name in needed else "" for name in node.outputs]
    if node.op not in _ANY_RESULT_OPTIONAL:
        outputs[0] = node.outputs[0]  # the only one that is not optional
    while outputs and not outputs[-1]:
        outputs.pop()
    return replace(node, outputs=tuple(outputs))
