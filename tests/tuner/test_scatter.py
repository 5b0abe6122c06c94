"""Ops that sort, or write where indices say, in native code: as in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tunewright.tuner import InferenceSession

RNG = np.random.default_rng(7)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(low: int, high: int, *shape: int) -> Any:
    return RNG.integers(low, high, shape)


def agree(op: str, arrays: list[Any], outputs: int, known: tuple[int, ...], **attrs: Any) -> None:
    named = {f"x{n}": array for n, array in enumerate(arrays)}
    weights = [f"x{n}" for n in known]
    results = [f"y{n}" for n in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, list(named), results, **attrs)],
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in named.items()
            if name not in weights
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(named[name], name) for name in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    feeds = {name: array for name, array in named.items() if name not in weights}
    with InferenceSession(model, threads=1) as session:
        assert not session.coverage().fallback
        found = session.run(None, feeds)
    expected = onnxruntime.InferenceSession(model).run(None, feeds)
    for result, wanted in zip(found, expected, strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("shape", [(3, 13), (5, 1), (17, 2, 3), (1, 37)], ids=str)
def test_top_k_with_ties(shape: tuple[int, ...], largest: int) -> None:
    k = np.array([max(shape[-1] - 1, 1)])
    agree("TopK", [np.round(floats(*shape)), k], 2, (1,), largest=largest)
    agree("TopK", [ints(-2, 3, *shape), k], 2, (1,), largest=largest)


def test_top_k_along_another_axis() -> None:
    agree("TopK", [floats(17, 2, 3), np.array([17])], 2, (1,), axis=0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_updates(reduction: str) -> None:
    """Several for one place, fewer than there are places along other axes, and indices from the end."""
    agree("ScatterElements", [floats(5, 7), ints(-7, 7, 3, 13), floats(3, 13)], 1, (), axis=1, reduction=reduction)
    agree("ScatterElements", [floats(5, 3, 2), ints(-5, 5, 1, 3, 1), floats(1, 3, 1)], 1, (), reduction=reduction)
    agree("ScatterND", [floats(5, 7, 3), ints(-5, 5, 2, 4, 2), floats(2, 4, 3)], 1, (), reduction=reduction)
    agree("ScatterND", [floats(17), np.array([[4], [-13], [4]]), floats(3)], 1, (), reduction=reduction)


def test_what_is_compared_too_often_runs_elsewhere() -> None:
    x, indices = helper.make_tensor_value_info("x", 1, [900]), numpy_helper.from_array(ints(0, 900, 900), "i")
    update = helper.make_tensor_value_info("u", 1, [900])
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"])
    graph = helper.make_graph([node], "g", [x, update], [helper.make_empty_tensor_value_info("y")], [indices])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with InferenceSession(model.SerializeToString(), threads=1) as session:
        assert session.coverage().fallback == {"ScatterElements": 1}
