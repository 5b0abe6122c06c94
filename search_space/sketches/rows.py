"""Rows: softmax, normalisations and the like, several steps over the same rows in as few passes as there can be.

The steps of a task work within rows (`search_space.rows`), each over the same columns: it maps them, folds them, or
computes one value a row. A pass goes once along a row and does all that needs no fold of the same pass: softmax is a
maximum, then the exponentials with their sum, then a product. Columns lie along the lanes. What passes hand on stays in
registers where a whole row fits into one round of vectors, else on the stack. Several rows may go through each pass
together: a fold across the lanes and what waits for it is a long chain, and other rows fill the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import (
    TRANSCENDENTAL,
    Const,
    Expr,
    Load,
    Op,
    Ramp,
    Var,
    const,
    op,
    substitute,
    transform,
    walk,
)
from tunewright.codegen.index import vectorize
from tunewright.codegen.ir import Alloc, Block, Buffer, For, Kernel, Scope, Stmt, Store, replaced
from tunewright.codegen.target import Target
from tunewright.graph.task import COMBINERS, Axis, Task, identity

from ..phases import buffer, vector_axes
from ..pieces import Piece, pieces
from ..rows import row_groups, row_loop
from ..schedule import Schedule
from ..space import Columns, Knob, Space, Tiling
from ..tile import ACROSS, folded

COLUMN = "column"
"""The axis of all steps beside the rows."""

RESIDENT = 24
"""Vectors of a row up to which it may stay in registers from step to step."""

TOGETHER = 16
"""Vectors of all rows in one round."""

ROUND = 8
"""Vectors in a round along a row that is longer; half as many where each takes a transcendental function."""

CHUNK_POINTS = 1 << 12
"""Elements of a chunk of rows beyond which nothing is gained by larger ones."""

ALIAS_BYTES = 4096
"""Places so far apart share a set of the first-level cache, and a load waits for a store to such a place."""

ACC, WIDE = ".acc", ".wide"
"""Registers: partial results of a fold, a row's value in every lane. Tensors of tasks have no dot."""


@dataclass(frozen=True, slots=True)
class Step:
    """A piece, and the pass that it belongs to. Others read it at the same column, or as a row's one value."""

    piece: Piece
    level: int

    @property
    def maps(self) -> bool:
        """Whether it computes a value for each column."""
        return any(axis.name == COLUMN for axis in self.piece.stage.axes)

    @property
    def folds(self) -> bool:
        return bool(self.piece.stage.reduce)


@dataclass(frozen=True, slots=True)
class Plan:
    """A task's steps in order, over `rows` of so many `columns`."""

    steps: tuple[Step, ...]
    rows: tuple[Axis, ...]
    columns: int
    local: Mapping[str, Buffer]  # what only steps read: cut down to one row

    @property
    def row_count(self) -> int:
        return prod(axis.extent for axis in self.rows)

    @property
    def main(self) -> Piece:
        """The piece that the time is said to go into."""
        return max((s.piece for s in self.steps), key=lambda p: (p.stage.points, p.stage.flops))

    def handed_on(self, name: str) -> bool:
        """Whether a later pass reads a tensor that a step maps."""
        made = next(s.level for s in self.steps if s.piece.output == name)
        return any(s.level > made and any(x.tensor == name for x in s.piece.reads) for s in self.steps)


@lru_cache(maxsize=256)
def plan(task: Task, lanes: int) -> Plan | None:
    """The task as steps over rows; None if it isn't made of such."""
    groups = row_groups(task, pieces(task))
    if len(groups) != 1 or not groups[0].rows:
        return None
    (group,) = groups
    rows = {axis.name for axis in group.rows}
    steps: list[Step] = []
    extents: set[int] = set()
    for piece in group.pieces:
        beside = [a for a in (*piece.stage.axes, *piece.stage.reduce) if a.name not in rows]
        best = [a for a in vector_axes(piece, lanes) if a not in rows][:1]
        if len(beside) > 1 or best != [a.name for a in beside]:
            return None
        extents |= {axis.extent for axis in beside}
        fresh = _named(piece, beside[0].name) if beside else piece
        steps.append(Step(fresh, _level(fresh, steps)))
    local = {b.name: b for b in group.locals}
    if len(extents) != 1 or not _in_place(steps) or not any(s.folds for s in steps):
        return None
    return Plan(tuple(steps), group.rows, extents.pop(), local)


