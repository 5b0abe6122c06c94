"""Every definition against ONNX's reference evaluator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunewright.graph.evaluation import onnx_form
from tunewright.graph.evaluation.causal import CAUSAL
from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.ir import Array, Graph, TensorType
from tunewright.graph.onnx_import import load
from tunewright.graph.ops import OPS, Compute, TensorView, define
from tunewright.graph.ops.recurrence import RECURRENCES
from tunewright.graph.oracle import reference
from tunewright.graph.task import canonical, in_order_of_use

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, on infinities and NaN

RNG = np.random.default_rng(7)


def f32(*shape: int) -> Any:
    """Normal values."""
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return (RNG.random(shape) + 0.5).astype(np.float32)


def ints(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    return RNG.integers(low, high, shape).astype(dtype)


def flags(*shape: int) -> Array:
    return RNG.random(shape) < 0.5


_FAULTY = "ConvTranspose GlobalMaxPool GridSample LRN LogSoftmax LpNormalization MaxPool Mean Pad Softmax"
FAULTY = frozenset(_FAULTY.split())
"""Ops in which ONNX's evaluator (1.23.2) makes mistakes or stops; these are compared with ONNX Runtime."""


class Case:
    """A model of one node, and inputs for it. Tuples, and what is `known`, are constants of the model."""

    def __init__(
        self,
        op: str,
        *inputs: Array | tuple[int, ...] | None,
        known: tuple[int, ...] = (),
        outputs: int = 1,
        version: int = 20,
        **attrs: Any,
    ) -> None:
        self.op, self.attrs = op, attrs
        self.again = lambda change: Case(
            op, *map(change, inputs), known=known, outputs=outputs, version=version, **attrs
        )
        names = [f"x{n}" if value is not None else "" for n, value in enumerate(inputs)]
        arrays = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if name}
        fixed = {f"x{n}" for n, value in enumerate(inputs) if n in known or isinstance(value, tuple)}
        self.feeds = {name: array for name, array in arrays.items() if name not in fixed}
        results = [f"y{n}" for n in range(outputs)]
        proto = helper.make_graph(
            [helper.make_node(op, names, results, **attrs)],
            "one",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in self.feeds.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in results],
            [numpy_helper.from_array(arrays[name], name) for name in sorted(fixed)],
        )
        self.shapes = ",".join("x".join(map(str, array.shape)) for array in arrays.values())
        opset = helper.make_opsetid("", version)
        self.model = helper.make_model(proto, opset_imports=[opset], ir_version=10)

    def wanted(self) -> list[Array]:
        """The outputs, according to others."""
        if self.op in FAULTY:
            typed = onnx.shape_inference.infer_shapes(self.model, data_prop=True)
            return list(onnxruntime.InferenceSession(typed.SerializeToString()).run(None, self.feeds))
        return list(ReferenceEvaluator(self.model).run(None, self.feeds))

    def graph(self) -> tuple[Graph, dict[str, Array]]:
        """The graph, and its feeds."""
        graph = load(self.model.SerializeToString())
        return graph, {value.tensor: self.feeds[value.label] for value in graph.inputs}

    def __str__(self) -> str:
        return "-".join([self.op, self.shapes, *(f"{k}={v}" for k, v in self.attrs.items())])


