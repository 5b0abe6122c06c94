"""Row block: steps over the same rows, each row by the threads of some warps, in their registers if it fits.

    block, line, warp, lane            a row of the block; its columns go round its threads
      held = inputs                    what several passes read is read once, if a row fits into registers
      for each pass:
        acc = fold(acc, body)          each thread its columns
        part = acc across the threads  within a warp by exchanging registers, of several through shared memory
        value = epilogue(part)         every thread of the row has it

Of the last block, lines beyond the last row compute that one again and write nothing, so that all threads come to each
exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, free_vars, loads, op, substitute, transform
from tunewright.codegen.expr.lanes import ramp, vectorize
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Alloc, Barrier, Block, Buffer, For, If, LoopKind, Scope, Stmt, Store
from tunewright.graph.task import COMBINERS

from ...axes import axis_indices
from ...buffers import allocate
from ...patterns.rows import COLUMN, RowPlan, RowStep
from .reductions import combine_all, warp_reduce

LINE, ROW_WARP, LANE, ROUND = "line", "warp", "lane", "round"
"""Variables: a row of a block, a warp of the row, a lane of the warp, one of the rounds along the columns."""

ACC, PART, OTHER, VALUE, CACHE, SHARED = ".acc", ".part", ".other", ".value", "held.", ".parts"
"""Partial results of a thread, of its row, those of another lane; a row's value; inputs; partial results of warps."""


