"""Transpose tiles: a task on a GPU that reads a tensor across, by tiles that are transposed in shared memory.

    block                              the other axes, a tile of both
      thread                           a row of the tile and a place in it
        tile[row, place] = element     neighbours in the tensor that is read
        barrier
        output = f(tile[place, row])   neighbours in the output

Else either what is read or what is written would be one element of each line of memory that is moved. The fused stages
besides the heaviest one are launches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Expr, Load, Var, substitute, transform
from tunewright.codegen.gpu import BLOCK_THREADS, WARP
from tunewright.codegen.ir.ir import Alloc, Barrier, Block, Buffer, For, Kernel, LoopKind, Scope, Stmt, Store
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Axis, Task

from ..axes import axis_indices, unravel
from ..buffers import params, temporaries
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.fused_stage import FusedStage, fuse_stages
from ..patterns.vector_axis import is_contiguous
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling
from .tiles.elements import plain_launch
from .tiles.sides import guard_extent

OTHER_REGISTERS = 24
"""Registers of a thread for indices, beside its elements."""

LEAST = 8
"""Elements along both axes from which on transposing them pays."""


@dataclass(frozen=True, slots=True)
class Transposition:
    """A fused stage without a fold, and its load whose neighbours are not neighbours in the output."""

    fused_stage: FusedStage
    load: Load
    read_axis: Axis  # contiguous in the tensor that is read
    write_axis: Axis  # contiguous in the output

    @staticmethod
    def of(fused_stage: FusedStage) -> Transposition | None:
        """The transposition of a fused stage, if it has one."""
        axes = fused_stage.stage.axes
        write_axis = next((axis for axis in axes if is_contiguous(fused_stage.index, axis.name)), None)
        if fused_stage.stage.reduce or write_axis is None:
            return None
        for load in fused_stage.reads:
            read_axis = next((axis for axis in axes if is_contiguous(load.index, axis.name)), None)
            if read_axis is not None and read_axis is not write_axis:
                return Transposition(fused_stage, load, read_axis, write_axis)
        return None

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The axes besides those two."""
        return tuple(axis for axis in self.fused_stage.stage.axes if axis not in (self.read_axis, self.write_axis))


class TurnedTilesSketch(PatternSketch[Transposition]):
    """Tiles that are transposed in shared memory."""

    name = "turned_tiles"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Transposition | None:
        transposition = Transposition.of(max(fuse_stages(task), key=lambda fused_stage: fused_stage.stage.points))
        if transposition is None or min(transposition.read_axis.extent, transposition.write_axis.extent) < LEAST:
            return None
        return transposition

    def offer(self, task: Task, transposition: Transposition, target: Target) -> Space:
        return self.space_of(
            (Knob("extent", (16, 32, 64)), Knob("each", (1, 2, 4, 8, 16))),
            legal=_legal,
            tiling=lambda columns: _tiling(transposition, columns),
            preferred={"extent": 32, "each": 4},
            block=lambda columns: _block(transposition, columns),
        )

    def write(self, task: Task, transposition: Transposition, schedule: Schedule, target: Target) -> Kernel:
        stages = fuse_stages(task)
        main = TransposeTile(transposition, schedule["extent"], schedule["each"]).lower()
        launches = tuple(
            main if fused_stage == transposition.fused_stage else plain_launch(fused_stage) for fused_stage in stages
        )
        return Kernel(params(task, {}), temporaries(task, stages), Block(launches))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        extent, each = point.values["extent"], point.values["each"]
        yield from point.say_start(
            "A transposition by tiles: a block reads one along one axis and writes it along another.", extent**2 // each
        )
        tile = f"{extent} by {extent} elements in shared memory"
        yield f"A block transposes {tile}, a thread {counted(each, 'element')} of them."


