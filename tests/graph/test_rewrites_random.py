"""Random models compute the same after all rewrites, in both layouts."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

Shape = tuple[int, ...]


class Draw:
    """A random model, node by node; every step takes one of the newest tensors."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._values = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        rank = self.rng.choice([3, 4, 4, 4, 5])
        first = (
            self.rng.choice([1, 2]),
            self.rng.choice([2, 4]),
            *(self.rng.choice([1, 3, 4]) for _ in range(rank - 2)),
        )
        self.shapes: dict[str, Shape] = {"x": first}
        for _ in range(self.rng.randrange(3, 12)):
            name = self.rng.choice(list(self.shapes)[-4:])
            self.rng.choice(STEPS)(self, name, self.shapes[name])

    def constant(self, array: Any) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self._weights)}"))
        return f"w{len(self._weights) - 1}"

    def floats(self, *shape: int) -> str:
        return self.constant((0.7 * self._values.standard_normal(shape)).astype(np.float32))

    def positive(self, *shape: int) -> str:
        return self.constant(self._values.uniform(0.5, 1.5, shape).astype(np.float32))

    def op(self, kind: str, inputs: list[str], *shapes: Shape, **attrs: Any) -> str:
        outputs = [f"t{len(self._nodes)}_{k}" for k in range(len(shapes))]
        self._nodes.append(helper.make_node(kind, inputs, outputs, **attrs))
        self.shapes.update(zip(outputs, map(tuple, shapes), strict=True))
        return outputs[0]

    def model(self) -> ModelProto:
        read = {name for node in self._nodes for name in node.input}
        outputs = [name for name in self.shapes if name not in read and name != "x"] or [list(self.shapes)[-1]]
        inputs = [helper.make_tensor_value_info("x", 1, self.shapes["x"])]
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self._nodes, "g", inputs, results, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def conv(d: Draw, x: str, s: Shape) -> None:
    if len(s) < 3:
        return
    group = d.rng.choice([1, 1, s[1]])
    features = group * d.rng.choice([1, 2])
    kernel = [d.rng.choice([1, min(3, extent)]) for extent in s[2:]]
    strides = [d.rng.choice([1, 1, 2]) for _ in kernel]
    before = [d.rng.choice([0, k // 2]) for k in kernel]
    extents = [(e + 2 * p - k) // t + 1 for e, p, k, t in zip(s[2:], before, kernel, strides, strict=True)]
    bias = [d.floats(features)] if d.rng.random() < 0.5 else []
    inputs = [x, d.floats(features, s[1] // group, *kernel), *bias]
    d.op("Conv", inputs, (s[0], features, *extents), group=group, pads=before * 2, strides=strides)


def upsample(d: Draw, x: str, s: Shape) -> None:
    if len(s) == 4 and max(s) < 8:
        wide = (s[0], 3, 2 * s[2], 2 * s[3])
        y = d.op("ConvTranspose", [x, d.floats(s[1], 3, 2, 2)], wide, strides=[2, 2])
        scales = d.constant(np.array([1, 1, 2, 1], np.float32))
        d.op("Resize", [y, "", scales], (*wide[:2], 2 * wide[2], wide[3]), mode="nearest")


def pool(d: Draw, x: str, s: Shape) -> None:
    if len(s) > 2:
        kernel = [min(2, extent) for extent in s[2:]]
        kind = d.rng.choice(["MaxPool", "AveragePool"])
        d.op(
            kind,
            [x],
            (*s[:2], *(e // k for e, k in zip(s[2:], kernel, strict=True))),
            kernel_shape=kernel,
            strides=kernel,
        )


def batch_norm(d: Draw, x: str, s: Shape) -> None:
    if len(s) > 1:
        d.op("BatchNormalization", [x, *(d.floats(s[1]) for _ in range(3)), d.positive(s[1])], s)


def unary(d: Draw, x: str, s: Shape) -> None:
    d.op(d.rng.choice(["Relu", "Tanh", "Neg", "Identity", "Abs"]), [x], s)


def with_constant(d: Draw, x: str, s: Shape) -> None:
    along = tuple(extent if axis == 1 else 1 for axis, extent in enumerate(s))
    shape = d.rng.choice([(), s[-1:], along, along[1:], s])
    other = d.constant(np.float32(d.rng.choice([0, 1, 2]))) if d.rng.random() < 0.3 else d.positive(*shape)
    kind = d.rng.choice(["Add", "Mul", "Sub", "Div"])
    if kind == "Div" and np.any(numpy_helper.to_array(d._weights[-1]) == 0):
        kind = "Mul"
    d.op(kind, [x, other] if kind == "Div" or d.rng.random() < 0.7 else [other, x], s)


def with_tensor(d: Draw, x: str, s: Shape) -> None:
    other = d.rng.choice([name for name, shape in d.shapes.items() if shape == s])
    d.op(d.rng.choice(["Add", "Mul", "Max"]), [x, other], s)


def transpose(d: Draw, x: str, s: Shape) -> None:
    perm = list(range(len(s)))
    d.rng.shuffle(perm)
    if len(s) > 2 and d.rng.random() < 0.5:
        perm = d.rng.choice([[0, *range(2, len(s)), 1], [0, len(s) - 1, *range(1, len(s) - 1)]])
    d.op("Transpose", [x], tuple(s[axis] for axis in perm), perm=perm)


def reshape(d: Draw, x: str, s: Shape) -> None:
    size = prod(s)
    shapes: list[Shape] = [(size,), (s[0], size // s[0]), (*s, 1), (1, *s)]
    if len(s) > 2:
        shapes += [(s[0], s[1], size // (s[0] * s[1])), (s[0] * s[1], *s[2:])]
    if len(s) > 1 and s[1] % 2 == 0:
        shapes.append((s[0], 2, s[1] // 2, *s[2:]))
    target = d.rng.choice([shape for shape in shapes if len(shape) <= 6])
    d.op("Reshape", [x, d.constant(np.array(target))], target)


def shuffle(d: Draw, x: str, s: Shape) -> None:
    if len(s) == 4 and s[1] % 2 == 0:
        parts, turned = (s[0], 2, s[1] // 2, *s[2:]), (s[0], s[1] // 2, 2, *s[2:])
        y = d.op("Reshape", [x, d.constant(np.array(parts))], parts)
        y = d.op("Transpose", [y], turned, perm=[0, 2, 1, 3, 4])
        d.op("Reshape", [y, d.constant(np.array(s))], s)


def concat(d: Draw, x: str, s: Shape) -> None:
    axis = d.rng.randrange(len(s))
    d.op("Concat", [x, x], tuple(2 * e if k == axis else e for k, e in enumerate(s)), axis=axis)


def split(d: Draw, x: str, s: Shape) -> None:
    axis = d.rng.randrange(len(s))
    if s[axis] > 1:
        parts = [tuple(n if k == axis else e for k, e in enumerate(s)) for n in (1, s[axis] - 1)]
        d.op("Split", [x, d.constant(np.array([1, s[axis] - 1]))], *parts, axis=axis)


def cut(d: Draw, x: str, s: Shape) -> None:
    axis = d.rng.randrange(len(s))
    if s[axis] > 2:
        target = tuple(e - 1 if k == axis else e for k, e in enumerate(s))
        d.op("Slice", [x, *(d.constant(np.array([v])) for v in (1, 10**6, axis))], target)


def pad(d: Draw, x: str, s: Shape) -> None:
    amounts = [d.rng.choice([0, 0, 1]) for _ in range(2 * len(s))]
    target = tuple(e + a + b for e, a, b in zip(s, amounts, amounts[len(s) :], strict=False))
    d.op("Pad", [x, d.constant(np.array(amounts))], target)


def fold(d: Draw, x: str, s: Shape) -> None:
    axes, keep = d.rng.sample(range(len(s)), d.rng.randrange(1, len(s) + 1)), d.rng.choice([0, 1])
    target = tuple(1 if k in axes else e for k, e in enumerate(s) if keep or k not in axes)
    if target:
        kind = d.rng.choice(["ReduceMean", "ReduceMax", "ReduceSum"])
        d.op(kind, [x, d.constant(np.array(axes))], target, keepdims=keep)


def softmax(d: Draw, x: str, s: Shape) -> None:
    d.op("Softmax", [x], s, axis=d.rng.randrange(len(s)))


def product(d: Draw, x: str, s: Shape) -> None:
    if len(s) == 2:
        d.op("Gemm", [x, d.floats(4, s[1]), d.floats(4)], (s[0], 4), transB=1, alpha=0.5, beta=2.0)
    elif len(s) > 2:
        d.op("MatMul", [x, d.floats(s[-1], 5)], (*s[:-1], 5))


def gelu(d: Draw, x: str, s: Shape) -> None:
    number: Callable[[float], str] = lambda value: d.constant(np.float32(value))  # noqa: E731
    curve = d.op("Erf", [d.op("Mul", [x, number(0.70710678)], s)], s)
    d.op("Mul", [d.op("Mul", [x, number(0.5)], s), d.op("Add", [curve, number(1)], s)], s)


def silu(d: Draw, x: str, s: Shape) -> None:
    d.op("Mul", [d.op("Sigmoid", [x], s), x], s)


def layer_norm(d: Draw, x: str, s: Shape) -> None:
    if s[-1] > 1:
        row, last = (*s[:-1], 1), d.constant(np.array([-1]))
        centred = d.op("Sub", [x, d.op("ReduceMean", [x, last], row)], s)
        variance = d.op("ReduceMean", [d.op("Mul", [centred, centred], s), last], row)
        root = d.op("Sqrt", [d.op("Add", [variance, d.constant(np.float32(0.1))], row)], row)
        d.op("Mul", [d.op("Div", [centred, root], s), d.floats(s[-1])], s)


STEPS: list[Callable[[Draw, str, Shape], None]] = [
    conv, conv, conv, upsample, pool, batch_norm, unary, unary, with_constant, with_constant, with_tensor, with_tensor,
    transpose, transpose, reshape, reshape, shuffle, concat, split, cut, pad, fold, softmax, product, gelu, silu,
    layer_norm,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_random_models_compute_the_same(seed: int, runs: Any, caplog: pytest.LogCaptureFixture):
    before = load(Draw(seed).model().SerializeToString())
    x = np.random.default_rng(seed).standard_normal(before.types["v0"].shape).astype(np.float32)
    references = runs.nodes(before, {"v0": x})
    after = rewrite(before), rewrite(before, layout="NCHW")
    for graph in after:
        for result, reference in zip(runs.nodes(graph, {"v0": x}), references, strict=True):
            runs.close(result, reference, 1e-4)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
