"""Shared folds: few results of long folds on a GPU, each fold shared by threads of several warps.

    block                              some columns of the result
      warp, lane                       some neighbours of them, and every so many terms
        acc[vector] = identity
        rounds, copies                 acc = fold(acc, body)
      acc across the lanes             of a warp that have the same columns, by exchanging registers
      acc across the warps             through shared memory
      output = epilogue                a thread for each column

A product of one row by a matrix is such: what counts is that the matrix is read as fast as memory gives it, which takes
many threads, each with several accesses under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, loads, op, transform
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import BLOCK_THREADS, WARP, WIDEST_BYTES
from tunewright.codegen.ir.ir import Barrier, Block, Buffer, Do, For, If, Kernel, LoopKind, Scope, Stmt, Store
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import COMBINERS, Axis, Task, identity

from ..axes import axis_indices
from ..buffers import allocate, params, temporaries
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.fused_stage import FusedStage
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, flat_extents, whole_extents
from .elements import ElementsLayout, elements_layout
from .tiles.elements import output_order, plain_launch, vectorize_at
from .tiles.shared_tile import unroll

LEAST_TERMS = 64
"""Terms of a fold from which on threads share it."""

FEW_RESULTS = 64
"""Results for each multiprocessor below which a thread for each leaves most of it idle."""

OTHER_REGISTERS = 24
"""Registers of a thread for indices, beside results and what is read."""

EACH_BYTES = 4
"""Bytes of a register."""


class SharedFoldsSketch(PatternSketch[ElementsLayout]):
    """One launch of a fold that threads share, beside one for each other fused stage."""

    name = "shared_folds"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> ElementsLayout | None:
        layout = elements_layout(task)
        stage = layout.main.stage
        is_long = prod(axis.extent for axis in stage.reduce) >= LEAST_TERMS
        is_plain = stage.body.dtype.size_bytes == EACH_BYTES and stage.combiner in COMBINERS
        return layout if is_long and is_plain and layout.axes else None

    def offer(self, task: Task, layout: ElementsLayout, target: Target) -> Space:
        each_bytes = min(load.dtype.size_bytes for load in loads(layout.main.stage.body))
        knobs = (
            Knob("vector", tuple(n for n in (1, 2, 4, 8) if layout.width % n == 0 and n * each_bytes <= WIDEST_BYTES)),
            Knob("lanes", (1, 2, 4, 8, 16, 32)),
            Knob("warps", (1, 2, 4, 8, 16, 32)),
            Knob("unroll", (1, 2, 4, 8)),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(layout, columns),
            tiling=lambda columns: _tiling(layout, columns),
            preferred=_preferred(layout, target, knobs),
            block=_block,
            first_choice=layout.element_count <= FEW_RESULTS * target.threads,
        )

    def write(self, task: Task, layout: ElementsLayout, schedule: Schedule, target: Target) -> Kernel:
        values = dict(schedule.values)
        main = SharedFold(layout.main, values["vector"], values["lanes"], values["warps"], values["unroll"]).lower()
        launches = tuple(main if stage is layout.main else plain_launch(stage) for stage in layout.stages)
        return Kernel(params(task, {}), temporaries(task, layout.stages), Block(launches))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        vector, lanes, warps, copies = (point.values[name] for name in ("vector", "lanes", "warps", "unroll"))
        yield from point.say_start("Each fold is shared by threads of a block.", warps * WARP)
        sharing = counted(warps * (WARP // lanes), "thread")
        yield f"A thread has {counted(vector, 'column')} at once; {sharing} share the fold of each."
        if copies > 1:
            yield f"The innermost body is there {copies} times."


def _terms(layout: ElementsLayout) -> int:
    return prod(axis.extent for axis in layout.main.stage.reduce)


def _block(columns: Columns) -> BlockShape:
    warps, vector = columns["warps"], columns["vector"]
    smem_bytes = np.where(warps > 1, warps * columns["lanes"] * vector * EACH_BYTES, 0)
    return BlockShape(warps * WARP, vector * (1 + columns["unroll"]) + OTHER_REGISTERS, smem_bytes)


def _legal(layout: ElementsLayout, columns: Columns) -> NDArray[np.bool_]:
    """Every thread has something to do, but for a rest, and a row of a block's columns lies within the result's."""
    vector, lanes, warps, copies = (columns[name] for name in ("vector", "lanes", "warps", "unroll"))
    sharing = warps * (WARP // lanes)
    legal = (lanes == 1) | (vector * lanes < 2 * layout.width)
    legal &= warps * WARP <= BLOCK_THREADS
    legal &= vector * lanes <= warps * WARP  # a thread for each column in the end
    legal &= (sharing * copies <= _terms(layout)) & (vector * copies <= 32)
    return np.asarray(legal)


def _preferred(layout: ElementsLayout, target: Target, knobs: tuple[Knob, ...]) -> Mapping[str, int]:
    """Wide accesses, in blocks narrow enough for all multiprocessors, and as many threads as have four of them."""
    choices = {knob.name: knob.choices for knob in knobs}
    vector = max(choices["vector"])
    lanes = next(
        (n for n in reversed(choices["lanes"]) if layout.element_count >= 2 * target.threads * n * vector),
        2 if layout.element_count // (2 * vector) >= target.threads // 4 else 1,
    )
    terms, copies = _terms(layout), 4
    warps = max(
        n for n in choices["warps"] if n == 1 or (n * (WARP // lanes) * copies <= terms and n * WARP <= BLOCK_THREADS)
    )
    warps = max(warps, -(-vector * lanes // WARP))
    copies = max(n for n in choices["unroll"] if n == 1 or (n <= copies and warps * (WARP // lanes) * n <= terms))
    return {"vector": vector, "lanes": lanes, "warps": warps, "unroll": copies}


def _tiling(layout: ElementsLayout, columns: Columns) -> Tiling:
    """The tile of a thread, with its whole fold, and that of a block."""
    stage, last = layout.main.stage, layout.axes[-1].name
    width = columns["lanes"] * columns["vector"]
    tile = {last: columns["vector"]} | {axis.name: columns["unroll"] for axis in stage.reduce[-1:]}
    levels = tile, whole_extents(stage.reduce), flat_extents(layout.axes, width)
    return Tiling.of(stage, last, columns, levels, -(-layout.element_count // width))


ACC, OTHER, SHARED = "acc", "other", "parts"
"""A thread's partial results, those of another lane, and those of all warps."""

