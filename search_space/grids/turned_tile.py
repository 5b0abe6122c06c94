"""Turned tiles: a piece that reads a tensor across as a launch whose blocks turn tiles of it in shared memory.

    block                              the other axes, a tile of both
      thread                           a row of the tile and a place in it
        tile[row, place] = element     neighbours in the tensor that is read
        barrier
        output = f(tile[place, row])   neighbours in the output

Else either what is read or what is written would be one element of each line of memory that is moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tunewright.codegen.expr import Expr, Load, Var, substitute, transform
from tunewright.codegen.ir import Alloc, Barrier, Block, Buffer, For, LoopKind, Scope, Stmt, Store
from tunewright.graph.task import Axis

from ..nests.digits import digits, places
from ..nests.phases import contiguous
from ..nests.pieces import Piece
from .sides import within

TILE = "tile"


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece without a fold, and what it reads across: neighbours along `read` are some way apart in the output."""

    piece: Piece
    across: Load
    read: Axis  # contiguous in the tensor that is read
    written: Axis  # contiguous in the output

    @staticmethod
    def of(piece: Piece) -> Turn | None:
        """The turn of a piece, if it has one."""
        axes = piece.stage.axes
        written = next((axis for axis in axes if contiguous(piece.index, axis.name)), None)
        if piece.stage.reduce or written is None:
            return None
        for load in piece.reads:
            read = next((axis for axis in axes if contiguous(load.index, axis.name)), None)
            if read is not None and read is not written:
                return Turn(piece, load, read, written)
        return None

    @property
    def others(self) -> tuple[Axis, ...]:
        """The axes of the grid besides those two."""
        return tuple(axis for axis in self.piece.stage.axes if axis not in (self.read, self.written))


@dataclass(frozen=True, slots=True)
class TurnedTile:
    """A turn and the numbers of its launch."""

    turn: Turn
    extent: int  # of a tile, both ways
    each: int  # elements of a thread; divides the extent

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.extent * self.extent // self.each

    def lower(self) -> Stmt:
        """The launch."""
        turn = self.turn
        counts = [prod(axis.extent for axis in turn.others)]
        counts += [-(-axis.extent // self.extent) for axis in (turn.read, turn.written)]
        other, down, across = digits(Var("block"), counts)
        at = places(turn.others, other)
        begin = {turn.read.name: down * self.extent, turn.written.name: across * self.extent}
        row, place = Var("thread") // self.extent, Var("thread") % self.extent
        rows = self.extent // self.each
        body = Block(
            (
                self._each(self._read(at, begin, Var("n") * rows + row, place)),
                Barrier(),
                self._each(self._written(at, begin, Var("n") * rows + row, place)),
            )
        )
        threads = For("thread", self.threads, body, LoopKind.THREAD)
        # One more element a row, so that a column lies in other banks from row to row.
        tile = Buffer(TILE, (self.extent, self.extent + 1), turn.across.dtype, Scope.SHARED)
        return For("block", prod(counts), Alloc(tile, threads), LoopKind.BLOCK)

    def _each(self, stmt: Stmt) -> Stmt:
        return For("n", self.each, stmt, LoopKind.UNROLL)

    def _read(self, at: Mapping[str, Expr], begin: Mapping[str, Expr], row: Expr, place: Expr) -> Stmt:
        read, written = self.turn.read, self.turn.written
        here = {**at, written.name: begin[written.name] + row, read.name: begin[read.name] + place}
        element = substitute(self.turn.across, here)
        return self._inside(here, Store(TILE, (row, place), element))

    def _written(self, at: Mapping[str, Expr], begin: Mapping[str, Expr], row: Expr, place: Expr) -> Stmt:
        read, written, piece = self.turn.read, self.turn.written, self.turn.piece
        here = {**at, read.name: begin[read.name] + row, written.name: begin[written.name] + place}
        element = Load(TILE, (place, row), self.turn.across.dtype)
        value = piece.finished(piece.stage.body)
        turned = transform(value, lambda node: element if node == self.turn.across else node)
        index = tuple(substitute(at, here) for at in piece.index)
        return self._inside(here, Store(piece.output, index, substitute(turned, here)))

    def _inside(self, here: Mapping[str, Expr], stmt: Stmt) -> Stmt:
        for axis in (self.turn.read, self.turn.written):
            stmt = within(here[axis.name], axis.extent, self.extent, stmt)
        return stmt
