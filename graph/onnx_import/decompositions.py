"""Ops in terms of others while a model is imported: of opset 6, norms of groups, Einsum, grids and transforms.

What has to wait for the rules of rewriting is in `rewrites` (`quantisation`, `recurrent`, `weights`), and the ops of
ONNX Runtime's own domain are in `contrib`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Node

from ..contrib.call import STANDARD
from ..evaluation.folds import moment_dtype
from ..evaluation.images import grid_coordinates
from .einsum import einsum
from .fourier import dft, stft

_BINARY_OPS = frozenset({"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"})

_DROPPED = {"BatchNormalization": "is_test", "Dropout": "is_test", "Gemm": "broadcast"}

_EXTENDED_OPS = frozenset({"AveragePool"})
"""Ops that got further attributes in opset 7."""


def modern_version(domain: str, version: int) -> int:
    """The opset version that ops of `version` run at: opset 7 changed only what `modernise` rewrites."""
    return version if domain else max(version, 7)


def modernise(draft: Draft, node: Node) -> Node:
    """The node in opset 7; nodes that it needs are added to the draft.

    Before: `y = Add(x, b) broadcast=1 axis=1` with x `[2, 3, 4]`, b `[3]`.
    After: `c = Reshape(b) shape=(3, 1); y = Add(x, c)`.
    """
    if node.domain or node.version != 6:
        return node
    inputs = list(node.inputs)
    attrs = dict(node.attrs)
    if node.op in _BINARY_OPS:
        axis = attrs.pop("axis", None)
        if attrs.pop("broadcast", 0) and axis is not None:
            inputs[1] = _align(draft, node.inputs[0], node.inputs[1], axis)
    elif node.op == "PRelu":
        shape = draft.shape(node.inputs[1])
        if shape is not None and len(shape) == 1 and shape != (1,):
            inputs[1] = _align(draft, node.inputs[0], node.inputs[1], 1)
    elif node.op in _DROPPED:
        attrs.pop(_DROPPED[node.op], None)
    elif node.op not in _EXTENDED_OPS:
        return node
    return replace(node, inputs=tuple(inputs), attrs=attrs, version=7)


def _align(draft: Draft, whole: str, part: str, axis: int) -> str:
    """The smaller operand with extents of 1 appended, so that its first axis meets that axis of the larger one."""
    whole_shape, part_shape = draft.shape(whole), draft.shape(part)
    if whole_shape is None or part_shape is None:
        return part
    missing = len(whole_shape) - axis % max(len(whole_shape), 1) - len(part_shape)
    return draft.emit("Reshape", part, shape=(*part_shape, *(1,) * missing)) if missing > 0 else part


# GroupNormalization by the rows that its groups are. ONNX's own definition subtracts the square of the mean from the
# mean of the squares, which cancels where the mean is large beside the deviation. A LayerNormalization squares
# differences, and is one kernel.


def group_normalization(draft: Draft, node: Node) -> str:
    """Add what a GroupNormalization of known shapes comes to; returns the result, of the type of the input.

    Before: `y = GroupNormalization(x, s, b) num_groups=2`, x `[1, 4, 3]`, s and b `[4]`.
    After: `n = LayerNormalization(Reshape(x), 1) axis=2`, of `[1, 2, 6]`; `y = Reshape(n) * s + b`, s and b `[4, 1]`.
    Before opset 21 s and b are of groups: the channels of a group have theirs. That all fits is checked before
    (`shapes`).
    """
    x = node.inputs[0]
    shape, dtype, groups = draft.shape(x) or (), draft.types[x].dtype, int(node.attrs["num_groups"])
    if 0 in shape:
        return draft.emit("Identity", x)
    rows = draft.emit("Reshape", x, shape=(shape[0], groups, prod(shape[1:]) // groups))
    rows = _cast(draft, rows, moment_dtype(node.attrs, dtype))
    gain = draft.constant(np.ones(1, draft.types[rows].dtype))
    normal = draft.emit("LayerNormalization", rows, gain, axis=2, epsilon=node.attrs["epsilon"])
    normal = _cast(draft, draft.emit("Reshape", normal, shape=shape), dtype)
    scale, bias = (_channel_parameter(draft, name, shape) for name in node.inputs[1:])
    return draft.emit("Add", draft.emit("Mul", normal, scale), bias)


def _cast(draft: Draft, name: str, dtype: str) -> str:
    return name if draft.types[name].dtype == dtype else draft.cast(name, dtype)


def _channel_parameter(draft: Draft, name: str, shape: tuple[int, ...]) -> str:
    """A parameter of channels, or of groups, as it goes with all."""
    (count,) = draft.shape(name) or ()
    if count != shape[1]:
        name = draft.emit("Expand", draft.emit("Reshape", name, shape=(count, 1)), shape=(count, shape[1] // count))
    return draft.emit("Reshape", name, shape=(shape[1], *(1,) * (len(shape) - 2)))


def affine_grid(draft: Draft, node: Node) -> str | None:
    """Add what an AffineGrid of known size comes to; returns the result. None where the size is not known.

    Before: `y = AffineGrid(t, size)`, t `[2, 2, 3]`, size `[2, 1, 5, 7]`.
    After: `y = Reshape(MatMul(grid, Transpose(t)))`, with a place `(x, y, 1)` in each row of the grid `[35, 3]`.
    """
    theta, size = node.inputs[0], draft.array(node.inputs[1])
    shape, dtype = draft.shape(theta) or (), draft.types[theta].dtype
    if size is None or 0 in (*size, *shape) or dtype not in ("float32", "float64"):
        return None
    space = tuple(int(extent) for extent in size[2:])
    is_aligned = bool(node.attrs.get("align_corners", 0))
    axes = np.meshgrid(*(grid_coordinates(extent, is_aligned) for extent in space), indexing="ij")
    grid = np.stack([*(axis.reshape(-1) for axis in reversed(axes)), np.ones(prod(space))], -1)
    places = draft.emit("MatMul", draft.constant(grid.astype(dtype)), draft.emit("Transpose", theta, perm=(0, 2, 1)))
    return draft.emit("Reshape", places, shape=(shape[0], *space, len(space)))


def mean_variance_normalization(draft: Draft, node: Node) -> str | None:
    """Add a MeanVarianceNormalization in two passes: ONNX's own, of squares and the square of the mean, cancels."""
    dtype = draft.types[node.inputs[0]].dtype
    x = _cast(draft, node.inputs[0], "float32" if dtype == "float16" else dtype)  # 1e-9 is 0 in float16
    rank = len(draft.shape(x) or ())
    axes = tuple(sorted(axis % rank for axis in node.attrs["axes"]))
    centred = draft.emit("Sub", x, draft.emit("ReduceMean", x, axes=axes, keepdims=1))
    variance = draft.emit("ReduceMean", draft.emit("Mul", centred, centred), axes=axes, keepdims=1)
    deviation = draft.emit("Add", draft.emit("Sqrt", variance), draft.scalar_like(x, 1e-9))
    return _cast(draft, draft.emit("Div", centred, deviation), dtype)


DECOMPOSITIONS: Mapping[str, Callable[[Draft, Node], str | None]] = {
    "AffineGrid": affine_grid,
    "DFT": dft,
    "Einsum": einsum,
    "GroupNormalization": group_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "STFT": stft,
}
"""Op -> what adds its nodes to the draft and returns the result, for known shapes; None where the node stays."""

_EXPANDED = """
Attention CausalConvWithState CenterCropPad DequantizeLinear FlexAttention LinearAttention NegativeLogLikelihoodLoss
RotaryEmbedding SoftmaxCrossEntropyLoss SwiGLU
"""
EXPANDED_OPS = frozenset(_EXPANDED.split()).union(DECOMPOSITIONS)
"""Composite ops that are replaced by their definitions, ours or ONNX's, which have kernels."""


def is_composite(node: Node) -> bool:
    """Whether others may stand in for a node of ONNX's. (No op of its preview has the name of another.)"""
    return (node.domain in ("", "ai.onnx.preview") and node.op in EXPANDED_OPS) or (node.domain, node.op) in STANDARD
