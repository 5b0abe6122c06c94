"""Definition: what one node computes, while it is being written down as stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const, op

from ..inverse import has_exact_inverse
from ..ir import Array, Node, TensorType
from ..task import Axis, Stage, Tensor

Index = Sequence[Expr]
"""One expression a dimension."""


ARITHMETIC = (DType.F32, DType.I64, DType.I32)
"""Element types that definitions calculate in."""


class NotNative(Exception):
    """A node has no compute definition. Says which attribute, type or shape stands in the way."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Stages over `tensors`: the node's own under their names in the graph, and temporaries.

    A tensor may have another shape here than in the graph, with the same elements in the same order.
    """

    stages: tuple[Stage, ...]
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class View:
    """No compute: `output` is memory of `input`, all of it under another shape, or what begins at an offset."""

    input: str
    output: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The memory within a tensor of the graph that begins at an offset."""

    of: str
    offset_bytes: int


Place = Part | str
"""Where a tensor of a computation is: a part of a tensor, or a whole one by its name."""


@dataclass(frozen=True, slots=True)
class Body:
    """One computation of a round, and which of its tensors it gives away."""

    compute: Compute
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Computations done in turn, again and again, each time on other memory: equal tasks, whatever the round.

    `places` says for each round where the tensors are that differ from round to round; all others are the graph's own.
    Names that the graph does not have stand for memory that no one else uses. `outputs` of the node that no
    computation writes as a whole are parts of others.
    """

    bodies: tuple[Body, ...]
    places: tuple[Mapping[str, Place], ...]
    outputs: Mapping[str, Part]


class Definition:
    """One node's attributes and tensors, and the stages written so far.

    Nodes are expected in the normal form of `onnx_import.normal`. One that the importer had to leave as it was, because
    a parameter is known only at run time, lacks what a definition asks for.

    Axes of extent 1 do not exist: a definition's body gets the constant 0 in their place. So a body is written once
    for all shapes, and definitions of the same computation look alike.
    """

    def __init__(self, node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> None:
        self.node = node
        self.stages: list[Stage] = []
        self.tensors: dict[str, Tensor] = {}
        self.types = types
        self.constants = constants
        self._temporaries = 0

    # Attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return self.node.attrs.get(name, default)

    def ints(self, name: str) -> tuple[int, ...]:
        """A parameter that is an attribute in the normal form. Raises NotNative if it is none: then it is not known."""
        value = self.node.attrs.get(name)
        self.require(isinstance(value, tuple), f"{name} is known only at run time")
        return tuple(map(int, value or ()))

    def known(self, position: int) -> Array | None:
        """The value of an input, if it is a constant."""
        return self.constants.get(self.node.inputs[position]) if self.has(position) else None

    def scalar(self, position: int) -> float | None:
        """The value of a constant input of one element; None if it is none."""
        value = self.known(position)
        return float(value.item()) if value is not None and value.size == 1 else None

    def require(self, condition: bool, reason: str) -> None:
        """Raise NotNative unless the condition holds."""
        if not condition:
            raise NotNative(f"{self.node.op}: {reason}")

    # Tensors

    def has(self, position: int) -> bool:
        """Whether the node has an input there."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def input(self, position: int, *dtypes: DType) -> Tensor:
        """The input there. Raises NotNative if it is absent or has none of the element types (if any are given)."""
        self.require(self.has(position), f"input {position} is missing")
        return self._tensor(self.node.inputs[position], dtypes)

    def optional(self, position: int, *dtypes: DType) -> Tensor | None:
        """The input there, or None."""
        return self.input(position, *dtypes) if self.has(position) else None

    def inputs(self, *dtypes: DType) -> list[Tensor]:
        """All inputs of a node with any number of them."""
        return [self.input(position, *dtypes) for position in range(len(self.node.inputs))]

    def output(self, position: int = 0) -> Tensor:
        """The output there. Raises NotNative if nobody wants it."""
        self.require(self.wanted(position), f"output {position} is missing")
        return self._tensor(self.node.outputs[position], ())

    def wanted(self, position: int) -> bool:
        """Whether the node has that output."""
        return position < len(self.node.outputs) and bool(self.node.outputs[position])

    def _tensor(self, name: str, dtypes: tuple[DType, ...]) -> Tensor:
        if name not in self.tensors:
            kind = self.types[name]
            self.require(kind.shape is not None, "a shape is known only at run time")
            dtype = DType.of(kind.dtype)
            if dtype is None:
                raise NotNative(f"{self.node.op}: no kernels for {kind.dtype}")
            shape = kind.shape or ()
            self.require(0 not in shape, "an empty tensor")
            self.tensors[name] = Tensor(name, shape, dtype, name in self.constants)
        tensor = self.tensors[name]
        self.require(not dtypes or tensor.dtype in dtypes, f"{tensor.dtype} operand")
        return tensor

    def viewed(self, tensor: Tensor, shape: Iterable[int]) -> Tensor:
        """The tensor under another shape, which it then has in the whole definition.

        Raises NotNative if the node has it as another operand too, of which that shape need not be right.
        """
        shape = tuple(shape)
        self.require(shape == tensor.shape or self.node.inputs.count(tensor.name) < 2, "an operand in two shapes")
        if prod(shape) != prod(tensor.shape):
            raise ValueError(f"{tensor} has no shape {shape}")
        self.tensors[tensor.name] = Tensor(tensor.name, shape, tensor.dtype, tensor.constant)
        return self.tensors[tensor.name]

    def temporary(self, shape: Iterable[int], dtype: DType) -> Tensor:
        """A new tensor between stages."""
        first = next(name for name in self.node.outputs if name)
        tensor = Tensor(f"{first}.{self._temporaries}", tuple(shape), dtype)
        self._temporaries += 1
        self.tensors[tensor.name] = tensor
        return tensor

    # Stages

    def write(self, output: Tensor, body: Callable[[Index], Expr]) -> Tensor:
        """Every element of `output` is `body` of its index."""
        axes, index = _axes("i", output.shape)
        self.stages.append(Stage(output.name, axes, body(index), index=tuple(index)))
        return output

    def write_part(
        self, output: Tensor, shape: Sequence[int], at: Callable[[Index], Index], body: Callable[[Index], Expr]
    ) -> None:
        """The elements of `output` at `at(index)`, for every index within `shape`, are `body(index)`."""
        axes, index = _axes("i", shape)
        self.stages.append(Stage(output.name, axes, body(index), index=tuple(at(index))))

    def fold(
        self, output: Tensor, combiner: str, extents: Iterable[int], body: Callable[[Index, Index], Expr]
    ) -> Tensor:
        """Every element of `output` is `body(its index, r)` folded over all r within `extents`."""
        axes, index = _axes("i", output.shape)
        reduce, inner = _axes("r", tuple(extents))
        value = body(index, inner)
        self.stages.append(
            Stage(output.name, axes, value, reduce=reduce, combiner=combiner if reduce else "", index=tuple(index))
        )
        return output


