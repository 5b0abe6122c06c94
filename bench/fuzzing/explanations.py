"""Explanations of differences that are no faults, each a predicate with a name: see the table in `docs/bench.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto

from tunewright.graph.evaluation.fallback import EvaluationError
from tunewright.graph.ir import Array, Node

from . import float_products
from .answers import EVALUATOR, OURS, RUNTIME, CaseAnswers
from .bounds import FLUSH_FACTOR, MANY_RUNS, RUNS, Bound, Leeway, largest, may_overflow, output_bound
from .case import FuzzCase, all_nodes, op_name
from .exactness import COARSE, CURVES, GATED, LINEAR, NORMS, STEPS, TURNING, UNCALCULATED, UNSIGNED, is_exact, is_moving
from .program import FlatProgram
from .values import FLOATS, INTEGERS, NARROW, as_float64, is_float_array, limits

BODIES = ("body", "then_branch", "else_branch")

QUANTISING = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""Ops whose results for infinities and invalid scales ONNX does not define."""

ORDERS = frozenset({
    "ArgMax", "ArgMin", "Cast", "DynamicQuantizeLinear", "Hardmax", "MaxRoiPool", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear", "ReduceMax", "ReduceMin", "Sign", "TopK", "Unique",
})  # fmt: skip
"""Ops whose results for NaN ONNX does not define."""

FLUSHING = CURVES | {"Attention", "GRU", "LSTM", "LogSoftmax", "Pow", "RNN", "Softmax"}

SUMS = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})

RECOGNISED = SUMS | float_products.PRODUCTS.keys() | {
    "BatchNormalization", "Clip", "Erf", "HardSigmoid", "LayerNormalization", "MatMulInteger", "Max",
    "RMSNormalization", "ReduceMean",
    "ReduceSum", "Softmax", "Tanh",
}  # fmt: skip
"""Each pattern that a rewrite replaces has one of these ops (`docs/numerics.md`)."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Det", "Gemm", "MatMul"})

WEIGHTED = frozenset({"Resize", "RoiAlign", "Upsample"})
"""Means of neighbours, some of which may have no weight."""

TREES = "ai.onnx.ml.TreeEnsemble"

ANGULAR = frozenset({"Cos", "Sin", "Tan"})

FAR = 5e8
"""The largest angle whose sine has the error that `docs/numerics.md` says."""

POLES = frozenset({"Div", "Pow", "Reciprocal"})

BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})


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

    def _feed_tensors(self) -> Sequence[Mapping[str, Any]]:
        return self.answers.tensors[self.number : self.number + 1]


def meets_nan(difference: Difference) -> bool:
    """An op reads NaN or infinities, for which ONNX does not define its result."""
    for node in difference.upstream():
        operands = difference.operands(node)
        is_order = not ORDERS.isdisjoint(_ops_of(node)) or node.attrs.get("reduction") in ("max", "min")
        if is_order and any(map(_has_nan, operands)):
            return True
        is_choosing = difference.program.called_op(node) in UNCALCULATED or node.op == "Trees"
        if difference.who == RUNTIME and not (is_choosing or is_moving(node)) and not all(map(_is_finite, operands)):
            return True
        if node.op in GATED | TURNING | {"Attention"} and not all(map(_is_finite, operands)):
            return True
        if node.op in QUANTISING and not (all(map(_is_finite, operands)) and all(map(_has_size, operands[1:2]))):
            return True
    return False


def _ops_of(node: Node) -> frozenset[str]:
    """The op of a node, and those in its bodies."""
    graphs = [GraphProto.FromString(body) for body in map(node.attrs.get, BODIES) if isinstance(body, bytes)]
    return frozenset({node.op, *(inner.op_type for graph in graphs for inner in all_nodes(graph.node))})


def _has_size(scale: Any) -> bool:
    return not is_float_array(scale) or bool((np.abs(as_float64(scale)) > limits(scale.dtype.name)[1]).all())


def turns_far(difference: Difference) -> bool:
    """Sines of angles of which float64 has no place left, or few, behind the point (`docs/numerics.md`)."""
    nodes = [node for node in difference.upstream() if node.op in ANGULAR]
    angles = [as_float64(a) for node in nodes for a in difference.operands(node) if is_float_array(a)]
    return difference.who == OURS and any(bool((np.abs(a) > FAR).any()) for a in angles)


def overflows_integers(difference: Difference) -> bool:
    """Integers leave the range of their type; numpy and ours compute them modulo 2^n."""
    if difference.who != RUNTIME:
        return False
    values = [value for node in difference.upstream() for value in difference.operands(node)]
    whole = [a for a in values if isinstance(a, np.ndarray) and a.dtype.name in INTEGERS and a.size]
    return any(float(np.abs(as_float64(a)).max()) >= np.iinfo(a.dtype).max / (2 * a.size) for a in whole)


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
    """Whether float64 operands of classic machine learning are infinite as float32."""
    calls = [node for node in difference.upstream() if difference.program.called_op(node)]
    doubles = [a for node in calls for a in difference.operands(node) if is_float_array(a) and a.dtype == np.float64]
    return any(bool((np.abs(a[np.isfinite(a)]) > limits("float32")[0]).any()) for a in doubles)


def runs_rare_activations(difference: Difference) -> bool:
    """ONNX Runtime has other default parameters for some activations, and overflows in others."""
    nodes = [node for node in difference.upstream() if node.op in GATED]
    activations = {name for node in nodes for name in node.attrs.get("activations", ())}
    return difference.who == RUNTIME and not activations <= {"Sigmoid", "Tanh", "Relu"}


def divides_by_nothing(difference: Difference) -> bool:
    """ONNX Runtime's norms of constant rows divide 0 by 0."""
    wrong = np.logical_not(difference.right)
    if difference.who != RUNTIME or not np.isnan(difference.arrays[RUNTIME][wrong].astype(np.float64)).all():
        return False
    return _has(difference, NORMS | {"LpNormalization"})


