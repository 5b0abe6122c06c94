"""The differential fuzzer: what a seed stands for, who is right, and planted faults that are found and made smaller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tunewright.bench import differential
from tunewright.bench.fuzzing.answers import (
    EVALUATOR,
    NOT_ASKED,
    OURS,
    RUNTIME,
    CaseAnswer,
    answer_case,
    evaluate_tensors,
    runtime_tensors,
)
from tunewright.bench.fuzzing.bounds import Bound, Leeway, output_bound
from tunewright.bench.fuzzing.case import FuzzCase, RunPlan
from tunewright.bench.fuzzing.draft import CONTRIBUTED, LEARNED
from tunewright.bench.fuzzing.exactness import COARSE, CURVES, EXACT, LINEAR, MOVING, STEPS
from tunewright.bench.fuzzing.explanations import EXPLANATIONS, SHAPE_EXPLANATIONS, VARYING_SHAPE
from tunewright.bench.fuzzing.explanations.runtime import CALCULATING
from tunewright.bench.fuzzing.generator import generate_case
from tunewright.bench.fuzzing.judge import CaseVerdict, Finding, judge
from tunewright.bench.fuzzing.judge_process import Judgement
from tunewright.bench.fuzzing.program import flatten
from tunewright.bench.fuzzing.recipes.table import FAMILIES, UNSUPPORTED, opset_ops
from tunewright.bench.fuzzing.report import FuzzReport, add_seeds, read_seeds, write_cases
from tunewright.bench.fuzzing.shrink import shrink
from tunewright.bench.fuzzing.worker_pool import TOO_SLOW, JudgeWorker, SeedResult
from tunewright.graph import contrib
from tunewright.graph.ir import Array, Graph, Node
from tunewright.graph.rewrites import rewrite

onnxruntime = pytest.importorskip("onnxruntime")

DOCS = Path(__file__).parents[2] / "docs" / "bench.md"


def case_of(
    nodes: list[onnx.NodeProto], feeds: dict[str, Array], constants: dict[str, Any] | None = None, opset: int = 17,
    outputs: tuple[str, ...] = ("y",), learned: int = 0, contributed: int = 0, **options: Any,
) -> FuzzCase:  # fmt: skip
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in feeds.items()]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(o) for o in outputs], tensors)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("own", 1)] if options else [])]
    opsets += [helper.make_opsetid(LEARNED, learned)] if learned else []
    opsets += [helper.make_opsetid(CONTRIBUTED, contributed)] if contributed else []
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, **options)
    return FuzzCase(0, model.SerializeToString(), (feeds,), RunPlan(0))


def bound_of(case: FuzzCase, leeway: Leeway = Leeway()) -> Bound:  # noqa: B008 - a frozen value
    bound = output_bound(flatten(case.proto()), case.feeds[0], leeway)
    assert bound is not None
    return bound


node = helper.make_node


# What is drawn


def test_no_extent_is_negative():
    assert generate_case(642_146_891).ops()


def test_drawn_models_are_valid_and_most_of_them_run_in_onnx_runtime():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    refused: Counter[str] = Counter()
    count = 120
    for seed in range(count):
        case = generate_case(seed)
        model = case.proto()
        known = all(value.type.tensor_type.HasField("shape") for value in model.graph.output)
        if known and "SimplifiedLayerNormalization" not in case.ops():  # which ONNX Runtime alone has in ONNX's domain
            # What only running tells has no shape, which the checker wants.
            onnx.checker.check_model(model, skip_opset_compatibility_check=True)  # functions of older opsets are wanted
        try:
            onnxruntime.InferenceSession(case.model, options)
        except Exception as error:  # noqa: BLE001 - it has classes of its own
            refused[str(error)[:60]] += 1
    assert sum(refused.values()) < 0.3 * count, refused


def test_a_seed_is_the_same_case_in_every_process():
    def digest() -> str:
        command = (
            "import hashlib; from tunewright.bench.fuzzing.generator import generate_case;"
            "cases = [generate_case(seed) for seed in range(12)];"
            "print(hashlib.sha256(b''.join(c.model for c in cases)).hexdigest(), [c.plan for c in cases],"
            " [float(sum(np.nansum(np.abs(a.astype(float))) for a in f.values())) for c in cases for f in c.feeds])"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = [sys.executable, "-P", "-W", "ignore", "-c", f"import numpy as np; {command}"]
        return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout

    assert digest() == digest()


def test_every_op_of_the_opsets_has_a_recipe_or_a_reason():
    prefixes = {"learned": f"{LEARNED}.", "contributed": f"{CONTRIBUTED}."}
    recipes = {f"{prefixes.get(family, '')}{name}" for family, (table, _) in FAMILIES.items() for name in table}
    within = {"Constant", "OptionalGetElement", "OptionalHasElement"}  # drawn by the recipes of others
    assert opset_ops() - set(UNSUPPORTED) - recipes - within == set()
    contributed = {f"{domain}.{name}" for domain, name in contrib.OPS if domain}
    assert contributed - set(UNSUPPORTED) - recipes == set()


def test_ops_are_judged_by_names_that_onnx_has():
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()} | {"Silu"}
    assert known >= EXACT | CURVES | STEPS | LINEAR | COARSE | MOVING | CALCULATING
    assert not EXACT & CURVES


def test_every_reason_is_told_in_the_docs():
    text = DOCS.read_text()
    assert all(f"| {reason} |" in text for reason in (*EXPLANATIONS, *SHAPE_EXPLANATIONS, TOO_SLOW, VARYING_SHAPE))


# Programs


def test_a_program_has_functions_put_in_with_their_attributes_and_defaults():
    leaky = node("LeakyRelu", ["a"], ["b"])
    linked = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    leaky.attribute.append(linked)
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [leaky], [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("slope", 0.7)],
    )  # fmt: skip
    calls = [node("F", ["x"], ["h"], domain="own"), node("F", ["h"], ["y"], domain="own", slope=0.5)]
    case = case_of(calls, {"x": np.array([-2.0, 3.0], np.float32)}, functions=[function])
    values = evaluate_tensors(flatten(case.proto()), case.feeds[0])
    np.testing.assert_allclose(values["y"], [-0.7, 3.0], rtol=1e-6)


# Bounds


def test_a_quotient_has_one_right_floor():
    x = np.arange(0, 2000, dtype=np.float32)
    case = case_of([node("Div", ["x", "c"], ["q"]), node("Floor", ["q"], ["y"])], {"x": x}, {"c": np.float32(41)})
    bound = bound_of(case)
    assert bound.allows(np.floor(x / np.float32(41))).all()
    assert not bound.allows(np.floor(x * np.float32(1 / 41))).all()


def test_a_floor_of_a_sum_at_a_step_may_go_either_way_but_no_further():
    x = np.array([0.1] * 10, np.float32)  # its sum is 1, or just below
    case = case_of([node("ReduceSum", ["x"], ["s"], keepdims=0), node("Floor", ["s"], ["y"])], {"x": x}, opset=11)
    bound = bound_of(case)
    assert bound.allows(np.array(0.0)) and bound.allows(np.array(1.0))
    assert not bound.allows(np.array(20.0))


def test_what_cancels_has_the_room_of_its_operands():
    x = np.full((1, 64), 1e4, np.float32)
    w = np.concatenate([np.full((32, 1), 0.1), np.full((32, 1), -0.1)]).astype(np.float32)
    bound = bound_of(case_of([node("MatMul", ["x", "w"], ["y"])], {"x": x}, {"w": w}))
    assert bound.allows(np.array([[1e-3]]))
    assert not bound.allows(np.array([[1.0]]))


def test_terms_of_a_cubic_interpolation_may_cancel():
    """Weights have both signs: next to 0 the error is that of the terms."""
    x = np.array([[[[0.0, 0.0, 36.0, 1.0, 1.0, 0.0]]]], np.float32)
    scales = {"s": np.array([1, 1, 1, 2], np.float32)}
    bound = bound_of(case_of([node("Resize", ["x", "", "s"], ["y"], mode="cubic")], {"x": x}, scales))
    smallest = np.abs(bound.centre).argmin()
    error = np.zeros_like(bound.centre)
    error.flat[smallest] = 4e-6
    assert bound.allows(np.add(bound.centre, error)).all()
    error.flat[smallest] = 1e-3
    assert not bound.allows(np.add(bound.centre, error)).all()


@pytest.mark.parametrize("op", ["Celu", "Elu", "Selu"])
def test_what_a_formula_subtracts_may_be_large(op: str):
    """`alpha * exp(x) - alpha` in single precision is off by as much as alpha is."""
    x = np.array([-1e-4], np.float32)
    small, large = (bound_of(case_of([node(op, ["x"], ["y"], alpha=alpha)], {"x": x})) for alpha in (1.0, 1000.0))
    for bound, error in ((small, 1e-4), (large, 1e-2)):
        assert bound.allows(np.add(bound.centre, 1e-3 * error)).all()
        assert not bound.allows(np.add(bound.centre, error)).any()


@pytest.mark.parametrize("op", ["If", "Loop", "Scan"])
def test_what_cancels_in_a_body_has_the_room_of_its_operands(op: str):
    """An evaluator that ran the body at once would say nothing of what is rounded inside."""
    x = np.zeros((1, 2), np.float32)
    inner = [node("Exp", ["r"], ["a"]), node("Sub", ["a", "c"], ["o"])]
    row, flag = (helper.make_tensor_value_info(name, kind, ()) for name, kind in (("i", 7), ("k", 9)))
    r, s, o = (helper.make_tensor_value_info(name, 1, [2]) for name in ("r", "s", "o"))
    same = node("Identity", ["k"], ["k2"])
    if op == "If":
        taken = helper.make_graph([node("Identity", ["x"], ["r"]), *inner], "b", [], [o])
        flow = node("If", ["t"], ["y"], then_branch=taken, else_branch=taken)
    elif op == "Loop":
        go_on = helper.make_tensor_value_info("k2", 9, ())
        body = helper.make_graph([*inner, same], "b", [row, flag, r], [go_on, o])
        flow = node("Loop", ["n", "", "x"], ["y"], body=body)
    else:
        body = helper.make_graph([*inner, node("Identity", ["s"], ["s2"])], "b", [s, r], [s, o])
        body.output[0].name = "s2"
        flow = node("Scan", ["z", "x"], ["", "y"], body=body, num_scan_inputs=1)
    weights = {"c": np.float32(1), "t": np.array(True), "n": np.array(1), "z": np.zeros(2, np.float32)}
    bound = bound_of(case_of([flow], {"x": x}, weights))
    assert bound.allows(x + np.float32(2.4e-7)).all()
    assert not bound.allows(x + np.float32(1e-4)).any()


def test_a_large_constant_added_and_taken_away_rounds():
    x = np.array([0.3, 1.7], np.float32)
    big = np.float32(12582912)
    case = case_of([node("Add", ["x", "c"], ["a"]), node("Sub", ["a", "c"], ["y"])], {"x": x}, {"c": big})
    assert list(bound_of(case).allows(x)) == [False, False]
    assert bound_of(case, Leeway(regrouped=True)).allows(np.array([0.0, 2.0])).all()
    assert not bound_of(case, Leeway(regrouped=True)).allows(x).any()


def test_two_small_factors_may_not_be_joined():
    x = np.array([1e20], np.float32)
    small, large = np.float32(1e-25), np.float32(1e20)
    nodes = [node("Mul", ["x", "s"], ["a"]), node("Mul", ["a", "s"], ["b"]), node("Mul", ["b", "l"], ["y"])]
    case = case_of(nodes, {"x": x}, {"s": small, "l": large})
    assert not bound_of(case, Leeway(regrouped=True)).allows(np.zeros(1)).any()


def test_narrow_floats_may_stay_wide_but_not_before_a_step():
    x = np.array([300.0], np.float16)
    nodes = [node("Mul", ["x", "x"], ["a"]), node("Div", ["a", "x"], ["y"])]  # 90000 is beyond float16
    wide = np.array([300.0], np.float16)
    assert not bound_of(case_of(nodes, {"x": x})).allows(wide).any()
    assert bound_of(case_of(nodes, {"x": x}), Leeway(wide=True)).allows(wide).all()
    stepped = [*nodes[:1], node("Div", ["a", "x"], ["q"]), node("Floor", ["q"], ["y"])]
    assert not bound_of(case_of(stepped, {"x": x}), Leeway(wide=True)).allows(wide).any()
    cast = [*nodes, node("Cast", ["y"], ["z"], to=onnx.TensorProto.FLOAT)]  # is no step
    bound = bound_of(case_of(cast, {"x": x}, outputs=("z",)), Leeway(wide=True))
    assert bound.allows(wide.astype(np.float32)).all()


def test_where_a_sum_overflows_on_the_way_both_are_right():
    x = np.array([[3e38, 3e38, -3e38]], np.float32)
    bound = bound_of(case_of([node("ReduceSum", ["x"], ["y"], keepdims=0)], {"x": x}, opset=11))
    assert bound.allows(np.array(np.inf)) and bound.allows(np.array(3e38))


# Verdicts


def rewrite_with_fault(graph: Graph, **options: Any) -> Graph:
    """What was wrong once: a quotient by a constant as a product."""
    constants, nodes, types = dict(graph.constants), [], dict(graph.types)
    for graph_node in graph.nodes:
        if graph_node.op == "Div" and graph_node.inputs[1] in constants:
            name = f"{graph_node.outputs[0]}0000"
            constants[name] = np.reciprocal(constants[graph_node.inputs[1]].astype(np.float32))
            types[name] = graph.types[graph_node.inputs[1]]
            graph_node = Node("Mul", (graph_node.inputs[0], name), graph_node.outputs, {}, "", graph_node.version)
        nodes.append(graph_node)
    return rewrite(Graph(graph.inputs, graph.outputs, tuple(nodes), constants, types), **options)


def steps_of_41() -> FuzzCase:
    x = np.arange(40, 50, dtype=np.float32).reshape(2, 1, 5)
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Div", ["a", "c"], ["b"]),
        node("Floor", ["b"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        node("Softmax", ["x"], ["s"], axis=1),
        node("Tanh", ["t"], ["y"]),
    ]
    case = case_of(nodes, {"x": x}, {"c": np.array([41], np.float32)}, outputs=("s", "y"))
    return replace(case, feeds=({"x": np.ones_like(x)}, {"x": x}), plan=RunPlan(3, is_random=True, threads=2))


def test_a_sound_model_is_answered_alike_on_random_schedules():
    case = steps_of_41()
    verdict = judge(case, answer_case(case))
    assert verdict == CaseVerdict(None, (), (OURS, RUNTIME, EVALUATOR))


def test_a_wrong_rewrite_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tunewright.tuner.models.model.rewrite", rewrite_with_fault)

    def finding(case: FuzzCase) -> Finding | None:
        return judge(case, answer_case(case)).finding

    case = steps_of_41()
    first = finding(case)
    assert first is not None and first.kind == "values (ours)"
    smaller = shrink(
        case,
        lambda smaller_case: (other := finding(smaller_case)) is not None and other.signature == first.signature,
        lambda smaller_case: evaluate_tensors(flatten(smaller_case.proto()), smaller_case.feeds[0]),
    )
    assert sorted(smaller.ops()) == ["Div", "Floor"]
    [feeds] = smaller.feeds
    assert sum(array.size for array in feeds.values()) <= 4
    assert smaller.plan == RunPlan(3)
    assert any("Floor(" in line for line in smaller.lines())


def test_a_refusal_of_what_others_run_is_a_finding_and_so_is_a_traceback():
    case = steps_of_41()
    answers = answer_case(case)
    refused = replace(answers, ours=CaseAnswer(error="ModelError: no 'x7' [2, 3]", is_clear=True))
    assert judge(case, refused).finding == Finding(f"refused, but {RUNTIME} runs it", "ModelError: no 'x7' [2, 3]")
    failed = replace(answers, ours=CaseAnswer(error="KeyError in a/b.py:f: 3", text="Traceback"))
    first = judge(case, failed).finding
    assert first is not None and first.kind == "traceback (ours)"
    other = replace(answers, ours=CaseAnswer(error="KeyError in a/b.py:f: 15", text="Traceback"))
    second = judge(case, other).finding
    assert second is not None and second.signature == first.signature
    nobody = replace(
        refused, runtime=CaseAnswer(error="no", is_clear=True), evaluator=CaseAnswer(error="no", is_clear=True)
    )
    assert judge(case, nobody).finding is None


@pytest.mark.parametrize(
    ("who", "kind", "reasons"),
    [(OURS, "values (ours)", ()), (EVALUATOR, "values (evaluator)", ()), (RUNTIME, "", ("ONNX Runtime stands alone",))],
)
def test_who_is_wrong_is_named(who: str, kind: str, reasons: tuple[str, ...]):
    case = steps_of_41()
    answers = answer_case(case)
    wrong = CaseAnswer(tuple(tuple(array + np.float32(0.01) for array in outputs) for outputs in answers.ours.outputs))
    spoiled = {
        OURS: replace(answers, ours=wrong),
        EVALUATOR: replace(answers, evaluator=wrong),
        RUNTIME: replace(answers, runtime=wrong),
    }
    verdict = judge(case, spoiled[who])
    assert (verdict.finding.kind if verdict.finding else "") == kind
    assert verdict.reasons == reasons


def test_the_evaluator_may_be_on_another_step_alone():
    """Its sums are of another order: which of two numbers comes first may differ, where the others agree."""
    nodes = [helper.make_node("Sqrt", ["x"], ["s"]), helper.make_node("Unique", ["s"], ["z", "y"])]
    case = case_of(nodes, {"x": np.array([4, 1, 4, 9], np.float32)}, outputs=("y",))
    answers = answer_case(case)
    other = CaseAnswer(((np.array([1, 3, 0]),),))
    assert judge(case, replace(answers, evaluator=other)).reasons == ("the evaluator stands alone",)
    assert judge(case, replace(answers, evaluator=other, runtime=other)).finding is not None


def test_what_onnx_runtime_counts_before_it_rounds_is_explained():
    """The square is 0 in float16, which ONNX Runtime computes in float32."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["t"]), helper.make_node("NonZero", ["t"], ["y"])]
    case = case_of(nodes, {"x": np.full(1, 1.66e-4, np.float16)}, outputs=("y",))
    answers = answer_case(case)
    none, one = (CaseAnswer(((np.zeros((1, count), np.int64),),)) for count in range(2))
    assert judge(case, replace(answers, ours=none, runtime=one)).reasons == ("narrow floats stay wide",)
    assert judge(case, replace(answers, ours=one, runtime=none)).finding is not None


