"""How a rewrite changes a graph: one pass over the nodes, each kept or replaced."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tunewright.graph.decisive import decisive
from tunewright.graph.draft import Draft
from tunewright.graph.inference import TypeFault
from tunewright.graph.ir import Graph, Node, Value

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
        """From here on `new` is read where `old` was."""
        self._aliases[old] = new
        self._reads[new] += self._reads[old] - 1

    def resolved(self, name: str) -> str:
        """What stands for a tensor of the graph before."""
        return self._aliases.get(name, name)

    def renamed(self, node: Node) -> Node:
        """The node with inputs resolved."""
        inputs = tuple(map(self.resolved, node.inputs))
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def single(self, name: str) -> bool:
        """Whether one node alone reads the tensor: then what made it goes when that node is replaced."""
        return self._reads[name] == 1

    def made_by(self, name: str, *ops: str) -> Node | None:
        """The node that makes the tensor if it is one of these ops of the standard set, with a single output."""
        node = self.producers.get(name)
        return node if node and node.op in ops and not node.domain and len(node.outputs) == 1 else None

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
            self._decisive = decisive(self._before)
        return name not in self._decisive

    def rank(self, name: str) -> int:
        """The number of dimensions; -1 if it is not known."""
        shape = self.shape(name)
        return -1 if shape is None else len(shape)


Rule = Callable[[Edit, Node], bool]
"""Sees a node: either does nothing and answers False, or adds a replacement for its outputs and answers True."""


log = logging.getLogger("tunewright.rewrites")


def apply(graph: Graph, rule: Rule) -> Graph:
    """The graph with every node seen by the rule; the same object if the rule did nothing.

    ONNX's shape inference lets some nodes pass whose operands don't fit. What a rule makes of such a node doesn't fit
    either: the node stays, and says what is wrong when it runs.
    """
    edit = Edit(graph)
    changed = False
    for node in graph.nodes:
        node = edit.renamed(node)
        try:
            done = rule(edit, node)
        except TypeFault as fault:
            log.warning("%s stays as it is: %s", node, fault)
            done = False
        if done:
            changed = True
        else:
            edit.add(node)
    if not changed:
        return graph
    outputs = [Value(value.label, edit.resolved(value.tensor)) for value in graph.outputs]
    return edit.finish(graph.inputs, outputs)