def with_channels_last(graph: Graph, feeds: dict[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph of one node with that node's tensors in the other layout."""
    (node,) = graph.nodes
    flipped = replace(node, attrs={**node.attrs, "channels_last": True})
    types = dict(graph.types)
    new_feeds = dict(feeds)
    for position, name in enumerate(node.inputs):
        perm = onnx_form.input_to_first(flipped, position, len(types[name].shape or ()))
        if perm is not None:
            new_feeds[name] = np.ascontiguousarray(feeds[name].transpose(onnx_form.inverse(perm)))
            types[name] = TensorType(types[name].dtype, new_feeds[name].shape)
    result = types[node.outputs[0]]
    assert result.shape is not None
    order = onnx_form.last_from_first(len(result.shape))
    types[node.outputs[0]] = TensorType(result.dtype, tuple(result.shape[d] for d in order))
    return replace(graph, nodes=(flipped,), types=types), new_feeds


def by_definition(graph: Graph, feeds: dict[str, Array]) -> list[Array]:
    """The outputs of a graph of one node by its definition as it stands, before anything is fused or collapsed."""
    (node,) = graph.nodes
    values = {**graph.constants, **feeds}
    meaning = define(node, graph.types, graph.constants)
    if isinstance(meaning, TensorView):
        return [values[node.inputs[0]].reshape(graph.types[node.outputs[0]].shape or ())]
    assert isinstance(meaning, Compute)
    written = {stage.output for stage in meaning.stages}
    inputs = in_order_of_use((t for name, t in meaning.tensors.items() if name not in written), meaning.stages)
    outputs = in_order_of_use((meaning.tensors[name] for name in node.outputs), meaning.stages)
    between = [meaning.tensors[name] for name in written - set(node.outputs)]
    task = canonical(node.op, inputs, outputs, between, meaning.stages)
    assert not task.parts
    results = reference(task, [values[tensor.name] for tensor in inputs])
    values |= {t.name: r.reshape(graph.types[t.name].shape or ()) for t, r in zip(outputs, results, strict=True)}
    return [values[name] for name in node.outputs]


UNARY = [
    Case(op, f32(3, 5, 7))
    for op in (
        "Abs", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
        "Neg", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Softplus", "Softsign", "Tanh",
        "ThresholdedRelu",
    )
] + [
    *(Case(op, positive(13)) for op in ("Log", "Reciprocal", "Sqrt")),
    Case("Celu", f32(11), alpha=0.7),
    Case("Elu", f32(11), alpha=0.3),
    Case("Gelu", f32(2, 5), approximate="tanh"),
    Case("HardSigmoid", f32(11), alpha=0.3, beta=0.6),
    Case("LeakyRelu", f32(11), alpha=0.2),
    Case("Selu", f32(11), alpha=1.5, gamma=0.9),
    Case("Shrink", f32(11), lambd=0.4, bias=0.2),
    Case("Shrink", np.array([2**32 - 2, 0, 1, 7], np.uint32), bias=0.5),
    Case("Shrink", np.array([-7, -1, 0, 1, 7], np.int32), bias=-2.25),
    Case("Shrink", np.array([1 - 2**31, 2**31 - 2, 1, 0], np.int32), bias=-1.0),
    Case("Shrink", np.array([0, 1, 251, 252], np.uint8), bias=-3.0),
    Case("Shrink", np.array([0, 3], np.uint8), bias=1000.0, lambd=4.0),
    Case("ThresholdedRelu", f32(11), alpha=0.4),
    Case("Swish", f32(11), version=24),
    Case("Softplus", 40 * f32(11)),
    Case("Not", flags(7)),
    Case("Abs", ints(-5, 5, 7)),
    Case("Neg", ints(-5, 5, 7, dtype="int32")),
    Case("Sign", np.array([-2.5, 0.0, np.nan, np.inf], np.float32)),
    Case("Sign", ints(-5, 5, 7)),
    Case("Relu", np.array(-1.5, np.float32)),
]  # fmt: skip

BINARY = [
    *(Case(op, f32(2, 3, 5), f32(3, 1)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "PRelu")),
    *(Case(op, ints(-9, 9, 5), ints(-9, 9, 3, 1)) for op in ("Add", "Sub", "Mul", "Max", "Min")),
    *(Case(op, f32(3, 5), f32(5)) for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *(
        Case(op, ints(0, 3, 3, 5), ints(0, 3, 5))
        for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
    ),
    *(Case(op, flags(3, 5), flags(5)) for op in ("And", "Or", "Xor", "Equal")),
    *(Case("Pow", positive(3, 5), np.array(p, np.float32), known=(1,)) for p in (-1, 0.5, 1, 2, 3, 2.5)),
    Case("Pow", positive(3, 5), f32(5)),
    Case("Pow", positive(3, 5), ints(0, 4, 5)),
    Case("Div", ints(-50, 50, 7), np.array(7), known=(1,)),
    Case("Div", ints(1, 9, 3), ints(1, 9, 3)),
    Case("Mod", ints(-50, 50, 7), np.array([3, -3, 7, -7, 1, -1, 5])),
    Case("Mod", f32(3, 7), f32(7), fmod=1),
    Case("BitShift", ints(0, 250, 7, dtype="uint8"), ints(0, 9, 7, dtype="uint8"), direction="LEFT"),
    Case("BitShift", ints(0, 250, 7, dtype="uint32"), ints(0, 9, 7, dtype="uint32"), direction="RIGHT"),
    *(Case(f"Bitwise{op}", ints(-99, 99, 3, 7), ints(-99, 99, 7), version=18) for op in ("And", "Or", "Xor")),
    Case("BitwiseNot", ints(0, 99, 7, dtype="uint16"), version=18),
    Case("BitCast", f32(3, 7), to=int(onnx.TensorProto.INT32), version=26),
    Case("Max", f32(3), f32(2, 1), f32(1, 3)),
    Case("Mean", f32(2, 3), f32(2, 1), f32(1, 3)),
    Case("Sum", f32(3)),
    Case("Add", f32(1, 1), f32(1)),
    Case("Where", flags(3, 1), f32(5), f32(3, 5)),
    Case("Where", flags(5), ints(0, 9, 3, 5), ints(0, 9, 1)),
]

OTHERS = [
    Case("Clip", f32(3, 5), np.array(-0.5, np.float32), np.array(0.5, np.float32), known=(1, 2)),
    Case("Clip", f32(3, 5), np.array(-0.5, np.float32)),
    Case("Clip", f32(3, 5)),
    Case("Clip", f32(3, 5), None, np.array(0.25, np.float32)),
    Case("Clip", ints(-9, 9, 7), np.array(-3), np.array(4), known=(1, 2)),
    Case("Clip", f32(3, 5), min=-0.5, max=0.5, version=10),
    *(Case("Cast", 3 * f32(3, 5), to=to) for to in (1, 6, 7, 9, 11)),
    *(Case("Cast", ints(-3, 3, 3, 5), to=to) for to in (1, 3, 6, 9)),
    *(Case("Cast", flags(3, 5), to=to) for to in (1, 7)),
    Case("Cast", ints(0, 255, 7, dtype="uint8"), to=1),
    Case("BatchNormalization", f32(2, 3, 5, 7), f32(3), f32(3), f32(3), positive(3)),
    Case("BatchNormalization", f32(5, 3), f32(3), f32(3), f32(3), positive(3)),
]

CONVOLUTIONS = [
    Case("Conv", f32(1, 3, 7, 5), f32(4, 3, 3, 3)),
    Case("Conv", f32(2, 3, 7, 5), f32(4, 3, 3, 3), f32(4), pads=(1, 1, 1, 1)),
    Case("Conv", f32(2, 3, 7, 5), f32(4, 3, 3, 2), pads=(0, 1, 2, 3), strides=(2, 3), dilations=(2, 1)),
    Case("Conv", f32(1, 6, 9, 9), f32(9, 2, 3, 3), f32(9), group=3, strides=(2, 2)),
    Case("Conv", f32(1, 6, 9, 9), f32(9, 2, 3, 3), group=3, pads=(1, 1, 1, 1)),
    Case("Conv", f32(1, 6, 9, 9), f32(6, 1, 3, 3), f32(6), group=6, pads=(1, 1, 1, 1)),
    Case("Conv", f32(1, 3, 5, 5), f32(6, 1, 3, 3), group=3, pads=(1, 1, 1, 1)),
    Case("Conv", f32(1, 7, 5, 5), f32(4, 7, 1, 1), f32(4)),
    Case("Conv", f32(1, 7, 6, 6), f32(4, 7, 1, 1), strides=(2, 2)),
    Case("Conv", f32(1, 4, 5, 5), f32(4, 1, 1, 1), group=4),
    Case("Conv", f32(2, 3, 11), f32(4, 3, 5), f32(4), pads=(2, 2)),
    Case("Conv", f32(1, 1, 3, 3), f32(1, 1, 3, 3)),
    Case("Conv", f32(1, 2, 5, 4, 3), f32(3, 2, 2, 3, 1), pads=(1, 0, 0, 1, 2, 0)),
    Case("Conv", f32(1, 3, 7, 7), f32(4, 3, 3, 3), strides=(2, 2), auto_pad="SAME_UPPER"),
    Case("Conv", f32(1, 3, 6, 6), f32(4, 3, 3, 3), strides=(2, 2), auto_pad="SAME_LOWER"),
    Case("Conv", f32(1, 3, 6, 6), f32(4, 3, 3, 3), auto_pad="VALID"),
    Case("ConvTranspose", f32(1, 3, 5, 4), f32(3, 2, 2, 2), strides=(2, 2)),
    Case("ConvTranspose", f32(2, 3, 5, 4), f32(3, 2, 2, 3), f32(2), strides=(2, 3)),
    Case("ConvTranspose", f32(1, 3, 5, 4), f32(3, 2, 2, 2), strides=(2, 2), dilations=(2, 1), pads=(0, 0, 1, 0)),
    Case("ConvTranspose", f32(1, 4, 4, 3), f32(4, 3, 2, 2), f32(6), strides=(2, 2), group=2),
    Case("ConvTranspose", f32(1, 3, 5, 4), f32(3, 2, 3, 3), f32(2), strides=(2, 2), pads=(1, 1, 1, 1)),
    Case("ConvTranspose", f32(1, 3, 5, 4), f32(3, 2, 3, 3)),
    Case("ConvTranspose", f32(1, 3, 5, 4), f32(3, 2, 3, 2), strides=(3, 2), output_padding=(2, 1), pads=(1, 0, 1, 1)),
    Case("ConvTranspose", f32(1, 3, 5, 4), f32(3, 2, 3, 3), dilations=(2, 2), strides=(1, 2)),
    Case("ConvTranspose", f32(1, 4, 5, 4), f32(4, 3, 3, 3), group=2, strides=(2, 2), auto_pad="SAME_UPPER"),
    Case("ConvTranspose", f32(1, 3, 5), f32(3, 2, 4), strides=(3,), output_shape=(17,)),
]

PRODUCTS = [
    Case("MatMul", f32(7, 5), f32(5, 3)),
    Case("MatMul", f32(2, 7, 5), f32(5, 3)),
    Case("MatMul", f32(2, 1, 7, 5), f32(3, 5, 3)),
    Case("MatMul", f32(7, 5), f32(2, 3, 5, 3)),
    Case("MatMul", f32(5), f32(5, 3)),
    Case("MatMul", f32(7, 5), f32(5)),
    Case("MatMul", f32(5), f32(5)),
    Case("MatMul", f32(5), f32(2, 5, 3)),
    Case("MatMul", f32(1, 5), f32(5, 1)),
    Case("MatMul", f32(3, 1), f32(1, 4)),
]

POOLS = [
    Case("MaxPool", f32(1, 3, 7, 8), kernel_shape=(3, 2), strides=(2, 2)),
    Case("MaxPool", f32(1, 3, 8, 8), kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
    Case("MaxPool", f32(1, 3, 9), kernel_shape=(3,), strides=(2,), auto_pad="SAME_UPPER"),
    Case("MaxPool", f32(1, 3, 9), kernel_shape=(2,), strides=(2,), auto_pad="SAME_LOWER"),
    Case("MaxPool", f32(1, 2, 5, 5, 5), kernel_shape=(2, 3, 2)),
    Case("MaxPool", f32(1, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 0, 1, 1)),
    Case("MaxPool", f32(1, 3, 8, 8), kernel_shape=(2, 2), dilations=(3, 2)),
    Case("MaxPool", f32(2, 3, 7, 8), outputs=2, kernel_shape=(3, 2), strides=(2, 2), pads=(1, 0, 1, 1)),
    Case("MaxPool", f32(2, 3, 8, 5, 4), outputs=2, kernel_shape=(3, 2, 1), strides=(2, 2, 1), storage_order=1),
    Case("MaxPool", np.ones((2, 3, 4, 3, 5), np.float32), outputs=2, kernel_shape=(2, 3, 4), storage_order=1),
    Case(
        "MaxPool", ints(0, 4, 1, 2, 7, 8, dtype="uint8"), outputs=2, kernel_shape=(3, 3), dilations=(2, 1), ceil_mode=1
    ),
    Case("AveragePool", f32(1, 3, 7, 8), kernel_shape=(3, 2), strides=(2, 2)),
    Case("AveragePool", f32(1, 3, 8, 8), kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
    Case("AveragePool", f32(1, 3, 9, 9), kernel_shape=(3, 3), strides=(3, 2), pads=(1, 0, 2, 1)),
    Case("AveragePool", f32(1, 3, 7, 7), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    Case("AveragePool", f32(1, 3, 7, 7), kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1),
    Case("AveragePool", f32(1, 3, 8), kernel_shape=(3,), strides=(2,), pads=(1, 1), count_include_pad=1, ceil_mode=1),
    Case("AveragePool", f32(1, 3, 9), kernel_shape=(3,), dilations=(2,), pads=(2, 2)),
    Case("AveragePool", f32(1, 3, 9), kernel_shape=(4,), strides=(2,), auto_pad="SAME_UPPER"),
    Case("AveragePool", f32(1, 3, 10), kernel_shape=(4,), strides=(3,), auto_pad="SAME_LOWER"),
    Case("GlobalAveragePool", f32(2, 3, 5, 7)),
    Case("GlobalMaxPool", f32(2, 3, 5, 7)),
    Case("GlobalMaxPool", f32(2, 3, 5)),
]

REDUCTIONS = [
    *(
        Case(op, positive(3, 5, 7), axes, keepdims=keep)
        for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
        for axes, keep in (((1,), 1), ((0, -1), 0))
    ),
    Case("ReduceSum", f32(3, 5, 7)),
    Case("ReduceSum", f32(3, 5, 7), (-2,), keepdims=0),
    Case("ReduceSumSquare", f32(3, 5, 7), (2, 1)),
    Case("ReduceSum", ints(-9, 9, 3, 5), (1,)),
    Case("ReduceMean", ints(-9, 9, 3, 5), (1,)),
    Case("ReduceMean", ints(0, 200, 3, 5, dtype="uint32"), (0,), keepdims=0),
    *(Case("Det", f32(3, n, n)) for n in range(1, 6)),
    Case("ReduceMax", ints(-9, 9, 3, 5, dtype="int32"), (0,)),
    Case("ReduceMax", flags(7, 5), (0,)),
    Case("ReduceMin", flags(3, 2, 2), (1, 2)),
    *(
        Case("CumProd", f32(3, 7), np.array(axis), known=(1,), exclusive=exclusive, reverse=reverse, version=26)
        for axis, exclusive, reverse in ((0, 0, 0), (1, 1, 0), (-1, 0, 1), (1, 1, 1))
    ),
    Case("ReduceMin", ints(-9, 9, 3, 5), (1,), keepdims=0),
    Case("ReduceMax", np.negative(np.ones((3, 1, 5), np.float32)), (1,)),
    Case("ReduceMean", f32(2, 3), axes=(1,), version=11),
    Case("Softmax", 5 * f32(3, 5, 7)),
    Case("Softmax", f32(3, 5, 7), axis=1),
    Case("Softmax", f32(3, 5, 7), axis=1, version=11),
    Case("Softmax", f32(3, 5), version=9),
    Case("LogSoftmax", 5 * f32(3, 5, 7), axis=-2),
    Case("LogSoftmax", f32(3, 5, 7), axis=1, version=11),
    Case("LayerNormalization", f32(3, 5, 7), f32(7), f32(7)),
    Case("LayerNormalization", f32(3, 5, 7), f32(5, 7), axis=1, epsilon=0.01),
    Case("LayerNormalization", f32(3, 5, 7), f32(7), f32(7), outputs=3),
    Case("RMSNormalization", f32(3, 5, 7), f32(7), version=23),
    Case("InstanceNormalization", f32(2, 3, 5, 7), f32(3), f32(3)),
    Case("LRN", f32(1, 7, 3, 3), size=5),
    Case("LRN", f32(1, 7, 3, 3), size=3, alpha=0.1, beta=0.5, bias=2.0),
    Case("LRN", f32(1, 2, 3, 3), size=7),
]


def unit(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1], np.float32)

ANGLES = [
    *(Case(op, np.concatenate([20 * f32(31), SPECIAL])) for op in ("Sin", "Cos", "Tan", "Sinh", "Cosh", "Asinh")),
    *(Case(op, np.concatenate([1e5 * f32(31), 1e-5 * f32(31)])) for op in ("Sin", "Cos", "Tan", "Atan", "Asinh")),
    *(Case(op, np.concatenate([unit(63), SPECIAL])) for op in ("Asin", "Acos", "Atan", "Atanh")),
    Case("Acosh", np.concatenate([1 + np.abs(100 * f32(31)), np.array([1e30], np.float32), SPECIAL])),
    *(Case("IsInf", SPECIAL, detect_negative=n, detect_positive=p) for n in (0, 1) for p in (0, 1)),
    Case("IsNaN", SPECIAL),
]

POSITIONS = [
    *(
        Case(op, x, axis=axis, keepdims=keep, select_last_index=last)
        for op in ("ArgMax", "ArgMin")
        for x, axis, keep, last in (
            (f32(3, 5, 7), 1, 1, 0),
            (ints(0, 3, 5, 7), -1, 0, 0),
            (ints(0, 3, 5, 7, dtype="int32"), 0, 1, 1),
        )
    ),
    Case("ArgMax", np.array([[1, np.nan, 3, np.nan]], np.float32), axis=1),
    Case("Hardmax", ints(0, 3, 5, 7).astype(np.float32)),
    Case("Hardmax", f32(3, 5, 7), axis=1),
    *(
        Case("CumSum", x, np.array(axis), known=(1,), exclusive=exclusive, reverse=reverse)
        for x, axis in ((f32(3, 7), 1), (ints(-9, 9, 5, 3), -2), (ints(-9, 9, 331, 2), 0), (f32(2, 40), 1))
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
    Case("TensorScatter", f32(3, 7, 5), f32(3, 2, 5), ints(0, 6, 3), version=24),
    Case("TensorScatter", f32(3, 7, 5), f32(3, 3, 5), version=24, axis=1),
    Case("TensorScatter", f32(3, 2, 7), f32(3, 2, 4), ints(-9, 16, 3), version=24, axis=-1, mode="circular"),
    Case("ReverseSequence", f32(7, 3, 2), np.array([7, 1, 4])),
    Case("ReverseSequence", f32(3, 7), np.array([2, 7, 5]), batch_axis=0, time_axis=1),
    Case("ReduceLogSumExp", 30 * f32(3, 5), (1,)),
    Case("ReduceLogSumExp", f32(3, 5, 7), (0, 2), keepdims=0),
    *(Case("LpNormalization", f32(3, 5, 7), axis=axis, p=p) for axis, p in ((0, 1), (-1, 2))),
    Case("LpNormalization", np.zeros((2, 3), np.float32)),
    *(Case("LpPool", f32(1, 3, 8, 9), kernel_shape=(3, 2), strides=(2, 2), p=p) for p in (1, 2, 3)),
    *(
        Case("MaxPool", ints(*limits, 1, 3, 7, 8, dtype=dtype), kernel_shape=(3, 2), strides=(2, 2))
        for dtype, limits in (("uint8", (0, 256)), ("int8", (-128, 128)))
    ),
]

GRIDS = [
    Case("GridSample", f32(2, 3, 5, 7), 1.5 * f32(2, 4, 3, 2), mode=mode, padding_mode=padding, align_corners=aligned)
    for mode in ("nearest", "linear", "cubic")
    for padding in ("zeros", "border", "reflection")
    for aligned in (0, 1)
] + [
    Case("GridSample", f32(1, 2, 3, 4, 5), unit(1, 2, 2, 3, 3)),
    Case("GridSample", f32(2, 3, 1, 1), unit(2, 4, 3, 2), padding_mode="reflection", align_corners=1),
]

MOVEMENT = [
    Case("Transpose", f32(3, 5, 7)),
    Case("Transpose", f32(3, 1, 7), perm=(1, 2, 0)),
    Case("Concat", f32(2, 3), f32(2, 5), f32(2, 1), axis=1),
    Case("Concat", ints(0, 9, 2, 3), ints(0, 9, 4, 3), axis=-2),
    Case("Split", f32(7, 3), (3, 4), outputs=2),
    Case("Split", f32(2, 6), outputs=3, axis=-1, num_outputs=3),
    Case("Split", f32(2, 7), outputs=3, axis=1, num_outputs=3),
    Case("Slice", f32(7, 9), (1, -6), (6, -1), (0, 1), (2, 1)),
    Case("Slice", f32(7, 9), (-1,), (-1000,), (1,), (-2,)),
    Case("Slice", f32(7, 9), (2, 3), (1000, 1000)),
    Case("Slice", flags(7), (-100,), (3,)),
    Case("Expand", f32(3, 1), (2, 1, 5)),
    Case("Tile", f32(2, 3), (3, 2)),
    Case("Tile", ints(0, 9, 2, 1, 3), (1, 4, 2)),
    Case("Pad", f32(3, 5), (1, 0, 2, 3)),
    Case("Pad", f32(3, 5), (1, 2), np.array(1.5, np.float32), (-1,), known=(2,)),
    Case("Pad", f32(3, 5), (-1, 1, 0, -2)),
    *(Case("Pad", f32(3, 5), (1, 2, 2, 4), mode=mode) for mode in ("edge", "reflect")),
    Case("Pad", f32(3, 5), (4, 2, 7, 5), mode="wrap"),
    Case("Gather", f32(5, 7), ints(-5, 5, 2, 3)),
    Case("Gather", f32(3, 5, 7), ints(-5, 5, 2, dtype="int32"), axis=1),
    Case("Gather", f32(3, 5), np.array(-1), axis=-1),
    Case("Gather", f32(3, 5, 2), np.array(2), axis=1, known=(1,)),
    Case("Gather", ints(0, 9, 5), ints(0, 5, 3, 1)),
    Case("ScatterElements", f32(3, 5), ints(-5, 5, 3, 7), f32(3, 7), axis=1),
    Case("ScatterElements", f32(5, 3, 7), ints(-5, 5, 2, 1, 5), f32(2, 1, 5), axis=0),
    Case("ScatterElements", ints(0, 9, 5), np.array([3, 3, -2]), np.array([7, 8, 9]), axis=0),
    *(
        Case("ScatterElements", f32(3, 5), ints(-5, 5, 2, 7), f32(2, 7), axis=1, reduction=r)
        for r in ("add", "mul", "max", "min")
    ),
    Case("ScatterND", f32(5, 7), np.array([[4], [-3], [4]]), f32(3, 7)),
    Case("ScatterND", f32(3, 5, 7), ints(0, 3, 2, 3, 2), f32(2, 3, 7)),
    Case("ScatterND", flags(3, 5), np.array([[1, -1]]), flags(1)),
    *(
        Case("ScatterND", f32(5, 3), np.array([[1], [4], [1]]), f32(3, 3), reduction=r)
        for r in ("add", "mul", "max", "min")
    ),
    Case("ScatterND", ints(-9, 9, 5), np.array([[1], [4], [1]]), ints(-9, 9, 3), reduction="add"),
    *(Case("TopK", f32(3, 13), np.array([5]), known=(1,), outputs=2, largest=n) for n in (0, 1)),
    Case("TopK", f32(7, 3, 2), np.array([7]), known=(1,), outputs=2, axis=0),
    Case("TopK", f32(1, 7), np.array([1]), known=(1,), outputs=2),
    Case("TopK", np.array([2, np.nan, 3, -np.inf, 1], "float32"), np.array([4]), known=(1,), outputs=2, largest=0),
    *(Case("TopK", ints(0, 3, 2, 9), np.array([7]), known=(1,), outputs=2, largest=n) for n in (0, 1)),  # ties
    Case("Col2Im", f32(2, 12, 20), np.array([5, 6]), np.array([2, 2]), known=(1, 2)),
    Case("Col2Im", f32(1, 6, 9), np.array([5, 7]), np.array([2, 3]), known=(1, 2), strides=(2, 2), pads=(1, 1, 1, 0)),
    Case("Col2Im", f32(1, 18, 2), np.array([5, 8]), np.array([3, 3]), known=(1, 2), strides=(1, 3), dilations=(2, 1)),
    Case("Col2Im", f32(2, 24, 6), np.array([8, 9]), np.array([4, 3]), known=(1, 2), strides=(4, 3)),
    Case("Col2Im", f32(1, 4, 5), np.array([8]), np.array([4]), known=(1, 2)),
    Case("GatherElements", f32(3, 5), ints(-5, 5, 3, 2), axis=1),
    Case("GatherND", f32(3, 5, 7), np.stack([ints(0, 3, 4), ints(-5, 5, 4)], -1)),
    Case("GatherND", f32(2, 5, 7), ints(0, 5, 2, 3, 1), batch_dims=1),
    Case("OneHot", ints(-7, 7, 3, 2), np.array(5), f32(2), known=(1,)),
    Case("OneHot", ints(0, 5, 3, dtype="float32"), np.array(5.0, np.float32), f32(2), known=(1,)),
    Case("OneHot", ints(-5, 5, 3, dtype="int32"), np.array(4), ints(0, 5, 2), axis=0, known=(1,)),
    Case("Trilu", f32(3, 5)),
    Case("Trilu", f32(2, 5, 3), np.array(-1), upper=0, known=(1,)),
    *(Case("DepthToSpace", f32(1, 12, 2, 3), blocksize=2, mode=mode) for mode in ("DCR", "CRD")),
    Case("SpaceToDepth", f32(1, 3, 4, 6), blocksize=2),
    Case("Resize", f32(1, 2, 3, 5), None, np.array([1, 1, 2, 3], np.float32), mode="nearest", known=(2,)),
    Case(
        "Resize", f32(1, 2, 3, 5), None, None, (1, 2, 6, 10), mode="nearest", nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    ),
    Case("Upsample", f32(1, 2, 3, 5), np.array([1, 1, 2, 3], np.float32), version=9, mode="nearest", known=(1,)),
    Case("Identity", f32(3, 5)),
    Case("Dropout", f32(3, 5)),
    Case("Flatten", f32(2, 3, 5), axis=2),
    Case("Reshape", f32(2, 3, 5), (5, -1)),
    Case("Squeeze", f32(1, 3, 1, 5), axes=(0,), version=11),
    Case("Unsqueeze", f32(3, 5), axes=(1,), version=11),
]  # fmt: skip

QUARTER, STEPPED = np.array(0.25, np.float32), np.array([0.25, 2, 8], np.float32)

QUANTISATION = [
    Case("QuantizeLinear", 9 * f32(3, 5), QUARTER),
    Case("QuantizeLinear", 9 * f32(3, 5), QUARTER, np.array(131, np.uint8)),
    Case("QuantizeLinear", 90 * f32(3, 5, 2), STEPPED, ints(-9, 9, 3, dtype="int8"), axis=0),
    Case("QuantizeLinear", 90 * f32(2, 5, 3), STEPPED, ints(-9, 9, 3, dtype="int8"), axis=-1),
    Case("QuantizeLinear", 9000 * f32(3, 5), QUARTER, np.array(9, np.uint16), version=21),
    Case("QuantizeLinear", 9000 * f32(3, 5), QUARTER, np.array(-9, np.int16), version=21),
    Case("DequantizeLinear", ints(-999, 999, 3, 5, dtype="int16"), QUARTER, np.array(77, np.int16), version=21),
    Case("DequantizeLinear", ints(-128, 127, 3, 5, dtype="int8"), QUARTER),
    Case("DequantizeLinear", ints(0, 255, 3, 5, dtype="uint8"), QUARTER, np.array(131, np.uint8)),
    Case("DequantizeLinear", ints(0, 255, 2, 3, 5, dtype="uint8"), STEPPED, ints(0, 255, 3, dtype="uint8")),
    Case("DequantizeLinear", ints(-999, 999, 3, 5, dtype="int32"), STEPPED, axis=0),
    *(
        Case(
            f"{op}Linear", x, positive(3, 3, 2), ints(0, 255, 3, 3, 2, dtype="uint8"), version=21, axis=1, block_size=2
        )
        for op, x in (("Quantize", 90 * f32(3, 5, 2)), ("Dequantize", ints(0, 255, 3, 5, 2, dtype="uint8")))
    ),
    Case("MatMulInteger", ints(-128, 127, 7, 5, dtype="int8"), ints(0, 255, 5, 3, dtype="uint8")),
    Case("MatMulInteger", ints(0, 255, 2, 7, 5, dtype="uint8"), ints(0, 255, 2, 5, 3, dtype="uint8")),
    Case("ConvInteger", ints(0, 255, 1, 3, 6, 7, dtype="uint8"), ints(-128, 127, 5, 3, 3, 3, dtype="int8")),
    Case(
        "ConvInteger",
        ints(-128, 127, 2, 4, 6, 7, dtype="int8"),
        ints(-128, 127, 6, 2, 3, 2, dtype="int8"),
        group=2,
        pads=(1, 0, 2, 1),
        strides=(2, 1),
    ),
]

CASES = UNARY + BINARY + OTHERS + CONVOLUTIONS + PRODUCTS + POOLS + REDUCTIONS + MOVEMENT + QUANTISATION
BOXES = np.array([[0.4, 1.2, 5.3, 4.6], [-2, -9, 3, 2], [5, 5, 5, 5], [8, 2, 4, 1]], np.float32)

BOXED = [
    Case(
        "RoiAlign", f32(2, 3, 7, 9), BOXES, np.array([0, 1, 1, 0]), mode=mode, sampling_ratio=2,
        spatial_scale=0.75, output_height=2, output_width=3, coordinate_transformation_mode=kind,
    )
    for mode in ("avg", "max") for kind in ("half_pixel", "output_half_pixel")
]  # fmt: skip

CASES += ANGLES + POSITIONS + GRIDS + BOXED


@pytest.mark.parametrize("case", CASES, ids=str)
def test_definition_is_what_onnx_says(case: Case, runs) -> None:
    graph, feeds = case.graph()
    expected = case.wanted()
    assert all(not isinstance(step, Fallback) for step in partition(graph))
    for results in (runs.steps(graph, feeds), by_definition(graph, feeds) if len(graph.nodes) == 1 else expected):
        for result, other in zip(results, expected, strict=True):
            runs.close(result, other)


def narrowed(value: Any) -> Any:
    return value.astype(np.float16) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value


def widened(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float16 else value


NARROWED = [
    case
    for case in CASES
    if case.op not in ("BitCast", "Cast", "Celu", "Resize", "Upsample")  # their types are given, or of float32 alone
    and len(case.graph()[0].nodes) == 1
    and any(array.dtype == np.float32 for array in case.feeds.values())
    and all(np.abs(array).max(initial=0) < 1e4 for array in case.feeds.values())
]


@pytest.mark.parametrize("case", NARROWED, ids=str)
def test_narrow_floats_are_computed_in_float32_and_rounded_once(case: Case) -> None:
    half = case.again(narrowed)
    graph, feeds = half.graph()
    expected = half.again(widened).wanted()
    for value, result, right in zip(graph.outputs, by_definition(graph, feeds), expected, strict=True):
        assert result.dtype == graph.types[value.tensor].dtype
        wide_result, wide_right = (np.asarray(array, float) for array in (result, right.astype(result.dtype)))
        np.testing.assert_allclose(
            wide_result, wide_right, rtol=0, atol=2e-3 * max(1e-6, float(np.abs(wide_right).max()))
        )


FLOAT32_ALONE = frozenset({"DequantizeLinear", "GridSample", "QuantizeLinear"})
"""Ops that have no float64 here."""

ROUGH = FAULTY | {"Erf", "Gelu", "HardSwish", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
"""Ops that ONNX Runtime has in float32 alone, or of which the evaluator computes a part so."""


def doubled(value: Any) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value


@pytest.mark.parametrize("case", [c for c in NARROWED if c.op not in FLOAT32_ALONE | set(RECURRENCES)], ids=str)
def test_float64_is_computed_in_float64(case: Case, runs) -> None:
    wide = case.again(doubled)
    graph, _ = wide.graph()
    assert all(not isinstance(step, Fallback) for step in partition(graph))
    error = 3e-6 if case.op in ROUGH else 1e-13
    expected = (case if case.op in FAULTY else wide).wanted()
    for results in (runs.steps(*wide.graph()), by_definition(*wide.graph())):
        for value, result, right in zip(graph.outputs, results, expected, strict=True):
            assert result.dtype == graph.types[value.tensor].dtype
            size = max(1.0, float(np.abs(np.where(np.isfinite(right), right, 0)).max(initial=0)))
            np.testing.assert_allclose(np.asarray(result, float), np.asarray(right, float), rtol=0, atol=error * size)


@pytest.mark.parametrize(("source", "target"), [(np.float16, np.float32), (np.float32, np.float16)])
def test_a_cast_of_narrow_floats_is_one(source: type, target: type) -> None:
    case = Case("Cast", f32(3, 5).astype(source), to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    graph, feeds = case.graph()
    [result], [right] = by_definition(graph, feeds), case.wanted()
    assert result.dtype == target
    np.testing.assert_array_equal(result, right)


ALONE = [
    case
    for case in CASES
    for graph, _ in (case.graph(),)
    if case.op in onnx_form.CHANNELS_LAST_OPS and len(graph.nodes) == 1 and len(graph.outputs) == 1
]


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_channels_may_be_last(case: Case, runs) -> None:
    graph, feeds = with_channels_last(*case.graph())
    expected = [np.moveaxis(array, 1, -1) for array in case.wanted()]
    for results in (runs.steps(graph, feeds), by_definition(graph, feeds)):
        for result, other in zip(results, expected, strict=True):
            runs.close(result, other)


def test_every_op_is_tested() -> None:
    tested = {node.op for case in CASES for node in case.graph()[0].nodes}
    elsewhere = {
        *RECURRENCES,
        "BlockMatMul",
        "BlockQuantize",
        CAUSAL,
        "ConvNarrow",
        "MatMulNarrow",
        "Trees",
    }  # in tests of their own
    assert set(OPS) == tested | elsewhere


NOT_NATIVE = [
    Case("Slice", f32(5), np.array([1]), np.array([3])),
    Case("Reshape", f32(6), np.array([2, 3])),
    Case("Resize", f32(1, 1, 3, 3), None, np.array([1, 1, 1.5, 2], np.float32), mode="nearest", known=(2,)),
    Case("Resize", f32(1, 1, 3, 3), None, np.array([1, 1, 2, 2], np.float32), mode="linear", known=(2,)),
    Case("MatMulInteger", ints(0, 9, 3, 4, dtype="int8"), ints(0, 9, 4, 2, dtype="int8"), np.array(1, np.int8)),
    Case("LSTM", f32(2, 1, 3), f32(1, 16, 3), f32(1, 16, 4), hidden_size=4),
]


@pytest.mark.parametrize("case", NOT_NATIVE, ids=str)
def test_the_rest_is_refused_with_a_reason(case: Case) -> None:
    graph, _ = case.graph()
    reasons = [step.reason for step in partition(graph) if isinstance(step, Fallback)]
    assert reasons
    assert all(reason.startswith(node.op) for reason, node in zip(reasons, graph.nodes, strict=True))
