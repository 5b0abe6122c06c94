"""Rows: softmax, normalisations and the like, several steps over the same rows in as few passes as there can be.

The rows of a group go through each pass one after the other, and share what comes between passes: folds across the
lanes, roots, quotients (`loops.row_passes`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.ir.ir import Block, Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Task

from ..buffers import params
from ..counts import counted, digits
from ..description import SchedulePoint
from ..patterns.rows import COLUMN, ROUND, RowPlan, match_row_plan
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling
from .loops.chunks import row_loop
from .loops.row_passes import GROUP, RowPasses

CHUNK_POINTS = 1 << 14
"""Elements of a chunk of rows beyond which nothing is gained by larger ones."""

CHUNKS_PER_THREAD = 4
"""Chunks of the parallel loop that even out what the threads get."""

GROUPS_AHEAD = 4
"""Groups in a chunk from which on to prefetch the next group, which else is often another thread's."""


class RowsSketch(PatternSketch[RowPlan]):
    """Passes over groups of rows."""

    name = "rows"
    version = 2

    def recognise(self, task: Task, target: Target) -> RowPlan | None:
        return match_row_plan(task, target.lanes(4))

    def offer(self, task: Task, plan: RowPlan, target: Target) -> Space:
        knobs = (
            Knob("vectors", plan.rounds),
            Knob("rows", plan.groups),
            Knob("chunk_rows", tuple(1 << n for n in range(plan.row_count.bit_length()))),
            Knob(
                "ahead", (0, 1) if plan.pass_count > 1 else (0,), "The second pass prefetches the rows that come next."
            ),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(plan, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target),
        )

    def write(self, task: Task, plan: RowPlan, schedule: Schedule, target: Target) -> Kernel:
        group = schedule["rows"]
        body = RowPasses(plan, schedule["vectors"], group, schedule["ahead"]).lower()
        groups = (Axis(GROUP, -(-plan.row_count // group)),)
        return Kernel(params(task, {}), (), Block((row_loop(groups, schedule["chunk_rows"] // group, body),)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        plan = self.pattern(point.task, point.target)
        vectors, rows = -(-plan.columns // point.lanes), point.values["rows"]
        passes = counted(plan.pass_count, "pass", "passes")
        yield from point.say_start(
            f"Steps along {counted(plan.row_count, 'row')} of {counted(plan.columns, 'column')}, in {passes} each."
        )
        if point.chunks[point.main] > 1:
            yield f"A chunk has {digits(point.values['chunk_rows'])} of {digits(plan.row_count)} rows."
        if rows > 1:
            yield f"{rows} rows at a time share what there is one value a row of."
        yield from point.say_lanes()
        together = counted(min(point.values["vectors"], vectors), "vector")
        yield f"A pass goes along a row in rounds of {together}; a row has {digits(vectors)}."
        yield from point.say_knobs()


def _legal(plan: RowPlan, columns: Columns) -> NDArray[np.bool_]:
    """Whether a group is inside of a chunk, and its live values stay in the nearest caches."""
    rows = columns["rows"]
    return np.asarray((rows <= columns["chunk_rows"]) & plan.fits_cache(rows))


def _preferred(plan: RowPlan, target: Target) -> dict[str, int]:
    """Groups as large as the nearest cache holds twice, chunks of rows enough for all threads."""
    limit = max(1, min(CHUNK_POINTS // plan.columns, plan.row_count // (CHUNKS_PER_THREAD * target.threads)))
    chunk = 1 << (limit.bit_length() - 1)
    cached_rows = target.l1_bytes // 2 // max(plan.reread_bytes, 1)
    group = 1 << (max(1, min(chunk, plan.groups[-1], cached_rows)).bit_length() - 1)
    is_own = target.threads == 1 or chunk >= GROUPS_AHEAD * group
    ahead = int(is_own and plan.pass_count > 1)
    return {"vectors": min(plan.rounds[-1], ROUND), "rows": group, "chunk_rows": chunk, "ahead": ahead}


def _tiling(plan: RowPlan, columns: Columns) -> Tiling:
    chunk: dict[str, NDArray[np.int64]] = {}
    left = columns["chunk_rows"]
    for axis in reversed(plan.rows):
        chunk[axis.name] = np.clip(left, 1, axis.extent)
        left = left // axis.extent
    levels = {COLUMN: columns["vectors"] * plan.lanes}, {COLUMN: plan.columns}, chunk
    return Tiling.of(plan.main.stage, COLUMN, columns, levels, -(-plan.row_count // columns["chunk_rows"]))
