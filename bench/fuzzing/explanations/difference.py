"""Difference: a wrong output, and what explanations ask of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import GraphProto

from tunewright.graph.evaluation.fallback import EvaluationError
from tunewright.graph.ir import Array, Node

from .. import float_products
from ..answers import CaseAnswers, runtime_tensors
from ..bounds import MANY_RUNS, RUNS, Bound, Leeway, output_bound
from ..case import FuzzCase, all_nodes
from ..program import FlatProgram
from ..values import NARROW

BODIES = ("body", "then_branch", "else_branch")

ExplainedElements = bool | Array
"""Whether an explanation holds, or for which elements."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A wrong output of one answer, for one of the feeds."""

    case: FuzzCase
    answers: CaseAnswers
    number: int  # of the feeds
    position: int  # of the output
    who: str
    arrays: Mapping[str, Any]  # all answers, by runtime
    right: Array  # which elements are right
    bound: Bound | None

    @property
    def wrong(self) -> Array:
        """Which elements are wrong."""
        return np.logical_not(self.right)

    @property
    def program(self) -> FlatProgram:
        """The program of the output."""
        return self.answers.program.for_output(self.position)

    def upstream(self) -> list[Node]:
        """The nodes that the output depends on."""
        return self.program.nodes

    def operands(self, node: Node) -> list[Any]:
        """The operands of a node in the evaluator."""
        return [tensors[name] for tensors in self._feed_tensors() for name in node.inputs if name in tensors]

    def results(self, node: Node) -> list[Any]:
        """The results of a node in the evaluator."""
        return [tensors[name] for tensors in self._feed_tensors() for name in node.outputs if name in tensors]

    def has_op(self, ops: frozenset[str]) -> bool:
        """Whether the output depends on one of these ops."""
        return not all(ops_of(node).isdisjoint(ops) for node in self.upstream())

    def is_narrow(self) -> bool:
        """Whether the output depends on narrow floats."""
        arrays = [value for node in self.upstream() for value in self.operands(node)]
        return any(isinstance(array, np.ndarray) and array.dtype.name in NARROW for array in arrays)

    def allowed_elements(self, leeway: Leeway) -> ExplainedElements:
        """Which elements are right with a leeway."""
        has_choice = leeway.unsigned or self.has_op(frozenset(float_products.PRODUCTS))  # of two signs, or two steps
        runs = MANY_RUNS if has_choice or leeway.coarse else RUNS
        try:
            allowed = replace(leeway, precision=self.case.plan.precision)
            bound = output_bound(self.program, self.case.feeds[self.number], allowed, runs=runs)
        except EvaluationError:
            return False
        return False if bound is None else bound.allows(self.arrays[self.who])

    def _feed_tensors(self) -> Sequence[Mapping[str, Any]]:
        """The tensors of this feed, in ONNX Runtime where the evaluator was not asked."""
        own = self.answers.tensors[self.number : self.number + 1]
        return own or [runtime_tensors(self.case, self.number)]


def ops_of(node: Node) -> frozenset[str]:
    """The op of a node, and those in its bodies."""
    graphs = [GraphProto.FromString(body) for body in map(node.attrs.get, BODIES) if isinstance(body, bytes)]
    return frozenset({node.op, *(inner.op_type for graph in graphs for inner in all_nodes(graph.node))})
