"""Every sketch agrees with the oracle, on any schedule: in the interpreter, and built for this machine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.cuda import interp as grid_interp
from tunewright.codegen.ir import microkernel
from tunewright.codegen.llvm.build import ObjectCache, build
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.fusion.merge import concatenate
from tunewright.graph.ir import Graph
from tunewright.graph.numerics import PROCESSOR, Numerics, Precision
from tunewright.graph.onnx_import import load
from tunewright.graph.oracle import example_inputs, reference, written_masks
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.graph.tolerance import TOLERANCE
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.sketches import SKETCHES, lower, sketch, spaces

from .oracle import DOTS, GPU, HOST, MATRICES, SMALL_GPU, interpret, native

CLOSE = TOLERANCE | {np.dtype(np.float32): 2e-5}
"""Error of an output relative to its largest magnitude."""

MODELS = {
    "gemm": "x[{a}, {b}] w[{b}, {c}] | y = MatMul(x, w) | y[{a}, {c}] ; w",
    "dense": "x[{a}, {b}] w[{b}, {c}] z[{c}] | t = MatMul(x, w) u = Add(t, z) y = Relu(u) | y[{a}, {c}] ; w z",
    "scaled": "x[{a}, {b}] w[{b}, {c}] s | t = MatMul(x, w) u = Mul(t, s) y = Relu(u) | y ; w",
    "batched": "x[{d}, {a}, {b}] w[{d}, {b}, {c}] | y = MatMul(x, w) | y[{d}, {a}, {c}]",
    "attention": "x[{d}, {a}, {b}] w[{d}, {c}, {b}] | t = Transpose<perm=[0, 2, 1]>(w) y = MatMul(x, t)"
    " | y[{d}, {a}, {c}]",
    "conv": "x[1, {d}, {a}, {b}] w[{c}, {d}, 3, 3] z[{c}] | t = Conv<pads=[1, 1, 1, 1]>(x, w, z) y = Relu(t)"
    " | y[1, {c}, {a}, {b}] ; w z",
    "strided": "x[2, {d}, {a}, {b}] w[{c}, {d}, 3, 2] | y = Conv<pads=[1, 0, 1, 1], strides=[2, 1]>(x, w) | y ; w",
    "channels_first": "x[1, {c}, {a}, {b}] w[{2c}, {c}, 3, 3] z[{2c}] |"
    " t = Conv<pads=[0, 1, 1, 0], strides=[2, 2]>(x, w, z) y = Relu(t) | y ; w z",
    "edges": "x[1, {a}, {b}, {d}] w[{c}, {d}, 3, 3] z[{c}] | t = Transpose<perm=[0, 3, 1, 2]>(x)"
    " u = Conv<pads=[1, 1, 1, 1]>(t, w, z) v = Relu(u) y = Transpose<perm=[0, 2, 3, 1]>(v) | y ; w z",
    "far_edges": "x[1, {b}, {a}, {d}] w[{c}, {d}, 5, 3] | t = Transpose<perm=[0, 3, 1, 2]>(x)"
    " u = Conv<pads=[3, 4, 2, 5], strides=[2, 3], dilations=[1, 3]>(t, w) y = Transpose<perm=[0, 2, 3, 1]>(u) | y ; w",
    "residual": "x[1, {d}, {a}, {b}] w[{c}, {d}, 1, 1] r[1, {c}, {a}, {b}] | t = Conv(x, w) y = Add(t, r) | y ; w",
    "grouped": "x[1, {2d}, {a}, {b}] w[{2c}, {d}, 3, 3] | y = Conv<group=2, pads=[1, 1, 1, 1]>(x, w) | y ; w",
    "depthwise": "x[1, {c}, {a}, {b}] w[{c}, 1, 3, 3] | y = Conv<group={c}, pads=[1, 1, 1, 1]>(x, w) | y ; w",
    "planes": "x[1, {d}, {a}, {c}] w[{d}, 1, 3, 3] z[{d}] | t = Conv<group={d}, pads=[1, 1, 1, 1]>(x, w, z) y = Relu(t)"
    " | y ; w z",
    "transposed": "x[1, {d}, {a}, {b}] w[{d}, {c}, 2, 2] | y = ConvTranspose<strides=[2, 2]>(x, w) | y ; w",
    "max_pool": "x[1, {c}, {a}, {b}] | y = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(x) | y",
    "average": "x[1, {c}, {a}, {b}] | y = GlobalAveragePool(x) | y",
    "softmax": "x[{d}, {a}, {c}] | y = Softmax(x) | y",
    "layer_norm": "x[{a}, {c}] s[{c}] z[{c}] | y = LayerNormalization(x, s, z) | y ; s z",
    "log_softmax": "x[{d}, {a}, {c}] | y = LogSoftmax(x) | y",
    "residual_norm": "x[{d}, {a}, {c}] r[{d}, {a}, {c}] s[{c}] z[{c}] | t = Add(x, r) y = LayerNormalization(t, s, z)"
    " | y ; s z",
    "gelu": "x[{a}, {c}] | y = Gelu(x) | y",
    "broadcast": "x[{a}, {c}] z[{c}] | t = Mul(x, z) u = Sigmoid(t) y = Add(u, x) | y",
    "transpose": "x[{a}, {b}, {c}] | y = Transpose<perm=[2, 0, 1]>(x) | y",
    "concat": "x[{a}, {b}] z[{a}, {c}] | y = Concat<axis=1>(x, z) | y",
    "joined": "x[1, {d}, {a}, {b}] w[{c}, {d}, 3, 3] v[{2c}, {d}, 1, 1] z[{c}] | t = Conv<pads=[1, 1, 1, 1]>(x, w, z)"
    " u = Relu(t) s = Conv(x, v) y = Concat<axis=1>(s, u) | y ; w v z",
    "joined_channels_last": "x[1, {d}, {a}, {b}] w[{c}, {d}, 3, 3] v[{2c}, {d}, 1, 1]"
    " | t = Conv<pads=[1, 1, 1, 1]>(x, w) s = Conv(x, v) p = Concat<axis=1>(t, s)"
    " y = Transpose<perm=[0, 2, 3, 1]>(p) | y ; w v",
    "joined_windows": "x[1, {c}, {a}, {b}] w[{c}, 1, 3, 3] p[1, {c}, {a}, {b}]"
    " | t = Conv<group={c}, pads=[1, 1, 1, 1]>(x, w) s = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(p)"
    " q = Concat<axis=1>(s, t) y = Transpose<perm=[0, 2, 3, 1]>(q) | y ; w",
    "joined_rows": "x[{a}, {c}] s[{c}] z[{c}] p[{b}, {c}] | t = LayerNormalization(x, s, z) u = Softmax(p)"
    " y = Concat<axis=0>(t, u) | y ; s z",
    "joined_columns": "x[{a}, {b}] p[{a}, {c}] w[{b}, {c}] | t = Softmax(x) u = Softmax(p) v = MatMul(x, w)"
    " y = Concat<axis=1>(u, v, t) | y ; w",
    "separable": "x[1, {c}, {a}, {b}] w[{c}, 1, 3, 3] v[{2c}, {c}, 1, 1] z[{c}]"
    " | t = Conv<group={c}, pads=[1, 1, 1, 1]>(x, w, z) u = Relu(t) y = Conv(u, v) | y ; w v z",
    "inverted": "x[1, {d}, {a}, {b}] v[{c}, {d}, 1, 1] w[{c}, 1, 3, 3] z[{c}] p[{2c}, {c}, 1, 1]"
    " | s = Conv(x, v, z) t = Relu(s) u = Conv<group={c}, pads=[1, 0, 1, 2], strides=[2, 1]>(t, w) y = Conv(u, p)"
    " | y ; v w z p",
    "attended": "q[{d}, {a}, {b}] k[{d}, {c}, {b}] m[{a}, {c}] v[{d}, {c}, {2c}] | t = Transpose<perm=[0, 2, 1]>(k)"
    " r = MatMul(q, t) s = Add(r, m) p = Softmax(s) y = MatMul(p, v) | y[{d}, {a}, {2c}] ; m",
    "lstm": "x[{a}, {d}, {b}] w[1, {4c}, {b}] r[1, {4c}, {c}] z[1, {8c}] |"
    " y, h, k = LSTM<hidden_size={c}>(x, w, r, z) | k[1, {d}, {c}] ; w r z",
    "gru": "x[{a}, {d}, {b}] w[1, {3c}, {b}] r[1, {3c}, {c}] | y, h = GRU<hidden_size={c}>(x, w, r)"
    " | h[1, {d}, {c}] ; w r",
    "long_fold": "x[2, 1032, {c}] | y = ReduceMean<keepdims=0>(x, axes) | y[2, {c}] ; axes",
    "row_sum": "x[{a}, {c}] | y = ReduceMean<keepdims=0>(x, axes) | y[{a}] ; axes",
    "row_scaled": "x[{a}, {c}] z[{a}, 1] | t = ReduceMean<keepdims=1>(x, axes) u = Mul(t, z) y = Sub(x, u) | y ; axes",
    "half_windows": "float16: x[{d}, {a}, {b}, 64] w[{c}, 64, 3, 3] z[{c}] | t = Transpose<perm=[0, 3, 1, 2]>(x)"
    " u = Conv<pads=[1, 1, 1, 1]>(t, w, z) v = Relu(u) y = Transpose<perm=[0, 2, 3, 1]>(v) | y ; w z",
    "half_dense": "float16: x[{a}, {b}] w[{b}, {c}] z[{c}] | t = MatMul(x, w) u = Add(t, z) y = Relu(u) | y ; w z",
    "half_even": "float16: x[{a}, {8d}] w[{8d}, {8a}] | y = MatMul(x, w) | y ; w",
    "half_wide": "float16: x[{2c}, {4c}] w[{4c}, {3c}] z[{3c}] | t = MatMul(x, w) u = Add(t, z) y = Relu(u) | y ; z",
    "half_turned": "float16: x[{8d}, {8a}] w[{8a}, {8d}] | y = Gemm<transA=1, transB=1>(x, w) | y ; w",
    "half_conv": "float16: x[1, {8d}, {a}, {b}] w[{c}, {8d}, 3, 3] z[{c}] | t = Conv<pads=[1, 1, 1, 1]>(x, w, z)"
    " y = Relu(t) | y ; w z",
    "half_first": "float16: x[{d}, 3, {a}, {b}] w[{8a}, 3, 7, 7] z[{8a}]"
    " | t = Conv<pads=[3, 3, 3, 3], strides=[2, 2]>(x, w, z) y = Relu(t) | y ; w z",
    "half_attended": "float16: q[{d}, {a}, {b}] k[{d}, {c}, {b}] m[{a}, {c}] v[{d}, {c}, {2b}]"
    " | t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) s = Add(r, m) p = Softmax(s) y = MatMul(p, v)"
    " | y[{d}, {a}, {2b}] ; m",
    "half_pool": "float16: x[1, {c}, {a}, {b}] | y = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x) | y",
    "half_depthwise": "float16: x[1, {8c}, {a}, {b}] w[{8c}, 1, 3, 3] z[{8c}]"
    " | t = Conv<group={8c}, pads=[1, 0, 1, 2], strides=[2, 1]>(x, w, z) y = Relu(t) | y ; w z",
    "far_windows": "x[2, {c}, {b}, {a}] w[{c}, 1, 3, 5] | y = Conv<group={c}, pads=[3, 4, 2, 5], strides=[2, 3],"
    " dilations=[1, 3]>(x, w) | y ; w",
    "half_softmax": "float16: x[{d}, {a}, {c}] | y = Softmax(x) | y",
    "half_concat": "float16: x[{a}, {b}] z[{a}, {c}] | t = Concat<axis=1>(x, z) y = Neg(t) | y",
    "bytes": "int8: x[{a}, {b}] w[{b}, {c}] | t = MatMulInteger(x, w) {steps} | y ; w",
    "byte_batches": "uint8: x[{d}, {4b}, {a}] w[{d}, {4b}, {c}] | p = Transpose<perm=[0, 2, 1]>(x)"
    " t = MatMulInteger(p, w) {steps} | y",
    "byte_conv": "int8: x[1, {8d}, {a}, {b}] w[{c}, {8d}, 3, 3] | t = ConvInteger<pads=[1, 1, 1, 1]>(x, w) {steps}"
    " | y ; w",
    "rounded_dense": "rounded: x[{a}, {2b}] w[{2b}, {c}] z[{c}] | t = MatMul(x, w) u = Add(t, z) y = Relu(u) | y ; w z",
    "rounded_conv": "rounded: x[1, {8d}, {a}, {b}] w[{c}, {8d}, 3, 3] | t = Conv<pads=[1, 1, 1, 1]>(x, w) y = Tanh(t)"
    " | y ; w",
    "byte_pool": "uint8: x[1, {a}, {b}, {8c}] | t = Transpose<perm=[0, 3, 1, 2]>(x)"
    " s = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(t) y = Transpose<perm=[0, 2, 3, 1]>(s)"
    " | y[1, {a}, {b}, {8c}]",
    "signed_byte_pool": "int8: x[1, {a}, {b}, {8c}] | t = Transpose<perm=[0, 3, 1, 2]>(x)"
    " s = MaxPool<kernel_shape=[2, 3], pads=[1, 0, 0, 2]>(t) y = Transpose<perm=[0, 2, 3, 1]>(s)"
    " | y[1, {a}, {b}, {8c}]",
    "byte_depthwise": "uint8: x[1, {a}, {b}, {8c}] | t = Transpose<perm=[0, 3, 1, 2]>(x) s = Cast<to=1>(t)"
    " m = Constant<value_ints=[{8c}, 1, 3, 3]>() h = Constant<value_float=0.5>() w = Expand(h, m)"
    " u = Conv<group={8c}, pads=[1, 1, 1, 1], strides=[2, 1]>(s, w) k = Constant<value_float=3.0>()"
    " z = CastLike(k, x) v = QuantizeLinear(u, k, z) y = Transpose<perm=[0, 2, 3, 1]>(v) | y",
    "pixels": "uint8: x[{d}, 4, {a}, {8b}] | q = Constant<value_ints=[0, 0, 1, 3, 0, 0, 2, 1]>()"
    " v = Constant<value=uint8 {130}>() f = Cast<to=1>(x) s = Constant<value_float=3.0>() p = QuantizeLinear(f, s, v)"
    " t = Pad(p, q, v) y = Transpose<perm=[0, 2, 3, 1]>(t) | y",
    "three_colours": "uint8: x[1, 3, {a}, {8b}] | q = Constant<value_ints=[0, 0, 0, 0, 0, 1, 0, 0]>()"
    " v = Constant<value=uint8 {0}>() p = Pad(x, q, v) y = Transpose<perm=[0, 2, 3, 1]>(p) | y",
    "quantised": "x[{a}, {4b}] w[{4b}, {c}] | s = Constant<value_float=0.0625>() z = Constant<value=uint8 {7}>()"
    " o = Constant<value=int8 {0}>() p = QuantizeLinear(x, s, z) q = DequantizeLinear(p, s, z)"
    " v = QuantizeLinear(w, s, o) k = DequantizeLinear(v, s, o) t = MatMul(q, k) y = Relu(t) | y ; w",
    "quantised_conv": "x[1, {4d}, {a}, {b}] w[{2c}, {4d}, 3, 3] | s = Constant<value_float=0.0625>()"
    " z = Constant<value=uint8 {9}>() o = Constant<value=int8 {0}>() p = QuantizeLinear(x, s, z)"
    " q = DequantizeLinear(p, s, z) v = QuantizeLinear(w, s, o) k = DequantizeLinear(v, s, o)"
    " t = Conv<pads=[1, 1, 1, 1]>(q, k) y = Relu(t) | y ; w",
    "packed": "widened: x[{a}, {8b}] w[{8c}, {4b}] | s = Constant<value_float=0.125>() z = Constant<value=uint8 {8}>()"
    " m = Constant<value=uint8 {15}>() n = Constant<value_ints=[{8c}]>() g = Constant<value_ints=[{4c}, {8b}]>()"
    " v = QuantizeLinear(w, s, z) u = Min(v, m) i = Expand(s, n) j = Expand(z, n)"
    " d = DequantizeLinear<axis=0>(u, i, j) h = Reshape(d, g) k = Transpose<perm=[1, 0]>(h) t = MatMul(x, k)"
    " y = Relu(t) | y ; w",
    "few_bits": "x[{d}, 64] w[{8c}, 32] | s = Constant<value_float=0.125>() z = Constant<value=uint8 {8}>()"
    " m = Constant<value=uint8 {15}>() n = Constant<value_ints=[{8c}]>() g = Constant<value_ints=[{4c}, 64]>()"
    " v = QuantizeLinear(w, s, z) u = Min(v, m) i = Expand(s, n) j = Expand(z, n)"
    " d = DequantizeLinear<axis=0>(u, i, j) h = Reshape(d, g) k = Transpose<perm=[1, 0]>(h) t = MatMul(x, k)"
    " y = Relu(t) | y ; w",
    "half_few_bits": "float16: x[{d}, 64] w[{8c}, 32] o[{8c}] r[{4c}] | f = Constant<value_float=0.125>()"
    " z = Constant<value=uint8 {8}>() m = Constant<value=uint8 {15}>() n = Constant<value_ints=[{8c}]>()"
    " g = Constant<value_ints=[{4c}, 64]>() c = Cast<to=1>(w) v = QuantizeLinear(c, f, z) u = Min(v, m)"
    " s = CastLike(f, x) i = Expand(s, n) a = Abs(o) b = Add(a, a) j = Cast<to=2>(b)"
    " d = DequantizeLinear<axis=0>(u, i, j) h = Reshape(d, g) k = Transpose<perm=[1, 0]>(h) t = MatMul(x, k)"
    " q = Add(t, r) y = Relu(q) | y ; w o r",
    "trees": "x[{a}, {b}] | t = ai.onnx.ml.TreeEnsembleRegressor<nodes_treeids=[0, 0, 0, 1, 1, 1, 1, 1],"
    " nodes_nodeids=[0, 1, 2, 0, 1, 2, 3, 4], nodes_featureids=[0, 0, 0, 1, 0, 0, 0, 0],"
    " nodes_truenodeids=[1, 0, 0, 1, 3, 0, 0, 0], nodes_falsenodeids=[2, 0, 0, 2, 4, 0, 0, 0],"
    " nodes_values=[0.25, 0.0, 0.0, -0.5, 0.75, 0.0, 0.0, 0.0],"
    ' nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],'
    " target_treeids=[0, 0, 1, 1, 1], target_nodeids=[1, 2, 2, 3, 4], target_ids=[0, 0, 0, 0, 0],"
    " target_weights=[1.5, -2.0, 0.25, 3.0, -0.5], n_targets=1>(x) y = Sigmoid(t) | y",
    "brain_batched": "x[{d}, {a}, {8b}] w[{d}, {8b}, {c}] | u = Cast<to=16>(x) v = Cast<to=16>(w) t = MatMul(u, v)"
    " y = Cast<to=1>(t) | y",
    "brain_norm": "x[{a}, {c}] s[{c}] | u = Cast<to=16>(x) v = Cast<to=16>(s) t = LayerNormalization(u, v)"
    " y = Cast<to=1>(t) | y ; s",
}  # fmt: skip
"""Small models: type of all: inputs | nodes | outputs ; the inputs that are constants. Letters are drawn sizes.

