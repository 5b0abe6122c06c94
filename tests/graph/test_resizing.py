"""Resize of all modes, as what is chosen along one axis after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs

SHAPE = (1, 3, 5, 7)


def resized(
    scales: tuple[float, ...] | None, sizes: tuple[int, ...] | None = None, roi: Any = None, **attrs: Any
) -> Graph:
    box = "" if roi is None else "roi"
    inputs = ["x", box, "scales"] if sizes is None else ["x", box, "", "sizes"]
    weights = {"scales": np.array(scales, np.float32)} if sizes is None else {"sizes": np.array(sizes)}
    if roi is not None:
        weights["roi"] = roi
    graph = helper.make_graph(
        [helper.make_node("Resize", inputs, ["y"], **attrs)],
        "g",
        [helper.make_tensor_value_info("x", 1, SHAPE)],
        [helper.make_tensor_value_info("y", 1, [None] * 4)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    return load(model.SerializeToString())


def agree(graph: Graph) -> None:
    """All of it is native, and computes what the node does."""
    x = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
    rewritten = rewrite(graph)
    assert not any(isinstance(step, Fallback) for step in partition(rewritten))
    [expected] = Runs.nodes(graph, {graph.inputs[0].tensor: x})
    [result] = Runs.steps(rewritten, {rewritten.inputs[0].tensor: x})
    Runs.close(result, expected)


UP, DOWN = (1, 1, 2.6, 1.5), (1, 1, 0.6, 0.45)


@pytest.mark.parametrize("scales", [UP, DOWN, (1, 1, 2, 2), (1, 1, 1, 3)], ids=str)
@pytest.mark.parametrize(
    "transformation", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_modes_and_coordinates(mode: str, transformation: str, scales: tuple[float, ...]) -> None:
    agree(resized(scales, mode=mode, coordinate_transformation_mode=transformation))


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_roundings(rounding: str) -> None:
    agree(resized(UP, mode="nearest", nearest_mode=rounding))


@pytest.mark.parametrize("sizes", [(1, 3, 10, 14), (1, 3, 3, 11), (1, 3, 1, 1)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes(mode: str, sizes: tuple[int, ...]) -> None:
    agree(resized(None, sizes, mode=mode))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiasing_and_what_is_outside(mode: str) -> None:
    agree(resized(DOWN, mode=mode, antialias=1))
    agree(resized(UP, mode=mode, exclude_outside=1))


def test_what_a_kernel_copies_stays_one_node() -> None:
    graph = rewrite(resized((1, 1, 2, 2), mode="nearest"))
    assert [node.op for node in graph.nodes] == ["Resize"]


@pytest.mark.parametrize("box", [(0.1, 0.0, 0.9, 1.0), (-0.3, 0.2, 0.7, 1.4), (0.0, 0.0, 1.0, 1.0)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_parts_that_are_cut_out(mode: str, box: tuple[float, ...]) -> None:
    roi = np.array([0, 0, *box[:2], 1, 1, *box[2:]], np.float32)
    attrs = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0, "mode": mode}
    agree(resized(None, (1, 3, 4, 9), roi=roi, **attrs))


@pytest.mark.parametrize(("policy", "shape"), [("not_larger", (1, 3, 7, 10)), ("not_smaller", (1, 3, 10, 14))])
def test_one_scale_for_all_axes(policy: str, shape: tuple[int, ...]) -> None:
    graph = resized(None, (10, 10), axes=[2, 3], mode="linear", keep_aspect_ratio_policy=policy)
    assert graph.types[graph.outputs[0].tensor].shape == shape
    agree(graph)
