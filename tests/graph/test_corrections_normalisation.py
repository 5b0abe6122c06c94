"""Normalisation by moments as it should be: without learning, and where the mean is far from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.onnx_import import ModelError

from .correcting import agree, computed, empty, imported, normal


@pytest.mark.parametrize("version", [7, 9, 13, 14, 15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_normalization_learns_nothing(version: int, dtype: Any):
    parameters = [np.abs(normal(3, dtype=dtype)) + np.asarray(0.1, dtype) for _ in range(4)]
    agree("BatchNormalization", [normal(2, 3, 4, dtype=dtype), *parameters], version, 1, epsilon=0.01, momentum=0.8)


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_mean_variance_normalization(dtype: str, runs: Any):
    graph = imported(f"g ({dtype}[2,3,4,5] x) => ({dtype}[] y) {{ y = MeanVarianceNormalization(x) }}", 13)
    x = normal(2, 3, 4, 5, dtype=graph.types["v0"].dtype)
    [found] = runs.nodes(graph, {"v0": x})
    wide = x.astype(np.float64)
    right = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, right, rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-3)


def test_mean_variance_normalization_does_not_cancel(runs: Any):
    graph = imported("g (float[1,1,2,1] x) => (float[] y) { y = MeanVarianceNormalization(x) }", 13)
    x = np.array([-1001.5, -1001.25], np.float32).reshape(1, 1, 2, 1)
    for [found] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
        np.testing.assert_allclose(found.reshape(-1), [-1, 1], rtol=1e-6)


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
        for [found] in (runs.nodes(graph, tensors), runs.steps(graph, tensors)):
            assert found.dtype == x.dtype
            np.testing.assert_allclose(found, right, rtol=4e-3, atol=1e-2 if dtype == "float16" else 8e-7 * abs(middle))


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
        [found] = runs.nodes(graph, {"v0": x, "v1": s, "v2": np.asarray(True)})
        assert (np.abs(found - right).max() < 1e-9) == is_wide
        np.testing.assert_allclose(found, right, atol=1e-3)


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
    for [found] in (runs.nodes(graph, {"v0": x, "v1": s}), [computed("InstanceNormalization", [x, s, s], 17)[0]]):
        assert found.shape == x.shape
