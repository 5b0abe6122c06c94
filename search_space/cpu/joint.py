"""Joint: several products over the same axes, together in registers for the stages that need all of them.

The outputs' contiguous axis lies along the vector lanes. It belongs to one operand alone of each product, its *panel*
(weights, as a rule, packed when a model is compiled); scalars of the other operand are broadcast against its vectors.
A register tile has accumulators for the same rows and columns of every product. The later stages are applied to them,
and only outputs of the task are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Ramp, Var, const, op, substitute, transform
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Packing, Scope, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..buffers import allocate, params
from ..description import SchedulePoint
from ..patterns.joint import JointProduct, match_joint_product
from ..patterns.product import Product, is_packable, pack_panel
from ..registers import ACC, HOIST, INNER, RESULT, TILE
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling
from .loops.blocking import block_choices, tiling
from .loops.chunks import TileAxis, chunk_indices, chunk_loop
from .loops.tile import TileVector, tile_vectors, unrolled_loop

MOST_ROWS = 7
"""Rows of a register tile at most: with two products of one vector each, 14 accumulators and 7 scalars."""

BODY_LIMIT = 256
"""Multiply-adds in one copy of the innermost body, beyond which the instruction cache suffers."""

ALONE_POINTS = 1 << 15
"""Multiply-adds up to which one thread is faster than several, which must synchronise: half a microsecond."""

SHARED_ROWS = 4
"""Rows of a thread's tiles from which on the panels are read often enough for each thread to read all of them."""


class JointSketch(PatternSketch[JointProduct]):
    """Register tiles of several products together."""

    name = "joint"
    version = 1

    def recognise(self, task: Task, target: Target) -> JointProduct | None:
        joint = match_joint_product(task)
        return joint if joint is not None and joint.extent(joint.vector) * 2 >= target.lanes(4) else None

    def offer(self, task: Task, joint: JointProduct, target: Target) -> Space:
        vectors = -(-joint.extent(joint.vector) // target.lanes(4))
        rows = min(joint.extent(joint.tile_axis), MOST_ROWS)
        knobs = (
            Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6) if n <= vectors)),
            Knob("tile_rows", tuple(range(1, rows + 1))),
            Knob("block_rows", (0, 1)),
            Knob("block_columns", block_choices(vectors)),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if n <= joint.depth)),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(joint, target, columns),
            tiling=lambda columns: _tiling(joint, target, columns),
            preferred=_preferred(joint, target),
        )

    def write(self, task: Task, joint: JointProduct, schedule: Schedule, target: Target) -> Kernel:
        return _JointLoops(task, joint, dict(schedule.values), target.lanes(4)).kernel()

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        together = len(self.pattern(point.task, point.target).products)
        yield from point.say_start(
            f"{together} products over the same axes, side by side in registers until what needs them all is computed."
        )
        yield from point.say_chunk(point.tiles[-2])
        yield from point.say_tile(point.tiles[0], together)
        yield from point.say_copies(point.tiles[0])


def _registers(joint: JointProduct, vectors: Any, rows: Any) -> Any:
    """Accumulators, the rows' scalars, a vector of a panel. Takes arrays too."""
    return len(joint.products) * vectors * rows + rows + 1


