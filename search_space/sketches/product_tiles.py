"""Product tiles: one product in float32 on a GPU, by tiles in shared memory and in registers (`grids.product_tile`).

Everything pointwise after the sum is applied to the registers. Pieces before and after it are launches of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..grids.operand_tile import ADDRESS_REGISTERS, accesses, operands
from ..grids.product_tile import PAD, WIDE, ProductTile
from ..grids.sides import Sides, Sizes, fill, first_enough, held, size, tiling
from ..grids.tiles import SPLITS, kernel, may_split
from ..nests.pieces import NARROW_TOO
from ..products.product import Product, product
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space

LEAST_DEPTH = 8
"""Terms of a sum from which on sharing operands pays."""

LEAST_ROUND = 4
"""Terms of a sum in the smallest round."""

OTHER_REGISTERS = 32
"""Registers of a thread for counts and places, beside sums, operands and addresses."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 128, "block_depth": 8, "rows": 8, "columns": 8, "stages": 2},
    {"block_rows": 64, "block_columns": 64, "block_depth": 16, "rows": 4, "columns": 4, "stages": 2},
    {"block_rows": 32, "block_columns": 32, "block_depth": 16, "rows": 2, "columns": 4, "stages": 2},
    {"block_rows": 16, "block_columns": 16, "block_depth": 16, "rows": 1, "columns": 4, "stages": 2},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""


@lru_cache(maxsize=256)
def _seen(task: Task) -> Product | None:
    """The task's product, if there is one with rows to share what is read."""
    found = product(task, NARROW_TOO)
    if found is None or not found.rows or size(Sides.of(found).depth) < LEAST_DEPTH:
        return None
    return found


class ProductTilesSketch:
    """See the module."""

    name = "product_tiles"
    version = 2

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == CUDA and _seen(task) is not None

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _product(task)
        knobs = (
            Knob("block_rows", (16, 32, 64, 128, 256)),
            Knob("block_columns", (16, 32, 64, 128, 256)),
            Knob("block_depth", (4, 8, 16, 32)),
            Knob("rows", (1, 2, 4, 8, 16)),
            Knob("columns", (1, 2, 4, 8, 16)),
            Knob("stages", (1, 2)),
            Knob("splits", SPLITS),
            Knob("tail", (0, 1)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(found, target, columns),
            tiling=lambda c: tiling(found, c, (c["rows"], c["columns"], np.ones_like(c["rows"]))),
            preferred=_preferred(found, target),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found, values = _product(task), dict(schedule.values)
        return kernel(task, target, found, values, lambda tiles: ProductTile.of(tiles, values).lower())


def _product(task: Task) -> Product:
    found = _seen(task)
    assert found is not None
    return found


def _threads(columns: Columns) -> Sizes:
    return np.asarray(columns["block_rows"] // columns["rows"] * (columns["block_columns"] // columns["columns"]))


def _legal(found: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Whole warps, within shared memory and registers, and no tile that is mostly beyond the edges."""
    threads = _threads(columns)
    rows, across, depth = columns["block_rows"], columns["block_columns"], columns["block_depth"]
    smem_bytes = 4 * columns["stages"] * depth * (rows + PAD + across)
    registers = columns["rows"] * columns["columns"] + columns["rows"] + columns["columns"] + OTHER_REGISTERS
    for operand, extent in zip(operands(found), (rows, across), strict=True):
        wide = operand.wide((WIDE,))
        registers += (wide + ADDRESS_REGISTERS) * accesses(extent, depth, wide, threads)
    legal = (threads % WARP == 0) & held(target, threads, registers, smem_bytes)
    return np.asarray(legal & fill(found, columns, LEAST_ROUND) & may_split(found, target, columns))


def _preferred(found: Product, target: Target) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    depths, others = (16, 8, 4), {"splits": 1, "tail": 0}
    choices = [one | others | {"block_depth": min(one["block_depth"], n)} for one in DEFAULTS for n in depths]
    return first_enough(found, target, choices, lambda columns: _legal(found, target, columns))