def test_the_size_of_the_least_number_is_beyond_its_type():
    """ONNX Runtime divides by the size that int32 has of it, which is negative."""
    normalizer = node("Normalizer", ["x"], ["y"], domain=LEARNED, norm="L1")
    case = case_of([normalizer], {"x": np.full((1, 1), -(2**31), np.int32)}, learned=3)
    answers = answer_case(case)
    assert judge(case, answers).reasons == ("whole numbers overflow",)
    other = replace(answers, ours=answers.runtime, runtime=answers.ours)
    assert judge(case, other).finding is not None


def test_numbers_beyond_their_type_may_be_counted_as_others():
    nodes = [node("ReduceL1", ["x", "axes"], ["t"]), node("Unique", ["t"], ["y"])]
    case = case_of(nodes, {"x": np.array([[-(2**63), 1 - 2**63]])}, {"axes": [0]}, opset=21)
    answers = answer_case(case)
    one, two = (CaseAnswer(((np.zeros(count, np.int64),),)) for count in (1, 2))
    assert judge(case, replace(answers, ours=two, runtime=one)).reasons == ("whole numbers overflow",)
    assert judge(case, replace(answers, ours=one, runtime=two)).finding is not None


def test_numbers_that_nothing_is_calculated_from_explain_no_shape() -> None:
    nodes = [node("Slice", ["x", "starts", "ends"], ["y"])]
    case = case_of(nodes, {"x": np.zeros(3, np.float32)}, {"starts": [1], "ends": [2**63 - 1]})
    longer = CaseAnswer(((np.zeros(3, np.float32),),))
    finding = judge(case, replace(answer_case(case), ours=longer, evaluator=NOT_ASKED)).finding
    assert finding is not None and finding.kind == "shape (ours)"


