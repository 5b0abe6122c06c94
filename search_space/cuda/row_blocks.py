"""Row blocks: softmax, normalisations and the like on a GPU, each row in the registers of some warps
(`tiles.row_block`).

Nothing but inputs and outputs is in the memory of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.gpu import BLOCK_THREADS, WARP
from tunewright.codegen.ir.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..buffers import params
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.rows import COLUMN, RowPlan, in_output_order, match_one_row, match_row_plan
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, flat_extents, point_columns
from .tiles.row_block import RowBlock, column_registers, recompute_maps

MOST_REGISTERS = 96
"""Registers of a thread for its columns."""

OTHER_REGISTERS = 24
"""Registers of a thread for all else."""

SHUFFLED = (4, 8)
"""Bytes of what lanes exchange."""

MOST_ROUNDS = 32
"""Copies of the body, one a round."""

WARPS = (1, 2, 4, 8, 16, 32)
VECTORS = (1, 2, 4)

FEW_ROUNDS = 4
"""Rounds of a row from which on more warps are given to it by default."""

DEFAULT_THREADS = 128
"""Threads of a block of short rows by default."""


class RowBlocksSketch(PatternSketch[RowPlan]):
    """Rows by some warps each: in their registers, else read again by each pass."""

    name = "row_blocks"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> RowPlan | None:
        forms = (match_row_plan(form, WARP, inf) for form in (task, in_output_order(task)))
        plan = next(filter(None, forms), None) or match_one_row(task, WARP)
        if plan is None or any(step.is_fold and step.dtype.size_bytes not in SHUFFLED for step in plan.steps):
            return None
        if _is_held(plan):
            return plan
        is_one_fold = plan.row_count == plan.pass_count == 1  # for many blocks, by shared folds
        return None if is_one_fold else recompute_maps(plan)

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
        warps, lines, vector = (schedule[name] for name in ("warps", "lines", "vector"))
        launch = RowBlock(plan, warps, lines, vector, _is_held(plan)).lower()
        return Kernel(params(task, {}), (), Block((launch,)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        steps = counted(len(self.pattern(point.task, point.target).steps), "step")
        warps, lines, vector = (point.values[name] for name in ("warps", "lines", "vector"))
        is_held = _is_held(self.pattern(point.task, point.target))
        how = "in registers from the first to the last" if is_held else "each row read again by each pass"
        yield from point.say_start(f"{steps} over the same rows, {how}.", warps * lines * WARP)
        share = f"a thread takes {counted(vector, 'column')} at once"
        yield f"A block has {counted(lines, 'row')} of {counted(warps, 'warp')}; {share}."


def _is_held(plan: RowPlan) -> bool:
    """Whether rows go into the registers of some number of warps."""
    return any(
        bool(_holds(plan, point_columns({"warps": warps, "lines": 1, "vector": vector}))[0])
        for warps in WARPS
        for vector in VECTORS
    )


def _fits(plan: RowPlan, warps: int, vector: int) -> bool:
    """Whether so many warps may have a row."""
    columns = point_columns({"warps": warps, "lines": 1, "vector": vector})
    return bool(_legal(plan, columns)[0])


def _rounds(plan: RowPlan, columns: Columns) -> NDArray[np.int64]:
    return np.asarray(-(-plan.columns // (columns["warps"] * WARP * columns["vector"])))


def _block(plan: RowPlan, columns: Columns) -> BlockShape:
    warps, lines = columns["warps"], columns["lines"]
    rounds = _rounds(plan, columns) if _is_held(plan) else 1
    registers = column_registers(plan) * rounds * columns["vector"]
    each_bytes = max(step.dtype.size_bytes for step in plan.steps if step.is_fold)
    return BlockShape(
        warps * lines * WARP, registers + OTHER_REGISTERS, np.where(warps > 1, warps * lines * each_bytes, 0)
    )


def _holds(plan: RowPlan, columns: Columns) -> NDArray[np.bool_]:
    """Whether a row is in registers, and hardly a thread is without columns."""
    vector, rounds = columns["vector"], _rounds(plan, columns)
    held = (rounds <= MOST_ROUNDS) & (column_registers(plan) * rounds * vector <= MOST_REGISTERS)
    return np.asarray(held & _shares(plan, columns))


def _shares(plan: RowPlan, columns: Columns) -> NDArray[np.bool_]:
    """Whether rows are whole vectors, and hardly a thread is without columns."""
    warps, vector = columns["warps"], columns["vector"]
    shares = (plan.columns % vector == 0) & ((warps == 1) | (warps * WARP * vector < 2 * plan.columns))
    return np.asarray(shares & ((vector == 1) | (WARP * vector < 2 * plan.columns)))


def _legal(plan: RowPlan, columns: Columns) -> NDArray[np.bool_]:
    """A row is in registers if any can be, hardly a thread is without columns, and a block is not too large."""
    warps, lines = columns["warps"], columns["lines"]
    legal = _holds(plan, columns) if _is_held(plan) else _shares(plan, columns)
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
