"""Images as they should be: resized in all opsets, seen through a grid, cut into boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tunewright.graph.onnx_import import load

from .correcting import RNG, agree, by_peer, computed, imported, ints, normal, parsed, run_by_peer

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


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_cubic_weights_do_not_lead_out_of_the_range_of_whole_numbers(dtype: type):
    x: Any = np.array([[100, 2, 100], [2, 2, 100]], dtype)[None, None]
    x[x == 100] = min(np.iinfo(dtype).max, 1000)
    operands = [None, np.array([1, 1, 3, 2], np.float32)]
    [result] = computed("Resize", [x, *operands], 18, mode="cubic")
    [exact] = computed("Resize", [x.astype(np.float64), *operands], 18, mode="cubic")
    assert (exact < 0).any() and result.dtype == dtype
    np.testing.assert_array_equal(result, np.clip(exact, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10(mode: str, runs: Any):
    x = normal(1, 2, 7, 6)
    for scales in ([1, 1, 2, 3], [1, 1, 0.6, 0.3], [1, 1, 2.5, 0.6]):
        expected = by_peer("Resize", [x, np.array(scales, np.float32)], 10, mode=mode)[0]
        result = computed("Resize", [x, np.array(scales, np.float32)], 10, mode=mode)[0]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        body = f'''g (float[1,2,7,6] x) => (float[] y) <float[4] s = {{{", ".join(map(str, scales))}}}>
            {{ y = Resize<mode = "{mode}">(x, s) }}'''
        np.testing.assert_allclose(runs.nodes(imported(body, 10), {"v0": x})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "opset"), [("Resize", 13), ("Resize", 10), ("Upsample", 9)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_extents_are_scaled_in_single_precision(mode: str, op: str, opset: int, runs: Any):
    x = normal(1, 1, 5, 10)  # 5 * 1.4 is 7 there, and less in double precision
    operands = "x, , s" if opset > 10 else "x, s"
    body = f"""g (float[1,1,5,10] x) => (float[] y) <float[4] s = {{1, 1, 1.4, 2.3}}>
        {{ y = {op}<mode = "{mode}">({operands}) }}"""
    graph = imported(body, opset)
    assert graph.types[graph.outputs[0].tensor].shape == (1, 1, 7, 23)
    expected = run_by_peer(parsed(body, opset), {"x": x})[0]
    np.testing.assert_allclose(runs.nodes(graph, {"v0": x})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_keeps_the_aspect(mode: str, policy: str):
    for sizes in ((9, 6), (3, 3)):
        operands = [normal(1, 1, 5, 7), None, None, ints(*sizes)]
        result = computed("Resize", operands, 18, mode=mode, axes=(2, -1), keep_aspect_ratio_policy=policy)[0]
        scale = {"not_larger": min, "not_smaller": max}[policy](sizes[0] / 5, sizes[1] / 7)
        assert result.shape == (1, 1, round(5 * scale), round(7 * scale))
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
    for [result] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
        np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("extent", [4099, 5003])
def test_long_rows_are_copied_evenly(extent: int):
    x = np.arange(extent, dtype=np.float64).reshape(1, extent)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    [result] = computed("Resize", [x, np.zeros(0), np.zeros(0, np.float32), np.array([1, 3 * extent])], 18, 1, **attrs)
    np.testing.assert_array_equal(result, x.repeat(3, axis=1))


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
            for [result] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
                np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


# Samples of pictures at the places of a grid, as they should be


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding_mode: str, align_corners: int):
    attrs = {"padding_mode": padding_mode, "align_corners": align_corners}
    x, grid = normal(2, 3, 5, 4), (1.7 * RNG.standard_normal((2, 3, 7, 2))).astype(np.float32)
    grid[0, 0, :5] = [[-1, 1], [1, -1], [-1, -1], [0, 0], [5, -9]]
    agree("GridSample", [x, grid], 20, mode=mode, **attrs)
    agree("GridSample", [x, grid], 16, mode={"nearest": mode}.get(mode, f"bi{mode}"), **attrs)
    if mode != "cubic":
        volume, places = normal(2, 1, 3, 5, 4), (1.7 * RNG.standard_normal((2, 3, 2, 3, 3))).astype(np.float32)
        agree("GridSample", [volume, places], 20, mode=mode, **attrs)


def test_grid_sample_of_one_element():
    x, grid = np.full((1, 1, 1, 1), 3, np.float32), np.array([[[[0, 0], [9, -9], [np.inf, np.nan]]]], np.float32)
    for mode in ("linear", "nearest", "cubic"):
        for border in ("border", "reflection"):
            (result,) = computed("GridSample", [x, grid], 20, mode=mode, padding_mode=border, align_corners=1)
            np.testing.assert_allclose(result, np.full((1, 1, 1, 3), 3))
    assert computed("GridSample", [x, grid], 20, mode="linear")[0].tolist() == [[[[3, 0, 0]]]]


@pytest.mark.parametrize("align_corners", [0, 1])
def test_affine_grid(align_corners: int):
    agree("AffineGrid", [normal(2, 2, 3), ints(2, 3, 4, 5)], align_corners=align_corners)
    agree("AffineGrid", [normal(2, 3, 4, dtype=np.float64), ints(2, 3, 4, 5, 6)], align_corners=align_corners)
    assert np.isfinite(
        computed("AffineGrid", [normal(1, 2, 3), ints(1, 1, 1, 2)], align_corners=align_corners)[0]
    ).all()


# Ops on boxes as they should be


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("count", range(4))
def test_non_max_suppression(count: int, center: int):
    boxes, scores = RNG.random((2, 23, 4)).astype(np.float32), RNG.random((2, 3, 23)).astype(np.float32).round(1)
    limits = [np.array(5), np.array([0.3], np.float32), np.float32(0.4)][:count]
    agree("NonMaxSuppression", [boxes, scores, *map(np.asarray, limits)], 11, center_point_box=center)


@pytest.mark.parametrize("version", [10, 16])
def test_roi_align(version: int):
    boxes = np.array([[0.5, 1, 3, 4.5], [0, 0, 2, 2]], np.float32)
    sizes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    agree("RoiAlign", [normal(2, 3, 6, 5), boxes, ints(0, 1)], version, 1, **sizes)


def test_max_roi_pool():
    boxes = np.array([[0, 0, 1, 4, 5], [1, 2, 2, 2, 2], [1, 1, 0, 3, 4]], np.float32)
    for scale in (1.0, 0.5):
        agree("MaxRoiPool", [normal(2, 3, 7, 6), boxes], 13, 1, pooled_shape=(2, 3), spatial_scale=scale)