def _named(piece: Piece, axis: str) -> Piece:
    """The piece with an axis called COLUMN."""
    name = {axis: Var(COLUMN)}
    stage = piece.stage
    fresh = replace(
        stage,
        axes=tuple(replace(a, name=COLUMN) if a.name == axis else a for a in stage.axes),
        reduce=tuple(replace(a, name=COLUMN) if a.name == axis else a for a in stage.reduce),
        body=substitute(stage.body, name),
        index=tuple(substitute(e, name) for e in stage.index),
    )
    index = tuple(substitute(e, name) for e in piece.index)
    return Piece(fresh, piece.output, index, substitute(piece.finish, name))


def _level(piece: Piece, before: list[Step]) -> int:
    """The pass of a piece: after those whose folds it needs for each column; one value a row is made at its end."""
    made = {s.piece.output: s for s in before}
    found = [made[x.tensor] for x in piece.reads if x.tensor in made]
    along = any(axis.name == COLUMN for axis in (*piece.stage.axes, *piece.stage.reduce))
    return max((s.level + (along and not s.maps) for s in found), default=0)


def _in_place(steps: list[Step]) -> bool:
    """Whether what steps write is read in the same place, and each writes a tensor of its own."""
    made = {s.piece.output: s.piece.index for s in steps}
    reads = [x for s in steps for x in s.piece.reads]
    return len(made) == len(steps) and all(x.index == made.get(x.tensor, x.index) for x in reads)


