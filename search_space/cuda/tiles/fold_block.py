"""Fold block: folds of which each is shared by many threads.

block, warp, lane                     its columns, and its place among those that share a fold
  sums[rows, vector] = identity       registers
  rounds, copies
    sums = fold(sums, body)           16 bytes of the panel each, all copies of a round under way at once
  sums across the lanes               by exchanging registers
  sums across the warps               through shared memory
  output[index] = epilogue(sums)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Alloc, Barrier, Block, Buffer, Do, For, If, LoopKind, Scope, Stmt, Store
from tunewright.graph.task import COMBINERS, fold_value, identity

from ...axes import axis_indices, unravel
from ...buffers import allocate
from ...patterns.shared_fold import SharedFold
from .element_launch import PLAIN_THREADS, launch, vectorize_at
from .reductions import PARTS, WHOLE, combine_all, combine_parts, part_width, warp_reduce
from .sides import Count, guard_extent, size, steps, store_epilogue

SUMS, PART, OTHER, SHARED = "sums", "part", "other", "shared"
"""Buffers: the results of a thread, one on its way across the lanes, that of another lane, those of warps."""


def groups_across(fold: SharedFold, lanes: Count) -> Count:
    """Groups of columns of a block: those of a thread are one."""
    return WARP // lanes if fold.is_deep else lanes


def places_of(fold: SharedFold, warps: Count, lanes: Count) -> Count:
    """Threads of a block that share a fold."""
    return warps * (lanes if fold.is_deep else WARP // lanes)


def units_of(fold: SharedFold, vector: Count) -> Count:
    """What is shared of a fold: accesses of the panel."""
    return size(fold.depth) // vector if fold.is_deep else size(fold.depth) // fold.together + 0 * vector


MEET = Do("warp.sync", (), ())
"""Between steps: what is read before it is under way at once. Else NVIDIA's assembler moves each read to where it is
used."""

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
        return groups_across(self.fold, self.lanes)

    @property
    def groups(self) -> int:
        """Groups of columns that there are."""
        return size(self.fold.columns) // self.wide

    @property
    def places(self) -> int:
        """Threads of a block that share a fold."""
        return places_of(self.fold, self.warps, self.lanes)

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
                self._inside(group, Block(tuple(self._rounds(part, place, group, row)))),
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
        stmt = allocate((*registers, *self._step_registers), body)
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

    @property
    def _step_registers(self) -> tuple[Buffer, ...]:
        """Buffers of a thread for `_steps` alone."""
        return ()

    def _inside(self, group: Expr, stmt: Stmt) -> Stmt:
        """Guard a statement to groups that may be read."""
        return guard_extent(group, self.groups, self.across, stmt)

    def _rounds(self, part: Expr, place: Expr, group: Expr, row: Expr) -> Iterator[Stmt]:
        """The rounds of a thread; what no round covers evenly is one more, of which some is beyond the end."""
        units = units_of(self.fold, self.vector)
        whole, left = divmod(units, self.splits * self.unroll * self.places)

        def round_at(number: Expr, is_last: bool) -> Stmt:
            unit = ((number * self.splits + part) * self.unroll + Var(COPY)) * self.places + place
            guarded = (If(op("lt", unit, units), stmt) if is_last else stmt for stmt in self._steps(unit, group, row))
            first, *others = (For(COPY, self.unroll, stmt, LoopKind.UNROLL) for stmt in guarded)
            return Block((first, *(stmt for step in others for stmt in (MEET, step))))

        if whole:
            yield For(ROUND, whole, round_at(Var(ROUND), is_last=False))
        if left:
            yield round_at(const(whole), is_last=True)

    def _steps(self, unit: Expr, group: Expr, row: Expr) -> Iterator[Stmt]:
        """What is done with each access of a round, before the next step begins."""
        yield self._each_row(self._add(unit, group, row + Var(ROW)))

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
