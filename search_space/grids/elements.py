"""Elements: a piece as a launch in which each thread computes a few neighbours of what is written.

    block, thread                      number = block * threads + thread
      if number < total                where the last block has threads to spare
        sums[vector] = identity        registers
        reduce loops                   the innermost unrolled
          sums = fold(sums, body)
        output[place(number)] = finish(sums)

Threads of a warp write neighbours along the axis that is contiguous in the output, so that what they write together is
one access to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.expr import Expr, Load, Var, const, op, substitute, transform
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, LoopKind, Scope, Stmt, Store, replaced
from tunewright.codegen.lanes import lined, vectorize
from tunewright.graph.task import COMBINERS, Axis, identity

from ..nests.digits import places
from ..nests.phases import contiguous
from ..nests.pieces import Piece

SUMS = "sums"
"""The registers of what is folded."""

PLAIN_THREADS = 256
"""Of a block, where nothing is chosen."""


def ordered(piece: Piece) -> tuple[Axis, ...]:
    """The axes of what a piece writes, the one that is contiguous in the output last."""
    axes = piece.stage.axes
    last = next((axis for axis in axes if contiguous(piece.index, axis.name)), None)
    return axes if last is None else (*(axis for axis in axes if axis is not last), last)


def spread(value: Expr, at: Mapping[str, Expr], last: str, wide: int) -> Expr:
    """A value at a place, by axis, and at `wide` neighbours of it along the axis `last`."""
    rest = {name: place for name, place in at.items() if name != last}
    return vectorize(substitute(value, rest), last, at[last], wide)


def launch(body: Callable[[Expr], Stmt], total: int, threads: int) -> Stmt:
    """So many threads, each with a number, in blocks of `threads`: the last has threads to spare."""
    number = Var("block") * threads + Var("thread")
    blocks, stmt = -(-total // threads), body(number)
    if blocks * threads > total:
        stmt = If(op("lt", number, total), stmt)
    return For("block", blocks, For("thread", threads, stmt, LoopKind.THREAD), LoopKind.BLOCK)


@dataclass(frozen=True, slots=True)
class Elements:
    """A piece and the numbers of its launch. `vector` divides the extent of the last of `axes`."""

    piece: Piece
    threads: int  # of a block
    vector: int  # neighbours that a thread computes
    unroll: int = 1  # copies of the body

    @property
    def axes(self) -> tuple[Axis, ...]:
        """See `ordered`."""
        return ordered(self.piece)

    @property
    def total(self) -> int:
        """Threads that are needed."""
        return prod(axis.extent for axis in self.axes) // self.vector

    def lower(self) -> Stmt:
        """The launch."""
        return launch(lambda n: self._thread(places(self.axes, n, self.vector)), self.total, self.threads)

    def _thread(self, at: Mapping[str, Expr]) -> Stmt:
        stage = self.piece.stage
        if not stage.reduce:
            return self._written(self._spread(self.piece.finished(stage.body), at), at)
        dtype = stage.body.dtype
        sums = Buffer(SUMS, (self.vector,), dtype, Scope.REGISTER)
        index = (lined(const(0), self.vector),)
        total = Load(SUMS, index, dtype)
        body = self._spread(stage.body, at)
        fold: Stmt = Store(SUMS, index, op(COMBINERS[stage.combiner], total, body))
        finish = self._spread(self.piece.finish, at)
        result = transform(finish, lambda node: total if self.piece.is_result(node) else node)
        start = Store(SUMS, index, const(identity(stage.combiner, dtype), dtype))
        return Alloc(sums, Block((start, self._reduced(stage.reduce, fold), self._written(result, at))))

    def _spread(self, value: Expr, at: Mapping[str, Expr]) -> Expr:
        """A value of the piece at the places of a thread, as many neighbours as it computes."""
        return spread(value, at, self.axes[-1].name, self.vector) if at else value

    def _reduced(self, reduce: Sequence[Axis], body: Stmt) -> Stmt:
        """The loops of a fold; of the innermost, copies of the body, and those that are left over."""
        *outer, last = reduce
        copies = min(self.unroll, last.extent)
        whole, left = divmod(last.extent, copies)
        steps: list[Stmt] = []
        if copies == 1:
            steps.append(For(last.name, last.extent, body))
        else:
            inner = "copy"
            at = {last.name: Var("round") * copies + Var(inner)}
            steps.append(For("round", whole, For(inner, copies, replaced(body, at), LoopKind.UNROLL)))
            if left:
                rest = {last.name: Var(inner) + whole * copies}
                steps.append(For(inner, left, replaced(body, rest), LoopKind.UNROLL))
        loops: Stmt = Block(tuple(steps))
        for axis in reversed(outer):
            loops = For(axis.name, axis.extent, loops)
        return loops

    def _written(self, value: Expr, at: Mapping[str, Expr]) -> Stmt:
        """Store what was computed."""
        index = tuple(self._spread(place, at) for place in self.piece.index)
        return Store(self.piece.output, index, value)


def plain_launch(piece: Piece) -> Stmt:
    """A piece as a launch without a choice of its own."""
    written = prod(axis.extent for axis in piece.stage.axes)
    return Elements(piece, min(PLAIN_THREADS, -(-written // WARP) * WARP), 1).lower()
