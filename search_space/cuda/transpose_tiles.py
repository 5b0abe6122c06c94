"""Transpose tiles: a task on a GPU that reads a tensor across, by tiles that are transposed in shared memory
(`tiles.transpose_tile`).

Else either what is read or what is written would be one element of each line of memory that is moved. The fused stages
besides the heaviest one are launches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.gpu import BLOCK_THREADS, WARP
from tunewright.codegen.ir.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..buffers import params, temporaries
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.fused_stage import fuse_stages
from ..patterns.transposition import Transposition
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling
from .tiles.element_launch import plain_launch
from .tiles.transpose_tile import TransposeTile

OTHER_REGISTERS = 24
"""Registers of a thread for indices, beside its elements."""

LEAST = 8
"""Elements along both axes from which on transposing them pays."""


class TransposeTilesSketch(PatternSketch[Transposition]):
    """Tiles that are transposed in shared memory."""

    name = "turned_tiles"  # records know it by this name
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
