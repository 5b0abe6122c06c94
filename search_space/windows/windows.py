"""Windows: a task's main piece as a fold over windows that slide along the input, each channel for itself.

Depthwise convolution and pooling have this form: the contiguous axis (`channels`) is one and the same in what is read
and what is written, and every reduction axis is the tap of a window. Padding is no memory: it is taken out of what the
piece reads, and only the places that are inside remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
    children,
    const,
    evaluate,
    free_vars,
    loads,
    substitute,
    transform,
    walk,
)
from tunewright.codegen.index import linear
from tunewright.graph.task import Axis, Stage, Task, identity

from ..nests.pieces import Piece, pieces

AT = ".at"
"""Suffix of the variable that stands for a position along a direction; before it the direction's number."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One dimension of what is read: the window at `place`, its tap `t`, reads position place * stride + t * dilation.

    `axis` is that of the output ("": the output has none), `tap` that of the window ("": there is one tap).
    """

    number: int
    axis: str
    extent: int
    tap: str
    taps: int
    stride: int
    dilation: int
    start: int  # position of the first tap of the first window
    inside: tuple[int, int]  # the first position that is no padding, and the one after the last

    @property
    def at(self) -> str:
        """The variable of the position."""
        return f"{self.number}{AT}"

    def offset(self, place: int, tap: int) -> int:
        """How far the tap of a window is from position 0."""
        return place * self.stride + tap * self.dilation + self.start

    def within(self, place: int, tap: int) -> bool:
        """Whether the tap of a window is no padding."""
        return self.inside[0] <= self.offset(place, tap) < self.inside[1]


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


NONE = Direction(-1, "", 1, "", 1, 0, 0, 0, (0, 1))
"""The rows of a task that has columns alone."""


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


@lru_cache(maxsize=256)
def windows(task: Task) -> Windows | None:
    """The task's fold over windows of float32, or None if it has none."""
    parts = pieces(task)
    main = max(range(len(parts)), key=lambda n: parts[n].stage.points)
    stage = parts[main].stage
    others = [p for n, p in enumerate(parts) if n != main]
    if not stage.reduce or stage.body.dtype is not DType.F32 or any(p.stage.reduce for p in others):
        return None
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
    around = transform(stage.body, lambda node: const(0.0) if node == read else node)
    if moving & set(free_vars(around)):
        return None
    places = tuple(e if isinstance(e, Const) else Var(f"{n}{AT}") for n, e in enumerate(read.index[:-1]))
    before, element, inside = without_padding(task, parts, main, read, (*places, Var(channels.name)), len(places))
    directions = _directions(piece, read, inside, channels)
    if directions is None:
        return None
    names = {f"{n}{AT}": Var(d.at) for n, d in zip(_dims(read), directions, strict=True)}
    return Windows(before, piece, tuple(parts[main + 1 :]), channels, directions, read, substitute(element, names))


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


def _dims(read: Load) -> list[int]:
    """The dimensions of what is read that positions run along."""
    return [n for n, e in enumerate(read.index[:-1]) if not isinstance(e, Const)]


def _directions(
    piece: Piece, read: Load, inside: Sequence[tuple[int, int]], channels: Axis
) -> tuple[Direction, ...] | None:
    """How windows move along each dimension; None if they don't, or not along all axes of the output."""
    spatial = {a.name for a in piece.stage.axes} - {channels.name}
    found: list[Direction] = []
    for number, dim in enumerate(_dims(read)):
        direction = direction_along(piece, read.index[dim], inside[dim], number)
        if direction is None or direction.axis == channels.name:
            return None
        found.append(direction)
    axes = [d.axis for d in found if d.axis]
    taps = [d.tap for d in found if d.tap]
    slides = any(d.axis and d.tap for d in found)
    covered = set(axes) == spatial and set(taps) == {a.name for a in piece.stage.reduce}
    return tuple(found) if slides and covered and len(set(axes)) + len(set(taps)) == len(axes) + len(taps) else None


def direction_along(piece: Piece, index: Expr, inside: tuple[int, int], number: int) -> Direction | None:
    """How windows move along a dimension that is read at this index; None if it isn't by one axis and one tap."""
    form = linear(index)
    if form is None or any(c < 1 for c in form.coefficients.values()):
        return None
    extents = {a.name: a.extent for a in piece.stage.axes + piece.stage.reduce}
    spatial = {a.name for a in piece.stage.axes}
    axes = [name for name in form.coefficients if name in spatial]
    taps = [name for name in form.coefficients if name not in spatial]
    if len(axes) > 1 or len(taps) > 1:
        return None
    axis, tap = (axes or [""])[0], (taps or [""])[0]
    return Direction(
        number=number,
        axis=axis,
        extent=extents.get(axis, 1),
        tap=tap,
        taps=extents.get(tap, 1),
        stride=form.coefficients.get(axis, 0),
        dilation=form.coefficients.get(tap, 0),
        start=form.constant,
        inside=inside,
    )


Interval = tuple[int, int]


