"""What can't be computed with the sizes that a model is bound to matters only where it is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tunewright.graph.evaluation.fallback import EvaluationError
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.onnx_import.structure import strip

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'

BY_SIZE = """
    g (bool c, float[n,k] x) => (float[a,b] y) {{
        y = If (c) <then_branch = t () => (float[a,b] p) {{ {three} }},
                    else_branch = e () => (float[a,b] q) {{ {five} }}>
    }}
"""
THREE = "p = MatMul(x, w3)"
FIVE = "q = MatMul(x, w5)"


def parsed(body: str) -> ModelProto:
    model = parser.parse_model(f"{HEAD} {body}")
    model.graph.initializer.extend(numpy_helper.from_array(weight(rows), f"w{rows}") for rows in (3, 5, 7))
    return model


def weight(rows: int) -> Any:
    return np.arange(7 * rows, dtype=np.float32).reshape(rows, 7)


def bound(body: str, **dims: int) -> Graph:
    return load(parsed(body).SerializeToString(), dims)


@pytest.mark.parametrize(("width", "condition"), [(3, True), (5, False)])
def test_the_branch_for_another_size_fails_only_when_it_is_taken(runs: Any, width: int, condition: bool):
    model = parsed(BY_SIZE.format(three=THREE, five=FIVE)).SerializeToString()
    for source in (model, strip(model).data):
        graph = load(source, {"n": 2, "k": width})
        [output] = graph.outputs
        assert graph.type(output.tensor).shape == (2, 7)
        x = np.arange(2 * width, dtype=np.float32).reshape(2, width)
        feeds = {"v0": np.asarray(condition), "v1": x}
        [result] = runs.nodes(graph, feeds)
        if source is model:
            np.testing.assert_allclose(result, x @ weight(width))
        with pytest.raises(EvaluationError, match=rf"node .* \(If\) can't be computed from bool.*: .*{width}") as error:
            runs.nodes(graph, {**feeds, "v0": np.asarray(not condition)})
        assert str(error.value).isprintable()


def test_a_size_that_no_branch_is_for():
    with pytest.raises(ModelError, match="MatMul"):
        bound(BY_SIZE.format(three=THREE, five=FIVE), n=2, k=4)


@pytest.mark.parametrize(("width", "fits"), [(3, True), (5, True), (7, True), (4, False)])
def test_branches_in_branches(width: int, fits: bool):
    inner = """
        q = If (c) <then_branch = u () => (float[a,b] r) { r = MatMul(x, w5) },
                    else_branch = v () => (float[a,b] s) { z = Identity(x) s = MatMul(z, w7) }>
    """
    body = BY_SIZE.format(three=THREE, five=inner)
    if fits:
        graph = bound(body, n=2, k=width)
        assert graph.type(graph.outputs[0].tensor).shape == (2, 7)
    else:
        with pytest.raises(ModelError, match="MatMul"):
            bound(body, n=2, k=width)


@pytest.mark.parametrize(("width", "condition"), [(3, 1), (5, 0)])
def test_of_a_known_condition_one_branch_counts(width: int, condition: int):
    body = BY_SIZE.format(three=THREE, five=FIVE).replace("bool c, ", "")
    body = body.replace("y = If", f"k = Constant<value_int = {condition}> () c = Cast<to = 9>(k) y = If")
    assert [node.op for node in bound(body, n=2, k=width).nodes] == ["MatMul"]
    with pytest.raises(ModelError, match="MatMul"):
        bound(body, n=2, k=8 - width)


LOOP = """
    g (int64 m, float[n,k] x) => (float[n,k] y, float[a,b,c] z) <bool go = {1}>
    {
        y, z = Loop (m, go, x) <body = b (int64 i, bool o, float[n,k] s) => (bool o2, float[n,k] t, float[n,k] u)
            { o2 = Identity(o) t = MatMul(s, w7) u = Identity(t) }>
    }
"""


def test_a_loop_for_another_size_fails_only_at_its_first_trip(runs: Any):
    graph = bound(LOOP, n=2, k=5)
    x = np.ones((2, 5), np.float32)
    with pytest.raises(EvaluationError, match="Loop"):
        runs.nodes(graph, {"v0": np.asarray(1), "v1": x})
    results, _ = runs.nodes(graph, {"v0": np.asarray(0), "v1": x})
    assert results.tolist() == x.tolist()


def test_what_no_size_could_mend_is_refused_in_a_branch_too():
    with pytest.raises(ModelError, match="LayerNormalization"):
        bound(BY_SIZE.format(three="p = LayerNormalization<axis = 9>(x, w3)", five=FIVE), n=2, k=5)
    with pytest.raises(ModelError, match="'gone'"):
        bound(BY_SIZE.format(three="p = MatMul(x, gone)", five=FIVE), n=2, k=5)
    with pytest.raises(ModelError, match="no op 'Strange'"):
        bound(BY_SIZE.format(three="p = Strange(x, w3)", five=FIVE), n=2, k=5)
