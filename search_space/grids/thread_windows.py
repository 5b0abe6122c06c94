"""Thread windows: a fold over windows as a launch in which each thread has a few neighbouring windows of some channels.

    block, thread                          a tile of windows each, the channels moving first
      sums[rows, columns, channels]        registers
      for each row under the tile          unrolled, as all that follows
        line[columns, channels]            registers; each element is read once, left out where it is padding
        for each window that it belongs to
          sums = fold(sums, line)
      output[tile] = finish(sums)

Neighbouring windows share most of what they read, which is then in registers instead of caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, const, op, substitute, transform
from tunewright.codegen.ir import Alloc, Block, Buffer, If, Scope, Stmt, Store
from tunewright.codegen.lanes import lined
from tunewright.graph.task import identity

from ..nests.digits import digits
from ..windows.windows import Line, Plan, around, folded_with, neutral, touching
from .elements import SUMS, launch, spread
from .sides import within

LINE = "line"
"""The registers of what is read of one row."""


@dataclass(frozen=True, slots=True)
class ThreadWindows:
    """A fold over windows and the numbers of its launch."""

    plan: Plan
    rows: int  # windows of a thread: down
    columns: int  # across
    channels: int  # neighbours of each; divides the task's
    threads: int  # of a block

    @property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each direction, rows and columns last, and along the channels."""
        plan = self.plan
        others = (direction.extent for direction in plan.others)
        down, across = -(-plan.rows.extent // self.rows), -(-plan.columns.extent // self.columns)
        return (*others, down, across, plan.channels // self.channels)

    def lower(self) -> Stmt:
        """The launch."""
        return launch(lambda number: _Tile(self, *digits(number, self.counts)).lower(), prod(self.counts), self.threads)


class _Tile:
    """The windows of one thread."""

    def __init__(self, numbers: ThreadWindows, *tile: Expr) -> None:
        self.numbers, self.plan = numbers, numbers.plan
        *self.others, row, column, channel = tile
        self.row, self.column = row * numbers.rows, column * numbers.columns
        self.channel = channel * numbers.channels
        self.piece = self.plan.windows.piece

    @cached_property
    def _under(self) -> Mapping[int, list[tuple[int, int]]]:
        """The columns of what is read under the tile: windows and taps that each is of."""
        columns = self.plan.columns
        return touching(columns, [range(columns.taps)] * self.numbers.columns)

    def lower(self) -> Stmt:
        """All that a thread does."""
        numbers, combiner = self.numbers, self.piece.stage.combiner
        start = const(identity(combiner, DType.F32), DType.F32)
        steps: list[Stmt] = [Store(SUMS, self._sum(*place).index, start) for place in self._places()]
        for line in Line.all(self.plan, numbers.rows):
            steps += [*self._read(line), *self._folded(line)]
        steps += [self._written(*place) for place in self._places()]
        stmt: Stmt = Block(tuple(steps))
        for name, shape in ((LINE, (len(self._under),)), (SUMS, (numbers.rows, numbers.columns))):
            stmt = Alloc(Buffer(name, (*shape, numbers.channels), DType.F32, Scope.REGISTER), stmt)
        return stmt

    def _places(self) -> Iterator[tuple[int, int]]:
        """Of the windows within the tile."""
        return ((row, column) for row in range(self.numbers.rows) for column in range(self.numbers.columns))

    def _lanes(self, name: str, *place: int) -> Load:
        """All channels of a place in registers."""
        return Load(name, (*map(const, place), lined(const(0), self.numbers.channels)), DType.F32)

    def _sum(self, row: int, column: int) -> Load:
        return self._lanes(SUMS, row, column)

    def _spread(self, value: Expr, at: Mapping[str, Expr]) -> Expr:
        """A value at a place, along the thread's channels."""
        channels = self.plan.windows.channels.name
        return spread(value, {**at, channels: self.channel}, channels, self.numbers.channels)

    def _read(self, line: Line) -> Iterator[Stmt]:
        """Bring one row; what is padding is what leaves a fold as it is."""
        found, columns = self.plan.windows, self.plan.columns
        padding = const(neutral(self.piece, found.read) or 0.0, DType.F32)
        at, is_row = line.located(self.plan, self.numbers.rows, self.others, self.row)
        last = (self.numbers.counts[-2] - 1) * self.numbers.columns * columns.stride
        for number, offset in enumerate(self._under):
            position = self.column * columns.stride + offset
            element = self._spread(found.element, {**at, columns.at: position})
            place = self._lanes(LINE, number).index
            read = Store(LINE, place, op("cast", element, dtype=DType.F32))
            guard = op("and", is_row, columns.guard(position, offset, last + offset))
            if guard != const(True):
                yield Store(LINE, place, padding)
            if guard != const(False):
                yield read if guard == const(True) else If(guard, read)

    def _folded(self, line: Line) -> Iterator[Stmt]:
        """Add what was read to each window that it belongs to."""
        plan, stage = self.plan, self.piece.stage
        outside = around(stage.body, plan.windows.read)
        along = (*plan.others, plan.rows, plan.columns)
        for row, row_tap in line.windows:
            for number, uses in enumerate(self._under.values()):
                for column, tap in uses:
                    taps = zip(along, (*line.taps, row_tap, tap), strict=True)
                    known = substitute(outside, {d.tap: const(value) for d, value in taps})
                    total, element = self._sum(row, column), self._lanes(LINE, number)
                    folded = folded_with(stage.combiner, total, self._spread(known, {}), element)
                    yield Store(SUMS, total.index, folded)

    def _written(self, row: int, column: int) -> Stmt:
        """Write one window of all channels, with what follows it."""
        plan, piece, total = self.plan, self.piece, self._sum(row, column)
        at = {d.axis: place for d, place in zip(plan.others, self.others, strict=True)}
        at |= {plan.rows.axis: self.row + row, plan.columns.axis: self.column + column}
        finish = transform(self._spread(piece.finish, at), lambda node: total if piece.is_result(node) else node)
        stmt: Stmt = Store(piece.output, tuple(self._spread(index, at) for index in piece.index), finish)
        if row:
            stmt = within(at[plan.rows.axis], plan.rows.extent, self.numbers.rows, stmt)
        return within(at[plan.columns.axis], plan.columns.extent, self.numbers.columns, stmt) if column else stmt
