"""Windows: a task's main piece as a fold over windows that slide along the input, each channel for itself.

Depthwise convolution and pooling have this form: the contiguous axis (`channels`) is one and the same in what is read
and what is written, and every reduction axis is the tap of a window. Padding is no memory: it is taken out of what the
piece reads, and only the places that are inside remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import (
    TRANSCENDENTAL,
    Const,
    Expr,
    Load,
    Op,
    Var,
    const,
    free_vars,
    loads,
    op,
    rebuilt,
    transform,
    walk,
    widened,
)
from tunewright.codegen.index import linear
from tunewright.codegen.nodes import fact
from tunewright.graph.task import Axis, Stage, Task, identity

from ..nests.direction import AT, Direction, direction_along
from ..nests.padding import source
from ..nests.pieces import FLOAT32, Piece, pieces
from ..nests.tile import ACC, folded


@dataclass(frozen=True, slots=True)
class Windows:
    """A task's fold over windows. `element` is what `read` reads, over the positions and the channels."""

    before: tuple[Piece, ...]  # phases; without the padding, which is part of the directions
    piece: Piece
    after: tuple[Piece, ...]
    channels: Axis
    directions: tuple[Direction, ...]  # in the order of what is read; one at least
    read: Load
    element: Expr

    @property
    def plain(self) -> bool:
        """Whether nothing but the elements is folded, so that it may be done along one direction after the other."""
        return self.piece.stage.body == self.read


NONE = Direction(-1, "", 1, "", 1, 0, 0, 0, range(1))
"""The rows of a task that has columns alone."""

