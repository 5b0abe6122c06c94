"""Builders: tasks of well-known ops without a model of one's own, under the keys that models have them by.

Each writes a small ONNX model and opens it, so a task is what the importer, the rewrites and fusion make of such an op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.target import Target
from tunewright.graph.op_model import OpNode, op_model
from tunewright.graph.task import Task

from .model import open_for

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
    known: dict[str, Sequence[int] | float] = {"w": (k, n)} if is_constant else {}
    inputs = {"x": (*batch, m, k)} | ({} if is_constant else {"w": (k, n)})
    nodes = [OpNode("MatMul", ("x", "w"), "product")]
    if has_bias:
        known["b"] = (n,)
        nodes.append(OpNode("Add", ("product", "b"), "sum"))
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
        OpNode("Transpose", ("x",), "image", {"perm": [0, 3, 1, 2]}),
        OpNode(
            "Conv",
            ("image", *known),
            "windows",
            {"strides": [stride] * 2, "pads": [padding] * 4, "group": groups},
        ),
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
    nodes = [
        OpNode("Transpose", ("k",), "turned", {"perm": [0, 1, 3, 2]}),
        OpNode("MatMul", ("q", "turned"), "scores"),
        OpNode("Mul", ("scores", "scale"), "scaled"),
        OpNode("Softmax", ("scaled",), "weights"),
        OpNode("MatMul", ("weights", "v"), "y"),
    ]
    shapes = {"q": (batch, heads, queries, size)} | dict.fromkeys("kv", (batch, heads, keys, size))
    return _tasks(nodes, shapes, {"scale": size**-0.5}, shapes["q"], kind, "", target)


def _tasks(
    nodes: list[OpNode],
    inputs: Mapping[str, Sequence[int]],
    known: Mapping[str, Sequence[int] | float],
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
        nodes.append(OpNode(activation, (nodes[-1].output,), "after"))
    if perm:
        nodes.append(OpNode("Transpose", (nodes[-1].output,), "last", {"perm": perm}))
        shape = [shape[axis] for axis in perm]
    return [task for task, _ in open_for(target, op_model(nodes, inputs, known, shape, dtype)).tasks.values()]


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
