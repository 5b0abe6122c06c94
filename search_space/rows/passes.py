"""Passes: the steps of a task written as few loops over groups of rows. Columns lie along the lanes.

    for line < rows of the group:                one pass
      acc[vectors] = identity
      for round: acc = fold(acc, body)           maps that only folds read stay in registers
      part[line] = fold of the vectors of acc
    value = finish(fold of part across lanes)    one vector holds a value of every row of the group

The chain from a row's columns to its value is long: a fold of the vectors, one across the lanes, a root, a division.
The rows of a group share it, and in a pass nothing waits. What passes hand on stays in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from tunewright.codegen.expr import Const, Expr, Load, Ramp, Var, const, free_vars, loads, op, substitute, transform
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, Prefetch, Scope, Stmt, Store, replaced
from tunewright.codegen.lanes import vectorize
from tunewright.graph.task import COMBINERS, identity

from ..nests.digits import places
from ..nests.pieces import Piece
from ..nests.tile import folded
from .rows import at_row
from .steps import COLUMN, Plan, Step

GROUP, LINE = "group", "line"
"""Variables: the number of a group of rows, and of a row in it."""

ACC, PART, VALUE, WIDE = ".acc", ".part", ".value", ".wide"
"""Partial results of a fold, those of each row in one vector, the rows' values, one of them in every lane."""


@dataclass(frozen=True, slots=True)
class _At:
    """A vector of a round: its number, its first column, its columns in use (None: all lanes)."""

    vector: int
    base: Expr
    count: int | None


