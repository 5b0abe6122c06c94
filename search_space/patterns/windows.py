"""Windows: a task's main fused stage as a fold over windows that slide along the input.

Depthwise convolution and pooling have this form, and every reduction axis is the tap of a window. With channels last
(`match_windows`) the contiguous axis is one and the same in what is read and what is written, and no window moves along
it. With channels first (`match_planes`) there is a plane for each channel: neighbouring columns are neighbours in what
is read and in what is written, and a window moves along the columns and the rows alone.

Padding is no memory: it is taken out of what the fused stage reads, and only the indices inside remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import BYTES, DType
from tunewright.codegen.expr.expr import (
    TRANSCENDENTAL,
    Const,
    Expr,
    Load,
    Op,
    Var,
    const,
    free_vars,
    loads,
    narrow_source,
    op,
    rebuild,
    transform,
    walk,
)
from tunewright.codegen.expr.index import linear
from tunewright.codegen.expr.nodes import fact
from tunewright.graph.task import Axis, Stage, Task, fold_value, identity

from ..axes import IndexRange
from ..registers import ACC
from .fused_stage import FLOAT32, FusedStage, fuse_stages
from .padding import find_source
from .vector_axis import is_contiguous
from .window_dim import AT, WindowDim, match_window_dim


@dataclass(frozen=True, slots=True)
class Windows:
    """A task's fold over windows. `element` is what `read` reads, over the positions and the other axes."""

    before: tuple[FusedStage, ...]  # phases; without the padding, which is part of the dimensions
    fused_stage: FusedStage
    after: tuple[FusedStage, ...]
    others: tuple[Axis, ...]  # axes that no window moves along: the channels, or all that tell a plane from others
    dims: tuple[WindowDim, ...]  # those that windows move along, rows and columns last; one at least
    read: Load
    element: Expr
    border: float  # what in place of the element leaves the fold as it is; 0 where nothing does

    @property
    def stages(self) -> tuple[tuple[FusedStage, ...], FusedStage, tuple[FusedStage, ...]]:
        """The fused stages of the task: those before, this one, those after."""
        return self.before, self.fused_stage, self.after

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the elements is folded, so that it may be done along one dimension after the other."""
        return self.fused_stage.stage.body == self.read

    @property
    def surroundings(self) -> Expr:
        """The body of the fold with an `element_of` the type of `read` in place of it."""
        element = element_of(self.read.dtype)
        return transform(self.fused_stage.stage.body, lambda node: element if node == self.read else node)

    @property
    def epilogue(self) -> Expr:
        """What is written of a window, with an `element_of` the type of its fold in place of that."""
        return self.fused_stage.apply_epilogue(element_of(self.fused_stage.stage.body.dtype))

    @property
    def columns(self) -> WindowDim:
        return self.dims[-1]

    @property
    def rows(self) -> WindowDim:
        """The dimension of the rows; NONE where windows move along columns alone."""
        return self.dims[-2] if len(self.dims) > 1 else NONE

    @property
    def outer_dims(self) -> tuple[WindowDim, ...]:
        """Further dimensions, such as the batch and the depth of a volume."""
        return self.dims[:-2]

    @property
    def channels(self) -> Axis:
        return self.others[-1]

    @property
    def taps(self) -> int:
        """Elements in a window."""
        return prod(d.taps for d in self.dims)


NONE = WindowDim(-1, "", 1, "", 1, 0, 0, 0, IndexRange(0, 1))
"""The rows of a task that has columns alone."""


def element_of(dtype: DType) -> Load:
    """Stands for the element in its surroundings, and for the fold of one window in the epilogue."""
    return Load(ACC, (), dtype)


def is_element(node: Expr) -> bool:
    """Whether a node is an `element_of` some type."""
    return isinstance(node, Load) and node.tensor == ACC and not node.index


def positions_read(dim: WindowDim, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """About how many positions so many neighbouring windows read; no less than there are."""
    separate = places * dim.taps
    span = (places - 1) * dim.stride + (dim.taps - 1) * dim.dilation + 1
    return np.minimum(separate, span)


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input row under a tile, and the windows that it belongs to."""

    taps: tuple[int, ...]  # along the other dimensions
    offset: int  # of its row, from the tile's first
    windows: tuple[tuple[int, int], ...]  # row in the tile, tap

    @staticmethod
    def all(windows: Windows, height: int) -> list[InputRow]:
        """The input rows under a tile of so many rows."""
        offsets = tap_uses(windows.rows, [range(windows.rows.taps)] * height)
        return [
            InputRow(taps, offset, tuple(places))
            for taps in product(*(range(d.taps) for d in windows.outer_dims))
            for offset, places in offsets.items()
        ]

    def locate(self, windows: Windows, height: int, others: Sequence[Expr], row: Expr) -> tuple[dict[str, Expr], Expr]:
        """Its position along each dimension but the columns, and whether it is no padding.

        The tile has so many rows; `others` and `row` are its first indices.
        """
        at: dict[str, Expr] = {}
        guard: Expr = const(True)
        for along, place, tap in zip(windows.outer_dims, others, self.taps, strict=True):
            first = along.offset(0, tap)
            at[along.position] = place * along.stride + first
            guard = op("and", guard, along.guard(at[along.position], first, along.offset(along.extent - 1, tap)))
        rows = windows.rows
        last = (-(-rows.extent // height) - 1) * height * rows.stride
        at[rows.position] = row * rows.stride + self.offset
        return at, op("and", guard, rows.guard(at[rows.position], self.offset, last + self.offset))


def tap_uses(dim: WindowDim, taps: Sequence[Iterable[int]]) -> dict[int, list[tuple[int, int]]]:
    """The positions that a tile reads along a dimension, each with its windows and taps.

    `taps`: those to read of each window of the tile.
    """
    uses: dict[int, list[tuple[int, int]]] = {}
    for place, place_taps in enumerate(taps):
        for tap in place_taps:
            uses.setdefault(dim.offset(place, tap), []).append((place, tap))
    return dict(sorted(uses.items()))


@lru_cache(maxsize=256)
def match_windows(task: Task, dtypes: frozenset[DType] = FLOAT32) -> Windows | None:
    """Match a task's fold over windows, of elements of these types, channels last; None if it has none."""
    fold = _single_fold(task, dtypes)
    if fold is None:
        return None
    fused_stages, main = fold
    stage = fused_stages[main].stage
    channels = next((a for a in stage.axes if stage.index and Var(a.name) == stage.index[-1]), None)
    if channels is None or not all(_is_along(x.index, channels.name) for x in loads(stage.body)):
        return None
    fused_stages[main : main + 1] = _split_epilogue(fused_stages[main], channels.name)
    moving = {a.name for a in stage.axes} - {channels.name}
    reads = [x for x in loads(stage.body) if moving & set(free_vars(x))]
    if len(reads) != 1 or reads[0].index[-1] != Var(channels.name):
        return None
    (read,) = reads
    numbers = [n for n, e in enumerate(read.index[:-1]) if not isinstance(e, Const)]
    windows = _match(task, fused_stages, main, read, numbers, channels.name)
    if windows is None or {d.axis for d in windows.dims if d.axis} != moving:
        return None
    slides = any(d.axis and d.tap for d in windows.dims)
    return windows if slides and not moving & set(free_vars(windows.surroundings)) else None


@lru_cache(maxsize=256)
def match_planes(task: Task) -> Windows | None:
    """Match a task's fold over windows of planes of float32; None if it has none."""
    fold = _single_fold(task, FLOAT32)
    if fold is None:
        return None
    fused_stages, main = fold
    fused_stage = fused_stages[main]
    match fused_stage.index:
        case (*outer, Var(column)) if column not in free_vars(*outer):
            pass
        case _:
            return None
    reads = [x for x in loads(fused_stage.stage.body) if column in free_vars(x)]
    if len(reads) != 1 or not all(_is_along(x.index, column) for x in fused_stage.reads if x != reads[0]):
        return None
    (read,) = reads
    single = {Var(a.name) for a in fused_stage.stage.axes if a.name != column}  # an index of one axis, if not a column
    moving = [n for n, e in enumerate(read.index) if not isinstance(e, Const) and e not in single]
    along = [n for n in moving if column in free_vars(read.index[n])]
    if not 1 <= len(moving) <= 2 or len(along) != 1:
        return None
    numbers = sorted(moving, key=lambda n: n in along)
    windows = _match(task, fused_stages, main, read, numbers, f"{along[0]}{AT}")
    if windows is None or _neutral_value(fused_stage, read) is None or not windows.columns.tap:
        return None
    others = sorted(a.name for a in windows.others)
    is_whole = others == sorted(e.name for e in read.index if isinstance(e, Var) and e.name in others)
    moving_axes = {windows.rows.axis, windows.columns.axis} & set(free_vars(windows.surroundings))
    is_fit = is_whole and not moving_axes and all(d.axis for d in windows.dims)
    return windows if is_fit and _is_stream(windows.element, windows.columns.position) else None


def _match(
    task: Task, fused_stages: Sequence[FusedStage], main: int, read: Load, numbers: Sequence[int], along: str
) -> Windows | None:
    """Match windows that move along some dimensions of `read`, by one axis and one tap each, and have all the taps.

    Neighbours along the variable `along` are neighbours in memory.
    """
    fused_stage = fused_stages[main]
    places = tuple(Var(f"{n}{AT}") if n in numbers else e for n, e in enumerate(read.index))
    before, element, inside = _absorb_padding(task, fused_stages, main, read, places, along)
    matches = [match_window_dim(fused_stage, read.index[n], inside[n], n) for n in numbers]
    dims = tuple(d for d in matches if d is not None)
    axes, taps = [d.axis for d in dims if d.axis], sorted(d.tap for d in dims if d.tap)
    if len(dims) < len(matches) or len(set(axes)) < len(axes) or along in axes:
        return None
    if taps != sorted(a.name for a in fused_stage.stage.reduce):
        return None
    others = tuple(a for a in fused_stage.stage.axes if a.name not in axes)
    border = _neutral_value(fused_stage, read) or 0.0
    return Windows(before, fused_stage, tuple(fused_stages[main + 1 :]), others, dims, read, element, border)


def _single_fold(task: Task, dtypes: frozenset[DType]) -> tuple[list[FusedStage], int] | None:
    """The fused stages of a task, and the number of the one that folds elements of these types.

    They are folded in float32; bytes alone, of which `dtypes` may have some, in int32. None unless most of the work is
    there.
    """
    fused_stages = fuse_stages(task)
    main = max(range(len(fused_stages)), key=lambda n: fused_stages[n].stage.points)
    folds = [n for n, fused_stage in enumerate(fused_stages) if fused_stage.stage.reduce]
    body = fused_stages[main].stage.body
    read = {x.dtype for x in loads(body)}
    is_computed = body.dtype is DType.F32 or (body.dtype is DType.I32 and read <= BYTES)
    is_of_them = folds == [main] and is_computed and read <= dtypes
    return (fused_stages, main) if is_of_them else None


def with_element(surroundings: Expr, element: Expr) -> Expr:
    """The body of a fold for an element."""
    if is_element(surroundings):
        return element
    if _is_only_child(surroundings):
        return rebuild(surroundings, tuple(element if is_element(part) else part for part in surroundings.children))
    return transform(surroundings, lambda node: element if is_element(node) else node)


def fold_element(combiner: str, total: Expr, surroundings: Expr, element: Expr) -> Expr:
    """Fold one more element into a total; a product joins a sum as a fused multiply-add."""
    if (
        combiner == "sum"
        and isinstance(surroundings, Op)
        and surroundings.name == "mul"
        and surroundings.dtype.is_float
    ):
        left, right = (with_element(part, element) for part in surroundings.args)
        return op("fma", left, right, total)
    return fold_value(combiner, total, with_element(surroundings, element))


@fact
def _is_only_child(node: Expr) -> bool:
    """Whether an element is nowhere but directly inside."""
    return all(is_element(part) or not any(map(is_element, loads(part))) for part in node.children)


def _split_epilogue(fused_stage: FusedStage, channels: str) -> list[FusedStage]:
    """The fused stage; split into fold and epilogue where neighbouring channels don't stay neighbours."""
    if all(_is_along(index, channels) for index in (fused_stage.index, *(x.index for x in fused_stage.reads))):
        return [fused_stage]
    after = Stage(fused_stage.output, fused_stage.stage.axes, fused_stage.epilogue, index=fused_stage.index)
    return [FusedStage.of(fused_stage.stage), FusedStage.of(after)]


def _is_along(index: Sequence[Expr], axis: str) -> bool:
    """Whether neighbours along the axis are neighbours in memory, or the same place."""
    return axis not in free_vars(*index) or is_contiguous(index, axis)


def _absorb_padding(
    task: Task, fused_stages: Sequence[FusedStage], main: int, read: Load, places: Sequence[Expr], along: str
) -> tuple[tuple[FusedStage, ...], Expr, tuple[IndexRange, ...]]:
    """The phases before, the element at `places`, and the positions inside, along each dimension.

    An index is a position, a variable that ends in AT, or the number or the axis that `read` has in that dimension.
    Where a fused stage before makes the padding, and nothing else needs its result, it is no phase any more, unless
    neighbours along the variable `along` would no longer be neighbours in memory.
    """
    before = tuple(fused_stages[:main])
    whole = tuple(IndexRange(0, extent) for extent in task.tensor(read.tensor).shape)
    interior = find_source(task, fused_stages, read, _neutral_value(fused_stages[main], read))
    if interior is not None and all(map(_is_inside, places, interior.inside, whole)):
        element = interior.at(places)
        if _is_stream(element, along):
            return tuple(p for p in before if p is not interior.fused_stage), element, interior.inside
    return before, Load(read.tensor, tuple(places), read.dtype), whole


def _is_inside(place: Expr, inside: IndexRange, whole: IndexRange) -> bool:
    """Whether an index is known not to be padding, or is a position, which is guarded."""
    match place:
        case Const(value):
            return int(value) in inside
        case Var(name) if name.endswith(AT):
            return True
    return inside == whole


def _neutral_value(fused_stage: FusedStage, read: Load) -> float | None:
    """The element that leaves the fold unchanged; None if none is known."""
    stage = fused_stage.stage
    if narrow_source(stage.body) == read:
        return identity(stage.combiner, read.dtype)
    match stage.body:
        case Op("mul", args) if stage.combiner == "sum" and read in map(narrow_source, args):
            return 0.0
    return None


def _is_stream(element: Expr, along: str) -> bool:
    """Whether an element costs one load and little else, and neighbours along a variable are neighbours in memory."""
    if any(isinstance(node, Op) and node.name in TRANSCENDENTAL for node in walk(element)) or len(loads(element)) != 1:
        return False
    (load,) = loads(element)
    lines = all(linear(e) is not None and len(free_vars(e)) <= 1 for e in load.index)
    is_moving = along in free_vars(load.index[-1]) and _is_along(load.index, along)
    return lines and is_moving and along not in outside_loads(element)


def outside_loads(value: Expr) -> list[str]:
    """Variables that are more than part of an index."""
    if isinstance(value, Load):
        return []
    if isinstance(value, Var):
        return [value.name]
    return [name for part in value.children for name in outside_loads(part)]
