"""Definition: the computation of one node, written as stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

from tunewright.codegen.expr.dtype import FLOATS, INTEGERS, DType
from tunewright.codegen.expr.expr import Const, Expr, Var, const, op

from ..ir import Array, Node, TensorType
from ..rounding import has_exact_inverse
from ..task import SMALL, Axis, Index, Stage, Tensor, load

ARITHMETIC = (*FLOATS, *INTEGERS)
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
class TensorView:
    """No compute: `output` is memory of `input`, all of it under another shape, or what begins at an offset."""

    input: str
    output: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemorySlice:
    """The memory within a tensor of the graph that begins at an offset."""

    of: str
    offset_bytes: int


Place = MemorySlice | str
"""The memory of a tensor of a computation: a slice of a tensor's, or a whole tensor's by its name."""


@dataclass(frozen=True, slots=True)
class RoundBody:
    """One computation of a round, and the names of its outputs."""

    compute: Compute
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Computations repeated in rounds, each round on other memory: the tasks are the same in each round.

    `places` has for each round the memory of the tensors that differ from round to round; all others are the graph's.
    Names that the graph does not have stand for memory that no one else uses. `outputs` of the node that no
    computation writes as a whole are parts of others.
    """

    bodies: tuple[RoundBody, ...]
    places: tuple[Mapping[str, Place], ...]
    outputs: Mapping[str, MemorySlice]


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

    def constant_input(self, position: int) -> Array | None:
        """The value of an input, if it is a constant."""
        return self.constants.get(self.node.inputs[position]) if self.has(position) else None

    def scalar(self, position: int) -> float | None:
        """The value of a constant input of one element; None if it is none."""
        value = self.constant_input(position)
        return float(value.item()) if value is not None and value.size == 1 else None

    def require(self, condition: bool, reason: str) -> None:
        """Raise NotNative unless the condition holds."""
        if not condition:
            raise NotNative(f"{self.node.op}: {reason}")

    # Tensors

    def has(self, position: int) -> bool:
        """Whether the node has an input there."""
        return bool(self.node.input(position))

    def input(self, position: int, *dtypes: DType) -> Tensor:
        """The input there. Raises NotNative if it is absent or has none of the element types (if any are given)."""
        self.require(self.has(position), f"input {position} is missing")
        return self._tensor(self.node.inputs[position], dtypes)

    def optional(self, position: int, *dtypes: DType) -> Tensor | None:
        """The input there, or None."""
        return self.input(position, *dtypes) if self.has(position) else None

    def inputs(self, *dtypes: DType) -> list[Tensor]:
        """All inputs of a variadic node."""
        return [self.input(position, *dtypes) for position in range(len(self.node.inputs))]

    def output(self, position: int = 0) -> Tensor:
        """The output there. Raises NotNative if the node does not have it."""
        self.require(self.has_output(position), f"output {position} is missing")
        return self._tensor(self.node.outputs[position], ())

    def has_output(self, position: int) -> bool:
        """Whether the node has that output."""
        return bool(self.node.output(position))

    def _tensor(self, name: str, dtypes: tuple[DType, ...]) -> Tensor:
        if name not in self.tensors:
            kind = self.types[name]
            self.require(kind.shape is not None, "a shape is known only at run time")
            dtype = DType.of(kind.dtype)
            if dtype is None:
                raise NotNative(f"{self.node.op}: no kernels for {kind.dtype}")
            shape = kind.shape or ()
            self.require(0 not in shape, "an empty tensor")
            constant = self.constants.get(name)
            small = dtype is DType.I8 and constant is not None and _is_small(constant)
            self.tensors[name] = Tensor(name, shape, dtype, constant is not None, small)
        tensor = self.tensors[name]
        self.require(not dtypes or tensor.dtype in dtypes, f"{tensor.dtype} operand")
        return tensor

    def reshape(self, tensor: Tensor, shape: Iterable[int]) -> Tensor:
        """The tensor under another shape, which it then has in the whole definition.

        Raises NotNative if the node has it as another operand too, of which that shape need not be right.
        """
        shape = tuple(shape)
        self.require(shape == tensor.shape or self.node.inputs.count(tensor.name) < 2, "an operand in two shapes")
        if prod(shape) != prod(tensor.shape):
            raise ValueError(f"{tensor} has no shape {shape}")
        self.tensors[tensor.name] = replace(tensor, shape=shape)
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


def _is_small(array: Array) -> bool:
    """Whether no number of it is beyond SMALL."""
    return bool(array.min() >= -SMALL and array.max() <= SMALL)


