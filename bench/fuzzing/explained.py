"""Differences that are none of our faults, each a predicate with a name. The table in `docs/bench.md` says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto

from tunewright.graph.fallback import EvaluationError
from tunewright.graph.ir import Array, Node

from . import dequantised
from .answers import EVALUATOR, OURS, RUNTIME, Answers
from .bounds import FLUSH_FACTOR, MANY_RUNS, RUNS, Bound, Leeway, bound, largest, may_overflow
from .case import Case, all_nodes
from .exactness import COARSE, CURVES, GATED, LINEAR, NORMS, UNSIGNED, is_exact, is_moving
from .program import Program
from .values import FLOATS, INTEGERS, NARROW, limits

BODIES = ("body", "then_branch", "else_branch")

QUANTISING = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""Ops of which ONNX does not say what they make of infinities and of scales that are none."""

ORDERS = frozenset({
    "ArgMax", "ArgMin", "Cast", "DynamicQuantizeLinear", "Hardmax", "QLinearConv", "QLinearMatMul", "QuantizeLinear",
    "Sign", "TopK", "Unique",
})  # fmt: skip
"""Ops of which ONNX does not say what they make of a NaN, or which number that is."""

FLUSHING = CURVES | {"Attention", "GRU", "LSTM", "LogSoftmax", "Pow", "RNN", "Softmax"}

SUMS = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})

RECOGNISED = SUMS | dequantised.PRODUCTS.keys() | {
    "BatchNormalization", "Clip", "Erf", "HardSigmoid", "LayerNormalization", "Max", "RMSNormalization", "ReduceMean",
    "ReduceSum", "Softmax", "Tanh",
}  # fmt: skip
"""Of these there is one at least in all that a rewrite puts something else in the place of (`docs/numerics.md`)."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

POLES = frozenset({"Div", "Pow", "Reciprocal"})

BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})


Explained = bool | Array
"""Whether a reason explains a difference, or which elements of it."""


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


def meets_nan(difference: Difference) -> bool:
    """An op reads what is no number, and ONNX does not say its result for that: in ours a maximum of NaN is NaN."""
    for node in difference.upstream():
        read = difference.read(node)
        if not ORDERS.isdisjoint(_ops_of(node)) and any(map(_has_nan, read)):
            return True
        if difference.who == RUNTIME and not is_moving(node) and not all(map(_is_finite, read)):
            return True
        if node.op in GATED | {"Attention"} and not all(map(_is_finite, read)):
            return True
        if node.op in QUANTISING and not (all(map(_is_finite, read)) and all(map(_has_size, read[1:2]))):
            return True
    return False


def _ops_of(node: Node) -> frozenset[str]:
    """The op of a node, and those in its bodies."""
    graphs = [GraphProto.FromString(body) for body in map(node.attrs.get, BODIES) if isinstance(body, bytes)]
    return frozenset({node.op, *(inner.op_type for graph in graphs for inner in all_nodes(graph.node))})


def _has_size(scale: Any) -> bool:
    return not _is_float(scale) or bool((np.abs(scale.astype(np.float64)) > limits(scale.dtype.name)[1]).all())


def overflows_integers(difference: Difference) -> bool:
    """Whole numbers leave the range of their type, which numpy, and ours, take as arithmetic modulo."""
    if difference.who != RUNTIME:
        return False
    read = [value for node in difference.upstream() for value in difference.read(node)]
    whole = [a for a in read if isinstance(a, np.ndarray) and a.dtype.name in INTEGERS and a.size]
    return any(float(np.abs(a.astype(np.float64)).max()) >= np.iinfo(a.dtype).max / (2 * a.size) for a in whole)


def computes_in_float32(difference: Difference) -> bool:
    """ONNX Runtime has attributes, and some results of float64, in float32; norms say so by their `stash_type`."""
    found = difference.arrays[difference.who]
    says_so = any(node.attrs.get("stash_type") == 1 for node in difference.upstream())
    if difference.bound is None or found.dtype.name != "float64" or not (says_so or difference.who == RUNTIME):
        return False
    return bool(np.isclose(found, difference.bound.centre, rtol=1e-5, atol=1e-6, equal_nan=True).all())


def runs_rare_activations(difference: Difference) -> bool:
    """ONNX Runtime has other defaults for the numbers of some activations, and overflows in others."""
    nodes = [node for node in difference.upstream() if node.op in GATED]
    named = {name for node in nodes for name in node.attrs.get("activations", ())}
    return difference.who == RUNTIME and not named <= {"Sigmoid", "Tanh", "Relu"}


def divides_by_nothing(difference: Difference) -> bool:
    """ONNX Runtime's norms of rows that are all the same are 0 by 0."""
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


