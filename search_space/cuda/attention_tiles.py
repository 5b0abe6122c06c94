"""Attention tiles: attention of narrow floats as one launch on a GPU, with neither scores nor weights in memory
(`tiles.attention_tile`).

Few queries that meet a long cache are few tiles: then blocks may share the keys of each, and a second launch combines
what they have (`tiles.attention_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..buffers import params
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.attention import Attention, match_attention
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, point_columns
from .tiles.attention_tile import DEPTH, AttentionTile, pad_extent
from .tiles.shared_tile import ROWS, width
from .tiles.sides import (
    ADDRESS_REGISTERS,
    Sides,
    Sizes,
    accesses,
    first_legal,
    fits_multiprocessor,
    operands,
    size,
    steps,
    tiling,
)

MOST_INNER = 128
"""Terms of a score, and columns of the values: all of them are in registers."""

OTHER_REGISTERS = 64
"""Registers of a thread for counts, indices and values of rows."""

DEFAULTS = (
    {"warps": 4, "block_places": 64, "stages": 2},
    {"warps": 4, "block_places": 32, "stages": 2},
    {"warps": 2, "block_places": 16, "stages": 2},
    {"warps": 1, "block_places": 16, "stages": 2},
)
"""The first that is legal is taken."""

SPLITS = (1, 2, 4, 8, 16, 32)

SHARED_BY = "{} blocks share the keys of a tile; a launch of its own combines what they have."
"""What the knob says by which blocks share keys."""

FEW_ROWS = 64
"""Rows of scores up to which blocks may share keys: one tile, of queries that meet a long cache."""

LEAST_KEYS = 64
"""Keys of a block, where blocks share those of a tile."""

LONG = 512
"""Keys from which on blocks share them by default: fewer are taken not to be worth a launch more."""

MOST_BLOCKS = 4
"""Blocks of a multiprocessor beyond which keys are shared by two of them at most."""

FILLED = 0.75
"""The part of the multiprocessors that have a block, from which on by default no more blocks share keys."""

FEW_QUERIES = tuple(
    {"warps": warps, "block_places": keys, "stages": stages}
    for keys, stages in ((64, 4), (32, 4), (32, 2), (16, 2))
    for warps in (4, 2, 1)
)
"""Defaults where blocks may share keys, the first that is legal: all rows in a tile, much under way from memory."""


@lru_cache(maxsize=256)
def match_narrow_attention(task: Task) -> Attention | None:
    """The task's attention, if all operands are of one type of narrow floats, and fit into registers."""
    attention = match_attention(task)
    if attention is None:
        return None
    loads = attention.scores.broadcast, attention.scores.panel, attention.context.panel
    is_alike = len({load.dtype for load in loads}) == 1 and loads[0].dtype.is_narrow
    sizes = size(Sides.of(attention.scores).depth), size(Sides.of(attention.context).columns)
    return attention if is_alike and max(sizes) <= MOST_INNER else None


def query_rows(task: Task) -> int:
    """The queries that share keys, where a task is attention of narrow floats; 0 where it is none."""
    attention = match_narrow_attention(task)
    return 0 if attention is None else size(Sides.of(attention.scores).rows)


class AttentionTilesSketch(PatternSketch[Attention]):
    """One launch for an attention, with tiles of warps, or two where blocks share keys."""

    name = "attention_tiles"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Attention | None:
        return match_narrow_attention(task)

    def offer(self, task: Task, attention: Attention, target: Target) -> Space:
        knobs = (
            Knob("warps", (1, 2, 4, 8)),
            Knob("block_places", (16, 32, 64, 128)),
            Knob("stages", (2, 3, 4)),
        )
        splits = splits_of(attention, target)
        return self.space_of(
            knobs if len(splits) == 1 else (*knobs, Knob("splits", splits, SHARED_BY, is_apart=True)),
            legal=lambda columns: _legal(task, attention, target, columns),
            tiling=lambda columns: _tiling(attention, columns),
            preferred=preferred_tiles(task, attention, target),
            block=lambda columns: _block(task, attention, columns),
        )

    def write(self, task: Task, attention: Attention, schedule: Schedule, target: Target) -> Kernel:
        tile = AttentionTile(attention, input_shapes(task), **dict(schedule.values))
        if tile.splits == 1:
            return Kernel(params(task, {}), (), Block((tile.lower(),)))
        return Kernel(params(task, {}), tile.parts.buffers, Block((tile.lower(), tile.parts.combine())))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        warps, places, stages = (point.values[name] for name in ("warps", "block_places", "stages"))
        launches = "one launch" if point.values.get("splits", 1) == 1 else "two launches"
        yield from point.say_start(
            f"Attention in {launches} on tensor cores: scores and weights are in registers, and nowhere else.",
            warps * WARP,
        )
        rows = f"{counted(ROWS * warps, 'row')} of scores, {ROWS} a warp"
        yield f"A block has {rows}, for {counted(places, 'key')} a round and as many values."
        yield f"What a round needs is copied {counted(stages - 1, 'round')} ahead."
        yield from say_unseen(self.pattern(point.task, point.target))
        yield from point.say_knobs()