def without_padding(
    task: Task, parts: Sequence[Piece], main: int, read: Load, places: Sequence[Expr], along: int
) -> tuple[tuple[Piece, ...], Expr, list[Interval]]:
    """The phases before, what is read at `places`, and the positions inside, a dimension each.

    A place is a position, a variable that ends in AT, or the number or the axis that `read` has in that dimension.
    Where a piece before makes the padding, and nothing else needs its result, it is no phase any more, unless
    neighbours along dimension `along` would no longer be neighbours in memory.
    """
    before = tuple(parts[:main])
    whole = [(0, extent) for extent in task.tensor(read.tensor).shape]
    plain = before, Load(read.tensor, tuple(places), read.dtype), whole
    makers = [p for p in before if p.output == read.tensor]
    readers = [x for p in parts for x in p.reads if x.tensor == read.tensor]
    if len(makers) != 1 or len(readers) != 1 or any(t.name == read.tensor for t in task.outputs):
        return plain
    (maker,) = makers
    axes = [e.name for e in maker.index if isinstance(e, Var)]
    if len(axes) != len(maker.index):
        return plain
    value = maker.finished(maker.stage.body)
    value, conditions = _parted(value, neutral(parts[main], read))
    inside = _inside(conditions, {a.name: a.extent for a in maker.stage.axes}, axes)
    if inside is None or not all(map(_never_outside, places, inside, whole)):
        return plain
    moved = _unclamped(value, dict(zip(axes, inside, strict=True)), axes[along])
    if moved is None:
        return plain
    element = substitute(moved, dict(zip(axes, places, strict=True)))
    return tuple(p for p in before if p != maker), element, inside


def _never_outside(place: Expr, inside: Interval, whole: Interval) -> bool:
    """Whether a place is known not to be padding, or is a position, which is compared with what is inside."""
    match place:
        case Const(value):
            return inside[0] <= value < inside[1]
        case Var(name) if name.endswith(AT):
            return True
    return inside == whole


def neutral(piece: Piece, read: Load) -> float | None:
    """What in place of the element leaves the fold as it is; None if nothing is known to."""
    stage = piece.stage
    match stage.body:
        case Load() as load if load == read:
            return identity(stage.combiner, DType.F32)
        case Op("mul", args) if stage.combiner == "sum" and read in args:
            return 0.0
    return None


def _parted(value: Expr, border: float | None) -> tuple[Expr, list[Expr]]:
    """A value, and all conditions that must hold for it not to be the border."""
    conditions: list[Expr] = []
    while border is not None:
        match value:
            case Op("select", (condition, inner, Const(float(outside)))) if outside == border:
                conditions += _terms(condition)
                value = inner
            case _:
                break
    return value, conditions


def _terms(condition: Expr) -> list[Expr]:
    match condition:
        case Op("and", (left, right)):
            return [*_terms(left), *_terms(right)]
    return [condition]


def _inside(conditions: Sequence[Expr], extents: Mapping[str, int], axes: Sequence[str]) -> list[Interval] | None:
    """Where all conditions hold along each axis; None if that is not an interval of each."""
    holds = {axis: np.ones(extents[axis], np.bool_) for axis in axes}
    for condition in conditions:
        names = free_vars(condition)
        if len(names) != 1 or loads(condition):
            return None
        holds[names[0]] &= _values(condition, names[0], np.arange(extents[names[0]])).astype(np.bool_)
    found = []
    for axis in axes:
        where = np.flatnonzero(holds[axis])
        if not len(where) or where[-1] - where[0] + 1 != len(where):
            return None
        found.append((int(where[0]), int(where[-1]) + 1))
    return found


def _values(expr: Expr, axis: str, at: NDArray[np.int64]) -> NDArray[np.generic]:
    """An expression without loads for many values of its only variable."""
    return np.broadcast_to(np.asarray(evaluate(expr, {axis: at}, lambda load, index: None)), at.shape)


def _unclamped(value: Expr, inside: Mapping[str, Interval], along: str) -> Expr | None:
    """The value with indices that are linear wherever it is read, so that no clamp is left.

    None if one is not linear, if neighbours along the axis `along` are not neighbours in memory, or if it costs more
    than a load.
    """
    if any(isinstance(node, Op) and node.name in TRANSCENDENTAL for node in walk(value)) or len(loads(value)) != 1:
        return None
    (load,) = loads(value)
    index: list[Expr] = []
    for e in load.index:
        names = free_vars(e)
        if len(names) > 1 or loads(e):
            return None
        index.append(_line(e, names[0], inside[names[0]]) or e if names else e)
    if any(linear(e) is None for e in index) or along not in free_vars(index[-1]) or not lies_along(index, along):
        return None
    if along in _outside_loads(value):
        return None
    fresh = Load(load.tensor, tuple(index), load.dtype)
    return transform(value, lambda node: fresh if isinstance(node, Load) else node)


def _outside_loads(value: Expr) -> list[str]:
    """Variables that are more than part of an index."""
    if isinstance(value, Load):
        return []
    if isinstance(value, Var):
        return [value.name]
    return [name for part in children(value) for name in _outside_loads(part)]


def _line(expr: Expr, axis: str, inside: Interval) -> Expr | None:
    """An index as a linear function of its only variable, as far as that is inside; None if it is none."""
    first, last = inside
    values = _values(expr, axis, np.arange(first, last)).astype(np.int64)
    step = int(values[1] - values[0]) if len(values) > 1 else 0
    if np.any(np.diff(values) != step):
        return None
    return Var(axis) * step + const(int(values[0]) - step * first)
