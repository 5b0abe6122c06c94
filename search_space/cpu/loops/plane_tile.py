"""Plane tiles: windows of a few rows by a few vectors of columns of one plane, unrolled and folded into registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import (
    Const,
    Expr,
    Load,
    Ramp,
    Substitution,
    Var,
    const,
    loads,
    op,
    substitute,
    transform,
    variables,
)
from tunewright.codegen.expr.index import Ranges, simplify
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, If, Prefetch, Scope, Stmt, Store
from tunewright.graph.task import fold_value, identity

from ...axes import runs_alike
from ...patterns.window_dim import WindowDim
from ...patterns.windows import Windows, element_of, fold_element, is_element, tap_uses, with_element
from ...registers import ACC

LANE = "lane"
"""The variable that is laid along the lanes."""

WEIGHTS = "held"
"""The registers of a plane's weights."""


RowUses = tuple[int, list[tuple[int, int]]]
"""The offset of an input row from the first of its tile, and its uses: rows of the tile and taps."""


@dataclass(frozen=True, slots=True)
class RowRun:
    """Neighbouring tiles along the rows, of `rows` rows each."""

    first: int
    count: int
    rows: int

    @staticmethod
    def all(extent: int, size: int) -> list[RowRun]:
        """The tiles of so many rows that cover an extent, and a smaller one for what is left."""
        whole, rest = divmod(extent, size)
        both = RowRun(0, whole, size), RowRun(whole, 1, rest)
        return [run for run in both if run.count and run.rows]

    @property
    def tiles(self) -> range:
        """The numbers of the tiles."""
        return range(self.first, self.first + self.count)

    def lines(self, rows: WindowDim, size: int) -> dict[range, list[RowUses]]:
        """The rows of the input that tiles `size` rows apart read, by the tiles for which they are no padding."""
        pitch = max(1, size * rows.stride)
        lines: dict[range, list[RowUses]] = {}
        for offset, uses in tap_uses(rows, [range(rows.taps)] * self.rows).items():
            first, stop = (-((offset - end) // pitch) for end in (rows.inside.start, rows.inside.stop))
            tiles = range(max(first, self.first), min(stop, self.first + self.count))
            if tiles:
                lines.setdefault(tiles, []).append((offset, uses))
        return lines

    def split_padding(self, rows: WindowDim, size: int) -> list[RowRun]:
        """The same tiles, cut up into runs whose tiles all have padding in the same places."""
        ends = {end for tiles in (self.tiles, *self.lines(rows, size)) for end in (tiles.start, tiles.stop)}
        return [RowRun(first, stop - first, self.rows) for first, stop in pairwise(sorted(ends))]


@dataclass(frozen=True, slots=True)
class ColumnVector:
    """Neighbouring windows along the columns: how many there are, and which of their lanes are inside at each tap."""

    count: int
    reaches: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class VectorRun:
    """Neighbouring tiles along the columns whose vectors are inside at the same taps."""

    first: int
    count: int
    vectors: tuple[ColumnVector, ...]

    @staticmethod
    def all(columns: WindowDim, lanes: int, size: int) -> list[VectorRun]:
        """The tiles of so many vectors that cover the columns; the last one may have fewer."""
        vectors = [_vector(columns, first, lanes) for first in range(0, columns.extent, lanes)]
        tiles = [tuple(vectors[n : n + size]) for n in range(0, len(vectors), size)]
        return [VectorRun(*run) for run in runs_alike(range(len(tiles)), lambda n: tiles[n])]


def _vector(columns: WindowDim, first: int, lanes: int) -> ColumnVector:
    count = min(lanes, columns.extent - first)
    spans = (columns.inside_span(first, count, tap) for tap in range(columns.taps))
    return ColumnVector(count, tuple(range(start, stop) if start < stop else range(0) for start, stop in spans))


class PlaneWeights:
    """The operands of the fold besides the elements, such as weights: of a plane, in registers or in memory."""

    def __init__(self, planes: Windows, lanes: int, in_registers: bool, plane: Mapping[str, Expr]) -> None:
        self.planes, self.lanes, self.plane = planes, lanes, plane
        self.surroundings = planes.surroundings
        needed = (
            dict.fromkeys(x for x in loads(self.surroundings) if not is_element(x) and x.dtype is DType.F32)
            if in_registers
            else ()
        )
        window = product(range(planes.rows.taps), range(planes.columns.taps))
        self.numbers = {(load, taps): n for n, (taps, load) in enumerate(product(window, needed))}
        self.at = cache(self._at)

    def load(self, body: Stmt) -> Stmt:
        """Load the weights of a plane into registers, around a body."""
        if not self.numbers:
            return body
        registers = Buffer(WEIGHTS, (len(self.numbers), self.lanes), self.planes.read.dtype, Scope.REGISTER)
        steps: list[Stmt] = []
        for (load, taps), number in self.numbers.items():
            index = const(number), Ramp(const(0), self.lanes)
            steps.append(Store(WEIGHTS, index, substitute(load, {**self.plane, **self._taps(taps)})))
        return Alloc(registers, Block((*steps, body)))

    def _at(self, taps: tuple[int, int]) -> Expr:
        """The folded value at a tap of the windows; an `element_of` its type stands for the element."""

        def visit(node: Expr) -> Expr:
            number = self.numbers.get((node, taps)) if isinstance(node, Load) else None
            if number is None:
                return node
            return Load(WEIGHTS, (const(number), Ramp(const(0), self.lanes)), node.dtype)

        return substitute(transform(self.surroundings, visit), {**self.plane, **self._taps(taps)})

    def _taps(self, taps: tuple[int, int]) -> dict[str, Expr]:
        return {d.tap: const(t) for d, t in zip((self.planes.rows, self.planes.columns), taps, strict=True)}


class ColumnStrip:
    """The elements and the epilogue of a run's tiles, in any row of tiles."""

    def __init__(self, weights: PlaneWeights, run: VectorRun, width: int, ranges: Ranges) -> None:
        self.weights, self.planes, self.lanes, self.run = weights, weights.planes, weights.lanes, run
        number = const(run.first) if run.count == 1 else Var("column") + run.first
        self.base = number * width  # the first column
        self.ranges = {**ranges, "column": (0, run.count - 1)}
        self.epilogue_of_element = self.planes.epilogue
        self.is_moving = not variables(self.epilogue_of_element).isdisjoint(
            (self.planes.rows.axis, self.planes.columns.axis)
        )
        self.element = cache(self._element)
        self._epilogue: Expr | None = None  # where it is the same for all windows

    def first(self, number: int) -> Expr:
        """The first column of a vector."""
        return self.base + number * self.lanes

    def _element(self, number: int, tap: int) -> Expr | None:
        """A vector of elements in any row of the input, the border where they are padding; None if all are."""
        vector = self.run.vectors[number]
        if not vector.reaches[tap]:
            return None
        reach = vector.reaches[tap]
        columns = self.planes.columns
        at = self.first(number) * columns.stride + columns.offset(0, tap) + Var(LANE) * columns.stride
        if reach.start:
            at = op("max", at, columns.inside.start)
        count = None if reach.stop == self.lanes else reach.stop
        scalar = substitute(self.planes.element, {columns.position: at, **self.weights.plane})
        element = vectorize(scalar, LANE, const(0), self.lanes, count)
        bare = isinstance(element, Load) and self.planes.border == 0.0
        inside: list[Expr] = []
        if reach.start:
            inside.append(op("le", const(reach.start), Ramp(const(0), self.lanes)))
        if reach.stop < vector.count and not bare:
            inside.append(op("lt", Ramp(const(0), self.lanes), const(reach.stop)))
        for condition in inside:
            element = op("select", condition, element, Const(self.planes.border, element.dtype))
        return element

    def count(self, number: int) -> int | None:
        """How many lanes of a vector of results there are, None for all."""
        count = self.run.vectors[number].count
        return None if count == self.lanes else count

    def epilogue(self, row: Expr, number: int) -> Expr:
        """The epilogue of a vector of windows in a row, over an `element_of` its type."""
        if self.is_moving:
            return self._epilogue_at(row, number)
        if self._epilogue is None:
            self._epilogue = self._epilogue_at(row, number)
        return self._epilogue

    def _epilogue_at(self, row: Expr, number: int) -> Expr:
        planes, count = self.planes, self.run.vectors[number].count
        places = {**self.weights.plane, planes.rows.axis: row, planes.columns.axis: self.first(number) + Var(LANE)}
        epilogue = simplify(substitute(self.epilogue_of_element, places), {**self.ranges, LANE: (0, count - 1)})
        return vectorize(epilogue, LANE, const(0), self.lanes, self.count(number))


class PlaneTile:
    """One tile: a few rows by a few vectors of columns."""

    def __init__(self, strip: ColumnStrip, run: RowRun, sizes: Mapping[str, int], number: Expr) -> None:
        self.strip, self.weights, self.planes, self.lanes = strip, strip.weights, strip.planes, strip.lanes
        self.run, self.number = run, number  # along the rows
        self.height, self.is_prefetching = sizes["tile_rows"], bool(sizes["ahead"])
        self.top = number * self.height
        self.lines: dict[int, Substitution] = {}  # what moves an element to a row of the input, by its offset
        self.stage = self.planes.fused_stage.stage
        vectors = len(strip.run.vectors)
        self.acc = Buffer(ACC, (run.rows, vectors, self.lanes), self.stage.body.dtype, Scope.REGISTER)
        self.slots = {place: self._slot(*place) for place in product(range(run.rows), range(vectors))}

    def lower(self) -> Stmt:
        lines, tiles = self.run.lines(self.planes.rows, self.height), self.run.tiles
        always = lines.pop(tiles, [])
        steps: list[Stmt] = self._prefetches() if self.is_prefetching else []
        empty = set(self.slots)
        # Rows that may be padding come first: LLVM moves what stands before a branch behind it, where it spills.
        guarded_rows = {row for tile_numbers in lines.values() for _, uses in tile_numbers for row, _ in uses}
        steps += self._clear(sorted(slot for slot in empty if slot[0] in guarded_rows), empty)
        for tile_numbers, row_uses in lines.items():
            first = (
                op("le", const(tile_numbers.start), self.number) if tile_numbers.start > tiles.start else const(True)
            )
            last = op("lt", self.number, tile_numbers.stop) if tile_numbers.stop < tiles.stop else const(True)
            steps.append(If(op("and", first, last), Block(tuple(self._folds(row_uses, empty)))))
        steps += self._folds(always, empty)
        steps += self._clear(sorted(empty), empty)
        for row in range(self.run.rows):
            steps += self._write(row)
        return Alloc(self.acc, Block(tuple(steps)))

    def _clear(self, slots: Sequence[tuple[int, int]], empty: set[tuple[int, int]]) -> list[Stmt]:
        """Initialise sums, which are `empty` no more."""
        empty.difference_update(slots)
        start = Const(identity(self.stage.combiner, self.acc.dtype), self.acc.dtype)
        return [Store(ACC, self.slots[slot].index, start) for slot in slots]

    def _prefetches(self) -> list[Stmt]:
        """Prefetch what the tile below reads and this one does not; below the last one the next plane begins."""
        rows, columns = self.planes.rows, self.planes.columns
        (read,) = loads(self.planes.element)
        first = (self.top + self.height) * rows.stride + rows.offset(0, rows.taps - 1)
        left = self.strip.base * columns.stride + columns.inside.start
        steps: list[Stmt] = []
        for row, number in product(
            range(self.height * rows.stride), range(len(self.strip.run.vectors) * columns.stride)
        ):
            places = {rows.position: first + row, columns.position: left + number * self.lanes, **self.weights.plane}
            steps.append(Prefetch(read.tensor, tuple(substitute(e, places) for e in read.index)))
        return steps

    def _slot(self, row: int, number: int) -> Load:
        index = const(row), const(number), Ramp(const(0), self.lanes)
        return Load(ACC, index, self.acc.dtype)

    def _folds(self, lines: Sequence[RowUses], empty: set[tuple[int, int]]) -> list[Stmt]:
        """Fold some rows of the input; sums that are `empty` are set first, and are `empty` no more."""
        numbers = range(len(self.strip.run.vectors))
        return [step for offset, uses in lines for n in numbers for step in self._line_folds(offset, uses, n, empty)]

    def _line_folds(
        self, offset: int, uses: Sequence[tuple[int, int]], number: int, empty: set[tuple[int, int]]
    ) -> list[Stmt]:
        """Fold one row of the input into a vector of each row of the tile that uses it."""
        elements = [(tap, self._element(offset, number, tap)) for tap in range(self.planes.columns.taps)]
        vectors = [(tap, element) for tap, element in elements if element is not None]
        steps: list[Stmt] = []
        if self.planes.is_plain and vectors:  # the columns first, once for all rows
            total = vectors[0][1]
            for _, element in vectors[1:]:
                total = fold_value(self.stage.combiner, total, element)
            return [self._fold((row, number), element_of(total.dtype), total, empty) for row, _ in uses]
        for tap, element in vectors:
            for row, row_tap in uses:
                steps.append(self._fold((row, number), self.weights.at((row_tap, tap)), element, empty))
        return steps

    def _element(self, offset: int, number: int, tap: int) -> Expr | None:
        """A vector of elements in a row of the input, the border where they are padding; None if all are."""
        anywhere = self.strip.element(number, tap)
        if anywhere is None:
            return None
        rows = self.planes.rows
        if offset not in self.lines:
            self.lines[offset] = Substitution({rows.position: self.top * rows.stride + offset})
        return self.lines[offset](anywhere)

    def _fold(self, place: tuple[int, int], surroundings: Expr, element: Expr, empty: set[tuple[int, int]]) -> Stmt:
        slot = self.slots[place]
        if place in empty:
            empty.remove(place)
            return Store(ACC, slot.index, with_element(surroundings, element))
        return Store(ACC, slot.index, fold_element(self.stage.combiner, slot, surroundings, element))

    def _write(self, row: int) -> list[Stmt]:
        """Write the results of one row, after their epilogue."""
        fused_stage, strip, at = self.planes.fused_stage, self.strip, self.top + row
        places = {**self.weights.plane, self.planes.rows.axis: at}
        outer = [substitute(e, places) for e in fused_stage.index[:-1]]
        steps: list[Stmt] = []
        for number in range(len(strip.run.vectors)):
            value = with_element(strip.epilogue(at, number), self.slots[row, number])
            index = (*outer, Ramp(strip.first(number), self.lanes))
            steps.append(Store(fused_stage.output, index, value, strip.count(number)))
        return steps
