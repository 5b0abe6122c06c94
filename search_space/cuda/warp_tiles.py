"""Warp tiles: one product on a GPU, by tiles that the tensor cores of warps multiply (`tiles.warp_tile`).

Fused stages before and after the product are launches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..counts import counted
from ..description import SchedulePoint
from ..patterns.product import Product
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling
from .product_tiles import LEAST_DEPTH
from .tiles.block_tile import (
    copy_registers,
    match_tensor_product,
    may_group,
    pack_along_depth,
    smem_bytes,
    widths,
)
from .tiles.shared_tile import product_depth
from .tiles.sides import SPLITS, Sides, Sizes, are_tiles_full, fits_multiprocessor, pick_default, size, tiling
from .tiles.tiles import IN_TURN, SHARED, TAIL, kernel, may_split
from .tiles.warp_tile import WarpTile

LEAST_ROUND = 16
"""Terms of a sum in the smallest round of narrow floats, as many as one product adds; of bytes these are more."""

OTHER_REGISTERS = 40
"""Registers of a thread for counts and indices, beside sums, operands and addresses."""

SPLIT_REGISTERS, SPLIT_ROUND = 40, 32
"""For float32, which is multiplied in parts: more registers for counts and indices, and terms of a sum in the largest
round. Beyond that the compiler keeps so much live at once that it spills.
"""

SPLIT_SIDES = 128
"""For float32: most rows and columns of a warp together, for the same reason."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 128, "block_depth": 32, "warp_rows": 64, "warp_columns": 32, "stages": 4},
    {"block_rows": 128, "block_columns": 64, "block_depth": 32, "warp_rows": 64, "warp_columns": 32, "stages": 4},
    {"block_rows": 64, "block_columns": 64, "block_depth": 32, "warp_rows": 32, "warp_columns": 32, "stages": 4},
    {"block_rows": 32, "block_columns": 32, "block_depth": 32, "warp_rows": 16, "warp_columns": 16, "stages": 4},
    {"block_rows": 16, "block_columns": 16, "block_depth": 32, "warp_rows": 16, "warp_columns": 16, "stages": 4},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""


class WarpTilesSketch(PatternSketch[Product]):
    """Tiles of a product for the tensor cores of warps."""

    name = "warp_tiles"
    version = 2
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Product | None:
        gpu, product = target.gpu, match_tensor_product(pack_along_depth(task)[0])
        if gpu is None or product is None or product.panel.dtype is not DType.F32:
            return product
        is_faster = gpu.split_multiply_adds > gpu.multiply_adds
        return product if is_faster and size(Sides.of(product).depth) >= LEAST_DEPTH else None

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        wide, round_depth = widths(pack_along_depth(task)[0], product), _least_round(product)

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(product, wide, target, columns)

        knobs = (
            Knob("block_rows", (16, 32, 64, 128, 256)),
            Knob("block_columns", (16, 32, 64, 128, 256)),
            Knob("block_depth", (round_depth, 2 * round_depth, 4 * round_depth)),
            Knob("warp_rows", (16, 32, 64, 128)),
            Knob("warp_columns", (16, 32, 64, 128)),
            Knob("stages", (2, 3, 4, 5)),
            Knob("group", (1, 2, 4, 8), IN_TURN),
            Knob("splits", SPLITS, SHARED),
            Knob("tail", (0, 1), TAIL),
        )
        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: _tiling(product, columns),
            preferred=_preferred(product, target, legal),
            block=lambda columns: _block(product, wide, columns),
            first_choice=product.panel.dtype is not DType.F32,  # of which multiply-adds of threads are as good a guess
        )

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        (task, packings), values = pack_along_depth(task), dict(schedule.values)
        return kernel(task, target, product, values, lambda tiles: WarpTile.of(task, tiles, values).lower(), packings)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        values = point.values
        warps = values["block_rows"] // values["warp_rows"] * (values["block_columns"] // values["warp_columns"])
        yield from point.say_start(
            "A product by tiles on tensor cores: a block brings both operands into shared memory, warps multiply them.",
            warps * WARP,
        )
        yield from point.say_block_tile()
        yield f"A warp computes {counted(values['warp_rows'], 'row')} by {counted(values['warp_columns'], 'column')}."
        if self.pattern(point.task, point.target).panel.dtype is DType.F32:
            yield "Tensor cores see 11 bits of a float32, so three products stand for one, for the other bits."
        yield f"What a round needs is copied {counted(values['stages'] - 1, 'round')} ahead."
        yield from point.say_knobs()


def _least_round(product: Product) -> int:
    """Terms of a sum in the smallest round."""
    return max(LEAST_ROUND, product_depth(product.panel.dtype))


def _threads(columns: Columns) -> Sizes:
    """The threads of a block; 0 where tiles of warps are larger than those of blocks."""
    warps = columns["block_rows"] // columns["warp_rows"] * (columns["block_columns"] // columns["warp_columns"])
    return np.asarray(WARP * warps)


def _block(product: Product, wide: tuple[int, int], columns: Columns) -> BlockShape:
    threads = _threads(columns)
    warp_rows, warp_across = columns["warp_rows"], columns["warp_columns"]
    sums, fragments = warp_rows * warp_across // WARP, (warp_rows + warp_across) // 4
    copies = copy_registers(product, wide, columns, np.maximum(threads, WARP))
    registers = sums + fragments + copies + OTHER_REGISTERS
    if product.panel.dtype is DType.F32:
        registers = registers + fragments + SPLIT_REGISTERS  # the rests too
    return BlockShape(threads, registers, smem_bytes(product, columns), on_tensor_cores=True)


def _legal(product: Product, wide: tuple[int, int], target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    legal = (
        are_tiles_full(product, columns, _least_round(product))
        & may_group(product, columns)
        & may_split(product, target, columns)
    )
    if product.panel.dtype is DType.F32:
        sides = columns["warp_rows"] + columns["warp_columns"]
        legal &= (columns["block_depth"] <= SPLIT_ROUND) & (sides <= SPLIT_SIDES)
    return np.asarray(legal & fits_multiprocessor(target, _block(product, wide, columns)))


def _tiling(product: Product, columns: Columns) -> Tiling:
    """The tile of a warp, that of a round of a block, and that of the block."""
    depth = np.full_like(columns["stages"], product_depth(product.panel.dtype))
    return tiling(product, columns, (columns["warp_rows"], columns["warp_columns"], depth))


def _preferred(product: Product, target: Target, legal: Callable[[Columns], NDArray[np.bool_]]) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    others = {"group": 1, "splits": 1, "tail": 0}
    times = _least_round(product) // LEAST_ROUND
    choices = [
        values | others | {"block_depth": depth * times}
        for values in DEFAULTS
        for depth in dict.fromkeys((values["block_depth"], LEAST_ROUND))
    ]
    return pick_default(product, target, choices, legal)
