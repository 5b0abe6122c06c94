"""Fetch tiles: tiles of operands that the copy engine of Hopper copies into shared memory, as boxes of a tensor.

Of a convolution the reduction goes through the taps of a window and, the last of its axes, through channels. At one tap
neighbouring pixels read neighbours, so that a box of the map is what a patch of pixels reads of some channels; beyond
the edges of the map it is zero, which is what windows find there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tunewright.codegen.expr.expr import Const, Expr, Load, Var, const, substitute, variables
from tunewright.codegen.expr.index import form, linear
from tunewright.codegen.instructions.bulk import FETCH_RANKS, fetch_swizzle
from tunewright.codegen.instructions.warpgroup import CHUNK_BYTES, PANEL, ROW_BYTES
from tunewright.codegen.ir.ir import Buffer, Fetch, Scope, Stmt, TensorMap
from tunewright.graph.task import Axis

from ...axes import unravel
from ...patterns.product import Product
from .shared_tile import SharedOperand, unroll
from .sides import ProductOperand, Sides, size


@dataclass(frozen=True, slots=True)
class BoxView:
    """An operand as the engine sees it: dimensions outside of the product, its own axes, and depth."""

    operand: ProductOperand
    outside: tuple[tuple[Expr, int, int], ...]  # the index there, extent and stride
    along: tuple[int, int]  # extent and stride, of its own axes as one
    depth: tuple[int, int]  # likewise, of the reduction

    @staticmethod
    def of(operand: ProductOperand, shape: Sequence[int]) -> BoxView | None:
        """Return the view of an operand in a tensor of a shape; None where the engine can't copy boxes of it."""
        strides: dict[str, int] = {}
        outside = []
        sides = [{axis.name for axis in axes} for axes in (operand.along, operand.depth)]
        own = sides[0] | sides[1]
        for d, (at, extent) in enumerate(zip(operand.load.index, shape, strict=True)):
            stride = prod(shape[d + 1 :])
            flat = _coefficients(at)
            if any(flat.keys() <= side for side in sides) and flat and strides.keys().isdisjoint(flat):
                strides |= {name: number * stride for name, number in flat.items()}
            elif own & variables(at):
                return None
            elif extent > 1 or not isinstance(at, Const):
                outside.append((at, extent, stride))
        along, depth = _join(operand.along, strides), _join(operand.depth, strides)
        if along is None or depth is None:
            return None
        view = BoxView(operand, tuple(outside), along, depth)
        return view if view._is_fit() else None

    def _is_fit(self) -> bool:
        extents, strides = self._sides()
        size_bytes = self.operand.load.dtype.size_bytes
        pitches = (*(stride for _, _, stride in self.outside), *strides[:-1])
        is_even = all(stride * size_bytes % CHUNK_BYTES == 0 for stride in pitches)
        return is_even and strides[-1] == 1 and len(self.outside) + len(extents) in FETCH_RANKS

    def _sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Extents and strides of its own axes and depth, in their order."""
        sides = (self.along, self.depth) if self.operand.is_deep else (self.depth, self.along)
        return (sides[0][0], sides[1][0]), (sides[0][1], sides[1][1])

    def map(self, rows: int) -> TensorMap:
        """Return the map of boxes of `rows` rows of 128 bytes."""
        dtype = self.operand.load.dtype
        extents, strides = self._sides()
        box = (*[1] * len(self.outside), rows, ROW_BYTES // dtype.size_bytes)
        return TensorMap(
            self.operand.load.tensor,
            dtype,
            (*(extent for _, extent, _ in self.outside), *extents),
            (*(stride for _, _, stride in self.outside), *strides),
            box,
        )

    def place(self, batch: Mapping[str, Expr], along: Expr, step: Expr) -> tuple[Expr, ...]:
        """Coordinates of the box of a round, from an index along its own axes on."""
        outside = tuple(substitute(at, batch) for at, _, _ in self.outside)
        depth = step * (ROW_BYTES // self.operand.load.dtype.size_bytes)
        return (*outside, along, depth) if self.operand.is_deep else (*outside, depth, along)


def _coefficients(at: Expr) -> Mapping[str, int]:
    """By what an index moves along axes that are counted as one, from 0 on; nothing where it is not of such a form."""
    line = linear(at)
    if line is None or line.constant or min(line.coefficients.values(), default=0) != 1:
        return {}
    return line.coefficients


def _join(axes: Sequence[Axis], strides: Mapping[str, int]) -> tuple[int, int] | None:
    """Extent and stride of axes as one; None where they don't lie evenly."""
    *outer, last = axes
    inner = last
    for axis in reversed(outer):
        if strides.get(axis.name) != strides.get(inner.name, 0) * inner.extent:
            return None
        inner = axis
    return (size(axes), strides[last.name]) if last.name in strides else None


@dataclass(frozen=True, slots=True)
class FetchTile(SharedOperand):
    """A tile in shared memory: rows of 128 bytes along the reduction, else panels of such rows across it."""

    view: BoxView | PatchView

    def buffer(self, stages: int) -> Buffer:
        """Return the buffer in shared memory, of all stages: rows with swizzled chunks."""
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
        are_steps_one = all(form(at).terms.get(Var(row), 1) == 1 for at, row in zip(self.load.index, rows, strict=True))
        edges = {self._row_of(at): extent for at, extent in zip(self.load.index, self.shape, strict=True)}
        are_edges = all(edges.get(edge.axis) == len(edge.inside) for edge in self.product.edges)
        is_known = is_last and is_whole and are_apart and are_steps_one and are_edges
        return is_known and len(sides.rows) >= 2 and len(self.shape) in FETCH_RANKS

    def _row_of(self, at: Expr) -> str:
        """The axis of the rows that an index moves along; "" if it moves along none, or along several."""
        names = [axis.name for axis in Sides.of(self.product).rows if axis.name in variables(at)]
        return names[0] if len(names) == 1 else ""

    def map(self, rows: int) -> TensorMap:
        """Return the map of boxes of `rows` pixels, those of a patch, by 128 bytes of channels."""
        dtype, shape = self.load.dtype, self.shape
        extents = dict(zip((axis.name for axis in Sides.of(self.product).rows), self.patch, strict=True))
        *box, _ = (extents.get(self._row_of(at), 1) for at in self.load.index)
        strides = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
        return TensorMap(self.load.tensor, dtype, shape, strides, (*box, ROW_BYTES // dtype.size_bytes))

    def place(self, batch: Mapping[str, Expr], along: Expr, step: Expr) -> tuple[Expr, ...]:
        """Coordinates of the box of a round; the corner says where it is along the rows."""
        depth = Sides.of(self.product).depth
        each = ROW_BYTES // self.load.dtype.size_bytes
        *taps, channels = depth
        at = unravel(step, (*(axis.extent for axis in taps), channels.extent // each))
        known = {axis.name: place for axis, place in zip(taps, at, strict=False)}
        known |= {channels.name: at[-1] * each, **batch, **self.corner}
        return tuple(substitute(index, known) for index in self.load.index)
