"""Differences that are none of our faults, each a predicate with a name. The table in `docs/bench.md` says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunewright.graph.fallback import EvaluationError
from tunewright.graph.ir import Array, Node

from .answers import EVALUATOR, OURS, RUNTIME, Answers
from .bounds import Bound, bounds
from .case import Case
from .values import FLOATS

DROPPING = frozenset(
    {"Clip", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu"}
)
"""Ops that go by the machine's maximum and minimum, which may drop a NaN (`tunewright.graph.ops`)."""

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


def drops_nan(difference: Difference) -> bool:
    """A maximum, a minimum or what is made of them reads a NaN."""
    if difference.number >= len(difference.found.seen):
        return False
    seen = difference.found.seen[difference.number]
    read = {name for node in difference.upstream() if node.op in DROPPING for name in node.inputs}
    return any(_has_nan(seen.get(name)) for name in read)


def _has_nan(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray) and value.dtype.name in FLOATS and bool(np.isnan(value.astype(np.float64)).any())
    )


def regroups_products(difference: Difference) -> bool:
    """Products were taken together, or with a sum, and no step function reads what became of them."""
    if difference.who != OURS:
        return False
    try:
        bound = bounds(difference.found.program, difference.case.feeds[difference.number], regrouped=True)[
            difference.position
        ]
    except EvaluationError:
        return False
    return bound is not None and bool(bound.allows(difference.arrays[difference.who]).all())


def saturates_bytes(difference: Difference) -> bool:
    """ONNX Runtime's products of unsigned and signed bytes, on processors without VNNI."""
    agree = np.array_equal(
        difference.arrays[OURS], difference.arrays.get(EVALUATOR, difference.arrays[OURS]), equal_nan=True
    )
    return difference.who == RUNTIME and agree and any(node.op in BYTES for node in difference.upstream())


EXPLANATIONS: Mapping[str, Callable[[Difference], bool]] = {
    "a maximum drops NaN": drops_nan,
    "products regrouped": regroups_products,
    "ONNX Runtime saturates bytes": saturates_bytes,
}
"""By the name that the table in the docs has for it; the first that holds is the reason."""
