"""Row blocks: softmax, normalisations and the like on a GPU, each row in the registers of some warps
(`tiles.row_block`).

Nothing but inputs and outputs is in the memory of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import BLOCK_THREADS, WARP
from tunewright.codegen.ir.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..buffers import params
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.rows import COLUMN, RowPlan, match_one_row, match_row_plan
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, flat_extents, point_columns
from .tiles.row_block import RowBlock, column_registers

MOST_REGISTERS = 96
"""Registers of a thread for its columns."""

OTHER_REGISTERS, EACH_BYTES = 24, 4
"""Registers of a thread for all else, and bytes of a value of a warp."""

MOST_ROUNDS = 32
"""Copies of the body, one a round."""

WARPS = (1, 2, 4, 8, 16, 32)
VECTORS = (1, 2, 4)

FEW_ROUNDS = 4
"""Rounds of a row from which on more warps are given to it by default."""

DEFAULT_THREADS = 128
"""Threads of a block of short rows by default."""


class RowBlocksSketch(PatternSketch[RowPlan]):
    """Rows in the registers of warps."""

    name = "row_blocks"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> RowPlan | None:
        plan = match_row_plan(task, WARP) or match_one_row(task, WARP)
        folds = () if plan is None else (step for step in plan.steps if step.is_fold)
        return plan if all(step.fused_stage.stage.body.dtype is DType.F32 for step in folds) else None

    def offer(self, task: Task, plan: RowPlan, target: Target) -> Space:
        knobs = (
            Knob("warps", WARPS),
            Knob("lines", (1, 2, 4, 8, 16, 32)),
            Knob("vector", VECTORS),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(plan, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan),
            block=lambda columns: _block(plan, columns),
        )

    def write(self, task: Task, plan: RowPlan, schedule: Schedule, target: Target) -> Kernel:
        launch = RowBlock(plan, schedule["warps"], schedule["lines"], schedule["vector"]).lower()
        return Kernel(params(task, {}), (), Block((launch,)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        steps = counted(len(self.pattern(point.task, point.target).steps), "step")
        warps, lines, vector = (point.values[name] for name in ("warps", "lines", "vector"))
        yield from point.say_start(
            f"{steps} over the same rows, in registers from the first to the last.", warps * lines * WARP
        )
        share = f"a thread takes {counted(vector, 'column')} at once"
        yield f"A block has {counted(lines, 'row')} of {counted(warps, 'warp')}; {share}."


def _fits(plan: RowPlan, warps: int, vector: int) -> bool:
    """Whether rows go into the registers of so many warps."""
    columns = point_columns({"warps": warps, "lines": 1, "vector": vector})
    return bool(_legal(plan, columns)[0])


def _rounds(plan: RowPlan, columns: Columns) -> NDArray[np.int64]:
    return np.asarray(-(-plan.columns // (columns["warps"] * WARP * columns["vector"])))


def _block(plan: RowPlan, columns: Columns) -> BlockShape:
    warps, lines = columns["warps"], columns["lines"]
    registers = column_registers(plan) * _rounds(plan, columns) * columns["vector"]
    return BlockShape(
        warps * lines * WARP, registers + OTHER_REGISTERS, np.where(warps > 1, warps * lines * EACH_BYTES, 0)
    )


def _legal(plan: RowPlan, columns: Columns) -> NDArray[np.bool_]:
    """A row is in registers, hardly a thread is without columns, and a block is not too large."""
    warps, lines, vector = columns["warps"], columns["lines"], columns["vector"]
    rounds = _rounds(plan, columns)
    legal = (
        (plan.columns % vector == 0)
        & (rounds <= MOST_ROUNDS)
        & (column_registers(plan) * rounds * vector <= MOST_REGISTERS)
    )
    legal &= (warps == 1) | (warps * WARP * vector < 2 * plan.columns)
    legal &= (vector == 1) | (WARP * vector < 2 * plan.columns)
    legal &= (lines == 1) | (lines < 2 * plan.row_count)
    return np.asarray(legal & (warps * lines * WARP <= BLOCK_THREADS))


def _preferred(plan: RowPlan) -> Mapping[str, int]:
    """The widest accesses, a row for as few warps as read it in few rounds, short rows together in a block."""
    vector = max((n for n in VECTORS if any(_fits(plan, warps, n) for warps in WARPS)), default=1)
    fitting = [warps for warps in WARPS if _fits(plan, warps, vector)] or [WARPS[-1]]
    least = plan.columns / (WARP * vector * FEW_ROUNDS)
    warps = next((n for n in fitting if n >= least), fitting[-1])
    lines = max(1, min(DEFAULT_THREADS // (warps * WARP), plan.row_count))
    return {"warps": warps, "lines": 1 << (lines.bit_length() - 1), "vector": vector}


def _tiling(plan: RowPlan, columns: Columns) -> Tiling:
    """The columns of a thread in a round, of a row in a round, the rows of a block."""
    row = {COLUMN: columns["vector"] * columns["warps"] * WARP}
    block = flat_extents(plan.rows, columns["lines"]) | {COLUMN: plan.columns}
    levels = {COLUMN: columns["vector"]}, row, block
    return Tiling.of(plan.main.stage, COLUMN, columns, levels, -(-plan.row_count // columns["lines"]))
