"""Wide panel: a part of narrow weights as float32, next to the core that multiplies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, narrow_source, op, substitute, transform
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import Block, Buffer, For, Scope, Stmt, Store
from tunewright.graph.task import Axis

from ...patterns.product import Product
from ...registers import INNER, TILE

WIDE_PANEL = ".wide"
"""A part of a packed panel in float32, next to a core."""


@dataclass(frozen=True, slots=True)
class WidePanel:
    """The part of a packed narrow panel that register tiles at one place along the lanes read, as float32.

    Where several tiles read it, to cast it once is less work than in the registers of each.
    """

    panel: Load  # of the packed panel, over the axes and the parts of the axis along the lanes
    axes: tuple[Axis, ...]  # of the reduction, in the order in which the panel has them
    width: int  # elements along the lanes

    @staticmethod
    def of(product: Product, width: int) -> WidePanel:
        """That of a product whose panel is packed in tiles of `width`."""
        extents = {axis.name: axis.extent for axis in product.fused_stage.stage.reduce}
        names = [at.name for at in product.panel.index if isinstance(at, Var) and at.name in extents]
        return WidePanel(product.panel, tuple(Axis(name, extents[name]) for name in names), width)

    @property
    def buffer(self) -> Buffer:
        """Its memory: [reduction, width]."""
        return Buffer(WIDE_PANEL, (*(axis.extent for axis in self.axes), self.width), DType.F32, Scope.SHARED)

    @property
    def place(self) -> Load:
        """What tiles read instead of `panel`."""
        return Load(WIDE_PANEL, self.panel.index[-len(self.axes) - 1 :], DType.F32)

    def read_by(self, product: Product) -> Product:
        """The product with its panel read here."""
        stage = product.fused_stage.stage
        body = transform(stage.body, lambda x: self.place if x != self.panel and narrow_source(x) == self.panel else x)
        fused_stage = replace(product.fused_stage, stage=replace(stage, body=body))
        return replace(product, fused_stage=fused_stage, panel=self.place)

    def fill(self, vector: str, tile: Mapping[str, Expr], lanes: int) -> Stmt:
        """Fill the memory. `tile` are the numbers of the tiles; but for the axis along the lanes they are indices."""
        places = dict(tile) | {vector + TILE: tile[vector]}
        panel = replace(self.panel, index=tuple(substitute(at, places) for at in self.panel.index))
        steps: list[Stmt] = []
        for base in range(0, self.width, lanes):
            value, *at = (vectorize(x, vector + INNER, const(base), lanes) for x in (panel, *self.place.index))
            steps.append(Store(WIDE_PANEL, tuple(at), op("cast", value, dtype=DType.F32)))
        fill: Stmt = Block(tuple(steps))
        for axis in reversed(self.axes):
            fill = For(axis.name, axis.extent, fill)
        return fill
