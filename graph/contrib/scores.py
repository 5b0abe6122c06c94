"""Classic machine learning: from the scores of a model to its results, and to the label of a class.

As ONNX Runtime has it where ONNX's text leaves it open: SOFTMAX_ZERO gives a score of zero the probability zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

from .call import ContribCall, Unsupported

_INVERSE_ERROR = 0.147
"""The constant of Winitzki's approximation of the inverse error function ("A handy approximation ...", 2008)."""

_LEAST_SCORE = 1e-7
"""Scores of a magnitude below are none for SOFTMAX_ZERO."""


def post_transform(call: ContribCall, scores: str, kind: str | None = None) -> str:
    """Scores `[rows, classes]` transformed as said, or else as the attribute `post_transform` says."""
    match kind or call.attr("post_transform"):
        case "NONE" | None:
            return scores
        case "LOGISTIC":
            return call.emit("Sigmoid", scores)
        case "SOFTMAX":
            return call.emit("Softmax", scores, axis=1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(call, scores)
        case "PROBIT":
            return _probit(call, scores)
        case unknown:
            raise Unsupported(f"post_transform {unknown}")


def _softmax_zero(call: ContribCall, scores: str) -> str:
    axes = call.constant([1], "int64")
    most = call.emit("ReduceMax", scores, axes)
    is_zero = call.emit("LessOrEqual", call.emit("Abs", scores), call.like(scores, _LEAST_SCORE))
    small = call.emit("Mul", scores, call.emit("Exp", call.emit("Neg", most)))
    parts = call.emit("Where", is_zero, small, call.emit("Exp", call.emit("Sub", scores, most)))
    return call.emit("Div", parts, call.emit("ReduceSum", parts, axes))


def _probit(call: ContribCall, scores: str) -> str:
    """The inverse of the normal distribution, approximately: sqrt(2) * erf^-1(2 * score - 1)."""

    def number(value: float) -> str:
        return call.like(scores, value)

    x = call.emit("Sub", call.emit("Mul", scores, number(2)), number(1))
    product = call.emit("Mul", call.emit("Sub", number(1), x), call.emit("Add", number(1), x))
    log = call.emit("Log", product)
    v = call.emit("Add", number(2 / (pi * _INVERSE_ERROR)), call.emit("Mul", number(0.5), log))
    root = call.emit(
        "Sqrt", call.emit("Sub", call.emit("Mul", v, v), call.emit("Mul", number(1 / _INVERSE_ERROR), log))
    )
    magnitude = call.emit("Mul", number(1.41421356), call.emit("Sqrt", call.emit("Sub", root, v)))
    return call.emit("Where", call.emit("Less", x, number(0)), call.emit("Neg", magnitude), magnitude)


def both_classes(call: ContribCall, scores: str, is_complement: bool) -> str:
    """The scores of both classes of which `scores` `[rows, 1]` has those of the second: 1 - s and s, or -s and s."""
    kind = call.attr("post_transform")
    if kind == "PROBIT":
        raise Unsupported("PROBIT of two classes")
    if kind == "LOGISTIC":
        parts = call.emit("Sigmoid", call.emit("Neg", scores)), call.emit("Sigmoid", scores)
    elif is_complement:
        parts = call.emit("Sub", call.like(scores, 1), scores), scores
    else:
        parts = call.emit("Neg", scores), scores
    return call.emit("Concat", *parts, axis=1)


def class_labels(call: ContribCall, integers: str) -> Sequence[int] | Sequence[str]:
    """The labels of the classes: the attribute `integers`, or `classlabels_strings`."""
    found: Sequence[int] | Sequence[str] = call.attr("classlabels_strings") or call.attr(integers) or ()
    return found


def label_of(call: ContribCall, places: str, labels: Sequence[int] | Sequence[str]) -> str:
    """The labels of classes by their places `[rows]`, int64."""
    if not labels:
        return places
    if isinstance(labels[0], str):
        return call.emit_classic(
            "LabelEncoder", places, keys_int64s=range(len(labels)), values_strings=labels, default_string=labels[0]
        )
    if tuple(labels) == tuple(range(len(labels))):
        return places
    return call.emit("Gather", call.constant(labels, "int64"), places)


def best_label(call: ContribCall, scores: str, labels: Sequence[int] | Sequence[str]) -> str:
    """The label of the class of the best score of each row, the first of several."""
    return label_of(call, call.emit("ArgMax", scores, axis=1, keepdims=0), labels)


def second_label(call: ContribCall, scores: str, least: float, labels: Sequence[int] | Sequence[str]) -> str:
    """The second label where the only score of a row is above the least, else the first."""
    is_second = call.emit("Greater", call.reshape(scores, -1), call.like(scores, least))
    return label_of(call, call.cast(is_second, "int64"), labels)
