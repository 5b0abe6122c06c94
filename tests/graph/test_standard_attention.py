"""ONNX's Attention beside ONNX's evaluator, and beside its own definition where that evaluator is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, inliner
from onnx.reference import ReferenceEvaluator

from tunewright.graph.evaluation.causal import CAUSAL
from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.rewrites.masks import causal_masks

from .conftest import Runs
from .correcting import RNG, normal

OPERANDS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
HEADS = {"Q": normal(2, 6, 5, 3), "K": normal(2, 2, 7, 3), "V": normal(2, 2, 7, 4)}
FLAT = {"Q": normal(2, 5, 18), "K": normal(2, 7, 6), "V": normal(2, 7, 8)}
ENDLESS = {**HEADS, **{name: np.abs(HEADS[name]) * np.float32(1e25) for name in "QK"}}  # before they are scaled
COUNTS = {"q_num_heads": 6, "kv_num_heads": 2}
PAST = {"past_key": normal(2, 2, 3, 3), "past_value": normal(2, 2, 3, 4)}


def bools(*shape: int) -> Any:
    return RNG.random(shape) < 0.6


def with_holes(*shape: int) -> Any:
    return np.where(bools(*shape), normal(*shape), np.float32(-np.inf))


def attention(operands: Mapping[str, Any], scores: bool, opset: int, **attrs: Any) -> ModelProto:
    outputs = ["Y", *(("k", "v") if "past_key" in operands else ("", "")), *(("scores",) if scores else ())]
    count = 1 + max(OPERANDS.index(name) for name in operands)
    names = [name if name in operands else "" for name in OPERANDS[:count]]
    node = helper.make_node("Attention", names, outputs, **attrs)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
    ]
    kind = inputs[0].type.tensor_type.elem_type
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs if name]
    graph = helper.make_graph([node], "g", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def evaluated(model: ModelProto, operands: Mapping[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(model).run(None, dict(operands)))


def agree(model: ModelProto, operands: Mapping[str, Any], wanted: list[Any], tolerance: float = 1e-5) -> None:
    """Every node has a kernel, and nodes, rewritten ones and tasks compute what is wanted."""
    graph = load(model.SerializeToString())
    feeds = {port.tensor: operands[port.label] for port in graph.inputs}
    rewritten = rewrite(graph)
    assert not [step for step in partition(rewritten) if isinstance(step, Fallback)]
    for run in (Runs.nodes(graph, feeds), Runs.steps(rewritten, feeds)):
        for result, expected in zip(run, wanted, strict=True):
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            ours, theirs = (array.astype(np.float32) for array in (result, expected))
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("operands", "attrs"),
    [
        (HEADS, {}),
        (HEADS, {"scale": 0.3, "softcap": 1.5, "is_causal": 1}),
        ({**FLAT, **PAST}, {**COUNTS, "is_causal": 1}),
        ({**FLAT, "attn_mask": normal(7)}, {**COUNTS, "softmax_precision": TensorProto.FLOAT}),
        ({**HEADS, "attn_mask": bools(5, 7)}, {}),
        ({**HEADS, "attn_mask": bools(5, 4)}, {"is_causal": 1}),
        ({**HEADS, "attn_mask": with_holes(6, 5, 7)}, {}),
        ({**HEADS, **PAST, "attn_mask": with_holes(2, 1, 5, 9)}, {}),
        ({**HEADS, **PAST, "attn_mask": bools(2, 6, 5, 1)}, {"is_causal": 1}),
        ({**HEADS, "nonpad_kv_seqlen": np.array([7, 2])}, {}),
        ({**HEADS, "nonpad_kv_seqlen": np.array([6, 3])}, {"is_causal": 1}),
        ({**HEADS, "attn_mask": normal(1, 1, 5, 6), "nonpad_kv_seqlen": np.array([1, 5])}, {"is_causal": 1}),
        (HEADS, {"left_window_size": 1, "right_window_size": 2}),
        (ENDLESS, {"scale": 0.0}),
        (ENDLESS, {"scale": 1e-20}),
        ({**HEADS, **PAST}, {"left_window_size": 0, "is_causal": 1}),
        ({**FLAT, "nonpad_kv_seqlen": np.array([6, 3])}, {**COUNTS, "left_window_size": 2, "right_window_size": 0}),
    ],
)
@pytest.mark.parametrize("mode", [None, 1, 2, 3])
def test_attention(operands: dict[str, Any], attrs: dict[str, Any], mode: int | None) -> None:
    attrs = attrs if mode is None else {**attrs, "qk_matmul_output_mode": mode}
    model = attention(operands, mode is not None, 25, **attrs)
    agree(model, operands, evaluated(model, operands))


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_scores_before_a_cap(opset: int) -> None:
    """ONNX's evaluator (1.23.2) shows those after it."""
    operands = {**HEADS, "attn_mask": normal(5, 7)}
    model = attention(operands, True, opset, softcap=0.7)
    definition = inliner.inline_selected_functions(model, [("", "Attention")], inline_schema_functions=True)
    agree(model, operands, evaluated(definition, operands))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types(dtype: str) -> None:
    kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, dtype.upper()))
    operands = {name: array.astype(kind) for name, array in {**HEADS, **PAST}.items()}
    model = attention(operands, False, 24, is_causal=1)
    wide = {name: array.astype(np.float32) for name, array in operands.items()}
    exact = evaluated(attention(wide, False, 24, is_causal=1), wide)
    agree(model, operands, [array.astype(kind) for array in exact], 0.02)


