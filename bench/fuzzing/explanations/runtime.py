"""What ONNX Runtime differs in: its faults, and its approximations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunewright.graph.ir import Node

from ..answers import EVALUATOR, OURS, RUNTIME
from ..bounds import FLUSH_FACTOR, Leeway
from ..case import op_name
from ..exactness import COARSE, CURVES, GATED, NORMS, is_exact
from ..sizes import may_overflow
from ..values import FLOATS, INTEGERS, as_float64, is_float_array, limits
from .difference import Difference, ExplainedElements, ops_of

BYTES = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})

CALCULATING = frozenset({
    "Abs", "Add", "BitShift", "Col2Im", "CumProd", "CumSum", "Div", "Einsum", "Gemm", "GridSample", "MatMul", "Mod",
    "Mul", "Neg", "PRelu", "Pow", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean",
    "ReduceProd", "ReduceSum", "ReduceSumSquare", "Resize", "ScatterElements", "ScatterND", "Shrink", "Sub", "Upsample",
})  # fmt: skip
"""Ops whose results may leave the range of an integer type that the operands are within."""

SOFTMAXES, ONE_AXIS = ("Hardmax", "LogSoftmax", "Softmax"), 13
"""Ops that are over one axis from an opset on, and over all from this one to the last before."""

NORMALIZER, SMALL_SQUARES = "ai.onnx.ml.Normalizer", 16.0
"""An op, and up to how often the root of the least normal number is small for it."""

TREES = "ai.onnx.ml.TreeEnsemble"

NHWC_MAX_POOL = "com.microsoft.NhwcMaxPool"

BYTES_SOFTMAX = "com.microsoft.QLinearSoftmax"


def overflows_integers(difference: Difference) -> bool:
    """Integers leave the range of their type; numpy and ours compute them modulo 2^n."""
    if difference.who != RUNTIME:
        return False
    nodes = [node for node in difference.upstream() if _calculates_in_integers(difference, node)]
    operands = [a for node in nodes for a in _whole(difference.operands(node))]
    return any(float(np.abs(as_float64(a)).max()) >= np.iinfo(a.dtype).max / (2 * a.size) for a in operands)


def _calculates_in_integers(difference: Difference, node: Node) -> bool:
    """Whether results have a type of integers; those of a norm are floats, but sizes are taken before."""
    if difference.program.called_op(node) == NORMALIZER:
        return True
    return bool(_whole(difference.results(node))) and not CALCULATING.isdisjoint(ops_of(node))


def _whole(values: Sequence[Any]) -> list[Any]:
    """The arrays of integers that are not empty."""
    return [a for a in values if isinstance(a, np.ndarray) and a.dtype.name in INTEGERS and a.size]


def runs_rare_activations(difference: Difference) -> bool:
    """ONNX Runtime has other default parameters for some activations, and overflows in others."""
    nodes = [node for node in difference.upstream() if node.op in GATED]
    activations = {name for node in nodes for name in node.attrs.get("activations", ())}
    return difference.who == RUNTIME and not activations <= {"Sigmoid", "Tanh", "Relu"}


def divides_by_nothing(difference: Difference) -> bool:
    """ONNX Runtime's norms of constant rows divide 0 by 0."""
    if difference.who != RUNTIME:
        return False
    values = difference.arrays[RUNTIME][difference.wrong].astype(np.float64)
    return bool(np.isnan(values).all()) and difference.has_op(NORMS | {"LpNormalization"})


def aligns_whole_corners(difference: Difference) -> bool:
    """ONNX Runtime aligns corners by the whole extent where a scale makes a fraction of it."""
    resized = [n for n in difference.upstream() if n.op == "Resize"]
    return difference.who == RUNTIME and any(
        node.attrs.get("coordinate_transformation_mode") == "align_corners" for node in resized
    )


def puts_a_lone_place_last(difference: Difference) -> bool:
    """ONNX Runtime's grids with aligned corners have the one place of an axis at its last corner, others at 0."""
    grids = [n for n in difference.upstream() if n.op == "AffineGrid" and n.attrs.get("align_corners")]
    sizes = [np.asarray(difference.operands(node)[1]) for node in grids]
    return difference.who == RUNTIME and any(bool((size[2:] == 1).any()) for size in sizes)


def counts_from_the_last_key(difference: Difference) -> bool:
    """ONNX Runtime's causal attention lets the last query see the last key; ONNX's those up to its number."""
    attentions = [n for n in difference.upstream() if n.op == "Attention" and n.attrs.get("is_causal")]
    extents = [[np.shape(array)[-2] for array in difference.operands(node)[:2]] for node in attentions]
    return difference.who == RUNTIME and any(queries != keys for queries, keys in extents)


def leaves_out_empty(difference: Difference) -> bool:
    """ONNX Runtime gives the wrong shape for folds of empty tensors, and 0 for a mean of nothing."""
    arrays = [value for node in difference.upstream() for value in difference.operands(node)]
    return difference.who == RUNTIME and any(isinstance(array, np.ndarray) and not array.size for array in arrays)