def leaves_out_empty(difference: Difference) -> bool:
    """ONNX Runtime gives the wrong shape for folds of empty tensors, and 0 for a mean of nothing."""
    read = [value for node in difference.upstream() for value in difference.read(node)]
    return difference.who == RUNTIME and any(isinstance(array, np.ndarray) and not array.size for array in read)


def _wide(array: Array) -> Any:
    return array.astype(np.float64)


def _lost(value: Any) -> int:
    """How many elements are not finite."""
    return int(np.count_nonzero(~np.isfinite(value.astype(np.float64)))) if _is_float(value) else 0


def _is_finite(value: Any) -> bool:
    return not _is_float(value) or bool(np.isfinite(value.astype(np.float64)).all())


def _has_nan(value: Any) -> bool:
    return _is_float(value) and bool(np.isnan(value.astype(np.float64)).any())


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in FLOATS


def stays_wide(difference: Difference) -> Explained:
    """Narrow floats were not rounded from node to node, which may also keep them from overflow."""
    if difference.who == EVALUATOR or not _is_narrow(difference):
        return False
    if difference.bound is None and any(map(_has_narrow_overflow, map(difference.read, difference.upstream()))):
        return True
    return True if difference.who == RUNTIME else _allowed(difference, Leeway(wide=True))  # there, before steps too


def is_recognised(difference: Difference) -> Explained:
    """A rewrite of the table in `docs/numerics.md` took products together, and no step function reads the result."""
    if difference.who != OURS or not _has(difference, RECOGNISED):
        return False
    return _allowed(difference, Leeway(regrouped=True, wide=_is_narrow(difference), flushed=True))


def stays_finite(difference: Difference) -> bool:
    """Such a rewrite gives the number where its pieces overflow, or overflows elsewhere."""
    if difference.who == RUNTIME or difference.bound is None:
        return False
    wrong = np.logical_not(difference.right)
    is_lost = not np.isfinite(difference.bound.centre[wrong]).any()
    overflows = any(
        node.op in RECOGNISED | {"Exp", "Pow", "Mul"}
        and any(_overflows(made, difference.read(node)) for made in difference.made(node))
        for node in difference.upstream()
    )
    return bool(is_lost and overflows)


def _overflows(made: Any, read: Sequence[Any]) -> bool:
    """Whether a result is not finite though all that it is made of is."""
    if not _is_float(made):
        return False
    try:
        finite = [np.broadcast_to(np.isfinite(_wide(a)), made.shape) for a in read if _is_float(a)]
    except ValueError:  # no element by element
        return _lost(made) > sum(map(_lost, read))
    return bool((~np.isfinite(_wide(made)) & np.logical_and.reduce(finite)).any())


def flushes(difference: Difference) -> Explained:
    """An exponential or a sigmoid whose exact result is next to nothing is less, or 0, or off by as much."""
    if not _has(difference, FLUSHING):
        return False
    return np.logical_or(_is_next_to_nothing(difference), _allowed(difference, Leeway(flushed=True)))


def has_zeros_of_either_sign(difference: Difference) -> Explained:
    """A quotient by a 0 is infinite as that has a sign, and of 0 and -0 an op may give either."""
    if not (_has(difference, UNSIGNED) and _has(difference, POLES)):
        return False
    return _allowed(difference, Leeway(unsigned=True))


def _is_next_to_nothing(difference: Difference) -> Explained:
    found = difference.arrays[difference.who]
    if difference.bound is None or not _is_float(found):
        return False
    largest = FLUSH_FACTOR * limits(found.dtype.name)[1]
    sizes = [np.abs(array.astype(np.float64)) for array in (found, difference.bound.centre)]
    return np.asarray(np.maximum(*sizes) < largest)


