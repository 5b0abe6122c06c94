"""Ensembles of trees, beside what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .classic_models import POST_TRANSFORMS, DrawnTrees, agree, classic_model

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LABELLED = (TensorProto.INT64, TensorProto.FLOAT)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_regressors_of_any_kind(data: st.DataObject) -> None:
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    modes = draw(st.sampled_from([MODES[:1], MODES[:1], MODES]))
    trees = DrawnTrees(rng, draw(st.integers(1, 5)), modes, draw(st.booleans()))
    count, targets = draw(st.integers(1, 7)), draw(st.sampled_from([1, 1, 2, 5]))
    attrs = trees.attrs(count, draw(st.integers(1, 4)))
    aggregate = draw(st.sampled_from(["SUM", "SUM", "AVERAGE", "MIN", "MAX"]))
    of_one = aggregate in ("SUM", "AVERAGE") and draw(st.booleans())
    attrs |= trees.weights("target", targets, of_one=of_one)
    if draw(st.booleans()) and (count >= targets or not of_one):  # ONNX Runtime adds none to what has no tree
        attrs["base_values"] = rng.standard_normal(targets).astype(np.float32).tolist()
    dtype = "float32" if trees.with_missing else draw(st.sampled_from(["float32", "float64"]))
    agree("TreeEnsembleRegressor", trees.rows(13, dtype), n_targets=targets, aggregate_function=aggregate, **attrs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_missing", [False, True])
def test_every_mode(mode: str, with_missing: bool) -> None:
    trees = DrawnTrees(np.random.default_rng(len(mode)), 3, (mode,), with_missing)
    attrs = trees.attrs(5, 3) | trees.weights("target", 1)
    agree("TreeEnsembleRegressor", trees.rows(60), n_targets=1, **attrs)


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2, 3])
def test_post_transforms(post_transform: str, targets: int) -> None:
    trees = DrawnTrees(np.random.default_rng(1), 4)
    attrs = trees.attrs(6, 3) | trees.weights("target", targets)
    agree("TreeEnsembleRegressor", trees.rows(17), n_targets=targets, post_transform=post_transform, **attrs)


def test_rows_of_infinity_and_thresholds_next_to_zero() -> None:
    trees = DrawnTrees(np.random.default_rng(3), 2, MODES)
    attrs = trees.attrs(4, 4) | trees.weights("target", 1)
    attrs["nodes_values"] = [0.0 if k % 2 else -0.0 for k in range(len(attrs["nodes_values"]))]
    tiny = float(np.nextafter(np.float32(0), np.float32(1)))
    x = np.array([[a, b] for a in (np.inf, -np.inf, 0.0, -0.0, tiny) for b in (-tiny, 0.0, np.inf)], np.float32)
    agree("TreeEnsembleRegressor", x, n_targets=1, **attrs)


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS)
@pytest.mark.parametrize("of_one", [False, True])
@pytest.mark.parametrize("base", [(), (0.5, -0.25, 0.125, 1.0)])
def test_classifiers(post_transform: str, of_one: bool, base: Sequence[float]) -> None:
    trees = DrawnTrees(np.random.default_rng(5), 4)
    attrs = trees.attrs(8, 3) | trees.weights("class", 4, of_one=of_one)
    named: dict[str, Any] = {"base_values": list(base)} if base else {}
    agree(
        "TreeEnsembleClassifier", trees.rows(31), results=LABELLED, classlabels_int64s=[4, 9, 0, 2],
        post_transform=post_transform, **attrs, **named,
    )  # fmt: skip


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS[:4])
@pytest.mark.parametrize("sign", [0, 1, -1])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("base", [(), (0.25,)])
def test_classifiers_of_two_classes(post_transform: str, sign: int, place: int, base: Sequence[float]) -> None:
    trees = DrawnTrees(np.random.default_rng(7), 4)
    attrs = trees.attrs(5, 3) | trees.weights("class", 1, sign=sign)
    attrs["class_ids"] = [place] * len(attrs["class_ids"])
    attrs["class_weights"][0] = 0.0
    named: dict[str, Any] = {"base_values": list(base)} if base else {}
    if place and base:
        return
    agree(
        "TreeEnsembleClassifier", trees.rows(31), results=LABELLED, classlabels_int64s=[4, 9],
        post_transform=post_transform, **attrs, **named,
    )  # fmt: skip


def test_labels_that_are_strings() -> None:
    trees = DrawnTrees(np.random.default_rng(9), 4)
    attrs = trees.attrs(6, 3) | trees.weights("class", 3)
    agree(
        "TreeEnsembleClassifier", trees.rows(11), results=(TensorProto.STRING, TensorProto.FLOAT),
        rest="LabelEncoder", classlabels_strings=["a", "b", "c"], **attrs,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_opset_5(dtype: str) -> None:
    """Leaves of their own numbers; sets of two and of one member. (ONNX Runtime cuts off what is no integer.)"""
    rng, kind = np.random.default_rng(1), np.dtype(dtype)
    members = np.array([1, -1, np.nan, 2, np.nan], kind)
    for aggregate in range(2):
        agree(
            "TreeEnsemble", rng.integers(-4, 5, (40, 2)).astype(kind), version=5,
            results=[helper.np_dtype_to_tensor_dtype(kind)], n_targets=2, aggregate_function=aggregate,
            tree_roots=[0, 2], nodes_featureids=[0, 1, 1], nodes_modes=_tensor(np.array([0, 6, 6], np.uint8)),
            nodes_splits=_tensor(np.array([0.5, 0, 0], kind)), nodes_truenodeids=[1, 0, 3],
            nodes_trueleafs=[0, 1, 1], nodes_falsenodeids=[2, 1, 4], nodes_falseleafs=[1, 1, 1],
            leaf_targetids=[0, 1, 0, 1, 0], leaf_weights=_tensor(rng.standard_normal(5).astype(kind)),
            membership_values=_tensor(members),
        )  # fmt: skip


def _tensor(array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(array)


def test_one_target_of_opset_5() -> None:
    rng = np.random.default_rng(2)
    for aggregate in range(4):
        agree(
            "TreeEnsemble", rng.standard_normal((40, 2)).astype(np.float32), version=5, n_targets=1,
            aggregate_function=aggregate, tree_roots=[0, 2], nodes_featureids=[0, 1, 1],
            nodes_modes=_tensor(np.array([0, 1, 2], np.uint8)), nodes_truenodeids=[1, 0, 3],
            nodes_splits=_tensor(np.array([0.5, 0, -1], np.float32)), nodes_trueleafs=[0, 1, 1],
            nodes_falsenodeids=[2, 1, 4], nodes_falseleafs=[1, 1, 1], leaf_targetids=[0] * 5,
            leaf_weights=_tensor(rng.standard_normal(5).astype(np.float32)),
        )  # fmt: skip


def test_what_makes_the_rows_is_no_part_of_the_walks() -> None:
    """It would be computed again at each step of each walk."""
    trees = DrawnTrees(np.random.default_rng(1), 4)
    attrs = trees.attrs(6, 3) | trees.weights("target", 1)
    model = classic_model("TreeEnsembleRegressor", [trees.rows(9)], [TensorProto.FLOAT], 3, **attrs)
    model.graph.node[0].input[0] = "s"
    model.graph.node.insert(0, helper.make_node("Relu", ["x0"], ["s"]))
    calls = [step for step in partition(rewrite(load(model.SerializeToString()))) if isinstance(step, TaskCall)]
    assert [call.task.op for call in calls] == ["Relu", "Trees"]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_deep_trees(data: st.DataObject) -> None:
    """Deeper than perfect trees can be: few of their places have nodes."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    modes = draw(st.sampled_from([MODES[:1], MODES]))
    trees = DrawnTrees(rng, draw(st.integers(1, 5)), modes, draw(st.booleans()), share=0.45)
    count, targets = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 5]))
    attrs = trees.attrs(count, draw(st.integers(11, 24)))
    aggregate = draw(st.sampled_from(["SUM", "SUM", "AVERAGE", "MIN", "MAX"]))
    of_one = aggregate in ("SUM", "AVERAGE") and draw(st.booleans())
    attrs |= trees.weights("target", targets, of_one=of_one)
    dtype = "float32" if trees.with_missing else draw(st.sampled_from(["float32", "float64"]))
    agree("TreeEnsembleRegressor", trees.rows(13, dtype), n_targets=targets, aggregate_function=aggregate, **attrs)


