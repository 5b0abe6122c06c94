"""Numbers that follow from the sizes of a graph's inputs, written as such."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

SOURCES = ("placeholder", "get_attr")
"""Nodes that compute nothing."""

FREE = "tunewright_free"

OPERATIONS = {
    sympy.Add: operator.add, sympy.Mul: operator.mul,
    FloorDiv: operator.floordiv, Mod: operator.mod, PythonMod: operator.mod,
}  # fmt: skip
"""What is written, by what PyTorch tracks."""


def is_number(node: Any) -> bool:
    """Whether it is a number that PyTorch tracks, such as a size, and no tensor."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float)


def is_free(node: Any) -> bool:
    """Whether a node is an input or a constant, or a number that follows from such numbers."""
    known = node.meta.get(FREE)
    if known is None:  # kept, as numbers read numbers that read numbers
        known = node.op in SOURCES or (is_number(node) and all(map(is_free, node.all_input_nodes)))
        node.meta[FREE] = known
    return bool(known)


def settle(graph: Any) -> None:
    """Have sizes of results come from the inputs' sizes where they can: then nothing waits for these results."""
    symbols = {
        node.meta["val"].node.expr: node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt)
    }
    for node in list(graph.nodes):
        if isinstance(node.meta.get("val"), torch.SymInt) and not is_free(node):
            with graph.inserting_before(node):
                number = _Writing(graph, symbols).number(node.meta["val"].node.expr)
            if number is not None:
                node.replace_all_uses_with(number)
                graph.erase_node(node)


class _Writing:
    """Writes an expression of symbols as nodes."""

    def __init__(self, graph: Any, symbols: dict[Any, Any]) -> None:
        self._graph, self._symbols = graph, symbols

    def number(self, expression: Any) -> Any:
        """The node of an expression; None where it has what is not known here."""
        if expression in self._symbols:
            return self._symbols[expression]
        if expression.is_Integer:
            return int(expression)
        operands = [self.number(part) for part in expression.args]
        if not operands or None in operands:
            return None
        operation = next((one for kind, one in OPERATIONS.items() if isinstance(expression, kind)), None)
        if operation is None:
            return None
        return reduce(lambda left, right: self._call(operation, left, right), operands)

    def _call(self, operation: Any, left: Any, right: Any) -> Any:
        node = self._graph.call_function(operation, (left, right))
        node.meta["val"] = operation(*(getattr(one, "meta", {"val": one})["val"] for one in (left, right)))
        return node
