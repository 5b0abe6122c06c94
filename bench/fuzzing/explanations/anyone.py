"""What any answer may differ in: what ONNX leaves open, and what rounding and the order of sums decide."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tunewright.graph.ir import Array, Node
from tunewright.graph.rewrites.layout import ELEMENTWISE_OPS

from ..answers import EVALUATOR, OURS, RUNTIME
from ..bounds import FLUSH_FACTOR, Leeway
from ..exactness import CURVES, GATED, LINEAR, NORMS, TURNING, UNCALCULATED, UNSIGNED, is_moving
from ..sizes import largest, may_overflow
from ..values import NARROW, as_float64, has_nan, is_finite, is_float_array, limits
from .difference import Difference, ExplainedElements, ops_of

QUANTISING = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""Ops whose results for infinities and invalid scales ONNX does not define."""

ORDERS = frozenset({
    "ArgMax", "ArgMin", "Cast", "DynamicQuantizeLinear", "Hardmax", "MaxRoiPool", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear", "ReduceLogSumExp", "ReduceMax", "ReduceMin", "Sign", "TopK", "Unique",
})  # fmt: skip
"""Ops whose results for NaN ONNX does not define."""

FLUSHING = CURVES | {"Attention", "GRU", "LSTM", "LogSoftmax", "Pow", "RNN", "Softmax"}

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Det", "Gemm", "MatMul"})

WEIGHTED = frozenset({"Resize", "RoiAlign", "Upsample"})
"""Means of neighbours, some of which may have no weight."""

ADDING = frozenset({"AffineGrid", "DeformConv", "Det", "GridSample", "NegativeLogLikelihoodLoss"})
"""Other ops that are sums, of products mostly."""

POLES = frozenset({"Div", "Pow", "Reciprocal"})


def meets_nan(difference: Difference) -> bool:
    """An op reads NaN or infinities, for which ONNX does not define its result."""
    for node in difference.upstream():
        operands = difference.operands(node)
        is_order = not ORDERS.isdisjoint(ops_of(node)) or node.attrs.get("reduction") in ("max", "min")
        if is_order and any(map(has_nan, operands)):
            return True
        is_choosing = difference.program.called_op(node) in UNCALCULATED or node.op == "Trees"
        if difference.who == RUNTIME and not (is_choosing or is_moving(node)) and not all(map(is_finite, operands)):
            return True
        if node.op in GATED | TURNING | {"Attention"} and not all(map(is_finite, operands)):
            return True
        if node.op in QUANTISING and not (all(map(is_finite, operands)) and all(map(_has_size, operands[1:2]))):
            return True
    return False


def _has_size(scale: Any) -> bool:
    return not is_float_array(scale) or bool((np.abs(as_float64(scale)) > limits(scale.dtype.name)[1]).all())


def computes_in_float32(difference: Difference) -> bool:
    """ONNX Runtime computes attributes and some float64 results in float32; norms do by their `stash_type`."""
    array = difference.arrays[difference.who]
    if difference.who == RUNTIME and _has_beyond_float32(difference):
        return True
    says_so = any(node.attrs.get("stash_type") == 1 for node in difference.upstream())
    if difference.bound is None or array.dtype.name != "float64" or not (says_so or difference.who == RUNTIME):
        return False
    return bool(np.isclose(array, difference.bound.centre, rtol=1e-5, atol=1e-6, equal_nan=True).all())


def _has_beyond_float32(difference: Difference) -> bool:
    """Whether float64 operands of classic machine learning are infinite as float32, or next to nothing."""
    calls = [node for node in difference.upstream() if difference.program.called_op(node)]
    doubles = [a for node in calls for a in difference.operands(node) if is_float_array(a) and a.dtype == np.float64]
    sizes = [np.abs(a[np.isfinite(a) & (a != 0)]) for a in doubles]
    most, least, *_ = limits("float32")
    return any(bool(((size > most) | (size < least)).any()) for size in sizes)


def stays_wide(difference: Difference) -> ExplainedElements:
    """Narrow floats were not rounded from node to node, which may also keep them from overflow."""
    if difference.who == EVALUATOR or not difference.is_narrow():
        return False
    if difference.bound is None and any(map(_has_narrow_overflow, map(difference.operands, difference.upstream()))):
        return True
    if difference.who == RUNTIME:  # before step functions too
        return True
    return difference.allowed_elements(Leeway(wide=True))