WARP_VAR, LANE, ROUND, COPY = "warp", "lane", "round", "copy"


@dataclass(frozen=True, slots=True)
class SharedFold:
    """A fused stage and the numbers of its launch. `vector` divides the extent of the last of `axes`."""

    fused_stage: FusedStage
    vector: int  # neighbours that a thread has
    lanes: int  # of a warp, side by side
    warps: int  # of a block
    copies: int  # of the body

    @property
    def axes(self) -> tuple[Axis, ...]:
        return output_order(self.fused_stage)

    @property
    def _count(self) -> int:
        """Vectors of the result."""
        return prod(axis.extent for axis in self.axes) // self.vector

    @property
    def _sharing(self) -> int:
        """Threads that share a fold."""
        return self.warps * (WARP // self.lanes)

    @property
    def _number(self) -> Expr:
        """The vector that a thread has; the last one for threads beyond it."""
        number = Var("block") * self.lanes + Var(LANE) % self.lanes
        return op("min", number, self._count - 1) if self._count % self.lanes else number

    @property
    def _acc(self) -> Load:
        return Load(ACC, (ramp(const(0), self.vector),), self._dtype)

    @property
    def _dtype(self) -> DType:
        return self.fused_stage.stage.body.dtype

    def _combine(self, one: Expr, other: Expr) -> Expr:
        return op(COMBINERS[self.fused_stage.stage.combiner], one, other)

    def lower(self) -> Stmt:
        """Return the loops of the launch."""
        stage, width = self.fused_stage.stage, self.lanes * self.vector
        start = Store(ACC, self._acc.index, const(identity(stage.combiner, self._dtype), self._dtype))
        body: Stmt = Block((start, *self._rounds(), *self._across_lanes(), self._put(), Barrier(), self._finish()))
        registers = (
            Buffer(ACC, (self.vector,), self._dtype, Scope.REGISTER),
            Buffer(OTHER, (1,), self._dtype, Scope.REGISTER),
        )
        threads = For(
            WARP_VAR, self.warps, For(LANE, WARP, allocate(registers, body), LoopKind.THREAD), LoopKind.THREAD
        )
        shared = (Buffer(SHARED, (self.warps, width), self._dtype, Scope.SHARED),)
        return For("block", -(-self._count // self.lanes), allocate(shared, threads), LoopKind.BLOCK)

    def _rounds(self) -> Iterator[Stmt]:
        """The terms of a thread: whole rounds of copies, then what is left."""
        terms, step = prod(axis.extent for axis in self.fused_stage.stage.reduce), self._sharing * self.copies
        own = Var(WARP_VAR) * (WARP // self.lanes) + Var(LANE) // self.lanes
        whole, left = divmod(terms, step)
        if whole:
            place = (Var(ROUND) * self.copies + Var(COPY)) * self._sharing + own
            yield For(ROUND, whole, For(COPY, self.copies, self._fold(place), LoopKind.UNROLL))
        if left:
            place = Var(COPY) * self._sharing + own + whole * step
            body = If(op("lt", place, terms), self._fold(place))
            yield For(COPY, -(-left // self._sharing), body, LoopKind.UNROLL)

    def _fold(self, term: Expr) -> Stmt:
        stage = self.fused_stage.stage
        at = axis_indices(self.axes, self._number, self.vector) | axis_indices(stage.reduce, term)
        value = vectorize_at(stage.body, at, self.axes[-1].name, self.vector)
        return Store(ACC, self._acc.index, self._combine(self._acc, value))

    def _across_lanes(self) -> Iterator[Stmt]:
        """Reduce over the lanes that have the same columns."""
        other, own = Load(OTHER, (const(0),), self._dtype), Load(ACC, (Var("e"),), self._dtype)
        for bit in range(self.lanes.bit_length() - 1, WARP.bit_length() - 1):
            exchange = Do(f"shfl.xor.{1 << bit}", (other,), (own,))
            yield unroll(Block((exchange, Store(ACC, own.index, self._combine(own, other)))), e=self.vector)

    def _put(self) -> Stmt:
        """Store what a warp has to shared memory."""
        place = Var(WARP_VAR), ramp(Var(LANE) * self.vector, self.vector)
        return If(op("lt", Var(LANE), self.lanes), Store(SHARED, place, self._acc))

    def _finish(self) -> Stmt:
        """Reduce over the warps, and write the results: a thread for each."""
        width, total = self.lanes * self.vector, prod(axis.extent for axis in self.axes)
        thread = Var(WARP_VAR) * WARP + Var(LANE)
        column = Var("block") * width + thread
        own = Load(ACC, (const(0),), self._dtype)
        first = Store(ACC, own.index, Load(SHARED, (const(0), thread), self._dtype))
        rest = Store(ACC, own.index, self._combine(own, Load(SHARED, (Var("w") + 1, thread), self._dtype)))
        sums = (first, unroll(rest, w=self.warps - 1)) if self.warps > 1 else (first,)
        at = axis_indices(self.axes, column)
        epilogue = vectorize_at(self.fused_stage.epilogue, at, self.axes[-1].name, 1)
        value = transform(epilogue, lambda node: own if self.fused_stage.is_result(node) else node)
        index = tuple(vectorize_at(place, at, self.axes[-1].name, 1) for place in self.fused_stage.index)
        stmt: Stmt = Block((*sums, Store(self.fused_stage.output, index, value)))
        if total % width:
            stmt = If(op("lt", column, total), stmt)
        return If(op("lt", thread, width), stmt) if width < self.warps * WARP else stmt
