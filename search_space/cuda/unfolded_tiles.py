"""Unfolded tiles: a convolution of narrow floats on Hopper whose windows the copy engine can't fetch.

One launch lays out what each window reads as a row of a matrix. The next multiplies that by the weights as a product
of matrices (`specialized_tiles`), whose epilogue stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunewright.codegen.instructions.warpgroup import PANEL
from tunewright.codegen.ir.ir import Kernel, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..description import SchedulePoint
from ..patterns.fused_stage import FusedStage
from ..patterns.product import Product
from ..patterns.unfolding import PATCHES, Unfolding, unfold
from ..schedule import Schedule
from ..space import Space
from .specialized_tiles import SpecializedTilesSketch, describe_roles, is_offered
from .specialized_windows import match_patches
from .tiles.block_tile import match_tensor_product
from .tiles.element_launch import plain_launch
from .tiles.patch_launch import lay_out_rows
from .tiles.specialized_tile import SpecializedTile, views
from .tiles.tiles import kernel


class UnfoldedTilesSketch(SpecializedTilesSketch):
    """A launch for the rows of a matrix, and those of a product of it."""

    name = "unfolded_tiles"
    version = 1

    def recognise(self, task: Task, target: Target) -> Product | None:
        if target.gpu is None or not target.gpu.has_warpgroups:
            return None
        unfolding = _match(task)
        return unfolding.product if unfolding is not None and is_offered(unfolding.product, target) else None

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        # Of many channels a round is read where they lie; of few, most of it would be indices.
        channels = product.fused_stage.stage.reduce[-1]
        return self.space_of_tiles(product, target, first_choice=channels.extent < PANEL)

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        unfolding, values = _match(task), dict(schedule.values)
        assert unfolding is not None
        return kernel(
            unfolding.task, target, product, values,
            lambda tiles: SpecializedTile.of(unfolding.task, tiles, values, target.threads).lower(),
            plain=_launch,
        )  # fmt: skip

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from describe_roles(
            point,
            "What windows read is laid out as a matrix; of that a product by tiles on tensor cores:"
            " one warp has tiles fetched, others multiply what has come.",
        )


def _match(task: Task) -> Unfolding | None:
    """A task's convolution, unfolded: if the copy engine can bring tiles of both matrices, but none of its windows."""
    product = match_tensor_product(task)
    if product is None or not product.panel.dtype.is_narrow:
        return None
    if views(task, product) is not None or match_patches(task) is not None:
        return None
    unfolding = unfold(task, product)
    return unfolding if unfolding is not None and views(unfolding.task, unfolding.product) is not None else None


def _launch(fused_stage: FusedStage) -> Stmt:
    """A launch before or after the product: of rows that are laid out, or any other."""
    return lay_out_rows(fused_stage) if fused_stage.output == PATCHES else plain_launch(fused_stage)