def _has_narrow_overflow(operands: Sequence[Any]) -> bool:
    """Whether squares of narrow operands leave the range of their type."""
    narrow = [np.abs(as_float64(a)) for a in operands if isinstance(a, np.ndarray) and a.dtype.name in NARROW]
    return any(bool((a**2 * a.size > limits("float16")[0]).any()) for a in narrow)


def flushes(difference: Difference) -> ExplainedElements:
    """An exponential or a sigmoid with a tiny exact result gives less, or 0."""
    if not difference.has_op(FLUSHING):
        return False
    return np.logical_or(_is_next_to_nothing(difference), difference.allowed_elements(Leeway(flushed=True)))


def _is_next_to_nothing(difference: Difference) -> ExplainedElements:
    answer = difference.arrays[difference.who]
    if difference.bound is None or not is_float_array(answer):
        return False
    largest = FLUSH_FACTOR * limits(answer.dtype.name)[1]
    sizes = [np.abs(as_float64(array)) for array in (answer, difference.bound.centre)]
    return np.asarray(np.maximum(*sizes) < largest)


def divides_sums_by_zero(difference: Difference) -> ExplainedElements:
    """A sum that a precision rounds may be 0 where it is next to it, and divided by 0 no number, instead of infinite.

    Of elements whose value the rounding changes at all.
    """
    divisions = (node for node in difference.upstream() if node.op == "Div")
    if difference.bound is None or not any(map(_divides_by_zero, map(difference.operands, divisions))):
        return False
    return np.asarray(as_float64(difference.bound.tolerance) > 0)


def _divides_by_zero(operands: Sequence[Any]) -> bool:
    """Whether some number that is not 0 is divided by 0."""
    if len(operands) != 2 or not all(map(is_float_array, operands)):
        return False
    above, below = np.broadcast_arrays(*map(as_float64, operands))
    return bool(((below == 0) & (above != 0) & np.isfinite(above)).any())


def cuts_after_each_axis(difference: Difference) -> bool:
    """Cubic antialiasing of whole numbers leaves their range along one axis, and ONNX Runtime, which runs that for ours
    as well, cuts it there before the next.
    """
    resized = [node for node in difference.upstream() if node.op == "Resize" and node.attrs.get("antialias")]
    cubic = [node for node in resized if node.attrs.get("mode") == "cubic"]
    is_whole = any(not is_float_array(difference.operands(node)[0]) for node in cubic)
    return difference.who in (OURS, RUNTIME) and is_whole


def pools_nothing(difference: Difference) -> bool:
    """A window that lies in the padding alone has no largest element, and no place of one."""
    return any(
        bool(np.isneginf(as_float64(values)).any())
        for node in difference.upstream()
        if node.op == "MaxPool" and len(node.outputs) > 1
        for values in difference.results(node)[:1]
        if is_float_array(values)
    )


def has_zeros_of_either_sign(difference: Difference) -> ExplainedElements:
    """A quotient by 0 or -0 is infinite with its sign, and some ops may give either zero."""
    if not (difference.has_op(UNSIGNED) and difference.has_op(POLES)):
        return False
    return difference.allowed_elements(Leeway(unsigned=True))


def multiplies_zeros(difference: Difference) -> bool:
    """Padding zeros and weights of zero times infinities or NaN give NaN, where others leave these products out."""
    counts = dict.fromkeys(PRODUCTS, 2) | dict.fromkeys(WEIGHTED, 1)
    reads = [difference.operands(n)[: counts[n.op]] for n in difference.upstream() if n.op in counts]
    if difference.bound is None or all(is_finite(array) for read in reads for array in read):
        return False
    if not is_float_array(difference.arrays[difference.who]) or difference.has_op(ORDERS):
        return True  # a comparison of such products
    wrong = difference.wrong
    values = difference.arrays[difference.who][wrong].astype(np.float64)
    return bool((np.isnan(values) | np.isnan(difference.bound.centre[wrong])).all())


def adds_up_in_one_order(difference: Difference) -> bool:
    """A sum whose terms leave the range of the type is infinite, or no number, in one order and not in another."""
    nodes = [node for node in difference.upstream() if node.op in LINEAR | WEIGHTED | ADDING]
    if any(may_overflow([a for a in difference.operands(node) if is_float_array(a)]) for node in nodes):
        return True
    folds = [difference.operands(node)[:1] for node in difference.upstream() if node.op == "ReduceProd"]
    return any(_product_overflows(array) for operands in folds for array in operands if is_float_array(array))


