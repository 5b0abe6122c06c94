"""Folds and norms as they should be: without learning, and where the mean is far from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.onnx_import import ModelError

from .correcting import RNG, agree, computed, empty, imported, ints, normal


@pytest.mark.parametrize("version", [7, 9, 13, 14, 15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_normalization_learns_nothing(version: int, dtype: Any):
    parameters = [np.abs(normal(3, dtype=dtype)) + np.asarray(0.1, dtype) for _ in range(4)]
    agree("BatchNormalization", [normal(2, 3, 4, dtype=dtype), *parameters], version, 1, epsilon=0.01, momentum=0.8)


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_mean_variance_normalization(dtype: str, runs: Any):
    graph = imported(f"g ({dtype}[2,3,4,5] x) => ({dtype}[] y) {{ y = MeanVarianceNormalization(x) }}", 13)
    x = normal(2, 3, 4, 5, dtype=graph.types["v0"].dtype)
    [result] = runs.nodes(graph, {"v0": x})
    wide = x.astype(np.float64)
    right = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    assert result.dtype == x.dtype
    np.testing.assert_allclose(result, right, rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-3)


def test_mean_variance_normalization_does_not_cancel(runs: Any):
    graph = imported("g (float[1,1,2,1] x) => (float[] y) { y = MeanVarianceNormalization(x) }", 13)
    x = np.array([-1001.5, -1001.25], np.float32).reshape(1, 1, 2, 1)
    for [result] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
        np.testing.assert_allclose(result.reshape(-1), [-1, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("opset", "dtype"), [(9, "float"), (13, "float"), (20, "float"), (18, "bfloat16"), (18, "float16")]
)
def test_mean_variance_normalization_of_what_is_alike(opset: int, dtype: str, runs: Any):
    graph = imported(f"g ({dtype}[2,3,4,5] x) => ({dtype}[] y) {{ y = MeanVarianceNormalization(x) }}", opset)
    assert graph.types[graph.outputs[0].tensor].shape == (2, 3, 4, 5)
    [result] = runs.steps(graph, {"v0": np.full((2, 3, 4, 5), 3, np.dtype(graph.types["v0"].dtype))})
    np.testing.assert_array_equal(result.astype(np.float32), np.zeros((2, 3, 4, 5)))


def test_places_of_a_pool_alone(runs: Any):
    """Nobody reads the largest elements themselves; NaN is the largest of all."""
    graph = imported("g (double[1,1,1,2] x) => (int64[] i) { y, i = MaxPool <kernel_shape = [1, 2]> (x) }", 12)
    assert not any(isinstance(step, Fallback) for step in partition(graph))
    [result] = runs.steps(graph, {"v0": np.array([-5, np.nan]).reshape(1, 1, 1, 2)})
    assert result.tolist() == [[[[1]]]]


def test_local_responses_of_doubles_are_exact():
    [result] = computed("LRN", [np.ones((1, 1, 1))], 13, alpha=0.5, size=5)
    assert result.item() == pytest.approx(1.1**-0.75, rel=1e-15)


GROUPS = 3
FAR = {
    "GroupNormalization": (f"<num_groups = {GROUPS}>(x, s, b)", 21),
    "GroupNormalization of groups": (f"<num_groups = {GROUPS}>(x, t, u)", 18),
    "InstanceNormalization": ("(x, s, b)", 17),
    "LayerNormalization": ("<axis = 2>(x, g, h)", 17),
    "MeanVarianceNormalization": ("<axes = [1, 2, 3]>(x)", 13),
}
"""Ops that take the mean away: their attributes and operands, and an opset."""


def whitened(op: str, x: Any, values: dict[str, Any]) -> Any:
    """What an op of FAR makes, in double precision."""
    wide = x.astype(np.float64)
    groups = wide.reshape(len(x), GROUPS, -1)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    match op:
        case "GroupNormalization":
            return _even(groups, -1).reshape(x.shape) * values["s"].reshape(shape) + values["b"].reshape(shape)
        case "GroupNormalization of groups":
            scaled = _even(groups, -1) * values["t"].reshape(1, -1, 1) + values["u"].reshape(1, -1, 1)
            return scaled.reshape(x.shape)
        case "InstanceNormalization":
            return _even(wide, (2, 3)) * values["s"].reshape(shape) + values["b"].reshape(shape)
        case "LayerNormalization":
            return _even(wide, (2, 3)) * values["g"] + values["h"]
        case _:
            return _even(wide, (1, 2, 3), 0.0)


def _even(x: Any, axes: Any, epsilon: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("op", FAR)
@pytest.mark.parametrize(("dtype", "middle"), [("float", 1000), ("float", -3e4), ("float16", 1000), ("double", 1e9)])
@pytest.mark.parametrize("shape", [(1, 6, 5, 7), (2, 9, 3, 11), (3, 3, 1, 13)])
def test_a_mean_far_from_zero_does_not_cancel(op: str, dtype: str, middle: float, shape: tuple[int, ...], runs: Any):
    """As written, and in the body of an If, which the evaluator runs."""
    attrs, opset = FAR[op]
    sizes = {"s": shape[1:2], "b": shape[1:2], "t": (GROUPS,), "u": (GROUPS,), "g": shape[2:], "h": shape[2:]}
    declared = ", ".join(f"{dtype}[{','.join(map(str, size))}] {name}" for name, size in {"x": shape, **sizes}.items())
    stash = ", stash_type = 11>" if dtype == "double" and op == "GroupNormalization" else ">"
    call = f"{op.split()[0]}{attrs.replace('>', stash)}"
    branch = f"If (c) <then_branch = t () => ({dtype}[] r) {{ r = {call} }}, else_branch = e () => ({dtype}[] q)"
    for body in (call, f"{branch} {{ q = Neg(x) }}>"):
        graph = imported(f"g ({declared}, bool c) => ({dtype}[] y) {{ y = {body} }}", opset)
        kind = graph.types["v0"].dtype
        x = (middle + normal(*shape, dtype=np.float64) * (16 if dtype == "float16" else 1)).astype(kind)
        values = {name: normal(*size, dtype=kind) for name, size in sizes.items()}
        feeds = dict(zip((value.label for value in graph.inputs), (x, *values.values(), np.asarray(True)), strict=True))
        tensors = {value.tensor: feeds[value.label] for value in graph.inputs}
        right = whitened(op, x, values)
        for [result] in (runs.nodes(graph, tensors), runs.steps(graph, tensors)):
            assert result.dtype == x.dtype
            np.testing.assert_allclose(
                result, right, rtol=4e-3, atol=1e-2 if dtype == "float16" else 8e-7 * abs(middle)
            )


@pytest.mark.parametrize(
    ("opset", "stash", "is_wide"), [(18, "", True), (21, "", False), (21, ", stash_type = 11", True)]
)
def test_a_group_normalization_of_doubles_has_moments_as_the_node_says(
    opset: int, stash: str, is_wide: bool, runs: Any
):
    """The same as written and in a body, which the evaluator runs."""
    call = f"GroupNormalization<num_groups = 2{stash}>(x, s, s)"
    other = "else_branch = e () => (double[] q) { q = Neg(x) }"
    branch = f"If (c) <then_branch = t () => (double[] r) {{ r = {call} }}, {other}>"
    x, s = 1000 + normal(2, 6, 5, dtype=np.float64), np.ones(2 if opset < 21 else 6)
    right = _even(x.reshape(2, 2, -1), -1).reshape(x.shape) + 1
    for body in (call, branch):
        graph = imported(f"g (double[2,6,5] x, double[{len(s)}] s, bool c) => (double[] y) {{ y = {body} }}", opset)
        [result] = runs.nodes(graph, {"v0": x, "v1": s, "v2": np.asarray(True)})
        assert (np.abs(result - right).max() < 1e-9) == is_wide
        np.testing.assert_allclose(result, right, atol=1e-3)


def test_a_group_normalization_is_one_pass_of_moments():
    graph = imported(
        "g (float[2,6,5] x, float[6] s, float[6] b) => (float[] y) { y = GroupNormalization<num_groups = 2>(x, s, b) }",
        21,
    )
    assert [node.op for node in graph.nodes].count("LayerNormalization") == 1
    assert not any(node.op.startswith("Reduce") for node in graph.nodes)


@pytest.mark.parametrize(
    ("groups", "scales", "words"), [(4, 6, "4 groups"), (0, 6, "num_groups is 0"), (2, 2, "channel")]
)
def test_groups_that_do_not_fit(groups: int, scales: int, words: str):
    body = f"y = GroupNormalization<num_groups = {groups}>(x, s, s)"
    with pytest.raises(ModelError, match=words):
        imported(f"g (float[2,6,5] x, float[{scales}] s) => (float[] y) {{ {body} }}", 21)


def test_no_groups_of_nothing(runs: Any):
    graph = imported(
        "g (float[0,6,5] x, float[6] s) => (float[] y) { y = GroupNormalization<num_groups = 2>(x, s, s) }", 21
    )
    x, s = empty(0, 6, 5), normal(6)
    for [result] in (runs.nodes(graph, {"v0": x, "v1": s}), [computed("InstanceNormalization", [x, s, s], 17)[0]]):
        assert result.shape == x.shape


# Folds, and what normalises by them, as they should be: for every type, for infinities and for nothing

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
        (result,) = computed(op, [x], version, **({} if axes is None else {"axes": axes}), **attrs)
    else:
        (result,) = computed(op, [x] if axes is None else [x, ints(*axes)], version, **attrs)
    return result


@pytest.mark.parametrize("version", [11, 13, 18, 20])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, version: int):
    positive = np.abs(normal(2, 3, 5)) + 0.5
    for axes in (None, (1,), (-1, 0)):
        for keepdims in (0, 1):
            result = reduced(op, positive, version, axes, keepdims=keepdims)
            over = {"axis": axes if axes is not None else (0, 1, 2), "keepdims": bool(keepdims)}
            expected = REDUCTIONS[op](positive.astype(np.float64), **over)
            assert result.dtype == np.float32
            np.testing.assert_allclose(result, expected, rtol=1e-5)
    scalar = reduced(op, np.float32(3), version, None, keepdims=0)
    np.testing.assert_allclose(scalar, REDUCTIONS[op](np.array([3.0]), axis=0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_keep_their_type(op: str, dtype: Any):
    x = RNG.integers(1, 5, (3, 7)).astype(dtype)
    result = reduced(op, x, 18, (1,))
    assert result.dtype == dtype
    expected = REDUCTIONS[op](x.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(
        result, np.trunc(expected) if dtype != np.float16 else expected.astype(np.float16), rtol=1e-3
    )
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
        result = reduced(op, empty(2, 0, 3), version, (-2,), keepdims=0)
        np.testing.assert_array_equal(result, np.full((2, 3), NOTHING[op], np.float32))
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
    result = reduced("ReduceLogSumExp", rows, version, (1,), keepdims=0)
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.reduce(rows.astype(np.float64), axis=1)
    np.testing.assert_allclose(result, expected.astype(np.float32), rtol=1e-6)


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


@pytest.mark.parametrize(("op", "expected"), [("GlobalLpPool", 600.0), ("LpPool", 600.0), ("LRN", 300 / 90001**0.75)])
def test_halves_do_not_overflow_within(op: str, expected: float):
    known: dict[str, dict[str, Any]] = {"LpPool": {"kernel_shape": (2, 2)}, "LRN": {"size": 1, "alpha": 1.0}}
    attrs = known.get(op, {})
    [result] = computed(op, [np.full((1, 1, 2, 2), 300, np.float16)], 18, 1, **attrs)
    assert result.dtype == np.float16
    assert result.max() == pytest.approx(expected, rel=1e-2)
