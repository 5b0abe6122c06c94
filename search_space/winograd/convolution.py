"""Convolution: a task's windows of 3x3, as Winograd's method needs them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tunewright.codegen.expr import Expr, Var, loads
from tunewright.graph.task import Axis, Task

from ..nests.direction import direction_along
from ..nests.padding import source
from ..nests.pieces import Piece
from ..products.product import Product, packable, product

TAPS = 3
"""Extent of the window along both axes."""

STRIDES = (1, 2)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A task's convolution, as tiles of its output see it."""

    product: Product
    before: tuple[Piece, ...]  # phases; without that which `element` makes unnecessary
    element: Expr  # of the input, padding included, over the axes of the product
    directions: tuple[tuple[str, str], ...]  # the two axes of the output, each with that of the window
    stride: int  # along both
    channels: Axis
    others: tuple[Axis, ...]  # further axes of the input alone, such as the batch

    def extent(self, axis: str) -> int:
        return self.product.extent(axis)

    def grid(self, m: int) -> list[int]:
        """Tiles of `m` along each of the other axes, then along both directions."""
        return [*(a.extent for a in self.others), *(-(-self.extent(axis) // m) for axis, _ in self.directions)]


@lru_cache(maxsize=256)
def convolution(task: Task) -> Convolution | None:
    """The task's convolution, or None if it has none of 3x3 windows in small steps."""
    found = product(task)
    if found is None or found.batch or found.columns or not packable(task, found.panel):
        return None
    stage = found.piece.stage
    (read,) = [x for x in loads(stage.body) if x != found.panel]
    directions, strides = [], set()
    for dimension, (at, extent) in enumerate(zip(read.index, task.tensor(read.tensor).shape, strict=True)):
        way = direction_along(found.piece, at, range(extent), dimension)
        if way is not None and not (way.axis and way.tap):
            continue
        if way is None or way.axis not in found.rows or (way.taps, way.dilation) != (TAPS, 1):
            return None
        directions.append((way.axis, way.tap))
        strides.add(way.stride)
    channels = [a for a in stage.reduce if a.name not in {tap for _, tap in directions}]
    if len(dict(directions)) != 2 or len(stage.reduce) != 3 or Var(channels[0].name) not in read.index:
        return None
    if len(strides) > 1 or not strides <= set(STRIDES):
        return None
    if any(Var(a.name) not in found.panel.index for a in stage.reduce) or task.is_decisive:
        return None
    others = tuple(a for a in stage.axes if a.name in found.rows and a.name not in dict(directions))
    seen = source(task, (*found.before, found.piece, *found.after), read, border=None)
    before = tuple(p for p in found.before if seen is None or p is not seen.piece)
    element = read if seen is None else seen.at(read.index)
    return Convolution(found, before, element, tuple(directions), strides.pop(), channels[0], others)
