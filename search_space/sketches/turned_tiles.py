"""Turned tiles: a task on a GPU that reads a tensor across, by tiles that are turned in shared memory.

The pieces besides the heaviest one are launches of their own.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import BLOCK_THREADS, WARP
from tunewright.codegen.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..grids.elements import plain_launch
from ..grids.turned_tile import Turn, TurnedTile
from ..nests.phases import params, temporaries
from ..nests.pieces import Piece, pieces
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

LEAST = 8
"""Elements along both axes from which on turning them pays."""


@lru_cache(maxsize=256)
def _seen(task: Task) -> tuple[tuple[Piece, ...], Turn] | None:
    """The task's pieces, and the turn of the heaviest, if it has one."""
    found = tuple(pieces(task))
    turn = Turn.of(max(found, key=lambda piece: piece.stage.points))
    if turn is None or min(turn.read.extent, turn.written.extent) < LEAST:
        return None
    return found, turn


class TurnedTilesSketch:
    """See the module."""

    name = "turned_tiles"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == CUDA and _seen(task) is not None

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        _, turn = _plan(task)
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=(Knob("extent", (16, 32, 64)), Knob("each", (1, 2, 4, 8, 16))),
            legal=_legal,
            tiling=lambda columns: _tiling(turn, columns),
            preferred={"extent": 32, "each": 4},
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found, turn = _plan(task)
        main = TurnedTile(turn, schedule["extent"], schedule["each"]).lower()
        launches = tuple(main if piece is turn.piece else plain_launch(piece) for piece in found)
        return Kernel(params(task, {}), temporaries(task, found), Block(launches))


def _plan(task: Task) -> tuple[tuple[Piece, ...], Turn]:
    found = _seen(task)
    assert found is not None
    return found


def _legal(columns: Columns) -> NDArray[np.bool_]:
    """Whole warps."""
    threads = columns["extent"] * columns["extent"] // columns["each"]
    return np.asarray((threads >= WARP) & (threads <= BLOCK_THREADS))


def _tiling(turn: Turn, columns: Columns) -> Tiling:
    """The tile of a thread, and of a block."""
    stage, extent = turn.piece.stage, columns["extent"]
    one = np.ones_like(extent)
    extents = {axis.name: one * axis.extent for axis in stage.axes}
    single = dict.fromkeys(extents, one)
    thread = single | {turn.read.name: np.minimum(columns["each"], turn.read.extent)}
    block = single | {axis.name: np.minimum(extent, axis.extent) for axis in (turn.read, turn.written)}
    tiles = (
        prod(axis.extent for axis in turn.others) * -(-turn.read.extent // extent) * -(-turn.written.extent // extent)
    )
    return Tiling(stage, (thread, block, extents), turn.written.name, tiles)