def aligns_whole_corners(difference: Difference) -> bool:
    """ONNX Runtime aligns corners by the whole extent where a scale makes a fraction of it."""
    resized = [n for n in difference.upstream() if n.op == "Resize"]
    return difference.who == RUNTIME and any(
        node.attrs.get("coordinate_transformation_mode") == "align_corners" for node in resized
    )


def counts_from_the_last_key(difference: Difference) -> bool:
    """ONNX Runtime's causal attention lets the last query see the last key; ONNX's those up to its number."""
    attentions = [n for n in difference.upstream() if n.op == "Attention" and n.attrs.get("is_causal")]
    extents = [[np.shape(array)[-2] for array in difference.operands(node)[:2]] for node in attentions]
    return difference.who == RUNTIME and any(queries != keys for queries, keys in extents)


def leaves_out_empty(difference: Difference) -> bool:
    """ONNX Runtime gives the wrong shape for folds of empty tensors, and 0 for a mean of nothing."""
    arrays = [value for node in difference.upstream() for value in difference.operands(node)]
    return difference.who == RUNTIME and any(isinstance(array, np.ndarray) and not array.size for array in arrays)


def _count_non_finite(value: Any) -> int:
    """How many elements are not finite."""
    return int(np.count_nonzero(~np.isfinite(as_float64(value)))) if is_float_array(value) else 0


def _is_finite(value: Any) -> bool:
    return not is_float_array(value) or bool(np.isfinite(as_float64(value)).all())


def _has_nan(value: Any) -> bool:
    return is_float_array(value) and bool(np.isnan(as_float64(value)).any())


def stays_wide(difference: Difference) -> ExplainedElements:
    """Narrow floats were not rounded from node to node, which may also keep them from overflow."""
    if difference.who == EVALUATOR or not _is_narrow(difference):
        return False
    if difference.bound is None and any(map(_has_narrow_overflow, map(difference.operands, difference.upstream()))):
        return True
    if difference.who == RUNTIME:  # before step functions too
        return True
    return _allowed_elements(difference, Leeway(wide=True))


