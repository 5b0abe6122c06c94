"""Product tiles: one product in float32 on a GPU, by tiles in shared memory and in registers (`tiles.product_tile`).

Rows, columns and reduction are flattened: a convolution is the product of its windows, none of which is ever written
down. Fused stages before and after the product are launches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..counts import counted
from ..description import SchedulePoint
from ..patterns.fused_stage import FLOATS
from ..patterns.product import Product, match_product
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space
from .tiles.product_tile import PAD, WIDE, ProductTile
from .tiles.sides import (
    ADDRESS_REGISTERS,
    SPLITS,
    Sides,
    Sizes,
    accesses,
    are_tiles_full,
    fits_multiprocessor,
    operands,
    pick_default,
    size,
    tiling,
)
from .tiles.tiles import SHARED, TAIL, kernel, may_split

LEAST_DEPTH = 8
"""Terms of a sum from which on sharing operands pays."""

LEAST_ROUND = 4
"""Terms of a sum in the smallest round."""

OTHER_REGISTERS = 32
"""Registers of a thread for counts and indices, beside sums, operands and addresses."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 128, "block_depth": 8, "rows": 8, "columns": 8, "stages": 2},
    {"block_rows": 64, "block_columns": 64, "block_depth": 16, "rows": 4, "columns": 4, "stages": 2},
    {"block_rows": 32, "block_columns": 32, "block_depth": 16, "rows": 2, "columns": 4, "stages": 2},
    {"block_rows": 16, "block_columns": 16, "block_depth": 16, "rows": 1, "columns": 4, "stages": 2},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""


class ProductTilesSketch(PatternSketch[Product]):
    """Tiles of a product in the registers of threads."""

    name = "product_tiles"
    version = 2
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Product | None:
        product = match_product(task, FLOATS)
        if product is None or not product.rows or size(Sides.of(product).depth) < LEAST_DEPTH:
            return None  # without rows, nothing that is read is shared
        return product

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        knobs = (
            Knob("block_rows", (16, 32, 64, 128, 256)),
            Knob("block_columns", (16, 32, 64, 128, 256)),
            Knob("block_depth", (4, 8, 16, 32)),
            Knob("rows", (1, 2, 4, 8, 16)),
            Knob("columns", (1, 2, 4, 8, 16)),
            Knob("stages", (1, 2), "What the next round needs is read while one is computed."),
            Knob("splits", SPLITS, SHARED),
            Knob("tail", (0, 1), TAIL),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(product, target, columns),
            tiling=lambda c: tiling(product, c, (c["rows"], c["columns"], np.ones_like(c["rows"]))),
            preferred=_preferred(product, target),
            block=lambda columns: _block(product, columns),
        )

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        values = dict(schedule.values)
        return kernel(task, target, product, values, lambda tiles: ProductTile.of(tiles, values).lower())

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        values = point.values
        threads = values["block_rows"] // values["rows"] * (values["block_columns"] // values["columns"])
        yield from point.say_start(
            "A product by tiles: a block brings both operands into shared memory, a thread its own into registers.",
            threads,
        )
        yield from point.say_block_tile()
        yield f"A thread computes {counted(values['rows'], 'row')} by {counted(values['columns'], 'column')}."
        yield from point.say_knobs()


def _threads(columns: Columns) -> Sizes:
    return np.asarray(columns["block_rows"] // columns["rows"] * (columns["block_columns"] // columns["columns"]))


def _block(product: Product, columns: Columns) -> BlockShape:
    threads = _threads(columns)
    rows, across, depth = columns["block_rows"], columns["block_columns"], columns["block_depth"]
    smem_bytes = 4 * columns["stages"] * depth * (rows + PAD + across)
    registers = columns["rows"] * columns["columns"] + columns["rows"] + columns["columns"] + OTHER_REGISTERS
    for operand, extent in zip(operands(product), (rows, across), strict=True):
        wide = operand.wide((WIDE,))
        registers += (wide + ADDRESS_REGISTERS) * accesses(extent, depth, wide, threads)
    return BlockShape(threads, registers, smem_bytes)


def _legal(product: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Whole warps, within shared memory and registers, and no tile that is mostly beyond the edges."""
    legal = (_threads(columns) % WARP == 0) & fits_multiprocessor(target, _block(product, columns))
    return np.asarray(legal & are_tiles_full(product, columns, LEAST_ROUND) & may_split(product, target, columns))


def _preferred(product: Product, target: Target) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    depths, others = (16, 8, 4), {"splits": 1, "tail": 0}
    choices = [values | others | {"block_depth": min(values["block_depth"], n)} for values in DEFAULTS for n in depths]
    return pick_default(product, target, choices, lambda columns: _legal(product, target, columns))
