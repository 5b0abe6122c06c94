"""A graph as a PyTorch module: each node in the normal form as the call of PyTorch that means the same.

`translate` builds a `torch.fx` graph, which runs eagerly without this code, and which torch.compile reads. It knows the
ops that common models are made of; others raise NotImplementedError with their name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import count
from math import inf
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.nn import functional

from tunewright.graph.evaluation.causal import CAUSAL, later_keys
from tunewright.graph.ir import Graph, Node

Array = Any
"""A numpy array, or the fx node that stands for a tensor."""


def translate(graph: Graph) -> Any:
    """A module from the graph's inputs, in their order, to the tuple of its outputs.

    Raises NotImplementedError for what has no translation.
    """
    return _Translation(graph).module()


class _Translation:
    """Calls of PyTorch, added to an fx graph in the order of the nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._root = torch.nn.Module()
        self._fx = fx.Graph()
        self._numbers = count()
        self._values: dict[str, Any] = {}

    def module(self) -> Any:
        for value in self.graph.inputs:
            self._values[value.tensor] = self._fx.placeholder(value.tensor)
        for node in self.graph.nodes:
            if node.domain or node.op not in _OPS:
                raise NotImplementedError(f"no translation of {node.op} to PyTorch")
            results = _OPS[node.op](self, node)
            for name, result in zip(node.outputs, results if isinstance(results, list) else [results], strict=False):
                self._values[name] = result
        self._fx.output(tuple(self.value(value.tensor) for value in self.graph.outputs))
        return fx.GraphModule(self._root, self._fx).eval()

    def value(self, name: str) -> Any:
        """A tensor of the graph."""
        if name not in self._values:
            self._values[name] = self.keep(self.graph.constants[name])
        return self._values[name]

    def keep(self, array: Array) -> Any:
        """A constant, which becomes part of the module."""
        name = f"constant{next(self._numbers)}"
        tensor = torch.from_numpy(np.array(array))  # a copy: PyTorch wants to own it, and arrays may be read-only
        if tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        self._root.register_buffer(name, tensor)
        return self._fx.get_attr(name)

    def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return self._fx.call_function(function, arguments, keywords)

    def operands(self, node: Node) -> list[Any]:
        """The inputs of a node, None where one is absent."""
        return [self.value(name) if name else None for name in node.inputs]

    def rank(self, name: str) -> int:
        shape = self.graph.type(name).shape
        if shape is None:
            raise NotImplementedError("no translation where only running tells the shape")
        return len(shape)

    def pad(self, node: Node, x: Any, fill: float = 0.0) -> tuple[Any, tuple[int, ...]]:
        """The input of a window op, padded where the sides differ, and what padding is left for the op itself."""
        pads = node.attrs["pads"]
        before, after = pads[: len(pads) // 2], pads[len(pads) // 2 :]
        if before == after:
            return x, tuple(before)
        sides = [side for pair in zip(reversed(before), reversed(after), strict=True) for side in pair]
        return self.call(functional.pad, x, sides, value=fill), (0,) * len(before)


_Translator = Callable[[_Translation, Node], Any]


def _plain(function: Callable[..., Any]) -> _Translator:
    return lambda t, node: t.call(function, *t.operands(node))


def _conv(t: _Translation, node: Node) -> Any:
    x, weight, bias = (*t.operands(node), None)[:3]
    x, padding = t.pad(node, x)
    functions = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}
    strides, dilations = node.attrs["strides"], node.attrs["dilations"]
    return t.call(
        functions[t.rank(node.inputs[0])], x, weight, bias, strides, padding, dilations, node.attrs["group"]
    )  # fmt: skip


def _conv_transpose(t: _Translation, node: Node) -> Any:
    x, weight, bias = (*t.operands(node), None)[:3]
    pads = node.attrs["pads"]
    before, after = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    if before != after or t.rank(node.inputs[0]) != 4:
        raise NotImplementedError("no translation of this ConvTranspose to PyTorch")
    attrs = node.attrs
    return t.call(
        functional.conv_transpose2d, x, weight, bias, attrs["strides"], before, attrs["output_padding"],
        attrs["group"], attrs["dilations"],
    )  # fmt: skip


