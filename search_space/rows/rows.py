"""Rows: pieces that can run row by row, one after another, without leaving the cache.

Softmax and layer normalisation are several pieces over the same rows: maximum, exponentials, sum, quotient. When every
tensor that passes between them stays within a row, one parallel loop over the rows holds them all, and the tensors
between them shrink to one row each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tunewright.codegen.expr import Expr, Load, Var, const, free_vars, op, transform
from tunewright.codegen.ir import Buffer, For, If, LoopKind, Scope, Stmt, replaced
from tunewright.graph.task import Axis, Task

from ..nests.digits import places
from ..nests.pieces import Piece

ROW_LIMIT_BYTES = 256 * 1024
"""Most memory for the tensors of one row: they live on the stack and should stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Pieces run together. `rows` are the axes of the loop around them, with equal names in all pieces."""

    pieces: tuple[Piece, ...]
    rows: tuple[Axis, ...] = ()
    locals: tuple[Buffer, ...] = ()

    @property
    def main(self) -> Piece:
        """The piece that evaluates its body most often."""
        return max(self.pieces, key=lambda piece: piece.stage.points)

    @property
    def row_count(self) -> int:
        """Rounds of the loop around the pieces."""
        return prod(axis.extent for axis in self.rows)

    @property
    def row_points(self) -> int:
        """Evaluations of all bodies in one row."""
        return sum(piece.stage.points for piece in self.pieces) // self.row_count


def row_groups(task: Task, parts: Sequence[Piece]) -> list[RowGroup]:
    """All pieces, in order, as few groups as possible."""
    done: list[RowGroup] = []
    start = 0
    while start < len(parts):
        for stop in range(_reach(parts, start), start, -1):
            group = row_group(task, parts, start, stop)
            if group is not None:
                done.append(group)
                start = stop
                break
    return done


def _reach(parts: Sequence[Piece], start: int) -> int:
    """Behind the last piece that may be of a group with that at `start`: as many rows, and no tensor written twice.

    What a Concat of hundreds of tensors comes to is so looked at once, and not each part beside all others.
    """
    count = [axis.extent for axis in parts[start].stage.axes[:1]]
    written: set[str] = set()
    for number, piece in enumerate(parts[start:], start):
        alike = [axis.extent for axis in piece.stage.axes[:1]] == count
        if number > start and (not alike or piece.output in written):
            return number
        written.add(piece.output)
    return len(parts)


def row_loop(rows: Sequence[Axis], together: int, body: Stmt) -> Stmt:
    """`body` for every row, `together` rows a chunk, in one parallel loop. In it the axes of the rows are variables."""
    total = prod(axis.extent for axis in rows)
    together = min(together, total)
    chunks = -(-total // together)
    row: Expr = const(0)
    row = row + Var("chunk") * together if chunks > 1 else row
    row = row + Var("row") if together > 1 else row
    body = at_row(rows, row, body)
    if chunks * together > total:
        body = If(op("lt", row, total), body)
    if together > 1:
        body = For("row", together, body)
    return For("chunk", chunks, body, LoopKind.PARALLEL) if chunks > 1 else body


def at_row(rows: Sequence[Axis], row: Expr, body: Stmt) -> Stmt:
    """`body` at one of all rows by its number."""
    return replaced(body, places(rows, row))


def row_group(task: Task, parts: Sequence[Piece], start: int, stop: int) -> RowGroup | None:
    """The pieces from `start` to before `stop` as one group, if they can be; one piece alone has no rows."""
    inside = list(parts[start:stop])
    if len(inside) == 1:
        return RowGroup((inside[0],))
    others = (*parts[:start], *parts[stop:])
    outside = {t.name for t in task.outputs} | {
        name for p in others for name in (p.output, *(x.tensor for x in p.reads))
    }
    made = [p.output for p in inside]
    kept = [name for name in made if name not in outside]
    passed = {x.tensor for p in inside for x in p.reads} & set(made)
    if len(set(made)) < len(made):
        return None
    for count in range(min(len(p.stage.axes) for p in inside), 0, -1):
        pieces = [p.renamed({axis.name: f"row{n}" for n, axis in enumerate(p.stage.axes[:count])}) for p in inside]
        rows = pieces[0].stage.axes[:count]
        if any(p.stage.axes[:count] != rows for p in pieces):
            continue
        dims = {p.output: found for p in pieces if (found := _row_dims(p.index, rows)) is not None}
        if all(name in dims and _stays(pieces, name, dims[name], rows) for name in passed):
            return _localised(task, pieces, rows, {name: dims[name] for name in kept if name in passed})
    return None


def _row_dims(index: Sequence[Expr], rows: Sequence[Axis]) -> tuple[int, ...] | None:
    """Which dimension each row axis indexes; None if one does not, or not alone."""
    dims = []
    for axis in rows:
        where = [d for d, e in enumerate(index) if axis.name in free_vars(e)]
        if len(where) != 1 or index[where[0]] != Var(axis.name):
            return None
        dims.append(where[0])
    return tuple(dims)


def _stays(pieces: Sequence[Piece], name: str, dims: tuple[int, ...], rows: Sequence[Axis]) -> bool:
    """Whether every read of the tensor is of the row being computed."""
    reads = [x for p in pieces for x in p.reads if x.tensor == name]
    return all(_row_dims(x.index, rows) == dims for x in reads)


def _localised(
    task: Task, pieces: Sequence[Piece], rows: tuple[Axis, ...], dims: Mapping[str, tuple[int, ...]]
) -> RowGroup | None:
    """The group with its inner tensors cut down to one row: without the dimensions `dims` of each."""
    buffers = []
    for name, drop in dims.items():
        tensor = task.tensor(name)
        shape = tuple(extent for d, extent in enumerate(tensor.shape) if d not in drop)
        buffers.append(Buffer(name, shape or (1,), tensor.dtype, Scope.SHARED))
    if sum(b.size_bytes for b in buffers) > ROW_LIMIT_BYTES or prod(a.extent for a in rows) < 2:
        return None

    def cut(index: tuple[Expr, ...], name: str) -> tuple[Expr, ...]:
        if name not in dims:
            return index
        return tuple(e for d, e in enumerate(index) if d not in dims[name]) or (const(0),)

    def visit(node: Expr) -> Expr:
        return Load(node.tensor, cut(node.index, node.tensor), node.dtype) if isinstance(node, Load) else node

    def one_row(piece: Piece) -> Piece:
        stage = replace(piece.stage, body=transform(piece.stage.body, visit))
        finish = transform(piece.finish, lambda node: node if piece.is_result(node) else visit(node))
        return Piece(stage, piece.output, cut(piece.index, piece.output), finish)

    return RowGroup(tuple(map(one_row, pieces)), rows, tuple(buffers))
