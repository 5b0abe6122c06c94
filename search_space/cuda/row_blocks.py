"""Row blocks: softmax, normalisations and the like on a GPU, each row by some warps, in their registers if it fits
(`tiles.row_block`).

Nothing but inputs and outputs is in the memory of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.gpu import BLOCK_THREADS, SM_REGISTERS, WARP
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

OTHER_REGISTERS = {4: 24, 8: 80}
"""Registers of a thread for all else, by the bytes of the widest value: exponentials in float64 need many."""

MOST_ROUNDS = 32
"""Copies of the body, one a round."""

WARPS = (1, 2, 4, 8, 16, 32)
VECTORS = (1, 2, 4)

RECOMPUTED = "1: what steps hand on is computed again by each pass, as rows are too long for registers"
"""What the knob says that long rows have."""

FEW_ROUNDS = 4
"""Rounds of a row from which on more warps are given to it by default."""

DEFAULT_THREADS = 128
"""Threads of a block of short rows by default."""


class PlacedRows(NamedTuple):
    """A plan, and whether rows stay in registers from the first pass to the last.

    Of long rows what one step hands on to another is computed again by each pass (`is_recomputed`).
    """

    plan: RowPlan
    is_held: bool = True
    is_recomputed: bool = False

    @staticmethod
    def of(plan: RowPlan) -> PlacedRows:
        """Held if the rows go into the registers of some number of warps; else values between steps are recomputed."""
        if _can_be_held(plan):
            return PlacedRows(plan)
        short = recompute_maps(plan)
        return PlacedRows(short, _can_be_held(short), is_recomputed=True)


class RowBlocksSketch(PatternSketch[PlacedRows]):
    """Rows by some warps each: in their registers, else read again by each pass."""

    name = "row_blocks"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> PlacedRows | None:
        forms = (match_row_plan(form, WARP, inf) for form in (task, in_output_order(task)))
        plan = next(filter(None, forms), None) or match_one_row(task, WARP)
        if plan is None or any(step.is_fold and step.dtype.size_bytes not in OTHER_REGISTERS for step in plan.steps):
            return None
        rows = PlacedRows.of(plan)
        is_one_fold = plan.row_count == plan.pass_count == 1  # if it is long, for many blocks, by shared folds
        return None if is_one_fold and not rows.is_held else rows

    def offer(self, task: Task, rows: PlacedRows, target: Target) -> Space:
        knobs = (
            Knob("warps", WARPS),
            Knob("lines", (1, 2, 4, 8, 16, 32)),
            Knob("vector", VECTORS),
            *((Knob("recomputed", (1,), RECOMPUTED),) if rows.is_recomputed else ()),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(rows, columns),
            tiling=lambda columns: _tiling(rows.plan, columns),
            preferred=_preferred(rows),
            block=lambda columns: _block(rows, columns),
        )

    def write(self, task: Task, rows: PlacedRows, schedule: Schedule, target: Target) -> Kernel:
        warps, lines, vector = (schedule[name] for name in ("warps", "lines", "vector"))
        launch = RowBlock(rows.plan, warps, lines, vector, rows.is_held).lower()
        return Kernel(params(task, {}), (), Block((launch,)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        rows = self.pattern(point.task, point.target)
        steps = counted(len(rows.plan.steps), "step")
        warps, lines, vector = (point.values[name] for name in ("warps", "lines", "vector"))
        how = "in registers from the first to the last" if rows.is_held else "each row read again by each pass"
        yield from point.say_start(f"{steps} over the same rows, {how}.", warps * lines * WARP)
        share = f"a thread takes {counted(vector, 'column')} at once"
        yield f"A block has {counted(lines, 'row')} of {counted(warps, 'warp')}; {share}."


def _can_be_held(plan: RowPlan) -> bool:
    """Whether rows go into the registers of some number of warps."""
    counts = [point_columns({"warps": warps, "lines": 1, "vector": vector}) for warps in WARPS for vector in VECTORS]
    return any(bool((_holds(plan, columns) & _shares(plan, columns))[0]) for columns in counts)


def _fits(rows: PlacedRows, warps: int, vector: int) -> bool:
    """Whether so many warps may have a row."""
    columns = point_columns({"warps": warps, "lines": 1, "vector": vector})
    return bool(_legal(rows, columns)[0])


def _rounds(plan: RowPlan, columns: Columns) -> NDArray[np.int64]:
    return np.asarray(-(-plan.columns // (columns["warps"] * WARP * columns["vector"])))


def _block(rows: PlacedRows, columns: Columns) -> BlockShape:
    warps, lines = columns["warps"], columns["lines"]
    rounds = _rounds(rows.plan, columns) if rows.is_held else 1
    registers = column_registers(rows.plan) * rounds * columns["vector"]
    smem_bytes = np.where(warps > 1, warps * lines * _value_bytes(rows.plan), 0)
    return BlockShape(warps * lines * WARP, registers + _other_registers(rows.plan), smem_bytes)


def _value_bytes(plan: RowPlan) -> int:
    """Bytes of a value of a row, the widest."""
    return max(step.dtype.size_bytes for step in plan.steps if step.is_fold)


def _other_registers(plan: RowPlan) -> int:
    """Registers of a thread beside those for its columns."""
    return OTHER_REGISTERS[_value_bytes(plan)]


def _holds(plan: RowPlan, columns: Columns) -> NDArray[np.bool_]:
    """Whether rows are in registers, of which large blocks have fewer for each thread."""
    rounds, threads = _rounds(plan, columns), columns["warps"] * columns["lines"] * WARP
    registers = column_registers(plan) * rounds * columns["vector"]
    has_room = (registers + _other_registers(plan)) * threads <= SM_REGISTERS
    return np.asarray((rounds <= MOST_ROUNDS) & (registers <= MOST_REGISTERS) & has_room)


def _shares(plan: RowPlan, columns: Columns) -> NDArray[np.bool_]:
    """Whether rows are whole vectors, and hardly a thread is without columns."""
    warps, vector = columns["warps"], columns["vector"]
    shares = (plan.columns % vector == 0) & ((warps == 1) | (warps * WARP * vector < 2 * plan.columns))
    return np.asarray(shares & ((vector == 1) | (WARP * vector < 2 * plan.columns)))


def _legal(rows: PlacedRows, columns: Columns) -> NDArray[np.bool_]:
    """A row is in registers if it is to be, hardly a thread is without columns, and a block is not too large."""
    plan, warps, lines = rows.plan, columns["warps"], columns["lines"]
    legal = _shares(plan, columns) & ((lines == 1) | (lines < 2 * plan.row_count))
    legal &= warps * lines * WARP <= BLOCK_THREADS
    return np.asarray(legal & _holds(plan, columns)) if rows.is_held else np.asarray(legal)


def _preferred(rows: PlacedRows) -> Mapping[str, int]:
    """The widest accesses, a row for as few warps as read it in few rounds, short rows together in a block."""
    plan = rows.plan
    vector = max((n for n in VECTORS if any(_fits(rows, warps, n) for warps in WARPS)), default=1)
    fitting = [warps for warps in WARPS if _fits(rows, warps, vector)] or [WARPS[-1]]
    least = plan.columns / (WARP * vector * FEW_ROUNDS)
    warps = next((n for n in fitting if n >= least), fitting[-1])
    lines = max(1, min(DEFAULT_THREADS // (warps * WARP), plan.row_count))
    numbers = {"warps": warps, "lines": 1 << (lines.bit_length() - 1), "vector": vector}
    return numbers | ({"recomputed": 1} if rows.is_recomputed else {})


def _tiling(plan: RowPlan, columns: Columns) -> Tiling:
    """The columns of a thread in a round, of a row in a round, the rows of a block."""
    row = {COLUMN: columns["vector"] * columns["warps"] * WARP}
    block = flat_extents(plan.rows, columns["lines"]) | {COLUMN: plan.columns}
    levels = {COLUMN: columns["vector"]}, row, block
    return Tiling.of(plan.main.stage, COLUMN, columns, levels, -(-plan.row_count // columns["lines"]))