class RowsSketch:
    """See the module."""

    name = "rows"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == "cpu" and plan(task, target.lanes(4)) is not None

    def space(self, task: Task, target: Target) -> Space:
        found = plan(task, target.lanes(4))
        assert found is not None
        vectors = -(-found.columns // target.lanes(4))
        whole = {vectors} if vectors <= RESIDENT else set()
        knobs = (
            Knob("vectors", tuple(sorted({n for n in (1, 2, 4, 8, 16) if n < vectors} | whole))),
            Knob("rows", tuple(n for n in (1, 2, 4, 8) if found.rows[-1].extent % n == 0)),
            Knob("chunk_rows", tuple(1 << n for n in range(found.row_count.bit_length()))),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=_legal,
            tiling=lambda columns: _tiling(found, target, columns),
            default=Schedule(self.name, self.version, _default(found, vectors, target)),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found = plan(task, target.lanes(4))
        assert found is not None
        together = schedule["rows"]
        body = _Rows(found, target.lanes(4), schedule["vectors"], together).lower()
        *outer, last = found.rows
        rows = (*outer, replace(last, extent=last.extent // together))
        params = tuple(buffer(t) for t in task.inputs + task.outputs)
        return Kernel(params, (), Block((row_loop(rows, schedule["chunk_rows"] // together, body),)))


def _legal(columns: Columns) -> NDArray[np.bool_]:
    """Rows that go together are of one chunk, and not too many for the registers and the instruction cache."""
    rows = columns["rows"]
    return np.asarray((rows <= columns["chunk_rows"]) & ((rows == 1) | (rows * columns["vectors"] <= TOGETHER)))


def _default(found: Plan, vectors: int, target: Target) -> tuple[tuple[str, int], ...]:
    """Whole rows in registers where they fit, several together; chunks of rows enough for all threads."""
    most = max(1, min(CHUNK_POINTS // found.columns, found.row_count // (4 * target.threads)))
    chunk = 1 << (most.bit_length() - 1)
    resident = vectors <= RESIDENT
    nodes = (node for s in found.steps for node in walk(s.piece.stage.body))
    calls = any(isinstance(node, Op) and node.name in TRANSCENDENTAL for node in nodes)
    round_ = vectors if resident else ROUND // 2 if calls else ROUND
    aliased = 4 * found.columns % ALIAS_BYTES == 0
    wished = (4, 2) if resident else () if aliased else (2,)
    rows = (n for n in wished if n <= chunk and found.rows[-1].extent % n == 0 and n * round_ <= TOGETHER)
    return ("vectors", round_), ("rows", next(rows, 1)), ("chunk_rows", chunk)


def _tiling(found: Plan, target: Target, columns: Columns) -> Tiling:
    stage = found.main.stage
    one = np.ones(len(columns["vectors"]), np.int64)
    along = {a.name: one * a.extent for a in (*stage.axes, *stage.reduce)}
    rows = [a.name for a in found.rows]
    tile = along | dict.fromkeys(rows, one)
    whole = dict(tile)
    tile[COLUMN] = np.minimum(columns["vectors"] * target.lanes(4), found.columns)
    chunk = dict(whole)
    left: NDArray[np.int64] = columns["chunk_rows"]
    for axis in reversed(found.rows):
        chunk[axis.name] = np.clip(left, 1, axis.extent)
        left = left // axis.extent
    return Tiling(stage, (tile, whole, chunk, along), COLUMN, -(-found.row_count // columns["chunk_rows"]))


@dataclass(frozen=True, slots=True)
class _At:
    """A vector of a round: of which row, its number, its first column, its columns in use (None: all lanes)."""

    row: int
    vector: int
    base: Expr
    count: int | None


class _Rows:
    """The statements of some rows at once, the axis of the last row dimension counting groups of `together`."""

    def __init__(self, found: Plan, lanes: int, vectors: int, together: int) -> None:
        self.plan, self.lanes, self.together = found, lanes, together
        self.vectors = min(vectors, -(-found.columns // lanes))
        self.width = self.vectors * lanes
        self.resident = self.width >= found.columns
        self.values = {s.piece.output for s in found.steps if not s.maps and s.piece.output in found.local}

    def lower(self) -> Stmt:
        levels = 1 + max(s.level for s in self.plan.steps)
        body: Stmt = Block(tuple(s for level in range(levels) for s in self._pass(level)))
        for one in self._buffers():
            body = Alloc(one, body)
        return body

    def _buffers(self) -> Iterator[Buffer]:
        rounded = -(-self.plan.columns // self.lanes) * self.lanes
        rows = self.together
        for step in self.plan.steps:
            name, dtype = step.piece.output, step.piece.finish.dtype
            if step.folds:
                yield Buffer(name + ACC, (rows, self.width), step.piece.stage.body.dtype, Scope.REGISTER)
            if name in self.values:
                yield Buffer(name, (rows,), dtype, Scope.REGISTER)
                yield Buffer(name + WIDE, (rows, self.lanes), dtype, Scope.REGISTER)
            elif name in self.plan.local and self._kept(name):
                yield Buffer(name, (rows, self.width), dtype, Scope.REGISTER)
            elif name in self.plan.local:
                yield Buffer(name, (rows, rounded), dtype, Scope.SHARED)

    def _kept(self, name: str) -> bool:
        """Whether what a step maps is in registers, at the place of its vector in the round."""
        return self.resident or not self.plan.handed_on(name)

    def _pass(self, level: int) -> Iterator[Stmt]:
        """Once along each row."""
        steps = [s for s in self.plan.steps if s.level == level]
        along = [s for s in steps if s.maps or s.folds]
        yield from self._each(lambda row: [part for s in along if s.folds for part in self._begun(s, row)])
        rounds, rest = divmod(self.plan.columns, self.width)
        if along and rounds:
            start = Var("round") * self.width if rounds > 1 else const(0)
            body = Block(tuple(self._each(lambda row: self._round(along, row, start, self.width))))
            yield For("round", rounds, body) if rounds > 1 else body
        if along and rest:
            yield from self._each(lambda row: self._round(along, row, const(rounds * self.width), rest))
        yield from self._each(lambda row: [part for s in steps if not s.maps for part in self._value(s, row)])

    def _each(self, write: Callable[[int], list[Stmt]]) -> Iterator[Stmt]:
        """`write` for each of the rows, in its place."""
        last = self.plan.rows[-1].name
        for row in range(self.together):
            yield replaced(Block(tuple(write(row))), {last: Var(last) * self.together + row})

    def _begun(self, step: Step, row: int) -> Iterator[Stmt]:
        stage = step.piece.stage
        start = Const(identity(stage.combiner, stage.body.dtype), stage.body.dtype)
        for n in range(self.vectors):
            yield Store(step.piece.output + ACC, self._place(row, n), start)

    def _place(self, row: int, vector: int) -> tuple[Expr, ...]:
        return (const(row), Ramp(const(vector * self.lanes), self.lanes))

    def _round(self, steps: list[Step], row: int, start: Expr, columns: int) -> list[Stmt]:
        """Some columns, vector by vector."""
        parts: list[Stmt] = []
        for vector in range(-(-columns // self.lanes)):
            left = columns - vector * self.lanes
            at = _At(row, vector, start + vector * self.lanes, left if left < self.lanes else None)
            parts += [self._mapped(s, at) if s.maps else self._folded(s, at) for s in steps]
        return parts

    def _mapped(self, step: Step, at: _At) -> Stmt:
        piece = step.piece
        value = piece.finished(piece.stage.body)
        value = self._laid(value, at)
        if piece.output in self.plan.local:
            return Store(piece.output, self._spot(piece.output, at), value)
        index = tuple(vectorize(e, COLUMN, at.base, self.lanes) for e in piece.index)
        return Store(piece.output, index, value, at.count)

    def _spot(self, name: str, at: _At) -> tuple[Expr, ...]:
        """Where a vector of what a step maps is, if no one else reads it."""
        if self._kept(name):
            return self._place(at.row, at.vector)
        return (const(at.row), Ramp(at.base, self.lanes))

    def _folded(self, step: Step, at: _At) -> Stmt:
        stage, name = step.piece.stage, step.piece.output + ACC
        old = Load(name, self._place(at.row, at.vector), stage.body.dtype)
        new = folded(stage.combiner, old, self._laid(stage.body, at))
        if at.count is not None:
            new = op("select", op("lt", Ramp(const(0), self.lanes), at.count), new, old)
        return Store(name, self._place(at.row, at.vector), new)

    def _laid(self, value: Expr, at: _At) -> Expr:
        """An expression for one vector of columns, reading what other steps made from where it is.

        Registers and the stack are read whole: lanes out of use do no harm, and a masked read would take more.
        """
        laid = vectorize(value, COLUMN, at.base, self.lanes, at.count)

        def visit(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.tensor not in self.plan.local:
                return node
            if node.tensor in self.values:
                return Load(node.tensor + WIDE, self._place(at.row, 0), node.dtype)
            return Load(node.tensor, self._spot(node.tensor, at), node.dtype)

        return transform(laid, visit)

    def _value(self, step: Step, row: int) -> Iterator[Stmt]:
        """What a row has one of, at the end of a pass."""
        piece = step.piece

        def known(node: Expr) -> Expr:
            if isinstance(node, Load) and node.tensor in self.values:
                return Load(node.tensor, (const(row),), node.dtype)
            return node

        result = self._across(step, row) if step.folds else transform(piece.stage.body, known)
        value = transform(piece.finish, lambda x: result if piece.is_result(x) else known(x))
        if piece.output not in self.values:
            yield Store(piece.output, piece.index, value)
            return
        yield Store(piece.output, (const(row),), value)
        yield Store(piece.output + WIDE, self._place(row, 0), Load(piece.output, (const(row),), value.dtype))

    def _across(self, step: Step, row: int) -> Expr:
        """The partial results folded in pairs, then across the lanes."""
        combiner, dtype = step.piece.stage.combiner, step.piece.stage.body.dtype
        parts: list[Expr] = [Load(step.piece.output + ACC, self._place(row, n), dtype) for n in range(self.vectors)]
        while len(parts) > 1:
            pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
            parts = [reduce(lambda a, b: op(COMBINERS[combiner], a, b), pair) for pair in pairs]
        return op(ACROSS[combiner], parts[0])