OWN = Load(ACC, (), DType.F32)
"""Stands for the element in what is around it, and for the fold of one window in what follows that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A fold over windows, with vectors of `lanes`."""

    windows: Windows
    lanes: int

    @property
    def columns(self) -> Direction:
        return self.windows.directions[-1]

    @property
    def rows(self) -> Direction:
        return self.windows.directions[-2] if len(self.windows.directions) > 1 else NONE

    @property
    def others(self) -> tuple[Direction, ...]:
        """Further directions, such as the batch and the depth of a volume."""
        return self.windows.directions[:-2]

    @property
    def channels(self) -> int:
        return self.windows.channels.extent

    @property
    def vectors(self) -> int:
        """Vectors that cover the channels."""
        return -(-self.channels // self.lanes)

    def kept(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Registers that a tile of rows by columns is folded into, one vector of channels each."""
        return rows * (touched(self.columns, columns) if self.windows.plain else columns)

    def bodies(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Elements that are folded for a tile."""
        lines = rows * self.rows.taps * prod(d.taps for d in self.others)
        if self.windows.plain:
            return lines * touched(self.columns, columns) + rows * columns * self.columns.taps
        return lines * columns * self.columns.taps


def touched(direction: Direction, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """About how many positions so many neighbouring windows read; no less than there are."""
    apart = places * direction.taps
    spread = (places - 1) * direction.stride + (direction.taps - 1) * direction.dilation + 1
    return np.minimum(apart, spread)


@dataclass(frozen=True, slots=True)
class Line:
    """One row of what is read under a tile, and the windows that it belongs to."""

    taps: tuple[int, ...]  # along the other directions
    offset: int  # of its row, from the tile's first
    windows: tuple[tuple[int, int], ...]  # row in the tile, tap

    @staticmethod
    def all(plan: Plan, height: int) -> list[Line]:
        """The rows of what is read under a tile of so many rows."""
        offsets = touching(plan.rows, [range(plan.rows.taps)] * height)
        return [
            Line(taps, offset, tuple(places))
            for taps in product(*(range(d.taps) for d in plan.others))
            for offset, places in offsets.items()
        ]

    def located(self, plan: Plan, height: int, others: Sequence[Expr], row: Expr) -> tuple[dict[str, Expr], Expr]:
        """Where it is along each direction but the columns, and whether it is no padding.

        Of a tile of so many rows, given its place along the other directions and its first row.
        """
        at: dict[str, Expr] = {}
        guard: Expr = const(True)
        for along, place, tap in zip(plan.others, others, self.taps, strict=True):
            first = along.offset(0, tap)
            at[along.at] = place * along.stride + first
            guard = op("and", guard, along.guard(at[along.at], first, along.offset(along.extent - 1, tap)))
        rows = plan.rows
        last = (-(-rows.extent // height) - 1) * height * rows.stride
        at[rows.at] = row * rows.stride + self.offset
        return at, op("and", guard, rows.guard(at[rows.at], self.offset, last + self.offset))


def touching(direction: Direction, taps: Sequence[Iterable[int]]) -> dict[int, list[tuple[int, int]]]:
    """What a tile reads along a direction, from its first place on: windows and taps that each position is of.

    Given the taps of each place of the tile that are to be read.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for place, read in enumerate(taps):
        for tap in read:
            found.setdefault(direction.offset(place, tap), []).append((place, tap))
    return dict(sorted(found.items()))


@lru_cache(maxsize=256)
def windows(task: Task, dtypes: frozenset[DType] = FLOAT32) -> Windows | None:
    """The task's fold of what is of these types over windows, or None if it has none."""
    fold = only_fold(task, dtypes)
    if fold is None:
        return None
    parts, main = fold
    stage = parts[main].stage
    channels = next((a for a in stage.axes if stage.index and Var(a.name) == stage.index[-1]), None)
    if channels is None or not all(lies_along(x.index, channels.name) for x in loads(stage.body)):
        return None
    parts = [*parts[:main], *_with_neighbours(parts[main], channels.name), *parts[main + 1 :]]
    piece = parts[main]
    moving = {a.name for a in stage.axes} - {channels.name}
    reads = [x for x in loads(stage.body) if moving & set(free_vars(x))]
    if len(reads) != 1 or reads[0].index[-1] != Var(channels.name):
        return None
    (read,) = reads
    if moving & set(free_vars(around(stage.body, read))):
        return None
    places = tuple(e if isinstance(e, Const) else Var(f"{n}{AT}") for n, e in enumerate(read.index[:-1]))
    before, element, inside = without_padding(task, parts, main, read, (*places, Var(channels.name)), channels.name)
    directions = _directions(piece, read, inside, channels)
    if directions is None:
        return None
    return Windows(before, piece, tuple(parts[main + 1 :]), channels, directions, read, element)


def only_fold(task: Task, dtypes: frozenset[DType] = FLOAT32) -> tuple[list[Piece], int] | None:
    """The task's pieces, and the number of the one that folds, in float32, what is of these types.

    None unless most of the work is there.
    """
    parts = pieces(task)
    main = max(range(len(parts)), key=lambda n: parts[n].stage.points)
    folds = [n for n, piece in enumerate(parts) if piece.stage.reduce]
    if folds != [main]:
        return None
    body = parts[main].stage.body
    is_of_them = body.dtype is DType.F32 and {x.dtype for x in loads(body)} <= dtypes
    return (parts, main) if is_of_them else None


def around(body: Expr, read: Load) -> Expr:
    """What is folded, with OWN in place of what is read."""
    return transform(body, lambda node: OWN if node == read else node)


def with_element(around: Expr, element: Expr) -> Expr:
    """What is folded of an element, given what is around it."""
    if around is OWN:
        return element
    if _is_around_alone(around):
        return rebuilt(around, tuple(element if part is OWN else part for part in around.children))
    return transform(around, lambda node: element if node is OWN else node)


def folded_with(combiner: str, total: Expr, around: Expr, element: Expr) -> Expr:
    """`folded` with an element, given what is around it: the product that a sum takes in is not made first."""
    if combiner == "sum" and isinstance(around, Op) and around.name == "mul" and around.dtype.is_float:
        left, right = (with_element(part, element) for part in around.args)
        return op("fma", left, right, total)
    return folded(combiner, total, with_element(around, element))


@fact
def _is_around_alone(node: Expr) -> bool:
    """Whether an element is nowhere but directly inside."""
    return all(part is OWN or OWN not in loads(part) for part in node.children)


def _with_neighbours(piece: Piece, channels: str) -> list[Piece]:
    """The piece; in two, the fold and what follows it, where neighbouring channels don't stay neighbours."""
    stage = piece.stage
    if all(lies_along(index, channels) for index in (piece.index, *(x.index for x in piece.reads))):
        return [piece]
    result = Load(stage.output, stage.index, stage.body.dtype)
    after = Stage(output=piece.output, axes=stage.axes, body=piece.finish, index=piece.index)
    return [
        Piece(stage, stage.output, stage.index, result),
        Piece(after, piece.output, piece.index, Load(piece.output, piece.index, piece.finish.dtype)),
    ]


def lies_along(index: Sequence[Expr], axis: str) -> bool:
    """Whether neighbours along the axis are neighbours in memory, or the same place."""
    if axis not in free_vars(*index):
        return True
    last = linear(index[-1])
    return last is not None and last.coefficients.get(axis) == 1 and axis not in free_vars(*index[:-1])


def _directions(piece: Piece, read: Load, inside: Sequence[range], channels: Axis) -> tuple[Direction, ...] | None:
    """How windows move along each dimension; None if they don't, or not along all axes of the output."""
    spatial = {a.name for a in piece.stage.axes} - {channels.name}
    found: list[Direction] = []
    for dimension, index in enumerate(read.index[:-1]):
        if isinstance(index, Const):
            continue
        direction = direction_along(piece, index, inside[dimension], dimension)
        if direction is None or direction.axis == channels.name:
            return None
        found.append(direction)
    axes = [d.axis for d in found if d.axis]
    taps = [d.tap for d in found if d.tap]
    slides = any(d.axis and d.tap for d in found)
    covered = set(axes) == spatial and set(taps) == {a.name for a in piece.stage.reduce}
    return tuple(found) if slides and covered and len(set(axes)) + len(set(taps)) == len(axes) + len(taps) else None


def without_padding(
    task: Task, parts: Sequence[Piece], main: int, read: Load, places: Sequence[Expr], along: str
) -> tuple[tuple[Piece, ...], Expr, tuple[range, ...]]:
    """The phases before, what is read at `places`, and the positions inside, a dimension each.

    A place is a position, a variable that ends in AT, or the number or the axis that `read` has in that dimension.
    Where a piece before makes the padding, and nothing else needs its result, it is no phase any more, unless
    neighbours along the variable `along` would no longer be neighbours in memory.
    """
    before = tuple(parts[:main])
    whole = tuple(map(range, task.tensor(read.tensor).shape))
    seen = source(task, parts, read, neutral(parts[main], read))
    if seen is not None and all(map(_never_outside, places, seen.inside, whole)):
        element = seen.at(places)
        if in_order(element, along):
            return tuple(p for p in before if p is not seen.piece), element, seen.inside
    return before, Load(read.tensor, tuple(places), read.dtype), whole


def _never_outside(place: Expr, inside: range, whole: range) -> bool:
    """Whether a place is known not to be padding, or is a position, which is compared with what is inside."""
    match place:
        case Const(value):
            return value in inside
        case Var(name) if name.endswith(AT):
            return True
    return inside == whole


def neutral(piece: Piece, read: Load) -> float | None:
    """What in place of the element leaves the fold as it is; None if nothing is known to."""
    stage = piece.stage
    if widened(stage.body) == read:
        return identity(stage.combiner, DType.F32)
    match stage.body:
        case Op("mul", args) if stage.combiner == "sum" and read in map(widened, args):
            return 0.0
    return None


def in_order(element: Expr, along: str) -> bool:
    """Whether an element costs one load and little else, and neighbours along a variable are neighbours in memory."""
    if any(isinstance(node, Op) and node.name in TRANSCENDENTAL for node in walk(element)) or len(loads(element)) != 1:
        return False
    (load,) = loads(element)
    lines = all(linear(e) is not None and len(free_vars(e)) <= 1 for e in load.index)
    moved = along in free_vars(load.index[-1]) and lies_along(load.index, along)
    return lines and moved and along not in _outside_loads(element)


def _outside_loads(value: Expr) -> list[str]:
    """Variables that are more than part of an index."""
    if isinstance(value, Load):
        return []
    if isinstance(value, Var):
        return [value.name]
    return [name for part in value.children for name in _outside_loads(part)]
