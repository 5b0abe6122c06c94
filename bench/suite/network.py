"""Network: an ONNX model in the making, with seeded weights.

Weights are random normal numbers of a deviation that keeps the size of activations about the same from layer to layer
(He et al., "Delving Deep into Rectifiers", 2015), so that outputs stay comparable numbers through any depth. Batch
normalisation is folded into the convolutions, as exporters do in evaluation mode. Values are named by what made them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

OPSET = 18
DOMAINS = {"com.microsoft": 1, "ai.onnx.ml": 3}
IR_VERSION = 10

BRANCH_GAIN = 0.2
"""The gain of the last weights of a residual branch: else activations would double from block to block."""


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """The batch of a network and the type of its numbers."""

    batch: int = 1
    dtype: type[np.floating[Any]] = np.float32

    @property
    def onnx_type(self) -> int:
        """ONNX's number of the type."""
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))


PLAIN = NetworkForm()


class Network:
    """Collects nodes and weights. Each method that adds a node returns the name of its output.

    One seed always gives the same weights. Shapes are written in the order of ONNX: N C H W.
    """

    def __init__(self, name: str, seed: int = 0, form: NetworkForm = PLAIN, opset: int = OPSET) -> None:
        self._name, self._seed, self.form, self._opset = name, seed, form, opset
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._declared: dict[str, ValueInfoProto] = {}
        self._prefix = ""  # of names, in a body

    def body(self, name: str) -> Network:
        """A graph inside of this one, such as a branch. It sees all that this one has, and its weights are there."""
        inner = Network(name, self._seed, self.form, self._opset)
        inner._weights, inner._prefix = self._weights, f"{self._prefix}{name}_"
        return inner

    def graph(self, *outputs: str) -> GraphProto:
        """The nodes of a body, as an attribute of the node that has it."""
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        return helper.make_graph(self._nodes, self._name, self._inputs, results)

    def declare(self, name: str, shape: Sequence[int], dtype: int | None = None) -> str:
        """Tell the type of a result that ONNX's inference does not know, such as one of a foreign domain's op."""
        self._declared[name] = helper.make_tensor_value_info(name, dtype or self.form.onnx_type, shape)
        return name

    def input(self, name: str, shape: Sequence[int], dtype: int | None = None) -> str:
        """An input of the model, of its numbers' type unless another one is given."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype or self.form.onnx_type, shape))
        return name

    def constant(self, array: NDArray[Any]) -> str:
        """A constant tensor; a float32 one gets the type of the network's numbers."""
        return self.exact(array.astype(self.form.dtype, copy=False) if array.dtype == np.float32 else array)

    def exact(self, array: NDArray[Any]) -> str:
        """A constant tensor of the type that it has."""
        name = f"c{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def scalar(self, value: float) -> str:
        """A number of rank 0."""
        return self.constant(np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        """An int64 vector."""
        return self.constant(np.array(values, np.int64))

    def weight(self, shape: Sequence[int], reduced: int, gain: float = 1.0) -> str:
        """Random weights for sums of `reduced` terms; `gain` is the deviation of such a sum over that of its terms."""
        return self._random(shape, gain / sqrt(reduced))

    def shift(self, count: int, deviation: float = 0.1) -> str:
        """Random numbers around zero."""
        return self._random((count,), deviation)

    def table(self, rows: int, columns: int, deviation: float = 1.0) -> str:
        """A table of embeddings."""
        return self._random((rows, columns), deviation)

    def _random(self, shape: Sequence[int], deviation: float) -> str:
        rng = np.random.default_rng([self._seed, len(self._weights)])
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        return self.constant(values)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.add_split(op, *inputs, count=1, **attributes)[0]

    def add_split(
        self, op: str, *inputs: str, count: int, unwanted: Collection[int] = (), **attributes: Any
    ) -> list[str]:
        """A node with several outputs; those `unwanted`, by number, have no name."""
        stem = f"{self._prefix}{op.lower()}{len(self._nodes)}"
        outputs = [stem + (f"_{n}" if count > 1 else "") if n not in unwanted else "" for n in range(count)]
        self._nodes.append(helper.make_node(op, inputs, outputs, **attributes))
        return outputs

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        padding: int | None = None,
        groups: int = 1,
        gain: float = sqrt(2),
    ) -> str:
        """A convolution over square windows with a bias; by default padded to keep the extent at stride 1."""
        pad = kernel // 2 if padding is None else padding
        weight = self.weight((outputs, inputs // groups, kernel, kernel), inputs // groups * kernel**2, gain)
        return self.add(
            "Conv", x, weight, self.shift(outputs), kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
            group=groups,
        )  # fmt: skip

    def conv_relu(self, x: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, **options: Any) -> str:
        """A convolution and the rectifier after it."""
        return self.add("Relu", self.conv(x, inputs, outputs, kernel, stride, **options))

    def conv_transpose(self, x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        """A transposed convolution over square windows, which makes the extents `stride` times as large."""
        weight = self.weight((inputs, outputs, kernel, kernel), inputs * kernel**2 // stride**2, sqrt(2))
        pads = [(kernel - stride) // 2] * 2 + [(kernel - stride + 1) // 2] * 2
        strides = [stride] * 2
        return self.add(
            "ConvTranspose", x, weight, self.shift(outputs), kernel_shape=[kernel] * 2, strides=strides, pads=pads
        )

    def max_pool(self, x: str, kernel: int, stride: int, padding: int = 0) -> str:
        """A max pool over square windows."""
        return self.add("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)

    def linear(self, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """x w + b over the last axis, of any rank."""
        product = self.add("MatMul", x, self.weight((inputs, outputs), inputs, gain))
        return self.add("Add", product, self.shift(outputs, 0.02))

    def gemm(self, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """x w + b of a matrix, w transposed in memory as PyTorch keeps it."""
        return self.add("Gemm", x, self.weight((outputs, inputs), inputs, gain), self.shift(outputs), transB=1)

    def layer_norm(self, x: str, features: int, epsilon: float = 1e-5) -> str:
        """Normalisation over the last axis, scaled and shifted."""
        scale = self.constant(np.linspace(0.9, 1.1, features, dtype=np.float32))
        return self.add("LayerNormalization", x, scale, self.shift(features), axis=-1, epsilon=epsilon)

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.integers(*shape))

    def transpose(self, x: str, *perm: int) -> str:
        return self.add("Transpose", x, perm=perm)

    def mean(self, x: str, *axes: int, keepdims: bool = True) -> str:
        return self.add("ReduceMean", x, self.integers(*axes), keepdims=int(keepdims))

    def silu(self, x: str) -> str:
        """x sigmoid(x), as exporters write it."""
        return self.add("Mul", x, self.add("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """x times the normal distribution at x by the error function, as exporters write it."""
        bell = self.add("Erf", self.add("Div", x, self.scalar(sqrt(2))))
        return self.add("Mul", self.add("Mul", x, self.add("Add", bell, self.scalar(1))), self.scalar(0.5))

    def relu6(self, x: str) -> str:
        """x within 0 .. 6."""
        return self.add("Clip", x, self.scalar(0), self.scalar(6))

    def both_ways(self, x: str, steps: int, inputs: int, hidden: int) -> str:
        """An LSTM over `[steps, 1, inputs]` from either end, its states side by side: `[steps, 1, 2 hidden]`."""
        weights = self.weight((2, 4 * hidden, inputs), inputs), self.weight((2, 4 * hidden, hidden), hidden)
        bias = self.weight((2, 8 * hidden), hidden)
        both = self.add("LSTM", x, *weights, bias, direction="bidirectional", hidden_size=hidden)
        return self.reshape(self.transpose(both, 0, 2, 1, 3), steps, 1, 2 * hidden)

    def squeeze_excite(self, x: str, features: int, squeezed: int) -> str:
        """Each channel scaled by a gate that all channels' means decide."""
        means = self.silu(self.conv(self.mean(x, 2, 3), features, squeezed))
        return self.add("Mul", x, self.add("Sigmoid", self.conv(means, squeezed, features)))

    def onnx(self, *outputs: str) -> bytes:
        """The model as a file's bytes."""
        from onnx import shape_inference

        graph = self._graph([self._declared.get(name, helper.make_empty_tensor_value_info(name)) for name in outputs])
        foreign = sorted({node.domain for node in self._nodes} - {""})
        opsets = [helper.make_opsetid("", self._opset), *(helper.make_opsetid(name, DOMAINS[name]) for name in foreign)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        light = helper.make_model(self._light(graph), opset_imports=opsets, ir_version=IR_VERSION)
        inferred = shape_inference.infer_shapes(light, strict_mode=True, data_prop=True).graph
        del model.graph.output[:]
        model.graph.output.extend(inferred.output)
        return bytes(model.SerializeToString())

    def _graph(self, outputs: Sequence[ValueInfoProto]) -> GraphProto:
        inner = [info for info in self._declared.values() if info not in outputs]
        return helper.make_graph(self._nodes, self._name, self._inputs, outputs, self._weights, value_info=inner)

    def _light(self, graph: GraphProto) -> GraphProto:
        """The graph with large weights as inputs, since inference is given a copy of everything."""
        large = [tensor for tensor in self._weights if prod(tensor.dims) > 1024]
        stand_ins = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in large]
        names = {tensor.name for tensor in large}
        small = [tensor for tensor in self._weights if tensor.name not in names]
        inputs = [*self._inputs, *stand_ins]
        return helper.make_graph(graph.node, graph.name, inputs, graph.output, small, value_info=graph.value_info)


def model_of(add: Callable[[Network, str], str], *shape: int, seed: int = 0) -> bytes:
    """A model of one input, whose output `add` makes."""
    net = Network("operator", seed)
    return net.onnx(add(net, net.input("x", shape)))


def batched_product(batch: int, rows: int, inner: int, columns: int) -> bytes:
    """A model of products of two inputs, as many as `batch`."""
    net = Network("operator")
    return net.onnx(net.add("MatMul", net.input("a", (batch, rows, inner)), net.input("b", (batch, inner, columns))))
