"""Image: a compiled model as plain data. What is called in which order, and where in memory everything is.

`compiling.compile_model` makes one, `image_store` keeps them on disk, `execution.CompiledModel` runs one on a processor
and `device_model.DeviceModel` on a GPU. Light to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.dtype import DType
from tunewright.graph.ir import Node, TensorType

if TYPE_CHECKING:  # what a processor's sessions start without
    from tunewright.codegen.cuda.build import GpuArtifact

Array = NDArray[np.generic]

Built: TypeAlias = "Artifact | GpuArtifact"
"""A kernel for a processor or for a GPU. All of an image are of one kind."""


class Area(StrEnum):
    """Where tensors live."""

    ARENA = "arena"  # from the step that writes them to the last that reads them
    CONSTANTS = "constants"  # in the layouts that kernels read
    INPUT = "input"  # of the model: the caller's
    OUTPUT = "output"  # of the model: the caller's from then on
    KEPT = "kept"  # constants as the model has them: what fallbacks read, and those that are outputs


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a tensor begins: so many bytes into arena, constants, or the input, output or kept one of that number.

    Outputs may share memory, as views of each other; it has the number of the first.
    """

    area: Area
    offset_bytes: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that Python sees: an input, an output, an operand of a fallback.

    `spot` is None where no memory is planned: only running the model tells the shape, or kernels don't know the type.
    """

    kind: TensorType
    spot: Spot | None


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model. `label` is the model's name for it: hostile text."""

    label: str
    tensor: str
    value: Value


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel on the memory of its params, then its scratch."""

    artifact: Built
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Memory of a GPU copied there: to a place that kernels may read, or from one that they may write."""

    source: Spot
    to: Spot
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A node that has no kernel. `values` has its operands and results by name."""

    node: Node
    values: Mapping[str, Value]


Step = KernelCall | Copy | Evaluation


@dataclass(frozen=True, slots=True)
class Image:
    """All that running a model takes. Steps run in order; `constants` is aligned to 64 bytes."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    rooms: Mapping[int, TensorType]  # memory of outputs, by number
    steps: tuple[Step, ...]
    arena_bytes: int
    constants: NDArray[np.uint8] = field(repr=False)
    kept: tuple[Array, ...] = field(repr=False)


def size_bytes(kind: TensorType) -> int:
    """What a tensor takes in memory; 0 where that is not known, or kernels don't know its type."""
    dtype = DType.of(kind.dtype)
    return 0 if dtype is None or kind.shape is None else prod(kind.shape) * dtype.size_bytes


def seen(block: Array, value: Value) -> Array:
    """A tensor in a block of memory: bytes, or elements of its type."""
    assert value.spot is not None
    offset_bytes, shape = value.spot.offset_bytes, value.kind.shape or ()
    if value.spot.area in (Area.ARENA, Area.CONSTANTS):
        kind = DType(value.kind.dtype)
        return block[offset_bytes : offset_bytes + prod(shape) * kind.size_bytes].view(kind.numpy).reshape(shape)
    if not offset_bytes and block.shape == shape:
        return block
    first = offset_bytes // block.itemsize
    return block.reshape(-1)[first : first + prod(shape)].reshape(shape)
