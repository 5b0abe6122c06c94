"""Warpgroup tiles: one product of narrow floats or bytes on Hopper, multiplied from shared memory by four warps
(`tiles.warpgroup_tile`).

Fused stages before and after the product are launches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.instructions.warpgroup import GROUP, ROWS
from tunewright.codegen.ir.ir import Kernel, Stmt
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..counts import counted
from ..description import SchedulePoint
from ..patterns.product import Product
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, point_columns
from .tiles.block_tile import (
    copy_registers,
    match_tensor_product,
    may_group,
    pack_along_depth,
    smem_bytes,
    widths,
)
from .tiles.bulk_tile import bulk_packing, is_whole, may_bulk
from .tiles.group_product import group_tiling, match_group_product, round_depth
from .tiles.shared_tile import product_depth
from .tiles.sides import SPLITS, are_tiles_full, fits_multiprocessor, pick_default
from .tiles.tiles import IN_TURN, SHARED, TAIL, Tiles, kernel, may_split
from .tiles.warpgroup_tile import WarpgroupTile

OTHER_REGISTERS = 40
"""Registers of a thread for counts and indices, beside sums and addresses."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 256, "warpgroups": 2, "stages": 4},
    {"block_rows": 128, "block_columns": 128, "warpgroups": 2, "stages": 4},
    {"block_rows": 64, "block_columns": 128, "warpgroups": 1, "stages": 5},
    {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 5},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""

OTHERS = {"group": 1, "splits": 1, "tail": 0, "bulk": 0}
"""The values that all DEFAULTS share."""


BULK = "The right operand is packed ahead of time; one thread has what a round needs of it copied at once."
"""What the knob says by which whole tiles are copied."""


class WarpgroupTilesSketch(PatternSketch[Product]):
    """Tiles of a product for warpgroups."""

    name = "warpgroup_tiles"
    version = 3
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Product | None:
        task, _ = pack_along_depth(task)
        product = match_group_product(task)
        if target.gpu is None or not target.gpu.has_warpgroups or product is None:
            return None
        smallest = point_columns(_choices(product)[-1])
        return product if _legal(product, widths(task, product), target, smallest)[0] else None

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        wide = widths(pack_along_depth(task)[0], product)

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(product, wide, target, columns)

        knobs = (
            Knob("block_rows", (64, 128, 192, 256)),
            Knob("block_columns", (64, 128, 256)),
            Knob("block_depth", (round_depth(product),)),
            Knob("warpgroups", (1, 2, 3, 4)),
            Knob("stages", (3, 4, 5, 6)),
            Knob("group", (1, 2, 4, 8), IN_TURN),
            Knob("splits", SPLITS, SHARED),
            Knob("tail", (0, 1), TAIL),
            Knob("bulk", (0, 1) if _may_bulk(task, product) else (0,), BULK),
        )
        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: group_tiling(product, columns),
            preferred=pick_default(product, target, _choices(product), legal),
            block=lambda columns: _block(product, wide, columns),
        )

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        original, (task, packings) = task, pack_along_depth(task)
        values, packing = dict(schedule.values), None
        if values["bulk"]:
            original_product = match_tensor_product(original)
            assert original_product is not None  # see `_may_bulk`
            packing = bulk_packing(original, original_product, values["block_columns"], values["block_depth"])
            packings = {**packings, product.panel.tensor: packing}

        def lower_tiles(tiles: Tiles) -> Stmt:
            return WarpgroupTile.of(task, tiles, values, packing).lower()

        return kernel(task, target, product, values, lower_tiles, packings)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        values = point.values
        yield from point.say_start(
            "A product by tiles on tensor cores, which read both operands from shared memory while warps go on.",
            values["warpgroups"] * GROUP,
        )
        yield from point.say_block_tile()
        yield f"Four warps compute {counted(values['block_rows'] // values['warpgroups'], 'row')} of it."
        yield f"What a round needs is copied {counted(values['stages'] - 2, 'round')} ahead."
        yield from point.say_knobs()


def _may_bulk(task: Task, product: Product) -> bool:
    """Whether the right operand may come in whole tiles: of the task as it is, and with constants lengthwise."""
    original = match_tensor_product(task)
    return original is not None and original.panel.tensor == product.panel.tensor and may_bulk(task, original)


def _choices(product: Product) -> list[Mapping[str, int]]:
    """DEFAULTS with the values that all of them share."""
    return [values | OTHERS | {"block_depth": round_depth(product)} for values in DEFAULTS]


def _block(product: Product, wide: tuple[int, int], columns: Columns) -> BlockShape:
    threads, sums = GROUP * columns["warpgroups"], columns["block_rows"] * columns["block_columns"]
    registers = sums // threads + copy_registers(product, wide, columns, threads) + OTHER_REGISTERS
    return BlockShape(threads, registers, smem_bytes(product, columns), on_tensor_cores=True)


def _legal(product: Product, wide: tuple[int, int], target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    legal = fits_multiprocessor(target, _block(product, wide, columns))
    legal &= columns["block_rows"] % (ROWS * columns["warpgroups"]) == 0
    legal &= may_group(product, columns) & may_split(product, target, columns)
    legal &= (columns["bulk"] == 0) | is_whole(product, round_depth(product))
    return np.asarray(legal & are_tiles_full(product, columns, product_depth(product.panel.dtype)))