def pads_with_products(difference: Difference) -> bool:
    """Zeros, around or within what slides too, times what is not finite: NaN where others leave that out."""
    reads = [difference.read(node)[:2] for node in difference.upstream() if node.op in PRODUCTS]
    if difference.bound is None or all(_is_finite(array) for read in reads for array in read):
        return False
    if not _is_float(difference.arrays[difference.who]) or _has(difference, ORDERS):
        return True  # a comparison of such
    wrong = np.logical_not(difference.right)
    found = difference.arrays[difference.who][wrong].astype(np.float64)
    return bool((np.isnan(found) | np.isnan(difference.bound.centre[wrong])).all())


def overflows(difference: Difference) -> bool:
    """ONNX Runtime's formula leaves the range of the type on the way to a result within it."""
    if difference.who != RUNTIME or difference.bound is None:
        return False
    wrong = np.logical_not(difference.right)
    found = difference.arrays[RUNTIME][wrong]
    is_lost = found.dtype.name not in FLOATS or not np.isfinite(found.astype(np.float64)).any()
    read = [difference.read(node) for node in difference.upstream() if not is_exact(node)]
    return is_lost and any(may_overflow([a for a in arrays if _is_float(a)]) for arrays in read)


def runtime_stands_alone(difference: Difference) -> bool:
    """Ours and the evaluator are right, or agree with each other, and ONNX Runtime is not."""
    if difference.who != RUNTIME or EVALUATOR not in difference.arrays:
        return False
    ours, theirs = difference.arrays[OURS], difference.arrays[EVALUATOR]
    if _is_float(ours):
        are_alike = np.isclose(ours, theirs, rtol=1e-6, atol=FLUSH_FACTOR * limits(ours.dtype.name)[1])
    else:
        are_alike = ours == theirs
    explained = np.logical_or(difference.right, are_alike)
    if difference.bound is not None:
        explained |= np.logical_and(*map(difference.bound.allows, (ours, theirs)))
    return bool(explained.all())


def evaluator_stands_alone(difference: Difference) -> bool:
    """Ours is right, and the evaluator is off by a little more: so are numpy's functions and sums."""
    if difference.who != EVALUATOR or difference.bound is None:
        return False
    if not np.logical_or(difference.right, difference.bound.allows(difference.arrays[OURS])).all():
        return False
    near = 1e-2 if _has(difference, NORMS) else 1e-4  # its variance is a difference of means
    is_near = np.isclose(difference.arrays[EVALUATOR], difference.bound.centre, rtol=near, equal_nan=True)
    return bool(np.logical_or(difference.right, is_near).all())


def adds_up_in_one_order(difference: Difference) -> bool:
    """A sum whose terms leave the range of the type is infinite, or no number, in one order and not in another."""
    nodes = [node for node in difference.upstream() if node.op in LINEAR | {"Resize"}]
    if any(may_overflow([a for a in difference.read(node) if _is_float(a)]) for node in nodes):
        return True
    folds = [difference.read(node)[:1] for node in difference.upstream() if node.op == "ReduceProd"]
    return any(_multiplied_overflows(array) for read in folds for array in read if _is_float(array))


def _multiplied_overflows(array: Array) -> bool:
    with np.errstate(all="ignore"):
        powers = np.log2(np.abs(array.astype(np.float64)))
    powers = powers[np.isfinite(powers)]
    most = np.log2(limits("float64" if array.dtype.name == "float64" else "float32")[0])
    return bool(powers[powers > 0].sum() > most or -powers[powers < 0].sum() > most - 2)


def cancels_in_a_logarithm(difference: Difference) -> bool:
    """A sum that rounding makes nothing, or less, has no logarithm."""
    sums = [difference.read(node)[:1] for node in difference.upstream() if node.op == "ReduceLogSum"]
    return any(bool((array < 0).any() and (array > 0).any()) for read in sums for array in read if _is_float(array))


