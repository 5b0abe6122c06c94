"""Window: depthwise convolution and pooling, the channels along the vector lanes.

    parallel chunk                       rows of the output, by some of its channels
      row tile, channel tile, columns    in one of three orders
        for each row of the input        skipped where it is padding
          for each column of it          left out where it is padding
            load, fold into registers    all windows of the tile that it belongs to
        output[tile] = finish(...)

A tile is a few rows by a few columns by some vectors of channels, and its windows are unrolled. Padding is never made:
of a row of tiles only the first and the last ones touch columns outside, and they are code of their own that leaves
them out. Where nothing but the elements is folded, as in pooling, each column is folded once for all windows that share
it, then the columns of each window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Op, Ramp, Var, const, op, substitute, transform
from tunewright.codegen.index import Ranges, simplify, vectorize
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Scope, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Task, identity

from ..phases import buffer, plain_phase
from ..schedule import Schedule
from ..space import Columns, Knob, Space, Tiling
from ..tile import ACC, folded
from ..windows import Direction, Windows, windows

BODY_LIMIT = 320
"""Elements folded in one tile, beyond which the instruction cache suffers."""

CHANNELS_OUTSIDE, CHANNELS_BETWEEN, CHANNELS_INSIDE = range(3)
"""Where the loop over tiles of channels is: around the rows, between rows and columns, inside the columns."""

NONE = Direction(-1, "", 1, "", 1, 0, 0, 0, (0, 1))
"""The rows of a task that has columns alone."""


class WindowSketch:
    """See the module."""

    name = "window"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        found = windows(task)
        return target.kind == "cpu" and found is not None and _fits(Plan(found, target.lanes(4)), target)

    def space(self, task: Task, target: Target) -> Space:
        plan = _plan(task, target)
        knobs = (
            Knob("vectors", tuple(n for n in (1, 2, 3, 4) if n <= plan.vectors)),
            Knob("tile_columns", tuple(range(1, min(plan.columns.extent, 14) + 1))),
            Knob("tile_rows", tuple(n for n in (1, 2, 3, 4) if n <= plan.rows.extent)),
            Knob("block_rows", (0, *(n for n in (1, 2, 4, 7, 8, 14, 16, 28) if n < plan.rows.extent))),
            Knob("block_channels", (0, *(n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n < plan.vectors))),
            Knob("order", (CHANNELS_OUTSIDE, CHANNELS_BETWEEN, CHANNELS_INSIDE)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, columns),
            default=Schedule(self.name, self.version, _default(plan, target, knobs)),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        plan = _plan(task, target)
        found = plan.windows
        kept = {p.output for p in (*found.before, found.piece, *found.after)}
        scratch = tuple(buffer(t) for t in task.temporaries if t.name in kept)
        before, after = ([plain_phase(p, target) for p in ps] for ps in (found.before, found.after))
        main = _Loops(plan, dict(schedule.values)).chunks()
        params = tuple(map(buffer, task.inputs + task.outputs))
        return Kernel(params, scratch, Block((*before, main, *after)))


@dataclass(frozen=True, slots=True)
class Plan:
    """A fold over windows, with vectors of `lanes`."""

    windows: Windows
    lanes: int

    @property
    def columns(self) -> Direction:
        return self.windows.directions[-1]

    @property
    def rows(self) -> Direction:
        return self.windows.directions[-2] if len(self.windows.directions) > 1 else NONE

    @property
    def others(self) -> tuple[Direction, ...]:
        """Further directions, such as the batch and the depth of a volume."""
        return self.windows.directions[:-2]

    @property
    def channels(self) -> int:
        return self.windows.channels.extent

    @property
    def vectors(self) -> int:
        """Vectors that cover the channels."""
        return -(-self.channels // self.lanes)

    def kept(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Registers that a tile of rows by columns is folded into, one vector of channels each."""
        return rows * (_touched(self.columns, columns) if self.windows.plain else columns)

    def bodies(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Elements that are folded for a tile."""
        lines = rows * self.rows.taps * prod(d.taps for d in self.others)
        if self.windows.plain:
            return lines * _touched(self.columns, columns) + rows * columns * self.columns.taps
        return lines * columns * self.columns.taps


def _plan(task: Task, target: Target) -> Plan:
    found = windows(task)
    assert found is not None
    return Plan(found, target.lanes(4))


def _touched(direction: Direction, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """About how many positions so many neighbouring windows read; no less than there are."""
    apart = places * direction.taps
    spread = (places - 1) * direction.stride + (direction.taps - 1) * direction.dilation + 1
    return np.minimum(apart, spread)


def _fits(plan: Plan, target: Target) -> bool:
    """Whether the smallest tile does."""
    one = np.ones(1, np.int64)
    return bool(_small_enough(plan, target, one, one, one)[0])


def _small_enough(
    plan: Plan, target: Target, vectors: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache."""
    registers = (plan.kept(rows, columns) + 1) * vectors + 1
    fits = (registers <= target.vector_registers) & (plan.bodies(rows, columns) * vectors <= BODY_LIMIT)
    return np.asarray(fits)


def _legal(plan: Plan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """What fits, and no two points alike."""
    vectors, rows = columns["vectors"], columns["tile_rows"]
    legal = _small_enough(plan, target, vectors, rows, columns["tile_columns"])
    row_tiles, channel_tiles = -(-plan.rows.extent // rows), -(-plan.vectors // vectors)
    rows_inside, channels_inside = columns["block_rows"], columns["block_channels"]
    legal &= (rows_inside < row_tiles) & (channels_inside < channel_tiles)
    rows_inside = np.where(rows_inside == 0, row_tiles, rows_inside)
    channels_inside = np.where(channels_inside == 0, channel_tiles, channels_inside)
    column_tiles = -(-plan.columns.extent // columns["tile_columns"])
    order = columns["order"]
    legal &= (channels_inside > 1) | (order == CHANNELS_OUTSIDE)
    legal &= (rows_inside > 1) | (order != CHANNELS_BETWEEN)
    legal &= (column_tiles > 1) | (order != CHANNELS_INSIDE)
    return np.asarray(legal)


def _default(plan: Plan, target: Target, knobs: Sequence[Knob]) -> tuple[tuple[str, int], ...]:
    """Pooling goes through memory in order; products go over all columns with one vector of channels.

    The first waits for memory, which is best read in order. The second can keep the multipliers busy, if little else
    is to be loaded than the input.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    vectors, rows, columns = _default_tile(plan, target, choices)
    values = {"vectors": vectors, "tile_columns": columns, "tile_rows": rows}
    row_tiles, channel_tiles = -(-plan.rows.extent // rows), -(-plan.vectors // vectors)
    if plan.windows.plain:
        inside = channel_tiles > 1 and columns < plan.columns.extent
        order = CHANNELS_INSIDE if inside else CHANNELS_OUTSIDE
        values |= {"block_rows": int(row_tiles > 1), "block_channels": 0, "order": order}
    else:
        together = _rows_together(plan, target, choices["block_rows"])
        values |= {"block_rows": together, "block_channels": int(channel_tiles > 1), "order": CHANNELS_OUTSIDE}
    return tuple(values.items())


def _default_tile(plan: Plan, target: Target, choices: Mapping[str, Sequence[int]]) -> tuple[int, int, int]:
    """Vectors, rows and columns: of those that fit, what loads the least for a window."""
    plain = plan.windows.plain
    most = (4 if plan.columns.stride > 1 else 2) if plain else 1
    rows_most, columns_most = (4, 4) if plain else (1, 8)
    for vectors in sorted((n for n in choices["vectors"] if n <= most), reverse=True):
        sides = product(choices["tile_rows"], choices["tile_columns"])
        rows, columns = np.array([s for s in sides if s[0] <= rows_most and s[1] <= columns_most]).T
        fits = _small_enough(plan, target, np.full(len(rows), vectors), rows, columns)
        if fits.any():
            loads = _touched(plan.rows, rows) * _touched(plan.columns, columns) / (rows * columns)
            best = int(np.argmin(np.where(fits, loads, np.inf)))
            tiles = -(-plan.columns.extent // int(columns[best]))
            return vectors, int(rows[best]), -(-plan.columns.extent // tiles)  # columns as even as can be
    raise AssertionError("the smallest tile fits wherever the sketch applies")


def _rows_together(plan: Plan, target: Target, choices: Sequence[int]) -> int:
    """As many rows as stay in the cache from one vector of channels to the next, the same for each thread."""
    extent = plan.rows.extent
    row_bytes = 4 * plan.channels * plan.columns.extent * plan.columns.stride * max(plan.rows.stride, 1)
    images = prod(d.extent for d in plan.others)
    numbers = {n or extent: n for n in choices}
    kept = [n for n in numbers if n * row_bytes <= target.l2_bytes // 2] or [min(numbers)]
    even = [n for n in kept if extent % n == 0 and images * extent // n % target.threads == 0]
    enough = [n for n in kept if images * -(-extent // n) * plan.vectors >= 4 * target.threads]
    return numbers[max(even or enough or [min(kept)])]


def _tiling(plan: Plan, columns: Columns) -> Tiling:
    stage = plan.windows.piece.stage
    one = np.ones(len(columns["vectors"]), np.int64)
    whole = {a.name: one * a.extent for a in stage.axes + stage.reduce}
    channels = plan.windows.channels.name
    tile = dict.fromkeys(whole, one) | {a.name: whole[a.name] for a in stage.reduce}
    tile[channels] = np.minimum(columns["vectors"] * plan.lanes, plan.channels)
    chunk = dict(tile)
    for direction, size in ((plan.columns, columns["tile_columns"]), (plan.rows, columns["tile_rows"])):
        if direction.axis:
            tile[direction.axis] = size
            chunk[direction.axis] = whole[direction.axis]
    if plan.rows.axis:
        chunk[plan.rows.axis] = _blocked(columns["block_rows"], columns["tile_rows"], plan.rows.extent)
    width = columns["vectors"] * plan.lanes
    chunk[channels] = _blocked(columns["block_channels"], width, plan.channels)
    line = dict(tile)
    if plan.columns.axis:
        line[plan.columns.axis] = whole[plan.columns.axis]
    chunks = one
    for axis in stage.axes:
        chunks = chunks * -(-axis.extent // chunk[axis.name])
    return Tiling(stage, (tile, line, chunk, whole), channels, chunks)


def _blocked(block: NDArray[np.int64], size: NDArray[np.int64], extent: int) -> NDArray[np.int64]:
    return np.where(block == 0, extent, np.minimum(block * size, extent))


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tiles along the columns whose windows touch the same of what they cover."""

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
class Line:
    """One row of the input under a tile, and the windows that it belongs to."""

    taps: tuple[int, ...]  # along the other directions
    offset: int  # of its row, from the tile's first
    windows: tuple[tuple[int, int], ...]  # row in the tile, tap


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


class _Loops:
    """The loops of one schedule."""

    def __init__(self, plan: Plan, values: Mapping[str, int]) -> None:
        self.plan, self.values = plan, values
        self.width = values["vectors"] * plan.lanes
        self.row_tiles = -(-plan.rows.extent // values["tile_rows"])
        self.channel_tiles = -(-plan.channels // self.width)
        self.row_block = values["block_rows"] or self.row_tiles
        self.channel_block = values["block_channels"] or self.channel_tiles
        self.ranges = {"row": (0, self.row_block - 1), "channel": (0, self.channel_block - 1)}
        self.runs = Run.all(plan.columns, values["tile_columns"])

    def chunks(self) -> Stmt:
        """The phase."""
        counts = [d.extent for d in self.plan.others]
        counts += [-(-self.row_tiles // self.row_block), -(-self.channel_tiles // self.channel_block)]
        total = stride = prod(counts)
        self.ranges["chunk"] = (0, total - 1)
        numbers: list[Expr] = []
        for count in counts:
            stride //= count
            outer = Var("chunk") // stride
            numbers.append(const(0) if count == 1 else outer if stride * count == total else outer % count)
        *others, row, channel = numbers
        body = self.chunk(others, row, channel)
        return For("chunk", total, body, LoopKind.PARALLEL) if total > 1 else body

    def chunk(self, others: Sequence[Expr], row: Expr, channel: Expr) -> Stmt:
        """One chunk, given the places along the other directions and the numbers of its blocks."""
        row_tile = row * self.row_block + (Var("row") if self.row_block > 1 else const(0))

        def tile(run: Run, column_tile: Expr, base: Expr, channels: int) -> Stmt:
            tiles = (*others, row_tile, column_tile)
            ranges = self.ranges | {"column": (0, run.count - 1)}
            return _Tile(self.plan, self.values, run, tiles, base, Part.all(channels, self.plan.lanes), ranges).lower()

        def columns(inside: Callable[[Run, Expr], Stmt]) -> Stmt:
            return Block(tuple(_repeated("column", run.count, partial(inside, run), run.first) for run in self.runs))

        def rows(inside: Stmt) -> Stmt:
            spare = self.row_tiles % self.row_block
            inside = If(op("lt", row_tile, self.row_tiles), inside) if spare else inside
            return For("row", self.row_block, inside) if self.row_block > 1 else inside

        channels = partial(self.channel_loop, channel)
        match self.values["order"]:
            case 0:
                return channels(lambda base, n: rows(columns(lambda run, at: tile(run, at, base, n))))
            case 1:
                return rows(channels(lambda base, n: columns(lambda run, at: tile(run, at, base, n))))
            case _:
                return rows(columns(lambda run, at: channels(lambda base, n: tile(run, at, base, n))))

    def channel_loop(self, block: Expr, inside: Callable[[Expr, int], Stmt]) -> Stmt:
        """`inside` for each tile of channels of a block: its first channel, and how many there are."""
        whole, rest = divmod(self.plan.channels, self.width)
        together = self.channel_block
        last = [inside(const(whole * self.width), rest)] if rest else []
        if together == self.channel_tiles:
            full = [_repeated("channel", whole, lambda at: inside(at * self.width, self.width))] if whole else []
            return Block((*full, *last))

        def one(at: Expr) -> Stmt:
            number = block * together + at
            steps = [inside(number * self.width, self.width)]
            if rest or self.channel_tiles % together:
                steps = [If(op("lt", number, whole), steps[0]), *(If(op("eq", number, whole), s) for s in last)]
            return Block(tuple(steps))

        return _repeated("channel", together, one)


def _repeated(var: str, extent: int, inside: Callable[[Expr], Stmt], first: int = 0) -> Stmt:
    """`inside` for each number from `first` on; no loop for one alone."""
    return For(var, extent, inside(Var(var) + first)) if extent > 1 else inside(const(first))


OWN = Load(ACC, (), DType.F32)
"""Stands for the fold of one window in what follows it."""


class _Tile:
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
        self.touched = self._touched()
        across = len(self.touched) if self.found.plain else len(run.taps)
        self.around = transform(self.stage.body, lambda node: OWN if node == self.found.read else node)
        self.laid: dict[tuple[int, ...], Expr] = {}  # of `around`, by taps and vector
        shape = (self.height, max(across, 1), len(parts), plan.lanes)
        self.acc = Buffer(ACC, shape, self.stage.body.dtype, Scope.REGISTER)
        self.slots = {place: self._slot(*place) for place in product(*map(range, shape[:-1]))}

    def _touched(self) -> dict[int, list[tuple[int, int]]]:
        """The columns of the input that the tile reads, from its first place on: windows and taps that each is of."""
        found: dict[int, list[tuple[int, int]]] = {}
        along = self.plan.columns
        for place, taps in enumerate(self.run.taps):
            for tap in taps:
                found.setdefault(along.offset(place, tap), []).append((place, tap))
        return dict(sorted(found.items()))

    def lower(self) -> Stmt:
        empty = set(self.slots.values())
        lines = [(line, self._guard(line)) for line in self._lines()]
        steps: list[Stmt] = []
        for line, guard in lines:
            if guard == const(True):
                steps += self._folds(line, empty)
        start = Const(identity(self.stage.combiner, self.acc.dtype), self.acc.dtype)
        steps += [Store(ACC, slot.index, start) for slot in self.slots.values() if slot in empty]
        for line, guard in lines:
            if not isinstance(guard, Const):
                steps.append(If(guard, Block(tuple(self._folds(line, set())))))
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

    def _lines(self) -> list[Line]:
        """The rows of the input that the tile reads."""
        rows = self.plan.rows
        offsets: dict[int, list[tuple[int, int]]] = {}
        for place, tap in product(range(self.height), range(rows.taps)):
            offsets.setdefault(rows.offset(place, tap), []).append((place, tap))
        return [
            Line(taps, offset, tuple(places))
            for taps in product(*(range(d.taps) for d in self.plan.others))
            for offset, places in sorted(offsets.items())
        ]

    def _positions(self, line: Line) -> list[tuple[Direction, Expr, tuple[int, int]]]:
        """Of each direction but the columns, where the line is, and the least and the most that this comes to."""
        found = []
        for along, place, tap in zip(self.plan.others, self.others, line.taps, strict=True):
            first = along.offset(0, tap)
            found.append((along, place * along.stride + first, (first, along.offset(along.extent - 1, tap))))
        rows = self.plan.rows
        last = (-(-rows.extent // self.height) - 1) * self.height * rows.stride + line.offset
        return [*found, (rows, self.row * rows.stride + line.offset, (line.offset, last))]

    def _guard(self, line: Line) -> Expr:
        """Whether the line is no padding."""
        guard: Expr = const(True)
        for along, position, (least, most) in self._positions(line):
            first, end = along.inside
            if least < first:
                guard = op("and", guard, op("le", first, position))
            if most >= end:
                guard = op("and", guard, op("lt", position, end))
        return guard

    def _folds(self, line: Line, empty: set[Load]) -> list[Stmt]:
        """All that one line adds; registers that are `empty` so far are set, and are so no more."""
        places = {along.at: position for along, position, _ in self._positions(line)}
        columns = self.plan.columns
        steps: list[Stmt] = []
        for number, (offset, uses) in enumerate(self.touched.items()):
            places[columns.at] = self.column * columns.stride + offset
            for n in range(len(self.parts)):
                element = self._laid(substitute(self.found.element, places), n)
                for row, row_tap in line.windows:
                    if self.found.plain:
                        steps.append(self._fold((row, number, n), element, empty))
                        continue
                    for column, tap in uses:
                        value = self._around(element, (*line.taps, row_tap, tap), n)
                        steps.append(self._fold((row, column, n), value, empty))
        return steps

    def _around(self, element: Expr, taps: tuple[int, ...], number: int) -> Expr:
        """What is folded of an element: with weights, its product with that of the taps."""
        key = (*taps, number)
        if key not in self.laid:
            along = (*self.plan.others, self.plan.rows, self.plan.columns)
            values = {d.tap: const(tap) for d, tap in zip(along, taps, strict=True)}
            self.laid[key] = self._laid(substitute(self.around, values), number)
        return transform(self.laid[key], lambda node: element if node == OWN else node)

    def _fold(self, place: tuple[int, int, int], value: Expr, empty: set[Load]) -> Stmt:
        slot = self.slots[place]
        if slot in empty:
            empty.remove(slot)
            return Store(ACC, slot.index, value)
        return Store(ACC, slot.index, folded(self.stage.combiner, slot, value))

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
        piece = self.found.piece
        places = self._places(row, column)
        value = self._result(row, column, number)
        finish = transform(piece.finish, lambda node: OWN if self._is_own(node) else node)
        finish = self._laid(simplify(substitute(finish, places), self.ranges), number)
        finish = transform(finish, lambda node: value if node == OWN else _reciprocal(node))
        index = tuple(self._laid(substitute(e, places), number) for e in piece.index)
        return Store(piece.output, index, finish, self.parts[number].count)

    def _is_own(self, node: Expr) -> bool:
        return isinstance(node, Load) and node.tensor == self.stage.output

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


def _reciprocal(node: Expr) -> Expr:
    """Vectors over one number are as many divisions; they are multiplied by its inverse, which is worked out once."""
    match node:
        case Op("div", (vector, number), dtype) if dtype.is_float and vector.lanes > 1 and number.lanes == 1:
            return vector * (const(1.0, dtype) / number)
    return node
