"""Classic machine learning, written in ONNX's ops, beside what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .classic_models import POST_TRANSFORMS, agree
from .correcting import RNG


def rows(*shape: int, dtype: str = "float32") -> Any:
    return (3 * RNG.standard_normal(shape)).astype(dtype)


def weights(*shape: int) -> list[float]:
    return [float(value) for value in RNG.standard_normal(shape).astype(np.float32).reshape(-1)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_scaler(dtype: str) -> None:
    agree("Scaler", rows(7, 3, dtype=dtype), offset=[0.5, -1, 2], scale=[2.0, 0.5, -1])
    agree("Scaler", rows(5, dtype=dtype), offset=[0.5], scale=[0.25])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    x = rows(7, 5)
    x[2] = 0
    agree("Normalizer", x, norm=norm)
    agree("Normalizer", rows(3, dtype="int64"), norm=norm)


def test_imputer() -> None:
    x = rows(7, 3)
    x[1, 2] = x[3, 0] = np.nan
    agree("Imputer", x, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    agree("Imputer", np.round(x), imputed_value_floats=[7.0], replaced_value_float=1.0)
    integers = np.arange(6).reshape(2, 3)
    agree("Imputer", integers, imputed_value_int64s=[9, 8, 7], replaced_value_int64=4, results=[TensorProto.INT64])


def test_binarizer_and_vectorizer() -> None:
    agree("Binarizer", rows(7, 3), threshold=0.5)
    agree("FeatureVectorizer", rows(5, 2), rows(5, 3), rows(5, 1), inputdimensions=[2, 2, 3])
    agree("FeatureVectorizer", rows(5, 2, dtype="int64"), inputdimensions=[2])


@pytest.mark.parametrize("indices", [[2, 0], [[1, 2, 2]]])
def test_array_feature_extractor(indices: Any) -> None:
    agree("ArrayFeatureExtractor", rows(5, 3), np.asarray(indices))
    agree("ArrayFeatureExtractor", rows(3), np.asarray(indices))
    agree("ArrayFeatureExtractor", rows(2, 5, 3, dtype="int32"), np.asarray(indices), results=[TensorProto.INT32])


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_one_hot_encoder(dtype: str) -> None:
    agree("OneHotEncoder", np.array([[3, 1], [7, 2], [3, 3]], dtype), cats_int64s=[3, 7, 1], zeros=1)


def test_one_hot_encoder_of_strings() -> None:
    x = np.array([["a", "b"], ["c", "a"]], object)
    agree("OneHotEncoder", x, cats_strings=["b", "a"], zeros=1, rest="LabelEncoder")


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64])
@pytest.mark.parametrize("values", ["floats", "int64s"])
def test_label_encoder(count: int, values: str) -> None:
    """Keys out of order and far apart, numbers between them, beyond them, and the ends of the range."""
    keys = RNG.permutation(np.arange(-3, count - 3) * 5)
    table = RNG.integers(-99, 99, count).astype(float if values == "floats" else int).tolist()
    limits = np.iinfo(np.int64)
    x = np.concatenate([keys, keys + 1, [limits.min, limits.max]]).astype(np.int64)
    result = TensorProto.FLOAT if values == "floats" else TensorProto.INT64
    attrs = {
        "keys_int64s": keys.tolist(),
        f"values_{values}": table,
        f"default_{values[:-1]}": 5.0 if values == "floats" else 5,
    }
    agree("LabelEncoder", x, results=[result], version=2, **attrs)


def test_label_encoder_of_floats() -> None:
    keys = [0.5, float("nan"), float("inf"), -1.0, 2.0]
    x = np.array([[0.5, np.nan, np.inf], [-np.inf, 2.0, 0.75]], np.float32)
    for version in (2, 4):
        agree("LabelEncoder", x, version=version, keys_floats=keys, values_floats=[1.0, 2, 3, 4, 5])
    agree("LabelEncoder", x, version=2, keys_floats=keys[:1], values_int64s=[7], results=[TensorProto.INT64])


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(post_transform: str, targets: int) -> None:
    given: dict[str, Any] = {"coefficients": weights(targets, 5), "targets": targets, "post_transform": post_transform}
    agree("LinearRegressor", rows(7, 5), intercepts=weights(targets), **given)
    agree("LinearRegressor", rows(7, 5), **given)


LABELLED = (TensorProto.INT64, TensorProto.FLOAT)


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS)
@pytest.mark.parametrize(("count", "labels"), [(1, []), (1, [3, 9]), (2, [3, 9]), (4, [4, 2, 0, 7])])
def test_linear_classifier(post_transform: str, count: int, labels: list[int]) -> None:
    if (count, len(labels), post_transform) == (1, 2, "PROBIT"):  # ONNX Runtime mixes up the rows
        return
    named: dict[str, Any] = {"classlabels_ints": labels} if labels else {}
    agree(
        "LinearClassifier", rows(11, 5), results=LABELLED, coefficients=weights(count, 5),
        intercepts=weights(count), post_transform=post_transform, **named,
    )  # fmt: skip


def test_labels_that_are_strings() -> None:
    agree(
        "LinearClassifier", rows(11, 5), results=(TensorProto.STRING, TensorProto.FLOAT), rest="LabelEncoder",
        coefficients=weights(3, 5), intercepts=weights(3), classlabels_strings=["one", "two", "three"],
    )  # fmt: skip


KERNELS = ("LINEAR", "RBF", "POLY", "SIGMOID")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, one_class: int) -> None:
    agree(
        "SVMRegressor", rows(7, 5) / 3, kernel_type=kernel, kernel_params=[0.2, 0.1, 2.0], coefficients=weights(9),
        n_supports=9, support_vectors=weights(9, 5), rho=weights(1), one_class=one_class,
    )  # fmt: skip


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS)
def test_svm_regressor_leaves_its_score_as_it_is(post_transform: str) -> None:
    agree(
        "SVMRegressor", rows(7, 5) / 3, kernel_type="RBF", kernel_params=[0.2, 0.1, 2.0], coefficients=weights(4),
        n_supports=4, support_vectors=weights(4, 5), rho=[0.25], post_transform=post_transform,
    )  # fmt: skip


def test_svm_regressor_without_vectors() -> None:
    agree(
        "SVMRegressor",
        rows(7, 5),
        coefficients=weights(5),
        rho=weights(1),
        kernel_type="LINEAR",
        kernel_params=[0.0] * 3,
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("post_transform", POST_TRANSFORMS[:4])
@pytest.mark.parametrize("counts", [(3, 4), (2, 3, 4), (1, 2, 3, 1)])
def test_svm_classifier(kernel: str, post_transform: str, counts: Sequence[int]) -> None:
    classes, vectors = len(counts), sum(counts)
    for sign in (1, -1) if classes == 2 else (0,):
        coefficients = weights(classes - 1, vectors)
        if sign:
            coefficients = (sign * np.abs(coefficients)).tolist()
        agree(
            "SVMClassifier", rows(13, 5) / 3, results=LABELLED, kernel_type=kernel, kernel_params=[0.2, 0.1, 2.0],
            coefficients=coefficients, support_vectors=weights(vectors, 5), vectors_per_class=counts,
            rho=weights(classes * (classes - 1) // 2), post_transform=post_transform,
            classlabels_ints=list(range(3, 3 + classes)),
        )  # fmt: skip


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS)
@pytest.mark.parametrize("counts", [(3, 4), (2, 3, 4), (1, 2, 3, 1, 2, 1, 3)])
def test_svm_probabilities(post_transform: str, counts: Sequence[int]) -> None:
    """Some are so far apart that they are cut off, one row is of NaN.

    Next to 0 and 1 the last bit of a probability decides of the third digit of its probit.
    """
    inverse = np.vectorize(lambda z: 0.5 * erfc(-z / sqrt(2))) if post_transform == "PROBIT" else np.asarray
    classes, vectors = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    x = rows(23, 5)
    x[5] = np.nan
    for scale in (1, 30):
        agree(
            "SVMClassifier", x, results=LABELLED, rest="CouplePairs", kernel_type="RBF",
            kernel_params=[0.2, 0.1, 2.0], coefficients=weights(classes - 1, vectors),
            support_vectors=weights(vectors, 5), vectors_per_class=counts, rho=weights(pairs),
            prob_a=(np.asarray(weights(pairs)) * scale).tolist(), prob_b=weights(pairs),
            post_transform=post_transform, classlabels_ints=list(range(3, 3 + classes)), inverse=inverse,
        )  # fmt: skip


def test_svm_classifier_without_vectors() -> None:
    classes = 3
    agree(
        "SVMClassifier", rows(13, 5), results=LABELLED, kernel_type="LINEAR", kernel_params=[0.0] * 3,
        coefficients=weights(classes, 5), rho=weights(1), classlabels_ints=[4, 9, 7],
    )  # fmt: skip
