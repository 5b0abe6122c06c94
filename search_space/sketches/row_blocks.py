"""Row blocks: softmax, normalisations and the like on a GPU, each row in the registers of some warps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import BLOCK_THREADS, WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..grids.row_blocks import RowBlocks, kept
from ..nests.phases import params
from ..rows.steps import COLUMN, Plan, plan
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

MOST_KEPT = 96
"""Registers of a thread for what it keeps of its columns."""

MOST_ROUNDS = 32
"""Copies of the body, one a round."""

WARPS = (1, 2, 4, 8, 16, 32)
VECTORS = (1, 2, 4)

FEW_ROUNDS = 4
"""Rounds of a row from which on more warps are given to it by default."""

DEFAULT_THREADS = 128
"""Of a block of short rows, by default."""


class RowBlocksSketch:
    """See the module."""

    name = "row_blocks"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        if target.kind != CUDA:
            return False
        found = plan(task, WARP)
        return found is not None and all(step.piece.stage.body.dtype is DType.F32 for step in found.steps if step.folds)

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _plan(task)
        knobs = (
            Knob("warps", WARPS),
            Knob("lines", (1, 2, 4, 8, 16, 32)),
            Knob("vector", VECTORS),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(found, columns),
            tiling=lambda columns: _tiling(found, columns),
            preferred=_preferred(found),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        launch = RowBlocks(_plan(task), schedule["warps"], schedule["lines"], schedule["vector"]).lower()
        return Kernel(params(task, {}), (), Block((launch,)))


def _plan(task: Task) -> Plan:
    found = plan(task, WARP)
    assert found is not None
    return found


def _fits(found: Plan, warps: int, vector: int) -> bool:
    """Whether rows go into the registers of so many warps."""
    columns = {name: np.array([value]) for name, value in (("warps", warps), ("lines", 1), ("vector", vector))}
    return bool(_legal(found, columns)[0])


def _rounds(found: Plan, columns: Columns) -> NDArray[np.int64]:
    return np.asarray(-(-found.columns // (columns["warps"] * WARP * columns["vector"])))


def _legal(found: Plan, columns: Columns) -> NDArray[np.bool_]:
    """A row is in registers, hardly a thread is without columns, and a block is not too large."""
    warps, lines, vector = columns["warps"], columns["lines"], columns["vector"]
    rounds = _rounds(found, columns)
    legal = (found.columns % vector == 0) & (rounds <= MOST_ROUNDS) & (kept(found) * rounds * vector <= MOST_KEPT)
    legal &= (warps == 1) | (warps * WARP * vector < 2 * found.columns)
    legal &= (vector == 1) | (WARP * vector < 2 * found.columns)
    legal &= (lines == 1) | (lines < 2 * found.row_count)
    return np.asarray(legal & (warps * lines * WARP <= BLOCK_THREADS))


def _preferred(found: Plan) -> Mapping[str, int]:
    """The widest accesses, a row for as few warps as read it in few rounds, short rows together in a block."""
    vector = max((n for n in VECTORS if any(_fits(found, warps, n) for warps in WARPS)), default=1)
    fitting = [warps for warps in WARPS if _fits(found, warps, vector)] or [WARPS[-1]]
    wanted = found.columns / (WARP * vector * FEW_ROUNDS)
    warps = next((n for n in fitting if n >= wanted), fitting[-1])
    lines = max(1, min(DEFAULT_THREADS // (warps * WARP), found.row_count))
    return {"warps": warps, "lines": 1 << (lines.bit_length() - 1), "vector": vector}


def _tiling(found: Plan, columns: Columns) -> Tiling:
    """The columns of a thread in a round, of a row in a round, the rows of a block."""
    stage = found.main.stage
    one = np.ones(len(columns["warps"]), np.int64)
    extents = {axis.name: one * axis.extent for axis in (*stage.axes, *stage.reduce)}
    tile = dict.fromkeys(extents, one)
    thread, row = dict(tile), dict(tile)
    thread[COLUMN] = columns["vector"]
    row[COLUMN] = np.minimum(columns["vector"] * columns["warps"] * WARP, found.columns)
    block = dict(tile) | {COLUMN: one * found.columns}
    left: NDArray[np.int64] = columns["lines"]
    for axis in reversed(found.rows):
        block[axis.name] = np.clip(left, 1, axis.extent)
        left = -(-left // axis.extent)
    return Tiling(stage, (thread, row, block, extents), COLUMN, -(-found.row_count // columns["lines"]))