def _max_pool(t: _Translation, node: Node) -> Any:
    [x] = t.operands(node)
    x, padding = t.pad(node, x, float("-inf"))
    if t.rank(node.inputs[0]) != 4 or len(node.outputs) > 1:
        raise NotImplementedError("no translation of this MaxPool to PyTorch")
    attrs = node.attrs
    return t.call(functional.max_pool2d, x, attrs["kernel_shape"], attrs["strides"], padding, attrs["dilations"])


def _average_pool(t: _Translation, node: Node) -> Any:
    [x] = t.operands(node)
    pads = node.attrs["pads"]
    before, counted = tuple(pads[: len(pads) // 2]), bool(node.attrs.get("count_include_pad", 0))
    if t.rank(node.inputs[0]) != 4 or before != tuple(pads[len(pads) // 2 :]):
        raise NotImplementedError("no translation of this AveragePool to PyTorch")
    kernel, strides = node.attrs["kernel_shape"], node.attrs["strides"]
    return t.call(functional.avg_pool2d, x, kernel, strides, before, False, counted)


def _global_average_pool(t: _Translation, node: Node) -> Any:
    [x] = t.operands(node)
    return t.call(torch.mean, x, tuple(range(2, t.rank(node.inputs[0]))), True)


def _reduce(function: Callable[..., Any]) -> _Translator:
    def translate_node(t: _Translation, node: Node) -> Any:
        axes = tuple(node.attrs["axes"])
        return t.call(function, t.operands(node)[0], axes, bool(node.attrs["keepdims"]))

    return translate_node


def _gemm(t: _Translation, node: Node) -> Any:
    a, b, c = (*t.operands(node), None)[:3]
    attrs = node.attrs
    if attrs["alpha"] != 1 or attrs["beta"] != 1 or t.rank(node.inputs[1]) != 2:
        raise NotImplementedError("no translation of this Gemm to PyTorch")
    a = t.call(torch.t, a) if attrs["transA"] else a
    if attrs["transB"] and (c is None or t.rank(node.inputs[2]) == 1):
        return t.call(functional.linear, a, b, c)
    product = t.call(torch.matmul, a, t.call(torch.t, b) if attrs["transB"] else b)
    return product if c is None else t.call(torch.add, product, c)


def _clip(t: _Translation, node: Node) -> Any:
    low, high = (_number(node.attrs.get(name)) for name in ("min", "max"))
    if low == 0 and high == 6:
        return t.call(functional.relu6, t.operands(node)[0])
    return t.call(torch.clamp, t.operands(node)[0], low, high)


def _hard_sigmoid(t: _Translation, node: Node) -> Any:
    sloped = t.call(torch.mul, t.operands(node)[0], node.attrs["alpha"])
    return t.call(torch.clamp, t.call(torch.add, sloped, node.attrs["beta"]), 0.0, 1.0)


def _div(t: _Translation, node: Node) -> Any:
    whole = not np.issubdtype(np.dtype(t.graph.type(node.outputs[0]).dtype), np.floating)
    return t.call(torch.div, *t.operands(node), rounding_mode="trunc" if whole else None)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _layer_norm(t: _Translation, node: Node) -> Any:
    x, scale, shift = (*t.operands(node), None)[:3]
    shape = t.graph.type(node.inputs[0]).shape or ()
    return t.call(functional.layer_norm, x, shape[node.attrs["axis"] :], scale, shift, node.attrs["epsilon"])


def _batch_norm(t: _Translation, node: Node) -> Any:
    x, scale, shift, mean, variance = t.operands(node)
    return t.call(functional.batch_norm, x, mean, variance, scale, shift, False, 0.0, node.attrs["epsilon"])


def _slice(t: _Translation, node: Node) -> Any:
    attrs = node.attrs
    picked = [slice(None)] * t.rank(node.inputs[0])
    for start, end, axis, step in zip(attrs["starts"], attrs["ends"], attrs["axes"], attrs["steps"], strict=True):
        if step < 0:
            raise NotImplementedError("no translation of a Slice backwards to PyTorch")
        picked[axis] = slice(start, end, step)
    return t.call(operator.getitem, t.operands(node)[0], tuple(picked))


def _split(t: _Translation, node: Node) -> Any:
    parts = t.call(torch.split, t.operands(node)[0], list(node.attrs["split"]), node.attrs["axis"])
    return [t.call(operator.getitem, parts, number) for number in range(len(node.outputs))]


def _causal_mask(t: _Translation, node: Node) -> Any:
    shape = t.graph.type(node.inputs[0]).shape
    assert shape is not None
    later = t.keep(later_keys(shape, node.attrs["past"]))
    return t.call(torch.masked_fill, *t.operands(node), later, -inf)


def _gather(t: _Translation, node: Node) -> Any:
    table, places = t.operands(node)
    axis = node.attrs["axis"]
    if axis == 0 and t.rank(node.inputs[0]) == 2:
        return t.call(functional.embedding, places, table)
    shape = t.graph.type(node.outputs[0]).shape or ()
    picked = t.call(torch.index_select, table, axis, t.call(torch.reshape, places, (-1,)))
    return t.call(torch.reshape, picked, shape)


def _cast(t: _Translation, node: Node) -> Any:
    return t.call(torch.Tensor.to, t.operands(node)[0], _dtype(t.graph.type(node.outputs[0]).dtype))


def _dtype(name: str) -> Any:
    return torch.from_numpy(np.zeros(0, np.dtype(name))).dtype


def _lstm(t: _Translation, node: Node) -> Any:
    """One layer, in one or both directions, with the default activations; gates in ONNX's order are reordered."""
    names = (*node.inputs, *[""] * 8)[:8]
    attrs = node.attrs
    directions = {"forward": 1, "bidirectional": 2}.get(attrs["direction"])
    plain = directions and not (attrs["layout"] or attrs["input_forget"] or names[4] or names[7])
    if not plain or {"activations", "clip"} & attrs.keys() or any(n not in t.graph.constants for n in names[1:3]):
        raise NotImplementedError("no translation of this LSTM to PyTorch")
    hidden = attrs["hidden_size"]
    weights = _lstm_weights(t.graph.constants, names, hidden)
    (steps, batch, _), states = t.graph.type(names[0]).shape or (0, 0, 0), []
    for name in names[5:7]:
        shape = (directions, batch, hidden)
        states.append(t.value(name) if name else t.keep(np.zeros(shape, np.float32)))
    results = t.call(
        torch.lstm, t.value(names[0]), states, [t.keep(w) for w in weights], True, 1, 0.0, False, directions == 2, False
    )
    y = t.call(torch.reshape, t.call(operator.getitem, results, 0), (steps, batch, directions, hidden))
    return [t.call(torch.transpose, y, 1, 2), *(t.call(operator.getitem, results, number) for number in (1, 2))]


def _lstm_weights(constants: Mapping[str, Any], names: tuple[str, ...], hidden: int) -> list[Any]:
    """For each direction w, r and both biases, gates ordered input, forget, cell, output."""
    w, r = constants[names[1]], constants[names[2]]
    order = [row for gate in (0, 2, 3, 1) for row in range(gate * hidden, (gate + 1) * hidden)]
    weights = []
    for direction in range(len(w)):
        bias = constants[names[3]][direction] if names[3] else np.zeros(8 * hidden, w.dtype)
        weights += [w[direction][order], r[direction][order], bias[: 4 * hidden][order], bias[4 * hidden :][order]]
    return weights


_OPS: Mapping[str, _Translator] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    CAUSAL: _causal_mask,
    "Clip": _clip,
    "Concat": lambda t, node: t.call(torch.cat, t.operands(node), node.attrs["axis"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": _div,
    "Erf": _plain(torch.erf),
    "Exp": _plain(torch.exp),
    "Expand": lambda t, node: t.call(torch.broadcast_to, t.operands(node)[0], tuple(node.attrs["shape"])),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(functional.hardswish),
    "Identity": lambda t, node: t.operands(node)[0],
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
    "Log": _plain(torch.log),
    "MatMul": _plain(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "Pow": _plain(torch.pow),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceSum": _reduce(torch.sum),
    "Relu": _plain(torch.relu),
    "Reshape": lambda t, node: t.call(torch.reshape, t.operands(node)[0], tuple(node.attrs["shape"])),
    "Sigmoid": _plain(torch.sigmoid),
    "Silu": _plain(functional.silu),
    "Slice": _slice,
    "Softmax": lambda t, node: t.call(torch.softmax, t.operands(node)[0], node.attrs["axis"]),
    "Split": _split,
    "Sqrt": _plain(torch.sqrt),
    "Sub": _plain(torch.sub),
    "Tanh": _plain(torch.tanh),
    "Transpose": lambda t, node: t.call(torch.permute, t.operands(node)[0], tuple(node.attrs["perm"])),
    "Where": _plain(torch.where),
}
"""ONNX op -> how it is translated."""
