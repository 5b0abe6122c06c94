"""Folds, and what normalises by them, as they should be: for every type, for infinities and for nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .correcting import RNG, agree, computed, empty, imported, ints, normal

REDUCTIONS: dict[str, Any] = {
    "ReduceL1": lambda x, **over: np.sum(abs(x), **over),
    "ReduceL2": lambda x, **over: np.sqrt(np.sum(x * x, **over)),
    "ReduceLogSum": lambda x, **over: np.log(np.sum(x, **over)),
    "ReduceLogSumExp": np.logaddexp.reduce,
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, **over: np.sum(x * x, **over),
}


def reduced(op: str, x: Any, version: int, axes: tuple[int, ...] | None, **attrs: Any) -> Any:
    """By the opset's own way to give the axes."""
    if version < 18 and not (op == "ReduceSum" and version >= 13):
        (found,) = computed(op, [x], version, **({} if axes is None else {"axes": axes}), **attrs)
    else:
        (found,) = computed(op, [x] if axes is None else [x, ints(*axes)], version, **attrs)
    return found


@pytest.mark.parametrize("version", [11, 13, 18, 20])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, version: int):
    positive = np.abs(normal(2, 3, 5)) + 0.5
    for axes in (None, (1,), (-1, 0)):
        for keepdims in (0, 1):
            found = reduced(op, positive, version, axes, keepdims=keepdims)
            over = {"axis": axes if axes is not None else (0, 1, 2), "keepdims": bool(keepdims)}
            wanted = REDUCTIONS[op](positive.astype(np.float64), **over)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    scalar = reduced(op, np.float32(3), version, None, keepdims=0)
    np.testing.assert_allclose(scalar, REDUCTIONS[op](np.array([3.0]), axis=0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_keep_their_type(op: str, dtype: Any):
    x = RNG.integers(1, 5, (3, 7)).astype(dtype)
    found = reduced(op, x, 18, (1,))
    assert found.dtype == dtype
    wanted = REDUCTIONS[op](x.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(found, np.trunc(wanted) if dtype != np.float16 else wanted.astype(np.float16), rtol=1e-3)
    assert reduced(op, x, 18, None, noop_with_empty_axes=1).dtype == dtype


def test_without_axes_nothing_is_folded_if_asked_for():
    x = normal(2, 3)
    np.testing.assert_allclose(reduced("ReduceSumSquare", x, 18, None, noop_with_empty_axes=1), x * x, rtol=1e-6)
    np.testing.assert_allclose(reduced("ReduceLogSumExp", x, 18, (), noop_with_empty_axes=1), x, rtol=1e-5)
    np.testing.assert_allclose(reduced("ReduceSum", x, 18, ()), x.sum(keepdims=True), rtol=1e-5)


NOTHING = {
    "ReduceL1": 0, "ReduceL2": 0, "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf, "ReduceMax": -np.inf,
    "ReduceMean": np.nan, "ReduceMin": np.inf, "ReduceProd": 1, "ReduceSum": 0, "ReduceSumSquare": 0,
}  # fmt: skip
"""What ONNX says a fold over no values gives."""


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_of_nothing(op: str):
    for version in (11, 20):
        found = reduced(op, empty(2, 0, 3), version, (-2,), keepdims=0)
        np.testing.assert_array_equal(found, np.full((2, 3), NOTHING[op], np.float32))
        assert reduced(op, empty(2, 0, 3), version, (0, -1)).shape == (1, 0, 1)
    if op in ("ReduceMax", "ReduceMin"):
        bounds = np.iinfo(np.int32)
        whole = reduced(op, empty(0, dtype=np.int32), 20, None, keepdims=0)
        assert whole == (bounds.min if op == "ReduceMax" else bounds.max)
        assert reduced(op, empty(0, dtype=np.bool_), 20, None, keepdims=0) == (op == "ReduceMin")


@pytest.mark.parametrize("version", [11, 13, 18])
def test_log_sum_exp_of_extremes(version: int):
    inf, huge, tiny = np.inf, 3e38, 1e-45
    rows = np.array(
        [[-inf] * 3, [-inf, 0, -inf], [inf, 0, -inf], [inf] * 3, [np.nan, inf, 0], [huge, huge, 0],
         [-huge, -huge, -inf], [1e3] * 3, [-1e3] * 3, [tiny, -tiny, 0]], np.float32,
    )  # fmt: skip
    found = reduced("ReduceLogSumExp", rows, version, (1,), keepdims=0)
    with np.errstate(invalid="ignore"):
        wanted = np.logaddexp.reduce(rows.astype(np.float64), axis=1)
    np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(axis: int, p: int):
    agree("LpNormalization", [normal(2, 3, 5)], axis=axis, p=p)
    assert not computed("LpNormalization", [np.zeros((2, 3), np.float32)], axis=axis, p=p)[0].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_layer_normalization_gives_moments_in_single_precision(dtype: Any):
    x, gain, bias = 30 * normal(2, 3, 5, dtype=dtype), normal(3, 5, dtype=dtype), normal(3, 5, dtype=dtype)
    y, mean, scale = computed("LayerNormalization", [x, gain, bias], 17, 3, axis=1, epsilon=0.1)
    assert (y.dtype, mean.dtype, scale.dtype) == (dtype, np.float32, np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=(1, 2), keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=(1, 2), keepdims=True) + 0.1)
    np.testing.assert_allclose(mean, wide.mean(axis=(1, 2), keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(scale, 1 / deviation, rtol=1e-4)
    np.testing.assert_allclose(y, centred / deviation * gain + bias, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("version", [11, 13])
def test_softmax_over_no_rows(op: str, version: int, runs: Any):
    for shape in ((0,), (0, 3), (2, 0), (0, 0), (2, 0, 3), (2, 3, 0)):
        for axis in range(-len(shape), len(shape)):
            assert computed(op, [empty(*shape)], version, axis=axis)[0].shape == shape
            extents = ",".join(map(str, shape))
            graph = imported(f"g (float[{extents}] x) => (float[] y) {{ y = {op}<axis = {axis}>(x) }}", version)
            assert runs.nodes(graph, {"v0": empty(*shape)})[0].shape == shape


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction: str, weighted: bool):
    weights = [np.abs(normal(5))] if weighted else []
    operands = [100 * normal(3, 5, 2), RNG.integers(0, 5, (3, 2)), *weights]
    agree("SoftmaxCrossEntropyLoss", operands, 13, 2, reduction=reduction, ignore_index=2)


@pytest.mark.parametrize(("op", "wanted"), [("GlobalLpPool", 600.0), ("LpPool", 600.0), ("LRN", 300 / 90001**0.75)])
def test_halves_do_not_overflow_within(op: str, wanted: float):
    known: dict[str, dict[str, Any]] = {"LpPool": {"kernel_shape": (2, 2)}, "LRN": {"size": 1, "alpha": 1.0}}
    attrs = known.get(op, {})
    [found] = computed(op, [np.full((1, 1, 2, 2), 300, np.float16)], 18, 1, **attrs)
    assert found.dtype == np.float16
    assert found.max() == pytest.approx(wanted, rel=1e-2)
