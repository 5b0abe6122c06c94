"""Image: a compiled model as plain data: its steps, and the locations of its tensors in memory.

`compile.compile_model` makes one, `image_store` keeps them on disk, `execution.CompiledModel` runs one on a processor
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
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.runtime.control import Control, Move
from tunewright.graph.ir import Keys, MapInput, Node, TensorType

if TYPE_CHECKING:  # what a processor's sessions start without
    from tunewright.codegen.cuda.build import GpuArtifact

Array = NDArray[np.generic]

KernelCode: TypeAlias = "Artifact | GpuArtifact"
"""A kernel for a processor or for a GPU. All of an image are of one kind."""


class Area(StrEnum):
    """Areas of memory."""

    ARENA = "arena"  # from the step that writes them to the last that reads them
    CONSTANTS = "constants"  # in the layouts that kernels read
    INPUT = "input"  # of the model: the caller's
    OUTPUT = "output"  # of the model: the caller's from then on
    KEPT = "kept"  # constants as the model has them: what fallbacks read, and those that are outputs


@dataclass(frozen=True, slots=True)
class Location:
    """The start of a tensor: an offset in the arena, the constants, or the numbered input, output or kept constant.

    Outputs may share memory, as views of each other; it has the number of the first. `moves` are those with the loops
    around the step, the outermost first.
    """

    area: Area
    offset_bytes: int = 0
    number: int = 0
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor that Python sees: an input, an output, an operand or result of nodes without a kernel.

    `location` is None where no memory is planned: only a run tells the shape, or kernels don't know the type.
    """

    kind: TensorType
    location: Location | None


@dataclass(frozen=True, slots=True)
class ImagePort:
    """An input or output of the model. `label` is the model's name for it: hostile text.

    `keys` and `map` are as in `GraphPort`. `sizes` are axes of an output with the places of the int64 that only a run
    makes, and up to which the output goes; extents in its type are their bounds.
    """

    label: str
    tensor: str
    value: TensorValue
    keys: Keys = ()
    sizes: tuple[tuple[int, Location], ...] = ()
    map: MapInput | None = None

    @property
    def kind(self) -> TensorType:
        """Its type."""
        return self.value.kind


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel on the memory of its params, then its scratch."""

    artifact: KernelCode
    locations: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Memory of a GPU copied there: to a place that kernels may read, or from one that they may write."""

    source: Location
    to: Location
    size_bytes: int


ControlCall = Control[Location]
"""Control flow of a processor, between kernels."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Nodes that have no kernel, one after the other. `inputs` are what they take, `outputs` what others take of them.

    `types` has the tensors between them too.
    """

    nodes: tuple[Node, ...]
    inputs: Mapping[str, TensorValue]
    outputs: Mapping[str, TensorValue]
    types: Mapping[str, TensorType]


Step = KernelCall | Copy | Evaluation | ControlCall


@dataclass(frozen=True, slots=True)
class Image:
    """All that running a model takes. Steps run in order.

    `constants` are blocks aligned to 64 bytes: the first has all small constants, each other one is a weight of
    WEIGHT_BYTES at least, which other images may have as well.
    """

    inputs: tuple[ImagePort, ...]
    outputs: tuple[ImagePort, ...]
    output_types: Mapping[int, TensorType]  # memory of outputs, by number
    steps: tuple[Step, ...]
    arena_bytes: int
    constants: tuple[NDArray[np.uint8], ...] = field(repr=False)
    kept: tuple[Array, ...] = field(repr=False)

    @property
    def constants_bytes(self) -> int:
        """The size of all constants."""
        return sum(block.nbytes for block in self.constants)


WEIGHT_BYTES = 1 << 20
"""Least size of a constant in a block of its own."""


def is_whole_output(image: Image, port: ImagePort) -> bool:
    """Whether an output has all of an output's memory, be it under another shape."""
    location = port.value.location
    if location is None or location.area is not Area.OUTPUT or location.offset_bytes:
        return False
    whole = image.output_types[location.number]
    return port.kind.dtype == whole.dtype and port.kind.size_bytes == whole.size_bytes


def view_of(block: Array, value: TensorValue) -> Array:
    """A tensor in a block of memory: bytes, or elements of its type."""
    assert value.location is not None
    offset_bytes, shape = value.location.offset_bytes, value.kind.shape or ()
    if value.location.area in (Area.ARENA, Area.CONSTANTS):
        kind = DType(value.kind.dtype)
        return block[offset_bytes : offset_bytes + prod(shape) * kind.size_bytes].view(kind.numpy).reshape(shape)
    if not offset_bytes and block.shape == shape:
        return block
    first = offset_bytes // block.itemsize
    return block.reshape(-1)[first : first + prod(shape)].reshape(shape)