def is_recognised(difference: Difference) -> ExplainedElements:
    """A rewrite of the table in `docs/numerics.md` took products together, and no step function reads the result."""
    if difference.who != OURS or not _has(difference, RECOGNISED):
        return False
    return _allowed_elements(difference, Leeway(regrouped=True, wide=_is_narrow(difference), flushed=True))


def stays_finite(difference: Difference) -> bool:
    """A rewrite gives a number where the replaced ops overflow, or overflows elsewhere."""
    if difference.who == RUNTIME or difference.bound is None:
        return False
    wrong = np.logical_not(difference.right)
    is_lost = not np.isfinite(difference.bound.centre[wrong]).any()
    overflows = any(
        node.op in RECOGNISED | {"Exp", "Pow", "Mul"}
        and any(_overflows(result, difference.operands(node)) for result in difference.results(node))
        for node in difference.upstream()
    )
    return bool(is_lost and overflows)


def _overflows(result: Any, operands: Sequence[Any]) -> bool:
    """Whether a result is not finite though its operands are."""
    if not is_float_array(result):
        return False
    try:
        finite = [np.broadcast_to(np.isfinite(as_float64(a)), result.shape) for a in operands if is_float_array(a)]
    except ValueError:  # no elementwise op
        return _count_non_finite(result) > sum(map(_count_non_finite, operands))
    return bool((~np.isfinite(as_float64(result)) & np.logical_and.reduce(finite)).any())


def flushes(difference: Difference) -> ExplainedElements:
    """An exponential or a sigmoid with a tiny exact result gives less, or 0."""
    if not _has(difference, FLUSHING):
        return False
    return np.logical_or(_is_next_to_nothing(difference), _allowed_elements(difference, Leeway(flushed=True)))


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
    if not (_has(difference, UNSIGNED) and _has(difference, POLES)):
        return False
    return _allowed_elements(difference, Leeway(unsigned=True))


def _is_next_to_nothing(difference: Difference) -> ExplainedElements:
    answer = difference.arrays[difference.who]
    if difference.bound is None or not is_float_array(answer):
        return False
    largest = FLUSH_FACTOR * limits(answer.dtype.name)[1]
    sizes = [np.abs(as_float64(array)) for array in (answer, difference.bound.centre)]
    return np.asarray(np.maximum(*sizes) < largest)


def multiplies_zeros(difference: Difference) -> bool:
    """Padding zeros and weights of zero times infinities or NaN give NaN, where others leave these products out."""
    counts = dict.fromkeys(PRODUCTS, 2) | dict.fromkeys(WEIGHTED, 1)
    reads = [difference.operands(n)[: counts[n.op]] for n in difference.upstream() if n.op in counts]
    if difference.bound is None or all(_is_finite(array) for read in reads for array in read):
        return False
    if not is_float_array(difference.arrays[difference.who]) or _has(difference, ORDERS):
        return True  # a comparison of such products
    wrong = np.logical_not(difference.right)
    values = difference.arrays[difference.who][wrong].astype(np.float64)
    return bool((np.isnan(values) | np.isnan(difference.bound.centre[wrong])).all())


def overflows(difference: Difference) -> bool:
    """ONNX Runtime's formula leaves the range of the type on the way to a result within it."""
    if difference.who != RUNTIME or difference.bound is None:
        return False
    wrong = np.logical_not(difference.right)
    values = difference.arrays[RUNTIME][wrong]
    is_lost = values.dtype.name not in FLOATS or not np.isfinite(as_float64(values)).any()
    operands = [difference.operands(node) for node in difference.upstream() if not is_exact(node)]
    return is_lost and any(may_overflow([a for a in arrays if is_float_array(a)]) for arrays in operands)


