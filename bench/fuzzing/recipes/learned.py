"""Ops of classic machine learning (`ai.onnx.ml`) between numbers: what prepares features, and models of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from ..draft import LEARNED, DraftTensor, ModelDraft, Shape
from ..values import ValueDomain
from .recipe import Recipes
from .trees import POST_TRANSFORMS, TWO_CLASS_TRANSFORMS, rows, tree_classifier, tree_ensemble, tree_regressor

KERNELS = ("LINEAR", "RBF", "POLY", "SIGMOID")


def _rows_or_row(d: ModelDraft, op: str) -> tuple[DraftTensor, Shape]:
    """Rows, or a vector, which is one row."""
    if d.chance(0.9):
        return rows(d, op)
    shape = (d.among(1, 2, 3, 5, 8),)
    dtype = "float32" if d.chance(0.8) else d.rng.choice(d.dtypes(op, 0, LEARNED))
    x = d.pick(dtype, lambda s: len(s) == 1 and 0 < s[0] <= 40, lambda: shape)
    return x, x.shape or ()


def _numbers(d: ModelDraft, count: int) -> list[float]:
    return [float(value) for value in d.array_rng.standard_normal(count).astype(np.float32)]


def _call(d: ModelDraft, op: str, x: DraftTensor, dtype: str, shape: Shape, **attrs: Any) -> DraftTensor:
    return d.call(LEARNED, op, [x], (dtype, shape), **attrs)[0]


def scaler(d: ModelDraft) -> DraftTensor:
    """By one number or one for each feature."""
    x, shape = _rows_or_row(d, "Scaler")
    count = d.among(1, shape[-1])
    offset, scale = _numbers(d, count), [d.number(1.0, 0.5, -2.0) for _ in range(count)]
    return _call(d, "Scaler", x, "float32", shape, offset=offset, scale=scale)


def normalizer(d: ModelDraft) -> DraftTensor:
    """By each norm."""
    x, shape = _rows_or_row(d, "Normalizer")
    return _call(d, "Normalizer", x, "float32", shape, norm=d.among(None, "MAX", "L1", "L2"))


def imputer(d: ModelDraft) -> DraftTensor:
    """NaN or a number replaced."""
    dtype = d.among("float32", "float32", "int64")
    x = d.pick(dtype, lambda s: len(s) == 2 and 0 not in s, lambda: (d.between(1, 5), d.between(1, 5)))
    shape = x.shape or ()
    count = d.among(1, shape[-1])
    if dtype == "int64":
        values = [d.between(-9, 9) for _ in range(count)]
        attrs: dict[str, Any] = {"imputed_value_int64s": values, "replaced_value_int64": d.between(-2, 2)}
    else:
        replaced = d.among(float("nan"), float("nan"), 0.0, 1.0, None)
        attrs = {"imputed_value_floats": _numbers(d, count), "replaced_value_float": replaced}
    return _call(d, "Imputer", x, dtype, shape, **attrs)


def binarizer(d: ModelDraft) -> DraftTensor:
    """A threshold."""
    x = d.pick("float32" if d.chance(0.8) else d.rng.choice(d.dtypes("Binarizer", 0, LEARNED)))
    threshold = d.among(None, 0.0, 1.0, -2.0, *((0.5,) if x.dtype.startswith("float") else ()))
    return _call(d, "Binarizer", x, x.dtype, x.shape or (), threshold=threshold)


def feature_vectorizer(d: ModelDraft) -> DraftTensor:
    """Features beside each other, cut or filled up."""
    dtype = d.rng.choice(["float32", *d.dtypes("FeatureVectorizer", 0, LEARNED)])
    count = d.between(1, 5)
    parts = [d.fresh(dtype, (count, d.between(1, 4))) for _ in range(d.between(1, 3))]
    extents = [max((part.shape or ())[1] + d.among(0, 0, 0, -1, 2), 1) for part in parts]
    [y] = d.call(
        LEARNED, "FeatureVectorizer", parts, ("float32", (count, sum(extents))), inputdimensions=extents
    )  # fmt: skip
    return y


def array_feature_extractor(d: ModelDraft) -> DraftTensor:
    """Features by number."""
    dtype = d.rng.choice(["float32", *d.dtypes("ArrayFeatureExtractor", 0, LEARNED)])
    x = d.pick(dtype, lambda s: len(s) >= 1 and 0 not in s, lambda: d.some_shape(low=1))
    shape = x.shape or (1,)
    count = d.between(1, 4)
    places = d.fresh("int64", d.among((count,), (1, count)), ValueDomain(0, shape[-1] - 1), constant=0.6)
    result = (*shape[:-1], count) if len(shape) > 1 else (1, count)
    [y] = d.call(LEARNED, "ArrayFeatureExtractor", [x, places], (dtype, result))
    return y


def one_hot_encoder(d: ModelDraft) -> DraftTensor:
    """Categories that are numbers; mostly others may be among the elements."""
    dtype = d.rng.choice(["int64", *d.dtypes("OneHotEncoder", 0, LEARNED)])
    x = d.pick(dtype, lambda s: len(s) <= 3 and 0 not in s, lambda: d.some_shape(low=1, high=2))
    categories = d.rng.sample(range(-4, 10), d.between(1, 9))
    shape = (*(x.shape or ()), len(categories))
    return _call(d, "OneHotEncoder", x, "float32", shape, cats_int64s=categories, zeros=d.among(None, 1, 1, 0))


def label_encoder(d: ModelDraft) -> DraftTensor:
    """A table from floats or integers to floats or integers; from version 4 on in tensors too."""
    keys, values = (d.among(("int64s", "int64"), ("floats", "float32")) for _ in range(2))
    count = d.between(1, 20)
    table: dict[str, list[Any]] = {}
    for name, (suffix, _) in (("keys", keys), ("values", values)):
        numbers = d.rng.sample(range(-12, 20), count)
        table[f"{name}_{suffix}"] = [n / 2 for n in numbers] if suffix == "floats" else numbers
    if keys[0] == "floats" and d.chance(0.3):
        table["keys_floats"][-1] = d.among(float("nan"), float("inf"), -0.0)
    attrs: dict[str, Any] = dict(table)
    default = d.among(None, 7, -3)
    if d.learned >= 5 and d.chance(0.4):
        attrs = {
            f"{name}_tensor": numpy_helper.from_array(np.asarray(table[f"{name}_{suffix}"], dtype))
            for name, (suffix, dtype) in (("keys", keys), ("values", values))
        }
        if default is not None:
            attrs["default_tensor"] = numpy_helper.from_array(np.asarray([default], values[1]))
    elif default is not None:
        attrs["default_float" if values[0] == "floats" else "default_int64"] = (
            float(default) if values[0] == "floats" else default
        )
    x = d.pick(keys[1], lambda s: 0 not in s)
    return _call(d, "LabelEncoder", x, values[1], x.shape or (), **attrs)


def linear_regressor(d: ModelDraft) -> DraftTensor:
    """One target or several."""
    x, shape = _rows_or_row(d, "LinearRegressor")
    targets = d.among(1, 2, 3)
    attrs: dict[str, Any] = {"coefficients": _numbers(d, targets * shape[-1])}
    if d.chance(0.7):
        attrs["intercepts"] = _numbers(d, targets)
    attrs["post_transform"] = d.among(None, None, *POST_TRANSFORMS)
    result = (shape[0] if len(shape) == 2 else 1, targets)
    return _call(d, "LinearRegressor", x, "float32", result, targets=targets, **attrs)


def linear_classifier(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Two classes by one row of coefficients, or several by one each."""
    x, shape = _rows_or_row(d, "LinearClassifier")
    count = d.among(1, 2, 3, 4)
    classes = max(count, 2)
    labels = d.among(list(range(classes)), [5, -1, 9, 2][:classes])
    batch = shape[0] if len(shape) == 2 else 1
    transforms = POST_TRANSFORMS if count > 1 else TWO_CLASS_TRANSFORMS
    return d.call(
        LEARNED, "LinearClassifier", [x], ("int64", (batch,)), ("float32", (batch, classes)),
        coefficients=_numbers(d, count * shape[-1]), intercepts=_numbers(d, count), classlabels_ints=labels,
        multi_class=d.among(None, 0, 1), post_transform=d.among(None, None, *transforms),
    )  # fmt: skip