def test_another_meaning_within_a_function_is_explained():
    """LogSoftmax of opset 10 goes over all axes from the first on, later over the last one."""
    body = [node("LogSoftmax", ["a"], ["b"], axis=0)]
    function = helper.make_function("own", "f", ["a"], ["b"], body, [helper.make_opsetid("", 10)])
    case = case_of([node("f", ["x"], ["y"], domain="own")], {"x": np.zeros((1, 2), np.float32)}, functions=[function])
    answers = answer_case(case)
    assert judge(case, answers).reasons == ("ONNX Runtime reads functions by the model's opset",)
    wrong = CaseAnswer(((np.ones((1, 2), np.float32),),))
    assert judge(case, replace(answers, ours=wrong)).finding is not None


def test_small_numbers_that_onnx_runtime_squares_are_explained():
    normalizer = node("Normalizer", ["x"], ["y"], domain=LEARNED, norm="L2")
    case = case_of([normalizer], {"x": np.array([[1, 1e-25]], np.float32)}, learned=5)
    answers = answer_case(case)
    assert judge(case, answers).reasons == ("ONNX Runtime squares small numbers",)
    wrong = CaseAnswer(((np.array([[1, 1e-15]], np.float32),),))
    assert judge(case, replace(answers, runtime=wrong)).finding is not None


