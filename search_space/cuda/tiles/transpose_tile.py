"""Transpose tile: a fused stage that reads a tensor across, by tiles that are transposed in shared memory.

block                              the other axes, a tile of both
  thread                           a row of the tile and a place in it
    tile[row, place] = element     neighbours in the tensor that is read
    barrier
    output = f(tile[place, row])   neighbours in the output
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tunewright.codegen.expr.expr import Expr, Load, Var, substitute, transform
from tunewright.codegen.ir.ir import Alloc, Barrier, Block, Buffer, For, LoopKind, Scope, Stmt, Store

from ...axes import axis_indices, unravel
from ...patterns.transposition import Transposition
from .sides import guard_extent

TILE = "tile"


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """A transposition and the numbers of its launch."""

    transposition: Transposition
    extent: int  # of a tile, both ways
    each: int  # elements of a thread; divides the extent

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.extent * self.extent // self.each

    def lower(self) -> Stmt:
        """The loops of the launch."""
        transposition = self.transposition
        counts = [prod(axis.extent for axis in transposition.outer)]
        counts += [-(-axis.extent // self.extent) for axis in (transposition.read_axis, transposition.write_axis)]
        outer, down, across = unravel(Var("block"), counts)
        at = axis_indices(transposition.outer, outer)
        begin = {transposition.read_axis.name: down * self.extent, transposition.write_axis.name: across * self.extent}
        row, place = Var("thread") // self.extent, Var("thread") % self.extent
        rows = self.extent // self.each
        body = Block(
            (
                self._each(self._read(at, begin, Var("n") * rows + row, place)),
                Barrier(),
                self._each(self._write(at, begin, Var("n") * rows + row, place)),
            )
        )
        threads = For("thread", self.threads, body, LoopKind.THREAD)
        # One more element a row, so that a column lies in other banks from row to row.
        tile = Buffer(TILE, (self.extent, self.extent + 1), transposition.load.dtype, Scope.SHARED)
        return For("block", prod(counts), Alloc(tile, threads), LoopKind.BLOCK)

    def _each(self, stmt: Stmt) -> Stmt:
        return For("n", self.each, stmt, LoopKind.UNROLL)

    def _read(self, at: Mapping[str, Expr], begin: Mapping[str, Expr], row: Expr, place: Expr) -> Stmt:
        read_axis, write_axis = self.transposition.read_axis, self.transposition.write_axis
        indices = {**at, write_axis.name: begin[write_axis.name] + row, read_axis.name: begin[read_axis.name] + place}
        element = substitute(self.transposition.load, indices)
        return self._inside(indices, Store(TILE, (row, place), element))

    def _write(self, at: Mapping[str, Expr], begin: Mapping[str, Expr], row: Expr, place: Expr) -> Stmt:
        read_axis, write_axis, fused_stage = (
            self.transposition.read_axis,
            self.transposition.write_axis,
            self.transposition.fused_stage,
        )
        indices = {**at, read_axis.name: begin[read_axis.name] + row, write_axis.name: begin[write_axis.name] + place}
        element = Load(TILE, (place, row), self.transposition.load.dtype)
        value = fused_stage.apply_epilogue(fused_stage.stage.body)
        result = transform(value, lambda node: element if node == self.transposition.load else node)
        index = tuple(substitute(at, indices) for at in fused_stage.index)
        return self._inside(indices, Store(fused_stage.output, index, substitute(result, indices)))

    def _inside(self, indices: Mapping[str, Expr], stmt: Stmt) -> Stmt:
        for axis in (self.transposition.read_axis, self.transposition.write_axis):
            stmt = guard_extent(indices[axis.name], axis.extent, self.extent, stmt)
        return stmt