def runtime_stands_alone(difference: Difference) -> bool:
    """Ours and the evaluator are right, or agree; only ONNX Runtime differs."""
    if difference.who != RUNTIME or EVALUATOR not in difference.arrays:
        return False
    ours, theirs = difference.arrays[OURS], difference.arrays[EVALUATOR]
    if is_float_array(ours):
        are_alike = np.isclose(ours, theirs, rtol=1e-6, atol=FLUSH_FACTOR * limits(ours.dtype.name)[1])
    else:
        are_alike = ours == theirs
    explained = np.logical_or(difference.right, are_alike)
    if difference.bound is not None:
        explained |= np.logical_and(*map(difference.bound.allows, (ours, theirs)))
    return bool(explained.all())


def evaluator_stands_alone(difference: Difference) -> bool:
    """Ours is right, and the evaluator is slightly off, as numpy's functions and sums are; or on another step then."""
    if difference.who != EVALUATOR:
        return False
    are_two = RUNTIME in difference.arrays and np.array_equal(difference.arrays[OURS], difference.arrays[RUNTIME])
    if are_two and _has(difference, STEPS):
        return True
    if difference.bound is None:
        return False
    if not np.logical_or(difference.right, difference.bound.allows(difference.arrays[OURS])).all():
        return False
    near = 1e-2 if _has(difference, NORMS) else 1e-4  # its variance is a difference of means
    is_near = np.isclose(difference.arrays[EVALUATOR], difference.bound.centre, rtol=near, equal_nan=True)
    return bool(np.logical_or(difference.right, is_near).all())


def adds_up_in_one_order(difference: Difference) -> bool:
    """A sum whose terms leave the range of the type is infinite, or no number, in one order and not in another."""
    nodes = [
        node for node in difference.upstream() if node.op in LINEAR | WEIGHTED | {"DeformConv", "Det", "GridSample"}
    ]
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


def agrees_in_single(difference: Difference) -> bool:
    """Gates and norms that cancel: two answers by the same formulas in the same type agree."""
    answer = difference.arrays[difference.who]
    theirs = difference.arrays.get(OURS if difference.who == EVALUATOR else EVALUATOR)
    if theirs is None or not _has(difference, GATED | NORMS):
        return False
    wrong = np.logical_not(difference.right)
    states = [result for node in difference.upstream() if node.op in GATED for result in difference.results(node)]
    means = [_steepness(difference.operands(node)[:1]) for node in difference.upstream() if node.op in NORMS]
    near = 1e-7 * max(1.0, largest(states), *means)  # a gate mixes its new state with the old one
    return bool(np.isclose(answer[wrong], theirs[wrong], rtol=1e-5, atol=near, equal_nan=True).all())


def _steepness(operands: Sequence[Any]) -> float:
    """The factor by which a norm enlarges a rounding error of the mean: size over deviation of its operand."""
    if not operands or not is_float_array(operands[0]) or not _is_finite(operands[0]):
        return 0.0
    deviation = float(as_float64(operands[0]).std())
    return 4 * largest(operands) / deviation if deviation else 0.0


def is_coarse(difference: Difference) -> ExplainedElements:
    """ONNX Runtime's sigmoids and their kind are made by approximations whose error is absolute."""
    if difference.who != RUNTIME or not _has(difference, COARSE):
        return False
    return _allowed_elements(difference, Leeway(coarse=True))


def reads_coarse_curves(difference: Difference) -> bool:
    """ONNX Runtime derives the output from coarse curves, as in Unique."""
    return difference.who == RUNTIME and _has(difference, COARSE | CURVES)


def counts_wide(difference: Difference) -> bool:
    """ONNX Runtime did not round narrow floats before it counted, as in NonZero."""
    return difference.who == RUNTIME and _is_narrow(difference)


def evaluates_narrowly(difference: Difference) -> bool:
    """The evaluator computes narrow floats in their own type, sums too."""
    return difference.who == EVALUATOR and _is_narrow(difference)


def _has_narrow_overflow(operands: Sequence[Any]) -> bool:
    """Whether squares of narrow operands leave the range of their type."""
    narrow = [np.abs(as_float64(a)) for a in operands if isinstance(a, np.ndarray) and a.dtype.name in NARROW]
    return any(bool((a**2 * a.size > limits("float16")[0]).any()) for a in narrow)


