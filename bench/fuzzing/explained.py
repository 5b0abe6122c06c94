"""Differences that are none of our faults, each a predicate with a name. The table in `docs/bench.md` says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunewright.graph.fallback import EvaluationError
from tunewright.graph.ir import Array, Node

from .answers import EVALUATOR, OURS, RUNTIME, Answers
from .bounds import Bound, Leeway, bounds
from .case import Case
from .values import FLOATS, NARROW

ORDERING = frozenset({
    "ArgMax", "ArgMin", "Clip", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Hardmax", "Max", "MaxPool", "Min",
    "ReduceMax", "ReduceMin", "Relu", "TopK", "Unique",
})  # fmt: skip
"""Ops that ask which of two numbers is the larger, of which ONNX does not say what they make of a NaN."""

BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One answer that is not what it should be, in one output, for one of the feeds."""

    case: Case
    found: Answers
    number: int  # of the feeds
    position: int  # of the output
    who: str
    arrays: Mapping[str, Any]  # all answers, by who gave them
    right: Array  # which elements are right
    bound: Bound | None

    def upstream(self) -> list[Node]:
        """The nodes that the output is made by."""
        flat = self.found.program
        return flat.made_by(flat.outputs[self.position])


def orders_nan(difference: Difference) -> bool:
    """A maximum, a minimum or what is made of them reads a NaN: machines drop or keep it (`tunewright.graph.ops`)."""
    if difference.number >= len(difference.found.seen):
        return False
    seen = difference.found.seen[difference.number]
    read = {name for node in difference.upstream() if node.op in ORDERING for name in node.inputs}
    return any(_has_nan(seen.get(name)) for name in read)


def _has_nan(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray) and value.dtype.name in FLOATS and bool(np.isnan(value.astype(np.float64)).any())
    )


def stays_wide(difference: Difference) -> bool:
    """Narrow floats were not rounded from node to node, which may also keep them from overflow."""
    return difference.who == OURS and _allowed(difference, Leeway(wide=True))


def regroups_products(difference: Difference) -> bool:
    """Products were taken together, or with a sum, and no step function reads what became of them."""
    return difference.who == OURS and _allowed(difference, Leeway(regrouped=True, wide=True))


def is_coarse(difference: Difference) -> bool:
    """ONNX Runtime's sigmoids and their kind are made by approximations whose error is absolute."""
    return difference.who == RUNTIME and _allowed(difference, Leeway(coarse=True))


def evaluates_narrowly(difference: Difference) -> bool:
    """The evaluator computes narrow floats in their own type, sums too."""
    seen = difference.found.seen[difference.number : difference.number + 1]
    kinds = {value.dtype.name for values in seen for value in values.values() if isinstance(value, np.ndarray)}
    return difference.who == EVALUATOR and bool(kinds.intersection(NARROW))


def _allowed(difference: Difference, leeway: Leeway) -> bool:
    try:
        found = bounds(difference.found.program, difference.case.feeds[difference.number], leeway)
    except EvaluationError:
        return False
    bound = found[difference.position]
    return bound is not None and bool(bound.allows(difference.arrays[difference.who]).all())


def saturates_bytes(difference: Difference) -> bool:
    """ONNX Runtime's products of unsigned and signed bytes, on processors without VNNI."""
    agree = np.array_equal(
        difference.arrays[OURS], difference.arrays.get(EVALUATOR, difference.arrays[OURS]), equal_nan=True
    )
    return difference.who == RUNTIME and agree and any(node.op in BYTES for node in difference.upstream())


EXPLANATIONS: Mapping[str, Callable[[Difference], bool]] = {
    "an order with NaN": orders_nan,
    "narrow floats stay wide": stays_wide,
    "products regrouped": regroups_products,
    "the evaluator computes narrow floats narrowly": evaluates_narrowly,
    "ONNX Runtime's curves are coarse": is_coarse,
    "ONNX Runtime saturates bytes": saturates_bytes,
}
"""By the name that the table in the docs has for it; the first that holds is the reason."""
