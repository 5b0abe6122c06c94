"""Transposed convolutions as dense ones with the taps of each phase of the stride."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs


def transposed(x: tuple[int, ...], w: tuple[int, ...], *, known: bool = True, bias: bool = True, **attrs: Any) -> Graph:
    rng = np.random.default_rng(2)
    weights = {"w": rng.standard_normal(w), "b": rng.standard_normal(w[1] * attrs.get("group", 1))}
    inputs = [helper.make_tensor_value_info("x", 1, x)]
    if not known:
        weights.pop("w")
        inputs.append(helper.make_tensor_value_info("w", 1, w))
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", *["b"] * bias], ["t"], **attrs),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")], initializers)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString())


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "doubled": ((1, 5, 4, 7), (5, 17, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "few features": ((2, 5, 4, 7), (5, 2, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "uneven taps": ((1, 3, 5, 6), (3, 18, 3, 3), {"strides": (2, 2), "pads": (1,) * 4, "output_padding": (1, 1)}),
    "few, uneven": ((1, 3, 5, 6), (3, 1, 9, 9), {"strides": (2, 2), "pads": (4,) * 4, "output_padding": (1, 1)}),
    "rest": ((1, 3, 5, 4), (3, 19, 5, 3), {"strides": (3, 2), "pads": (1, 0, 2, 1)}),
    "few, rest": ((1, 3, 5, 4), (3, 2, 5, 3), {"strides": (3, 2), "pads": (1, 0, 2, 1)}),
    "one axis": ((2, 3, 5, 4), (3, 17, 3, 2), {"strides": (1, 2), "output_padding": (0, 1)}),
    "sound": ((1, 6, 11), (6, 17, 16), {"strides": (8,), "pads": (4, 4)}),
    "sound, few": ((1, 6, 11), (6, 1, 16), {"strides": (8,), "pads": (4, 4)}),
    "volume": ((1, 3, 2, 3, 4), (3, 2, 3, 4, 2), {"strides": (2, 2, 1), "pads": (1, 1, 0, 0, 1, 0)}),
    "groups": ((1, 6, 4, 5), (6, 2, 4, 4), {"strides": (2, 2), "group": 3, "pads": (1, 1, 1, 1)}),
    "depthwise": ((1, 5, 4, 5), (5, 1, 4, 4), {"strides": (2, 2), "group": 5, "pads": (1, 1, 1, 1)}),
    "same": ((1, 4, 5, 4), (4, 3, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
}

ONE_BY_ONE = {"doubled", "uneven taps", "rest", "groups", "depthwise"}
"""The cases of a convolution for each phase; the others, of few features, are one that has them all."""


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("case", CASES)
def test_phases(case: str, bias: bool, layout: Any) -> None:
    x, w, attrs = CASES[case]
    graph = transposed(x, w, bias=bias, **attrs)
    rewritten = rewrite(graph, layout)
    ops = [node.op for node in rewritten.nodes]
    assert "ConvTranspose" not in ops
    assert ops.count("Conv") == (np.prod(attrs["strides"]) if case in ONE_BY_ONE else 1)
    feeds = np.random.default_rng(3).standard_normal(x).astype(np.float32)
    [expected] = Runs.nodes(graph, {graph.inputs[0].tensor: feeds})
    [result] = Runs.steps(rewritten, {rewritten.inputs[0].tensor: feeds})
    Runs.close(result, expected)


@pytest.mark.parametrize(
    ("w", "attrs"),
    [
        ((3, 2, 2, 2), {"strides": (2, 2)}),  # one product already
        ((3, 2, 3, 3), {}),
        ((3, 2, 3, 3), {"strides": (2, 2), "dilations": (2, 2)}),
        ((3, 2, 2, 2), {"strides": (3, 3)}),  # phases without taps
        ((3, 2, 2, 2), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),  # a Conv would have to cut off
        ((3, 2, 5, 5), {"strides": (5, 5), "pads": (1, 1, 1, 1)}),  # too many
        ((3, 2, 4, 4), {"strides": (2, 2), "known": False}),
    ],
    ids=str,
)
def test_what_stays(w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    assert "ConvTranspose" in [node.op for node in rewrite(transposed((1, 3, 5, 4), w, **attrs)).nodes]
