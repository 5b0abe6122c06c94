"""Specialized tiles: one product on Hopper, fetched by one warp and multiplied by others (`tiles.specialized_tile`).

The epilogue is applied to the registers. Fused stages before and after the product are launches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from math import ceil

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.gpu import WARP
from tunewright.codegen.instructions.warpgroup import COLUMNS, GROUP, PANEL, ROW_BYTES, ROWS
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..counts import counted
from ..description import SchedulePoint
from ..patterns.product import Product
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, point_columns
from .tiles.block_tile import may_group, pack_along_depth, smem_bytes
from .tiles.fragments import WARP_BYTES, kept_registers
from .tiles.group_product import group_tiling, match_group_product, round_depth
from .tiles.shared_tile import product_depth
from .tiles.sides import SPLITS, Sides, Sizes, are_tiles_full, steps, tile_count
from .tiles.specialized_tile import REGISTERS, SpecializedTile, group_registers, views
from .tiles.tiles import IN_TURN, SHARED, TAIL, kernel, may_split

OTHER_REGISTERS = 40
"""Registers of a thread that multiplies, beside its sums."""

BARRIER_BYTES = 256
"""Shared memory for the barriers of all stages."""

TILES = (
    {"block_rows": 128, "block_columns": 256, "warpgroups": 2, "stages": 4},
    {"block_rows": 256, "block_columns": 192, "warpgroups": 2, "stages": 3},
    {"block_rows": 256, "block_columns": 128, "warpgroups": 2, "stages": 4},
    {"block_rows": 128, "block_columns": 192, "warpgroups": 2, "stages": 4},
    {"block_rows": 128, "block_columns": 128, "warpgroups": 2, "stages": 6},
    {"block_rows": 64, "block_columns": 256, "warpgroups": 1, "stages": 5},
    {"block_rows": 64, "block_columns": 192, "warpgroups": 1, "stages": 5},
    {"block_rows": 64, "block_columns": 128, "warpgroups": 1, "stages": 8},
    {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 8},
)
"""Candidates for the default, which is the fastest by `cycles`."""

SMEM_BYTES_CYCLE, FETCHED_BYTES_CYCLE, STORED_ELEMENTS_CYCLE = 100, 64, 16
"""Figures of a multiprocessor of an H200, fitted to measured times: bytes of shared memory that products read a cycle,
bytes that come into it, and sums that are written a cycle.
"""

TILE_CYCLES, PARTS_CYCLES = 1500, 2500
"""Likewise cycles to begin a tile, and of the launch that adds parts up."""


STAGED = "Results go through shared memory, from where rows are written whole."
"""What the knob says by which results are staged."""


class SpecializedTilesSketch(PatternSketch[Product]):
    """One persistent launch for a product, with warps of different roles."""

    name = "specialized_tiles"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Product | None:
        if target.gpu is None or not target.gpu.has_warpgroups:
            return None
        product = _match(pack_along_depth(task)[0])
        return product if product is not None and is_offered(product, target) else None

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        return self.space_of_tiles(product, target)

    def space_of_tiles(self, product: Product, target: Target, *, first_choice: bool = True) -> Space:
        """The schedules of a product of two operands that the copy engine can bring."""

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(product, target, columns)

        knobs = (
            Knob("block_rows", (64, 128, 192, 256)),
            Knob("block_columns", COLUMNS),
            Knob("block_depth", (round_depth(product),)),
            Knob("warpgroups", tuple(REGISTERS)),
            Knob("stages", (3, 4, 5, 6, 8)),
            Knob("group", (1, 2, 4, 8, 16), IN_TURN),
            Knob("staged", (0, 1), STAGED),
            Knob("splits", SPLITS, SHARED),
            Knob("tail", (0, 1), TAIL),
        )
        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: group_tiling(product, columns),
            preferred=_preferred(product, target, legal),
            first_choice=first_choice,
            block=lambda columns: specialized_block(product, columns),
        )

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        (task, packings), values = pack_along_depth(task), dict(schedule.values)
        return kernel(
            task, target, product, values,
            lambda tiles: SpecializedTile.of(task, tiles, values, target.threads).lower(),
            packings,
        )  # fmt: skip

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from describe_roles(
            point, "A product by tiles on tensor cores: one warp has tiles fetched, others multiply what has come."
        )


def describe_roles(point: SchedulePoint, what: str) -> Iterator[str]:
    """Say what tiles by warps of different roles have in common."""
    values = point.values
    yield from point.say_start(what, (values["warpgroups"] + 1) * GROUP)
    yield from point.say_block_tile()
    yield f"Four warps compute {counted(values['block_rows'] // values['warpgroups'], 'row')} of it."
    yield f"A block stays for its tiles; {counted(values['stages'], 'round')} fit into shared memory."
    yield from point.say_knobs()


def _match(task: Task) -> Product | None:
    """The task's product, if warpgroups multiply its operands, and the copy engine can bring tiles of both."""
    product = match_group_product(task)
    return product if product is not None and views(task, product) is not None else None


