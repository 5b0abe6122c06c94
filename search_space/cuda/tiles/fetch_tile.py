"""Fetch tiles: tiles of operands that the copy engine of Hopper copies into shared memory, as boxes of a tensor.

Of a convolution the reduction goes through the taps of a window and, the last of its axes, through channels. At one tap
neighbouring pixels read neighbours, or every second one, so that a box of the map is what a patch of pixels reads of
some channels; beyond the edges of the map it is zero, which is what windows find there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tunewright.codegen.expr.expr import Const, Expr, Load, Var, const, substitute, variables
from tunewright.codegen.expr.index import form, linear
from tunewright.codegen.instructions.bulk import FETCH_RANKS, MOST_STEP, fetch_swizzle
from tunewright.codegen.instructions.warpgroup import CHUNK_BYTES, PANEL, ROW_BYTES
from tunewright.codegen.ir.ir import Buffer, Fetch, Scope, Stmt
from tunewright.codegen.ir.tensor_map import TensorMap
from tunewright.graph.task import Axis

from ...axes import unravel
from ...patterns.product import Product
from .shared_tile import SharedOperand, unroll
from .sides import ProductOperand, Sides, size


@dataclass(frozen=True, slots=True)
class BoxSide:
    """Axes of an operand as one dimension of the tensor: `extent` places a `stride` apart, from place `begin` on."""

    extent: int
    stride: int  # in elements
    begin: int = 0


@dataclass(frozen=True, slots=True)
class BoxView:
    """An operand as the engine sees it: dimensions outside of the product, its own axes, and depth."""

    operand: ProductOperand
    outside: tuple[tuple[Expr, int, int], ...]  # the index there, extent and stride
    along: BoxSide
    depth: BoxSide

    @staticmethod
    def of(operand: ProductOperand, shape: Sequence[int]) -> BoxView | None:
        """The view of an operand in a tensor of a shape; None where the engine can't copy boxes of it."""
        sides: dict[str, BoxSide] = {}
        outside: list[tuple[Expr, int, int]] = []
        own = {axis.name: axis.extent for axis in (*operand.along, *operand.depth)}
        for d, (at, extent) in enumerate(zip(operand.load.index, shape, strict=True)):
            stride = prod(shape[d + 1 :])
            if not own.keys() & variables(at):
                if extent > 1 or not isinstance(at, Const):
                    outside.append((at, extent, stride))
                continue
            if flat := _match_flat(at, operand):
                if any(axis.name in sides for axis, _ in flat):
                    return None
                sides |= {axis.name: BoxSide(axis.extent, step * stride) for axis, step in flat}
                continue
            part = _match_part(at, extent, own)
            if part is None or part.axis in sides:
                return None
            outside += [(index, count, step * stride) for index, count, step in part.outside]
            sides[part.axis] = BoxSide(own[part.axis], stride, part.begin)
        along, depth = _join(operand.along, sides), _join(operand.depth, sides)
        if along is None or depth is None:
            return None
        view = BoxView(operand, tuple(outside), along, depth)
        return view if view._is_fit() else None

    def _is_fit(self) -> bool:
        outer, inner = self._sides()
        size_bytes = self.operand.load.dtype.size_bytes
        pitches = (*(stride for _, _, stride in self.outside), outer.stride, inner.begin)
        is_even = all(stride * size_bytes % CHUNK_BYTES == 0 for stride in pitches)
        return is_even and inner.stride == 1 and len(self.outside) + 2 in FETCH_RANKS

    def _sides(self) -> tuple[BoxSide, BoxSide]:
        """Its own axes and depth, in their order in memory."""
        return (self.along, self.depth) if self.operand.is_deep else (self.depth, self.along)

    def map(self, rows: int) -> TensorMap:
        """The map of boxes of `rows` rows of 128 bytes, which ends where the operand does."""
        dtype = self.operand.load.dtype
        box = (*[1] * len(self.outside), rows, ROW_BYTES // dtype.size_bytes)
        return TensorMap(
            self.operand.load.tensor,
            dtype,
            (*(extent for _, extent, _ in self.outside), *(side.begin + side.extent for side in self._sides())),
            (*(stride for _, _, stride in self.outside), *(side.stride for side in self._sides())),
            box,
        )

    def place(self, batch: Mapping[str, Expr], along: Expr, step: Expr) -> tuple[Expr, ...]:
        """Coordinates of the box of a round, from an index along its own axes on."""
        outside = tuple(substitute(at, batch) for at, _, _ in self.outside)
        along = along + self.along.begin
        depth = step * (ROW_BYTES // self.operand.load.dtype.size_bytes) + self.depth.begin
        return (*outside, along, depth) if self.operand.is_deep else (*outside, depth, along)


@dataclass(frozen=True, slots=True)
class _IndexPart:
    """An index that moves along an axis of an operand, from place `begin` on.

    What else moves it is outside: the index there, its extent, and by how many places it moves.
    """

    axis: str
    begin: int
    outside: tuple[tuple[Expr, int, int], ...]


def _match_part(at: Expr, extent: int, own: Mapping[str, int]) -> _IndexPart | None:
    """Match an index, below an extent, as one of an operand's own axes, with extents, and a constant.

    A multiple of one thing more may be added, as where heads lie side by side; the constant counts as whole heads, and
    what is left.
    """
    known = form(at)
    names = [
        atom.name for atom, step in known.terms.items() if isinstance(atom, Var) and atom.name in own and step == 1
    ]
    others = [(atom, step) for atom, step in known.terms.items() if not own.keys() & variables(atom) and step > 0]
    if len(names) != 1 or len(others) > 1 or len(others) + 1 < len(known.terms) or known.constant < 0:
        return None
    [name], begin, outside = names, known.constant, list[tuple[Expr, int, int]]()
    for atom, step in others:
        first, begin = divmod(begin, step)
        outside.append((atom + first, (extent - begin - own[name]) // step + 1, step))
    return _IndexPart(name, begin, tuple(outside))


def _match_flat(at: Expr, operand: ProductOperand) -> list[tuple[Axis, int]]:
    """Match an index as several axes, of the operand alone or of the reduction, counted as one from 0 on.

    By how much it moves along each; nothing where it is of another form.
    """
    line = linear(at)
    if line is None or line.constant or min(line.coefficients.values(), default=0) != 1:
        return []
    for axes in (operand.along, operand.depth):
        if len(line.coefficients) > 1 and line.coefficients.keys() <= {axis.name for axis in axes}:
            return [(axis, line.coefficients[axis.name]) for axis in axes if axis.name in line.coefficients]
    return []


def _join(axes: Sequence[Axis], sides: Mapping[str, BoxSide]) -> BoxSide | None:
    """Axes as one; None where they don't lie evenly."""
    *outer, last = axes
    if any(axis.name not in sides for axis in axes):
        return None
    inner = last
    for axis in reversed(outer):
        if sides[axis.name].stride != sides[inner.name].stride * inner.extent:
            return None
        inner = axis
    stride = sides[last.name].stride
    begin = sum(sides[axis.name].begin * sides[axis.name].stride for axis in axes) // stride
    return BoxSide(size(axes), stride, begin)


@dataclass(frozen=True, slots=True)
class FetchTile(SharedOperand):
    """A tile in shared memory: rows of 128 bytes along the reduction, else panels of such rows across it."""

    view: BoxView | PatchView

    def buffer(self, stages: int) -> Buffer:
        """The buffer in shared memory, of all stages: rows with swizzled chunks."""
        extent, depth = self.tile.extent, self.tile.block_depth
        shape = (extent, depth) if self.tile.operand.is_deep else (extent // PANEL, depth, PANEL)
        return Buffer(self.name, (stages, *shape), self.dtype, Scope.SHARED, fetch_swizzle(self.dtype))

    def fetch(self, step: Expr, stage: Expr, barrier: Load) -> Stmt:
        """Copy the tile of a round."""
        tile = self.tile
        if tile.operand.is_deep:
            place = self.view.place(tile.batch, tile.begin, step)
            return Fetch(self.view.map(tile.extent), place, self.at(stage, const(0), const(0)), barrier)
        panel = Var("panel")
        place = self.view.place(tile.batch, tile.begin + panel * PANEL, step)
        target = self.at(stage, panel, const(0), const(0))
        return unroll(Fetch(self.view.map(tile.block_depth), place, target, barrier), panel=tile.extent // PANEL)


@dataclass(frozen=True, slots=True)
class PatchView:
    """The left operand of a product as maps of pixels, by the extents of what is read; its boxes are patches."""

    product: Product
    shape: tuple[int, ...]
    patch: tuple[int, ...] = ()  # pixels along each axis of the rows
    corner: Mapping[str, Expr] = field(default_factory=dict)  # the first of them

    @staticmethod
    def of(product: Product, shape: Sequence[int]) -> PatchView | None:
        """That of a product whose edges are those of what it reads; None where the engine can't copy its boxes."""
        view = PatchView(product, tuple(shape))
        return view if view._is_fit() else None

    @property
    def load(self) -> Load:
        return self.product.broadcast

    def _is_fit(self) -> bool:
        sides, each = Sides.of(self.product), self.load.dtype.size_bytes
        *_, channels = sides.depth
        is_last = self.load.index[-1] == Var(channels.name) and self.shape[-1] == channels.extent
        is_whole = channels.extent * each % ROW_BYTES == 0
        rows = [self._row_of(at) for at in self.load.index]
        are_apart = list(filter(None, rows)) == [axis.name for axis in sides.rows]
        are_steps_short = all(1 <= step <= MOST_STEP for step in self.steps)
        edges = {self._row_of(at): extent for at, extent in zip(self.load.index, self.shape, strict=True)}
        are_edges = all(edges.get(edge.axis) == edge.inside.extent for edge in self.product.edges)
        is_known = is_last and is_whole and are_apart and are_steps_short and are_edges
        return is_known and len(sides.rows) >= 2 and len(self.shape) in FETCH_RANKS

    @property
    def steps(self) -> tuple[int, ...]:
        """How far apart neighbouring pixels read, along each dimension of the maps; 1 along others."""
        axes = {axis.name: axis for axis in Sides.of(self.product).rows}
        rows = map(self._row_of, self.load.index)
        return tuple(step_between(self.product, axes[row]) if row else 1 for row in rows)

    def _row_of(self, at: Expr) -> str:
        """The axis of the rows that an index moves along; "" if it moves along none, or along several."""
        names = [axis.name for axis in Sides.of(self.product).rows if axis.name in variables(at)]
        return names[0] if len(names) == 1 else ""

    def map(self, rows: int) -> TensorMap:
        """The map of boxes of `rows` pixels, those of a patch, by 128 bytes of channels."""
        dtype, shape = self.load.dtype, self.shape
        extents = dict(zip((axis.name for axis in Sides.of(self.product).rows), self.patch, strict=True))
        *box, _ = (extents.get(self._row_of(at), 1) for at in self.load.index)
        strides = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
        steps = self.steps if max(self.steps) > 1 else ()
        return TensorMap(self.load.tensor, dtype, shape, strides, (*box, ROW_BYTES // dtype.size_bytes), steps)

    def place(self, batch: Mapping[str, Expr], along: Expr, step: Expr) -> tuple[Expr, ...]:
        """Coordinates of the box of a round; the corner says where it is along the rows."""
        depth = Sides.of(self.product).depth
        each = ROW_BYTES // self.load.dtype.size_bytes
        *taps, channels = depth
        at = unravel(step, (*(axis.extent for axis in taps), channels.extent // each))
        known = {axis.name: place for axis, place in zip(taps, at, strict=False)}
        known |= {channels.name: at[-1] * each, **batch, **self.corner}
        return tuple(substitute(index, known) for index in self.load.index)


def step_between(product: Product, axis: Axis) -> int:
    """How far apart neighbours along an axis of the rows read in the left operand: the stride of a convolution."""
    terms = (form(at).terms.get(Var(axis.name), 0) for at in product.broadcast.index)
    return next(filter(None, terms), 1)
