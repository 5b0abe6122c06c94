"""Image: a compiled model as plain data. What is called in which order, and where in memory everything is.

`compiling.compile_model` makes one, `image_store` keeps them on disk, `execution.CompiledModel` runs one. Light to
import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact
from tunewright.graph.ir import Node, TensorType

Array = NDArray[np.generic]


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

    artifact: Artifact
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A node that has no kernel. `values` has its operands and results by name."""

    node: Node
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Image:
    """All that running a model takes. Steps run in order; `constants` is aligned to 64 bytes."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    rooms: Mapping[int, TensorType]  # memory of outputs, by number
    steps: tuple[KernelCall | Evaluation, ...]
    arena_bytes: int
    constants: NDArray[np.uint8] = field(repr=False)
    kept: tuple[Array, ...] = field(repr=False)
