"""Axes as loops go through them: in runs of tiles, and several at once by one flat index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TypeVar

from tunewright.codegen.expr.expr import Expr
from tunewright.codegen.expr.symbolic import is_symbolic
from tunewright.graph.task import Axis

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The indices start .. stop - 1. Where they are symbolic, `range` would make them plain."""

    start: int
    stop: int

    @property
    def extent(self) -> int:
        """How many there are."""
        return self.stop - self.start

    def __contains__(self, index: int) -> bool:
        return self.start <= index < self.stop


@dataclass(frozen=True, slots=True)
class TileRun:
    """Neighbouring tiles of one size along an axis: tile t begins at t * size + offset."""

    first: int  # number of the first tile
    count: int
    size: int
    offset: int = 0

    @property
    def start(self) -> int:
        """Where the first tile begins."""
        return self.first * self.size + self.offset

    @property
    def numbers(self) -> range:
        """The numbers of its tiles."""
        return range(self.first, self.first + self.count)


def balance(extent: int, size: int) -> int:
    """The most even size of tiles, where as many cover an extent as of `size`."""
    return -(-extent // -(-extent // size))


def runs(extent: int, size: int) -> list[TileRun]:
    """Tiles that cover an extent, of a balanced size or one less: those of few rows keep a machine least busy."""
    tiles = -(-extent // size)
    small = tiles * size - extent
    full = tiles - small
    # Of a symbolic extent there may be smaller tiles or none, which one code is for.
    are_smaller = size > 1 if is_symbolic(extent) else small > 0
    return [TileRun(0, full, size), *([TileRun(full, small, size - 1, full)] if are_smaller else [])]


def runs_alike(numbers: Iterable[int], key: Callable[[int], T]) -> Iterator[tuple[int, int, T]]:
    """The runs of numbers in a row that have the same key: the first number, how many there are, and the key."""
    for what, group in groupby(numbers, key):
        run = list(group)
        yield run[0], len(run), what


def unravel(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """The index along each axis of a flat index below the product of the extents; the last axis moves first."""
    total = stride = prod(extents)
    indices = []
    for extent in extents:
        stride //= extent
        outer = number // stride
        indices.append(outer if stride * extent == total else outer % extent)
    return indices


def axis_indices(axes: Sequence[Axis], number: Expr, wide: int = 1) -> dict[str, Expr]:
    """The index along each axis of a flat index.

    It counts groups of `wide` neighbours along the last axis, whose extent that divides: the place is of the first.
    """
    if not axes:
        return {}
    extents = [axis.extent for axis in axes]
    extents[-1] //= wide
    indices = unravel(number, extents)
    indices[-1] = indices[-1] * wide
    return {axis.name: index for axis, index in zip(axes, indices, strict=True)}
