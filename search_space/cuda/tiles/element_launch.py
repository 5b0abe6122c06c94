"""Element launch: a fused stage as a launch in which each thread computes a few neighbours of the output.

    block, thread                      number = block * threads + thread
      if number < total                where the last block has threads to spare
        sums[vector] = identity        registers
        reduce loops                   the innermost unrolled
          sums = fold(sums, body)
        output[index(number)] = epilogue(sums)

Threads of a warp write neighbours along the axis that is contiguous in the output, so that what they write together is
one access to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tunewright.codegen.expr.expr import Expr, Load, Var, const, op, substitute, transform
from tunewright.codegen.expr.lanes import ramp, vectorize
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, LoopKind, Scope, Stmt, Store, replace_variables
from tunewright.graph.task import COMBINERS, Axis, identity

from ...axes import axis_indices
from ...patterns.fused_stage import FusedStage
from ...patterns.vector_axis import is_contiguous

SUMS = "sums"
"""The registers of the sums."""

PLAIN_THREADS = 256
"""Threads of a block where no knob says."""


def output_order(fused_stage: FusedStage) -> tuple[Axis, ...]:
    """The axes of what a fused stage writes, the one that is contiguous in the output last."""
    axes = fused_stage.stage.axes
    last = next((axis for axis in axes if is_contiguous(fused_stage.index, axis.name)), None)
    return axes if last is None else (*(axis for axis in axes if axis is not last), last)


def vectorize_at(value: Expr, at: Mapping[str, Expr], last: str, wide: int) -> Expr:
    """A value at the indices `at`, and at `wide` neighbours along the axis `last`, as a vector."""
    if wide == 1:
        return substitute(value, at)
    rest = {name: place for name, place in at.items() if name != last}
    return vectorize(substitute(value, rest), last, at[last], wide)


def launch(body: Callable[[Expr], Stmt], total: int, threads: int) -> Stmt:
    """A launch of `total` threads, each with a number, in blocks of `threads`; the last may have spare ones."""
    number = Var("block") * threads + Var("thread")
    blocks, stmt = -(-total // threads), body(number)
    if blocks * threads > total:
        stmt = If(op("lt", number, total), stmt)
    return For("block", blocks, For("thread", threads, stmt, LoopKind.THREAD), LoopKind.BLOCK)


@dataclass(frozen=True, slots=True)
class ElementLaunch:
    """A fused stage and the numbers of its launch. `vector` divides the extent of the last of `axes`."""

    fused_stage: FusedStage
    threads: int  # of a block
    vector: int  # neighbours that a thread computes
    unroll: int = 1  # copies of the body

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes in the order of `output_order`."""
        return output_order(self.fused_stage)

    @property
    def total(self) -> int:
        """Threads that are needed."""
        return prod(axis.extent for axis in self.axes) // self.vector

    def lower(self) -> Stmt:
        """The loops of the launch."""
        return launch(self.thread, self.total, self.threads)

    def thread(self, number: Expr) -> Stmt:
        """What the thread of a number does."""
        return self._elements(axis_indices(self.axes, number, self.vector))

    def _elements(self, at: Mapping[str, Expr]) -> Stmt:
        stage = self.fused_stage.stage
        if not stage.reduce:
            return self._write(self._vectorize(self.fused_stage.apply_epilogue(stage.body), at), at)
        dtype = stage.body.dtype
        sums = Buffer(SUMS, (self.vector,), dtype, Scope.REGISTER)
        index = (ramp(const(0), self.vector),)
        total = Load(SUMS, index, dtype)
        body = self._vectorize(stage.body, at)
        fold: Stmt = Store(SUMS, index, op(COMBINERS[stage.combiner], total, body))
        epilogue = self._vectorize(self.fused_stage.epilogue, at)
        result = transform(epilogue, lambda node: total if self.fused_stage.is_result(node) else node)
        start = Store(SUMS, index, const(identity(stage.combiner, dtype), dtype))
        return Alloc(sums, Block((start, self._reduce(stage.reduce, fold), self._write(result, at))))

    def _vectorize(self, value: Expr, at: Mapping[str, Expr]) -> Expr:
        """A value at the neighbours that a thread computes, as a vector."""
        return vectorize_at(value, at, self.axes[-1].name, self.vector) if at else value

    def _reduce(self, reduce: Sequence[Axis], body: Stmt) -> Stmt:
        """The loops of a fold; of the innermost, copies of the body, and those that are left over."""
        *outer, last = reduce
        copies = min(self.unroll, last.extent)
        whole, left = divmod(last.extent, copies)
        steps: list[Stmt] = []
        if copies == 1:
            steps.append(For(last.name, last.extent, body))
        else:
            inner = "copy"
            at = {last.name: Var("round") * copies + Var(inner)}
            steps.append(For("round", whole, For(inner, copies, replace_variables(body, at), LoopKind.UNROLL)))
            if left:
                rest = {last.name: Var(inner) + whole * copies}
                steps.append(For(inner, left, replace_variables(body, rest), LoopKind.UNROLL))
        loops: Stmt = Block(tuple(steps))
        for axis in reversed(outer):
            loops = For(axis.name, axis.extent, loops)
        return loops

    def _write(self, value: Expr, at: Mapping[str, Expr]) -> Stmt:
        """Store the results."""
        index = tuple(self._vectorize(place, at) for place in self.fused_stage.index)
        return Store(self.fused_stage.output, index, value)


def joint_launch(parts: Sequence[ElementLaunch]) -> Stmt:
    """Launches with as many threads in a block, as one: each has blocks of its own, one after the other."""
    begin, stmts = 0, list[Stmt]()
    for part in parts:
        number = (Var("block") - begin) * part.threads + Var("thread")
        is_own = op("and", op("le", const(begin), Var("block")), op("lt", number, const(part.total)))
        stmts.append(If(is_own, part.thread(number)))
        begin += -(-part.total // part.threads)
    threads = For("thread", parts[0].threads, Block(tuple(stmts)), LoopKind.THREAD)
    return For("block", begin, threads, LoopKind.BLOCK)


def plain_launch(fused_stage: FusedStage) -> Stmt:
    """A fused stage as a launch without a choice of its own."""
    count = prod(axis.extent for axis in fused_stage.stage.axes)
    return ElementLaunch(fused_stage, min(PLAIN_THREADS, -(-count // WARP) * WARP), 1).lower()