def test_softmaxes_of_one_byte_are_explained() -> None:
    softmax = node("QLinearSoftmax", ["x", "step", "zero", "step", "zero"], ["y"], domain=CONTRIBUTED, opset=13)
    constants = {"step": np.float32(1 / 256), "zero": np.uint8(0)}
    for count, is_explained in ((1, True), (2, False)):
        case = case_of([softmax], {"x": np.full((1, count), 195, np.uint8)}, constants, contributed=1)
        answers = answer_case(case)
        zeros = CaseAnswer(((np.zeros((1, count), np.uint8),),))
        verdict = judge(case, replace(answers, runtime=zeros))
        assert ("ONNX Runtime wraps the softmax of one byte" in verdict.reasons) is is_explained
        assert (verdict.finding is None) is is_explained


def test_lone_places_of_a_grid_are_explained() -> None:
    feeds: dict[str, Array] = {"x": np.ones((1, 2, 3), np.float32)}
    case = case_of([node("AffineGrid", ["x", "s"], ["y"], align_corners=1)], feeds, {"s": [1, 1, 1, 2]}, opset=20)
    assert "ONNX Runtime puts a lone place last" in judge(case, answer_case(case)).reasons


def test_means_of_nearly_equal_numbers_are_explained_beside_others() -> None:
    """What a mean's rounding may change follows from the numbers that it is taken of, not from all of the tensor."""
    x = np.array([[1, 1 - 3e-4], [1e-3, -9.0]], np.float32)
    case = case_of([node("MeanVarianceNormalization", ["x"], ["y"], axes=[1])], {"x": x})
    answers = answer_case(case)
    right = bound_of(case).centre
    for shift, is_explained in ((4e-4, True), (4e-2, False)):
        moved = np.add(right, [[shift], [0.0]]).astype(np.float32)
        verdict = judge(case, replace(answers, ours=CaseAnswer(((moved,),))))
        assert (verdict.finding is None) is is_explained