def _kernel(d: ModelDraft) -> dict[str, Any]:
    """A kernel whose powers are whole, as those of others have no meaning below 0."""
    parameters = [d.among(0.2, 0.5, 1.0), d.among(0.0, 0.1, -0.5), float(d.among(1, 2, 3))]
    return {"kernel_type": d.rng.choice(KERNELS), "kernel_params": parameters}


def svm_regressor(d: ModelDraft) -> DraftTensor:
    """Each kernel; of one class, or of a number."""
    x, shape = _rows_or_row(d, "SVMRegressor")
    count = d.between(1, 7)
    attrs = _kernel(d) | {"coefficients": _numbers(d, count), "support_vectors": _numbers(d, count * shape[-1])}
    attrs |= {"n_supports": count, "rho": _numbers(d, 1), "one_class": d.among(None, None, 0, 1)}
    attrs["post_transform"] = d.among(None, None, *POST_TRANSFORMS)
    return _call(d, "SVMRegressor", x, "float32", (shape[0] if len(shape) == 2 else 1, 1), **attrs)


def svm_classifier(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Each kernel, two to four classes, some with probabilities."""
    x, shape = _rows_or_row(d, "SVMClassifier")
    counts = [d.between(1, 3) for _ in range(d.among(2, 2, 3, 4))]
    classes, vectors = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    coefficients = np.asarray(_numbers(d, (classes - 1) * vectors))
    if d.chance(0.4):
        coefficients = d.among(-1, 1) * np.abs(coefficients)
    batch = shape[0] if len(shape) == 2 else 1
    transforms = POST_TRANSFORMS if classes > 2 else TWO_CLASS_TRANSFORMS
    likely = {"prob_a": _numbers(d, pairs), "prob_b": _numbers(d, pairs)} if d.chance(0.4) else {}
    return d.call(
        LEARNED, "SVMClassifier", [x], ("int64", (batch,)), ("float32", (batch, classes if likely else max(pairs, 2))),
        coefficients=coefficients.tolist(), support_vectors=_numbers(d, vectors * shape[-1]), vectors_per_class=counts,
        rho=_numbers(d, pairs), classlabels_ints=d.among(list(range(classes)), [5, -1, 9, 2][:classes]),
        post_transform=d.among(None, None, *transforms), **likely, **_kernel(d),
    )  # fmt: skip


LEARNERS: Recipes = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "Scaler": scaler,
    "TreeEnsemble": tree_ensemble,
    "TreeEnsembleClassifier": tree_classifier,
    "TreeEnsembleRegressor": tree_regressor,
}
