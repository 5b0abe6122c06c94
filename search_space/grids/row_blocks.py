"""Row blocks: steps over rows as one launch in which each row has some warps of a block.

    block, line, warp, lane            a row of the block; its columns go round its threads
      held = inputs                    what several passes read is read once
      for each pass:
        acc = fold(acc, body)          each thread its columns
        part = acc across the threads  within a warp by exchanging registers, of several through shared memory
        value = finish(part)           every thread of the row has it

Nothing but inputs and outputs is in the memory of the device. Of the last block, lines beyond the last row compute that
one again and write nothing, so that all threads come to each exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Var, const, free_vars, loads, op, substitute, transform
from tunewright.codegen.ir import Alloc, Barrier, Block, Buffer, Do, For, If, LoopKind, Scope, Stmt, Store
from tunewright.codegen.lanes import lined, vectorize
from tunewright.graph.task import COMBINERS, identity

from ..nests.digits import places
from ..rows.steps import COLUMN, Plan, Step

LINE, WARPS, LANE, ROUND = "line", "warp", "lane", "round"
"""Variables: a row of a block, a warp of the row, a lane of the warp, one of the rounds along the columns."""

ACC, PART, OTHER, VALUE, HELD, SHARED = ".acc", ".part", ".other", ".value", "held.", ".parts"
"""Partial results of a thread, of its row, those of another lane; a row's value; inputs; partial results of warps."""