class Passes:
    """The statements of a group of `group` rows, a power of two of `lanes` at most, in rounds of `vectors` vectors.

    The number of the group is the variable GROUP. The second pass, which reads what is near by then, asks for the rows
    that the first one will read `ahead` groups later: caches follow a stream, but lose it at the end of a page.
    """

    def __init__(self, found: Plan, vectors: int, group: int, ahead: int) -> None:
        self.plan, self.lanes, self.group, self.ahead = found, found.lanes, group, ahead
        self.vectors = min(vectors, -(-found.columns // self.lanes))
        self.width = self.vectors * self.lanes
        self.rounds, self.rest = divmod(found.columns, self.width)
        self.single = self.rounds + (self.rest > 0) == 1
        handed = [s.piece.output for s in found.steps if s.maps and s.piece.output in found.local]
        lent = {name: found.lent(name) for name in handed if not self._kept(name)}
        self.lent = {name: piece for name, piece in lent.items() if piece is not None}
        self.made = {s.piece.output for s in found.steps}
        self.values = {s.piece.output: s.piece.finish.dtype for s in found.steps if not s.maps}

    def lower(self) -> Stmt:
        body: Stmt = Block(tuple(s for level in range(self.plan.passes) for s in self._pass(level)))
        for one in self._buffers():
            body = Alloc(one, body)
        return body

    def _buffers(self) -> Iterator[Buffer]:
        rounded = -(-self.plan.columns // self.lanes) * self.lanes
        handed = Scope.SHARED if self.group > 1 else Scope.REGISTER
        for step in self.plan.steps:
            name, dtype = step.piece.output, step.piece.finish.dtype
            if step.folds:
                kind = step.piece.stage.body.dtype
                yield Buffer(name + ACC, (self.width,), kind, Scope.REGISTER)
                yield Buffer(name + PART, (self.group, self.lanes), kind, handed)
            if name in self.values:
                yield Buffer(name + VALUE, (self.lanes,), dtype, handed)
                yield Buffer(name + WIDE, (self.lanes,), dtype, Scope.REGISTER)
            elif name in self.plan.local and self._kept(name):
                yield Buffer(name, (1, self.width), dtype, Scope.REGISTER)
            elif name in self.plan.local and name not in self.lent:
                yield Buffer(name, (self.group, rounded), dtype, Scope.SHARED)

    def _kept(self, name: str) -> bool:
        """Whether what a step maps is in registers, at the place of its vector in the round."""
        return not self.plan.handed_on(name) or (self.single and self.group == 1)

    def _pass(self, level: int) -> Iterator[Stmt]:
        """Once along each row, then what its rows have one of each."""
        steps = [s for s in self.plan.steps if s.level == level]
        along = [s for s in steps if s.maps or s.folds]
        if along:
            yield from self._cleared(along)
            yield self._each_line(Block(tuple(self._line(along, level))))
        for step in steps:
            if not step.maps:
                yield from self._value(step)

    def _each_line(self, body: Stmt) -> Stmt:
        """A body for each row of the group."""
        if self.group == 1:
            return replaced(body, {**places(self.plan.rows, Var(GROUP)), LINE: const(0)})
        row = Var(GROUP) * self.group + Var(LINE)
        body = at_row(self.plan.rows, row, body)
        if self.plan.row_count % self.group:
            body = If(op("lt", row, self.plan.row_count), body)
        return For(LINE, self.group, body)

    def _cleared(self, steps: Sequence[Step]) -> Iterator[Stmt]:
        """Rows that there are not have partial results too, of which nothing comes."""
        if self.plan.row_count % self.group:
            for step in steps:
                if step.folds:
                    zero = Const(0, step.piece.stage.body.dtype)
                    for line in range(self.group):
                        yield Store(step.piece.output + PART, self._whole(const(line)), zero)

    def _line(self, steps: Sequence[Step], level: int) -> Iterator[Stmt]:
        """One pass along one row."""
        folds = [s for s in steps if s.folds]
        yield from self._widened(steps)
        if not self.single:
            for step in folds:
                none = _identity(step)
                yield from (Store(step.piece.output + ACC, self._slot(n), none) for n in range(self.vectors))
        if self.rounds:
            start = Var("round") * self.width if self.rounds > 1 else const(0)
            body = Block((*self._early(level, start, self.width), *self._round(steps, start, self.width)))
            yield For("round", self.rounds, body) if self.rounds > 1 else body
        if self.rest:
            yield from self._early(level, const(self.rounds * self.width), self.rest)
            yield from self._round(steps, const(self.rounds * self.width), self.rest)
        for step in folds:
            yield Store(step.piece.output + PART, self._whole(Var(LINE)), self._total(step))

    def _early(self, level: int, start: Expr, columns: int) -> Iterator[Stmt]:
        """What a pass asks for beside some columns: those that the first pass reads in a later row.

        Not what it reads where a tensor says: the later row may be none, and that must not be read to know the place.
        """
        if level != 1 or not self.ahead:
            return
        rows = {axis.name for axis in self.plan.rows}
        row = (Var(GROUP) + self.ahead) * self.group + Var(LINE)
        for load in dict.fromkeys(x for s in self.plan.steps if s.level == 0 for x in s.piece.reads):
            known = load.tensor not in self.made and not loads(*load.index)
            if known and {COLUMN, *rows} <= set(free_vars(*load.index)):
                for vector in range(-(-columns // self.lanes)):
                    column = {COLUMN: start + vector * self.lanes}
                    early = Prefetch(load.tensor, tuple(substitute(e, column) for e in load.index))
                    yield at_row(self.plan.rows, row, early)

    def _widened(self, steps: Sequence[Step]) -> Iterator[Stmt]:
        """What the steps read of the row's values, in every lane."""
        read = {x.tensor for s in steps for x in s.piece.reads}
        for name, dtype in self.values.items():
            if name in read:
                place = Var(LINE) * (self.lanes // self.group) if self.group > 1 else Ramp(const(0), self.lanes)
                yield Store(name + WIDE, self._slot(0), Load(name + VALUE, (place,), dtype))

    def _slot(self, vector: int) -> tuple[Expr, ...]:
        return (Ramp(const(vector * self.lanes), self.lanes),)

    def _whole(self, line: Expr) -> tuple[Expr, ...]:
        return (line, Ramp(const(0), self.lanes))

    def _round(self, steps: Sequence[Step], start: Expr, columns: int) -> Iterator[Stmt]:
        """Some columns, vector by vector."""
        for vector in range(-(-columns // self.lanes)):
            left = columns - vector * self.lanes
            at = _At(vector, start + vector * self.lanes, left if left < self.lanes else None)
            yield from (self._mapped(s, at) if s.maps else self._folded(s, at) for s in steps)

    def _mapped(self, step: Step, at: _At) -> Stmt:
        piece = step.piece
        value = self._laid(piece.finished(piece.stage.body), at)
        if piece.output in self.plan.local and piece.output not in self.lent:
            return Store(piece.output, self._spot(piece.output, at), value)
        place = self._place(self.lent.get(piece.output, piece), at)
        return Store(place.tensor, place.index, value, place.count)

    def _spot(self, name: str, at: _At) -> tuple[Expr, ...]:
        """Where a vector of what a step maps is, if no one else reads it."""
        if self._kept(name):
            return (const(0), *self._slot(at.vector))
        return (Var(LINE), Ramp(at.base, self.lanes))

    def _place(self, piece: Piece, at: _At) -> Load:
        """A vector of what a piece writes."""
        index = tuple(vectorize(e, COLUMN, at.base, self.lanes) for e in piece.index)
        return Load(piece.output, index, piece.finish.dtype, at.count)

    def _folded(self, step: Step, at: _At) -> Stmt:
        stage, name = step.piece.stage, step.piece.output + ACC
        value, dtype = self._laid(stage.body, at), stage.body.dtype
        old: Expr = _identity(step)
        new = value
        if not self.single:
            old = Load(name, self._slot(at.vector), dtype)
            new = folded(stage.combiner, old, value)
        if at.count is not None:
            new = op("select", op("lt", Ramp(const(0), self.lanes), at.count), new, old)
        return Store(name, self._slot(at.vector), new)

    def _laid(self, value: Expr, at: _At) -> Expr:
        """An expression for one vector of columns, reading what other steps made from where it is.

        Registers and the stack are read whole: lanes out of use do no harm, and a masked read would take more.
        """
        laid = vectorize(value, COLUMN, at.base, self.lanes, at.count)

        def visit(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            if node.tensor in self.values:
                return Load(node.tensor + WIDE, self._slot(0), node.dtype)
            if node.tensor in self.lent:
                return self._place(self.lent[node.tensor], at)
            if node.tensor not in self.plan.local:
                return node
            return Load(node.tensor, self._spot(node.tensor, at), node.dtype)

        return transform(laid, visit)

    def _total(self, step: Step) -> Expr:
        """The partial results of a row folded in pairs."""
        combiner, dtype = step.piece.stage.combiner, step.piece.stage.body.dtype
        parts: list[Expr] = [Load(step.piece.output + ACC, self._slot(n), dtype) for n in range(self.vectors)]
        while len(parts) > 1:
            pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
            parts = [reduce(lambda a, b: op(COMBINERS[combiner], a, b), pair) for pair in pairs]
        return parts[0]

    def _value(self, step: Step) -> Iterator[Stmt]:
        """What each row of the group has one of, in the lanes of one vector."""
        piece, name = step.piece, step.piece.output

        def known(node: Expr) -> Expr:
            if isinstance(node, Load) and node.tensor in self.values:
                return Load(node.tensor + VALUE, self._slot(0), node.dtype)
            return node

        result = self._across(step) if step.folds else transform(piece.stage.body, known)
        value = transform(piece.finish, lambda x: result if piece.is_result(x) else known(x))
        fill = Store(name + VALUE, self._slot(0), value)
        yield fill if self.plan.alike else at_row(self.plan.rows, Var(GROUP), fill)
        if name not in self.plan.local:
            place = Var(LINE) * (self.lanes // self.group)
            yield self._each_line(Store(name, piece.index, Load(name + VALUE, (place,), value.dtype)))

    def _across(self, step: Step) -> Expr:
        """The partial results of the rows folded across the lanes: of row r in the lanes from r * lanes / rows."""
        combiner, dtype = step.piece.stage.combiner, step.piece.stage.body.dtype
        parts: list[Expr] = [Load(step.piece.output + PART, self._whole(const(n)), dtype) for n in range(self.group)]
        return across(parts, COMBINERS[combiner], self.lanes)


def _identity(step: Step) -> Expr:
    """What a fold begins with."""
    dtype = step.piece.stage.body.dtype
    return Const(identity(step.piece.stage.combiner, dtype), dtype)


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