@dataclass(frozen=True)
class RowBlock:
    """A plan and the numbers of its launch. `vector` divides the columns."""

    plan: RowPlan
    warps: int  # of a row
    lines: int  # rows of a block
    vector: int  # neighbours that a thread reads at once
    is_held: bool = True  # whether what several passes need of a row is in registers

    @property
    def threads(self) -> int:
        """Threads of a row."""
        return self.warps * WARP

    @property
    def rounds(self) -> int:
        """Rounds that the threads of a row take along its columns."""
        return -(-self.plan.columns // (self.threads * self.vector))

    def lower(self) -> Stmt:
        """The loops of the launch."""
        count = self.plan.row_count
        body: Stmt = Block(tuple(s for level in range(self.plan.pass_count) for s in self._pass(level)))
        body = allocate(self._registers(), body)
        for var, extent in ((LANE, WARP), (ROW_WARP, self.warps), (LINE, self.lines)):
            body = For(var, extent, body, LoopKind.THREAD)
        if self.warps > 1:
            for step in self._folds:
                shape = (self.lines, self.warps)
                body = Alloc(Buffer(step.fused_stage.output + SHARED, shape, step.dtype, Scope.SHARED), body)
        return For("block", -(-count // self.lines), body, LoopKind.BLOCK)

    # Registers

    @property
    def _folds(self) -> list[RowStep]:
        return [step for step in self.plan.steps if step.is_fold]

    @cached_property
    def _values(self) -> dict[str, DType]:
        """The tensors with one value a row, and their types."""
        return {s.fused_stage.output: s.fused_stage.epilogue.dtype for s in self.plan.steps if not s.is_map}

    @cached_property
    def _cache(self) -> dict[Load, str]:
        """Inputs that several passes read along the columns -> the name of their registers."""
        held = cached_loads(self.plan) if self.is_held else ()
        return {load: f"{CACHE}{n}" for n, load in enumerate(held)}

    def _registers(self) -> Iterator[Buffer]:
        for step in self.plan.steps:
            name, dtype = step.fused_stage.output, step.fused_stage.epilogue.dtype
            if step.is_fold:
                yield Buffer(name + ACC, (self.vector,), step.dtype, Scope.REGISTER)
                yield Buffer(name + PART, (1,), step.dtype, Scope.REGISTER)
                yield Buffer(name + OTHER, (1,), step.dtype, Scope.REGISTER)
            if name in self._values:
                yield Buffer(name + VALUE, (1,), dtype, Scope.REGISTER)
            elif name in self.plan.local:
                yield Buffer(name, (self.rounds, self.vector), dtype, Scope.REGISTER)
        for load, name in self._cache.items():
            yield Buffer(name, (self.rounds, self.vector), load.dtype, Scope.REGISTER)

    # Indices

    @property
    def _number(self) -> Expr:
        """The number of a line; there may be no such row."""
        return Var("block") * self.lines + Var(LINE)

    def _at_row(self, value: Expr) -> Expr:
        count = self.plan.row_count
        row = op("min", self._number, count - 1) if count % self.lines else self._number
        return substitute(value, axis_indices(self.plan.rows, row))

    @property
    def _vector(self) -> Expr:
        """The number of the vector of a row that a thread has in a round."""
        return (Var(ROUND) * self.warps + Var(ROW_WARP)) * WARP + Var(LANE)

    @property
    def _column(self) -> Expr:
        """The first column of that vector."""
        return self._vector * self.vector

    def _own(self, name: str, dtype: DType) -> Load:
        """The registers of a round."""
        return Load(name, (Var(ROUND), self._lanes), dtype)

    @property
    def _lanes(self) -> Expr:
        return ramp(const(0), self.vector)

    def _vectorize(self, value: Expr) -> Expr:
        """Vectorise an expression for the columns of a thread in a round, reading from registers where possible."""

        def from_cache(node: Expr) -> Expr:
            return Load(self._cache[node], (Var(COLUMN),), node.dtype) if node in self._cache else node

        def visit(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            if node.tensor in self._values:
                return Load(node.tensor + VALUE, (const(0),), node.dtype)
            if node.tensor in self.plan.local or node.tensor.startswith(CACHE):
                return self._own(node.tensor, node.dtype)
            return node

        return self._at_row(transform(self._spread(transform(value, from_cache)), visit))

    def _spread(self, value: Expr) -> Expr:
        """Vectorise an expression for the columns of a thread in a round."""
        return vectorize(value, COLUMN, self._column, self.vector)

    # Passes

    def _pass(self, level: int) -> Iterator[Stmt]:
        """One pass along each row, then the steps with one value a row."""
        steps = [s for s in self.plan.steps if s.level == level]
        along = [s for s in steps if s.is_map or s.is_fold]
        for step in along:
            if step.is_fold:
                yield Store(step.fused_stage.output + ACC, (self._lanes,), step.initial)
        if along:
            body: Stmt = Block((*self._fetch(level, along), *map(self._step, along)))
            if self.plan.columns % (self.threads * self.vector):
                body = If(op("lt", self._vector, self.plan.columns // self.vector), body)
            yield For(ROUND, self.rounds, body, LoopKind.UNROLL if self.is_held else LoopKind.SERIAL)
        for step in steps:
            if step.is_fold:
                yield from self._reduce(step)
            if not step.is_map:
                yield from self._value(step)

    def _fetch(self, level: int, steps: Sequence[RowStep]) -> Iterator[Stmt]:
        """Load the cached inputs that this pass is the first to read."""
        for load, name in self._cache.items():
            if _first(self.plan, load) == level and any(load in s.fused_stage.reads for s in steps):
                yield Store(name, (Var(ROUND), self._lanes), self._at_row(self._spread(load)))

    def _step(self, step: RowStep) -> Stmt:
        """A step at the columns of a round."""
        fused_stage = step.fused_stage
        if step.is_fold:
            acc = Load(fused_stage.output + ACC, (self._lanes,), step.dtype)
            total = op(COMBINERS[fused_stage.stage.combiner], acc, self._vectorize(fused_stage.stage.body))
            return Store(acc.tensor, acc.index, total)
        value = self._vectorize(fused_stage.apply_epilogue(fused_stage.stage.body))
        if fused_stage.output in self.plan.local:
            return Store(fused_stage.output, (Var(ROUND), self._lanes), value)
        return self._guard_write(Store(fused_stage.output, tuple(map(self._vectorize, fused_stage.index)), value))

    def _guard_write(self, stmt: Stmt) -> Stmt:
        """Guard a store to rows that exist."""
        count = self.plan.row_count
        return If(op("lt", self._number, count), stmt) if count % self.lines else stmt

    def _reduce(self, step: RowStep) -> Iterator[Stmt]:
        """Reduce the partial results of a row's threads, to each of them."""
        name, kind, combine = step.fused_stage.output, step.dtype, COMBINERS[step.fused_stage.stage.combiner]
        part, other = (Load(name + what, (const(0),), kind) for what in (PART, OTHER))
        parts = [Load(name + ACC, (const(n),), kind) for n in range(self.vector)]
        yield Store(part.tensor, part.index, combine_all(combine, parts))
        yield from warp_reduce(combine, part, other, (1 << bit for bit in reversed(range(WARP.bit_length() - 1))))
        if self.warps > 1:
            own = Var(LINE), Var(ROW_WARP)
            yield If(op("eq", Var(LANE), 0), Store(name + SHARED, own, part))
            yield Barrier()
            all_of_them = [Load(name + SHARED, (Var(LINE), const(n)), kind) for n in range(self.warps)]
            yield Store(part.tensor, part.index, combine_all(combine, all_of_them))

    def _value(self, step: RowStep) -> Iterator[Stmt]:
        """Compute the value of a row in every thread; one of them writes it where it is a result."""
        fused_stage, name = step.fused_stage, step.fused_stage.output
        result: Expr = self._with_values(fused_stage.stage.body)
        if step.is_fold:
            result = Load(name + PART, (const(0),), step.dtype)
        value = transform(fused_stage.epilogue, lambda node: result if fused_stage.is_result(node) else node)
        yield Store(name + VALUE, (const(0),), self._at_row(self._with_values(value)))
        if name not in self.plan.local:
            index = tuple(map(self._at_row, fused_stage.index))
            stmt = self._guard_write(Store(name, index, Load(name + VALUE, (const(0),), value.dtype)))
            yield If(op("eq", Var(LANE), 0), If(op("eq", Var(ROW_WARP), 0), stmt))

    def _with_values(self, value: Expr) -> Expr:
        """Replace loads of row values by their registers."""

        def visit(node: Expr) -> Expr:
            if isinstance(node, Load) and node.tensor in self._values:
                return Load(node.tensor + VALUE, (const(0),), node.dtype)
            return node

        return transform(value, visit)


def cached_loads(plan: RowPlan) -> list[Load]:
    """The loads along the columns that several passes make."""
    outputs = {step.fused_stage.output for step in plan.steps}
    levels: dict[Load, set[int]] = {}
    for step in plan.steps:
        for load in step.fused_stage.reads:
            if load.tensor not in outputs and COLUMN in free_vars(*load.index) and not loads(*load.index):
                levels.setdefault(load, set()).add(step.level)
    return [load for load, passes in levels.items() if len(passes) > 1]


def column_registers(plan: RowPlan) -> int:
    """A thread's registers, of four bytes, for each of its columns: cached inputs, and values between steps."""
    values = [step.fused_stage.epilogue for step in plan.steps if step.is_map and step.fused_stage.output in plan.local]
    return sum(-(-value.dtype.size_bytes // 4) for value in (*cached_loads(plan), *values))


def recompute_maps(plan: RowPlan) -> RowPlan:
    """The plan without steps that map columns for later ones alone: these compute the values where they need them."""
    values: dict[str, Expr] = {}
    steps: list[RowStep] = []

    def visit(node: Expr) -> Expr:
        return values.get(node.tensor, node) if isinstance(node, Load) else node

    for step in plan.steps:
        part = step.fused_stage
        stage = replace(part.stage, body=transform(part.stage.body, visit))
        fused_stage = replace(part, stage=stage, epilogue=transform(part.epilogue, visit))
        if step.is_map and part.output in plan.local:
            values[part.output] = fused_stage.apply_epilogue(stage.body)
        else:
            steps.append(replace(step, fused_stage=fused_stage))
    local = {name: buffer for name, buffer in plan.local.items() if name not in values}
    return replace(plan, steps=tuple(steps), local=local)


def _first(plan: RowPlan, load: Load) -> int:
    """The first pass that reads an input."""
    return min(step.level for step in plan.steps if load in step.fused_stage.reads)