@pytest.mark.parametrize("post_transform", POST_TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 4])
def test_deep_classifiers(post_transform: str, classes: int) -> None:
    if classes == 2 and post_transform == "PROBIT":
        return
    trees = DrawnTrees(np.random.default_rng(5), 4, share=0.45)
    attrs = trees.attrs(6, 13) | trees.weights("class", classes if classes > 2 else 1, of_one=classes > 2)
    agree(
        "TreeEnsembleClassifier", trees.rows(31), results=LABELLED, classlabels_int64s=[4, 9, 0, 2][:classes],
        post_transform=post_transform, **attrs,
    )  # fmt: skip


@pytest.mark.parametrize("depth", [10, 11, 48, 49])
def test_one_long_way_down_a_tree(depth: int) -> None:
    """Each node asks for one more, or leaves. Opset 5, whose leaves have numbers of their own."""
    trees, nodes = 2, 2 * depth
    places = np.tile(np.arange(depth), trees)
    attrs: dict[str, Any] = {
        "tree_roots": [0, depth], "nodes_featureids": np.repeat([0, 1], depth).tolist(),
        "nodes_modes": _tensor(np.zeros(nodes, np.uint8)), "nodes_splits": _tensor(places.astype(np.float32)),
        "nodes_truenodeids": list(range(nodes)), "nodes_trueleafs": [1] * nodes,
        "nodes_falsenodeids": [nodes + k // depth if k % depth == depth - 1 else k + 1 for k in range(nodes)],
        "nodes_falseleafs": [int(k % depth == depth - 1) for k in range(nodes)],
        "leaf_targetids": [0] * (nodes + 2), "leaf_weights": _tensor(np.arange(nodes + 2, dtype=np.float32)),
    }  # fmt: skip
    x = np.stack([np.arange(-1, depth + 1), np.arange(depth + 1, -1, -1)], 1).astype(np.float32)
    x[3, 0] = np.nan
    rest = "TreeEnsemble" if depth > 48 else ""
    agree("TreeEnsemble", x, version=5, rest=rest, n_targets=1, aggregate_function=1, **attrs)


def test_tests_for_equality_one_under_the_other() -> None:
    """Each is two tests in a row, which lead to the same: what hangs below is there once, not 2^20 times."""
    depth = 20
    attrs: dict[str, Any] = {
        "tree_roots": [0, 0], "nodes_featureids": [0] * depth, "nodes_modes": _tensor(np.full(depth, 4, np.uint8)),
        "nodes_splits": _tensor(np.arange(depth, dtype=np.float32)), "nodes_truenodeids": list(range(depth)),
        "nodes_trueleafs": [1] * depth, "nodes_falsenodeids": [*range(1, depth), depth],
        "nodes_falseleafs": [*[0] * (depth - 1), 1], "leaf_targetids": [0] * (depth + 1),
        "leaf_weights": _tensor(np.arange(1, depth + 2, dtype=np.float32)),
    }  # fmt: skip
    x = np.concatenate([np.arange(-1, depth + 1), [0.5, np.nan]]).astype(np.float32)[:, None]
    agree("TreeEnsemble", x, version=5, n_targets=1, aggregate_function=1, **attrs)
    [step] = partition(
        rewrite(load(classic_model("TreeEnsemble", [x], [TensorProto.FLOAT], 5, **attrs).SerializeToString()))
    )[-1:]
    assert isinstance(step, TaskCall)
    assert max(tensor.shape[-1] for tensor in step.task.inputs if tensor.constant) == 128
