"""Warpgroup tiles: one product on Hopper, multiplied from shared memory (`grids.warpgroup_tile`).

Everything pointwise after the sum is applied to the registers. Pieces before and after it are launches of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.warpgroup import ARCH, COLUMNS, GROUP, ROW_BYTES, ROWS
from tunewright.codegen.dtype import BYTES
from tunewright.codegen.ir import Kernel, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..grids.block_tile import copy_registers, may_group, smem_bytes, tensor_product, widths
from ..grids.bulk_tile import bulk_packing, is_whole, may_bulk
from ..grids.lengthwise import lengthwise
from ..grids.operand_tile import operands
from ..grids.shared_tile import product_depth
from ..grids.sides import fill, first_enough, held, tiling
from ..grids.tiles import SPLITS, Tiles, kernel, may_split
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

OTHERS = {"group": 1, "splits": 1, "tail": 0, "bulk": 0}
"""What all of them have."""


class WarpgroupTilesSketch:
    """See the module."""

    name = "warpgroup_tiles"
    version = 3

    def applies(self, task: Task, target: Target) -> bool:
        if target.gpu is None or target.gpu.arch != ARCH:
            return False
        task, _ = lengthwise(task)
        found = _multiplied(task)
        if found is None:
            return False
        smallest = {name: np.array([value]) for name, value in _choices(found)[-1].items()}
        return bool(_legal(found, widths(task, found), target, smallest)[0])

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        whole, (task, _) = task, lengthwise(task)
        found = _product(task)
        wide = widths(task, found)

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(found, wide, target, columns)

        knobs = (
            Knob("block_rows", (64, 128, 192, 256)),
            Knob("block_columns", COLUMNS),
            Knob("block_depth", (_round_depth(found),)),
            Knob("warpgroups", (1, 2, 3, 4)),
            Knob("stages", (3, 4, 5, 6)),
            Knob("group", (1, 2, 4, 8)),
            Knob("splits", SPLITS),
            Knob("tail", (0, 1)),
            Knob("bulk", (0, 1) if _may_bulk(whole, task) else (0,)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=legal,
            tiling=lambda columns: _tiling(found, columns),
            preferred=first_enough(found, target, _choices(found), legal),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        (task, packings), whole = lengthwise(task), task
        found, values, packing = _product(task), dict(schedule.values), None
        if values["bulk"]:
            of_whole = tensor_product(whole)
            assert of_whole is not None
            packing = bulk_packing(whole, of_whole, values["block_columns"], values["block_depth"])
            packings = {**packings, found.panel.tensor: packing}

        def lowered(tiles: Tiles) -> Stmt:
            return WarpgroupTile.of(task, tiles, values, packing).lower()

        return kernel(task, target, found, values, lowered, packings)


def _multiplied(task: Task) -> Product | None:
    """The task's product, if it is one of narrow floats, or of bytes that lie along the reduction."""
    found = tensor_product(task)
    if found is None or found.panel.dtype.is_narrow:
        return found
    is_lengthwise = found.panel.dtype in BYTES and all(operand.is_deep for operand in operands(found))
    return found if is_lengthwise else None


def _product(task: Task) -> Product:
    found = _multiplied(task)
    assert found is not None
    return found


def _may_bulk(whole: Task, task: Task) -> bool:
    """Whether the right operand may come in whole pieces: of the task as it is, and with constants lengthwise."""
    found = tensor_product(whole)
    return found is not None and found.panel.tensor == _product(task).panel.tensor and may_bulk(whole, found)


def _round_depth(found: Product) -> int:
    """Terms of a sum in a round."""
    return ROW_BYTES // found.panel.dtype.size_bytes


def _choices(found: Product) -> list[Mapping[str, int]]:
    """DEFAULTS with what all of them have."""
    return [one | OTHERS | {"block_depth": _round_depth(found)} for one in DEFAULTS]


def _legal(found: Product, wide: tuple[int, int], target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    threads, sums = GROUP * columns["warpgroups"], columns["block_rows"] * columns["block_columns"]
    registers = sums // threads + copy_registers(found, wide, columns, threads) + OTHER_REGISTERS
    legal = held(target, threads, registers, smem_bytes(found, columns))
    legal &= columns["block_rows"] % (ROWS * columns["warpgroups"]) == 0
    legal &= may_group(found, columns) & may_split(found, target, columns)
    legal &= (columns["bulk"] == 0) | is_whole(found, _round_depth(found))
    return np.asarray(legal & fill(found, columns, product_depth(found.panel.dtype)))


def _tiling(found: Product, columns: Columns) -> Tiling:
    """The tile of a warpgroup, that of a round of a block, and that of the block."""
    depth = np.full_like(columns["stages"], product_depth(found.panel.dtype))
    return tiling(found, columns, (columns["block_rows"] // columns["warpgroups"], columns["block_columns"], depth))