def test_means_of_nearly_equal_numbers_explain_nothing_of_others() -> None:
    x = np.array([[1, 1 + 1.2e-7, 1, 1], [1, 2, 3, 4]], np.float32)
    case = case_of([node("MeanVarianceNormalization", ["x"], ["t"], axes=[1]), node("Neg", ["t"], ["y"])], {"x": x})
    answers = answer_case(case)
    first, second = bound_of(case).centre
    for shift in (0.0, 1e-2):  # which the mean of the first row explains, and only there
        for row, is_explained in ((second, True), (second[::-1], False)):
            wrong = CaseAnswer(((np.array([first + shift, row], np.float32),),))
            assert (judge(case, replace(answers, ours=wrong)).finding is None) is is_explained


def test_means_of_nearly_equal_numbers_are_explained_where_they_have_moved() -> None:
    x = np.array([[1, 1 - 3e-4], [1e-3, -9.0]], np.float32)
    nodes = [node("MeanVarianceNormalization", ["x"], ["t"], axes=[1]), node("Transpose", ["t"], ["y"])]
    case = case_of(nodes, {"x": x})
    moved = np.add(bound_of(case).centre, [[4e-4, 0.0], [4e-4, 0.0]]).astype(np.float32)
    assert judge(case, replace(answer_case(case), ours=CaseAnswer(((moved,),)))).finding is None


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_what_leaves_float32_is_explained(size: float) -> None:
    case = case_of([node("Normalizer", ["x"], ["y"], domain=LEARNED)], {"x": np.full((1, 1), size)}, learned=3)
    answers = answer_case(case)
    assert not np.array_equal(answers.ours.outputs, answers.runtime.outputs)
    assert judge(case, answers).reasons == ("float64 in float32",)


