"""Ops element by element, ops that move elements and quantised ones, as they should be."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tunewright.graph.evaluation.fallback import CORRECTIONS, EvaluationError

from .correcting import RNG, agree, by_peer, computed, empty, imported, ints, normal, parsed, run_by_peer


def test_softsign_of_a_scalar():
    [result] = computed("Softsign", [np.full((), -3, np.float32)])
    assert result == np.float32(-0.75) and result.shape == ()


def test_erf_of_doubles_is_exact():
    [result] = computed("Erf", [np.array([1.0, -0.5, 0.0])])
    assert result.tolist() == [0.8427007929497149, -0.5204998778130465, 0.0]
    assert computed("Erf", [np.zeros((0, 2))])[0].shape == (0, 2)


def test_gelu_of_doubles_is_exact():
    assert computed("Gelu", [np.ones(1)], 20)[0].item() == pytest.approx(0.8413447460685429, rel=1e-15)


def test_determinants_keep_their_places():
    x = np.array([[[1, 2], [2.0**1022, 0]], [[0, 3], [2, 5]], [[0, 0], [0, 0]]])
    assert computed("Det", [x])[0].tolist() == [-(2.0**1023), -6.0, 0.0]
    drawn = np.random.default_rng(0).standard_normal((2, 3, 5, 5))
    np.testing.assert_allclose(computed("Det", [drawn])[0], np.linalg.det(drawn), rtol=1e-12)
    assert computed("Det", [np.zeros((0, 2, 2), np.float32)])[0].shape == (0,)


def test_shrink_keeps_large_whole_numbers():
    x = np.array([2**63 - 1, -(2**63), 1, 0, -1])
    assert computed("Shrink", [x])[0].tolist() == x.tolist()
    assert computed("Shrink", [x], bias=3.0, lambd=2.0)[0].tolist() == [2**63 - 4, 3 - 2**63, 0, 0, 0]
    assert computed("Shrink", [np.array([2**64 - 1], np.uint64)])[0].tolist() == [2**64 - 1]
    [result] = computed("Shrink", [np.array([2.0, -2.0, 0.25], np.float32)], bias=0.5)
    assert result.dtype == np.float32 and result.tolist() == [1.5, -1.5, 0.0]


def test_mean_of_what_broadcasts():
    agree("Mean", [normal(2, 1), normal(1, 3), normal(2, 3)], 13)


def test_prelu_leaves_zero_alone():
    [result] = computed("PRelu", [np.array([0, -1, 2], np.float32), np.full(1, np.inf, np.float32)])
    assert result.tolist() == [0, -np.inf, 2]


@pytest.mark.parametrize("op", ["Floor", "Identity"])
def test_clip_of_old_opsets_has_limits(op: str, runs: Any):
    """Those are the ends of float32: what is beyond, infinities too, comes to them."""
    body = f"g (float[4] x) => (float[] y) {{ a = Clip(x) y = {op}(a) }}"
    x = np.array([np.inf, -np.inf, 2, 3e38], np.float32)
    [result], [right] = runs.nodes(imported(body, 9), {"v0": x}), run_by_peer(parsed(body, 9), {"x": x})
    np.testing.assert_array_equal(result, right)


def test_whole_powers_may_be_negative():
    [result] = computed("Pow", [np.array([32, 1, -1, -1, 0, 3]), np.array([-2, -5, -3, -2, 2, 0], np.int32)], 18)
    np.testing.assert_array_equal(result, [0, 1, -1, 1, 0, 1])
    [result] = computed("Pow", [np.array([3], np.int32), np.array([4], np.uint64)], 18)
    np.testing.assert_array_equal(result, [81])


# Ops that move elements as they should be

MODES = ("constant", "edge", "reflect", "wrap")


def padded(x: Any, widths: Sequence[tuple[int, int]], mode: str) -> Any:
    """What is negative is cut off first."""
    inside = tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    return np.pad(x[inside], [(max(a, 0), max(b, 0)) for a, b in widths], mode)  # type: ignore[call-overload]


def test_pads_of_old_opsets_are_attributes():
    model = parsed("g (float[2,3] x) => (float[] y) { y = Pad<pads = [1, -1, 0, 2], value = 7.0> (x) }", 9)
    x = normal(2, 3)
    [result] = ReferenceEvaluator(model, new_ops=CORRECTIONS).run(None, {"x": x})
    np.testing.assert_array_equal(result, np.pad(x[:, 1:], ((1, 0), (0, 2)), constant_values=7))


@pytest.mark.parametrize("mode", MODES)
def test_pads_of_any_sign_and_width(mode: str, runs: Any):
    for _ in range(12):
        x = normal(*RNG.integers(1, 6, 2))
        widths = [(int(RNG.integers(-(n // 2), 3 * n)), int(RNG.integers(-((n - 1) // 2), 3 * n))) for n in x.shape]
        pads = tuple(int(end) for end in np.transpose(widths).reshape(-1))
        expected = padded(x, widths, mode)
        np.testing.assert_array_equal(computed("Pad", [x], 20, pads=pads, mode=mode)[0], expected)
        extents, listed = ",".join(map(str, x.shape)), ", ".join(map(str, pads))
        body = f'g (float[{extents}] x) => (float[] y) <int64[4] p = {{{listed}}}> {{ y = Pad<mode = "{mode}">(x, p) }}'
        graph = imported(body, 19)
        for result in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
            np.testing.assert_array_equal(result[0], expected)


@pytest.mark.parametrize("mode", MODES)
def test_pads_of_some_axes(mode: str):
    x = normal(3, 4, 5)
    (result,) = computed("Pad", [x, ints(2, -1, -1, 3), None, ints(-1, 0)], 19, mode=mode)
    np.testing.assert_array_equal(result, padded(x, [(-1, 3), (0, 0), (2, -1)], mode))


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, np.bool_, np.str_])
def test_pads_hold_a_value_of_the_type(dtype: Any):
    x, value = np.array([1, 0, 1]).astype(dtype), np.array([1]).astype(dtype)
    (result,) = computed("Pad", [x, ints(-1, 2), value], 18)
    assert result.tolist() == [x[1], x[2], value[0], value[0]]
    (result,) = computed("Pad", [x, ints(1, 0)], 18)
    assert result.tolist() == [{np.bool_: False, np.str_: ""}.get(dtype, 0), *x]


def test_pads_that_cut_off_more_than_there_is(runs: Any):
    x = np.array([1, 2], np.float32)
    assert computed("Pad", [x], 18, pads=(-3, 4), mode="constant", value=7.0)[0].tolist() == [7, 7, 7]
    graph = imported("g (float[2] x) => (float[3] y) <int64[2] p = {4, -3}> { y = Pad(x, p) }", 18)
    assert runs.nodes(graph, {"v0": x})[0].tolist() == [0, 0, 0]
    for mode in MODES[1:]:
        with pytest.raises(EvaluationError, match="can't be padded"):
            computed("Pad", [x], 19, pads=(-2, 1), mode=mode)


def test_texts_are_objects():
    for result in (
        computed("Cast", [ints(1, -20)], 13, to=8),
        computed("OneHot", [ints(0), np.array(1), np.array(["off", "on"], object)], 13),
    ):
        assert result[0].dtype == object


@pytest.mark.parametrize("axes", [(0,), (-1, 0), (1, -2), (-1, -3, 0)])
def test_unsqueeze(axes: tuple[int, ...]):
    agree("Unsqueeze", [normal(2, 3)], 11, 1, axes=axes)
    agree("Unsqueeze", [normal(2, 3), ints(*axes)], 13)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis: int | None):
    attrs = {} if axis is None else {"axis": axis}
    for condition in ([True], [False, True, True], []):
        agree("Compress", [normal(2, 4), np.array(condition, np.bool_)], 11, 1, **attrs)
    [result] = computed("Compress", [empty(0), np.array([True])], 11)
    assert result.shape == (0,)


@pytest.mark.parametrize("axes", [(0,), (1, 3), (3, -3), None])
def test_squeeze(axes: tuple[int, ...] | None):
    x = normal(1, 1, 2, 1) if axes != (0,) else normal(1, 3)
    agree("Squeeze", [x], 11, 1, **({} if axes is None else {"axes": axes}))
    agree("Squeeze", [x, *([] if axes is None else [ints(*axes)])], 13)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_the_depth_may_be_beyond_the_type_of_the_indices(dtype: Any):
    [result] = computed("OneHot", [np.array([0, 127], dtype), np.array(300), np.array([0, 1], np.float32)], 13)
    np.testing.assert_array_equal(result.argmax(axis=-1), [0, 127])


def counted(x: Any, axis: int | None, ascending: int) -> list[Any]:
    """Unique as its text says, slice by slice. NaN is one element, after all others."""
    whole = x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)
    keys = [tuple((v != v, 0 if v != v else v) for v in np.ravel(part).tolist()) for part in whole]
    order = list(dict.fromkeys(keys))
    if ascending:
        order.sort()
    first = [keys.index(key) for key in order]
    values = np.moveaxis(whole[np.asarray(first, np.int64)], 0, axis or 0)
    return [values, first, [order.index(key) for key in keys], [keys.count(key) for key in order]]


@pytest.mark.parametrize("ascending", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, np.float16, np.bool_, object])
def test_what_there_is(dtype: Any, ascending: int):
    for shape in ((), (7,), (5, 3), (2, 7, 3), (11, 2), (3, 0), (0,)):
        for axis in (None, *range(-len(shape), len(shape))):
            x = RNG.integers(0, 3, shape).astype(str if dtype is object else dtype).astype(dtype)
            if axis is not None and x.size:
                x = np.take(x, RNG.integers(0, x.shape[axis], x.shape[axis]), axis)  # some slices are there twice
            attrs = {"sorted": ascending} if axis is None else {"sorted": ascending, "axis": axis}
            results = computed("Unique", [x], 11, 4, **attrs)
            for ours, right in zip(results, counted(x, axis, ascending), strict=True):
                np.testing.assert_array_equal(ours, right)
            assert [each.dtype for each in results] == [x.dtype, *(np.int64,) * 3]
            for count in (1, 2, 3):
                np.testing.assert_array_equal(computed("Unique", [x], 11, count, **attrs)[-1], results[count - 1])
            if dtype in (np.float32, np.int64, np.int8) and x.size:
                agree("Unique", [x], 11, 4, **attrs)


@pytest.mark.parametrize("ascending", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_nan_is_there_once(axis: int | None, ascending: int):
    x = np.array([[np.nan, 1, 0, 1], [1, np.nan, 0, np.nan], [np.nan, 1, 0, 1]], np.float32)
    results = computed("Unique", [x], 11, 4, sorted=ascending, **({} if axis is None else {"axis": axis}))
    for ours, right in zip(results, counted(x, axis, ascending), strict=True):
        np.testing.assert_array_equal(ours, right)
    assert axis is not None or sum(map(isnan, results[0])) == 1


def test_unique_of_a_known_or_given_matrix(runs: Any):
    graph = imported("g (float[2,3] x) => (float[] y) { y = Unique<sorted = 0>(x) }")
    [result] = runs.nodes(graph, {"v0": np.array([[2, 1, 2], [0, 1, 0]], np.float32)})
    assert result.tolist() == [2, 1, 0]
    known = imported("g () => (float[] y) <float[2,3] c = {2, 1, 2, 0, 1, 0}> { y = Unique<sorted = 0, axis = 1>(c) }")
    assert known.constants[known.outputs[0].tensor].tolist() == [[2, 1], [0, 1]]


# Ops on quantised tensors as they should be


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("scales", [1, 4])
def test_quantised_convolution(rank: int, scales: int):
    x, w = (
        RNG.integers(0, 40, shape).astype(np.uint8) for shape in ((2, 3, *(6, 5, 4)[:rank]), (4, 3, *(3, 2, 2)[:rank]))
    )
    zeros = np.full(scales, 20, np.uint8)
    x_scale, scale = (np.full((), value, np.float32) for value in (0.1, 0.9))
    x_zero, zero = (np.full((), value, np.uint8) for value in (17, 100))
    weights = [w, np.linspace(0.1, 0.3, scales, dtype=np.float32), zeros]
    operands = [x, x_scale, x_zero, *weights, scale, zero, RNG.integers(-50, 50, 4).astype(np.int32)]
    [result] = computed("QLinearConv", operands, 13, 1, pads=(1,) * 2 * rank)
    [right] = by_peer("QLinearConv", operands, 13, 1, pads=(1,) * 2 * rank)
    assert result.shape == right.shape and result.dtype == right.dtype
    assert np.abs(result.astype(int) - right.astype(int)).max() <= 1


def test_quantising_nothing():
    [result] = computed("QuantizeLinear", [empty(1, 0), empty(0)], 19, 1, axis=1)
    assert result.shape == (1, 0) and result.dtype == np.uint8
