"""Warpgroup tiles: one product of narrow floats on Hopper, multiplied from shared memory (`grids.warpgroup_tile`).

Everything pointwise after the sum is applied to the registers. Pieces before and after it are launches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.warpgroup import COLUMNS, DEPTH, GROUP, ROWS
from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..grids.block_tile import narrow_product, shapes
from ..grids.operand_tile import ADDRESS_REGISTERS, accesses, operands
from ..grids.parts import kernel, may_split
from ..grids.shared_tile import width
from ..grids.sides import Sides, fill, first_enough, held, size, tiling
from ..grids.warpgroup_tile import BLOCK_DEPTH, WarpgroupTile
from ..products.product import Product
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

ARCH = "sm_90a"
"""The only architecture that has such instructions."""

OTHER_REGISTERS = 40
"""Registers of a thread for counts and places, beside sums and addresses."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 256, "warpgroups": 2, "stages": 4},
    {"block_rows": 128, "block_columns": 128, "warpgroups": 2, "stages": 4},
    {"block_rows": 64, "block_columns": 128, "warpgroups": 1, "stages": 5},
    {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 5},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""


class WarpgroupTilesSketch:
    """See the module."""

    name = "warpgroup_tiles"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        found = narrow_product(task) if target.gpu is not None and target.gpu.arch == ARCH else None
        if found is None:
            return False
        sides, least = Sides.of(found), (ROWS, COLUMNS[0], BLOCK_DEPTH)
        axes = sides.rows, sides.columns, sides.depth
        return all(2 * size(one) > extent for one, extent in zip(axes, least, strict=True))

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _product(task)
        left, right = operands(found)
        wide = width(left, shapes(task, found)), width(right, shapes(task, found))

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(found, wide, target, columns)

        knobs = (
            Knob("block_rows", (64, 128, 192, 256)),
            Knob("block_columns", COLUMNS),
            Knob("warpgroups", (1, 2, 3, 4)),
            Knob("stages", (3, 4, 5, 6)),
            Knob("group", (1, 2, 4, 8)),
            Knob("splits", (1, 2, 4, 8)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=legal,
            tiling=lambda columns: _tiling(found, columns),
            default=Schedule(self.name, self.version, tuple(_default(found, target, legal).items())),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found, values = _product(task), dict(schedule.values)
        main = WarpgroupTile(found, shapes(task, found), **values).lower()
        return kernel(task, found, main, values["splits"])


def _product(task: Task) -> Product:
    found = narrow_product(task)
    assert found is not None
    return found


def _deep(columns: Columns) -> Columns:
    """The numbers, with the depth of a round, which all have in common."""
    return {**columns, "block_depth": np.full_like(columns["stages"], BLOCK_DEPTH)}


def _legal(found: Product, wide: tuple[int, int], target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    rows, across, groups = columns["block_rows"], columns["block_columns"], columns["warpgroups"]
    threads, depth = GROUP * groups, np.full_like(groups, BLOCK_DEPTH)
    smem_bytes = found.panel.dtype.size_bytes * columns["stages"] * BLOCK_DEPTH * (rows + across)
    copies = accesses(rows, depth, wide[0], threads) + accesses(across, depth, wide[1], threads)
    registers = rows * across // threads + ADDRESS_REGISTERS * copies + OTHER_REGISTERS
    legal = rows % (ROWS * groups) == 0
    legal &= -(-size(Sides.of(found).rows) // rows) % columns["group"] == 0
    legal &= held(target, threads, registers, smem_bytes)
    deep = _deep(columns)
    return np.asarray(legal & fill(found, deep, BLOCK_DEPTH) & may_split(found, target, deep))


def _tiling(found: Product, columns: Columns) -> Tiling:
    """The tile of a warpgroup, that of a round of a block, and that of the block."""
    depth = np.full_like(columns["stages"], DEPTH)
    inner = columns["block_rows"] // columns["warpgroups"], columns["block_columns"], depth
    return tiling(found, _deep(columns), inner)


def _default(found: Product, target: Target, legal: Callable[[Columns], NDArray[np.bool_]]) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    return first_enough(found, target, [one | {"group": 1, "splits": 1} for one in DEFAULTS], legal)
