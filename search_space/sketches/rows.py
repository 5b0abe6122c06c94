"""Rows: softmax, normalisations and the like, several steps over the same rows in as few passes as there can be.

The rows of a group go through each pass one after the other, and share what comes between passes: folds across the
lanes, roots, quotients (`rows.passes`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.ir import Block, Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Task

from ..nests.phases import params
from ..rows.passes import GROUP, Passes
from ..rows.rows import row_loop
from ..rows.steps import COLUMN, ROUND, Plan, plan
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

CHUNK_POINTS = 1 << 14
"""Elements of a chunk of rows beyond which nothing is gained by larger ones."""

CHUNKS_PER_THREAD = 4
"""Pieces of the parallel loop that even out what the threads get."""

GROUPS_AHEAD = 4
"""Groups in a chunk from which on to ask for the next one early: what follows a chunk is often another thread's."""


class RowsSketch:
    """See the module."""

    name = "rows"
    version = 2

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == "cpu" and plan(task, target.lanes(4)) is not None

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _plan(task, target)
        knobs = (
            Knob("vectors", found.rounds),
            Knob("rows", found.groups),
            Knob("chunk_rows", tuple(1 << n for n in range(found.row_count.bit_length()))),
            Knob("ahead", (0, 1) if found.passes > 1 else (0,)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(found, columns),
            tiling=lambda columns: _tiling(found, columns),
            preferred=_preferred(found, target),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found = _plan(task, target)
        group = schedule["rows"]
        body = Passes(found, schedule["vectors"], group, schedule["ahead"]).lower()
        groups = (Axis(GROUP, -(-found.row_count // group)),)
        return Kernel(params(task, {}), (), Block((row_loop(groups, schedule["chunk_rows"] // group, body),)))


def _plan(task: Task, target: Target) -> Plan:
    found = plan(task, target.lanes(4))
    assert found is not None
    return found


def _legal(found: Plan, columns: Columns) -> NDArray[np.bool_]:
    """Rows of a group are of one chunk, and what passes hand on of them is near."""
    rows = columns["rows"]
    return np.asarray((rows <= columns["chunk_rows"]) & found.near(rows))


def _preferred(found: Plan, target: Target) -> dict[str, int]:
    """Groups as large as the nearest cache holds twice, chunks of rows enough for all threads."""
    limit = max(1, min(CHUNK_POINTS // found.columns, found.row_count // (CHUNKS_PER_THREAD * target.threads)))
    chunk = 1 << (limit.bit_length() - 1)
    near = target.l1_bytes // 2 // max(found.again_bytes, 1)
    group = 1 << (max(1, min(chunk, found.groups[-1], near)).bit_length() - 1)
    own = target.threads == 1 or chunk >= GROUPS_AHEAD * group
    ahead = int(own and found.passes > 1)
    return {"vectors": min(found.rounds[-1], ROUND), "rows": group, "chunk_rows": chunk, "ahead": ahead}


def _tiling(found: Plan, columns: Columns) -> Tiling:
    stage = found.main.stage
    one = np.ones(len(columns["vectors"]), np.int64)
    along = {a.name: one * a.extent for a in (*stage.axes, *stage.reduce)}
    rows = [a.name for a in found.rows]
    tile = along | dict.fromkeys(rows, one)
    whole = dict(tile)
    tile[COLUMN] = np.minimum(columns["vectors"] * found.lanes, found.columns)
    chunk = dict(whole)
    left: NDArray[np.int64] = columns["chunk_rows"]
    for axis in reversed(found.rows):
        chunk[axis.name] = np.clip(left, 1, axis.extent)
        left = left // axis.extent
    return Tiling(stage, (tile, whole, chunk, along), COLUMN, -(-found.row_count // columns["chunk_rows"]))