def _allowed_elements(difference: Difference, leeway: Leeway) -> ExplainedElements:
    try:
        has_choice = leeway.unsigned or _has(
            difference, frozenset(float_products.PRODUCTS)
        )  # between two signs or two steps
        runs = MANY_RUNS if has_choice or leeway.coarse else RUNS
        bound = output_bound(difference.program, difference.case.feeds[difference.number], leeway, runs=runs)
    except EvaluationError:
        return False
    return False if bound is None else bound.allows(difference.arrays[difference.who])


def _has(difference: Difference, ops: frozenset[str]) -> bool:
    return not all(_ops_of(node).isdisjoint(ops) for node in difference.upstream())


def _is_narrow(difference: Difference) -> bool:
    arrays = [value for node in difference.upstream() for value in difference.operands(node)]
    return any(isinstance(array, np.ndarray) and array.dtype.name in NARROW for array in arrays)


def saturates_bytes(difference: Difference) -> bool:
    """ONNX Runtime's products of unsigned and signed bytes, on processors without VNNI.

    Not in calls of its own ops, for which values are drawn with which they can't.
    """
    if all(difference.program.called_op(node) for node in difference.upstream() if node.op in BYTES):
        return False
    agree = np.array_equal(
        difference.arrays[OURS], difference.arrays.get(EVALUATOR, difference.arrays[OURS]), equal_nan=True
    )
    return difference.who == RUNTIME and agree and _has(difference, BYTES)


def takes_softmax_for_logistic(difference: Difference) -> bool:
    """ONNX Runtime's numbers of SOFTMAX and LOGISTIC in TreeEnsemble are each the other's of ONNX."""
    if difference.who != RUNTIME or TREES not in map(difference.program.called_op, difference.upstream()):
        return False
    nodes = [node for node in difference.case.proto().graph.node if op_name(node) == TREES]
    return any(a.name == "post_transform" and a.i in (1, 2) for node in nodes for a in node.attribute)


VARYING_SHAPE = "rounding decides of the shape"
"""The explanation of shapes that a step function decides."""

SHAPE_EXPLANATIONS: Mapping[str, Callable[[Difference], bool]] = {
    "narrow floats stay wide": counts_wide,
    "ONNX Runtime's curves are coarse": reads_coarse_curves,
    "what is no number": meets_nan,
    "ONNX Runtime and empty tensors": leaves_out_empty,
}
"""Explanations of differing shapes, by name."""

EXPLANATIONS: Mapping[str, Callable[[Difference], ExplainedElements]] = {
    "what is no number": meets_nan,
    "narrow floats stay wide": stays_wide,
    "subnormal results of curves": flushes,
    "recognised and joined": is_recognised,
    "finite where pieces overflow": stays_finite,
    "zeros times what is not finite": multiplies_zeros,
    "the evaluator computes narrow floats narrowly": evaluates_narrowly,
    "sums in one order": adds_up_in_one_order,
    "logarithms of sums that cancel": cancels_in_a_logarithm,
    "gates and norms that cancel": agrees_in_single,
    "zeros of either sign": has_zeros_of_either_sign,
    "windows over nothing": pools_nothing,
    "angles without a place behind the point": turns_far,
    "whole numbers overflow": overflows_integers,
    "ONNX Runtime's curves are coarse": is_coarse,
    "ONNX Runtime's rarer activations": runs_rare_activations,
    "ONNX Runtime's norms of equal numbers": divides_by_nothing,
    "float64 in float32": computes_in_float32,
    "ONNX Runtime takes softmax for logistic": takes_softmax_for_logistic,
    "ONNX Runtime aligns whole corners": aligns_whole_corners,
    "ONNX Runtime counts from the last key": counts_from_the_last_key,
    "ONNX Runtime and empty tensors": leaves_out_empty,
    "ONNX Runtime overflows on the way": overflows,
    "ONNX Runtime saturates bytes": saturates_bytes,
    "ONNX Runtime stands alone": runtime_stands_alone,
    "the evaluator stands alone": evaluator_stands_alone,
}
"""Explanations by their names in the docs. Elements of one output may have different ones."""
