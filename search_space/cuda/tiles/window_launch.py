"""Window launch: a fold over windows, a few neighbouring ones of some channels for each thread.

block, thread                          a tile of windows each, the channels moving first
  sums[rows, columns, channels]        registers
  for each row under the tile          unrolled, as all that follows
    line[columns, channels]            registers; each element is read once, left out where it is padding
    for each window that it belongs to
      sums = fold(sums, line)
  output[tile] = epilogue(sums)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, const, op, substitute, transform
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, If, Scope, Stmt, Store
from tunewright.graph.task import identity

from ...axes import unravel
from ...patterns.windows import (
    InputRow,
    Windows,
    fold_element,
    tap_uses,
)
from .element_launch import SUMS, launch, vectorize_at
from .sides import guard_extent

LINE = "line"
"""The registers of an input row."""


@dataclass(frozen=True, slots=True)
class WindowLaunch:
    """A fold over windows and the numbers of its launch."""

    windows: Windows
    rows: int  # windows of a thread: down
    columns: int  # across
    channels: int  # neighbours of each; divides the task's
    threads: int  # of a block

    @property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each dimension, rows and columns last, and along the channels."""
        windows = self.windows
        others = (dim.extent for dim in windows.outer_dims)
        down, across = -(-windows.rows.extent // self.rows), -(-windows.columns.extent // self.columns)
        return (*others, down, across, windows.channels.extent // self.channels)

    def lower(self) -> Stmt:
        """The loops of the launch."""
        return launch(
            lambda number: _ThreadTile(self, *unravel(number, self.counts)).lower(), prod(self.counts), self.threads
        )


class _ThreadTile:
    """The windows of one thread."""

    def __init__(self, numbers: WindowLaunch, *tile: Expr) -> None:
        self.numbers, self.windows = numbers, numbers.windows
        *self.others, row, column, channel = tile
        self.row, self.column = row * numbers.rows, column * numbers.columns
        self.channel = channel * numbers.channels
        self.fused_stage = self.windows.fused_stage

    @cached_property
    def _column_uses(self) -> Mapping[int, list[tuple[int, int]]]:
        """The input columns under the tile, with their windows and taps."""
        columns = self.windows.columns
        return tap_uses(columns, [range(columns.taps)] * self.numbers.columns)

    def lower(self) -> Stmt:
        """The statements of a thread."""
        numbers, combiner = self.numbers, self.fused_stage.stage.combiner
        start = const(identity(combiner, DType.F32), DType.F32)
        steps: list[Stmt] = [Store(SUMS, self._sum(*place).index, start) for place in self._windows()]
        for line in InputRow.all(self.windows, numbers.rows):
            steps += [*self._read(line), *self._fold(line)]
        steps += [self._write(*place) for place in self._windows()]
        stmt: Stmt = Block(tuple(steps))
        for name, shape in ((LINE, (len(self._column_uses),)), (SUMS, (numbers.rows, numbers.columns))):
            stmt = Alloc(Buffer(name, (*shape, numbers.channels), DType.F32, Scope.REGISTER), stmt)
        return stmt

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Row and column of each window of the tile."""
        return ((row, column) for row in range(self.numbers.rows) for column in range(self.numbers.columns))

    def _lanes(self, name: str, *place: int) -> Load:
        """All channels at an index in registers."""
        return Load(name, (*map(const, place), ramp(const(0), self.numbers.channels)), DType.F32)

    def _sum(self, row: int, column: int) -> Load:
        return self._lanes(SUMS, row, column)

    def _vectorize(self, value: Expr, at: Mapping[str, Expr]) -> Expr:
        """Vectorise a value along the thread's channels."""
        channels = self.windows.channels.name
        return vectorize_at(value, {**at, channels: self.channel}, channels, self.numbers.channels)

    def _read(self, line: InputRow) -> Iterator[Stmt]:
        """Load one input row; padding gets the value that leaves a fold unchanged."""
        windows, columns = self.windows, self.windows.columns
        padding = const(windows.border, DType.F32)
        at, is_row = line.locate(self.windows, self.numbers.rows, self.others, self.row)
        last = (self.numbers.counts[-2] - 1) * self.numbers.columns * columns.stride
        for number, offset in enumerate(self._column_uses):
            position = self.column * columns.stride + offset
            element = self._vectorize(windows.element, {**at, columns.position: position})
            place = self._lanes(LINE, number).index
            read = Store(LINE, place, op("cast", element, dtype=DType.F32))
            guard = op("and", is_row, columns.guard(position, offset, last + offset))
            if guard != const(True):
                yield Store(LINE, place, padding)
            if guard != const(False):
                yield read if guard == const(True) else If(guard, read)

    def _fold(self, line: InputRow) -> Iterator[Stmt]:
        """Fold an input row into each window that it belongs to."""
        windows, stage = self.windows, self.fused_stage.stage
        outside = windows.surroundings
        along = (*windows.outer_dims, windows.rows, windows.columns)
        for row, row_tap in line.windows:
            for number, uses in enumerate(self._column_uses.values()):
                for column, tap in uses:
                    taps = zip(along, (*line.taps, row_tap, tap), strict=True)
                    term = substitute(outside, {d.tap: const(value) for d, value in taps})
                    total, element = self._sum(row, column), self._lanes(LINE, number)
                    fold = fold_element(stage.combiner, total, self._vectorize(term, {}), element)
                    yield Store(SUMS, total.index, fold)

    def _write(self, row: int, column: int) -> Stmt:
        """Write one window of all channels, after its epilogue."""
        windows, fused_stage, total = self.windows, self.fused_stage, self._sum(row, column)
        at = {d.axis: place for d, place in zip(windows.outer_dims, self.others, strict=True)}
        at |= {windows.rows.axis: self.row + row, windows.columns.axis: self.column + column}
        epilogue = transform(
            self._vectorize(fused_stage.epilogue, at), lambda node: total if fused_stage.is_result(node) else node
        )
        stmt: Stmt = Store(
            fused_stage.output, tuple(self._vectorize(index, at) for index in fused_stage.index), epilogue
        )
        if row:
            stmt = guard_extent(at[windows.rows.axis], windows.rows.extent, self.numbers.rows, stmt)
        return (
            guard_extent(at[windows.columns.axis], windows.columns.extent, self.numbers.columns, stmt)
            if column
            else stmt
        )
