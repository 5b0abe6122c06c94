"""Attributes of classic machine learning that don't go together: such a node is left, or refused in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper

from tunewright.graph.onnx_import import ModelError, load

from .classic_models import DrawnTrees, classic_model

_FLOAT, _LABELLED = (TensorProto.FLOAT,), (TensorProto.INT64, TensorProto.FLOAT)
_TREES = DrawnTrees(np.random.default_rng(0), 3, with_missing=True)
_NODES = _TREES.attrs(3, 2)
_MACHINE = {"kernel_type": "RBF", "kernel_params": [0.1, 0.0, 0.0], "rho": [0.1], "support_vectors": [0.5] * 15}

CASES: Mapping[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "Scaler": (_FLOAT, 1, {"offset": [1.0, 2, 3], "scale": [1.0, 2, 3]}),
    "Imputer": (_FLOAT, 1, {"imputed_value_floats": [1.0, 2, 3], "replaced_value_float": 1.0}),
    "FeatureVectorizer": (_FLOAT, 1, {"inputdimensions": [3]}),
    "OneHotEncoder": (_FLOAT, 1, {"cats_int64s": [1, 2], "zeros": 1}),
    "LabelEncoder": (_FLOAT, 2, {"keys_floats": [1.0, 2], "values_floats": [3.0, 4], "default_float": 0.5}),
    "LinearRegressor": (_FLOAT, 1, {"coefficients": [1.0] * 6, "intercepts": [0.0, 1], "targets": 2}),
    "LinearClassifier": (_LABELLED, 1, {"coefficients": [1.0] * 6, "intercepts": [0.0, 1], "classlabels_ints": [3, 4]}),
    "SVMRegressor": (_FLOAT, 1, {**_MACHINE, "coefficients": [1.0] * 5, "n_supports": 5}),
    "SVMClassifier": (
        _LABELLED, 1,
        {**_MACHINE, "coefficients": [1.0] * 5, "vectors_per_class": [2, 3], "classlabels_ints": [3, 4]},
    ),
    "TreeEnsembleRegressor": (_FLOAT, 3, {**_NODES, **_TREES.weights("target", 1), "base_values": [0.5]}),
    "TreeEnsembleClassifier": (
        _LABELLED, 3, {**_NODES, **_TREES.weights("class", 3), "classlabels_int64s": [3, 4, 5]},
    ),
    "TreeEnsemble": (
        _FLOAT, 5,
        {
            "tree_roots": [0], "nodes_featureids": [0, 1], "nodes_truenodeids": [1, 0], "nodes_trueleafs": [0, 1],
            "nodes_falsenodeids": [2, 1], "nodes_falseleafs": [1, 1], "leaf_targetids": [0, 0, 0],
            "nodes_modes": numpy_helper.from_array(np.array([0, 6], np.uint8)),
            "nodes_splits": numpy_helper.from_array(np.array([0.5, 0], np.float32)),
            "leaf_weights": numpy_helper.from_array(np.array([1, 2, 3], np.float32)),
            "membership_values": numpy_helper.from_array(np.array([1, np.nan], np.float32)),
        },
    ),
}  # fmt: skip


def changed(attribute: AttributeProto) -> Iterator[AttributeProto]:
    """The attribute with less, with more, and with other numbers."""
    name = {AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings"}.get(
        attribute.type
    )
    if attribute.type == AttributeProto.TENSOR:
        for array in (numpy_helper.to_array(attribute.t)[:-1], np.zeros((2, 3), np.float32), np.array([9], np.uint8)):
            yield AttributeProto(name=attribute.name, type=attribute.type, t=numpy_helper.from_array(array))
    if name is None:
        return
    values = list(getattr(attribute, name))
    others = {"floats": (np.inf, np.nan), "ints": (-1, 1 << 40, 7), "strings": (b"BRANCH_EQ", b"LEAF", b"x")}[name]
    for given in ([], values[:-1], [*values, values[0]], *([other, *values[1:]] for other in others)):
        copy = AttributeProto(name=attribute.name, type=attribute.type)
        getattr(copy, name).extend(given)
        yield copy


@pytest.mark.parametrize("op", CASES)
def test_no_attribute_makes_the_import_fail_without_words(op: str) -> None:
    results, version, attrs = CASES[op]
    model = classic_model(op, [np.ones((4, 3), np.float32)], results, version, **attrs)
    assert not any(node.domain for node in load(model.SerializeToString()).nodes)
    for number, attribute in enumerate(model.graph.node[0].attribute):
        for other in changed(attribute):
            copy = ModelProto.FromString(model.SerializeToString())
            copy.graph.node[0].attribute[number].CopyFrom(other)
            with suppress(ModelError):
                load(copy.SerializeToString())
        copy = ModelProto.FromString(model.SerializeToString())
        del copy.graph.node[0].attribute[number]
        with suppress(ModelError):
            load(copy.SerializeToString())