def _axes(prefix: str, shape: Sequence[int]) -> tuple[tuple[Axis, ...], list[Expr]]:
    axes = tuple(Axis(f"{prefix}{d}", extent) for d, extent in enumerate(shape) if extent > 1)
    index: list[Expr] = [Var(f"{prefix}{d}") if extent > 1 else const(0) for d, extent in enumerate(shape)]
    return axes, index


OpDef = Callable[[Definition], TensorView | Rounds | None]
"""The definition of an op: it writes stages, or returns a TensorView or Rounds, or raises NotNative."""


def quotient(total: Expr, count: float) -> Expr:
    """A float32 divided by a number: multiplied by the inverse where that gives the same bits."""
    if has_exact_inverse(count, total.dtype):
        return total * (1 / count)
    return op("div", total, const(float(count), total.dtype))


def clamp(at: Expr, low: int, high: int, extent: int) -> tuple[Expr, list[Expr]]:
    """Clamp a place to 0 .. extent - 1; returns the place and the conditions that it was inside.

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


# Window: how kernels slide over an input with padding, strides and dilation.

T = TypeVar("T")  # what describes a dimension: its extent, or an index into it


@dataclass(frozen=True, slots=True)
class ActivationLayout:
    """The order of batch, channels and spatial dimensions of an activation."""

    channels_last: bool  # NHWC, as the importer arranges; else ONNX's own NCHW
    rank: int  # of the space

    @staticmethod
    def of(d: Definition, shape: Sequence[int]) -> ActivationLayout:
        """The layout of an activation of that shape."""
        return ActivationLayout(bool(d.attr("channels_last", 0)), len(shape) - 2)

    def parts(self, dims: Sequence[T]) -> tuple[T, Sequence[T], Sequence[T]]:
        """Batch, space, and channels, which may be several dimensions: groups and channels of a group."""
        if self.channels_last:
            return dims[0], dims[1 : 1 + self.rank], dims[1 + self.rank :]
        first = len(dims) - self.rank
        return dims[0], dims[first:], dims[1:first]

    def join(self, batch: T, space: Sequence[T], channels: Sequence[T]) -> list[T]:
        """The inverse of `parts`."""
        return [batch, *space, *channels] if self.channels_last else [batch, *channels, *space]


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding along each spatial dimension: output p, kernel place r reads input p * stride + r * dilation - before."""

    extents: tuple[int, ...]  # of the input
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]  # padding that the attributes ask for
    after: tuple[int, ...]

    @staticmethod
    def of(d: Definition, extents: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]) -> Window:
        """The window of a convolution or a pool, from its attributes."""
        d.require(d.attr("auto_pad", "NOTSET") == "NOTSET", "pads that are not worked out")
        pads = d.ints("pads")
        before, after = pads[: len(extents)], pads[len(extents) :]
        strides, dilations = d.ints("strides"), d.ints("dilations")
        return Window(tuple(extents), tuple(outputs), tuple(kernel), strides, dilations, before, after)

    @property
    def reach(self) -> tuple[int, ...]:
        """The extent of all windows together, along each dimension."""
        shapes = zip(self.outputs, self.kernel, self.strides, self.dilations, strict=True)
        return tuple((p - 1) * s + (k - 1) * w + 1 for p, k, s, w in shapes)

    def at(self, place: Sequence[Expr], tap: Sequence[Expr]) -> list[Expr]:
        """The index at which a kernel's tap reads the padded input."""
        terms = zip(place, self.strides, tap, self.dilations, strict=True)
        return [p * s + r * w for p, s, r, w in terms]

    def pad(self, d: Definition, layout: ActivationLayout, x: Tensor, value: Const) -> Tensor:
        """The input with `value` around it; itself where none is needed.

        It extends as far as windows reach, which is less than the padding asked for where the stride skips the rest,
        and more where the output is rounded up.
        """
        sides = zip(self.before, self.reach, self.extents, strict=True)
        if all(before == 0 and reach <= extent for before, reach, extent in sides):
            return x
        batch, _, channels = layout.parts(x.shape)
        padded = d.temporary(layout.join(batch, self.reach, channels), x.dtype)
        before = layout.join(0, self.before, [0] * len(channels))
        return d.write(padded, lambda i: padding(x, i, padded.shape, before, value))


def padding(x: Tensor, index: Index, shape: Sequence[int], before: Sequence[int], value: Expr) -> Expr:
    """The element at `index` of x with `value` around it: `before` of it in front of each dimension, up to `shape`."""
    place: list[Expr] = []
    conditions: list[Expr] = []
    for at, extent, front, own in zip(index, shape, before, x.shape, strict=True):
        position, bounds = clamp(op("sub", at, front), -front, extent - 1 - front, own)
        place.append(position)
        conditions += bounds
    return where_all(conditions, load(x, place), value)