@pytest.mark.parametrize("past", [{}, PAST])
def test_on_gpus_it_is_known_that_no_query_sees_a_later_key(past: dict[str, Any]) -> None:
    operands = {name: array.astype(np.float16) for name, array in {**HEADS, **past}.items()}
    model = attention(operands, False, 24, is_causal=1)
    graph = load(model.SerializeToString())
    kept, added = rewrite(graph, numerics=Numerics(widen=False)), rewrite(graph)
    assert [node.attrs["past"] for node in kept.nodes if node.op == CAUSAL] == [3 if past else 0]
    assert not any(node.op == CAUSAL for node in added.nodes)
    feeds = {port.tensor: operands[port.label] for port in kept.inputs}
    for result, expected in zip(Runs.steps(kept, feeds), Runs.nodes(graph, feeds), strict=True):
        np.testing.assert_allclose(result.astype(float), expected.astype(float), rtol=0.02, atol=0.02)


def test_the_constant_of_its_place_keeps_the_bits() -> None:
    operands = {name: array.astype(np.float16) for name, array in HEADS.items()}
    operands["K"][0, :, -1] = np.inf
    operands["K"][1, 0, 2] = np.nan
    graph = load(attention(operands, False, 24, is_causal=1).SerializeToString())
    masked = causal_masks(graph)
    assert [node.op for node in masked.nodes] == [node.op.replace(CAUSAL, "Add") for node in graph.nodes]
    feeds = {port.tensor: operands[port.label] for port in graph.inputs}
    with np.errstate(invalid="ignore"):
        [expected], [result] = Runs.nodes(graph, feeds), Runs.nodes(masked, feeds)
    np.testing.assert_array_equal(result.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(
    ("operands", "attrs"),
    [
        ({**HEADS, "attn_mask": bools(5, 7)}, {}),
        (HEADS, {"left_window_size": 1}),
        ({**HEADS, "nonpad_kv_seqlen": np.array([6, 3])}, {}),
        ({"Q": normal(2, 6, 1, 3), "K": normal(2, 2, 1, 3), "V": normal(2, 2, 1, 4), **PAST}, {}),  # it sees all
    ],
)
def test_where_more_is_hidden_or_nothing_it_is_a_mask(operands: dict[str, Any], attrs: dict[str, Any]) -> None:
    floats = {
        name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in operands.items()
    }
    for given in (operands, floats):
        model = attention(given, False, 25, is_causal=1, **attrs)
        graph = rewrite(load(model.SerializeToString()), numerics=Numerics(widen=False))
        assert not any(node.op == CAUSAL for node in graph.nodes)


def test_a_call_that_is_not_covered_keeps_its_node() -> None:
    operands = {**FLAT, "Q": normal(2, 0, 18)}
    graph = load(attention(operands, False, 24, **COUNTS).SerializeToString())
    assert [node.op for node in graph.nodes] == ["Attention"]
