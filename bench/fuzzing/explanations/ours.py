"""What ours differs in: rewrites, and kernels, by the table of `docs/numerics.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunewright.graph.ir import Node

from .. import float_products
from ..answers import OURS, RUNTIME
from ..bounds import Leeway
from ..sizes import largest
from ..values import as_float64, is_float_array, limits
from .difference import Difference, ExplainedElements

RECOGNISED = frozenset(float_products.PRODUCTS) | {
    "BatchNormalization", "Clip", "Conv", "ConvTranspose", "Einsum", "Erf", "GRU", "Gemm", "HardSigmoid", "LSTM",
    "LayerNormalization", "MatMul", "MatMulInteger", "Max", "RMSNormalization", "RNN", "ReduceMean", "ReduceSum",
    "Softmax", "Tanh",
}  # fmt: skip
"""Each pattern that a rewrite replaces has one of these ops (`docs/numerics.md`)."""

SCALED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Sums that take a scale behind them into their weights."""

ANGULAR = frozenset({"Cos", "Sin", "Tan"})

FAR = 5e8
"""The largest angle whose sine has the error that `docs/numerics.md` says."""


def turns_far(difference: Difference) -> bool:
    """Sines of angles of which float64 has no place left, or few, behind the point (`docs/numerics.md`)."""
    nodes = [node for node in difference.upstream() if node.op in ANGULAR]
    angles = [as_float64(a) for node in nodes for a in difference.operands(node) if is_float_array(a)]
    return difference.who == OURS and any(bool((np.abs(a) > FAR).any()) for a in angles)


def shrinks_beyond_its_type(difference: Difference) -> bool:
    """`Shrink` of whole numbers, which is done in floats, to what their type does not have (`docs/numerics.md`)."""
    return difference.who == OURS and any(
        _shrinks_beyond(node, x)
        for node in difference.upstream()
        if node.op == "Shrink"
        for x in difference.operands(node)
        if not is_float_array(x)
    )


def _shrinks_beyond(node: Node, x: Any) -> bool:
    bias, limits = abs(float(node.attrs.get("bias", 0.0))), np.iinfo(x.dtype)
    wide = as_float64(x)
    return bool(((wide + bias > limits.max) | (wide - bias < limits.min)).any())


def is_recognised(difference: Difference) -> ExplainedElements:
    """A rewrite of the table in `docs/numerics.md` took products together, and no step function reads the result."""
    if difference.who != OURS or not difference.has_op(RECOGNISED):
        return False
    return difference.allowed_elements(Leeway(regrouped=True, wide=difference.is_narrow(), flushed=True))


def stays_finite(difference: Difference) -> bool:
    """A rewrite gives a number where the replaced ops overflow, or overflows elsewhere."""
    if difference.who == RUNTIME or difference.bound is None:
        return False
    is_lost = not np.isfinite(difference.bound.centre[difference.wrong]).any()
    overflows = any(
        node.op in RECOGNISED | {"Exp", "Pow", "Mul"}
        and any(_overflows(result, difference.operands(node)) for result in difference.results(node))
        for node in difference.upstream()
    )
    return bool(is_lost and overflows)


def scales_before_it_adds(difference: Difference) -> ExplainedElements:
    """A scale behind a sum is in its weights: terms overflow where the sum behind them, scaled, is a number yet."""
    answer = difference.arrays[difference.who]
    if difference.who != OURS or not is_float_array(answer) or not any(map(_overflows_scaled, _sums(difference))):
        return False
    return np.asarray(~np.isfinite(as_float64(answer)))


def _sums(difference: Difference) -> list[tuple[list[Any], list[Any]]]:
    """The operands of each sum of products, and of all that is multiplied behind it."""
    nodes = difference.upstream()
    factors = [a for node in nodes if node.op == "Mul" for a in difference.operands(node)]
    return [(difference.operands(node)[:2], factors) for node in nodes if node.op in SCALED]


def _overflows_scaled(sizes: tuple[list[Any], list[Any]]) -> bool:
    """Whether sums of products times the largest factor may leave the range of float32."""
    operands, factors = sizes
    with np.errstate(over="ignore"):
        terms = float(np.prod([largest([array]) for array in operands])) * np.size(operands[-1])
        return bool(terms * largest(factors) > limits("float32")[0])


def _overflows(result: Any, operands: Sequence[Any]) -> bool:
    """Whether a result is not finite though its operands are."""
    if not is_float_array(result):
        return False
    try:
        finite = [np.broadcast_to(np.isfinite(as_float64(a)), result.shape) for a in operands if is_float_array(a)]
    except ValueError:  # no elementwise op
        return _count_non_finite(result) > sum(map(_count_non_finite, operands))
    return bool((~np.isfinite(as_float64(result)) & np.logical_and.reduce(finite)).any())


def _count_non_finite(value: Any) -> int:
    """How many elements are not finite."""
    return int(np.count_nonzero(~np.isfinite(as_float64(value)))) if is_float_array(value) else 0
