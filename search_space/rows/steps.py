"""Steps: a task as steps over the same rows, and the passes along the rows that they take.

A step maps the columns of a row, folds them, or computes one value a row. A pass goes once along each row and does all
that needs no fold of the same pass: softmax is a maximum, then the exponentials with their sum, then a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Const, Expr, Load, Var, free_vars, loads, transform
from tunewright.codegen.ir import Buffer
from tunewright.graph.task import Axis, Task

from ..nests.phases import vector_axes
from ..nests.pieces import Piece, pieces
from .rows import RowGroup, row_groups

COLUMN = "column"
"""The axis of all steps beside the rows."""

ROUND = 8
"""Vectors in a round by default."""

HANDED_BYTES = 1 << 16
"""What passes may hand on of a group of rows: it should stay in the nearest caches."""


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
    """A task's steps in order, over `rows` of so many `columns`, for vectors of so many `lanes`."""

    steps: tuple[Step, ...]
    rows: tuple[Axis, ...]
    columns: int
    lanes: int
    local: Mapping[str, Buffer]  # what only steps read: cut down to one row
    lends: bool = True  # whether what a step hands on may wait in the output

    @property
    def row_count(self) -> int:
        return prod(axis.extent for axis in self.rows)

    @property
    def rounds(self) -> tuple[int, ...]:
        """How many vectors a round may have."""
        vectors = -(-self.columns // self.lanes)
        return tuple(sorted({n for n in (1, 2, 4, 8, 16) if n < vectors} | {min(vectors, 16)}))

    @property
    def groups(self) -> tuple[int, ...]:
        """How many rows a group may have: those of which one vector holds a value each."""
        most = min(self.row_count, self.lanes) if self.alike else 1
        return tuple(1 << n for n in range(most.bit_length()))

    def near(self, group: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether what passes hand on of groups of so many rows stays in the nearest caches."""
        return np.asarray((group == 1) | (group * self.handed_bytes <= HANDED_BYTES))

    @property
    def passes(self) -> int:
        """How many there are along each row."""
        return 1 + max(s.level for s in self.steps)

    @property
    def main(self) -> Piece:
        """The piece that the time is said to go into."""
        return max((s.piece for s in self.steps), key=lambda p: (p.stage.points, p.stage.flops))

    @property
    def alike(self) -> bool:
        """Whether values of several rows can be computed side by side: from values of the same rows alone."""
        own = {s.piece.output for s in self.steps if not s.maps} | {s.piece.stage.output for s in self.steps}

        def cleared(node: Expr) -> Expr:
            return Const(0, node.dtype) if isinstance(node, Load) and node.tensor in own else node

        ones = (s.piece for s in self.steps if not s.maps)
        values = [e for p in ones for e in (p.finish, *(() if p.stage.reduce else (p.stage.body,)))]
        left = [transform(e, cleared) for e in values]
        return not loads(*left) and not free_vars(*left)

    def lent(self, name: str) -> Piece | None:
        """The piece in whose output what a step hands on waits for it, if there is such a one.

        It alone reads what is handed on, in the place that it writes; and from then on nothing else is read along a
        row, as the output may be the memory of an input. Vectors of rows that are not whole ones lie across two lines
        of the cache: they are not worth to be stored twice.
        """
        if not self.lends or self.columns % self.lanes:
            return None
        made = next(s for s in self.steps if s.piece.output == name)
        later = [s for s in self.steps if s.level > made.level]
        users = [s for s in later if any(x.tensor == name for x in s.piece.reads)]
        if len(users) != 1 or not users[0].maps or users[0].piece.output in self.local:
            return None
        piece = users[0].piece
        steps = {s.piece.output for s in self.steps}
        following = [s for s in self.steps[self.steps.index(made) + 1 :] if s.level >= made.level]
        near = {x.tensor for s in following for x in s.piece.reads if COLUMN in free_vars(*x.index)}
        own = {axis.name for axis in self.rows} | {COLUMN}
        alike = piece.finish.dtype is made.piece.finish.dtype
        whole = {e.name for e in piece.index if isinstance(e, Var)} == own
        first = all(s.level >= users[0].level for s in self.steps if not s.maps and s.piece.output not in self.local)
        return piece if alike and whole and near <= steps and first else None

    @property
    def again_bytes(self) -> int:
        """Memory of one row of what is read by a pass after the first, whether made by a step or not."""
        made = {s.piece.output for s in self.steps}
        later = [x for s in self.steps if s.level for x in s.piece.reads if COLUMN in free_vars(*x.index)]
        rows = {axis.name for axis in self.rows}
        given = {x.tensor: x.dtype for x in later if x.tensor not in made and rows <= set(free_vars(*x.index))}
        return self.handed_bytes + sum(self.columns * dtype.size_bytes for dtype in given.values())

    @property
    def handed_bytes(self) -> int:
        """Memory for what passes hand on of one row."""
        made = (s.piece for s in self.steps if s.maps and s.piece.output in self.local)
        return sum(
            self.columns * p.finish.dtype.size_bytes
            for p in made
            if self.handed_on(p.output) and self.lent(p.output) is None
        )

    def handed_on(self, name: str) -> bool:
        """Whether a later pass reads a tensor that a step maps."""
        made = next(s.level for s in self.steps if s.piece.output == name)
        return any(s.level > made and any(x.tensor == name for x in s.piece.reads) for s in self.steps)


@lru_cache(maxsize=256)
def plan(task: Task, lanes: int) -> Plan | None:
    """The task as steps over rows; None if it isn't made of such."""
    groups = row_groups(task, pieces(task))
    return planned(groups[0], lanes) if len(groups) == 1 else None


def planned(group: RowGroup, lanes: int) -> Plan | None:
    """A group as steps over its rows; None if it isn't made of such."""
    if not group.rows:
        return None
    rows = {axis.name for axis in group.rows}
    steps: list[Step] = []
    extents: set[int] = set()
    for piece in group.pieces:
        beside = [a for a in (*piece.stage.axes, *piece.stage.reduce) if a.name not in rows]
        best = [a for a in vector_axes(piece, lanes) if a not in rows][:1]
        if len(beside) > 1 or best != [a.name for a in beside]:
            return None
        extents |= {axis.extent for axis in beside}
        fresh = piece.renamed({axis.name: COLUMN for axis in beside})
        steps.append(Step(fresh, _level(fresh, steps)))
    local = {b.name: b for b in group.locals}
    if len(extents) != 1 or not _in_place(steps) or not any(s.folds for s in steps):
        return None
    return Plan(tuple(steps), group.rows, extents.pop(), lanes, local)


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
