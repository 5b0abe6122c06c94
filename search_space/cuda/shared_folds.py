"""Shared folds: products of few rows and long folds on a GPU, each result by many threads.

    block, warp, lane                     its columns, and its place among those that share a fold
      sums[rows, vector] = identity       registers
      rounds, copies
        sums = fold(sums, body)           16 bytes of the panel each, all copies of a round under way at once
      sums across the lanes               by exchanging registers
      sums across the warps               through shared memory
      output[index] = epilogue(sums)

Blocks may share a fold too: then each writes its part, and another launch combines those. So all multiprocessors read
from memory, however few results there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import BLOCK_THREADS, SM_REGISTERS, STATIC_SMEM_BYTES, THREAD_REGISTERS, WARP, WIDEST_BYTES
from tunewright.codegen.ir.ir import Alloc, Barrier, Block, Buffer, For, If, Kernel, LoopKind, Scope, Stmt, Store
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import COMBINERS, Task, fold_value, identity

from ..axes import axis_indices, unravel
from ..buffers import allocate, kernel_around
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.shared_fold import MOST_ROWS, SharedFold, match_shared_fold
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, flat_extents
from .tiles.elements import PLAIN_THREADS, launch, plain_launch, vectorize_at
from .tiles.reductions import PARTS, WHOLE, combine_all, combine_parts, part_width, warp_reduce
from .tiles.sides import Count, guard_extent, size, steps, store_epilogue

SUMS, PART, OTHER, SHARED = "sums", "part", "other", "shared"
"""Buffers: the results of a thread, one on its way across the lanes, that of another lane, those of warps."""

WARPS = (1, 2, 4, 8, 16, 32)
LANES = (2, 4, 8, 16, 32)
VECTORS = (1, 2, 4, 8)
UNROLLS = (1, 2, 4, 8, 16)
SPLITS = (1, 2, 4, 8, 16, 32)

SHARED_BY = "{} blocks share a fold; a launch of its own combines what they have."
"""What the knob says by which blocks share folds."""

OTHER_REGISTERS = 32
"""Registers of a thread, beside results and what it has read."""

DEFAULT_WARPS, LOADS = 8, 4
"""Warps of a block, and accesses of a thread that are under way at once, by default."""

SEGMENT_BYTES = 64
"""Neighbours that are read at once by default: what memory gives at a time."""

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
        block = FoldBlock(fold, **dict(schedule.values))
        if block.splits == 1:
            return kernel_around((block.lower(),), task, fold.stages, plain_launch)
        launches = block.lower(), block.combine_parts()
        return kernel_around(launches, task, fold.stages, plain_launch, scratch=(block.parts,))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        values = point.values
        yield from point.say_start(
            "Folds that threads share: each reads a part, and what they come to is combined.", values["warps"] * WARP
        )
        vector, unroll = values["vector"], values["unroll"]
        yield f"A thread reads {counted(vector, 'element')} at once, {counted(unroll, 'time')} a round."
        rows = values["rows"]
        if rows > 1:
            yield f"What it has read is for {rows} rows."
        yield from point.say_knobs()


def _is_even(fold: SharedFold, vector: int) -> bool:
    """Whether so many neighbours of the panel are one access wherever they are read."""
    each_bytes = fold.panel.dtype.size_bytes
    return fold.last.extent % vector == 0 and fold.pitch % vector == 0 and vector * each_bytes <= WIDEST_BYTES


def _across(fold: SharedFold, lanes: Count) -> Count:
    """Groups of columns of a block: those of a thread are one."""
    return WARP // lanes if fold.is_deep else lanes


def _places(fold: SharedFold, warps: Count, lanes: Count) -> Count:
    """Threads of a block that share a fold."""
    return warps * (lanes if fold.is_deep else WARP // lanes)


def _units(fold: SharedFold, vector: Count) -> Count:
    """What is shared of a fold: accesses of the panel."""
    return size(fold.depth) // vector if fold.is_deep else size(fold.depth) + 0 * vector


def _stretches(fold: SharedFold, lanes: Count, vector: Count) -> Count:
    """Blocks beside each other that cover the columns."""
    return steps(fold.columns, _across(fold, lanes) * (1 if fold.is_deep else vector))


def _block(fold: SharedFold, columns: Columns) -> BlockShape:
    warps, lanes, vector, unroll, rows, _ = columns.values()
    registers = rows * vector + unroll * (rows + vector * fold.panel.dtype.size_bytes // 4 + 1) + OTHER_REGISTERS
    width = _across(fold, lanes) * (1 if fold.is_deep else vector)
    return BlockShape(warps * WARP, registers, warps * rows * width * fold.dtype.size_bytes)


def _legal(fold: SharedFold, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within registers and shared memory, and no thread without a term, for hardly more blocks than are of use."""
    warps, lanes, vector, unroll, rows, splits = columns.values()
    places, block = _places(fold, warps, lanes), _block(fold, columns)
    threads, registers = block.threads, block.registers
    legal = (registers <= THREAD_REGISTERS) & (registers * threads <= SM_REGISTERS) & (threads <= BLOCK_THREADS)
    across = _across(fold, lanes)
    wide = 1 if fold.is_deep else vector
    legal &= (block.smem_bytes <= STATIC_SMEM_BYTES) & (rows * across <= threads)
    legal &= places * unroll * splits <= np.maximum(_units(fold, vector), _places(fold, 1, LANES[0]))
    legal &= (across == _across(fold, LANES[-1 if fold.is_deep else 0])) | (across * wide < 2 * size(fold.columns))
    count = _stretches(fold, lanes, vector) * (size(fold.rows) // rows)
    return np.asarray(legal & ((splits == 1) | (count * splits <= MOST_BLOCKS * target.threads)))


def _preferred(fold: SharedFold, target: Target, knobs: tuple[Knob, ...]) -> Mapping[str, int]:
    """The widest accesses, all rows together, long stretches of memory, and enough blocks for all multiprocessors."""
    choices = {knob.name: knob.choices for knob in knobs}
    vector, rows = choices["vector"][-1], choices["rows"][-1]
    each_bytes, least = vector * fold.panel.dtype.size_bytes, BLOCKS * target.threads
    units = _units(fold, vector)
    long = [n for n in LANES if n * each_bytes >= SEGMENT_BYTES] or [LANES[-1]]
    by_count = sorted(long, key=lambda n: _stretches(fold, n, vector))
    lanes = next((n for n in by_count if _stretches(fold, n, vector) >= least), by_count[-1])
    unroll = min(LOADS * WIDEST_BYTES // each_bytes, UNROLLS[-1])
    warps = max((n for n in WARPS if n <= DEFAULT_WARPS and _places(fold, n, lanes) * LOADS <= units), default=1)
    count, each = _stretches(fold, lanes, vector), _places(fold, warps, lanes) * LOADS
    splits = next((n for n in SPLITS if count * n >= least or each * n * 2 > units), SPLITS[-1])
    unroll = max(n for n in UNROLLS if n == 1 or (n <= unroll and _places(fold, warps, lanes) * n * splits <= units))
    return {"warps": warps, "lanes": lanes, "vector": vector, "unroll": unroll, "rows": rows, "splits": splits}


def _tiling(fold: SharedFold, columns: Columns) -> Tiling:
    """What a thread folds in a round, what a block does, and the share of a block."""
    warps, lanes, vector, unroll, rows, splits = columns.values()
    wide, deep = (1, vector) if fold.is_deep else (vector, 1)
    down, across = flat_extents(fold.rows, rows), _across(fold, lanes) * wide
    places = _places(fold, warps, lanes)
    own = down | flat_extents(fold.columns, wide + 0 * vector) | flat_extents(fold.depth, unroll * deep)
    block = down | flat_extents(fold.columns, across)
    share = flat_extents(fold.depth, -(-size(fold.depth) // splits))
    levels = own, block | flat_extents(fold.depth, places * unroll * deep), block | share
    chunks = _stretches(fold, lanes, vector) * (size(fold.rows) // rows) * splits
    return Tiling.of(fold.fused_stage.stage, fold.last.name, columns, levels, chunks)


BLOCK, WARP_NUMBER, LANE, ROUND, COPY, ROW, ELEMENT = "block", "warp", "lane", "round", "copy", "row", "element"
"""Variables: of the launch, and of the loops of a thread."""


@dataclass(frozen=True, slots=True)
class FoldBlock:
    """A fold and the numbers of its launch, as the knobs say them."""

    fold: SharedFold
    warps: int
    lanes: int  # side by side, along neighbours in memory
    vector: int  # neighbours that a thread reads at once
    unroll: int  # accesses in a round
    rows: int  # that a thread folds together
    splits: int  # blocks that share a fold

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def wide(self) -> int:
        """Columns of a thread."""
        return 1 if self.fold.is_deep else self.vector

    @property
    def across(self) -> int:
        """Groups of columns of a block, each of `wide`."""
        return _across(self.fold, self.lanes)

    @property
    def groups(self) -> int:
        """Groups of columns that there are."""
        return size(self.fold.columns) // self.wide

    @property
    def places(self) -> int:
        """Threads of a block that share a fold."""
        return _places(self.fold, self.warps, self.lanes)

    @property
    def parts(self) -> Buffer:
        """The buffer of what blocks have that share folds."""
        return Buffer(PARTS, (self.splits, size(self.fold.rows), size(self.fold.columns)), self.fold.dtype)

    @property
    def combiner(self) -> str:
        return self.fold.fused_stage.stage.combiner

    @property
    def _combine(self) -> str:
        """The op of the combiner."""
        return COMBINERS[self.combiner]

    # The launch

    def lower(self) -> Stmt:
        """The loops of the launch."""
        counts = self.splits, steps(self.fold.columns, self.across * self.wide), size(self.fold.rows) // self.rows
        part, stretch, band = unravel(Var(BLOCK), counts)
        fast, slow = Var(LANE) % self.lanes, Var(LANE) // self.lanes
        own, beside = (slow, fast) if self.fold.is_deep else (fast, slow)
        group, place = stretch * self.across + own, Var(WARP_NUMBER) * (self.places // self.warps) + beside
        row, first = band * self.rows, stretch * self.across
        start = const(identity(self.combiner, self.fold.dtype), self.fold.dtype)
        body = Block(
            (
                self._each_row(Store(SUMS, (Var(ROW), self._lanes), start)),
                guard_extent(group, self.groups, self.across, Block(tuple(self._rounds(part, place, group, row)))),
                *self._across_lanes(),
                self._share(own, beside),
                Barrier(),
                self._finish(part, first, row),
            )
        )
        registers = (
            Buffer(SUMS, (self.rows, self.vector), self.fold.dtype, Scope.REGISTER),
            *(Buffer(name, (1,), self.fold.dtype, Scope.REGISTER) for name in (PART, OTHER)),
            Buffer(WHOLE, (self.wide,), self.fold.dtype, Scope.REGISTER),
        )
        stmt = allocate(registers, body)
        for var, extent in ((LANE, WARP), (WARP_NUMBER, self.warps)):
            stmt = For(var, extent, stmt, LoopKind.THREAD)
        shared = Buffer(SHARED, (self.warps, self.rows, self.across * self.wide), self.fold.dtype, Scope.SHARED)
        return For(BLOCK, prod(counts), Alloc(shared, stmt), LoopKind.BLOCK)

    @property
    def _lanes(self) -> Expr:
        return ramp(const(0), self.vector)

    def _each_row(self, stmt: Stmt) -> Stmt:
        return For(ROW, self.rows, stmt, LoopKind.UNROLL)

    # Folds

    def _rounds(self, part: Expr, place: Expr, group: Expr, row: Expr) -> Iterator[Stmt]:
        """The rounds of a thread; what no round covers evenly is one more, of which some is beyond the end."""
        units = _units(self.fold, self.vector)
        whole, left = divmod(units, self.splits * self.unroll * self.places)

        def round_at(number: Expr, is_last: bool) -> Stmt:
            unit = ((number * self.splits + part) * self.unroll + Var(COPY)) * self.places + place
            stmt = self._each_row(self._add(unit, group, row + Var(ROW)))
            return For(COPY, self.unroll, If(op("lt", unit, units), stmt) if is_last else stmt, LoopKind.UNROLL)

        if whole:
            yield For(ROUND, whole, round_at(Var(ROUND), is_last=False))
        if left:
            yield round_at(const(whole), is_last=True)

    def _add(self, unit: Expr, group: Expr, row: Expr) -> Stmt:
        """Fold one access of the panel into the results of a row."""
        fold = self.fold
        deep = self.vector if fold.is_deep else 1
        at = {
            **axis_indices(fold.rows, row),
            **axis_indices(fold.columns, group, self.wide),
            **axis_indices(fold.depth, unit, deep),
        }
        total = Load(SUMS, (Var(ROW), self._lanes), fold.dtype)
        value = vectorize_at(fold.fused_stage.stage.body, at, fold.last.name, self.vector)
        return Store(SUMS, total.index, fold_value(self.combiner, total, value))

    def _across_lanes(self) -> Iterator[Stmt]:
        """Combine what lanes of a warp have of the same folds; in all of them that is the first of their results."""
        part, other = (Load(name, (const(0),), self.fold.dtype) for name in (PART, OTHER))
        masks = [1 << n for n in range(WARP.bit_length() - 1) if (1 << n < self.lanes) == self.fold.is_deep]

        def combine(own: Load, parts: list[Expr]) -> Stmt:
            begin = Store(PART, part.index, combine_all(self._combine, parts))
            return Block((begin, *warp_reduce(self._combine, part, other, masks), Store(SUMS, own.index, part)))

        def result(element: Expr) -> Load:
            return Load(SUMS, (Var(ROW), element), self.fold.dtype)

        if self.fold.is_deep:
            yield self._each_row(combine(result(const(0)), [result(const(n)) for n in range(self.vector)]))
        else:
            own = result(Var(ELEMENT))
            yield self._each_row(For(ELEMENT, self.vector, combine(own, [own]), LoopKind.UNROLL))

    def _share(self, own: Expr, beside: Expr) -> Stmt:
        """Have one lane of those that share folds write the results of its warp."""
        place = Var(WARP_NUMBER), Var(ROW), ramp(own * self.wide, self.wide)
        value = Load(SUMS, (Var(ROW), ramp(const(0), self.wide)), self.fold.dtype)
        return If(op("eq", beside, 0), self._each_row(Store(SHARED, place, value)))

    def _finish(self, part: Expr, first: Expr, row: Expr) -> Stmt:
        """Combine the results of all warps, a thread for each group of a row, and write them, or this block's part."""
        fold, number = self.fold, Var(WARP_NUMBER) * WARP + Var(LANE)
        down, across = number // self.across, number % self.across
        place = ramp(across * self.wide, self.wide)
        parts = [Load(SHARED, (const(warp), down, place), fold.dtype) for warp in range(self.warps)]
        own = (ramp(const(0), self.wide),)
        whole, group = Load(WHOLE, own, fold.dtype), first + across
        write = self._write(row + down, group, self.wide, whole)
        if self.splits > 1:
            write = Store(PARTS, (part, row + down, ramp(group * self.wide, self.wide)), whole)
        stmt: Stmt = Block((Store(WHOLE, own, combine_all(self._combine, parts)), write))
        stmt = guard_extent(group, self.groups, self.across, stmt)
        return guard_extent(number, self.rows * self.across, self.threads, stmt)

    def _write(self, row: Expr, group: Expr, wide: int, total: Expr) -> Stmt:
        """Apply the epilogue to results of `wide` neighbours of a row, and store them."""
        fold = self.fold
        at = {**axis_indices(fold.rows, row), **axis_indices(fold.columns, group, wide)}
        vector = fold.columns[-1].name if fold.columns else ""
        return store_epilogue(fold.fused_stage, vector, at, wide, total)

    def combine_parts(self) -> Stmt:
        """The launch that combines what blocks have: a thread for some neighbours of a row."""
        fold = self.fold
        wide = part_width(fold.columns[-1].extent if fold.columns else 1)
        counts = size(fold.rows), size(fold.columns) // wide

        def body(number: Expr) -> Stmt:
            row, group = unravel(number, counts)
            write = partial(self._write, row, group, wide)
            return combine_parts(self._combine, self.parts, (row, group * wide), write, wide)

        return launch(body, prod(counts), PLAIN_THREADS)
