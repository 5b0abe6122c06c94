"""Resize and Upsample as they should be, of all opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tunewright.graph.onnx_import import load

from .correcting import agree, by_peer, computed, imported, ints, normal, parsed, run_by_peer

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize")


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_the_nearest(rounding: str, coordinates: str):
    attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding, "extrapolation_value": 9.0}
    roi = np.array([0, 0, 0.1, -0.2, 1, 1, 0.9, 1.3], np.float32) if coordinates == "tf_crop_and_resize" else None
    for x, sizes in ((normal(1, 2, 5, 7), (3, 11)), (normal(1, 2, 5, 7), (1, 4)), (normal(1, 1, 1, 13), (3, 5))):
        agree("Resize", [x, roi, None, ints(*x.shape[:2], *sizes)], 13, **attrs)
    if coordinates in COORDINATES[:3]:
        agree("Resize", [normal(1, 2, 5, 7), None, np.array([1, 1, 1.7, 0.6], np.float32)], 13, **attrs)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10(mode: str, runs: Any):
    x = normal(1, 2, 7, 6)
    for scales in ([1, 1, 2, 3], [1, 1, 0.6, 0.3], [1, 1, 2.5, 0.6]):
        wanted = by_peer("Resize", [x, np.array(scales, np.float32)], 10, mode=mode)[0]
        found = computed("Resize", [x, np.array(scales, np.float32)], 10, mode=mode)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        body = f'''g (float[1,2,7,6] x) => (float[] y) <float[4] s = {{{", ".join(map(str, scales))}}}>
            {{ y = Resize<mode = "{mode}">(x, s) }}'''
        np.testing.assert_allclose(runs.nodes(imported(body, 10), {"v0": x})[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "opset"), [("Resize", 13), ("Resize", 10), ("Upsample", 9)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_extents_are_scaled_in_single_precision(mode: str, op: str, opset: int, runs: Any):
    x = normal(1, 1, 5, 10)  # 5 * 1.4 is 7 there, and less in double precision
    operands = "x, , s" if opset > 10 else "x, s"
    body = f"""g (float[1,1,5,10] x) => (float[] y) <float[4] s = {{1, 1, 1.4, 2.3}}>
        {{ y = {op}<mode = "{mode}">({operands}) }}"""
    graph = imported(body, opset)
    assert graph.types[graph.outputs[0].tensor].shape == (1, 1, 7, 23)
    wanted = run_by_peer(parsed(body, opset), {"x": x})[0]
    np.testing.assert_allclose(runs.nodes(graph, {"v0": x})[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_keeps_the_aspect(mode: str, policy: str):
    for sizes in ((9, 6), (3, 3)):
        operands = [normal(1, 1, 5, 7), None, None, ints(*sizes)]
        found = computed("Resize", operands, 18, mode=mode, axes=(2, -1), keep_aspect_ratio_policy=policy)[0]
        scale = {"not_larger": min, "not_smaller": max}[policy](sizes[0] / 5, sizes[1] / 7)
        assert found.shape == (1, 1, round(5 * scale), round(7 * scale))
        if sizes == (9, 6):
            agree("Resize", operands, 18, mode=mode, axes=(2, 3), keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("scale", [2.0, 2.3, 2.4])
def test_the_nearest_is_told_by_the_scale(scale: float, runs: Any):
    """Not by the quotient of extents: 2.3 times 2 is 4 as well."""
    how = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    model = parsed(f"g (float[1,1,2,3] x, float[4] s) => (float[] y) {{ y = Resize<{how}>(x, , s) }}")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, scale, 1], np.float32), "s"))
    del model.graph.input[1:]
    x = normal(1, 1, 2, 3)
    graph = load(model.SerializeToString())
    [right] = run_by_peer(model, {"x": x})
    for [found] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("extent", [4099, 5003])
def test_long_rows_are_copied_evenly(extent: int):
    x = np.arange(extent, dtype=np.float64).reshape(1, extent)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    [found] = computed("Resize", [x, np.zeros(0), np.zeros(0, np.float32), np.array([1, 3 * extent])], 18, 1, **attrs)
    np.testing.assert_array_equal(found, x.repeat(3, axis=1))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("opset", [11, 13, 19])
def test_a_part_of_the_input_ends_at_the_last_result(mode: str, opset: int, runs: Any):
    """Whatever fraction a scale makes of the extent. ONNX Runtime does not crop along axes of scale 1."""
    how = f'mode = "{mode}", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 9.0'
    for scales in ([1.6, 2.34], [0.7, 1.53], [0.3, 2.34], [0.41, 0.17]):
        for roi in ([0.1, 0.2, 0.9, 0.7], [-0.21, 0.07, 0.83, 1.13]):
            edges = [0, 0, *roi[:2], 1, 1, *roi[2:]]
            body = f"""g (float[1,2,5,7] x) => (float[] y)
                <float[8] r = {{{", ".join(map(str, edges))}}}, float[4] s = {{1, 1, {scales[0]}, {scales[1]}}}>
                {{ y = Resize<{how}>(x, r, s) }}"""
            x, graph = normal(1, 2, 5, 7), imported(body, opset)
            [right] = run_by_peer(parsed(body, opset), {"x": x})
            for [found] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
                np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
