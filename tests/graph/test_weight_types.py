"""Narrow weights: constants that a narrow type holds exactly, where products and gathers alone read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.ir import Graph
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite, weight_types

RNG = np.random.default_rng(0)
HALVES = RNG.integers(-2047, 2047, (40, 24)).astype(np.float32)
"""Each is a float16."""

BRAINS = RNG.integers(-99, 99, (40, 24)).astype(np.float32)
"""Each is a bfloat16, and a float16 too."""


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also weights that are too small to matter."""
    monkeypatch.setattr(weight_types, "LEAST_BYTES", 1)


def graph_of(nodes: str, weight: Any, *, inputs: str = "float[3, 40] x", widen: bool = True) -> Graph:
    body = nodes.replace(") ", ")\n")
    text = f"<ir_version: 10, opset_import: ['' : 20]> m ({inputs}) => (float y) {{ {body} }}".replace("'", '"')
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return rewrite(load(model.SerializeToString()), numerics=Numerics(widen=widen))


def types_of(graph: Graph) -> list[str]:
    return [array.dtype.name for array in graph.constants.values() if array.size > 1]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (HALVES, "float16"),
        (BRAINS, "bfloat16"),
        (BRAINS * 2.0**40, "bfloat16"),
        (BRAINS * 2.0**-40, "bfloat16"),
        (HALVES + 2.0**-20, "float32"),
        (np.where(HALVES[-1, -1] == HALVES, 0.1, HALVES), "float32"),  # which a sample may miss
        (np.full_like(HALVES, np.nan), "float32"),
    ],
)
def test_a_weight_takes_the_type_that_holds_all_its_values(weight: Any, expected: str) -> None:
    graph = graph_of("y = MatMul(x, w)", weight.astype(np.float32))
    assert types_of(graph) == [expected]
    [constant] = graph.constants.values()
    np.testing.assert_array_equal(constant.astype(np.float32), weight.astype(np.float32))
    [call] = partition(graph)
    assert isinstance(call, TaskCall) and call.task.inputs[1].dtype.value == expected  # the cast is in the product


@pytest.mark.parametrize(
    ("nodes", "inputs"),
    [
        ("y = Mul(z, w)", "float[40, 24] z"),
        ("y = MatMul(w, z)", "float[24, 3] z"),  # scalars of it are read, not vectors
        ("u = MatMul(x, w) t = Add(w, z) s = ReduceSum(t) y = Add(u, s)", "float[3, 40] x, float[24] z"),
    ],
)
def test_what_others_read_stays_float32(nodes: str, inputs: str) -> None:
    assert "float16" not in types_of(graph_of(nodes, HALVES, inputs=inputs))


def test_readers_have_casts_of_their_own() -> None:
    graph = graph_of("u = MatMul(x, w) v = Relu(x) z = MatMul(v, w) y = Add(u, z)", HALVES)
    assert types_of(graph) == ["float16"] and [node.op for node in graph.nodes].count("Cast") == 2
    calls = [step for step in partition(graph) if isinstance(step, TaskCall)]
    assert all("float32" not in {t.dtype.value for t in call.task.inputs if t.constant} for call in calls)


def test_gpus_keep_what_the_model_says() -> None:
    assert types_of(graph_of("y = MatMul(x, w)", HALVES, widen=False)) == ["float32"]


def test_small_constants_stay() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_types, "LEAST_BYTES", HALVES.nbytes + 1)
        assert types_of(graph_of("y = MatMul(x, w)", HALVES)) == ["float32"]


@pytest.mark.parametrize(
    ("nodes", "ops"),
    [
        ("e = Gather(w, i) y = MatMul(z, e)", ["Cast+Gather", "MatMul"]),
        ("e = Gather(w, i) t = Transpose(e) y = MatMul(x, t)", ["Cast+Gather+Transpose", "MatMul"]),
        ("e = Gather(w, i) y = Relu(e)", ["Cast+Gather+Relu"]),
    ],
)
def test_rows_of_a_table_are_looked_up_once(nodes: str, ops: list[str]) -> None:
    """Not for each multiply-add that reads them."""
    graph = graph_of(nodes, HALVES.T.copy(), inputs="float[3, 40] x, float[5, 3] z, int64[3] i")
    assert [step.task.op for step in partition(graph) if isinstance(step, TaskCall)] == ops
