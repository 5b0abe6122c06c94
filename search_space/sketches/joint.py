"""Joint: several products over the same axes, held in registers together until what needs all of them is computed.

The outputs' contiguous axis lies along the vector lanes. It belongs to one operand alone of each product, its *panel*
(weights, as a rule, packed when a model is compiled); scalars of the other operand are broadcast against its vectors.
A register tile has accumulators for the same rows and columns of every product. What follows is applied to them, and
only what the task gives away is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Var, const, op, substitute, transform
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Packing, Scope, Stmt, Store
from tunewright.codegen.lanes import vectorize
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..nests.digits import digits
from ..nests.phases import params
from ..nests.tile import ACC, INNER, KEPT, MADE, TILE, Part, parts_of, unrolled_loop
from ..products.joint import Joint, joint
from ..products.product import Product, packable, packed
from ..products.tiling import block_choices, tiling
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

MOST_ROWS = 7
"""Rows of a register tile at most: with two products of one vector each, 14 accumulators and 7 scalars."""

BODY_LIMIT = 256
"""Multiply-adds in one copy of the innermost body, beyond which the instruction cache suffers."""

ALONE_POINTS = 1 << 15
"""Multiply-adds up to which one thread is done before several have met: half a microsecond of them."""

SHARED_ROWS = 4
"""Rows of a thread's tiles from which on the panels are read often enough for each thread to read all of them."""


class JointSketch:
    """See the module."""

    name = "joint"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        found = joint(task) if target.kind == "cpu" else None
        return found is not None and found.extent(found.vector) * 2 >= target.lanes(4)

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _joint(task)
        vectors = -(-found.extent(found.vector) // target.lanes(4))
        rows = min(found.extent(found.tiled), MOST_ROWS)
        knobs = (
            Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6) if n <= vectors)),
            Knob("tile_rows", tuple(range(1, rows + 1))),
            Knob("block_rows", (0, 1)),
            Knob("block_columns", block_choices(vectors)),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if n <= found.depth)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(found, target, columns),
            tiling=lambda columns: _tiling(found, target, columns),
            preferred=_preferred(found, target),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        return _Loops(task, _joint(task), dict(schedule.values), target.lanes(4)).kernel()


def _joint(task: Task) -> Joint:
    found = joint(task)
    assert found is not None
    return found


def _registers(found: Joint, vectors: Any, rows: Any) -> Any:
    """Accumulators, the rows' scalars, a vector of a panel. Takes arrays too."""
    return len(found.products) * vectors * rows + rows + 1