def test_another_shape_is_a_finding():
    case = steps_of_41()
    answers = answer_case(case)
    flat_outputs = tuple(tuple(array.ravel() for array in outputs) for outputs in answers.ours.outputs)
    finding = judge(case, replace(answers, ours=CaseAnswer(flat_outputs))).finding
    assert finding is not None and finding.kind == "shape (ours)"


# Processes


def test_a_process_that_dies_or_hangs_is_a_finding_and_the_next_goes_on(tmp_path: Path):
    worker = JudgeWorker(tmp_path)
    try:
        assert worker.judge(steps_of_41()).verdict.finding is None
        process = worker._process
        assert process is not None and process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        dead = worker.judge(steps_of_41()).verdict.finding
        assert dead is not None and dead.kind.startswith("dies with code -9")
        hung = worker.judge(steps_of_41(), limit_s=0.0).verdict.finding
        assert hung is not None and hung.kind.startswith("hangs")
        assert worker.judge(steps_of_41()).verdict.finding is None
    finally:
        worker.close()


def test_a_run_reports_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    options = ["--models", "4", "--first", "0", "--workers", "1", "--seeds", str(tmp_path / "seeds.json")]
    options += ["--results", str(tmp_path / "results.json")]
    monkeypatch.setattr(sys, "argv", ["differential", *options, "--keep", str(tmp_path / "kept")])
    differential.main()
    assert "4 models in " in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["models"] == 4


