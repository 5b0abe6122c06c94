"""Classic machine learning: support vector machines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tunewright.graph.ir import Array, TensorType

from ..evaluation.coupling import COUPLE
from .call import CLASSIC, ContribCall, Unsupported, standard_op
from .linear_models import rows_of
from .scores import best_label, both_classes, class_labels, label_of, post_transform, second_label

_LEAST_PROBABILITY = 1e-7
"""Of a class beside another one."""


def _kernel(call: ContribCall, x: str, vectors: Array) -> str:
    """`[rows, vectors]`: how alike each row and each vector are."""
    gamma, bias, degree = (*(call.attr("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    columns = call.constant(vectors.T, "float32")
    kind = call.attr("kernel_type")
    if kind == "RBF":
        difference = call.emit("Sub", call.unsqueeze(x, 2), call.unsqueeze(columns, 0))
        distance = call.emit(
            "ReduceSum", call.emit("Mul", difference, difference), call.constant([1], "int64"), keepdims=0
        )
        return call.emit("Exp", call.emit("Mul", distance, call.like(x, -gamma)))
    product = call.emit("MatMul", x, columns)
    if kind == "LINEAR":
        return product
    if kind not in ("POLY", "SIGMOID"):
        raise Unsupported(f"kernel_type {kind}")
    scaled = call.sum(call.emit("Mul", product, call.like(x, gamma)), call.like(x, bias))
    return call.emit("Tanh", scaled) if kind == "SIGMOID" else call.emit("Pow", scaled, call.like(x, degree))


def _coefficients(call: ContribCall) -> Array:
    return np.asarray(call.attr("coefficients") or (), np.float32)


def _vectors(call: ContribCall, x: str, count: int) -> Array:
    vectors = np.asarray(call.attr("support_vectors") or (), np.float32)
    if vectors.size != count * call.shape(x)[1]:
        raise Unsupported("support vectors of another number of features")
    return vectors.reshape(count, -1)


@standard_op("SVMRegressor", CLASSIC)
def _svm_regressor(call: ContribCall) -> str:
    """`[rows, 1]`: a sum of kernels; whether it is positive, as 1 and -1, where there is one class.

    As ONNX Runtime, which has no eye for `post_transform` here.
    """
    x, count = rows_of(call, "X"), call.attr("n_supports")
    coefficients, rho = _coefficients(call), call.attr("rho") or (0.0,)
    if count and len(coefficients) != count:
        raise Unsupported("another number of coefficients than of support vectors")
    if count:
        kernel = _kernel(call, x, _vectors(call, x, count))
    elif call.attr("kernel_type") != "LINEAR" or len(coefficients) != call.shape(x)[1]:
        raise Unsupported("no support vectors")
    else:
        kernel = x
    product = call.emit("MatMul", kernel, call.constant(coefficients[:, None], "float32"))
    score = call.sum(product, call.constant(rho[:1], "float32"))
    if call.attr("one_class"):
        is_inside = call.emit("Greater", score, call.like(score, 0))
        return call.emit("Where", is_inside, call.like(score, 1), call.like(score, -1))
    return score


@standard_op("SVMClassifier", CLASSIC)
def _svm_classifier(call: ContribCall) -> Sequence[str]:
    """The label, and scores: of each pair of classes, of both classes, or of each where there are no vectors.
    Where they are asked for, probabilities of the classes instead.

    Of a pair the class whose score is higher has a vote, and the class of most votes is the label.
    """
    x, labels = rows_of(call, "X"), class_labels(call, "classlabels_ints")
    counts, rho = call.attr("vectors_per_class") or (), call.attr("rho") or ()
    if not rho or len(labels) < 2:
        raise Unsupported("no rho or less than two labels")
    if min(counts, default=0) < 0:
        raise Unsupported("a negative number of support vectors")
    if not sum(counts):
        return _linear_classes(call, x, rho[0], labels)
    pairs = list(combinations(range(len(counts)), 2))
    if len(labels) != len(counts) or len(rho) != len(pairs):
        raise Unsupported("another number of classes or pairs")
    coefficients = _coefficients(call)
    if len(coefficients) != (len(counts) - 1) * sum(counts):
        raise Unsupported("another number of coefficients than of support vectors")
    weight = _pair_weights(coefficients, counts, pairs)
    product = call.emit("MatMul", _kernel(call, x, _vectors(call, x, sum(counts))), call.constant(weight, "float32"))
    scores = call.sum(product, call.constant(rho, "float32"))
    if call.attr("prob_a"):
        return _voted_label(call, scores, pairs, labels), post_transform(call, _probabilities(call, scores, pairs))
    if len(pairs) == 1:
        label = _binary_label(call, scores, labels)
        return label, both_classes(call, scores, is_complement=call.attr("post_transform") != "NONE")
    return _voted_label(call, scores, pairs, labels), post_transform(call, scores)


def _linear_classes(call: ContribCall, x: str, rho: float, labels: Sequence[int] | Sequence[str]) -> Sequence[str]:
    weight = _coefficients(call)
    if call.attr("prob_a"):
        raise Unsupported("probabilities without support vectors")
    if len(labels) == 2:  # ONNX Runtime's label is not that of the larger score
        raise Unsupported("two classes without support vectors")
    if weight.size != len(labels) * call.shape(x)[1]:
        raise Unsupported("coefficients for another number of features")
    product = call.emit("MatMul", x, call.constant(weight.reshape(len(labels), -1).T, "float32"))
    scores = call.sum(product, call.constant(rho, "float32"))
    return best_label(call, scores, labels), post_transform(call, scores)


def _pair_weights(coefficients: Array, counts: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Array:
    """`[vectors, pairs]`: coefficients are `[classes - 1, vectors]`, each vector with one for each other class."""
    table = coefficients.reshape(len(counts) - 1, sum(counts))
    ends = np.cumsum(counts)
    weight = np.zeros((sum(counts), len(pairs)), np.float32)
    for number, (one, other) in enumerate(pairs):
        for own, row in ((one, other - 1), (other, one)):
            part = slice(ends[own] - counts[own], ends[own])
            weight[part, number] = table[row, part]
    return weight


def _probabilities(call: ContribCall, scores: str, pairs: Sequence[tuple[int, int]]) -> str:
    """`[rows, classes]`: after Platt for each pair, and from those by coupling, as libsvm."""
    slopes, offsets = (np.asarray(call.attr(name) or (), np.float32) for name in ("prob_a", "prob_b"))
    if not len(slopes) == len(offsets) == len(pairs):
        raise Unsupported("probabilities of another number of pairs")
    scaled = call.emit("Mul", scores, call.constant(slopes, "float32"))
    logistic = call.emit("Sigmoid", call.emit("Add", scaled, call.constant(offsets, "float32")))
    one = call.like(scores, 1)
    limits = call.like(scores, _LEAST_PROBABILITY), call.like(scores, 1 - _LEAST_PROBABILITY)
    first = call.emit("Clip", call.emit("Sub", one, logistic), *limits)
    both = call.emit("Concat", first, call.emit("Sub", one, first), axis=1)
    count = pairs[-1][1] + 1
    places, is_own = np.zeros((count, count), np.int64), np.eye(count, dtype=bool)
    for number, (i, j) in enumerate(pairs):
        places[i, j], places[j, i] = number, len(pairs) + number
    ahead, behind = (call.emit("Gather", both, call.constant(at, "int64"), axis=1) for at in (places, places.T))
    squares = call.emit("Mul", call.emit("Mul", behind, behind), call.constant(~is_own, "float32"))
    sums = call.emit("ReduceSum", squares, call.constant([2], "int64"))
    others = call.emit("Neg", call.emit("Mul", behind, ahead))
    matrix = call.emit("Where", call.constant(is_own, "bool"), sums, others)
    rows = call.shape(scores)[0]
    result = call.emit_own(COUPLE, (matrix,), TensorType("float32", (2, rows, count)))
    return call.reshape(call.slice(result, 0, 0, 1), rows, count)


def _binary_label(call: ContribCall, scores: str, labels: Sequence[int] | Sequence[str]) -> str:
    """The first label where the score is positive, which is a vote for the first class."""
    return second_label(call, call.emit("Neg", scores), 0, labels)


def _voted_label(
    call: ContribCall, scores: str, pairs: Sequence[tuple[int, int]], labels: Sequence[int] | Sequence[str]
) -> str:
    won = np.zeros((len(pairs), len(labels)), np.float32)
    lost = np.zeros_like(won)
    for number, (one, other) in enumerate(pairs):
        won[number, one] = lost[number, other] = 1
    is_won = call.cast(call.emit("Greater", scores, call.like(scores, 0)), "float32")
    votes = call.sum(
        call.emit("MatMul", is_won, call.constant(won - lost, "float32")), call.constant(lost.sum(0), "float32")
    )
    return label_of(call, call.emit("ArgMax", votes, axis=1, keepdims=0), labels)
