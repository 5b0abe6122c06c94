"""PackedWeights: weights in the layouts that kernels read, for a model that one process compiles at several sizes."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.ir.ir import Packing

from .image import Array

Key = tuple[str, str, tuple[int, ...], Packing | None]


class PackedWeights:
    """Packed weights by what they were and how they were packed: those of the last two sizes, as they take memory.

    Reading a weight takes less than packing it again.
    """

    def __init__(self) -> None:
        self._blocks: dict[Key, NDArray[np.uint8]] = {}
        self._earlier: dict[Key, NDArray[np.uint8]] = {}

    @staticmethod
    def key(weight: Array, shape: tuple[int, ...], packing: Packing | None) -> Key:
        """What tells a layout of a weight, which a task sees under a shape."""
        content = np.ascontiguousarray(weight)
        return hashlib.sha256(content.data.cast("B")).hexdigest(), str(weight.dtype), shape, packing

    def begin_size(self) -> None:
        """Begin another size: what the one before the last had is forgotten."""
        self._earlier, self._blocks = self._blocks, {}

    def get(self, key: Key) -> NDArray[np.uint8] | None:
        """The block of a layout, if it was put at this size or the last."""
        return self._blocks.get(key, self._earlier.get(key))

    def put(self, key: Key, block: NDArray[np.uint8]) -> None:
        """Keep a block of this size, which nobody changes any more."""
        self._blocks[key] = block
