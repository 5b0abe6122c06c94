"""Edit: one pass of a rewrite over the nodes of a graph, each of which stays or is replaced."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps

import numpy as np

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Graph, GraphPort, Node

from ..evaluation.onnx_form import TypeFault
from ..rounding import decisive_tensors

MAX_COMPARED = 1 << 16
"""Largest constant that is looked at for being the same value everywhere."""


class Edit(Draft):
    """A graph being rewritten. What stands before the node in hand has been rewritten already."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._before = graph
        self._decisive: frozenset[str] | None = None
        self._aliases: dict[str, str] = {}
        self._reads = Counter(name for node in graph.nodes for name in node.inputs)
        self._reads.update(value.tensor for value in graph.outputs)

    def alias(self, old: str, new: str) -> None:
        """Have later nodes read `new` where they read `old`."""
        self._aliases[old] = new
        was_read = new in self._before.types  # by the node that made `old`
        self._reads[new] += self._reads[old] - was_read

    def replace(self, node: Node, result: Result) -> bool:
        """Put the result of a rule in the place of a node; False for none. Raises TypeFault where it doesn't fit."""
        if result is None:
            return False
        if isinstance(result, Node):
            self.add(replace(result, outputs=node.outputs))
            return True
        names = (result,) if isinstance(result, str) else result
        pairs = [(old, new) for old, new in zip(node.outputs, names, strict=False) if old]
        for old, new in pairs:
            if new not in self._before.types and self.types[old] != self.types[new]:
                raise TypeFault(f"{node} becomes {self.types[new]} where {self.types[old]} is needed")
        for old, new in pairs:
            self.alias(old, new)
        return True

    def resolve_ports(self, ports: Sequence[GraphPort]) -> list[GraphPort]:
        """Outputs of the graph before, by the tensors that replace theirs."""
        return [replace(port, tensor=self._aliases.get(port.tensor, port.tensor)) for port in ports]

    def resolve_inputs(self, node: Node) -> Node:
        """The node with inputs resolved."""
        inputs = tuple(self._aliases.get(name, name) for name in node.inputs)
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def has_one_reader(self, name: str) -> bool:
        """Whether the tensor is read once: then its producer is dropped when the reader is replaced."""
        return self._reads[name] == 1

    def producer(self, name: str, *ops: str) -> Node | None:
        """The node that makes the tensor if it is one of these ops of the standard set, with a single output."""
        node = self.producers.get(name)
        if node is None or node.op not in ops or node.domain or len(node.outputs) != 1:
            return None
        if self.has_one_reader(name):  # what replaces the reader does its work too
            self._origin = (*node.names, *self._origin)
        return node

    def scalar(self, name: str) -> float | None:
        """The value of a known float tensor all of whose elements are equal, and which broadcasts as a scalar does."""
        array = self.constants.get(name)
        if array is None or not 0 < array.size <= MAX_COMPARED or array.dtype.kind != "f":
            return None
        return float(array.flat[0]) if bool(np.all(array == array.flat[0])) else None

    def is_float(self, name: str) -> bool:
        """Whether the tensor holds floating-point numbers."""
        return self.types[name].dtype in ("float16", "float32", "float64")

    def may_round(self, name: str) -> bool:
        """Whether a tensor of the graph before may be rounded in another way: it is no double, and not decisive."""
        if self.types[name].dtype == "float64":
            return False
        if self._decisive is None:
            self._decisive = decisive_tensors(self._before)
        return name not in self._decisive

    def rank(self, name: str) -> int:
        """The number of dimensions; -1 if it is not known."""
        shape = self.shape(name)
        return -1 if shape is None else len(shape)


Result = str | tuple[str, ...] | Node | None
"""What a rule makes of a node: the tensor that stands for its output, or those for all outputs; a node that takes its
place, with its outputs; None where it stays."""

Rule = Callable[[Edit, Node], Result]
"""A rule for one node. It may add nodes that its result needs."""

Run = Callable[[Graph], Graph]
"""A rewrite: returns the graph itself where it changes nothing."""


log = logging.getLogger("tunewright.rewrites")


def each(*ops: str) -> Callable[[Rule], Run]:
    """The rewrite that applies a rule to every node of these ops of the standard set."""

    def decorate(rule: Rule) -> Run:
        @wraps(rule)
        def run(graph: Graph) -> Graph:
            return apply(graph, by_op(dict.fromkeys(ops, rule)))

        return run

    return decorate


def by_op(rules: Mapping[str, Rule]) -> Rule:
    """The rule that does what there is for the op of a node, in the standard set."""

    def rule(edit: Edit, node: Node) -> Result:
        return rules[node.op](edit, node) if node.op in rules and not node.domain else None

    return rule


def apply(graph: Graph, rule: Rule) -> Graph:
    """Apply a rule to every node; returns the same graph if the rule did nothing.

    ONNX's shape inference lets some nodes pass whose operands don't fit. What a rule makes of such a node doesn't fit
    either: the node stays, and says what is wrong when it runs.
    """
    edit = Edit(graph)
    changed = False
    for node in graph.nodes:
        node = edit.resolve_inputs(node)
        edit.work_on(node.names)
        try:
            is_replaced = edit.replace(node, rule(edit, node))
        except TypeFault as fault:
            log.warning("%s stays as it is: %s", node, fault)
            is_replaced = False
        edit.work_on(())
        changed |= is_replaced
        if not is_replaced:
            edit.add(node)
    return edit.finish(graph.inputs, edit.resolve_ports(graph.outputs)) if changed else graph
