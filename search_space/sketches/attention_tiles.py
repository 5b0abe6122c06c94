"""Attention tiles: two products and the softmax between them on a GPU, in one launch (`grids.attention_tile`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..grids.attention_tile import DEPTH, AttentionTile, padded
from ..grids.operand_tile import ADDRESS_REGISTERS, accesses, operands
from ..grids.shared_tile import ROWS, width
from ..grids.sides import Sides, Sizes, held, size, tiling
from ..nests.phases import params
from ..products.attention import Attention, attention
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

MOST_INNER = 128
"""Terms of a score, and columns of the values: all of them are in registers."""

OTHER_REGISTERS = 64
"""Registers of a thread for counts, places and what each row has one of."""

DEFAULTS = (
    {"warps": 4, "block_places": 64, "stages": 2},
    {"warps": 4, "block_places": 32, "stages": 2},
    {"warps": 2, "block_places": 16, "stages": 2},
    {"warps": 1, "block_places": 16, "stages": 2},
)
"""The first that is legal is taken."""


@lru_cache(maxsize=256)
def _seen(task: Task) -> Attention | None:
    """The task's attention, if all operands are of one type of narrow floats, and fit into registers."""
    found = attention(task)
    if found is None:
        return None
    loads = found.scores.other, found.scores.panel, found.mixed.panel
    alike = len({load.dtype for load in loads}) == 1 and loads[0].dtype.is_narrow
    sizes = size(Sides.of(found.scores).depth), size(Sides.of(found.mixed).columns)
    return found if alike and max(sizes) <= MOST_INNER else None


class AttentionTilesSketch:
    """See the module."""

    name = "attention_tiles"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == CUDA and _seen(task) is not None

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _attention(task)
        knobs = (
            Knob("warps", (1, 2, 4, 8)),
            Knob("block_places", (16, 32, 64, 128)),
            Knob("stages", (2, 3, 4)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(task, found, target, columns),
            tiling=lambda columns: _tiling(found, columns),
            preferred=_preferred(task, found, target),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        launch = AttentionTile(_attention(task), _shapes(task), **dict(schedule.values)).lower()
        return Kernel(params(task, {}), (), Block((launch,)))


def _attention(task: Task) -> Attention:
    found = _seen(task)
    assert found is not None
    return found


def _shapes(task: Task) -> Mapping[str, tuple[int, ...]]:
    """Of the tensors that are read."""
    return {tensor.name: tensor.shape for tensor in task.inputs}


def _legal(task: Task, found: Attention, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    warps, block, stages = columns["warps"], columns["block_places"], columns["stages"]
    sides = Sides.of(found.scores)
    inner, outer = padded(size(sides.depth)), padded(size(Sides.of(found.mixed).columns))
    threads, rows = WARP * warps, ROWS * warps
    smem_bytes = found.scores.panel.dtype.size_bytes * (rows * inner + stages * block * (inner + outer))
    shapes = _shapes(task)
    keys, values = operands(found.scores)[1], operands(found.mixed)[1]
    copies = accesses(block, np.full_like(block, inner), width(keys, shapes), threads)
    copies = copies + accesses(block, np.full_like(block, outer), width(values, shapes), threads)
    registers = block // 2 + outer // 2 + block // 4 + ADDRESS_REGISTERS * copies + OTHER_REGISTERS
    legal = held(target, threads, registers, smem_bytes)
    legal &= (warps == 1) | (rows < 2 * size(sides.rows))
    return np.asarray(legal & ((block == DEPTH) | (block < 2 * found.places.extent)))


def _preferred(task: Task, found: Attention, target: Target) -> Mapping[str, int]:
    for values in DEFAULTS:
        columns = {name: np.array([value]) for name, value in values.items()}
        if _legal(task, found, target, columns)[0]:
            return values
    return DEFAULTS[-1]


def _tiling(found: Attention, columns: Columns) -> Tiling:
    """What points do to the loops of the second product: 16 rows of a warp, those of a block, all places."""
    warps: Sizes = columns["warps"]
    whole = np.full_like(warps, padded(size(Sides.of(found.mixed).columns)))
    blocks = {
        "block_rows": ROWS * warps,
        "block_columns": whole,
        "block_depth": columns["block_places"],
        "splits": np.ones_like(warps),
    }
    return tiling(found.mixed, blocks, (np.full_like(warps, ROWS), whole, np.full_like(warps, DEPTH)))
