"""Ops of other domains in the differential fuzzer: that they are drawn and run, and how they are judged."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tunewright.bench.fuzzing.answers import OURS, RUNTIME, CaseAnswer, answer_case, run_onnxruntime
from tunewright.bench.fuzzing.bounds import output_bound
from tunewright.bench.fuzzing.case import FuzzCase, RunPlan
from tunewright.bench.fuzzing.draft import CONTRIBUTED, LEARNED, OPSETS, InvalidNode, ModelDraft
from tunewright.bench.fuzzing.foreign import write_calls
from tunewright.bench.fuzzing.generator import finish_case
from tunewright.bench.fuzzing.judge import CaseVerdict, Finding, judge
from tunewright.bench.fuzzing.program import flatten
from tunewright.bench.fuzzing.recipes.contributed import CONTRIBUTIONS
from tunewright.bench.fuzzing.recipes.learned import LEARNERS
from tunewright.bench.fuzzing.recipes.recipe import Recipe
from tunewright.bench.fuzzing.shrink import shrink
from tunewright.graph.ir import Array

pytest.importorskip("onnxruntime")

ALL = {
    **{f"{LEARNED}.{op}": LEARNERS[op] for op in LEARNERS},
    **{f"{CONTRIBUTED}.{op}": CONTRIBUTIONS[op] for op in CONTRIBUTIONS},
}

DRAWS = 12
"""Models that are drawn of each op."""


def draws(name: str, recipe: Recipe) -> list[FuzzCase]:
    """Models that a recipe drew, without those that turned out invalid."""
    cases = []
    for seed in range(DRAWS):
        rng = random.Random(f"{name} {seed}")
        draft = ModelDraft(rng, rng.choice(OPSETS))
        draft.learned = 5 if name.endswith(".TreeEnsemble") else 3
        try:
            recipe(draft)
        except InvalidNode:
            continue
        cases.append(finish_case(draft, seed))
    return cases


@pytest.mark.parametrize("name", ALL)
def test_each_op_is_drawn_and_runs_in_onnx_runtime(name: str) -> None:
    cases = draws(name, ALL[name])
    op = name.split(" ")[0]
    if op.endswith(".SimplifiedLayerNormalization"):  # which ONNX Runtime alone has in ONNX's domain
        op = "SimplifiedLayerNormalization"
    else:
        for case in cases:
            onnx.checker.check_model(case.proto(), skip_opset_compatibility_check=True)
    assert len(cases) > DRAWS // 2
    assert all(op in case.ops() for case in cases)
    errors = [answer.error for answer in map(run_onnxruntime, cases) if answer.error]
    assert len(errors) < len(cases) / 2, errors


def case_of(
    op: str, domain: str, operands: Mapping[str, Array], constants: Mapping[str, Any], dtype: int, **attrs: Any
) -> FuzzCase:
    """A model of one call of one result."""
    call = helper.make_node(op, [*operands, *constants], ["y"], domain=domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
    ]
    output = helper.make_value_info("y", helper.make_tensor_type_proto(dtype, None))
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 3 if domain == LEARNED else 1)]
    graph = helper.make_graph([call], "g", inputs, [output], tensors)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return FuzzCase(0, model.SerializeToString(), (operands,), RunPlan(0))


def curve() -> FuzzCase:
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    return case_of("QuickGelu", CONTRIBUTED, {"x": x}, {}, onnx.TensorProto.FLOAT)


def test_the_evaluator_is_not_asked_and_a_difference_of_the_others_is_a_finding() -> None:
    case = curve()
    answers = answer_case(case)
    assert not answers.evaluator.is_asked
    assert judge(case, answers) == CaseVerdict(None, (), (OURS, RUNTIME))
    wrong = CaseAnswer(tuple(tuple(array + np.float32(0.01) for array in row) for row in answers.ours.outputs))
    for who, spoiled in ((OURS, replace(answers, ours=wrong)), (RUNTIME, replace(answers, runtime=wrong))):
        finding = judge(case, spoiled).finding
        assert finding is not None and finding.kind == f"values ({who})"
    refused = replace(answers, ours=CaseAnswer(error="no", is_clear=True))
    assert judge(case, refused).finding == Finding(f"refused, but {RUNTIME} runs it", "no")


def test_bytes_have_room_for_a_step_only_next_to_the_middle_of_two() -> None:
    x = np.array([[3, 4, 5, 6]], np.uint8)
    forms = {"xs": np.float32(0.5), "xz": np.uint8(0), "ys": np.float32(1), "yz": np.uint8(0)}
    case = case_of("QLinearLeakyRelu", CONTRIBUTED, {"x": x}, forms, onnx.TensorProto.UINT8, alpha=0.5)
    bound = output_bound(write_calls(flatten(case.proto()), case.feeds[0]), case.feeds[0])
    assert bound is not None
    assert bound.allows(np.array([[2, 2, 2, 3]])).all()
    assert bound.allows(np.array([[1, 2, 3, 3]])).all()
    assert list(bound.allows(np.array([[2, 3, 2, 4]]))[0]) == [True, False, True, False]


def test_thresholds_are_exact_and_sums_of_leaves_are_not() -> None:
    x = np.array([[1.0], [np.nextafter(np.float32(1), np.float32(2))], [np.nan]], np.float32)
    tree = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [1.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [0.3, 0.7],
    }  # fmt: skip
    case = case_of("TreeEnsembleRegressor", LEARNED, {"x": x}, {}, onnx.TensorProto.FLOAT, n_targets=1, **tree)
    bound = output_bound(write_calls(flatten(case.proto()), case.feeds[0]), case.feeds[0])
    assert bound is not None
    assert bound.allows(np.array([[0.3], [0.7000001], [0.7]])).all()
    assert list(bound.allows(np.array([[0.7], [0.3], [0.3]])).ravel()) == [False] * 3
    answers = answer_case(case)
    swapped = CaseAnswer(tuple(tuple(1 - array for array in row) for row in answers.runtime.outputs))
    finding = judge(case, replace(answers, runtime=swapped)).finding
    assert finding is not None and finding.kind == "values (onnxruntime)"


def test_the_evaluator_has_a_word_on_outputs_without_such_ops() -> None:
    case = curve()
    model = case.proto()
    model.graph.node.append(helper.make_node("Floor", ["x"], ["z"]))
    model.graph.output.append(helper.make_value_info("z", helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)))
    case = replace(case, model=model.SerializeToString())
    answers = answer_case(case)
    [(curved, floors)] = answers.runtime.outputs
    alone = replace(answers, runtime=CaseAnswer(((curved, floors + 1),)))
    assert judge(case, alone) == CaseVerdict(None, ("ONNX Runtime stands alone",), (OURS, RUNTIME))


def test_a_call_that_nobody_can_write_leaves_the_rest_to_the_evaluator() -> None:
    """Two classes with weights of both, as tensors, which ONNX's evaluator can't read. `Unique` finds NaN once."""
    tree = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values_as_tensor": numpy_helper.from_array(np.array([1.0, 0.0, 0.0])),
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0], "class_treeids": [0, 0], "class_nodeids": [1, 2], "class_ids": [0, 1],
        "class_weights_as_tensor": numpy_helper.from_array(np.array([0.3, 0.7])), "classlabels_int64s": [4, 5],
    }  # fmt: skip
    x = np.array([[3], [np.nan], [-np.inf], [np.nan]])
    case = case_of("TreeEnsembleClassifier", LEARNED, {"x": x}, {}, onnx.TensorProto.INT64, **tree)
    model = case.proto()
    model.graph.node[0].output.append("scores")
    model.graph.node.extend([
        helper.make_node("Unique", ["x"], ["z"]),
        helper.make_node("Floor", ["x"], ["floors"]),
        helper.make_node("Neg", ["y"], ["negative"]),
    ])  # fmt: skip
    kinds = {"z": onnx.TensorProto.DOUBLE, "floors": onnx.TensorProto.DOUBLE, "negative": onnx.TensorProto.INT64}
    model.graph.output.extend(
        helper.make_value_info(name, helper.make_tensor_type_proto(kind, None)) for name, kind in kinds.items()
    )
    case = replace(case, model=model.SerializeToString())
    answers = answer_case(case)
    [(classes, unique, floors, negative)] = answers.ours.outputs
    assert np.array_equal(unique, [-np.inf, 3, np.nan], equal_nan=True)
    [(by_evaluator, *others, after)] = answers.evaluator.outputs
    assert by_evaluator is None and after is None
    assert all(map(np.array_equal, others, (unique, floors), (True, True)))
    without = CaseAnswer(((classes, np.array([-np.inf, 3]), floors, negative),))  # as ONNX Runtime may have it
    assert judge(case, replace(answers, runtime=without)).reasons == ("what is no number",)
    for wrong in ((classes, unique, floors + 1, negative), (classes, unique, floors, -negative)):
        finding = judge(case, replace(answers, ours=CaseAnswer((wrong,)))).finding
        assert finding is not None and finding.kind == "values (ours)"


def test_numbers_that_onnx_runtime_has_the_other_way_round() -> None:
    x = np.array([[1.0], [-1.0]], np.float32)
    trees: dict[str, Any] = {
        "tree_roots": [0], "nodes_featureids": [0], "nodes_truenodeids": [0], "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1], "nodes_falseleafs": [1], "leaf_targetids": [0, 1], "n_targets": 2,
        "nodes_modes": numpy_helper.from_array(np.zeros(1, np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.zeros(1, np.float32)),
        "leaf_weights": numpy_helper.from_array(np.array([0.5, 2.0], np.float32)),
    }  # fmt: skip
    for transform, reasons in ((0, ()), (1, ("ONNX Runtime takes softmax for logistic",))):
        case = case_of(
            "TreeEnsemble", LEARNED, {"x": x}, {}, onnx.TensorProto.FLOAT, post_transform=transform, **trees
        )  # fmt: skip
        model = case.proto()
        model.opset_import[1].version = 5
        case = replace(case, model=model.SerializeToString())
        assert judge(case, answer_case(case)).reasons == reasons


def test_scales_in_the_weights_of_a_product_of_bytes_are_explained() -> None:
    """Large terms that cancel: the sum of bytes is exact, that of scaled ones is not."""
    a = np.array([[100, 100, 1]], np.uint8)
    weights = {"b": np.array([[63], [-63], [1]], np.int8), "as": np.float32(0.1), "bs": np.float32(0.7)}
    case = case_of("MatMulIntegerToFloat", CONTRIBUTED, {"a": a}, weights, onnx.TensorProto.FLOAT)
    answers = answer_case(case)
    moved = CaseAnswer(((np.array([[0.07 + 2e-5]], np.float32),),))
    verdict = judge(case, replace(answers, ours=moved))
    assert verdict.finding is None and verdict.reasons == ("recognised and joined",)
    wrong = CaseAnswer(((np.array([[0.08]], np.float32),),))
    assert judge(case, replace(answers, ours=wrong)).finding is not None


def test_scales_in_the_weights_of_a_product_with_a_bias_are_explained() -> None:
    """Of whole numbers, which a sum that is none meets."""
    a = np.array([[100, 100, 1]], np.uint8)
    weights = {
        "as": np.float32(0.1), "az": np.uint8(0), "b": np.array([[63], [-63], [1]], np.int8), "bs": np.float32(0.7),
        "bz": np.int8(0), "c": np.array([3], np.int32),
    }  # fmt: skip
    case = case_of("QGemm", CONTRIBUTED, {"a": a}, weights, onnx.TensorProto.FLOAT)
    answers = answer_case(case)
    moved = CaseAnswer(((np.array([[0.28 + 2e-5]], np.float32),),))
    verdict = judge(case, replace(answers, ours=moved))
    assert verdict.finding is None and verdict.reasons == ("recognised and joined",)
    wrong = CaseAnswer(((np.array([[0.29]], np.float32),),))
    assert judge(case, replace(answers, ours=wrong)).finding is not None


def test_trees_are_left_out_of_a_finding_that_shows_without_them() -> None:
    name = f"{LEARNED}.TreeEnsembleClassifier"
    case = max(draws(name, ALL[name]), key=lambda case: len(trees_of(case)))
    last = max(trees_of(case))
    assert last > 0
    smaller = shrink(case, lambda other: last in trees_of(other) and not run_onnxruntime(other).error, lambda other: {})
    assert trees_of(smaller) == {last}


def trees_of(case: FuzzCase) -> set[int]:
    attributes = [a for node in case.proto().graph.node for a in node.attribute if a.name == "nodes_treeids"]
    return {tree for attribute in attributes for tree in attribute.ints}