def _legal(joint: JointProduct, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache, and no two points alike."""
    vectors, rows = columns["vectors"], columns["tile_rows"]
    legal = _registers(joint, vectors, rows) <= target.vector_registers
    bodies = len(joint.products) * vectors * rows * columns["unroll"]
    legal &= (columns["unroll"] == 1) | (bodies <= BODY_LIMIT)
    legal &= columns["block_columns"] < -(-joint.extent(joint.vector) // (vectors * target.lanes(4)))
    return np.asarray(legal & ((columns["block_rows"] == 0) | (rows < joint.extent(joint.tile_axis))))


def _preferred(joint: JointProduct, target: Target) -> dict[str, int]:
    """As many rows as fit, else two vectors of each product; much work is shared, if there are many rows by rows.

    A state that threads share by rows stays in their own caches from step to step. By columns, each reads its own part
    of the panels only.
    """
    lanes, threads = target.lanes(4), target.threads if joint.points > ALONE_POINTS else 1
    vectors, rows = -(-joint.extent(joint.vector) // lanes), joint.extent(joint.tile_axis)
    wide = 2 if rows == 1 and vectors > 1 and _registers(joint, 2, 1) <= target.vector_registers else 1
    heights = (n for n in range(1, min(rows, MOST_ROWS) + 1) if _registers(joint, wide, n) <= target.vector_registers)
    high = max(heights, default=1)
    chunks = -(-rows // (high * threads)) * threads
    by_rows = threads > 1 and -(-rows // chunks) >= SHARED_ROWS
    tiles = -(-vectors // wide)
    blocks = [n for n in block_choices(tiles) if 0 < n < tiles]
    even = [n for n in blocks if tiles % (n * threads) == 0]
    return {
        "vectors": wide,
        "tile_rows": -(-rows // chunks) if by_rows else high,
        "block_rows": int(by_rows),
        "block_columns": max(even or blocks[:1], default=0) if threads > 1 and not by_rows else 0,
        "unroll": min(2, joint.depth),
    }


def _tiling(joint: JointProduct, target: Target, columns: Columns) -> Tiling:
    tile, block = {joint.vector: columns["vectors"] * target.lanes(4)}, {joint.vector: columns["block_columns"]}
    if joint.tile_axis:
        tile[joint.tile_axis], block[joint.tile_axis] = columns["tile_rows"], columns["block_rows"]
    return tiling(joint.products[0].fused_stage.stage, joint.vector, tile, block, columns["unroll"])


COLUMN, ROW = "column", "row"
"""Loops over the tiles of a chunk."""


def _of_each_size(axis: TileAxis, tile: Expr, write: Callable[[int], Stmt]) -> Stmt:
    """A tile of the full size, or the smaller last one, by its number."""
    full, left = divmod(axis.extent, axis.size)
    if not full:
        return write(left)
    if left:
        return Block((If(op("lt", tile, full), write(axis.size)), If(op("eq", tile, full), write(left))))
    return axis.guard(tile, write(axis.size))


class _JointLoops:
    """The loops of one schedule."""

    def __init__(self, task: Task, joint: JointProduct, values: Mapping[str, int], lanes: int) -> None:
        self.task, self.joint, self.lanes, self.unroll = task, joint, lanes, values["unroll"]
        self.rows = TileAxis(joint.extent(joint.tile_axis), values["tile_rows"], values["block_rows"])
        self.columns = TileAxis(joint.extent(joint.vector), values["vectors"] * lanes, values["block_columns"])
        self.packings: dict[str, Packing] = {}
        self.operands = [self._pack(product) for product in joint.products]

    def _pack(self, product: Product) -> tuple[Load, Load]:
        """The scalar and the panel of a product, as they are read."""
        if not is_packable(self.task, product.panel):
            return product.broadcast, product.panel
        tensor = self.task.tensor(product.panel.tensor)
        self.packings[tensor.name], index = pack_panel(product, tensor, self.columns.size)
        return product.broadcast, Load(tensor.name, index, tensor.dtype)

    def kernel(self) -> Kernel:
        return Kernel(params(self.task, self.packings), (), Block((self._chunks(),)), self.packings)

    def _chunks(self) -> Stmt:
        """The chunks: some tiles of rows and columns, at one index along all outer rows."""
        outer = self.joint.rows[:-1]
        counts = [*map(self.joint.extent, outer), self.rows.chunks, self.columns.chunks]
        numbers = chunk_indices(counts)
        row, column = self.rows.number(numbers[-2], ROW), self.columns.number(numbers[-1], COLUMN)
        indices = dict(zip(outer, numbers, strict=False))

        def across(height: int) -> Stmt:
            return _of_each_size(self.columns, column, lambda width: self._tile(indices, row, column, height, width))

        body = self.rows.loop(ROW, _of_each_size(self.rows, row, across))
        return chunk_loop(prod(counts), self.columns.loop(COLUMN, body))

    def _tile(self, outer: Mapping[str, Expr], row: Expr, column: Expr, height: int, width: int) -> Stmt:
        vector, tiled = self.joint.vector, self.joint.tile_axis
        lane = Var(vector + INNER)
        places = {**outer, vector: column * self.columns.size + lane, vector + TILE: column, vector + INNER: lane}
        if tiled:
            places[tiled] = row * self.rows.size + (Var(tiled + INNER) if height > 1 else const(0))
        return _JointTile(self, places, height, tile_vectors(width, self.lanes)).lower()


class _JointTile:
    """One register tile."""

    def __init__(self, loops: _JointLoops, places: Mapping[str, Expr], height: int, parts: list[TileVector]) -> None:
        self.joint, self.operands, self.unroll = loops.joint, loops.operands, loops.unroll
        self.lanes, self.places, self.height, self.parts = loops.lanes, places, height, parts
        shape = (height, len(parts) * self.lanes)
        self.sums = [Buffer(f"{ACC}{n}", shape, DType.F32, Scope.REGISTER) for n in range(len(self.operands))]

    def lower(self) -> Stmt:
        zero = Const(0.0, DType.F32)
        start = [Store(acc.name, self._sum(acc, part).index, zero) for acc in self.sums for part in self.parts]
        body = self._each_row(Block(tuple(start)))
        body = Block((body, self._reduction(), self._each_row(Block(tuple(map(self._write, self.parts))))))
        for acc in self.sums:
            body = Block((Alloc(acc, body),))
        return body

    def _each_row(self, body: Stmt) -> Stmt:
        return For(self.joint.tile_axis + INNER, self.height, body, LoopKind.UNROLL) if self.height > 1 else body

    def _sum(self, acc: Buffer, part: TileVector) -> Load:
        row = Var(self.joint.tile_axis + INNER) if self.height > 1 else const(0)
        return Load(acc.name, (row, Ramp(const(part.base), self.lanes)), acc.dtype)

    def _vectorize(self, value: Expr, part: TileVector) -> Expr:
        """An expression over the axes, along the lanes of one vector."""
        scalar = substitute(value, self.places)
        return vectorize(scalar, self.joint.vector + INNER, const(part.base), self.lanes, part.count)

    def _reduction(self) -> Stmt:
        """Each vector of a panel is read once and meets all rows."""
        folds: list[Stmt] = []
        for acc, (scalar, panel) in zip(self.sums, self.operands, strict=True):
            for part in self.parts:
                register = Buffer(HOIST, (self.lanes,), DType.F32, Scope.REGISTER)
                vector = self._whole(register)
                total = self._sum(acc, part)
                factor = op("cast", substitute(scalar, self.places), dtype=DType.F32)
                fold = self._each_row(Store(total.tensor, total.index, op("fma", factor, vector, total)))
                read = Store(HOIST, vector.index, op("cast", self._vectorize(panel, part), dtype=DType.F32))
                folds.append(Alloc(register, Block((read, fold))))
        body: Stmt = Block(tuple(folds))
        for axis in reversed(self.joint.products[0].fused_stage.stage.reduce):
            body = unrolled_loop(axis.name, axis.extent, min(self.unroll, axis.extent), body)
        return body

    def _whole(self, register: Buffer) -> Load:
        return Load(register.name, (Ramp(const(0), self.lanes),), register.dtype)

    def _write(self, part: TileVector) -> Stmt:
        """Write the later stages at one row and vector; their values stay in registers for one another."""
        values = {
            p.fused_stage.output: self._sum(acc, part) for p, acc in zip(self.joint.products, self.sums, strict=True)
        }
        registers: list[Buffer] = []
        steps: list[Stmt] = []

        def from_register(node: Expr) -> Expr:
            return values.get(node.tensor, node) if isinstance(node, Load) else node

        for number, stage in enumerate(self.joint.after):
            registers.append(Buffer(f"{RESULT}{number}", (self.lanes,), stage.body.dtype, Scope.REGISTER))
            value = self._whole(registers[-1])
            steps.append(Store(value.tensor, value.index, transform(self._vectorize(stage.body, part), from_register)))
            values[stage.output] = value
            if stage.output in self.joint.outputs:
                index = tuple(self._vectorize(e, part) for e in stage.index)
                count = part.count if any(e.lanes > 1 for e in index) else None
                steps.append(Store(stage.output, index, value, count))
        return allocate(registers, Block(tuple(steps)))