def _threads(columns: Columns) -> NDArray[np.int64]:
    return np.asarray(columns["extent"] * columns["extent"] // columns["each"])


def _block(transposition: Transposition, columns: Columns) -> BlockShape:
    smem_bytes = columns["extent"] * (columns["extent"] + 1) * transposition.load.dtype.size_bytes
    return BlockShape(_threads(columns), columns["each"] + OTHER_REGISTERS, smem_bytes)


def _legal(columns: Columns) -> NDArray[np.bool_]:
    """Whether a block has whole warps."""
    threads = _threads(columns)
    return np.asarray((threads >= WARP) & (threads <= BLOCK_THREADS))


def _tiling(transposition: Transposition, columns: Columns) -> Tiling:
    """The tile of a thread, and of a block."""
    extent, (read_axis, write_axis) = columns["extent"], (transposition.read_axis, transposition.write_axis)
    tiles = -(-read_axis.extent // extent) * -(-write_axis.extent // extent)
    levels = {read_axis.name: columns["each"]}, {read_axis.name: extent, write_axis.name: extent}
    chunks = prod(axis.extent for axis in transposition.outer) * tiles
    return Tiling.of(transposition.fused_stage.stage, write_axis.name, columns, levels, chunks)


TILE = "tile"


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """A transposition and the numbers of its launch."""

    transposition: Transposition
    extent: int  # of a tile, both ways
    each: int  # elements of a thread; divides the extent

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.extent * self.extent // self.each

    def lower(self) -> Stmt:
        """The loops of the launch."""
        transposition = self.transposition
        counts = [prod(axis.extent for axis in transposition.outer)]
        counts += [-(-axis.extent // self.extent) for axis in (transposition.read_axis, transposition.write_axis)]
        outer, down, across = unravel(Var("block"), counts)
        at = axis_indices(transposition.outer, outer)
        begin = {transposition.read_axis.name: down * self.extent, transposition.write_axis.name: across * self.extent}
        row, place = Var("thread") // self.extent, Var("thread") % self.extent
        rows = self.extent // self.each
        body = Block(
            (
                self._each(self._read(at, begin, Var("n") * rows + row, place)),
                Barrier(),
                self._each(self._write(at, begin, Var("n") * rows + row, place)),
            )
        )
        threads = For("thread", self.threads, body, LoopKind.THREAD)
        # One more element a row, so that a column lies in other banks from row to row.
        tile = Buffer(TILE, (self.extent, self.extent + 1), transposition.load.dtype, Scope.SHARED)
        return For("block", prod(counts), Alloc(tile, threads), LoopKind.BLOCK)

    def _each(self, stmt: Stmt) -> Stmt:
        return For("n", self.each, stmt, LoopKind.UNROLL)

    def _read(self, at: Mapping[str, Expr], begin: Mapping[str, Expr], row: Expr, place: Expr) -> Stmt:
        read_axis, write_axis = self.transposition.read_axis, self.transposition.write_axis
        indices = {**at, write_axis.name: begin[write_axis.name] + row, read_axis.name: begin[read_axis.name] + place}
        element = substitute(self.transposition.load, indices)
        return self._inside(indices, Store(TILE, (row, place), element))

    def _write(self, at: Mapping[str, Expr], begin: Mapping[str, Expr], row: Expr, place: Expr) -> Stmt:
        read_axis, write_axis, fused_stage = (
            self.transposition.read_axis,
            self.transposition.write_axis,
            self.transposition.fused_stage,
        )
        indices = {**at, read_axis.name: begin[read_axis.name] + row, write_axis.name: begin[write_axis.name] + place}
        element = Load(TILE, (place, row), self.transposition.load.dtype)
        value = fused_stage.apply_epilogue(fused_stage.stage.body)
        result = transform(value, lambda node: element if node == self.transposition.load else node)
        index = tuple(substitute(at, indices) for at in fused_stage.index)
        return self._inside(indices, Store(fused_stage.output, index, substitute(result, indices)))

    def _inside(self, indices: Mapping[str, Expr], stmt: Stmt) -> Stmt:
        for axis in (self.transposition.read_axis, self.transposition.write_axis):
            stmt = guard_extent(indices[axis.name], axis.extent, self.extent, stmt)
        return stmt
