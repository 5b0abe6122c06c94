"""Specialized windows: a convolution of narrow floats on Hopper, as products of patches of pixels at each tap,
fetched by one warp and multiplied by others (`tiles.specialized_tile`).

The map is read as it is: what windows find beyond its edges is zero. Everything pointwise after the sum is applied to
the registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.instructions.bulk import MOST_BOX
from tunewright.codegen.instructions.warpgroup import COLUMNS, PANEL
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..description import SchedulePoint
from ..patterns.product import Product, drop_padding
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, point_columns
from .specialized_tiles import STAGED, TILES, cycles, describe_roles, do_blocks_fit, specialized_block
from .tiles.block_tile import match_tensor_product
from .tiles.fetch_tile import step_between
from .tiles.group_product import group_tiling, round_depth
from .tiles.sides import SPLITS, Sides, Sizes, size, steps
from .tiles.specialized_tile import REGISTERS, SpecializedTile, patch_views
from .tiles.tiles import BLOCKS, SHARED, kernel, patch_of

EXTENTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Pixels of a patch along one axis."""


class SpecializedWindowsSketch(PatternSketch[Product]):
    """One persistent launch for a convolution, with warps of different roles."""

    name = "specialized_windows"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Product | None:
        return match_patches(task) if target.gpu is not None and target.gpu.has_warpgroups else None

    def offer(self, task: Task, product: Product, target: Target) -> Space:

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(product, target, columns)

        knobs = (
            Knob("block_rows", (64, 128, 192, 256)),
            Knob("block_columns", COLUMNS),
            Knob("block_depth", (round_depth(product),)),
            Knob("warpgroups", tuple(REGISTERS)),
            Knob("stages", (3, 4, 5, 6, 8)),
            Knob("patch_height", EXTENTS),
            Knob("patch_width", EXTENTS),
            Knob("staged", (0, 1), STAGED),
            Knob("splits", SPLITS, SHARED),
        )
        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: group_tiling(product, columns),
            preferred=_preferred(product, target, legal),
            block=lambda columns: specialized_block(product, columns),
        )

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        values = {"tail": 0} | dict(schedule.values)
        return kernel(
            task, target, product, values,
            lambda tiles: SpecializedTile.of(task, tiles, values, target.threads).lower(),
        )  # fmt: skip

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from describe_roles(
            point,
            "A convolution by tiles on tensor cores: one warp has patches of pixels fetched, others multiply them.",
        )
        height, width = point.values["patch_height"], point.values["patch_width"]
        yield f"Its rows are a patch, {height} by {width} pixels of each image."


def match_patches(task: Task) -> Product | None:
    """The task's product of windows that slide over pixels, if the copy engine can bring patches of what they read."""
    product = match_tensor_product(task)
    if product is None or not product.panel.dtype.is_narrow:
        return None
    product = drop_padding(task, product)
    if all(tensor.name != product.broadcast.tensor for tensor in task.inputs):
        return None
    views = patch_views(task, product)
    is_plain = len(Sides.of(product).depth) < 2 and views is not None and max(views[0].steps) == 1
    return None if views is None or is_plain else product


def _tile_count(product: Product, columns: Columns) -> Sizes:
    """How many tiles of blocks cover a convolution."""
    sides = Sides.of(product)
    along = zip(sides.rows, patch_of(product, columns), strict=True)
    down = prod((-(-axis.extent // extent) for axis, extent in along), start=1)
    return np.asarray(size(sides.batch) * down * steps(sides.columns, columns["block_columns"]))


def _legal(product: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, patches of just the rows of a tile, and none mostly beyond the edges."""
    sides = Sides.of(product)
    rows, across = columns["block_rows"], columns["block_columns"]
    legal = do_blocks_fit(product, target, columns)
    legal &= (across == PANEL) | (across < 2 * size(sides.columns))
    pixels = columns["patch_height"] * columns["patch_width"]
    legal &= (rows % pixels == 0) if len(sides.rows) > 2 else (rows == pixels)
    for axis, extent in zip(sides.rows, patch_of(product, columns), strict=True):
        legal &= (extent < 2 * axis.extent) & (extent * step_between(product, axis) <= MOST_BOX)
    rounds, splits = steps(sides.depth, columns["block_depth"]), columns["splits"]
    is_shared = (_tile_count(product, columns) * splits <= BLOCKS * target.threads) & (rounds % splits == 0)
    return np.asarray(legal & ((splits == 1) | is_shared))


def _preferred(product: Product, target: Target, legal: Callable[[Columns], NDArray[np.bool_]]) -> Mapping[str, int]:
    """The tile and the patch that should be the fastest together."""
    others = {"staged": 1, "block_depth": round_depth(product)}
    candidates = [
        tile | others | {"patch_height": height, "patch_width": width, "splits": splits}
        for tile in TILES
        for height in EXTENTS
        for width in EXTENTS
        if height * width <= tile["block_rows"]
        for splits in SPLITS
    ]
    able = list(compress(candidates, legal(point_columns(*candidates))))

    def rank(values: Mapping[str, int]) -> tuple[float, int, int]:
        """Of equals, patches of many pixels are preferred, as high as they are wide: their windows overlap most."""
        height, width = values["patch_height"], values["patch_width"]
        count = _tile_count(product, point_columns(values))
        return cycles(product, target, values, count), -height * width, abs(height - width)

    return min(able, key=rank, default=candidates[-1])
