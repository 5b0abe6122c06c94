"""Classic machine learning: linear models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .call import CLASSIC, ContribCall, Unsupported, standard_op
from .features import columns_of
from .scores import best_label, both_classes, class_labels, post_transform, second_label


def rows_of(call: ContribCall, parameter: str) -> str:
    """The rows `[rows, features]`, float32."""
    x = call.operand(parameter)
    columns = columns_of(call, x)
    return call.cast(x if len(call.shape(x)) == 2 else call.reshape(x, 1, columns), "float32")


def linear_scores(call: ContribCall, x: str, count: int) -> str:
    """`[rows, count]`: coefficients times rows, plus the intercepts."""
    columns = call.shape(x)[1]
    coefficients, intercepts = call.attr("coefficients") or (), call.attr("intercepts")
    if len(coefficients) != count * columns or (intercepts and len(intercepts) != count):
        raise Unsupported("coefficients or intercepts for another number of features")
    weight = np.reshape(np.asarray(coefficients, np.float32), (count, columns)).T
    scores = call.emit("MatMul", x, call.constant(weight, "float32"))
    return call.sum(scores, call.constant(intercepts, "float32") if intercepts else "")


@standard_op("LinearRegressor", CLASSIC)
def _linear_regressor(call: ContribCall) -> str:
    count = call.count("targets")
    scores = linear_scores(call, rows_of(call, "X"), count)
    if count == 1 and call.attr("post_transform") != "PROBIT":  # as ONNX Runtime: a single score stays as it is
        return scores
    return post_transform(call, scores)


@standard_op("LinearClassifier", CLASSIC)
def _linear_classifier(call: ContribCall) -> Sequence[str]:
    x, labels = rows_of(call, "X"), class_labels(call, "classlabels_ints")
    count = len(call.attr("coefficients")) // call.shape(x)[1]
    scores = linear_scores(call, x, count)
    if count > 1:
        if labels and len(labels) != count:
            raise Unsupported(f"{len(labels)} labels for {count} classes")
        return best_label(call, scores, labels), post_transform(call, scores)
    if len(labels) not in (0, 2):
        raise Unsupported("one label for two classes")
    label = second_label(call, scores, 0, labels)
    if labels:
        return label, both_classes(call, scores, is_complement=True)
    return label, post_transform(call, scores) if call.attr("post_transform") == "PROBIT" else scores