@dataclass(frozen=True)
class RowBlocks:
    """A plan and the numbers of its launch. `vector` divides the columns."""

    plan: Plan
    warps: int  # of a row
    lines: int  # rows of a block
    vector: int  # neighbours that a thread reads at once

    @property
    def threads(self) -> int:
        """Of a row."""
        return self.warps * WARP

    @property
    def rounds(self) -> int:
        """Rounds that the threads of a row take along its columns."""
        return -(-self.plan.columns // (self.threads * self.vector))

    def lower(self) -> Stmt:
        """The launch."""
        count = self.plan.row_count
        body: Stmt = Block(tuple(s for level in range(self.plan.passes) for s in self._pass(level)))
        for buffer in self._registers():
            body = Alloc(buffer, body)
        for var, extent in ((LANE, WARP), (WARPS, self.warps), (LINE, self.lines)):
            body = For(var, extent, body, LoopKind.THREAD)
        if self.warps > 1:
            for step in self._folds:
                shape = (self.lines, self.warps)
                body = Alloc(Buffer(step.piece.output + SHARED, shape, _kind(step), Scope.SHARED), body)
        return For("block", -(-count // self.lines), body, LoopKind.BLOCK)

    # What there is

    @property
    def _folds(self) -> list[Step]:
        return [step for step in self.plan.steps if step.folds]

    @cached_property
    def _values(self) -> dict[str, DType]:
        """What each row has one of."""
        return {s.piece.output: s.piece.finish.dtype for s in self.plan.steps if not s.maps}

    @cached_property
    def _held(self) -> dict[Load, str]:
        """Inputs along the columns that several passes read -> the name of the registers that hold them."""
        return {load: f"{HELD}{n}" for n, load in enumerate(held(self.plan))}

    def _registers(self) -> Iterator[Buffer]:
        for step in self.plan.steps:
            name, dtype = step.piece.output, step.piece.finish.dtype
            if step.folds:
                yield Buffer(name + ACC, (self.vector,), _kind(step), Scope.REGISTER)
                yield Buffer(name + PART, (1,), _kind(step), Scope.REGISTER)
                yield Buffer(name + OTHER, (1,), _kind(step), Scope.REGISTER)
            if name in self._values:
                yield Buffer(name + VALUE, (1,), dtype, Scope.REGISTER)
            elif name in self.plan.local:
                yield Buffer(name, (self.rounds, self.vector), dtype, Scope.REGISTER)
        for load, name in self._held.items():
            yield Buffer(name, (self.rounds, self.vector), load.dtype, Scope.REGISTER)

    # Where it is

    @property
    def _number(self) -> Expr:
        """The number of a line; there may be no such row."""
        return Var("block") * self.lines + Var(LINE)

    def _at_row(self, value: Expr) -> Expr:
        count = self.plan.row_count
        row = op("min", self._number, count - 1) if count % self.lines else self._number
        return substitute(value, places(self.plan.rows, row))

    @property
    def _vector(self) -> Expr:
        """The number of the vector of a row that a thread has in a round."""
        return (Var(ROUND) * self.warps + Var(WARPS)) * WARP + Var(LANE)

    @property
    def _column(self) -> Expr:
        """The first column of that."""
        return self._vector * self.vector

    def _own(self, name: str, dtype: DType) -> Load:
        """What a round has in registers."""
        return Load(name, (Var(ROUND), self._lanes), dtype)

    @property
    def _lanes(self) -> Expr:
        return lined(const(0), self.vector)

    def _laid(self, value: Expr) -> Expr:
        """An expression for the columns of a thread in a round, what is in registers taken from there."""

        def taken(node: Expr) -> Expr:
            return Load(self._held[node], (Var(COLUMN),), node.dtype) if node in self._held else node

        def visit(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            if node.tensor in self._values:
                return Load(node.tensor + VALUE, (const(0),), node.dtype)
            if node.tensor in self.plan.local or node.tensor.startswith(HELD):
                return self._own(node.tensor, node.dtype)
            return node

        return self._at_row(transform(self._spread(transform(value, taken)), visit))

    def _spread(self, value: Expr) -> Expr:
        """An expression of a column for those of a thread in a round."""
        return vectorize(value, COLUMN, self._column, self.vector)

    # What is done

    def _pass(self, level: int) -> Iterator[Stmt]:
        """Once along each row, then what its rows have one of."""
        steps = [s for s in self.plan.steps if s.level == level]
        along = [s for s in steps if s.maps or s.folds]
        for step in along:
            if step.folds:
                yield Store(step.piece.output + ACC, (self._lanes,), _identity(step))
        if along:
            body: Stmt = Block((*self._fetched(level, along), *map(self._step, along)))
            if self.plan.columns % (self.threads * self.vector):
                body = If(op("lt", self._vector, self.plan.columns // self.vector), body)
            yield For(ROUND, self.rounds, body, LoopKind.UNROLL)
        for step in steps:
            if step.folds:
                yield from self._together(step)
            if not step.maps:
                yield from self._valued(step)

    def _fetched(self, level: int, steps: Sequence[Step]) -> Iterator[Stmt]:
        """Inputs that are held, in the first pass that reads them."""
        for load, name in self._held.items():
            if _first(self.plan, load) == level and any(load in s.piece.reads for s in steps):
                yield Store(name, (Var(ROUND), self._lanes), self._at_row(self._spread(load)))

    def _step(self, step: Step) -> Stmt:
        """A step at the columns of a round."""
        piece = step.piece
        if step.folds:
            acc = Load(piece.output + ACC, (self._lanes,), _kind(step))
            folded = op(COMBINERS[piece.stage.combiner], acc, self._laid(piece.stage.body))
            return Store(acc.tensor, acc.index, folded)
        value = self._laid(piece.finished(piece.stage.body))
        if piece.output in self.plan.local:
            return Store(piece.output, (Var(ROUND), self._lanes), value)
        return self._written(Store(piece.output, tuple(map(self._laid, piece.index)), value))

    def _written(self, stmt: Stmt) -> Stmt:
        """What goes into the memory of the device: once, of rows that there are."""
        count = self.plan.row_count
        return If(op("lt", self._number, count), stmt) if count % self.lines else stmt

    def _together(self, step: Step) -> Iterator[Stmt]:
        """The partial results of all threads of a row, in each of them."""
        name, kind, combine = step.piece.output, _kind(step), COMBINERS[step.piece.stage.combiner]
        part, other = (Load(name + what, (const(0),), kind) for what in (PART, OTHER))
        parts: list[Expr] = [Load(name + ACC, (const(n),), kind) for n in range(self.vector)]
        yield Store(part.tensor, part.index, reduce(lambda a, b: op(combine, a, b), parts))
        for bit in reversed(range(WARP.bit_length() - 1)):
            yield Do(f"shfl.xor.{1 << bit}", (other,), (part,))
            yield Store(part.tensor, part.index, op(combine, part, other))
        if self.warps > 1:
            place = Var(LINE), Var(WARPS)
            yield If(op("eq", Var(LANE), 0), Store(name + SHARED, place, part))
            yield Barrier()
            all_of_them: list[Expr] = [Load(name + SHARED, (Var(LINE), const(n)), kind) for n in range(self.warps)]
            yield Store(part.tensor, part.index, reduce(lambda a, b: op(combine, a, b), all_of_them))

    def _valued(self, step: Step) -> Iterator[Stmt]:
        """What each row has one of, in every thread; one of them writes it where it is a result."""
        piece, name = step.piece, step.piece.output
        result: Expr = self._known(piece.stage.body)
        if step.folds:
            result = Load(name + PART, (const(0),), _kind(step))
        value = transform(piece.finish, lambda node: result if piece.is_result(node) else node)
        yield Store(name + VALUE, (const(0),), self._at_row(self._known(value)))
        if name not in self.plan.local:
            index = tuple(map(self._at_row, piece.index))
            stmt = self._written(Store(name, index, Load(name + VALUE, (const(0),), value.dtype)))
            yield If(op("eq", Var(LANE), 0), If(op("eq", Var(WARPS), 0), stmt))

    def _known(self, value: Expr) -> Expr:
        """An expression of which other rows' values are known."""

        def visit(node: Expr) -> Expr:
            if isinstance(node, Load) and node.tensor in self._values:
                return Load(node.tensor + VALUE, (const(0),), node.dtype)
            return node

        return transform(value, visit)


def held(plan: Plan) -> list[Load]:
    """Inputs that move along the columns and that several passes read."""
    made = {step.piece.output for step in plan.steps}
    levels: dict[Load, set[int]] = {}
    for step in plan.steps:
        for load in step.piece.reads:
            if load.tensor not in made and COLUMN in free_vars(*load.index) and not loads(*load.index):
                levels.setdefault(load, set()).add(step.level)
    return [load for load, found in levels.items() if len(found) > 1]


def kept(plan: Plan) -> int:
    """Registers of a thread for each column of its own: what is held, and what steps hand on to each other."""
    return len(held(plan)) + sum(step.maps and step.piece.output in plan.local for step in plan.steps)


def _first(plan: Plan, load: Load) -> int:
    """The first pass that reads an input."""
    return min(step.level for step in plan.steps if load in step.piece.reads)


def _kind(step: Step) -> DType:
    return step.piece.stage.body.dtype


def _identity(step: Step) -> Expr:
    """What a fold begins with."""
    return Const(identity(step.piece.stage.combiner, _kind(step)), _kind(step))
