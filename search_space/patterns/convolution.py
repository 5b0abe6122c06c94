"""Convolutions with windows of 3x3, as Winograd's method needs them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tunewright.codegen.expr.expr import Expr, Var, loads
from tunewright.graph.task import Axis, Task

from ..axes import IndexRange
from .fused_stage import FusedStage
from .padding import find_source
from .product import Product, is_packable, match_product
from .window_dim import match_window_dim

TAPS = 3
"""Extent of the window along both axes."""

STRIDES = (1, 2)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, with the axes of its windows."""

    product: Product
    before: tuple[FusedStage, ...]  # phases; without that which `element` makes unnecessary
    element: Expr  # of the input, padding included, over the axes of the product
    window_axes: tuple[tuple[str, str], ...]  # the two axes of the output, each with that of the window
    stride: int  # along both
    channels: Axis
    outer: tuple[Axis, ...]  # further axes of the input alone, such as the batch

    def extent(self, axis: str) -> int:
        return self.product.extent(axis)

    def grid(self, m: int) -> list[int]:
        """Tiles of `m` along each of the other axes, then along both dimensions."""
        return [*(a.extent for a in self.outer), *(-(-self.extent(axis) // m) for axis, _ in self.window_axes)]


@lru_cache(maxsize=256)
def match_convolution(task: Task) -> Convolution | None:
    """Match a task's convolution of 3x3 windows in small steps; None if it has none."""
    product = match_product(task)
    if product is None or product.batch or product.columns or not is_packable(task, product.panel):
        return None
    stage = product.fused_stage.stage
    (read,) = [x for x in loads(stage.body) if x != product.panel]
    window_axes, strides = [], set()
    for dimension, (at, extent) in enumerate(zip(read.index, task.tensor(read.tensor).shape, strict=True)):
        dim = match_window_dim(product.fused_stage, at, IndexRange(0, extent), dimension)
        if dim is not None and not (dim.axis and dim.tap):
            continue
        if dim is None or dim.axis not in product.rows or (dim.taps, dim.dilation) != (TAPS, 1):
            return None
        window_axes.append((dim.axis, dim.tap))
        strides.add(dim.stride)
    channels = [a for a in stage.reduce if a.name not in {tap for _, tap in window_axes}]
    if len(dict(window_axes)) != 2 or len(stage.reduce) != 3 or Var(channels[0].name) not in read.index:
        return None
    if len(strides) > 1 or not strides <= set(STRIDES):
        return None
    if any(Var(a.name) not in product.panel.index for a in stage.reduce) or task.is_decisive:
        return None
    outer = tuple(a for a in stage.axes if a.name in product.rows and a.name not in dict(window_axes))
    interior = find_source(task, (*product.before, product.fused_stage, *product.after), read, border=None)
    before = tuple(p for p in product.before if interior is None or p is not interior.fused_stage)
    element = read if interior is None else interior.at(read.index)
    return Convolution(product, before, element, tuple(window_axes), strides.pop(), channels[0], outer)