def splits_of(attention: Attention, target: Target) -> tuple[int, ...]:
    """How many blocks may share the keys of a tile: one alone, unless few queries meet many keys."""
    sides, keys = Sides.of(attention.scores), attention.key_axis.extent
    if size(sides.rows) > FEW_ROWS:
        return SPLITS[:1]
    most = min(max(MOST_BLOCKS * target.threads // size(sides.batch), 2), keys // LEAST_KEYS)
    return tuple(n for n in SPLITS if n <= max(most, 1))


def preferred_tiles(task: Task, attention: Attention, target: Target) -> Mapping[str, int]:
    """The first of the defaults that is legal, by the fewest blocks a tile of which there are enough."""
    splits, sides = splits_of(attention, target), Sides.of(attention.scores)

    def legal(columns: Columns) -> NDArray[np.bool_]:
        return _legal(task, attention, target, columns)

    if len(splits) == 1:
        return first_legal(DEFAULTS, legal)
    values = first_legal(FEW_QUERIES, legal)
    if attention.key_axis.extent < LONG:
        splits = splits[:1]
    count = size(sides.batch) * steps(sides.rows, ROWS * values["warps"])
    able = [n for n in splits if legal(point_columns({**values, "splits": n}))[0]] or [1]
    return {**values, "splits": next((n for n in able if n * count >= FILLED * target.threads), able[-1])}


def do_blocks_share_keys(task: Task, target: Target) -> bool:
    """Whether blocks share the keys of an attention by default: else most multiprocessors would have none."""
    attention = match_narrow_attention(task)
    return attention is not None and preferred_tiles(task, attention, target).get("splits", 1) > 1


def say_unseen(attention: Attention) -> Iterator[str]:
    """Say that keys are left out, of causal attention."""
    if attention.past is not None:
        yield "Keys that come after all queries of a block are not read."


def input_shapes(task: Task) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the tensors that are read, by name."""
    return {tensor.name: tensor.shape for tensor in task.inputs}


def _block(task: Task, attention: Attention, columns: Columns) -> BlockShape:
    warps, block, stages = columns["warps"], columns["block_places"], columns["stages"]
    sides = Sides.of(attention.scores)
    inner, outer = pad_extent(size(sides.depth)), pad_extent(size(Sides.of(attention.context).columns))
    threads, rows = WARP * warps, ROWS * warps
    smem_bytes = attention.scores.panel.dtype.size_bytes * (rows * inner + stages * block * (inner + outer))
    shapes = input_shapes(task)
    keys, values = operands(attention.scores)[1], operands(attention.context)[1]
    copies = accesses(block, np.full_like(block, inner), width(keys, shapes), threads)
    copies = copies + accesses(block, np.full_like(block, outer), width(values, shapes), threads)
    registers = block // 2 + outer // 2 + block // 4 + ADDRESS_REGISTERS * copies + OTHER_REGISTERS
    return BlockShape(threads, registers, smem_bytes, on_tensor_cores=True)


def _legal(task: Task, attention: Attention, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, no tile that is mostly beyond the edges, and no block without a round."""
    warps, block = columns["warps"], columns["block_places"]
    legal = fits_multiprocessor(target, _block(task, attention, columns))
    legal &= (warps == 1) | (ROWS * warps < 2 * size(Sides.of(attention.scores).rows))
    legal &= (block == DEPTH) | (block < 2 * attention.key_axis.extent)
    rounds = -(-attention.key_axis.extent // block)
    return np.asarray(legal & (columns.get("splits", np.ones_like(rounds)) <= rounds))


def _tiling(attention: Attention, columns: Columns) -> Tiling:
    """The tiling of the second product: 16 rows of a warp, the rows of a block, all keys."""
    width = pad_extent(size(Sides.of(attention.context).columns))
    return attention_tiling(attention, columns, ROWS, columns["warps"], width, DEPTH)


def attention_tiling(
    attention: Attention, columns: Columns, rows: int, groups: Sizes, width: int, depth: int
) -> Tiling:
    """The tiling of the second product: `rows` of each of the groups of a block, all its columns, all keys."""
    whole = np.full_like(groups, width)
    blocks = {
        "block_rows": rows * groups,
        "block_columns": whole,
        "block_depth": columns["block_places"],
        "splits": columns.get("splits", np.ones_like(groups)),
    }
    return tiling(attention.context, blocks, (np.full_like(groups, rows), whole, np.full_like(groups, depth)))
