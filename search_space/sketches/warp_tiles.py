"""Warp tiles: one product on a GPU, by tiles that tensor cores multiply (`grids.warp_tile`).

Everything pointwise after the sum is applied to the registers. Pieces before and after it are launches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..grids.block_tile import copy_registers, may_group, smem_bytes, tensor_product, widths
from ..grids.lengthwise import lengthwise
from ..grids.shared_tile import product_depth
from ..grids.sides import Sides, Sizes, fill, first_enough, held, size, tiling
from ..grids.tiles import SPLITS, kernel, may_split
from ..grids.warp_tile import WarpTile
from ..products.product import Product
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling
from .product_tiles import LEAST_DEPTH

LEAST_ROUND = 16
"""Terms of a sum in the smallest round of narrow floats, as many as one product adds; of bytes these are more."""

OTHER_REGISTERS = 40
"""Registers of a thread for counts and places, beside sums, operands and addresses."""

SPLIT_REGISTERS, SPLIT_ROUND = 40, 32
"""Of float32, which is multiplied in parts: more registers for counts and places, and terms of a sum in the largest
round. Beyond that the compiler has so much under way at once that some of it is written out.
"""

SPLIT_SIDES = 128
"""Of float32, rows and columns of a warp together at most, for the same reason."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 128, "block_depth": 32, "warp_rows": 64, "warp_columns": 32, "stages": 4},
    {"block_rows": 128, "block_columns": 64, "block_depth": 32, "warp_rows": 64, "warp_columns": 32, "stages": 4},
    {"block_rows": 64, "block_columns": 64, "block_depth": 32, "warp_rows": 32, "warp_columns": 32, "stages": 4},
    {"block_rows": 32, "block_columns": 32, "block_depth": 32, "warp_rows": 16, "warp_columns": 16, "stages": 4},
    {"block_rows": 16, "block_columns": 16, "block_depth": 16, "warp_rows": 16, "warp_columns": 16, "stages": 2},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""


class WarpTilesSketch:
    """See the module."""

    name = "warp_tiles"
    version = 2

    def applies(self, task: Task, target: Target) -> bool:
        gpu, found = target.gpu, tensor_product(task)
        if gpu is None or found is None:
            return False
        if found.panel.dtype is not DType.F32:
            return True
        return gpu.split_multiply_adds > gpu.multiply_adds and size(Sides.of(found).depth) >= LEAST_DEPTH

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        task, _ = lengthwise(task)
        found = _product(task)
        wide, round_depth = widths(task, found), _least_round(found)

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(found, wide, target, columns)

        knobs = (
            Knob("block_rows", (16, 32, 64, 128, 256)),
            Knob("block_columns", (16, 32, 64, 128, 256)),
            Knob("block_depth", (round_depth, 2 * round_depth, 4 * round_depth)),
            Knob("warp_rows", (16, 32, 64, 128)),
            Knob("warp_columns", (16, 32, 64, 128)),
            Knob("stages", (2, 3, 4, 5)),
            Knob("group", (1, 2, 4, 8)),
            Knob("splits", SPLITS),
            Knob("tail", (0, 1)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=legal,
            tiling=lambda columns: _tiling(found, columns),
            preferred=_preferred(found, target, legal),
            first_choice=found.panel.dtype is not DType.F32,  # of which multiply-adds of threads are as good a guess
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        task, packings = lengthwise(task)
        found, values = _product(task), dict(schedule.values)
        return kernel(task, target, found, values, lambda tiles: WarpTile.of(task, tiles, values).lower(), packings)


def _least_round(found: Product) -> int:
    """Terms of a sum in the smallest round."""
    return max(LEAST_ROUND, product_depth(found.panel.dtype))


def _product(task: Task) -> Product:
    found = tensor_product(task)
    assert found is not None
    return found


def _threads(columns: Columns) -> Sizes:
    """None where tiles of warps reach beyond those of blocks."""
    warps = columns["block_rows"] // columns["warp_rows"] * (columns["block_columns"] // columns["warp_columns"])
    return np.asarray(WARP * warps)


def _legal(found: Product, wide: tuple[int, int], target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    threads = _threads(columns)
    warp_rows, warp_across = columns["warp_rows"], columns["warp_columns"]
    sums, fragments = warp_rows * warp_across // WARP, (warp_rows + warp_across) // 4
    copies = copy_registers(found, wide, columns, np.maximum(threads, WARP))
    registers = sums + fragments + copies + OTHER_REGISTERS
    legal = fill(found, columns, _least_round(found)) & may_group(found, columns) & may_split(found, target, columns)
    if found.panel.dtype is DType.F32:
        registers = registers + fragments + SPLIT_REGISTERS  # the rests too
        legal &= (columns["block_depth"] <= SPLIT_ROUND) & (warp_rows + warp_across <= SPLIT_SIDES)
    return np.asarray(legal & held(target, threads, registers, smem_bytes(found, columns)))


def _tiling(found: Product, columns: Columns) -> Tiling:
    """The tile of a warp, that of a round of a block, and that of the block."""
    depth = np.full_like(columns["stages"], product_depth(found.panel.dtype))
    return tiling(found, columns, (columns["warp_rows"], columns["warp_columns"], depth))


def _preferred(found: Product, target: Target, legal: Callable[[Columns], NDArray[np.bool_]]) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    others = {"group": 1, "splits": 1, "tail": 0}
    times = _least_round(found) // LEAST_ROUND
    choices = [
        one | others | {"block_depth": depth * times}
        for one in DEFAULTS
        for depth in dict.fromkeys((one["block_depth"], LEAST_ROUND))
    ]
    return first_enough(found, target, choices, legal)
