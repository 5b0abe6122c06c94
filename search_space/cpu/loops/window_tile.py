"""Window tiles: a few neighbouring windows by some vectors of channels, unrolled and folded into registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from tunewright.codegen.expr.expr import Const, Expr, Load, Ramp, const, free_vars, op, substitute
from tunewright.codegen.expr.index import Ranges, simplify
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, If, Scope, Stmt, Store
from tunewright.graph.task import fold_value, identity

from ...axes import runs_alike
from ...patterns.window_dim import WindowDim
from ...patterns.windows import InputRow, Windows, element_of, fold_element, tap_uses, with_element
from ...registers import ACC


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Neighbouring tiles along a dimension whose windows reach beyond the input at the same taps."""

    first: int
    count: int
    taps: tuple[tuple[int, ...], ...]  # of each window of the tile, those that are no padding

    @staticmethod
    def all(dim: WindowDim, size: int) -> list[ColumnRun]:
        """The tiles of `size` windows along a dimension, and the smaller last one."""
        tiles, whole = -(-dim.extent // size), dim.whole
        first, stop = -(-whole.start // size), whole.stop // size
        if first >= stop:
            return ColumnRun.at_edges(dim, size, 0, tiles)
        inside = ColumnRun(first, stop - first, (tuple(range(dim.taps)),) * size)
        return [*ColumnRun.at_edges(dim, size, 0, first), inside, *ColumnRun.at_edges(dim, size, stop, tiles - stop)]

    @staticmethod
    def at_edges(dim: WindowDim, size: int, first: int, count: int) -> list[ColumnRun]:
        """The runs of so many tiles, each of which is looked at."""

        def taps(tile: int) -> tuple[tuple[int, ...], ...]:
            place = tile * size
            windows = (place + n for n in range(min(size, dim.extent - place)))
            return tuple(tuple(t for t in range(dim.taps) if dim.is_inside(window, t)) for window in windows)

        return [ColumnRun(*run) for run in runs_alike((first + n for n in range(count)), taps)]


@dataclass(frozen=True, slots=True)
class ChannelVector:
    """One vector of channels: its first from that of the tile, its lanes, and how many are in use, None for all."""

    base: int
    lanes: int
    count: int | None

    @staticmethod
    def all(channels: int, lanes: int) -> list[ChannelVector]:
        """The vectors that cover so many channels; the last is as narrow as can be."""
        whole, rest = divmod(channels, lanes)
        parts = [ChannelVector(n * lanes, lanes, None) for n in range(whole)]
        if rest:
            narrow = max(2, 1 << (rest - 1).bit_length())
            parts.append(ChannelVector(whole * lanes, narrow, None if narrow == rest else rest))
        return parts


class WindowTile:
    """One tile: a few neighbouring windows, unrolled."""

    def __init__(
        self,
        windows: Windows,
        values: Mapping[str, int],
        lanes: int,
        run: ColumnRun,
        tiles: Sequence[Expr],  # its number along each dimension
        base: Expr,  # its first channel
        parts: Sequence[ChannelVector],
        ranges: Ranges,  # of the variables of loops
    ) -> None:
        self.windows, self.run, self.base, self.vectors, self.ranges = windows, run, base, parts, ranges
        self.stage = windows.fused_stage.stage
        self.height, self.width = values["tile_rows"], values["tile_columns"]
        *self.others, row, column = tiles
        self.row, self.column = row * self.height, column * self.width
        self.column_uses = tap_uses(windows.columns, run.taps)
        across = len(self.column_uses) if self.windows.is_plain else len(run.taps)
        self.surroundings = windows.surroundings
        self._term = cache(self._make_term)
        self.elements = [self._vectorize(self.windows.element, n) for n in range(len(parts))]  # at any position
        fused_stage = self.windows.fused_stage
        self.indices = [[self._vectorize(e, n) for e in fused_stage.index] for n in range(len(parts))]  # for any window
        self.epilogue_of_element = windows.epilogue
        self.is_moving = not {d.axis for d in windows.dims}.isdisjoint(free_vars(self.epilogue_of_element))
        self.epilogues: dict[int, Expr] = {}  # along the lanes, by vector
        shape = (self.height, max(across, 1), len(parts), lanes)
        self.acc = Buffer(ACC, shape, self.stage.body.dtype, Scope.REGISTER)
        self.slots = {place: self._slot(*place) for place in product(*map(range, shape[:-1]))}

    def lower(self) -> Stmt:
        empty = set(self.slots.values())
        lines = [
            (line, *line.locate(self.windows, self.height, self.others, self.row))
            for line in InputRow.all(self.windows, self.height)
        ]
        steps: list[Stmt] = []
        for line, at, guard in lines:
            if guard == const(True):
                steps += self._folds(line, at, empty)
        start = Const(identity(self.stage.combiner, self.acc.dtype), self.acc.dtype)
        steps += [Store(ACC, slot.index, start) for slot in self.slots.values() if slot in empty]
        for line, at, guard in lines:
            if not isinstance(guard, Const):
                steps.append(If(guard, Block(tuple(self._folds(line, at, set())))))
        for row, column in product(range(self.height), range(len(self.run.taps))):
            results = Block(tuple(self._write(row, column, number) for number in range(len(self.vectors))))
            rest = self.windows.rows.extent % self.height
            within = op("lt", self.row + row, self.windows.rows.extent) if 0 < rest <= row else const(True)
            steps.append(results if within == const(True) else If(within, results))
        return Alloc(self.acc, Block(tuple(steps)))

    def _slot(self, row: int, column: int, number: int) -> Load:
        """The register of a row, a column and a vector."""
        index = const(row), const(column), const(number), Ramp(const(0), self.vectors[number].lanes)
        return Load(ACC, index, self.acc.dtype)

    def _folds(self, line: InputRow, at: Mapping[str, Expr], empty: set[Load]) -> list[Stmt]:
        """Fold an input row at a position; registers that are `empty` are set first, and are `empty` no more."""
        places, columns = dict(at), self.windows.columns
        steps: list[Stmt] = []
        for number, (offset, uses) in enumerate(self.column_uses.items()):
            places[columns.position] = self.column * columns.stride + offset
            for n in range(len(self.vectors)):
                element = substitute(self.elements[n], places)
                for row, row_tap in line.windows:
                    if self.windows.is_plain:
                        steps.append(self._fold((row, number, n), element_of(element.dtype), element, empty))
                        continue
                    for column, tap in uses:
                        outside = self._term((*line.taps, row_tap, tap), n)
                        steps.append(self._fold((row, column, n), outside, element, empty))
        return steps

    def _make_term(self, taps: tuple[int, ...], number: int) -> Expr:
        """The folded value at some taps, over an `element_of` its type."""
        along = (*self.windows.outer_dims, self.windows.rows, self.windows.columns)
        values = {d.tap: const(tap) for d, tap in zip(along, taps, strict=True)}
        return self._vectorize(substitute(self.surroundings, values), number)

    def _fold(self, place: tuple[int, int, int], surroundings: Expr, element: Expr, empty: set[Load]) -> Stmt:
        slot = self.slots[place]
        if slot in empty:
            empty.remove(slot)
            return Store(ACC, slot.index, with_element(surroundings, element))
        return Store(ACC, slot.index, fold_element(self.stage.combiner, slot, surroundings, element))

    def _places(self, row: int, column: int) -> dict[str, Expr]:
        """The indices of one window, by axes of the output."""
        others = {d.axis: at for d, at in zip(self.windows.outer_dims, self.others, strict=True)}
        return {**others, self.windows.rows.axis: self.row + row, self.windows.columns.axis: self.column + column}

    def _vectorize(self, value: Expr, number: int) -> Expr:
        """Vectorise a value along one vector of channels."""
        part = self.vectors[number]
        return vectorize(value, self.windows.channels.name, self.base + part.base, part.lanes, part.count)

    def _write(self, row: int, column: int, number: int) -> Stmt:
        """Write one vector of results, after their epilogue."""
        fused_stage, places = self.windows.fused_stage, self._places(row, column)
        value = self._result(row, column, number)
        epilogue = with_element(self._epilogue(places, number), value)
        index = tuple(substitute(e, places) for e in self.indices[number])
        return Store(fused_stage.output, index, epilogue, self.vectors[number].count)

    def _epilogue(self, places: Mapping[str, Expr], number: int) -> Expr:
        """The vectorised epilogue of a window; cached where it is the same for all windows."""
        if self.is_moving:
            return self._vectorize(simplify(substitute(self.epilogue_of_element, places), self.ranges), number)
        if number not in self.epilogues:
            self.epilogues[number] = self._vectorize(simplify(self.epilogue_of_element, self.ranges), number)
        return self.epilogues[number]

    def _result(self, row: int, column: int, number: int) -> Expr:
        """One vector of folded windows."""
        if not self.windows.is_plain:
            return self.slots[row, column, number]
        value: Expr | None = None
        for position, uses in enumerate(self.column_uses.values()):
            if any(place == column for place, _ in uses):
                slot = self.slots[row, position, number]
                value = slot if value is None else fold_value(self.stage.combiner, value, slot)
        return Const(identity(self.stage.combiner, self.acc.dtype), self.acc.dtype) if value is None else value
