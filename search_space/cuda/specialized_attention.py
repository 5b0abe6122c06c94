"""Specialized attention: two products and the softmax between them on Hopper, fetched by one warp and multiplied by
others, in one launch (`tiles.specialized_attention_tile`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.instructions.warpgroup import COLUMNS, GROUP, PANEL, ROWS
from tunewright.codegen.ir.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..buffers import params
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.attention import Attention
from ..patterns.product import Product
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling
from .attention_tiles import (
    attention_tiling,
    do_blocks_share_keys,
    input_shapes,
    match_narrow_attention,
    say_unseen,
)
from .tiles.shared_tile import product_depth
from .tiles.sides import Sides, first_legal, size
from .tiles.specialized_attention_tile import SpecializedAttentionTile, views
from .tiles.specialized_tile import REGISTERS, group_registers

OTHER_REGISTERS = 44
"""Registers of a thread for counts, indices and values of rows."""

BARRIER_BYTES = 1024
"""Shared memory for all barriers."""

DEFAULTS = (
    {"warpgroups": 2, "block_places": 128, "stages": 2, "query_stages": 2, "alternating": 1},
    {"warpgroups": 2, "block_places": 128, "stages": 2, "query_stages": 1, "alternating": 1},
    {"warpgroups": 1, "block_places": 128, "stages": 2, "query_stages": 1, "alternating": 0},
    {"warpgroups": 1, "block_places": 64, "stages": 2, "query_stages": 1, "alternating": 0},
)
"""The first that is legal is taken."""


LEAST_ROWS = 16
"""Rows of an axis that are worth a tile of their own."""

AHEAD = "Queries of the next tile come while this one is computed."
"""What the knob says by which two tiles of queries fit into shared memory."""

ALTERNATING = "Warpgroups take turns to begin products, so that one has products while another has exponentials."
"""What the knob says by which warpgroups alternate."""


class SpecializedAttentionSketch(PatternSketch[Attention]):
    """One persistent launch for an attention, with warps of different roles."""

    name = "specialized_attention"
    version = 2
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Attention | None:
        matched = match_narrow_attention(task)
        if target.gpu is None or not target.gpu.has_warpgroups or matched is None or not matched.scores.rows:
            return None
        attention = Attention(_with_one_row_axis(matched.scores), _with_one_row_axis(matched.context))
        return attention if views(attention, input_shapes(task)) is not None else None

    def offer(self, task: Task, attention: Attention, target: Target) -> Space:
        knobs = (
            Knob("warpgroups", tuple(REGISTERS)),
            Knob("block_places", COLUMNS),
            Knob("stages", (2, 3, 4)),
            Knob("query_stages", (1, 2), AHEAD),
            Knob("alternating", (0, 1), ALTERNATING),
        )

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(attention, target, columns)

        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: _tiling(attention, columns),
            preferred=first_legal(DEFAULTS, legal),
            first_choice=not do_blocks_share_keys(task, target),
            block=lambda columns: _block(attention, columns),
        )

    def write(self, task: Task, attention: Attention, schedule: Schedule, target: Target) -> Kernel:
        values = dict(schedule.values)
        launch = SpecializedAttentionTile.of(attention, input_shapes(task), values, target.threads).lower()
        return Kernel(params(task, {}), (), Block((launch,)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        groups, places, stages = (point.values[name] for name in ("warpgroups", "block_places", "stages"))
        yield from point.say_start(
            "Attention in one launch on tensor cores: one warp has tiles fetched, others multiply what has come.",
            (groups + 1) * GROUP,
        )
        rows = f"{counted(ROWS * groups, 'row')} of scores, {ROWS} of four warps"
        yield f"A block has {rows}, for {counted(places, 'key')} a round and as many values."
        yield f"A block stays for its tiles; {counted(stages, 'round')} fit into shared memory."
        yield from say_unseen(self.pattern(point.task, point.target))
        yield from point.say_knobs()


def _with_one_row_axis(product: Product) -> Product:
    """The product with one axis of rows, the last, where it has several: heads that share keys are each a batch.

    What is fetched for a tile of rows lies along one axis. A short last axis stays among the others.
    """
    *others, last = product.rows
    if product.fused_stage.stage.extents[last] < LEAST_ROWS:
        return product
    return replace(product, rows=(last,), batch=(*product.batch, *others))


def _panels(attention: Attention) -> tuple[int, int]:
    """Terms of a score, and columns of the values, in whole panels."""
    inner, outer = size(Sides.of(attention.scores).depth), size(Sides.of(attention.context).columns)
    return -(-inner // PANEL) * PANEL, -(-outer // PANEL) * PANEL


def _block(attention: Attention, columns: Columns) -> BlockShape:
    groups, block, stages = columns["warpgroups"], columns["block_places"], columns["stages"]
    inner, outer = _panels(attention)
    size_bytes = attention.scores.panel.dtype.size_bytes
    query_rows = columns["query_stages"] * ROWS * groups
    smem_bytes = size_bytes * (query_rows * inner + stages * block * (inner + outer)) + BARRIER_BYTES
    registers = block // 2 + outer // 2 + block // 4 + OTHER_REGISTERS
    return BlockShape(GROUP * (groups + 1), registers, smem_bytes, on_tensor_cores=True)


def _legal(attention: Attention, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    assert target.gpu is not None
    groups, block, shape = columns["warpgroups"], columns["block_places"], _block(attention, columns)
    legal = (shape.smem_bytes <= target.gpu.block_smem_bytes) & (shape.registers <= group_registers(groups))
    legal &= (groups > 1) | (columns["alternating"] == 0)
    legal &= (groups == 1) | (ROWS * groups < 2 * size(Sides.of(attention.scores).rows))
    return np.asarray(legal & ((block == PANEL) | (block < 2 * attention.key_axis.extent)))


def _tiling(attention: Attention, columns: Columns) -> Tiling:
    """The tiling of the second product: 64 rows of a warpgroup, the rows of a block, all keys."""
    _, width = _panels(attention)
    depth = product_depth(attention.scores.panel.dtype)
    return attention_tiling(attention, columns, ROWS, columns["warpgroups"], width, depth)