def agrees_in_single(difference: Difference) -> bool:
    """Gates and norms that cancel: two who have the same formulas in the same type agree with each other."""
    found = difference.arrays[difference.who]
    theirs = difference.arrays.get(OURS if difference.who == EVALUATOR else EVALUATOR)
    if theirs is None or not _has(difference, GATED | NORMS):
        return False
    wrong = np.logical_not(difference.right)
    states = [made for node in difference.upstream() if node.op in GATED for made in difference.made(node)]
    means = [_steepness(difference.read(node)[:1]) for node in difference.upstream() if node.op in NORMS]
    near = 1e-7 * max(1.0, largest(states), *means)  # a gate mixes what it has with what it had
    return bool(np.isclose(found[wrong], theirs[wrong], rtol=1e-5, atol=near, equal_nan=True).all())


def _steepness(read: Sequence[Any]) -> float:
    """How many times larger a rounding of the mean is after a norm: by the size of what it reads over its deviation."""
    if not read or not _is_float(read[0]) or not _is_finite(read[0]):
        return 0.0
    deviation = float(_wide(read[0]).std())
    return 4 * largest(read) / deviation if deviation else 0.0


def is_coarse(difference: Difference) -> Explained:
    """ONNX Runtime's sigmoids and their kind are made by approximations whose error is absolute."""
    if difference.who != RUNTIME or not _has(difference, COARSE):
        return False
    return _allowed(difference, Leeway(coarse=True))


def reads_coarse_curves(difference: Difference) -> bool:
    """What ONNX Runtime finds among results of such, as Unique does."""
    return difference.who == RUNTIME and _has(difference, COARSE | CURVES)


def evaluates_narrowly(difference: Difference) -> bool:
    """The evaluator computes narrow floats in their own type, sums too."""
    return difference.who == EVALUATOR and _is_narrow(difference)


def _has_narrow_overflow(read: Sequence[Any]) -> bool:
    """Whether squares of what a node reads leave the range of its type."""
    narrow = [np.abs(a.astype(np.float64)) for a in read if isinstance(a, np.ndarray) and a.dtype.name in NARROW]
    return any(bool((a**2 * a.size > limits("float16")[0]).any()) for a in narrow)


def _allowed(difference: Difference, leeway: Leeway) -> Explained:
    try:
        has_choice = leeway.unsigned or _has(difference, frozenset(dequantised.PRODUCTS))  # of two signs, of two steps
        runs = MANY_RUNS if has_choice else RUNS
        found = bound(difference.program, difference.case.feeds[difference.number], leeway, runs=runs)
    except EvaluationError:
        return False
    return False if found is None else found.allows(difference.arrays[difference.who])


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

OF_SHAPES: Mapping[str, Callable[[Difference], bool]] = {
    "ONNX Runtime's curves are coarse": reads_coarse_curves,
    "what is no number": meets_nan,
    "ONNX Runtime and empty tensors": leaves_out_empty,
}
"""Reasons of shapes that differ."""

EXPLANATIONS: Mapping[str, Callable[[Difference], Explained]] = {
    "what is no number": meets_nan,
    "narrow floats stay wide": stays_wide,
    "subnormal results of curves": flushes,
    "recognised and joined": is_recognised,
    "finite where pieces overflow": stays_finite,
    "padding times what is not finite": pads_with_products,
    "the evaluator computes narrow floats narrowly": evaluates_narrowly,
    "sums in one order": adds_up_in_one_order,
    "logarithms of sums that cancel": cancels_in_a_logarithm,
    "gates and norms that cancel": agrees_in_single,
    "zeros of either sign": has_zeros_of_either_sign,
    "whole numbers overflow": overflows_integers,
    "ONNX Runtime's curves are coarse": is_coarse,
    "ONNX Runtime's rarer activations": runs_rare_activations,
    "ONNX Runtime's norms of equal numbers": divides_by_nothing,
    "float64 in float32": computes_in_float32,
    "ONNX Runtime aligns whole corners": aligns_whole_corners,
    "ONNX Runtime and empty tensors": leaves_out_empty,
    "ONNX Runtime overflows on the way": overflows,
    "ONNX Runtime saturates bytes": saturates_bytes,
    "ONNX Runtime stands alone": runtime_stands_alone,
    "the evaluator stands alone": evaluator_stands_alone,
}
"""By the name that the table in the docs has for it. Some elements may have one reason and others another."""
