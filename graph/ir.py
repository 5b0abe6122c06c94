"""Graph: a model as nodes over tensors, with every name its own.

Tensors are called `v0, v1, ...`: names from the model live only in `Graph.inputs`, `Graph.outputs` and `Node.names`,
as data for the user's side, and in `Node.place`, quoted for messages. Read `Graph` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType

Array = NDArray[np.generic]

FLOAT_DTYPES = frozenset(dtype.value for dtype in DType if dtype.is_float)
"""The element types of floating-point numbers."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (numpy's name, or "string") and shape; shape None where only running the model tells."""

    dtype: str
    shape: tuple[int, ...] | None

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES

    @property
    def size_bytes(self) -> int:
        """Its size in memory; 0 where that is not known, or kernels don't know its element type."""
        dtype = DType.of(self.dtype)
        return 0 if dtype is None or self.shape is None else prod(self.shape) * dtype.size_bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{'?' if self.shape is None else ', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call. An absent optional input is the empty string.

    `attrs` holds plain values (int, float, str, tuples of them), numpy arrays, and, for control flow, ONNX graphs as
    serialised bytes. `domain` is ONNX's ("" for the standard set), `version` its opset. `place` is for messages: which
    node of the model it is, where it is one. `bodies` has the graphs among the attributes as `Body`, where they could
    be read. `names` are those of the model's nodes that it does the work of, as far as is known.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    version: int = 0
    place: str = field(default="", compare=False, repr=False)
    bodies: Mapping[str, Body] = field(default_factory=dict, compare=False, repr=False)
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)  # hostile texts

    @property
    def attrs_key(self) -> tuple[tuple[str, Any], ...]:
        """The attributes as a key: equal only for equal values."""
        return tuple(sorted((name, _key(value)) for name, value in self.attrs.items()))

    def input(self, position: int) -> str:
        """The input there; "" if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def output(self, position: int) -> str:
        """The output there; "" if it is absent."""
        return self.outputs[position] if position < len(self.outputs) else ""

    def __str__(self) -> str:
        attrs = "".join(f" {k}={v}" for k, v in self.attrs.items() if not isinstance(v, bytes | np.ndarray))
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)}){attrs}"


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return ("float", value.hex())  # -0 is another value than 0
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes() if value.dtype.kind != "O" else tuple(value.flat))
    return (type(value).__name__, value)


Keys = tuple[int, ...] | tuple[str, ...]
"""The keys of a dict: labels of classes."""


@dataclass(frozen=True, slots=True)
class MapInput:
    """An input that is given as a dict, and how it becomes the row `[1, n]` that its tensor is.

    Keys and values are of these element types. The row has the values of `keys`, `absent` where the dict has none: a
    text in a row of texts, else 0; with None for keys all values, by their keys in order.
    """

    key: str  # "string" or "int64"
    value: str
    keys: Keys | None  # hostile texts
    absent: str = ""


@dataclass(frozen=True, slots=True)
class GraphPort:
    """An input or output of the model: the user's name for a tensor.

    An input with a `map` is given as a dict, of which the tensor is a row. An output with `keys` is given as a dict for
    each row: keys, and the elements of the row.
    An output of a body is decisive where a step function outside reads it: its last bits must not change.

    `sizes` are axes of an output whose extent only a run tells, with the places among the outputs of the int64 tensors
    that hold it; the extent in the tensor's type is a bound then. Those outputs have `is_size`: the model has them not.
    """

    label: str  # hostile text: shown to people, never used in code, file names or SQL
    tensor: str
    is_decisive: bool = False
    keys: Keys = ()  # hostile texts
    sizes: tuple[tuple[int, int], ...] = ()
    is_size: bool = False
    map: MapInput | None = None


@dataclass(frozen=True, slots=True)
class DefaultInput:
    """A weight that is an input of the model too, whose value is the input's default."""

    label: str  # hostile text
    kind: TensorType


@dataclass(frozen=True, slots=True)
class BoundInput:
    """An input that was given its value when the model was read; `place` is its place among all inputs of the model."""

    label: str  # hostile text
    place: int
    value: Array


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order that computes them; `constants` holds the tensors whose values are known.

    `defaults` are the constants that are inputs of the model too, `bound` the inputs that were given their values when
    it was read. `has_external_data`: whether constants were read from other files than the model's.

    The owner of a graph may remove constants that nothing needs any more: they are most of its memory.
    """

    inputs: tuple[GraphPort, ...]
    outputs: tuple[GraphPort, ...]
    nodes: tuple[Node, ...]
    constants: MutableMapping[str, Array]
    types: Mapping[str, TensorType]
    defaults: tuple[DefaultInput, ...] = ()
    bound: tuple[BoundInput, ...] = ()
    has_external_data: bool = False

    def type(self, tensor: str) -> TensorType:
        """The type of a tensor. Raises KeyError."""
        return self.types[tensor]

    def described_as(self, origin: Graph) -> Graph:
        """The graph with what `origin` tells of the model it was made from."""
        return replace(self, defaults=origin.defaults, bound=origin.bound, has_external_data=origin.has_external_data)

    def float_tensors(self, names: Iterable[str]) -> Iterator[str]:
        """The tensors of floats among some names, of which "" is none."""
        return (name for name in names if name and self.types[name].is_float)

    def producers(self) -> dict[str, Node]:
        """Tensor -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """Tensor -> the nodes that read it, once per operand; tensors that nobody reads are absent."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    readers.setdefault(name, []).append(node)
        return readers

    def __str__(self) -> str:
        lines = [f"input {v.tensor}: {self.types[v.tensor]}" for v in self.inputs]
        lines += [f"{node}  # {', '.join(str(self.types[o]) for o in node.outputs if o)}" for node in self.nodes]
        return "\n".join([*lines, f"return {', '.join(v.tensor for v in self.outputs)}"])


@dataclass(frozen=True, slots=True)
class Body:
    """A graph that control flow runs. Its last inputs are `captures`: inputs of the node, by their position there."""

    graph: Graph
    captures: tuple[int, ...] = ()
