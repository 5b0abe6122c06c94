"""Precisions in the differential fuzzer: they are drawn, what they round is allowed, and faults of them are found."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tunewright.bench import differential
from tunewright.bench.fuzzing import generator
from tunewright.bench.fuzzing.answers import CaseAnswer, CaseAnswers, answer_case, evaluate_tensors
from tunewright.bench.fuzzing.bounds import Bound, Leeway, output_bound
from tunewright.bench.fuzzing.case import FuzzCase, RunPlan
from tunewright.bench.fuzzing.generator import ROUNDED_SEEDS, generate_case
from tunewright.bench.fuzzing.judge import Finding, judge
from tunewright.bench.fuzzing.program import flatten
from tunewright.bench.fuzzing.shrink import shrink
from tunewright.graph.numerics import Precision
from tunewright.graph.rewrites.edit import Edit

onnxruntime = pytest.importorskip("onnxruntime")

BF16, BYTES = (importlib.import_module(f"tunewright.graph.rewrites.{n}") for n in ("bf16_products", "byte_activations"))

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def case_of(precision: Precision, nodes: list[onnx.NodeProto], x: Any, **constants: Any) -> FuzzCase:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    kind = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    graph = helper.make_graph(nodes, "g", [kind], [helper.make_empty_tensor_value_info("y")], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return FuzzCase(0, model.SerializeToString(), ({"x": x},), RunPlan(0, precision=precision))


def float_product(x: Any) -> FuzzCase:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Tanh", ["t"], ["y"])]
    return case_of(Precision.BF16, nodes, x, w=normal(x.shape[-1], 16) / 8)


def byte_product(x: Any) -> FuzzCase:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Neg", ["t"], ["y"]),
    ]
    weights = RNG.integers(-127, 128, (x.shape[-1], 16)).astype(np.int8)
    return case_of(Precision.INT8_ACTIVATIONS, nodes, x, q=weights, s=np.float32(0.01))


def block_product(x: Any) -> FuzzCase:
    columns, size = 16, 32
    blocks = x.shape[-1] // size
    attrs = {"K": x.shape[-1], "N": columns, "bits": 4, "block_size": size}
    node = helper.make_node("MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft", **attrs)
    weights = RNG.integers(0, 256, (columns, blocks, size // 2)).astype(np.uint8)
    weights[:, 0, 1] = weights[:, 0, 1] % 16 + 16 * 8  # the fourth of all is 8, which stands for 0
    scales = RNG.uniform(0.01, 0.02, (columns, blocks)).astype(np.float32)
    return case_of(Precision.INT8_ACTIVATIONS, [node], x, q=weights, s=scales)


CASES = {"bf16": float_product, "bytes": byte_product, "blocks": block_product}

MakeCase = Callable[[Any], FuzzCase]


def test_precisions_are_drawn_last_for_some_and_for_all_of_the_seeds_that_have_products_to_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = range(40)
    cases = [generate_case(seed) for seed in seeds]
    counts = Counter(case.plan.precision for case in cases)
    assert set(counts) == set(Precision) and counts[Precision.AS_GIVEN] > 20
    rounded = Counter(generate_case(ROUNDED_SEEDS + n).plan.precision for n in range(12))
    assert set(rounded) == {Precision.BF16, Precision.INT8_ACTIVATIONS}
    monkeypatch.setattr(generator, "PRECISIONS", {Precision.AS_GIVEN: 1.0})
    for seed, case in zip(seeds, cases, strict=True):
        other = generate_case(seed)
        assert other.model == case.model and other.plan == replace(case.plan, precision=Precision.AS_GIVEN)
        for theirs, ours in zip(other.feeds, case.feeds, strict=True):
            assert {name: a.tobytes() for name, a in theirs.items()} == {name: a.tobytes() for name, a in ours.items()}


def test_a_model_for_which_no_op_was_valid_has_one() -> None:
    assert generate_case(1_690_832_704).ops()


def test_one_of_some_seeds_is_of_those_with_products_to_round() -> None:
    assert [*islice(differential.fresh_seeds(6), 4)] == [6, 7, 8 + ROUNDED_SEEDS, 9]
    first = ROUNDED_SEEDS + 7
    assert [*islice(differential.fresh_seeds(first), 3)] == [first, first + 1, first + 2]


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_right_answer_is_no_finding_and_is_told(make: MakeCase) -> None:
    case = replace(make(normal(5, 64)), plan=RunPlan(3, is_random=True, precision=make(normal(5, 64)).plan.precision))
    answers = answer_case(case)
    assert answers.rounded is not None and not answers.rounded.error
    difference = np.abs(answers.rounded.outputs[0][0] - answers.ours.outputs[0][0])
    assert 1e-4 < difference.max() < 0.1
    assert judge(case, answers).finding is None
    assert f"also in {case.plan.precision}" in next(case.lines())


def test_models_without_such_products_are_run_once() -> None:
    for make in (float_product, byte_product):
        case = make(normal(5, 63))
        assert answer_case(case).rounded is None


def judged(case: FuzzCase, change: Callable[[Any], Any]) -> Finding | None:
    """The finding with rounded outputs changed."""
    answers = answer_case(case)
    assert answers.rounded is not None
    [[y]] = answers.rounded.outputs
    changed: CaseAnswers = replace(answers, rounded=CaseAnswer(((change(y),),)))
    return judge(case, changed).finding


def one_number(value: float) -> Callable[[Any], Any]:
    def change(y: Any) -> Any:
        changed = y.copy()
        changed[1, 2] = value
        return changed

    return change


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda y: y * np.float32(1.1), "values"),
        (one_number(np.nan), "values"),
        (one_number(np.inf), "values"),
        (lambda y: y[:4], "shape"),
        (lambda y: y.astype(np.float64), "type"),
    ],
    ids=["a tenth more", "not a number", "infinite", "fewer rows", "wider"],
)
def test_a_wrong_answer_is_a_finding(make: MakeCase, change: Callable[[Any], Any], kind: str) -> None:
    case = make(normal(5, 64))
    finding = judged(case, change)
    assert finding is not None and finding.kind == f"{kind} (ours in {case.plan.precision})"


def test_no_number_is_a_finding_beside_infinite_operands_too() -> None:
    """Where the answer as given is a number; else zeros times infinities explain it."""
    x = normal(5, 64)
    x[1, 3] = np.inf
    assert judged(float_product(x), lambda y: y) is None
    finding = judged(float_product(x), one_number(np.nan))
    assert finding is not None and finding.kind == "values (ours in bf16)"


@pytest.mark.parametrize(("divisor", "is_found"), [(0.0, False), (2.0, True)])
def test_no_number_is_none_where_a_rounded_sum_may_be_0_divided_by_0(divisor: float, is_found: bool) -> None:
    x, w = np.zeros((5, 64), np.float32), np.zeros((64, 16), np.float32)
    x[:, :3], w[:3, :] = (1.0, 1.0 + 2.0**-10, 2.0**-20), [[1.0 + 2.0**-10], [-1.0], [1.0]]  # 2^-20 is left of each sum
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Div", ["t", "c"], ["u"]),
        helper.make_node("Atan", ["u"], ["y"]),
    ]
    finding = judged(case_of(Precision.BF16, nodes, x, w=w, c=np.float32(divisor)), one_number(np.nan))
    assert (finding is not None) is is_found


def found(case: FuzzCase) -> Finding | None:
    return judge(case, answer_case(case)).finding


@pytest.mark.slow
def test_a_wrong_zero_point_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantise(edit: Edit, x: str) -> str:
        dequantised = right(edit, x)
        values, scale, zero = edit.producer(dequantised, "DequantizeLinear").inputs  # type: ignore[union-attr]
        three = edit.constant(np.uint8(3))
        return edit.emit("DequantizeLinear", values, scale, edit.emit("Add", zero, three))

    right = BYTES._quantise
    monkeypatch.setattr(BYTES, "_quantise", quantise)
    case = byte_product(normal(5, 64))
    first = found(case)
    assert first is not None and first.kind == "values (ours in int8 activations)"
    smaller = shrink(
        case,
        lambda other: (finding := found(other)) is not None and finding.signature == first.signature,
        lambda other: evaluate_tensors(flatten(other.proto()), other.feeds[0]),
    )
    assert "MatMul" in smaller.ops() and "Neg" not in smaller.ops()
    assert smaller.plan == RunPlan(0, precision=Precision.INT8_ACTIVATIONS)


def test_a_wrong_rounding_of_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(array: Any) -> Any:
        return (array * (1 - 2.0**-4)).astype(ml_dtypes.bfloat16)

    monkeypatch.setattr(BF16, "bf16", halved)
    finding = found(float_product(normal(5, 64)))
    assert finding is not None and finding.kind == "values (ours in bf16)"


def test_a_fault_of_the_model_as_given_is_its_own_whatever_the_precision() -> None:
    case = float_product(normal(5, 64))
    answers = answer_case(case)
    [[y]] = answers.ours.outputs
    finding = judge(case, replace(answers, ours=CaseAnswer(((y * np.float32(1.1),),)))).finding
    assert finding is not None and finding.kind == "values (ours)"


def test_refusals_and_tracebacks_of_a_precision_are_findings() -> None:
    case = float_product(normal(5, 64))
    answers = answer_case(case)
    for error, kind in (
        (CaseAnswer(error="ModelError: no", is_clear=True), "refused (ours in bf16), but not as given"),
        (CaseAnswer(error="KeyError in here", text="..."), "traceback (ours in bf16)"),
    ):
        finding = judge(case, replace(answers, rounded=error)).finding
        assert finding is not None and finding.kind == kind


def bound_of(case: FuzzCase, precision: Precision) -> Bound:
    bound = output_bound(flatten(case.proto()), case.feeds[0], Leeway(precision=precision))
    assert bound is not None
    return bound


def test_a_bound_is_as_wide_as_operands_may_move() -> None:
    x = normal(5, 64)
    for case in (float_product(x), byte_product(x)):
        narrow, wide = (bound_of(case, precision) for precision in (Precision.AS_GIVEN, case.plan.precision))
        assert wide.tolerance.mean() > 30 * narrow.tolerance.mean()
        np.testing.assert_array_equal(wide.centre, narrow.centre)
        assert not wide.is_open.any()
    assert bound_of(byte_product(x), Precision.BF16).tolerance.max() > 0
    same = bound_of(float_product(x), Precision.INT8_ACTIVATIONS)
    assert same.tolerance.max() < 1e-4  # its weights are no bytes


def test_what_is_no_number_takes_what_is_rounded_by_its_step_and_no_more() -> None:
    x = normal(2, 64)
    x[0, 3] = np.inf
    bound = bound_of(byte_product(x), Precision.INT8_ACTIVATIONS)
    assert bound.is_open.all()
    bound = bound_of(float_product(x), Precision.BF16)
    assert not bound.is_open.any()


@pytest.mark.parametrize(("error", "is_explained"), [(1.0, True), (100.0, False)])
def test_zero_points_that_are_summed_apart_have_the_error_of_what_they_take_away(
    error: float, is_explained: bool
) -> None:
    x = normal(2, 64)
    x[1, 3] = 2.0**23 + 1
    case = block_product(x)
    case = replace(case, plan=RunPlan(0))
    answers = answer_case(case)
    [[y]] = answers.evaluator.outputs or answers.runtime.outputs
    wrong = y + np.array([[0.0], [error]])
    verdict = judge(case, replace(answers, ours=CaseAnswer(((wrong.astype(np.float32),),))))
    assert (verdict.finding is None) is is_explained
    assert verdict.reasons == (("recognised and joined",) if is_explained else ())


def test_a_product_that_is_known_may_be_rounded_too() -> None:
    """What is dequantised stays so until products have been looked at."""
    before = block_product(normal(3, 64)).proto().graph
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in before.initializer}
    nodes = [
        helper.make_node("DequantizeLinear", ["p", "n"], ["w"]),
        helper.make_node("MatMul", ["t", "w"], ["u"]),
        helper.make_node("Add", ["x", "u"], ["y"]),
    ]
    before.node[0].input[0], before.node[0].output[0] = "c", "t"
    weights = {"p": RNG.integers(-127, 128, (16, 64)).astype(np.int8), "n": np.float32(0.01)}
    case = case_of(
        Precision.INT8_ACTIVATIONS, [*before.node, *nodes], normal(3, 64), c=normal(3, 64), **known, **weights
    )
    assert answer_case(case).rounded is not None
    assert found(case) is None


def test_a_single_block_is_a_column_and_what_meets_it_is_rounded_by_one_step() -> None:
    x = normal(2, 32)
    x[1, 3] = np.nan
    case = block_product(x)
    rounded = answer_case(case).rounded
    assert rounded is not None and np.isnan(rounded.outputs[0][0][0]).all()
    assert found(case) is None


@pytest.mark.parametrize("x", [np.full((1, 4, 5), np.nan), np.linspace(-3e38, 3e38, 20).reshape(1, 4, 5)])
def test_without_a_range_of_numbers_padding_is_lost_too(x: Any) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[2, 2]),
    ]
    q = RNG.integers(-127, 128, (16, 4, 2)).astype(np.int8)
    case = case_of(Precision.INT8_ACTIVATIONS, nodes, x.astype(np.float32), q=q, s=np.float32(0.01))
    assert np.isnan(answer_case(case).rounded.outputs[0][0]).all()  # type: ignore[union-attr]
    assert found(case) is None


ONCE_FOUND = {
    "a range that some ways alone lose": 1_919_944_472,
    "bytes are exact in bfloat16": 1_919_946_464,
    "equal numbers by the last bit": 919_948_727,
    "rounded beyond the largest": 1_919_951_168,
    "the rounding of a mean": 919_947_549,
    "a step where two are as near": 1_919_955_128,
    "the logarithm of about 1": 1_919_956_568,
    "losses of either infinity": 120_588_161,
    "nothing divided by nothing": 1_120_615_856,
    "a sum that is rounded to nothing divided by nothing": 1_188_588_208,
    "sums of bytes in windows": 919_954_782,
}
"""Seeds of cases that were judged wrong, or computed so."""


@pytest.mark.parametrize("seed", list(ONCE_FOUND.values()), ids=list(ONCE_FOUND))
def test_what_was_found_once_is_found_no_more(seed: int) -> None:
    assert found(generate_case(seed)) is None


@pytest.mark.parametrize("seed", [ROUNDED_SEEDS + n for n in random.Random(5).sample(range(10**6), 3)])
def test_drawn_cases_are_judged(seed: int) -> None:
    assert found(generate_case(seed)) is None
