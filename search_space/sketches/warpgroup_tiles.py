"""Warpgroup tiles: one product of narrow floats on Hopper, multiplied from shared memory (`grids.warpgroup_tile`).

Everything pointwise after the sum is applied to the registers. Pieces before and after it are launches of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.warpgroup import ARCH, COLUMNS, DEPTH, GROUP, PANEL_ROWS, ROWS
from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..grids.block_tile import copy_registers, may_group, narrow_product, smem_bytes, widths
from ..grids.sides import fill, first_enough, held, tiling
from ..grids.tiles import SPLITS, kernel, may_split
from ..grids.warpgroup_tile import WarpgroupTile
from ..products.product import Product
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

OTHER_REGISTERS = 40
"""Registers of a thread for counts and places, beside sums and addresses."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 256, "warpgroups": 2, "stages": 4},
    {"block_rows": 128, "block_columns": 128, "warpgroups": 2, "stages": 4},
    {"block_rows": 64, "block_columns": 128, "warpgroups": 1, "stages": 5},
    {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 3},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""

OTHERS = {"block_depth": PANEL_ROWS, "group": 1, "splits": 1, "tail": 0}
"""What all of them have."""


class WarpgroupTilesSketch:
    """See the module."""

    name = "warpgroup_tiles"
    version = 2

    def applies(self, task: Task, target: Target) -> bool:
        found = narrow_product(task) if target.gpu is not None and target.gpu.arch == ARCH else None
        if found is None:
            return False
        smallest = {name: np.array([value]) for name, value in (DEFAULTS[-1] | OTHERS).items()}
        return bool(_legal(found, widths(task, found), target, smallest)[0])

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _product(task)
        wide = widths(task, found)

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(found, wide, target, columns)

        knobs = (
            Knob("block_rows", (64, 128, 192, 256)),
            Knob("block_columns", COLUMNS),
            Knob("block_depth", (PANEL_ROWS,)),
            Knob("warpgroups", (1, 2, 3, 4)),
            Knob("stages", (3, 4, 5, 6)),
            Knob("group", (1, 2, 4, 8)),
            Knob("splits", SPLITS),
            Knob("tail", (0, 1)),
        )
        default = first_enough(found, target, [one | OTHERS for one in DEFAULTS], legal)
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=legal,
            tiling=lambda columns: _tiling(found, columns),
            default=Schedule(self.name, self.version, tuple((knob.name, default[knob.name]) for knob in knobs)),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found, values = _product(task), dict(schedule.values)
        return kernel(task, target, found, values, lambda tiles: WarpgroupTile.of(task, tiles, values).lower())


def _product(task: Task) -> Product:
    found = narrow_product(task)
    assert found is not None
    return found


def _legal(found: Product, wide: tuple[int, int], target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    threads, sums = GROUP * columns["warpgroups"], columns["block_rows"] * columns["block_columns"]
    registers = sums // threads + copy_registers(found, wide, columns, threads) + OTHER_REGISTERS
    legal = held(target, threads, registers, smem_bytes(found, columns))
    legal &= columns["block_rows"] % (ROWS * columns["warpgroups"]) == 0
    legal &= may_group(found, columns) & may_split(found, target, columns)
    return np.asarray(legal & fill(found, columns, DEPTH))


def _tiling(found: Product, columns: Columns) -> Tiling:
    """The tile of a warpgroup, that of a round of a block, and that of the block."""
    depth = np.full_like(columns["stages"], DEPTH)
    return tiling(found, columns, (columns["block_rows"] // columns["warpgroups"], columns["block_columns"], depth))
