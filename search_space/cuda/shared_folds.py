"""Shared folds: products of few rows and long folds on a GPU, each result by many threads (`tiles.fold_block`).

Blocks may share a fold too: then each writes its part, and another launch combines those. So all multiprocessors read
from memory, however few results there are.

Weights of few bits stay so in memory: see `tiles.word_block`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import WORD_BYTES, DType
from tunewright.codegen.gpu import BLOCK_THREADS, SM_REGISTERS, STATIC_SMEM_BYTES, THREAD_REGISTERS, WARP, WIDEST_BYTES
from tunewright.codegen.ir.ir import Buffer, Kernel, words_of
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..buffers import kernel_around
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.shared_fold import MOST_ROWS, SharedFold, match_shared_fold
from ..patterns.weight_words import WeightWords
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, flat_extents
from .tiles.element_launch import plain_launch
from .tiles.fold_block import FoldBlock, groups_across, places_of, units_of
from .tiles.sides import Count, size, steps
from .tiles.word_block import WordBlock

WARPS = (1, 2, 4, 8, 16, 32)
LANES = (2, 4, 8, 16, 32)
VECTORS = (1, 2, 4, 8)
UNROLLS = (1, 2, 4, 8, 16)
SPLITS = (1, 2, 4, 8, 16, 32)

SHARED_BY = "{} blocks share a fold; a launch of its own combines what they have."
"""What the knob says by which blocks share folds."""

MOST_COLUMNS = 4
"""Columns of a thread that reads words."""

OTHER_REGISTERS, WORD_REGISTERS = 32, 56
"""Registers of a thread, beside results and what it has read; of one that reads words."""

DEFAULT_WARPS, LOADS, WORD_LOADS = 8, 4, 8
"""Warps of a block, and accesses of a thread that are under way at once, by default, of words more."""

SEGMENT_BYTES = 64
"""Neighbours that are read at once by default: what memory gives at a time."""

MOST_WRITTEN = 64
"""Rows by columns by accesses of a round of a thread that reads words: for each all products are written out."""

MOST_BLOCKS = 16
"""Blocks of a multiprocessor beyond which sharing folds by more of them gains nothing."""

BLOCKS = 1.75
"""Blocks of a multiprocessor up to which by default folds are shared by more of them."""


class SharedFoldsSketch(PatternSketch[SharedFold]):
    """Folds that the threads of a block share, or of several."""

    name = "shared_folds"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> SharedFold | None:
        fold = match_shared_fold(task)
        if fold is None or target.gpu is None:
            return None
        is_few = size(fold.columns) <= target.gpu.sms * target.gpu.sm_threads
        return fold if fold.is_product or is_few else None

    def offer(self, task: Task, fold: SharedFold, target: Target) -> Space:
        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(fold, target, columns)

        knobs = (
            Knob("warps", WARPS),
            Knob("lanes", LANES),
            Knob("vector", tuple(n for n in VECTORS if _is_even(fold, n))),
            Knob("unroll", UNROLLS),
            Knob("rows", tuple(n for n in range(1, MOST_ROWS + 1) if size(fold.rows) % n == 0)),
            Knob("splits", SPLITS, SHARED_BY),
        )
        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: _tiling(fold, columns),
            preferred=_preferred(fold, target, knobs),
            first_choice=fold.is_product or not fold.is_deep,
            block=lambda columns: _block(fold, columns),
        )

    def write(self, task: Task, fold: SharedFold, schedule: Schedule, target: Target) -> Kernel:
        block = (WordBlock if fold.words else FoldBlock)(fold, **dict(schedule.values))
        packings = fold.words.packings(block.lanes, block.wide) if fold.words else {}
        is_shared = block.splits > 1
        launches = (block.lower(), *((block.combine_parts(),) if is_shared else ()))
        scratch = (block.parts,) if is_shared else ()
        kernel = kernel_around(launches, task, fold.stages, plain_launch, packings, scratch)
        if fold.words is None:
            return kernel
        name = fold.panel.tensor
        return replace(kernel, words=(words_of(Buffer(name, packings[name].shape, DType.U8)),))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        values = point.values
        yield from point.say_start(
            "Folds that threads share: each reads a part, and what they come to is combined.", values["warps"] * WARP
        )
        vector, unroll = values["vector"], values["unroll"]
        fold = self.pattern(point.task, point.target)
        if fold.words:
            read = f"{counted(fold.words.terms, 'weight')} of {fold.words.product.bits} bits"
            own = f"each of {vector} columns" if vector > 1 else "a column"
            yield f"A thread reads {read} of {own} at once, {counted(unroll, 'time')} a round."
        else:
            yield f"A thread reads {counted(vector, 'element')} at once, {counted(unroll, 'time')} a round."
        rows = values["rows"]
        if rows > 1:
            yield f"What it has read is for {rows} rows."
        yield from point.say_knobs()


def _is_even(fold: SharedFold, vector: int) -> bool:
    """Whether so many neighbours of the panel are one access wherever they are read; of words each has its own."""
    if fold.words:
        return fold.last.extent % vector == 0 and vector <= MOST_COLUMNS
    each_bytes = fold.panel.dtype.size_bytes
    return fold.last.extent % vector == 0 and fold.pitch % vector == 0 and vector * each_bytes <= WIDEST_BYTES


def _stretches(fold: SharedFold, lanes: Count, vector: Count) -> Count:
    """Blocks beside each other that cover the columns."""
    return steps(fold.columns, groups_across(fold, lanes) * (1 if fold.is_deep else vector))


def _block(fold: SharedFold, columns: Columns) -> BlockShape:
    warps, lanes, vector, unroll, rows, _ = columns.values()
    if fold.words:
        registers = (2 * rows + fold.words.word_numbers) * vector + fold.words.word_numbers + WORD_REGISTERS
        registers += unroll * vector * (fold.words.words + 2 * fold.words.spans)
    else:
        registers = rows * vector + unroll * (rows + vector * fold.panel.dtype.size_bytes // 4 + 1) + OTHER_REGISTERS
    width = groups_across(fold, lanes) * (1 if fold.is_deep else vector)
    return BlockShape(warps * WARP, registers, warps * rows * width * fold.dtype.size_bytes)


def _legal(fold: SharedFold, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within registers and shared memory, and no thread without a term, for hardly more blocks than are of use."""
    warps, lanes, vector, unroll, rows, splits = columns.values()
    places, block = places_of(fold, warps, lanes), _block(fold, columns)
    threads, registers = block.threads, block.registers
    legal = (registers <= THREAD_REGISTERS) & (registers * threads <= SM_REGISTERS) & (threads <= BLOCK_THREADS)
    across = groups_across(fold, lanes)
    wide = 1 if fold.is_deep else vector
    legal &= (block.smem_bytes <= STATIC_SMEM_BYTES) & (rows * across <= threads)
    legal &= (rows * vector * unroll <= MOST_WRITTEN) | (fold.words is None)
    legal &= places * unroll * splits <= np.maximum(units_of(fold, vector), places_of(fold, 1, LANES[0]))
    least = groups_across(fold, LANES[-1 if fold.is_deep else 0])
    legal &= (across == least) | (across * wide < 2 * size(fold.columns))
    count = _stretches(fold, lanes, vector) * (size(fold.rows) // rows)
    return np.asarray(legal & ((splits == 1) | (count * splits <= MOST_BLOCKS * target.threads)))


def _preferred(fold: SharedFold, target: Target, knobs: tuple[Knob, ...]) -> Mapping[str, int]:
    """The widest accesses, all rows together, long stretches of memory, and enough blocks for all multiprocessors."""
    choices = {knob.name: knob.choices for knob in knobs}
    if fold.words:
        return _preferred_words(fold, fold.words, target, choices)
    vector, rows = choices["vector"][-1], choices["rows"][-1]
    each_bytes, least = vector * fold.panel.dtype.size_bytes, BLOCKS * target.threads
    units = units_of(fold, vector)
    long = [n for n in LANES if n * each_bytes >= SEGMENT_BYTES] or [LANES[-1]]
    by_count = sorted(long, key=lambda n: _stretches(fold, n, vector))
    lanes = next((n for n in by_count if _stretches(fold, n, vector) >= least), by_count[-1])
    unroll = min(LOADS * WIDEST_BYTES // each_bytes, UNROLLS[-1])
    warps = max((n for n in WARPS if n <= DEFAULT_WARPS and places_of(fold, n, lanes) * LOADS <= units), default=1)
    count, each = _stretches(fold, lanes, vector), places_of(fold, warps, lanes) * LOADS
    splits = next((n for n in SPLITS if count * n >= least or each * n * 2 > units), SPLITS[-1])
    unroll = max(n for n in UNROLLS if n == 1 or (n <= unroll and places_of(fold, warps, lanes) * n * splits <= units))
    return {"warps": warps, "lanes": lanes, "vector": vector, "unroll": unroll, "rows": rows, "splits": splits}


def _preferred_words(
    fold: SharedFold, words: WeightWords, target: Target, choices: Mapping[str, tuple[int, ...]]
) -> Mapping[str, int]:
    """Some columns of a thread, as activations are converted for all of them, and few blocks that share folds.

    There is so little to read that another launch is taken to be worth it only where most multiprocessors are idle.
    """
    long = [n for n in LANES if n * words.words * WORD_BYTES >= SEGMENT_BYTES]
    vector = next((n for n in choices["vector"][::-1] if 2 * _stretches(fold, long[0], n) >= target.threads), 1)
    lanes = max((n for n in long if _stretches(fold, n, vector) >= BLOCKS * target.threads), default=long[0])
    units, count = units_of(fold, vector), _stretches(fold, lanes, vector)
    warps = max((n for n in WARPS if n <= DEFAULT_WARPS and places_of(fold, n, lanes) <= units), default=1)
    each = places_of(fold, warps, lanes)
    splits = next((n for n in SPLITS if 2 * count * n >= target.threads or each * n * 2 > units), SPLITS[-1])
    unroll = max(n for n in UNROLLS if n == 1 or (n * vector <= WORD_LOADS and each * n * splits <= units))
    rows = choices["rows"][-1]
    return {"warps": warps, "lanes": lanes, "vector": vector, "unroll": unroll, "rows": rows, "splits": splits}


def _tiling(fold: SharedFold, columns: Columns) -> Tiling:
    """What a thread folds in a round, what a block does, and the share of a block."""
    warps, lanes, vector, unroll, rows, splits = columns.values()
    wide, deep = (1, vector) if fold.is_deep else (vector, 1)
    down, across = flat_extents(fold.rows, rows), groups_across(fold, lanes) * wide
    places = places_of(fold, warps, lanes)
    deep = deep * fold.together
    own = down | flat_extents(fold.columns, wide + 0 * vector) | flat_extents(fold.depth, unroll * deep)
    block = down | flat_extents(fold.columns, across)
    share = flat_extents(fold.depth, -(-size(fold.depth) // splits))
    levels = own, block | flat_extents(fold.depth, places * unroll * deep), block | share
    chunks = _stretches(fold, lanes, vector) * (size(fold.rows) // rows) * splits
    return Tiling.of(fold.fused_stage.stage, fold.last.name, columns, levels, chunks)