def is_offered(product: Product, target: Target) -> bool:
    """Whether the smallest tiles of a product are legal."""
    return bool(_legal(product, target, point_columns(_choices(product)[-1]))[0])


def _legal(product: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    rows, across = columns["block_rows"], columns["block_columns"]
    legal = do_blocks_fit(product, target, columns)
    legal &= may_group(product, columns) & may_split(product, target, columns)
    least = {"block_rows": np.where(rows == ROWS, 0, rows), "block_columns": np.where(across == PANEL, 0, across)}
    return np.asarray(legal & are_tiles_full(product, {**columns, **least}, product_depth(product.panel.dtype)))


def specialized_block(product: Product, columns: Columns) -> BlockShape:
    """Blocks whose warps have roles; registers are those of a thread that multiplies."""
    groups, sums = columns["warpgroups"], columns["block_rows"] * columns["block_columns"]
    staged_bytes = columns["staged"] * groups * (GROUP // WARP) * WARP_BYTES
    registers = sums // (GROUP * groups) + OTHER_REGISTERS + columns["staged"] * kept_registers(product)
    smem = smem_bytes(product, columns) + staged_bytes + BARRIER_BYTES
    return BlockShape(GROUP * (groups + 1), registers, smem, on_tensor_cores=True)


def do_blocks_fit(product: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Whether a multiprocessor has the memory and registers of a block, and its warpgroups share its rows evenly."""
    assert target.gpu is not None
    groups, block = columns["warpgroups"], specialized_block(product, columns)
    fit = block.smem_bytes <= target.gpu.block_smem_bytes
    fit &= columns["block_rows"] % (ROWS * groups) == 0
    return np.asarray(fit & (block.registers <= group_registers(groups)))


def _choices(product: Product) -> list[dict[str, int]]:
    """TILES with the values that all of them share."""
    others = {"group": 1, "splits": 1, "tail": 0, "staged": 1, "block_depth": round_depth(product)}
    return [values | others for values in TILES]


def _preferred(product: Product, target: Target, legal: Callable[[Columns], NDArray[np.bool_]]) -> Mapping[str, int]:
    """The choice that should be the fastest, its tiles of rows in the largest groups, by blocks that share the sums of
    tiles where that is faster.
    """
    candidates = [
        values | {"group": group, "splits": splits}
        for values in _choices(product)
        for splits in SPLITS
        for group in (8, 4, 2, 1)
    ]
    able = list(compress(candidates, legal(point_columns(*candidates))))

    def rank(values: Mapping[str, int]) -> tuple[float, int]:
        return cycles(product, target, values, tile_count(product, point_columns(values))), -values["group"]

    return min(able, key=rank, default=_choices(product)[-1])


def cycles(product: Product, target: Target, values: Mapping[str, int], count: Sizes) -> float:
    """Estimate the cycles of a multiprocessor for its share of so many tiles.

    For products, what they read of shared memory or what comes into it, whichever takes longest, and for stores.
    """
    tiles = ceil(int(count[0]) * values["splits"] / target.threads)
    rows, columns, splits = values["block_rows"], values["block_columns"], values["splits"]
    rounds = steps(Sides.of(product).depth, values["block_depth"]) // splits
    read_bytes = (ROWS + columns) * ROW_BYTES / 4
    product_cycles = 4 * rows / ROWS * max(columns / 2, read_bytes / SMEM_BYTES_CYCLE)
    fetch_cycles = (rows + columns) * ROW_BYTES / FETCHED_BYTES_CYCLE
    stored = rows * columns / STORED_ELEMENTS_CYCLE
    parts = 0 if splits == 1 else PARTS_CYCLES + splits * stored * tiles / 2
    return tiles * (rounds * max(product_cycles, fetch_cycles) + stored) + TILE_CYCLES + parts