# Reports


def test_findings_are_grouped_by_what_the_smaller_ones_are_made_of(tmp_path: Path):
    report = FuzzReport()
    smaller = case_of([node("Exp", ["x"], ["y"])], {"x": np.zeros(3, np.float32)})
    for seed in (5, 6, 9):
        judgement = Judgement(CaseVerdict(Finding("values (ours)", f"at {seed}"), (), (OURS, RUNTIME)), ("Exp", "Add"))
        report.hear(SeedResult(seed, judgement, smaller if seed < 9 else None, "0 not 1"))
    report.hear(SeedResult(7, Judgement(CaseVerdict(None, ("what is no number",), (OURS, RUNTIME)), ("Exp",))))
    text = "\n".join(report.lines())
    assert "2 x values (ours) of Exp; seeds 5, 6" in text
    assert "y = Exp(x)" in text
    assert report.findings == 3
    assert report.models_by_op["Exp"] == 4
    assert "Softmax" in report.missing_ops() and "RandomNormal" not in report.missing_ops()

    write_cases(report, tmp_path)
    assert onnx.load(tmp_path / "00" / "model.onnx").graph.node[0].op_type == "Exp"
    with np.load(tmp_path / "00" / "inputs.npz") as arrays:
        assert arrays["x"].shape == (3,)

    path = tmp_path / "seeds.json"
    add_seeds(path, report)
    assert read_seeds(path) == {5: "values (ours) of Exp", 6: "values (ours) of Exp", 9: "values (ours)"}
    add_seeds(path, FuzzReport())
    assert len(read_seeds(path)) == 3


def test_numbers_beside_one_that_is_none_are_explained_by_their_own_means() -> None:
    x = np.array([[1, 1 - 3e-4], [np.nan, -9.0]], np.float32)
    case = case_of([node("MeanVarianceNormalization", ["x"], ["y"], axes=[1])], {"x": x})
    moved = np.add(bound_of(case).centre, [[4e-4], [0.0]]).astype(np.float32)
    assert judge(case, replace(answer_case(case), ours=CaseAnswer(((moved,),)))).finding is None


@pytest.mark.parametrize(("error", "is_explained"), [(1e-7, True), (1e-2, False)])
def test_windows_over_nothing_have_the_error_of_the_largest_nearby(error: float, is_explained: bool) -> None:
    """Winograd's convolutions add and subtract what is in the rest of a tile."""
    x, w = (
        np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((1, 4, 1, 4), (2, 4, 3, 3))
    )
    case = case_of([node("Conv", ["x", "w"], ["y"], pads=[3, 1, 0, 1])], {"x": x}, {"w": w})
    answers = answer_case(case)
    [[right]] = answers.evaluator.outputs
    assert not right[..., 0, :].any()
    verdict = judge(case, replace(answers, ours=CaseAnswer(((right + np.float32(error),),))))
    assert (verdict.finding is None) is is_explained


