"""Chunks: the parallel loop of a phase, whose iterations are a thread's at a time, and the tiles or rows in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tunewright.codegen.expr.expr import Expr, Var, const, op
from tunewright.codegen.ir.ir import For, If, LoopKind, Stmt, replace_variables
from tunewright.graph.task import Axis

from ...axes import axis_indices, unravel

CHUNK = "chunk"
"""The variable of the parallel loop."""


def chunk_loop(count: int, body: Stmt) -> Stmt:
    """The chunks of a phase, which the threads share; one alone takes no loop: its body has `chunk_number` 0."""
    return For(CHUNK, count, body, LoopKind.PARALLEL) if count > 1 else body


def chunk_number(count: int) -> Expr:
    """The number of a chunk, of so many."""
    return Var(CHUNK) if count > 1 else const(0)


def chunk_indices(counts: Sequence[int]) -> list[Expr]:
    """The number of a chunk along each axis, where there are so many along each; the last axis moves first."""
    indices = unravel(Var(CHUNK), counts)
    return [index if count > 1 else const(0) for count, index in zip(counts, indices, strict=True)]


@dataclass(frozen=True, slots=True)
class TileAxis:
    """Tiles along an axis, some in each chunk. The last tile may be smaller, and the last chunk may have fewer."""

    extent: int
    size: int  # of a tile
    block: int  # tiles in a chunk; 0 for all

    @property
    def tiles(self) -> int:
        """Number of tiles, the smaller one included."""
        return -(-self.extent // self.size)

    @property
    def tiles_per_chunk(self) -> int:
        """Tiles in a chunk."""
        return min(self.block or self.tiles, self.tiles)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.tiles // self.tiles_per_chunk)

    @property
    def slots(self) -> int:
        """Tiles there would be if the last chunk were full."""
        return self.chunks * self.tiles_per_chunk

    def number(self, chunk: Expr, var: str) -> Expr:
        """The number of tile `var` of a chunk."""
        return chunk * self.tiles_per_chunk + (Var(var) if self.tiles_per_chunk > 1 else const(0))

    def loop(self, var: str, body: Stmt) -> Stmt:
        """The body for each tile of a chunk; one alone takes no loop."""
        return For(var, self.tiles_per_chunk, body) if self.tiles_per_chunk > 1 else body

    def guard(self, number: Expr, body: Stmt) -> Stmt:
        """The body where there is a tile of that number."""
        return If(op("lt", number, self.tiles), body) if self.tiles < self.slots else body


def row_loop(rows: Sequence[Axis], size: int, body: Stmt) -> Stmt:
    """A parallel loop of `body` over rows, `size` rows a chunk. In `body` the axes of the rows are variables."""
    along = TileAxis(prod(axis.extent for axis in rows), 1, size)
    row = along.number(chunk_number(along.chunks), "row")
    return chunk_loop(along.chunks, along.loop("row", along.guard(row, at_row(rows, row, body))))


def at_row(rows: Sequence[Axis], row: Expr, body: Stmt) -> Stmt:
    """`body` at a row, by its number."""
    return replace_variables(body, axis_indices(rows, row))
