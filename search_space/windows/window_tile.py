"""Window tiles: the windows of a few places of the output, unrolled and folded into registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from tunewright.codegen.expr import Const, Expr, Load, Ramp, const, free_vars, op, substitute
from tunewright.codegen.index import Ranges, simplify
from tunewright.codegen.ir import Alloc, Block, Buffer, If, Scope, Stmt, Store
from tunewright.codegen.lanes import vectorize
from tunewright.graph.task import identity

from ..nests.direction import Direction
from ..nests.tile import ACC, folded
from .windows import OWN, Line, Plan, around, folded_with, touching, with_element


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tiles along a direction whose windows touch the same of what they cover."""

    first: int
    count: int
    taps: tuple[tuple[int, ...], ...]  # of each place in the tile, those that are no padding

    @staticmethod
    def all(direction: Direction, size: int) -> list[Run]:
        """The tiles of so many places along a direction, the smaller last one included."""

        def taps(tile: int) -> tuple[tuple[int, ...], ...]:
            places = range(tile * size, min((tile + 1) * size, direction.extent))
            return tuple(tuple(t for t in range(direction.taps) if direction.within(p, t)) for p in places)

        found = []
        for alike, group in groupby(range(-(-direction.extent // size)), key=taps):
            tiles = list(group)
            found.append(Run(tiles[0], len(tiles), alike))
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """One vector of channels: its first from that of the tile, its lanes, and how many are in use, None for all."""

    base: int
    lanes: int
    count: int | None

    @staticmethod
    def all(channels: int, lanes: int) -> list[Part]:
        """The vectors that cover so many channels; the last is as narrow as can be."""
        whole, rest = divmod(channels, lanes)
        parts = [Part(n * lanes, lanes, None) for n in range(whole)]
        if rest:
            narrow = max(2, 1 << (rest - 1).bit_length())
            parts.append(Part(whole * lanes, narrow, None if narrow == rest else rest))
        return parts


class WindowTile:
    """One tile: the windows of a few places of the output, unrolled."""

    def __init__(
        self,
        plan: Plan,
        values: Mapping[str, int],
        run: Run,
        tiles: Sequence[Expr],  # its number along each direction
        base: Expr,  # its first channel
        parts: Sequence[Part],
        ranges: Ranges,  # of the variables of loops
    ) -> None:
        self.plan, self.run, self.base, self.parts, self.ranges = plan, run, base, parts, ranges
        self.found = plan.windows
        self.stage = plan.windows.piece.stage
        self.height, self.width = values["tile_rows"], values["tile_columns"]
        *self.others, row, column = tiles
        self.row, self.column = row * self.height, column * self.width
        self.touched = touching(plan.columns, run.taps)
        across = len(self.touched) if self.found.plain else len(run.taps)
        self.around = around(self.stage.body, self.found.read)
        self.laid: dict[tuple[int, ...], Expr] = {}  # of `around`, by taps and vector
        self.elements = [self._laid(self.found.element, n) for n in range(len(parts))]  # at any position
        piece = self.found.piece
        self.indices = [[self._laid(e, n) for e in piece.index] for n in range(len(parts))]  # at any place
        self.finished = piece.finished(OWN)
        self.moving = not {d.axis for d in plan.windows.directions}.isdisjoint(free_vars(self.finished))
        self.finishes: dict[int, Expr] = {}  # along the lanes, by vector
        shape = (self.height, max(across, 1), len(parts), plan.lanes)
        self.acc = Buffer(ACC, shape, self.stage.body.dtype, Scope.REGISTER)
        self.slots = {place: self._slot(*place) for place in product(*map(range, shape[:-1]))}

    def lower(self) -> Stmt:
        empty = set(self.slots.values())
        lines = [
            (line, *line.located(self.plan, self.height, self.others, self.row))
            for line in Line.all(self.plan, self.height)
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
            written = Block(tuple(self._written(row, column, number) for number in range(len(self.parts))))
            beyond = self.plan.rows.extent % self.height
            within = op("lt", self.row + row, self.plan.rows.extent) if 0 < beyond <= row else const(True)
            steps.append(written if within == const(True) else If(within, written))
        return Alloc(self.acc, Block(tuple(steps)))

    def _slot(self, row: int, column: int, number: int) -> Load:
        """The register of a row, a column and a vector."""
        index = const(row), const(column), const(number), Ramp(const(0), self.parts[number].lanes)
        return Load(ACC, index, self.acc.dtype)

    def _folds(self, line: Line, at: Mapping[str, Expr], empty: set[Load]) -> list[Stmt]:
        """All that a line adds that is `at` there; registers that are `empty` so far are set, and are so no more."""
        places, columns = dict(at), self.plan.columns
        steps: list[Stmt] = []
        for number, (offset, uses) in enumerate(self.touched.items()):
            places[columns.at] = self.column * columns.stride + offset
            for n in range(len(self.parts)):
                element = substitute(self.elements[n], places)
                for row, row_tap in line.windows:
                    if self.found.plain:
                        steps.append(self._fold((row, number, n), OWN, element, empty))
                        continue
                    for column, tap in uses:
                        outside = self._around((*line.taps, row_tap, tap), n)
                        steps.append(self._fold((row, column, n), outside, element, empty))
        return steps

    def _around(self, taps: tuple[int, ...], number: int) -> Expr:
        """What an element is folded with at some taps, such as a weight."""
        key = (*taps, number)
        if key not in self.laid:
            along = (*self.plan.others, self.plan.rows, self.plan.columns)
            values = {d.tap: const(tap) for d, tap in zip(along, taps, strict=True)}
            self.laid[key] = self._laid(substitute(self.around, values), number)
        return self.laid[key]

    def _fold(self, place: tuple[int, int, int], around: Expr, element: Expr, empty: set[Load]) -> Stmt:
        slot = self.slots[place]
        if slot in empty:
            empty.remove(slot)
            return Store(ACC, slot.index, with_element(around, element))
        return Store(ACC, slot.index, folded_with(self.stage.combiner, slot, around, element))

    def _places(self, row: int, column: int) -> dict[str, Expr]:
        """The place of one window, by axes of the output."""
        others = {d.axis: at for d, at in zip(self.plan.others, self.others, strict=True)}
        return {**others, self.plan.rows.axis: self.row + row, self.plan.columns.axis: self.column + column}

    def _laid(self, value: Expr, number: int) -> Expr:
        """A value along the lanes of one vector of channels."""
        part = self.parts[number]
        return vectorize(value, self.found.channels.name, self.base + part.base, part.lanes, part.count)

    def _written(self, row: int, column: int, number: int) -> Stmt:
        """Write one vector of results, with what follows them."""
        piece, places = self.found.piece, self._places(row, column)
        value = self._result(row, column, number)
        finish = with_element(self._finish(places, number), value)
        index = tuple(substitute(e, places) for e in self.indices[number])
        return Store(piece.output, index, finish, self.parts[number].count)

    def _finish(self, places: Mapping[str, Expr], number: int) -> Expr:
        """What follows the fold of a window, along the lanes; worked out once where it is the same for all places."""
        if self.moving:
            return self._laid(simplify(substitute(self.finished, places), self.ranges), number)
        if number not in self.finishes:
            self.finishes[number] = self._laid(simplify(self.finished, self.ranges), number)
        return self.finishes[number]

    def _result(self, row: int, column: int, number: int) -> Expr:
        """One vector of folded windows."""
        if not self.found.plain:
            return self.slots[row, column, number]
        value: Expr | None = None
        for kept, uses in enumerate(self.touched.values()):
            if any(place == column for place, _ in uses):
                more = self.slots[row, kept, number]
                value = more if value is None else folded(self.stage.combiner, value, more)
        return Const(identity(self.stage.combiner, self.acc.dtype), self.acc.dtype) if value is None else value