def _legal(found: Joint, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache, and no two points alike."""
    vectors, rows = columns["vectors"], columns["tile_rows"]
    legal = _registers(found, vectors, rows) <= target.vector_registers
    bodies = len(found.products) * vectors * rows * columns["unroll"]
    legal &= (columns["unroll"] == 1) | (bodies <= BODY_LIMIT)
    legal &= columns["block_columns"] < -(-found.extent(found.vector) // (vectors * target.lanes(4)))
    return np.asarray(legal & ((columns["block_rows"] == 0) | (rows < found.extent(found.tiled))))


def _preferred(found: Joint, target: Target) -> dict[str, int]:
    """As many rows as fit, else two vectors of each product; much work is shared, if there are many rows by rows.

    A state that threads share by rows stays in their own caches from step to step. By columns, each reads its own part
    of the panels only.
    """
    lanes, wanted = target.lanes(4), target.threads if found.points > ALONE_POINTS else 1
    vectors, rows = -(-found.extent(found.vector) // lanes), found.extent(found.tiled)
    wide = 2 if rows == 1 and vectors > 1 and _registers(found, 2, 1) <= target.vector_registers else 1
    heights = (n for n in range(1, min(rows, MOST_ROWS) + 1) if _registers(found, wide, n) <= target.vector_registers)
    high = max(heights, default=1)
    pieces = -(-rows // (high * wanted)) * wanted
    by_rows = wanted > 1 and -(-rows // pieces) >= SHARED_ROWS
    tiles = -(-vectors // wide)
    blocks = [n for n in block_choices(tiles) if 0 < n < tiles]
    even = [n for n in blocks if tiles % (n * wanted) == 0]
    return {
        "vectors": wide,
        "tile_rows": -(-rows // pieces) if by_rows else high,
        "block_rows": int(by_rows),
        "block_columns": max(even or blocks[:1], default=0) if wanted > 1 and not by_rows else 0,
        "unroll": min(2, found.depth),
    }


def _tiling(found: Joint, target: Target, columns: Columns) -> Tiling:
    tile, block = {found.vector: columns["vectors"] * target.lanes(4)}, {found.vector: columns["block_columns"]}
    if found.tiled:
        tile[found.tiled], block[found.tiled] = columns["tile_rows"], columns["block_rows"]
    return tiling(found.products[0].piece.stage, found.vector, tile, block, columns["unroll"])


COLUMN, ROW = "column", "row"
"""Loops over the tiles of a chunk."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """The tiles along one axis: `chunks` pieces of `inside` tiles each, the last tile of them smaller."""

    extent: int
    size: int  # of a tile
    block: int  # tiles in a chunk; 0 for all

    @property
    def tiles(self) -> int:
        return -(-self.extent // self.size)

    @property
    def inside(self) -> int:
        return min(self.block or self.tiles, self.tiles)

    @property
    def chunks(self) -> int:
        return -(-self.tiles // self.inside)

    def place(self, chunk: Expr, loop: str) -> Expr:
        """The number of a tile."""
        return chunk * self.inside + (Var(loop) if self.inside > 1 else const(0))

    def split(self, tile: Expr, write: Callable[[int], Stmt]) -> Stmt:
        """A tile of the full size, or of what is left in the end."""
        full, left = divmod(self.extent, self.size)
        if not full:
            return write(left)
        if left:
            return Block((If(op("lt", tile, full), write(self.size)), If(op("eq", tile, full), write(left))))
        return If(op("lt", tile, full), write(self.size)) if self.chunks * self.inside > full else write(self.size)


class _Loops:
    """The loops of one schedule."""

    def __init__(self, task: Task, found: Joint, values: Mapping[str, int], lanes: int) -> None:
        self.task, self.found, self.lanes, self.unroll = task, found, lanes, values["unroll"]
        self.rows = _Axis(found.extent(found.tiled), values["tile_rows"], values["block_rows"])
        self.columns = _Axis(found.extent(found.vector), values["vectors"] * lanes, values["block_columns"])
        self.packings: dict[str, Packing] = {}
        self.operands = [self._laid_out(one) for one in found.products]

    def _laid_out(self, one: Product) -> tuple[Load, Load]:
        """The scalar and the panel of a product, as they are read."""
        if not packable(self.task, one.panel):
            return one.other, one.panel
        tensor = self.task.tensor(one.panel.tensor)
        self.packings[tensor.name], index = packed(one, tensor, self.columns.size)
        return one.other, Load(tensor.name, index, tensor.dtype)

    def kernel(self) -> Kernel:
        return Kernel(params(self.task, self.packings), (), Block((self._chunks(),)), self.packings)

    def _chunks(self) -> Stmt:
        """Chunks are some tiles of rows and columns, at one place of all outer rows."""
        outer = self.found.rows[:-1]
        counts = [*map(self.found.extent, outer), self.rows.chunks, self.columns.chunks]
        total = prod(counts)
        numbers = [const(0) if n == 1 else at for n, at in zip(counts, digits(Var("chunk"), counts), strict=True)]
        row, column = self.rows.place(numbers[-2], ROW), self.columns.place(numbers[-1], COLUMN)
        around = dict(zip(outer, numbers, strict=False))

        def across(height: int) -> Stmt:
            return self.columns.split(column, lambda width: self._tile(around, row, column, height, width))

        body = self.rows.split(row, across)
        if self.rows.inside > 1:
            body = For(ROW, self.rows.inside, body)
        if self.columns.inside > 1:
            body = For(COLUMN, self.columns.inside, body)
        return For("chunk", total, body, LoopKind.PARALLEL) if total > 1 else body

    def _tile(self, outer: Mapping[str, Expr], row: Expr, column: Expr, height: int, width: int) -> Stmt:
        vector, tiled = self.found.vector, self.found.tiled
        lane = Var(vector + INNER)
        places = {**outer, vector: column * self.columns.size + lane, vector + TILE: column, vector + INNER: lane}
        if tiled:
            places[tiled] = row * self.rows.size + (Var(tiled + INNER) if height > 1 else const(0))
        return _Tile(self, places, height, parts_of(width, self.lanes)).lower()


class _Tile:
    """One register tile."""

    def __init__(self, loops: _Loops, places: Mapping[str, Expr], height: int, parts: list[Part]) -> None:
        self.found, self.operands, self.unroll = loops.found, loops.operands, loops.unroll
        self.lanes, self.places, self.height, self.parts = loops.lanes, places, height, parts
        shape = (height, len(parts) * self.lanes)
        self.sums = [Buffer(f"{ACC}{n}", shape, DType.F32, Scope.REGISTER) for n in range(len(self.operands))]

    def lower(self) -> Stmt:
        zero = Const(0.0, DType.F32)
        start = [Store(acc.name, self._sum(acc, part).index, zero) for acc in self.sums for part in self.parts]
        body = self._each_row(Block(tuple(start)))
        body = Block((body, self._reduction(), self._each_row(Block(tuple(map(self._finish, self.parts))))))
        for acc in self.sums:
            body = Block((Alloc(acc, body),))
        return body

    def _each_row(self, body: Stmt) -> Stmt:
        return For(self.found.tiled + INNER, self.height, body, LoopKind.UNROLL) if self.height > 1 else body

    def _sum(self, acc: Buffer, part: Part) -> Load:
        row = Var(self.found.tiled + INNER) if self.height > 1 else const(0)
        load = Load(acc.name, (row, Var(self.found.vector + INNER)), acc.dtype)
        laid = vectorize(load, self.found.vector + INNER, const(part.base), self.lanes)
        assert isinstance(laid, Load)
        return laid

    def _laid(self, value: Expr, part: Part) -> Expr:
        """An expression over the axes, along the lanes of one vector."""
        placed = substitute(value, self.places)
        return vectorize(placed, self.found.vector + INNER, const(part.base), self.lanes, part.count)

    def _reduction(self) -> Stmt:
        """Each vector of a panel is read once and meets all rows."""
        folds: list[Stmt] = []
        for acc, (scalar, panel) in zip(self.sums, self.operands, strict=True):
            for part in self.parts:
                kept = Buffer(KEPT, (self.lanes,), DType.F32, Scope.REGISTER)
                whole = self._whole(kept)
                total = self._sum(acc, part)
                factor = substitute(scalar, self.places)
                fold = self._each_row(Store(total.tensor, total.index, op("fma", factor, whole, total)))
                read = Store(KEPT, whole.index, self._laid(panel, part))
                folds.append(Alloc(kept, Block((read, fold))))
        body: Stmt = Block(tuple(folds))
        for axis in reversed(self.found.products[0].piece.stage.reduce):
            body = unrolled_loop(axis.name, axis.extent, min(self.unroll, axis.extent), body)
        return body

    def _whole(self, register: Buffer) -> Load:
        load = Load(register.name, (Var(INNER),), register.dtype)
        laid = vectorize(load, INNER, const(0), self.lanes)
        assert isinstance(laid, Load)
        return laid

    def _finish(self, part: Part) -> Stmt:
        """What follows the products, at one row and vector. What it makes stays in registers for what follows that."""
        done = {p.piece.output: self._sum(acc, part) for p, acc in zip(self.found.products, self.sums, strict=True)}
        made: list[Buffer] = []
        steps: list[Stmt] = []

        def known(node: Expr) -> Expr:
            return done.get(node.tensor, node) if isinstance(node, Load) else node

        for number, stage in enumerate(self.found.after):
            made.append(Buffer(f"{MADE}{number}", (self.lanes,), stage.body.dtype, Scope.REGISTER))
            value = self._whole(made[-1])
            steps.append(Store(value.tensor, value.index, transform(self._laid(stage.body, part), known)))
            done[stage.output] = value
            if stage.output in self.found.outputs:
                index = tuple(self._laid(e, part) for e in stage.index)
                count = part.count if any(e.lanes > 1 for e in index) else None
                steps.append(Store(stage.output, index, value, count))
        body: Stmt = Block(tuple(steps))
        for register in made:
            body = Alloc(register, body)
        return body
