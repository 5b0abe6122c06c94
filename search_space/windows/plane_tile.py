"""Plane tiles: windows of a few rows by a few vectors of columns of one plane, unrolled and folded into registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product

from tunewright.codegen.expr import (
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
from tunewright.codegen.index import Ranges, simplify
from tunewright.codegen.ir import Alloc, Block, Buffer, If, Prefetch, Scope, Stmt, Store
from tunewright.codegen.lanes import vectorize
from tunewright.graph.task import identity

from ..nests.direction import Direction
from ..nests.tile import ACC, folded
from .planes import Planes
from .windows import OWN, around, folded_with, with_element

LANE = "lane"
"""The variable that becomes the lanes."""

HELD = "held"
"""The register buffer of what is the same for all windows of a plane."""


Line = tuple[int, list[tuple[int, int]]]
"""A row of the input, by its offset from a tile's first one, with the rows of the tile and the taps that it is of."""


@dataclass(frozen=True, slots=True)
class Band:
    """Neighbouring tiles along the rows, of `rows` rows each."""

    first: int
    count: int
    rows: int

    @staticmethod
    def all(extent: int, size: int) -> list[Band]:
        """The tiles of so many rows that cover an extent, and a smaller one for what is left."""
        whole, rest = divmod(extent, size)
        bands = Band(0, whole, size), Band(whole, 1, rest)
        return [band for band in bands if band.count and band.rows]

    @property
    def tiles(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.count)

    def lines(self, rows: Direction, size: int) -> dict[range, list[Line]]:
        """The rows of the input that tiles `size` rows apart read, by the tiles for which they are no padding."""
        windows: dict[int, list[tuple[int, int]]] = {}
        for row, tap in product(range(self.rows), range(rows.taps)):
            windows.setdefault(rows.offset(row, tap), []).append((row, tap))
        apart = max(1, size * rows.stride)
        found: dict[range, list[Line]] = {}
        for offset, uses in sorted(windows.items()):
            first, stop = (-((offset - end) // apart) for end in (rows.inside.start, rows.inside.stop))
            tiles = range(max(first, self.first), min(stop, self.first + self.count))
            if tiles:
                found.setdefault(tiles, []).append((offset, uses))
        return found

    def apart(self, rows: Direction, size: int) -> list[Band]:
        """The same tiles, cut up into bands whose tiles all have padding in the same places."""
        ends = {end for tiles in (self.tiles, *self.lines(rows, size)) for end in (tiles.start, tiles.stop)}
        return [Band(first, stop - first, self.rows) for first, stop in pairwise(sorted(ends))]


@dataclass(frozen=True, slots=True)
class Vector:
    """Neighbouring windows along the columns: how many there are, and which of their lanes are inside at each tap."""

    used: int
    reaches: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring tiles along the columns whose vectors are inside at the same taps."""

    first: int
    count: int
    vectors: tuple[Vector, ...]

    @staticmethod
    def all(columns: Direction, lanes: int, together: int) -> list[Stretch]:
        """The tiles of so many vectors that cover the columns; the last one may have fewer."""
        vectors = [_vector(columns, first, lanes) for first in range(0, columns.extent, lanes)]
        tiles = [tuple(vectors[n : n + together]) for n in range(0, len(vectors), together)]
        found = []
        for alike, group in groupby(range(len(tiles)), key=lambda n: tiles[n]):
            numbers = list(group)
            found.append(Stretch(numbers[0], len(numbers), alike))
        return found


def _vector(columns: Direction, first: int, lanes: int) -> Vector:
    used = min(lanes, columns.extent - first)
    reaches = []
    for tap in range(columns.taps):
        inside = [lane for lane in range(used) if columns.within(first + lane, tap)]
        reaches.append(range(inside[0], inside[-1] + 1) if inside else range(0))
    return Vector(used, tuple(reaches))


class Held:
    """What the fold needs beside the elements, such as weights: in registers for a whole plane, if that is wanted."""

    def __init__(self, found: Planes, lanes: int, kept: bool, plane: Mapping[str, Expr]) -> None:
        self.found, self.lanes, self.plane = found, lanes, plane
        self.around = around(found.piece.stage.body, found.read)
        needed = dict.fromkeys(x for x in loads(self.around) if x != OWN and x.dtype is OWN.dtype) if kept else ()
        window = product(range(found.rows.taps), range(found.columns.taps))
        self.numbers = {(load, taps): n for n, (taps, load) in enumerate(product(window, needed))}
        self._laid: dict[tuple[int, int], Expr] = {}  # what elements are folded with, by taps

    def keep(self, body: Stmt) -> Stmt:
        """The body, with all it needs of a plane in registers."""
        if not self.numbers:
            return body
        held = Buffer(HELD, (len(self.numbers), self.lanes), self.found.read.dtype, Scope.REGISTER)
        steps: list[Stmt] = []
        for (load, taps), number in self.numbers.items():
            index = const(number), Ramp(const(0), self.lanes)
            steps.append(Store(HELD, index, substitute(load, {**self.plane, **self._taps(taps)})))
        return Alloc(held, Block((*steps, body)))

    def at(self, taps: tuple[int, int]) -> Expr:
        """What an element is folded with at a tap of the windows; `OWN` stands for the element."""
        if taps not in self._laid:
            self._laid[taps] = self._at(taps)
        return self._laid[taps]

    def _at(self, taps: tuple[int, int]) -> Expr:
        def visit(node: Expr) -> Expr:
            number = self.numbers.get((node, taps)) if isinstance(node, Load) else None
            if number is None:
                return node
            return Load(HELD, (const(number), Ramp(const(0), self.lanes)), node.dtype)

        return substitute(transform(self.around, visit), {**self.plane, **self._taps(taps)})

    def _taps(self, taps: tuple[int, int]) -> dict[str, Expr]:
        return {d.tap: const(t) for d, t in zip((self.found.rows, self.found.columns), taps, strict=True)}


class Strip:
    """The tiles of a stretch, in any row of tiles: what they read, and what follows the fold."""

    def __init__(self, held: Held, stretch: Stretch, width: int, ranges: Ranges) -> None:
        self.held, self.found, self.lanes, self.stretch = held, held.found, held.lanes, stretch
        number = const(stretch.first) if stretch.count == 1 else Var("column") + stretch.first
        self.base = number * width  # the first column
        self.ranges = {**ranges, "column": (0, stretch.count - 1)}
        self.finished = self.found.piece.finished(OWN)
        self.moving = not variables(self.finished).isdisjoint((self.found.rows.axis, self.found.columns.axis))
        self._elements: dict[tuple[int, int], Expr] = {}  # in any row of the input, by vector and tap
        self._finish: Expr | None = None  # where it is the same for all places

    def first(self, number: int) -> Expr:
        """The first column of a vector."""
        return self.base + number * self.lanes

    def element(self, number: int, tap: int) -> Expr | None:
        """A vector of elements in any row of the input, the border where they are padding; None if all are."""
        vector = self.stretch.vectors[number]
        if not vector.reaches[tap]:
            return None
        if (number, tap) not in self._elements:
            self._elements[number, tap] = self._element(number, tap, vector)
        return self._elements[number, tap]

    def _element(self, number: int, tap: int, vector: Vector) -> Expr:
        reach = vector.reaches[tap]
        columns = self.found.columns
        at = self.first(number) * columns.stride + columns.offset(0, tap) + Var(LANE) * columns.stride
        if reach.start:
            at = op("max", at, columns.inside.start)
        count = None if reach.stop == self.lanes else reach.stop
        placed = substitute(self.found.element, {columns.at: at, **self.held.plane})
        element = vectorize(placed, LANE, const(0), self.lanes, count)
        bare = isinstance(element, Load) and self.found.border == 0.0
        inside: list[Expr] = []
        if reach.start:
            inside.append(op("le", const(reach.start), Ramp(const(0), self.lanes)))
        if reach.stop < vector.used and not bare:
            inside.append(op("lt", Ramp(const(0), self.lanes), const(reach.stop)))
        for condition in inside:
            element = op("select", condition, element, Const(self.found.border, element.dtype))
        return element

    def count(self, number: int) -> int | None:
        """How many lanes of a vector of results there are, None for all."""
        used = self.stretch.vectors[number].used
        return None if used == self.lanes else used

    def finish(self, row: Expr, number: int) -> Expr:
        """What follows the fold of a vector of windows in a row, `OWN`."""
        if self.moving:
            return self._finish_at(row, number)
        if self._finish is None:
            self._finish = self._finish_at(row, number)
        return self._finish

    def _finish_at(self, row: Expr, number: int) -> Expr:
        found, used = self.found, self.stretch.vectors[number].used
        places = {**self.held.plane, found.rows.axis: row, found.columns.axis: self.first(number) + Var(LANE)}
        finish = simplify(substitute(self.finished, places), {**self.ranges, LANE: (0, used - 1)})
        return vectorize(finish, LANE, const(0), self.lanes, self.count(number))


class PlaneTile:
    """One tile: a few rows by a few vectors of columns."""

    def __init__(self, strip: Strip, band: Band, sizes: Mapping[str, int], number: Expr) -> None:
        self.strip, self.held, self.found, self.lanes = strip, strip.held, strip.found, strip.lanes
        self.band, self.number = band, number  # along the rows
        self.height, self.ahead = sizes["tile_rows"], bool(sizes["ahead"])
        self.top = number * self.height
        self.lines: dict[int, Substitution] = {}  # what moves an element to a row of the input, by its offset
        self.stage = self.found.piece.stage
        vectors = len(strip.stretch.vectors)
        self.acc = Buffer(ACC, (band.rows, vectors, self.lanes), self.stage.body.dtype, Scope.REGISTER)
        self.slots = {place: self._slot(*place) for place in product(range(band.rows), range(vectors))}

    def lower(self) -> Stmt:
        lines, tiles = self.band.lines(self.found.rows, self.height), self.band.tiles
        always = lines.pop(tiles, [])
        steps: list[Stmt] = self._asked() if self.ahead else []
        empty = set(self.slots)
        # Rows that may be padding come first: LLVM moves what stands before a branch behind it, where it spills.
        begun = {row for some in lines.values() for _, uses in some for row, _ in uses}
        steps += self._begun(sorted(slot for slot in empty if slot[0] in begun), empty)
        for some, theirs in lines.items():
            first = op("le", const(some.start), self.number) if some.start > tiles.start else const(True)
            last = op("lt", self.number, some.stop) if some.stop < tiles.stop else const(True)
            steps.append(If(op("and", first, last), Block(tuple(self._folds(theirs, empty)))))
        steps += self._folds(always, empty)
        steps += self._begun(sorted(empty), empty)
        for row in range(self.band.rows):
            steps += self._written(row)
        return Alloc(self.acc, Block(tuple(steps)))

    def _begun(self, slots: Sequence[tuple[int, int]], empty: set[tuple[int, int]]) -> list[Stmt]:
        """Sums of nothing; they are not `empty` any more."""
        empty.difference_update(slots)
        start = Const(identity(self.stage.combiner, self.acc.dtype), self.acc.dtype)
        return [Store(ACC, self.slots[slot].index, start) for slot in slots]

    def _asked(self) -> list[Stmt]:
        """Ask for what the tile below reads and this one does not; below the last one begins the next plane."""
        rows, columns = self.found.rows, self.found.columns
        (read,) = loads(self.found.element)
        first = (self.top + self.height) * rows.stride + rows.offset(0, rows.taps - 1)
        left = self.strip.base * columns.stride + columns.inside.start
        steps: list[Stmt] = []
        for row, number in product(
            range(self.height * rows.stride), range(len(self.strip.stretch.vectors) * columns.stride)
        ):
            places = {rows.at: first + row, columns.at: left + number * self.lanes, **self.held.plane}
            steps.append(Prefetch(read.tensor, tuple(substitute(e, places) for e in read.index)))
        return steps

    def _slot(self, row: int, number: int) -> Load:
        index = const(row), const(number), Ramp(const(0), self.lanes)
        return Load(ACC, index, self.acc.dtype)

    def _folds(self, lines: Sequence[Line], empty: set[tuple[int, int]]) -> list[Stmt]:
        """All that some rows of the input add; sums that are `empty` so far are set, and are so no more."""
        numbers = range(len(self.strip.stretch.vectors))
        return [step for offset, uses in lines for n in numbers for step in self._line_folds(offset, uses, n, empty)]

    def _line_folds(
        self, offset: int, uses: Sequence[tuple[int, int]], number: int, empty: set[tuple[int, int]]
    ) -> list[Stmt]:
        """All that one row of the input adds to a vector of each row of the tile that it belongs to."""
        elements = [(tap, self._element(offset, number, tap)) for tap in range(self.found.columns.taps)]
        there = [(tap, element) for tap, element in elements if element is not None]
        steps: list[Stmt] = []
        if self.found.plain and there:  # the columns first, once for all rows
            joined = there[0][1]
            for _, element in there[1:]:
                joined = folded(self.stage.combiner, joined, element)
            return [self._fold((row, number), OWN, joined, empty) for row, _ in uses]
        for tap, element in there:
            for row, row_tap in uses:
                steps.append(self._fold((row, number), self.held.at((row_tap, tap)), element, empty))
        return steps

    def _element(self, offset: int, number: int, tap: int) -> Expr | None:
        """A vector of elements in a row of the input, the border where they are padding; None if all are."""
        anywhere = self.strip.element(number, tap)
        if anywhere is None:
            return None
        rows = self.found.rows
        if offset not in self.lines:
            self.lines[offset] = Substitution({rows.at: self.top * rows.stride + offset})
        return self.lines[offset](anywhere)

    def _fold(self, place: tuple[int, int], around: Expr, element: Expr, empty: set[tuple[int, int]]) -> Stmt:
        slot = self.slots[place]
        if place in empty:
            empty.remove(place)
            return Store(ACC, slot.index, with_element(around, element))
        return Store(ACC, slot.index, folded_with(self.stage.combiner, slot, around, element))

    def _written(self, row: int) -> list[Stmt]:
        """Write the results of one row, with what follows them."""
        piece, strip, at = self.found.piece, self.strip, self.top + row
        places = {**self.held.plane, self.found.rows.axis: at}
        outer = [substitute(e, places) for e in piece.index[:-1]]
        steps: list[Stmt] = []
        for number in range(len(strip.stretch.vectors)):
            value = with_element(strip.finish(at, number), self.slots[row, number])
            index = (*outer, Ramp(strip.first(number), self.lanes))
            steps.append(Store(piece.output, index, value, strip.count(number)))
        return steps
