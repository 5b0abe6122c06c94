"""Passes: the steps of a task written as few loops over groups of rows. Columns lie along the lanes.

    for line < rows of the group:                one pass
      acc[vectors] = identity
      for round: acc = fold(acc, body)           maps that only folds read stay in registers
      part[line] = fold of the vectors of acc
    value = epilogue(fold of part across lanes)  one vector holds a value of every row of the group

The chain from a row's columns to its value is long: a fold of the vectors, one across the lanes, a root, a division.
The rows of a group share it, and in a pass nothing waits. What passes hand on stays in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from tunewright.codegen.expr.expr import (
    Const,
    Expr,
    Load,
    Ramp,
    Var,
    const,
    free_vars,
    loads,
    op,
    substitute,
    transform,
)
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import Block, Buffer, For, If, Prefetch, Scope, Stmt, Store, replace_variables
from tunewright.graph.task import COMBINERS, fold_value

from ...axes import axis_indices
from ...buffers import allocate
from ...patterns.fused_stage import FusedStage
from ...patterns.rows import COLUMN, RowPlan, RowStep
from .chunks import at_row

GROUP, LINE = "group", "line"
"""Variables: the number of a group of rows, and of a row in it."""

ACC, PART, VALUE, WIDE = ".acc", ".part", ".value", ".wide"
"""Partial results of a fold, those of each row in one vector, the rows' values, one of them in every lane."""


@dataclass(frozen=True, slots=True)
class _VectorPlace:
    """A vector of a round: its number, its first column, its columns in use (None: all lanes)."""

    vector: int
    base: Expr
    count: int | None


