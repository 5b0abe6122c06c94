"""Plan: a convolution in tiles of its output, and what they take."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tunewright.codegen.expr import Expr

from ..nests.digits import digits
from .convolution import TAPS, Convolution

TILES_PER_GROWTH = 4
"""Tiles from which on it takes less time to read the transformed weights than they save, by how many times as large
they are as the weights."""

TRANSFORM_OPS = 13
"""Multiply-adds that take as long as transforming one element of a channel, forth or back, on vectors of 512 bits."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A convolution in tiles of `m` by `m`, with vectors of `lanes`."""

    convolution: Convolution
    m: int
    lanes: int

    @property
    def side(self) -> int:
        """Extent of a tile of the input, and of what it is transformed to."""
        return self.convolution.stride * (self.m - 1) + TAPS

    @property
    def elements(self) -> int:
        """Matrix products."""
        return self.side**2

    @property
    def tiles(self) -> int:
        return prod(self.convolution.grid(self.m))

    @property
    def channels(self) -> int:
        return self.convolution.channels.extent

    @property
    def outputs(self) -> int:
        """Channels of the output."""
        return self.convolution.extent(self.convolution.product.vector)

    @property
    def output_vectors(self) -> int:
        return -(-self.outputs // self.lanes)

    @property
    def pays(self) -> bool:
        """Whether the multiplications that it saves take longer than the transforms and larger weights."""
        window = TAPS**2
        saved = (window * self.m**2 - self.elements) * self.channels * self.outputs
        transforms_ops = TRANSFORM_OPS * self.elements * (self.channels + self.outputs)
        return saved > transforms_ops and self.tiles * window >= TILES_PER_GROWTH * self.elements

    def local_bytes(self, tiles: Any, vectors: Any) -> Any:
        """Memory of a chunk of tiles: what is transformed, and the sums of one panel of channels. Takes arrays too."""
        return 4 * self.elements * tiles * (self.channels + vectors * self.lanes)

    def origin(self, tile: Expr) -> dict[str, Expr]:
        """Where a tile begins, by its number: all axes of the output but the channels."""
        found = self.convolution
        steps = [*((a.name, 1) for a in found.others), *((axis, self.m) for axis, _ in found.directions)]
        numbers = digits(tile, found.grid(self.m))
        return {name: number * step for (name, step), number in zip(steps, numbers, strict=True)}