def test_a_number_whose_square_is_nothing_is_its_own_size() -> None:
    case = case_of([node("ReduceL2", ["x"], ["y"], keepdims=0)], {"x": np.full(1, -2.3e-308)}, opset=20)
    answers = answer_case(case)
    for size, is_explained in ((2.3e-308, True), (1e-100, False)):
        verdict = judge(case, replace(answers, ours=CaseAnswer(((np.array(size),),))))
        assert (verdict.finding is None) is is_explained


def test_whole_numbers_that_shrink_beyond_their_type_are_explained() -> None:
    x = np.array([2**32 - 1, 7], np.uint32)
    case = case_of([node("Shrink", ["x"], ["y"], bias=-2.5)], {"x": x}, opset=20)
    answers = answer_case(case)
    wrong = CaseAnswer(((np.array([5, 9], np.uint32),),))
    assert "whole numbers shrink beyond their type" in judge(case, replace(answers, ours=wrong)).reasons
    small = replace(case, feeds=({"x": np.array([4, 7], np.uint32)},))
    assert judge(small, replace(answer_case(small), ours=wrong)).finding is not None


def test_tensors_in_between_are_known_where_the_evaluator_is_not_asked() -> None:
    nodes = [node("Sqrt", ["x"], ["t"]), node("Neg", ["t"], ["y"])]
    case = case_of(nodes, {"x": np.array([4.0], np.float32)}, outputs=("y",))
    assert runtime_tensors(case, 0) == {"t": [2.0], "y": [-2.0]}


def test_which_results_are_found_rounding_decides_as_well_as_how_many() -> None:
    """Differences of 1 and sigmoids near a half have few places, and of those that are alike there is one."""
    nodes = [node("Sigmoid", ["x"], ["t"]), node("Sub", ["t", "h"], ["d"]), node("Unique", ["d"], ["y"])]
    x = np.array([1e-7, 2e-7, 3e-7, 4e-7], np.float32)
    case = case_of(nodes, {"x": x}, {"h": np.float32(0.5)}, outputs=("y",))
    answers = answer_case(case)
    [[right]] = answers.ours.outputs
    moved = CaseAnswer(((right + np.float32(3e-8),),))
    assert judge(case, replace(answers, ours=moved)).reasons == ("rounding decides of the shape",)


def test_windows_that_begin_inside_are_explained() -> None:
    pool = node(
        "NhwcMaxPool", ["x"], ["y"], domain="com.microsoft", auto_pad="SAME_UPPER", kernel_shape=[1, 1], strides=[1, 3]
    )
    case = case_of([pool], {"x": np.array([54, 134, 2], np.uint8).reshape(1, 1, 3, 1)}, contributed=1)
    assert judge(case, answer_case(case)).reasons == ("ONNX Runtime begins inside",)


@pytest.mark.parametrize(("error", "is_explained"), [(3e-8, True), (1e-4, False)])
def test_a_gate_that_is_recognised_has_the_error_of_its_limits(error: float, is_explained: bool) -> None:
    nodes = [
        node("Add", ["x", "three"], ["s"]), node("Clip", ["s", "nil", "six"], ["c"]),
        node("Div", ["c", "six"], ["g"]), node("Mul", ["x", "g"], ["y"]),
    ]  # fmt: skip
    constants = {name: np.float32(value) for name, value in (("three", 3), ("nil", 0), ("six", 6))}
    case = case_of(nodes, {"x": np.array([-2.9957], np.float32)}, constants)
    answers = answer_case(case)
    [[right]] = answers.evaluator.outputs
    verdict = judge(case, replace(answers, ours=CaseAnswer(((right + np.float32(error),),))))
    assert (verdict.finding is None) is is_explained


@pytest.mark.parametrize(("scale", "is_explained"), [(1e38, True), (1e30, False)])
def test_a_sum_whose_terms_overflow_with_their_scale_is_explained(scale: float, is_explained: bool) -> None:
    nodes = [node("MatMul", ["x", "w"], ["t"]), node("Mul", ["t", "s"], ["y"])]
    constants = {"w": np.array([[3.0], [-2.0]], np.float32), "s": np.float32(scale)}
    case = case_of(nodes, {"x": np.ones((1, 2), np.float32)}, constants)
    answers = replace(answer_case(case), ours=CaseAnswer(((np.full((1, 1), np.inf, np.float32),),)))
    assert (judge(case, answers).finding is None) is is_explained
