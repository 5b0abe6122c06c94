"""Ops that sort, or write where indices say, in native code: as in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tunewright.tuner import InferenceSession

from .control_models import check, model_of, onnxruntime_of

RNG = np.random.default_rng(7)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(low: int, high: int, *shape: int) -> Any:
    return RNG.integers(low, high, shape)


def agree(op: str, arrays: list[Any], outputs: int, known: tuple[int, ...], threads: int = 1, **attrs: Any) -> None:
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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = {name: array for name, array in named.items() if name not in weights}
    with InferenceSession(model.SerializeToString(), threads=threads) as session:
        assert not session.coverage().fallback
        found = session.run(None, feeds)
    # One thread of it: with more, any of several updates of one place may be the one that stays.
    expected = onnxruntime_of(model).run(None, feeds)
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


MANY = [
    ("ScatterElements", (3000,), (2000,), {"axis": 0}),
    ("ScatterElements", (40, 50, 3), (30, 70, 2), {"axis": 1}),
    ("ScatterElements", (1, 2000), (1, 900), {"axis": -1}),
    ("ScatterND", (3000,), (2000, 1), {}),
    ("ScatterND", (60, 70), (20, 60, 2), {}),
    ("ScatterND", (60, 70, 5), (3000, 2), {}),
    ("ScatterND", (90, 9000), (1000, 1), {}),  # each thread has a part of each row
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("op", "shape", "indices", "attrs"), MANY)
def test_many_updates_of_which_the_last_one_stays(
    op: str, shape: tuple[int, ...], indices: tuple[int, ...], attrs: dict[str, Any], threads: int
) -> None:
    extents = shape[: indices[-1]] if op == "ScatterND" else (shape[attrs["axis"]],)
    columns = [ints(-extent, extent, *(indices[:-1] if op == "ScatterND" else indices)) for extent in extents]
    at = np.stack(columns, -1) if op == "ScatterND" else columns[0]
    updates = floats(*indices[:-1], *shape[indices[-1] :]) if op == "ScatterND" else floats(*indices)
    agree(op, [floats(*shape), at, updates], 1, (), threads, **attrs)


@pytest.mark.parametrize("dtype", ["bool", "float16", "float64", "int64", "uint8"])
def test_many_updates_of_other_types(dtype: str) -> None:
    x, updates = ints(0, 2, 3000).astype(dtype), ints(0, 2, 2000).astype(dtype)
    agree("ScatterElements", [x, ints(0, 3000, 2000).astype(np.int32), updates], 1, ())
    agree("ScatterND", [x.reshape(1000, 3), ints(0, 1000, 400, 1), updates[:1200].reshape(400, 3)], 1, ())


def test_updates_in_a_loop_change_what_the_last_iteration_left() -> None:
    text = """g (float[700] x, float[500] u, int64[500] p, int64 n) => (float[700] y) {
        y = Loop(n, "", x) <body = b (int64 i, bool c, float[700] s) => (bool d, float[700] t) {
            d = Identity(c) r = Add(p, i) v = Add(s, s) t = ScatterElements(v, r, u) }>
    }"""
    feeds = {"x": floats(700), "u": floats(500), "p": ints(0, 690, 500), "n": np.array(5)}
    check(model_of(text), feeds)


def test_sums_of_many_updates_run_elsewhere() -> None:
    x, indices = helper.make_tensor_value_info("x", 1, [900]), numpy_helper.from_array(ints(0, 900, 900), "i")
    update = helper.make_tensor_value_info("u", 1, [900])
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], reduction="add")
    graph = helper.make_graph([node], "g", [x, update], [helper.make_empty_tensor_value_info("y")], [indices])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with InferenceSession(model.SerializeToString(), threads=1) as session:
        assert session.coverage().fallback == {"ScatterElements": 1}