def _axes(prefix: str, shape: Sequence[int]) -> tuple[tuple[Axis, ...], list[Expr]]:
    axes = tuple(Axis(f"{prefix}{d}", extent) for d, extent in enumerate(shape) if extent > 1)
    index: list[Expr] = [Var(f"{prefix}{d}") if extent > 1 else const(0) for d, extent in enumerate(shape)]
    return axes, index


OpDef = Callable[[Definition], View | Rounds | None]
"""How an op is known: it writes the stages of a definition, or returns View or Rounds, or raises NotNative."""


def load(tensor: Tensor, index: Index) -> Expr:
    """One element. The index may have more dimensions in front and others where the tensor has 1: it broadcasts."""
    own = list(index)[len(index) - len(tensor.shape) :]
    place = tuple(const(0) if extent == 1 else at for at, extent in zip(own, tensor.shape, strict=True))
    return Load(tensor.name, place, tensor.dtype)


def quotient(total: Expr, count: float) -> Expr:
    """A float32 divided by a number, to the last bit: multiplied by the inverse where that is the same, and faster."""
    if has_exact_inverse(count, total.dtype):
        return total * (1 / count)
    return op("div", total, const(float(count), total.dtype))


def clamped(at: Expr, low: int, high: int, extent: int) -> tuple[Expr, list[Expr]]:
    """A place that may lie outside 0 .. extent - 1, moved inside, and the conditions that it was inside.

    `low` and `high` bound `at`, so that only the sides on which it can be outside are looked at.
    """
    inside: list[Expr] = []
    place = at
    if low < 0:
        inside.append(op("le", const(0), at))
        place = op("max", place, 0)
    if high >= extent:
        inside.append(op("lt", at, extent))
        place = op("min", place, extent - 1)
    return place, inside


def where_all(conditions: Sequence[Expr], value: Expr, otherwise: Expr) -> Expr:
    """`value` if all conditions hold."""
    if not conditions:
        return value
    condition = conditions[0]
    for more in conditions[1:]:
        condition = op("and", condition, more)
    return op("select", condition, value, otherwise)


def axis_of(axis: int, rank: int) -> int:
    """A dimension counted from either end, counted from the front."""
    return axis + rank if axis < 0 else axis