def _product_overflows(array: Array) -> bool:
    with np.errstate(all="ignore"):
        powers = np.log2(np.abs(as_float64(array)))
    powers = powers[np.isfinite(powers)]
    most = np.log2(limits("float64" if array.dtype.name == "float64" else "float32")[0])
    return bool(powers[powers > 0].sum() > most or -powers[powers < 0].sum() > most - 2)


def cancels_in_a_logarithm(difference: Difference) -> bool:
    """A sum that is 0 or negative by rounding has no logarithm."""
    sums = [difference.operands(node)[:1] for node in difference.upstream() if node.op == "ReduceLogSum"]
    return any(
        bool((array < 0).any() and (array > 0).any())
        for operands in sums
        for array in operands
        if is_float_array(array)
    )


def agrees_in_single(difference: Difference) -> ExplainedElements:
    """Gates and norms that cancel: two answers by the same formulas in the same type agree."""
    answer = difference.arrays[difference.who]
    theirs = difference.arrays.get(OURS if difference.who == EVALUATOR else EVALUATOR)
    if theirs is None or not difference.has_op(GATED | NORMS):
        return False
    states = [result for node in difference.upstream() if node.op in GATED for result in difference.results(node)]
    state = max(1.0, largest(states))  # a gate mixes its new state with the old one
    near = 1e-7 * np.maximum(state, _steepness(difference))
    near = np.broadcast_to(near, answer.shape)
    return np.asarray(np.isclose(answer, theirs, rtol=1e-5, atol=near, equal_nan=True))


def _steepness(difference: Difference) -> Array:
    """The factor by which norms enlarge a rounding error of the mean: for each element of the output that of its own
    means, or the largest for all where elements have moved since.
    """
    steepest = np.zeros(())
    for node in difference.upstream():
        if node.op in NORMS:
            factors = _factors(node, difference.operands(node)[:1])
            is_in_place = factors.shape == difference.right.shape and _keeps_places(difference, node)
            steepest = np.maximum(steepest, factors if is_in_place else factors.max(initial=0.0))
    return steepest


def _factors(node: Node, operands: Sequence[Any]) -> Array:
    """For each element of a norm's operand, size over deviation of those that its mean is taken of."""
    if not operands or not is_float_array(operands[0]) or not np.size(operands[0]):
        return np.zeros(())
    x = as_float64(operands[0])
    groups, places = (_normalised_groups(node, a) for a in (x, np.arange(x.size).reshape(x.shape)))
    with np.errstate(invalid="ignore"):
        sizes, deviations = np.abs(groups).max(axis=1), groups.std(axis=1)
    is_steep = np.isfinite(sizes) & (deviations > 0)
    factors = np.zeros(x.size)
    factors[places] = np.divide(4 * sizes, deviations, out=np.zeros_like(sizes), where=is_steep)[:, np.newaxis]
    return factors.reshape(x.shape)


def _keeps_places(difference: Difference, node: Node) -> bool:
    """Whether all that is made of a node's results has its elements at the same places."""
    made = set(filter(None, node.outputs))
    for later in difference.upstream():
        if not made.isdisjoint(later.inputs):
            if later.op not in ELEMENTWISE_OPS:
                return False
            made.update(filter(None, later.outputs))
    return True


def _normalised_groups(node: Node, x: Array) -> Array:
    """The elements of each mean of a norm, as rows."""
    match node.op:
        case "LayerNormalization":
            return x.reshape(-1, prod(x.shape[node.attrs.get("axis", -1) :]))
        case "MeanVarianceNormalization":
            axes = tuple(axis % x.ndim for axis in node.attrs.get("axes", (0, 2, 3)))
            rest = tuple(axis for axis in range(x.ndim) if axis not in axes)
            return x.transpose(*rest, *axes).reshape(-1, prod(x.shape[axis] for axis in axes))
        case "GroupNormalization":
            return x.reshape(x.shape[0] * node.attrs["num_groups"], -1)
        case "InstanceNormalization":
            return x.reshape(x.shape[0] * x.shape[1], -1)
    return x.reshape(1, -1)
