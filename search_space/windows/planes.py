"""Planes: a task's main piece as a fold over windows where each channel is a plane whose columns lie side by side.

Depthwise convolution and pooling of channels-first tensors have this form: neighbouring columns are neighbours in what
is read and in what is written, and a window moves along the columns and the rows alone. Padding is no memory, as in
`windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunewright.codegen.expr import Const, Expr, Load, Var, free_vars, loads
from tunewright.graph.task import Axis, Task

from ..nests.direction import AT, Direction, direction_along
from ..nests.pieces import Piece
from .windows import NONE, around, in_order, lies_along, neutral, only_fold, without_padding


@dataclass(frozen=True, slots=True)
class Planes:
    """A task's fold over windows of planes. `element` is what `read` reads, over the positions and the other axes."""

    before: tuple[Piece, ...]  # phases; without the padding, which is part of the directions
    piece: Piece
    after: tuple[Piece, ...]
    still: tuple[Axis, ...]  # axes that no window moves along, such as the channels: one plane for each of their places
    rows: Direction  # NONE where windows move along columns alone
    columns: Direction
    read: Load
    element: Expr
    border: float  # what in place of the element leaves the fold as it is

    @property
    def plain(self) -> bool:
        """Whether nothing but the elements is folded."""
        return self.piece.stage.body == self.read

    @property
    def taps(self) -> int:
        """Elements in a window."""
        return self.rows.taps * self.columns.taps


@lru_cache(maxsize=256)
def planes(task: Task) -> Planes | None:
    """The task's fold over windows of planes of float32, or None if it has none."""
    fold = only_fold(task)
    if fold is None:
        return None
    parts, main = fold
    piece = parts[main]
    match piece.index:
        case (*outer, Var(column)) if column not in free_vars(*outer):
            pass
        case _:
            return None
    reads = [x for x in loads(piece.stage.body) if column in free_vars(x)]
    if len(reads) != 1 or not all(lies_along(x.index, column) for x in piece.reads if x != reads[0]):
        return None
    (read,) = reads
    border = neutral(piece, read)
    moving = [n for n, e in enumerate(read.index) if _moves(piece, e)]
    if border is None or not 1 <= len(moving) <= 2:
        return None
    return _seen(task, parts, main, read, moving, column, border)


def _moves(piece: Piece, index: Expr) -> bool:
    """Whether windows may move along a dimension that is read at this index: it is more than one place of an axis."""
    axes = [Var(a.name) for a in piece.stage.axes]
    return not isinstance(index, Const) and (index not in axes or index == piece.index[-1])


def _seen(
    task: Task, parts: Sequence[Piece], main: int, read: Load, moving: Sequence[int], column: str, border: float
) -> Planes | None:
    """The fold, given the dimensions of what is read that windows move along."""
    piece = parts[main]
    along = [n for n in moving if column in free_vars(read.index[n])]
    if len(along) != 1:
        return None
    places = tuple(Var(f"{n}{AT}") if n in moving else e for n, e in enumerate(read.index))
    before, element, inside = without_padding(task, parts, main, read, places, f"{along[0]}{AT}")
    found = {n: direction_along(piece, read.index[n], inside[n], n) for n in moving}
    columns = found.pop(along[0])
    rows = next(iter(found.values()), NONE)
    if columns is None or rows is None or not columns.tap or not _covers(piece, read, rows, columns):
        return None
    moved = {rows.axis, columns.axis} & set(free_vars(around(piece.stage.body, read)))
    if moved or not in_order(element, columns.at):
        return None
    still = tuple(a for a in piece.stage.axes if a.name not in (rows.axis, columns.axis))
    after = tuple(parts[main + 1 :])
    return Planes(before, piece, after, still, rows, columns, read, element, border)


def _covers(piece: Piece, read: Load, rows: Direction, columns: Direction) -> bool:
    """Whether the two directions have all taps and an axis each, and the other axes are read one place at a time."""
    taps = [d.tap for d in (rows, columns) if d.tap]
    axes = [d.axis for d in (rows, columns) if d.axis]
    still = {a.name for a in piece.stage.axes} - set(axes)
    read_still = [e.name for e in read.index if isinstance(e, Var) and e.name in still]
    return (
        sorted(taps) == sorted(a.name for a in piece.stage.reduce)
        and len(set(axes)) == len(axes)
        and (rows is NONE or rows.axis != "")
        and sorted(read_still) == sorted(still)
    )