They are rewritten as for GPUs, so that narrow types stay, but for those that are "widened" or "rounded".
"""

AS_STORED = Numerics(widen=False)
NUMERICS = {"widened": PROCESSOR, "rounded": Numerics(bf16=True, precision=Precision.BF16)}
"""What other models are rewritten for."""


STEPS = "u = Cast<to=1>(t) s = Constant<value_float=16.0>() v = Relu(u) z = CastLike(s, x) y = QuantizeLinear(v, s, z)"
"""Nodes that quantise products to bytes: {steps} in MODELS."""


def tasks_of(text: str, sizes: dict[str, int]) -> list[Task]:
    """The tasks that a line of MODELS comes down to."""
    text = text.replace("{steps}", STEPS)
    names = {**sizes, **{f"{n}{letter}": n * size for letter, size in sizes.items() for n in (2, 3, 4, 8)}}
    for name, size in names.items():
        text = text.replace("{" + name + "}", str(size))
    kind, colon, text = text.rpartition(": ")
    numerics, kind = NUMERICS.get(kind, AS_STORED), kind if colon and kind not in NUMERICS else "float"
    inputs, nodes, rest = text.split("|")
    output, _, constants = rest.partition(";")
    known = set(constants.split())
    head = ", ".join(
        f"{kind}{s} {n}" if s else f"{kind} {n}" for n, s in map(_parse, inputs.replace(", ", ",").split())
    )
    out_name, out_shape = _parse(output.replace(", ", ",").strip())
    parts = nodes.strip().replace(") ", ")\n")
    opsets = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]>'
    model = onnx.parser.parse_model(f"{opsets} m ({head}) => ({kind}{out_shape} {out_name}) {{ {parts} }}")
    return fuse_model(model, known, numerics)


def _parse(text: str) -> tuple[str, str]:
    name, bracket, shape = text.partition("[")
    return name, bracket + shape


def fuse_model(model: Any, constants: set[str], numerics: Numerics = AS_STORED) -> list[Task]:
    rng = np.random.default_rng(0)
    graph = model.graph
    for value in [v for v in graph.input if v.name in constants]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = rng.standard_normal(shape).astype(dtype)
        graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        graph.input.remove(value)
    if "axes" in constants:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "axes"))
    graph = rewrite(load(model.SerializeToString()), numerics=numerics)
    calls = [step for step in partition(graph) if isinstance(step, TaskCall)]
    return [*{call.task.key: call.task for call in calls}.values(), *join(graph, calls)]


def join(graph: Graph, calls: Sequence[TaskCall]) -> list[Task]:
    """All calls as one task, where there are several and each makes what the next one reads."""
    groups = [call.group for call in calls if call.group is not None]
    if len(calls) < 2 or len(groups) < len(calls):
        return []
    group, *others = groups
    for other in others:
        both = concatenate(group, other, group.outputs[0]) if group.outputs[0] in other.inputs else None
        if both is None:
            return []
        group = both
    return [TaskCall.of(graph, group).task]


def agree(task: Task, actual: Sequence[Any], expected: Sequence[Any]) -> None:
    for array, right, own in zip(actual, expected, written_masks(task), strict=True):
        left = array.reshape(right.shape)
        if own is not None:
            assert np.isnan(left[~own]).all()
            left = np.where(own, left, right)
        tolerance = CLOSE.get(right.dtype, 0.0)
        left, right = (array.astype(np.float64) for array in (left, right))
        scale = max(float(np.abs(right).max()), 1e-6)
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * scale)


def schedules(task: Task, target: Target, name: str, count: int, seed: int) -> list[Schedule]:
    space = sketch(name).space(task, target)
    rows = space.sample(count, np.random.default_rng(seed))
    return [space.default, *map(space.schedule, rows)]


SIZES = st.fixed_dictionaries(
    {
        "a": st.sampled_from([2, 3, 5, 7, 13]),
        "b": st.sampled_from([2, 3, 5, 8, 11]),
        "c": st.sampled_from([2, 7, 8, 16, 17, 31, 37, 67]),
        "d": st.sampled_from([2, 3, 4, 5]),
    }
)


def all_sketches_agree(task: Task, objects: ObjectCache, seed: int) -> None:
    """Random schedules of all sketches agree with the oracle, in the interpreter and in native code.

    Also with all that could be a microkernel made one, for which tiles of tasks so small are too short.
    """
    arrays = example_inputs(task, seed)
    expected = reference(task, arrays)
    for one in SKETCHES:
        if not find_space(one, task, HOST):
            continue
        for schedule in schedules(task, HOST, one.name, 2, seed):
            kernel = lower(Candidate(task, HOST, schedule))
            codes = {}
            for worth in (microkernel.MIN_STORES, 1):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(microkernel, "MIN_STORES", worth)
                    artifact = build(kernel, HOST, objects)  # which verifies it
                    codes[artifact.sha256] = artifact
            for artifact in codes.values():
                agree(task, native(task, kernel, arrays, artifact=artifact), expected)
            agree(task, interpret(task, kernel, arrays), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=2)
@given(sizes=SIZES, seed=st.integers(0, 2**31))
def test_random_schedules_agree_with_the_oracle(
    name: str, objects: ObjectCache, sizes: dict[str, int], seed: int
) -> None:
    for task in tasks_of(MODELS[name], sizes):
        all_sketches_agree(task, objects, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=2)
@given(sizes=SIZES, target=st.sampled_from((GPU, SMALL_GPU)), seed=st.integers(0, 2**31))
def test_random_schedules_of_a_gpu_agree_with_the_oracle(
    name: str, sizes: dict[str, int], target: Target, seed: int
) -> None:
    for task in tasks_of(MODELS[name], sizes):
        arrays = example_inputs(task, seed)
        expected = reference(task, arrays)
        for one in SKETCHES:
            if not find_space(one, task, target):
                continue
            for schedule in schedules(task, target, one.name, 2, seed):
                kernel = lower(Candidate(task, target, schedule))
                verify(kernel)
                agree(task, interpret(task, kernel, arrays, grid_interp.run), expected)


def gpu_schedules_agree(task: Task, name: str, count: int, targets: Sequence[Target] = (GPU, SMALL_GPU)) -> None:
    """The default and random schedules of a sketch agree with the oracle, on some GPUs."""
    arrays = example_inputs(task, 0)
    expected = reference(task, arrays)
    for target in targets:
        for schedule in schedules(task, target, name, count, 0):
            kernel = lower(Candidate(task, target, schedule))
            verify(kernel)
            agree(task, interpret(task, kernel, arrays, grid_interp.run), expected)


EVEN = {"a": 256, "b": 64, "c": 256, "d": 4}
"""Sizes whose rows begin on multiples of 16 bytes, which some sketches need."""


SMALL = {"a": 5, "b": 3, "c": 32, "d": 2}
ODD = {"a": 7, "b": 5, "c": 17, "d": 3}


@functools.cache
def fused_once(text: str, sizes: tuple[tuple[str, int], ...]) -> list[Task]:
    """The tasks that a line of MODELS comes down to, for all tests that ask."""
    return tasks_of(text, dict(sizes))


def case_for(one: Sketch, sizes: dict[str, int]) -> tuple[Task, Target]:
    """The first task of MODELS, in these sizes or else in even ones, that a sketch applies to, and its target."""
    both = tuple(sizes.items()), tuple(EVEN.items())
    tasks = (task for own in both for text in MODELS.values() for task in fused_once(text, own))
    return next(
        (task, target) for task in tasks for target in (HOST, DOTS, MATRICES, GPU) if find_space(one, task, target)
    )


@pytest.mark.parametrize("one", SKETCHES, ids=lambda s: s.name)
def test_a_schedule_outside_the_space_is_illegal(one: Sketch) -> None:
    task, target = case_for(one, SMALL)
    default = one.space(task, target).default
    first = default.values[0][0]
    for values in (((first, 10**6), *default.values[1:]), default.values[:-1]):
        with pytest.raises(Illegal):
            lower(Candidate(task, target, Schedule(one.name, one.version, values)))


@pytest.mark.parametrize("one", SKETCHES, ids=lambda one: one.name)
def test_a_space_is_worked_out_once_for_equal_tasks(one: Sketch) -> None:
    task, target = case_for(one, SMALL)
    assert one.space(Task.from_json(task.to_json()), target) is one.space(task, target)


@pytest.mark.parametrize(("rows", "name"), [(4, "generic"), (5, "contraction")])
def test_few_rows_meet_keys_along_vectors(rows: int, name: str) -> None:
    text = f"q[2, {rows}, 48] k[2, 37, 48] | t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) y = Relu(r) | y ; "
    [task] = tasks_of(text, {})
    assert [space.sketch for space in spaces(task, HOST)] == [name]


@pytest.mark.slow
def test_lowering_is_pure() -> None:
    for one in SKETCHES:
        task, target = case_for(one, ODD)
        for schedule in schedules(task, target, one.name, 3, 0):
            candidate = Candidate(task, target, schedule)
            assert str(lower(candidate)) == str(lower(candidate))
