"""Channels last: Transposes stay at the edges of a model, and nothing is computed differently."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from tunewright.graph.evaluation.onnx_form import CHANNELS_LAST_OPS, is_channels_last
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.rewrites.layout import regroup


@pytest.fixture(autouse=True)
def no_rule_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A node that could not be moved is logged as a warning: none of these may."""
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class Net:
    """A model in the making: `net.conv(x, 8)` adds nodes and answers the name of the result."""

    def __init__(self, *shape: int) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape}
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._rng = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        return self.constant((self._rng.standard_normal(shape) / np.sqrt(max(1, prod(shape[1:])))).astype(np.float32))

    def constant(self, array: Any) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self._weights)}"))
        return f"w{len(self._weights) - 1}"

    def op(self, kind: str, *inputs: str, count: int = 1, **attrs: Any) -> Any:
        outputs = [f"t{len(self._nodes)}_{k}" for k in range(count)]
        self._nodes.append(helper.make_node(kind, list(inputs), outputs, **attrs))
        return outputs if count > 1 else outputs[0]

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int = 3, *, relu: bool = True, spatial: int = 2, **attrs: Any
    ) -> str:
        group = attrs.get("group", 1)
        weight = self.weight(channels[1], channels[0] // group, *(kernel,) * spatial)
        pads = [kernel // 2] * 2 * spatial
        y = self.op("Conv", x, weight, self.weight(channels[1]), **{"pads": pads, **attrs})
        return str(self.op("Relu", y) if relu else y)

    def graph(self, *outputs: str) -> Graph:
        (item,) = [helper.make_tensor_value_info("x", 1, self.shapes["x"])]
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self._nodes, "g", [item], results, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        return load(model.SerializeToString())


def resnet() -> Graph:
    net = Net(1, 3, 16, 16)
    x = net.conv("x", (3, 8), 7, strides=[2, 2])
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for channels, stride in (((8, 8), 1), ((8, 16), 2)):
        y = net.conv(x, channels, strides=[stride] * 2)
        y = net.conv(y, (channels[1], channels[1]), relu=False)
        y = net.op(
            "BatchNormalization", y, *(net.constant(np.full(channels[1], v, np.float32)) for v in (1.1, 0.1, 0.2, 0.9))
        )
        shortcut = x if stride == 1 else net.conv(x, channels, 1, relu=False, strides=[stride] * 2)
        x = net.op("Relu", net.op("Add", y, shortcut))
    x = net.op("GlobalAveragePool", x)
    x = net.op("Flatten", x)
    return net.graph(net.op("Gemm", x, net.weight(10, 16), net.weight(10), transB=1))


def squeezenet() -> Graph:
    net = Net(1, 3, 16, 16)
    x = net.op("MaxPool", net.conv("x", (3, 8), strides=[2, 2]), kernel_shape=[2, 2])
    for _ in range(2):
        squeezed = net.conv(x, (8, 4), 1)
        x = net.op("Concat", net.conv(squeezed, (4, 4), 1), net.conv(squeezed, (4, 4)), axis=1)
    x = net.op("Dropout", net.conv(x, (8, 10), 1))
    x = net.op("ReduceMean", x, net.constant(np.array([-1, -2])), keepdims=0)
    return net.graph(net.op("Softmax", x, axis=1))


def unet() -> Graph:
    net = Net(1, 3, 16, 16)
    top = net.conv("x", (3, 4))
    low = net.conv(net.op("MaxPool", top, kernel_shape=[2, 2], strides=[2, 2]), (4, 8))
    bottom = net.conv(net.op("AveragePool", low, kernel_shape=[2, 2], strides=[2, 2]), (8, 8))
    up = net.op("ConvTranspose", bottom, net.weight(8, 8, 2, 2), net.weight(8), strides=[2, 2])
    y = net.conv(net.op("Concat", low, up, axis=1), (16, 4))
    y = net.op("Resize", y, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    y = net.conv(net.op("Concat", top, y, axis=-3), (8, 2), 1, relu=False)
    return net.graph(net.op("Sigmoid", y))


def mobilenet() -> Graph:
    net = Net(1, 3, 16, 16)
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    x = net.op("Clip", net.conv("x", (3, 8), relu=False, strides=[2, 2]), low, high)
    y = net.op("Clip", net.conv(x, (8, 16), 1, relu=False), low, high)
    y = net.op("Clip", net.conv(y, (16, 16), relu=False, group=16), low, high)
    gate = net.op("ReduceMean", y, net.constant(np.array([2, 3])))
    gate = net.op("HardSigmoid", net.conv(net.conv(gate, (16, 4), 1), (4, 16), 1, relu=False))
    y = net.conv(net.op("Mul", y, gate), (16, 8), 1, relu=False)
    return net.graph(net.op("ReduceMax", net.op("Add", x, y), net.constant(np.array([2, 3])), keepdims=0))


def shufflenet() -> Graph:
    net = Net(1, 8, 8, 8)
    left, right = net.op("Split", net.conv("x", (8, 8)), net.constant(np.array([4, 4])), axis=1, count=2)
    y = net.op("Concat", left, net.conv(right, (4, 4)), axis=1)
    y = net.op("Reshape", y, net.constant(np.array([1, 2, 4, 8, 8])))
    y = net.op("Transpose", y, perm=[0, 2, 1, 3, 4])
    y = net.op("Reshape", y, net.constant(np.array([1, 8, 8, 8])))
    return net.graph(net.conv(y, (8, 4), 1))


def vgg() -> Graph:
    net = Net(2, 3, 8, 8)
    x = net.op("MaxPool", net.conv("x", (3, 5)), kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.op("Gemm", net.op("Flatten", x), net.weight(7, 80), net.weight(7), transB=1))
    return net.graph(net.op("Gemm", x, net.weight(7, 4), net.weight(4)))


def detector() -> Graph:
    """Heads end in Transpose and Reshape, as in SSD."""
    net = Net(1, 3, 16, 16)
    x = net.conv("x", (3, 8), strides=[2, 2])
    heads = []
    for size in (64, 16):
        head = net.op("Transpose", net.conv(x, (8, 6), relu=False), perm=[0, 2, 3, 1])
        heads.append(net.op("Reshape", head, net.constant(np.array([1, size * 2, 3]))))
        x = net.conv(x, (8, 8), strides=[2, 2])
    return net.graph(net.op("Softmax", net.op("Concat", *heads, axis=1), axis=2))


def patches() -> Graph:
    """The beginning of a vision transformer: images to rows."""
    net = Net(1, 3, 16, 16)
    x = net.op("Conv", "x", net.weight(12, 3, 4, 4), net.weight(12), strides=[4, 4])
    x = net.op("Transpose", net.op("Reshape", x, net.constant(np.array([1, 12, 16]))), perm=[0, 2, 1])
    return net.graph(net.op("MatMul", net.op("Add", x, net.weight(16, 12)), net.weight(12, 5)))


def convnext() -> Graph:
    """LayerNormalization over channels, between transpositions of its own."""
    net = Net(1, 3, 8, 8)
    x = net.conv("x", (3, 8), relu=False)
    y = net.op("Transpose", net.conv(x, (8, 8), relu=False, group=8), perm=[0, 2, 3, 1])
    y = net.op("LayerNormalization", y, net.weight(8), net.weight(8), axis=-1)
    y = net.op("MatMul", net.op("MatMul", y, net.weight(8, 16)), net.weight(16, 8))
    return net.graph(net.conv(net.op("Add", x, net.op("Transpose", y, perm=[0, 3, 1, 2])), (8, 4), 1))


def speech() -> Graph:
    net = Net(2, 4, 20)
    x = net.conv(net.conv("x", (4, 6), spatial=1), (6, 6), spatial=1, strides=[2])
    x = net.op(
        "Pad", net.op("Slice", x, *(net.constant(np.array([v])) for v in (1, 9, 2))), net.constant([0, 0, 1, 0, 0, 1])
    )
    return net.graph(net.op("LRN", x, size=3))


def volume() -> Graph:
    net = Net(1, 2, 4, 5, 6)
    return net.graph(net.op("MaxPool", net.conv("x", (2, 4), spatial=3), kernel_shape=[2, 2, 2]))


def pixels() -> Graph:
    net = Net(1, 3, 4, 4)
    y = net.op("DepthToSpace", net.conv("x", (3, 16), 1), blocksize=2)
    return net.graph(
        net.op("SpaceToDepth", net.op("InstanceNormalization", y, net.weight(4), net.weight(4)), blocksize=4)
    )


MODELS: list[tuple[Callable[[], Graph], int]] = [
    (resnet, 1), (squeezenet, 1), (unet, 2), (mobilenet, 1), (shufflenet, 3), (vgg, 1), (detector, 1), (patches, 1),
    (convnext, 2), (speech, 2), (volume, 2), (pixels, 2),
]  # fmt: skip
"""With how many Transposes must remain: one for the image that enters, one for each that leaves, one for a shuffle."""


@pytest.mark.parametrize(("model", "transposes"), MODELS, ids=[model.__name__ for model, _ in MODELS])
def test_transposes_stay_at_the_edges(model: Callable[[], Graph], transposes: int, runs: Any):
    before = model()
    after = rewrite(before)
    assert Counter(node.op for node in after.nodes)["Transpose"] == transposes
    assert all(is_channels_last(node) for node in after.nodes if node.op in CHANNELS_LAST_OPS)
    x = np.random.default_rng(0).standard_normal(before.types["v0"].shape).astype(np.float32)
    for result, expected in zip(runs.nodes(after, {"v0": x}), runs.nodes(before, {"v0": x}), strict=True):
        runs.close(result, expected, 1e-5)


def test_the_layout_is_a_choice(runs: Any):
    after = rewrite(resnet(), layout="NCHW")
    assert not any(is_channels_last(node) or node.op == "Transpose" for node in after.nodes)


def test_weights_are_stored_for_channels_last():
    after = rewrite(unet())
    shapes = {node.op: after.types[node.inputs[1]].shape for node in after.nodes if node.op.startswith("Conv")}
    assert shapes == {"Conv": (1, 1, 8, 2), "ConvTranspose": (2, 2, 8, 8)}
    assert all(node.inputs[1] in after.constants for node in after.nodes if node.op.startswith("Conv"))


def test_flattening_moves_rows_of_weights_instead():
    after = rewrite(vgg())
    ops = [node.op for node in after.nodes]
    assert ops == ["Transpose", "Conv", "Relu", "MaxPool", "Reshape", "MatMul", "Add", "Relu", "MatMul", "Add"]


def test_weights_that_the_model_computes_are_transposed_as_it_runs(runs: Any):
    net = Net(1, 2, 5, 5)
    weight = net.op(
        "Reshape", net.op("Slice", "x", *(net.constant(np.array([v])) for v in (0, 4, 2))), net.constant([2, 2, 2, 5])
    )
    before = net.graph(net.op("Conv", "x", weight))
    after = rewrite(before)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)
    for result, expected in zip(runs.nodes(after, {"v0": x}), runs.nodes(before, {"v0": x}), strict=True):
        runs.close(result, expected)


def _stored(x: NDArray[Any], perm: tuple[int, ...]) -> NDArray[Any]:
    """What `x` is the Transpose of."""
    return x.transpose(np.argsort(perm))


@given(st.data())
def test_reshapes_on_stored_tensors(data: Any):
    """Splitting and joining axes where they are stored gives what the model's own Reshape gives."""
    given_shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    flat = [f for extent in given_shape for f in ({4: (2, 2)}.get(extent, (extent,)))]
    target: list[int] = []
    for factor in flat:
        if target and data.draw(st.booleans()):
            target[-1] *= factor
        else:
            target.append(factor)
    for _ in range(data.draw(st.integers(0, 2))):
        target.insert(data.draw(st.integers(0, len(target))), 1)
    perm = tuple(data.draw(st.permutations(range(len(given_shape)))))
    x = np.arange(prod(given_shape)).reshape(given_shape)
    plan = regroup(given_shape, target, perm)
    assert plan is not None
    stored = _stored(x, perm if plan.order is None else plan.order)
    np.testing.assert_array_equal(stored.reshape(plan.shape).transpose(plan.perm), x.reshape(target))


def test_moments_are_stored_as_their_rows_are(runs: Any):
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[2,3,4] x, float[4] s) => (float[3,2,4] y, float[] m)
        { t = Transpose <perm = [1, 0, 2]> (x) y, m, d = LayerNormalization <axis = 2> (t, s) }"""
    before = load(parser.parse_model(text).SerializeToString())
    feeds = {"v0": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32), "v1": np.ones(4, np.float32)}
    for result, expected in zip(runs.nodes(rewrite(before), feeds), runs.nodes(before, feeds), strict=True):
        runs.close(result, expected, 1e-5)
