"""Builders: tasks of well-known ops without a model of one's own, under the keys that models have them by.

Each writes a small ONNX model and opens it, so a task is what the importer, the rewrites and fusion make of such an op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .model import open_for

OPSET = 21

ACTIVATIONS = "Relu", "Sigmoid", "Tanh", "Gelu"
"""Ops that may follow a product."""

FLOATS = DType.F32, DType.F16, DType.BF16, DType.F64


def matmul(
    m: int,
    n: int,
    k: int,
    dtype: DType | str = DType.F32,
    *,
    batch: Sequence[int] = (),
    has_bias: bool = False,
    activation: str = "",
    is_constant: bool = True,
    target: Target | None = None,
) -> Task:
    """`y[m, n] = activation(x[m, k] @ w[k, n] + bias[n])`, where x may have more dimensions in front: the `batch`.

    `is_constant`: whether w is known before the first run. Raises ValueError.
    """
    kind = _float(dtype)
    _check_extents(m, n, k, *batch)
    known: dict[str, Sequence[int]] = {"w": (k, n)} if is_constant else {}
    inputs = {"x": (*batch, m, k)} | ({} if is_constant else {"w": (k, n)})
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t0"])]
    if has_bias:
        known["b"] = (n,)
        nodes.append(helper.make_node("Add", ["t0", "b"], ["t1"]))
    return _main(_tasks(nodes, inputs, known, (*batch, m, n), kind, activation, target))


def conv2d(
    batch: int,
    channels: int,
    height: int,
    width: int,
    outputs: int,
    kernel: int,
    dtype: DType | str = DType.F32,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    has_bias: bool = True,
    activation: str = "",
    target: Target | None = None,
) -> Task:
    """A convolution of square windows over [batch, channels, height, width], with channels last, as within a model.

    Raises ValueError.
    """
    kind = _float(dtype)
    _check_extents(batch, channels, height, width, outputs, kernel, stride, groups)
    if channels % groups or outputs % groups:
        raise ValueError(f"{groups} groups don't divide {channels} channels and {outputs} outputs")
    sides = [(extent + 2 * padding - kernel) // stride + 1 for extent in (height, width)]
    if min(sides) < 1:
        raise ValueError(f"a window of {kernel} leaves nothing of {height} x {width}")
    known = {"w": (outputs, channels // groups, kernel, kernel)} | ({"b": (outputs,)} if has_bias else {})
    nodes = [
        helper.make_node("Transpose", ["x"], ["t0"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t0", *known], ["t1"], strides=[stride] * 2, pads=[padding] * 4, group=groups),
    ]
    shape, inputs = (batch, outputs, *sides), {"x": (batch, height, width, channels)}
    return _main(_tasks(nodes, inputs, known, shape, kind, activation, target, [0, 2, 3, 1]))


def attention(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    size: int,
    dtype: DType | str = DType.F32,
    *,
    target: Target | None = None,
) -> list[Task]:
    """The tasks of `softmax(q @ k.T / sqrt(size)) @ v`, of [batch, heads, ..., size]: its parts, then all in one.

    The last is left out where no kernel is worth it. Raises ValueError.
    """
    kind = _float(dtype)
    _check_extents(batch, heads, queries, keys, size)
    scale = numpy_helper.from_array(np.asarray(size**-0.5, kind.numpy))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=scale),
        helper.make_node("Transpose", ["k"], ["t0"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t0"], ["t1"]),
        helper.make_node("Mul", ["t1", "c"], ["t2"]),
        helper.make_node("Softmax", ["t2"], ["t3"]),
        helper.make_node("MatMul", ["t3", "v"], ["t4"]),
    ]
    shapes = {"q": (batch, heads, queries, size)} | dict.fromkeys("kv", (batch, heads, keys, size))
    return _tasks(nodes, shapes, {}, shapes["q"], kind, "", target)


def _tasks(
    nodes: list[Any],
    inputs: Mapping[str, Sequence[int]],
    known: Mapping[str, Sequence[int]],
    shape: Sequence[int],
    dtype: DType,
    activation: str,
    target: Target | None,
    perm: Sequence[int] = (),
) -> list[Task]:
    """The tasks of nodes, the last of which makes a result of that shape, then permuted. Raises ValueError."""
    if activation and activation not in ACTIVATIONS:
        raise ValueError(f"{activation} is none of {', '.join(ACTIVATIONS)}")
    if activation:
        nodes.append(helper.make_node(activation, nodes[-1].output, ["after"]))
    if perm:
        nodes.append(helper.make_node("Transpose", nodes[-1].output, ["last"], perm=perm))
    [last] = nodes[-1].output
    kind = helper.np_dtype_to_tensor_dtype(dtype.numpy)
    shape = [shape[axis] for axis in perm] if perm else shape
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        "built",
        [helper.make_tensor_value_info(name, kind, sizes) for name, sizes in inputs.items()],
        [helper.make_tensor_value_info(last, kind, shape)],
        [
            numpy_helper.from_array(rng.standard_normal(sizes).astype(dtype.numpy), name)
            for name, sizes in known.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return [task for task, _ in open_for(target, model.SerializeToString()).tasks.values()]


def _float(dtype: DType | str) -> DType:
    """A type of floats, also by its name. Raises ValueError."""
    if dtype not in [kind.value for kind in FLOATS]:
        raise ValueError(f"{dtype} is none of {', '.join(kind.value for kind in FLOATS)}")
    return DType(dtype)


def _check_extents(*extents: int) -> None:
    """Raise ValueError unless all are 1 or more."""
    if min(extents) < 1:
        raise ValueError(f"{min(extents)} is less than 1")


def _main(tasks: Sequence[Task]) -> Task:
    """The one with the most work: narrow floats may be cast by others."""
    return max(tasks, key=lambda task: task.flops)
