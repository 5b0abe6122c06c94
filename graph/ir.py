"""Graph: a model as nodes over tensors, with every name its own.

Tensors are called `v0, v1, ...`: names from the model live only in `Graph.inputs` and `Graph.outputs`, as data for
the user's side, and in `Node.place`, quoted for messages. Read `Graph` first.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (numpy's name, or "string") and shape; shape None where only running the model tells."""

    dtype: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"{self.dtype}[{'?' if self.shape is None else ', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call. An absent optional input is the empty string.

    `attrs` holds plain values (int, float, str, tuples of them), numpy arrays, and, for control flow, ONNX graphs as
    serialised bytes. `domain` is ONNX's ("" for the standard set), `version` its opset. `place` is for messages: which
    node of the model it is, where it is one.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    version: int = 0
    place: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        attrs = "".join(f" {k}={v}" for k, v in self.attrs.items() if not isinstance(v, bytes | np.ndarray))
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)}){attrs}"


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of the model: the user's name for a tensor."""

    label: str  # hostile text: shown to people, never used in code, file names or SQL
    tensor: str


@dataclass(frozen=True, slots=True)
class Default:
    """A weight that is an input of the model too: its value is what the input has where nobody gives another."""

    label: str  # hostile text
    kind: TensorType


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order that computes them; `constants` holds the tensors whose values are known.

    `defaults` are what the model says that some of the constants are besides.

    Who has a graph for itself may take constants out when nothing needs them any more: they are most of its memory.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: MutableMapping[str, Array]
    types: Mapping[str, TensorType]
    defaults: tuple[Default, ...] = ()

    def type(self, tensor: str) -> TensorType:
        """The type of a tensor. Raises KeyError."""
        return self.types[tensor]

    def producers(self) -> dict[str, Node]:
        """Which node makes a tensor."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """Which nodes read a tensor, a node once for each time it does; tensors that nobody reads are absent."""
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