def overflows(difference: Difference) -> bool:
    """ONNX Runtime's formula leaves the range of the type on the way to a result within it."""
    if difference.who != RUNTIME or difference.bound is None:
        return False
    values = difference.arrays[RUNTIME][difference.wrong]
    is_lost = values.dtype.name not in FLOATS or not np.isfinite(as_float64(values)).any()
    operands = [difference.operands(node) for node in difference.upstream() if not is_exact(node)]
    return is_lost and any(may_overflow([a for a in arrays if is_float_array(a)]) for arrays in operands)


def stands_alone(difference: Difference) -> bool:
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


def is_coarse(difference: Difference) -> ExplainedElements:
    """ONNX Runtime's sigmoids and their kind are made by approximations whose error is absolute."""
    if difference.who != RUNTIME or not difference.has_op(COARSE):
        return False
    return difference.allowed_elements(Leeway(coarse=True))


def reads_coarse_curves(difference: Difference) -> bool:
    """ONNX Runtime derives the output from coarse curves, as in Unique."""
    return difference.who == RUNTIME and difference.has_op(COARSE | CURVES)


def counts_wide(difference: Difference) -> bool:
    """ONNX Runtime did not round narrow floats before it counted, as in NonZero."""
    return difference.who == RUNTIME and difference.is_narrow()


def shrinks_in_single(difference: Difference) -> bool:
    """ONNX Runtime computes `Shrink` of whole numbers in float32, which makes equal ones of some that differ."""
    reads = [difference.operands(node)[0] for node in difference.upstream() if node.op == "Shrink"]
    return difference.who == RUNTIME and any(
        not is_float_array(x) and bool((np.abs(as_float64(x)) > 2**24).any()) for x in reads
    )


def begins_inside(difference: Difference) -> bool:
    """`NhwcMaxPool` whose windows, of equal padding, are further apart than they are large: the first begins inside."""
    return difference.who == RUNTIME and any(
        node.attrs.get("auto_pad", "NOTSET") != "NOTSET"
        and any(s > k for s, k in zip(node.attrs.get("strides", ()), node.attrs["kernel_shape"], strict=False))
        for node in difference.upstream()
        if difference.program.called_op(node) == NHWC_MAX_POOL and node.op == "MaxPool"
    )


def saturates_bytes(difference: Difference) -> bool:
    """ONNX Runtime's products of unsigned and signed bytes, on processors without VNNI.

    Not in calls of its own ops, for which values are drawn with which they can't.
    """
    if all(difference.program.called_op(node) for node in difference.upstream() if node.op in BYTES):
        return False
    agree = np.array_equal(
        difference.arrays[OURS], difference.arrays.get(EVALUATOR, difference.arrays[OURS]), equal_nan=True
    )
    return difference.who == RUNTIME and agree and difference.has_op(BYTES)


def wraps_a_lone_softmax(difference: Difference) -> bool:
    """ONNX Runtime's softmax of one byte is 1, whose steps it doesn't cut to the largest byte: 256 becomes 0."""
    calls = [node for node in difference.upstream() if difference.program.called_op(node) == BYTES_SOFTMAX]
    softmaxes = [(node.attrs["axis"], difference.results(node)) for node in calls if node.op == "Softmax"]
    return difference.who == RUNTIME and any(np.shape(a)[axis] == 1 for axis, results in softmaxes for a in results)


def reads_functions_by_the_models_opset(difference: Difference) -> bool:
    """ONNX Runtime takes the softmaxes of a function for those of the model's opset, which are over other axes."""
    [version] = {opset.version for opset in difference.case.proto().opset_import if opset.domain in ("", "ai.onnx")}
    own = {node.version >= ONE_AXIS for node in difference.upstream() if node.op in SOFTMAXES}
    return difference.who == RUNTIME and (version < ONE_AXIS) in own


def squares_small_numbers(difference: Difference) -> ExplainedElements:
    """ONNX Runtime normalises by the root of a quotient of squares, and that of a small number is 0."""
    if difference.who != RUNTIME or NORMALIZER not in map(difference.program.called_op, difference.upstream()):
        return False
    answer = difference.arrays[RUNTIME]
    if difference.bound is None or not is_float_array(answer):
        return False
    error = np.abs(as_float64(answer) - difference.bound.centre)
    return np.asarray(error < SMALL_SQUARES * limits(answer.dtype.name)[1] ** 0.5)


def takes_softmax_for_logistic(difference: Difference) -> bool:
    """ONNX Runtime's numbers of SOFTMAX and LOGISTIC in TreeEnsemble are each the other's of ONNX."""
    if difference.who != RUNTIME or TREES not in map(difference.program.called_op, difference.upstream()):
        return False
    nodes = [node for node in difference.case.proto().graph.node if op_name(node) == TREES]
    return any(a.name == "post_transform" and a.i in (1, 2) for node in nodes for a in node.attribute)