class RowPasses:
    """The statements of a group of `group` rows, a power of two of `lanes` at most, in rounds of `vectors` vectors.

    The number of the group is the variable GROUP. The second pass, which reads from the caches, prefetches the rows
    that the first one will read `prefetch` groups later: caches follow a stream, but lose it at the end of a page.
    """

    def __init__(self, plan: RowPlan, vectors: int, group: int, prefetch: int) -> None:
        self.plan, self.lanes, self.group, self.prefetch = plan, plan.lanes, group, prefetch
        self.vectors = min(vectors, -(-plan.columns // self.lanes))
        self.width = self.vectors * self.lanes
        self.rounds, self.rest = divmod(plan.columns, self.width)
        self.single = self.rounds + (self.rest > 0) == 1
        outputs = [s.fused_stage.output for s in plan.steps if s.is_map and s.fused_stage.output in plan.local]
        hosts = {name: plan.output_host(name) for name in outputs if not self._is_in_registers(name)}
        self.hosts = {name: fused_stage for name, fused_stage in hosts.items() if fused_stage is not None}
        self.outputs = {s.fused_stage.output for s in plan.steps}
        self.values = {s.fused_stage.output: s.fused_stage.epilogue.dtype for s in plan.steps if not s.is_map}

    def lower(self) -> Stmt:
        passes = (s for level in range(self.plan.pass_count) for s in self._pass(level))
        return allocate(self._buffers(), Block(tuple(passes)))

    def _buffers(self) -> Iterator[Buffer]:
        width = -(-self.plan.columns // self.lanes) * self.lanes
        scope = Scope.SHARED if self.group > 1 else Scope.REGISTER
        for step in self.plan.steps:
            name, dtype = step.fused_stage.output, step.fused_stage.epilogue.dtype
            if step.is_fold:
                kind = step.dtype
                yield Buffer(name + ACC, (self.width,), kind, Scope.REGISTER)
                yield Buffer(name + PART, (self.group, self.lanes), kind, scope)
            if name in self.values:
                yield Buffer(name + VALUE, (self.lanes,), dtype, scope)
                yield Buffer(name + WIDE, (self.lanes,), dtype, Scope.REGISTER)
            elif name in self.plan.local and self._is_in_registers(name):
                yield Buffer(name, (1, self.width), dtype, Scope.REGISTER)
            elif name in self.plan.local and name not in self.hosts:
                yield Buffer(name, (self.group, width), dtype, Scope.SHARED)

    def _is_in_registers(self, name: str) -> bool:
        """Whether the values of a map are in registers, by the number of their vector in the round."""
        return not self.plan.is_live(name) or (self.single and self.group == 1)

    def _pass(self, level: int) -> Iterator[Stmt]:
        """One pass along each row, then the steps with one value a row."""
        steps = [s for s in self.plan.steps if s.level == level]
        along = [s for s in steps if s.is_map or s.is_fold]
        if along:
            yield from self._clear(along)
            yield self._each_line(Block(tuple(self._line(along, level))))
        for step in steps:
            if not step.is_map:
                yield from self._value(step)

    def _each_line(self, body: Stmt) -> Stmt:
        """A body for each row of the group."""
        if self.group == 1:
            return replace_variables(body, {**axis_indices(self.plan.rows, Var(GROUP)), LINE: const(0)})
        row = Var(GROUP) * self.group + Var(LINE)
        body = at_row(self.plan.rows, row, body)
        if self.plan.row_count % self.group:
            body = If(op("lt", row, self.plan.row_count), body)
        return For(LINE, self.group, body)

    def _clear(self, steps: Sequence[RowStep]) -> Iterator[Stmt]:
        """Clear the partial results of rows beyond the last, which are computed and not used."""
        if self.plan.row_count % self.group:
            for step in steps:
                if step.is_fold:
                    zero = Const(0, step.dtype)
                    for line in range(self.group):
                        yield Store(step.fused_stage.output + PART, self._whole(const(line)), zero)

    def _line(self, steps: Sequence[RowStep], level: int) -> Iterator[Stmt]:
        """One pass along one row."""
        folds = [s for s in steps if s.is_fold]
        yield from self._broadcast(steps)
        if not self.single:
            for step in folds:
                none = step.initial
                yield from (Store(step.fused_stage.output + ACC, self._slot(n), none) for n in range(self.vectors))
        if self.rounds:
            start = Var("round") * self.width if self.rounds > 1 else const(0)
            body = Block((*self._prefetches(level, start, self.width), *self._round(steps, start, self.width)))
            yield For("round", self.rounds, body) if self.rounds > 1 else body
        if self.rest:
            yield from self._prefetches(level, const(self.rounds * self.width), self.rest)
            yield from self._round(steps, const(self.rounds * self.width), self.rest)
        for step in folds:
            yield Store(step.fused_stage.output + PART, self._whole(Var(LINE)), self._total(step))

    def _prefetches(self, level: int, start: Expr, columns: int) -> Iterator[Stmt]:
        """Prefetch the columns that the first pass reads in a later row.

        Gathers are excluded: the later row may not exist, and its index must not be read.
        """
        if level != 1 or not self.prefetch:
            return
        rows = {axis.name for axis in self.plan.rows}
        row = (Var(GROUP) + self.prefetch) * self.group + Var(LINE)
        for load in dict.fromkeys(x for s in self.plan.steps if s.level == 0 for x in s.fused_stage.reads):
            is_input = load.tensor not in self.outputs and not loads(*load.index)
            if is_input and {COLUMN, *rows} <= set(free_vars(*load.index)):
                for vector in range(-(-columns // self.lanes)):
                    column = {COLUMN: start + vector * self.lanes}
                    early = Prefetch(load.tensor, tuple(substitute(e, column) for e in load.index))
                    yield at_row(self.plan.rows, row, early)

    def _broadcast(self, steps: Sequence[RowStep]) -> Iterator[Stmt]:
        """Broadcast the row's values that the steps read to every lane."""
        read = {x.tensor for s in steps for x in s.fused_stage.reads}
        for name, dtype in self.values.items():
            if name in read:
                place = Var(LINE) * (self.lanes // self.group) if self.group > 1 else Ramp(const(0), self.lanes)
                yield Store(name + WIDE, self._slot(0), Load(name + VALUE, (place,), dtype))

    def _slot(self, vector: int) -> tuple[Expr, ...]:
        return (Ramp(const(vector * self.lanes), self.lanes),)

    def _whole(self, line: Expr) -> tuple[Expr, ...]:
        return (line, Ramp(const(0), self.lanes))

    def _round(self, steps: Sequence[RowStep], start: Expr, columns: int) -> Iterator[Stmt]:
        """Some columns, vector by vector."""
        for vector in range(-(-columns // self.lanes)):
            left = columns - vector * self.lanes
            at = _VectorPlace(vector, start + vector * self.lanes, left if left < self.lanes else None)
            yield from (self._map(s, at) if s.is_map else self._fold(s, at) for s in steps)

    def _map(self, step: RowStep, at: _VectorPlace) -> Stmt:
        fused_stage = step.fused_stage
        value = self._vectorize(fused_stage.apply_epilogue(fused_stage.stage.body), at)
        if fused_stage.output in self.plan.local and fused_stage.output not in self.hosts:
            return Store(fused_stage.output, self._index(fused_stage.output, at), value)
        place = self._place(self.hosts.get(fused_stage.output, fused_stage), at)
        return Store(place.tensor, place.index, value, place.count)

    def _index(self, name: str, at: _VectorPlace) -> tuple[Expr, ...]:
        """The index of a vector of a map in local memory."""
        if self._is_in_registers(name):
            return (const(0), *self._slot(at.vector))
        return (Var(LINE), Ramp(at.base, self.lanes))

    def _place(self, fused_stage: FusedStage, at: _VectorPlace) -> Load:
        """A vector of a fused stage's output."""
        index = tuple(vectorize(e, COLUMN, at.base, self.lanes) for e in fused_stage.index)
        return Load(fused_stage.output, index, fused_stage.epilogue.dtype, at.count)

    def _fold(self, step: RowStep, at: _VectorPlace) -> Stmt:
        stage, name = step.fused_stage.stage, step.fused_stage.output + ACC
        value, dtype = self._vectorize(stage.body, at), stage.body.dtype
        old: Expr = step.initial
        new = value
        if not self.single:
            old = Load(name, self._slot(at.vector), dtype)
            new = fold_value(stage.combiner, old, value)
        if at.count is not None:
            new = op("select", op("lt", Ramp(const(0), self.lanes), at.count), new, old)
        return Store(name, self._slot(at.vector), new)

    def _vectorize(self, value: Expr, at: _VectorPlace) -> Expr:
        """An expression for one vector of columns, reading what other steps made from where it is.

        Registers and the stack are read whole: lanes out of use do no harm, and a masked read would take more.
        """
        vector = vectorize(value, COLUMN, at.base, self.lanes, at.count)

        def visit(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            if node.tensor in self.values:
                return Load(node.tensor + WIDE, self._slot(0), node.dtype)
            if node.tensor in self.hosts:
                return self._place(self.hosts[node.tensor], at)
            if node.tensor not in self.plan.local:
                return node
            return Load(node.tensor, self._index(node.tensor, at), node.dtype)

        return transform(vector, visit)

    def _total(self, step: RowStep) -> Expr:
        """The partial results of a row folded in pairs."""
        combiner, dtype = step.fused_stage.stage.combiner, step.dtype
        parts: list[Expr] = [Load(step.fused_stage.output + ACC, self._slot(n), dtype) for n in range(self.vectors)]
        while len(parts) > 1:
            pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
            parts = [reduce(lambda a, b: op(COMBINERS[combiner], a, b), pair) for pair in pairs]
        return parts[0]

    def _value(self, step: RowStep) -> Iterator[Stmt]:
        """Compute one value for each row of the group, in the lanes of one vector."""
        fused_stage, name = step.fused_stage, step.fused_stage.output

        def from_value(node: Expr) -> Expr:
            if isinstance(node, Load) and node.tensor in self.values:
                return Load(node.tensor + VALUE, self._slot(0), node.dtype)
            return node

        result = self._across(step) if step.is_fold else transform(fused_stage.stage.body, from_value)
        value = transform(fused_stage.epilogue, lambda x: result if fused_stage.is_result(x) else from_value(x))
        fill = Store(name + VALUE, self._slot(0), value)
        yield fill if self.plan.is_batchable else at_row(self.plan.rows, Var(GROUP), fill)
        if name not in self.plan.local:
            place = Var(LINE) * (self.lanes // self.group)
            yield self._each_line(Store(name, fused_stage.index, Load(name + VALUE, (place,), value.dtype)))

    def _across(self, step: RowStep) -> Expr:
        """The partial results of the rows folded across the lanes: of row r in the lanes from r * lanes / rows."""
        combiner, dtype = step.fused_stage.stage.combiner, step.dtype
        parts: list[Expr] = [
            Load(step.fused_stage.output + PART, self._whole(const(n)), dtype) for n in range(self.group)
        ]
        return across(parts, COMBINERS[combiner], self.lanes)


def across(parts: Sequence[Expr], combine: str, lanes: int) -> Expr:
    """Vectors, a power of two of them, folded across their lanes: vector v in the lanes from v * lanes / vectors.

    A round takes lanes of two vectors in turn, from their lower halves and from their upper ones, and folds the two.
    """
    vectors = list(parts)
    for _ in range(lanes.bit_length() - 1):
        half = len(vectors) // 2
        pairs = zip(vectors[:half], vectors[half:], strict=True) if half else [(vectors[0], vectors[0])]
        vectors = [op(combine, op("zip_low", *pair), op("zip_high", *pair)) for pair in pairs]
    return vectors[0]
