"""Differences that are none of our faults, each a predicate with a name. The table in `docs/bench.md` says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunewright.graph.fallback import EvaluationError
from tunewright.graph.ir import Array, Node

from .answers import EVALUATOR, OURS, RUNTIME, Answers
from .bounds import Bound, Leeway, bound, may_overflow
from .case import Case
from .exactness import COARSE, CURVES, is_exact
from .program import Program
from .values import FLOATS, NARROW

MAXIMA = frozenset(
    {"Clip", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu"}
)
"""Ops in which a NaN passes, by our word (`docs/numerics.md`); ONNX has none on it."""

ORDERS = frozenset({
    "ArgMax", "ArgMin", "Cast", "DynamicQuantizeLinear", "Hardmax", "QLinearConv", "QLinearMatMul", "QuantizeLinear",
    "Sign", "TopK", "Unique",
})  # fmt: skip
"""Ops of which ONNX does not say what they make of a NaN, or which number that is."""

FLUSHING = CURVES | {"GRU", "LSTM", "LogSoftmax", "RNN", "Softmax"}

SUMS = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})

RECOGNISED = SUMS | {
    "BatchNormalization", "Clip", "Erf", "HardSigmoid", "LayerNormalization", "Max", "RMSNormalization", "ReduceMean",
    "ReduceSum", "Softmax", "Tanh",
}  # fmt: skip
"""Of these there is one at least in all that a rewrite puts something else in the place of (`docs/numerics.md`)."""

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

    @property
    def program(self) -> Program:
        """What the output is made by."""
        return self.found.program.only(self.position)

    def upstream(self) -> list[Node]:
        """Its nodes."""
        return self.program.nodes

    def read(self, node: Node) -> list[Any]:
        """What a node read in the evaluator."""
        return [seen[name] for seen in self._seen() for name in node.inputs if name in seen]

    def made(self, node: Node) -> list[Any]:
        """What a node made there."""
        return [seen[name] for seen in self._seen() for name in node.outputs if name in seen]

    def _seen(self) -> Sequence[Mapping[str, Any]]:
        return self.found.seen[self.number : self.number + 1]


def orders_nan(difference: Difference) -> bool:
    """An op reads a NaN that ONNX does not say its result for: in ours a maximum of NaN is NaN."""
    ops = ORDERS if difference.who == OURS else ORDERS | MAXIMA
    return any(_has_nan(value) for node in difference.upstream() if node.op in ops for value in difference.read(node))


def _is_finite(value: Any) -> bool:
    return not _is_float(value) or bool(np.isfinite(value.astype(np.float64)).all())


def _has_nan(value: Any) -> bool:
    return _is_float(value) and bool(np.isnan(value.astype(np.float64)).any())


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in FLOATS


def stays_wide(difference: Difference) -> bool:
    """Narrow floats were not rounded from node to node, which may also keep them from overflow."""
    return difference.who == OURS and _is_narrow(difference) and _allowed(difference, Leeway(wide=True))


def is_recognised(difference: Difference) -> bool:
    """A rewrite of the table in `docs/numerics.md` took products together, and no step function reads the result."""
    if difference.who != OURS or not _has(difference, RECOGNISED):
        return False
    return _allowed(difference, Leeway(regrouped=True, wide=_is_narrow(difference), flushed=True))


def stays_finite(difference: Difference) -> bool:
    """Such a rewrite gives the number where its pieces overflow."""
    if difference.who != OURS or difference.bound is None:
        return False
    wrong = np.logical_not(difference.right)
    ours = difference.arrays[OURS]
    is_finite = (
        np.isfinite(ours[wrong].astype(np.float64)).all() and not np.isfinite(difference.bound.centre[wrong]).any()
    )
    overflows = any(
        node.op in RECOGNISED | {"Exp", "Pow", "Mul"}
        and all(_is_finite(value) for value in difference.read(node))
        and not all(_is_finite(value) for value in difference.made(node))
        for node in difference.upstream()
    )
    return bool(is_finite and overflows)


def flushes(difference: Difference) -> bool:
    """An exponential or a sigmoid whose exact result is below the smallest normal number is 0."""
    return _has(difference, FLUSHING) and _allowed(difference, Leeway(flushed=True))


def pads_with_products(difference: Difference) -> bool:
    """Zeros around the operand are multiplied by weights that are not finite: what is left out elsewhere is NaN."""
    return any(
        node.op in SUMS and not all(map(_is_finite, difference.read(node)[1:2])) for node in difference.upstream()
    )


def overflows(difference: Difference) -> bool:
    """ONNX Runtime's formula leaves the range of the type on the way to a result within it."""
    if difference.who != RUNTIME or difference.bound is None:
        return False
    wrong = np.logical_not(difference.right)
    is_lost = not np.isfinite(difference.arrays[RUNTIME][wrong].astype(np.float64)).any()
    read = [difference.read(node) for node in difference.upstream() if not is_exact(node)]
    return is_lost and any(may_overflow([a for a in arrays if _is_float(a)]) for arrays in read)


def is_coarse(difference: Difference) -> bool:
    """ONNX Runtime's sigmoids and their kind are made by approximations whose error is absolute."""
    return difference.who == RUNTIME and _has(difference, COARSE) and _allowed(difference, Leeway(coarse=True))


def evaluates_narrowly(difference: Difference) -> bool:
    """The evaluator computes narrow floats in their own type, sums too."""
    return difference.who == EVALUATOR and _is_narrow(difference)


def _allowed(difference: Difference, leeway: Leeway) -> bool:
    try:
        found = bound(difference.program, difference.case.feeds[difference.number], leeway)
    except EvaluationError:
        return False
    return found is not None and bool(found.allows(difference.arrays[difference.who]).all())


def _has(difference: Difference, ops: frozenset[str]) -> bool:
    return any(node.op in ops for node in difference.upstream())


def _is_narrow(difference: Difference) -> bool:
    read = [value for node in difference.upstream() for value in difference.read(node)]
    return any(isinstance(array, np.ndarray) and array.dtype.name in NARROW for array in read)


def saturates_bytes(difference: Difference) -> bool:
    """ONNX Runtime's products of unsigned and signed bytes, on processors without VNNI."""
    agree = np.array_equal(
        difference.arrays[OURS], difference.arrays.get(EVALUATOR, difference.arrays[OURS]), equal_nan=True
    )
    return difference.who == RUNTIME and agree and _has(difference, BYTES)


VARYING = "rounding decides of the shape"
"""The reason of shapes that differ where a step function made them."""

EXPLANATIONS: Mapping[str, Callable[[Difference], bool]] = {
    "an order with NaN": orders_nan,
    "narrow floats stay wide": stays_wide,
    "subnormal results of curves": flushes,
    "recognised and joined": is_recognised,
    "finite where pieces overflow": stays_finite,
    "padding times what is not finite": pads_with_products,
    "the evaluator computes narrow floats narrowly": evaluates_narrowly,
    "ONNX Runtime's curves are coarse": is_coarse,
    "ONNX Runtime overflows on the way": overflows,
    "ONNX Runtime saturates bytes": saturates_bytes,
}
"""By the name that the table in the docs has for it; the first that holds is the reason."""
