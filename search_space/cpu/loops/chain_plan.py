"""The kinds of a chain's links (products, windows, row steps), and the memory of its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import free_vars
from tunewright.graph.task import Task

from ...patterns.chain import ROW, Chain, Link, match_chain
from ...patterns.product import Product, is_packable
from ...patterns.rows import RowPlan as RowPlan
from ...patterns.rows import plan_rows, row_group
from ...patterns.vector_axis import is_contiguous, vector_axes
from ...space import Columns

TAPS = 64
"""Most elements of a window whose loops are written out."""


@dataclass(frozen=True, slots=True)
class RowLinks:
    """Links `first` .. `stop` - 1, which run together along the rows."""

    first: int
    stop: int
    plan: RowPlan


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """A chain, with the kinds of its links."""

    chain: Chain
    lanes: int
    products: tuple[int, ...]
    windows: tuple[int, ...]  # links that reduce a window, channels along the lanes
    packed_products: frozenset[int]  # products whose panels are packed when a model is compiled
    row_links: tuple[RowLinks, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        return self.chain.links

    @property
    def outer(self) -> int:
        """Indices along the outer axes."""
        return prod(axis.extent for axis in self.chain.outer)

    def product(self, number: int) -> Product:
        product = self.links[number].product
        assert product is not None
        return product

    @property
    def within_rows(self) -> frozenset[str]:
        """The tensors between links that run together, of which one row at a time is enough."""
        return frozenset(name for links in self.row_links for name in links.plan.local)

    def is_in_place(self, number: int) -> bool:
        """Whether a product's panel is read where it is."""
        product = self.product(number)
        return number not in self.packed_products and is_contiguous(product.panel.index, product.vector)

    def width(self, number: int) -> int:
        """Extent of a product along the lanes."""
        return self.product(number).extent(self.product(number).vector)

    def tile_axis(self, number: int) -> str:
        """The axis of a product that its register tile has beside the lanes; "" for none."""
        fixed = {axis.name for axis in self.chain.outer} | ({ROW} if self.chain.is_sliding else set())
        axes = [a for a in self.product(number).rows if a not in fixed]
        return axes[-1] if axes else ""

    def tile_extent(self, number: int) -> int:
        """Extent of that axis."""
        axis = self.tile_axis(number)
        return self.product(number).extent(axis) if axis else 1

    @property
    def across(self) -> int:
        """Extent of the axis that the register tile of a window has beside the lanes."""
        inner = [self.links[n] for n in self.windows if len(self.links[n].inner) > 1]
        return max((link.tensor.shape[-2] for link in inner), default=1)

    @property
    def taps(self) -> int:
        """Elements of the largest window."""
        return max(prod(a.extent for a in self.links[n].fused_stage.stage.reduce) for n in self.windows)

    def even_blocks(self) -> set[int]:
        """Blocks that share the rows evenly."""
        return {-(-self.chain.rows // n) for n in (1, 2, 3, 4)}

    def local_bytes(self, block: NDArray[np.int64], chunks: NDArray[np.int64], columns: Columns) -> NDArray[np.int64]:
        """Memory of a chunk: rows of every link but the last, and panels."""
        spans = self.chain.spans(block)
        sliding = self.is_sliding(block, chunks)
        total = block * 0
        for links in self.row_links:
            total = total + columns["rows"] * links.plan.live_bytes
        for number, (link, span) in enumerate(zip(self.links[:-1], spans, strict=False)):
            if link.tensor.name in self.within_rows:
                continue
            row_bytes = prod(link.tensor.shape[d] for d in link.inner) * link.tensor.dtype.size_bytes
            total = total + row_bytes * np.where(
                sliding, self.chain.line_buffer_rows(number, spans), span.end - span.first
            )
        for number in self.products:
            product = self.product(number)
            if number not in self.packed_products and not self.is_in_place(number):
                width = columns.get(f"vectors_{number}", block * 0 + 1) * self.lanes
                depth = prod(product.extent(a) for a in self.panel_axes(number))
                total = total + 4 * depth * width * -(-self.width(number) // width)
        return total

    def is_sliding(self, block: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether blocks follow each other in a chunk and share rows."""
        if not any(np.any(span.overlap > 0) for span in self.chain.spans(block)):
            return np.zeros(np.shape(block), np.bool_)
        blocks = -(-self.chain.rows // block)
        return np.asarray(-(-blocks // chunks) > 1)

    def panel_axes(self, number: int) -> list[str]:
        """The axes of a panel beside the lanes, that of its reduction last."""
        product = self.product(number)
        outer = {axis.name for axis in self.chain.outer}
        reduction = [a.name for a in product.fused_stage.stage.reduce]
        names = [n for n in free_vars(product.panel) if n != product.vector and n not in outer]
        return [n for n in names if n not in reduction] + [n for n in reduction if n in names]


@lru_cache(maxsize=256)
def plan_chain(task: Task, lanes: int) -> ChainPlan | None:
    """The task as a chain of several reductions, most of the work products or windows; None if it isn't one."""
    chain = match_chain(task)
    if chain is None or sum(bool(link.fused_stage.stage.reduce) for link in chain.links) < 2:
        return None
    products = {n: link.product for n, link in enumerate(chain.links) if link.product}
    windows = tuple(n for n, link in enumerate(chain.links) if _is_window(link, lanes))
    largest = max(range(len(chain.links)), key=lambda n: chain.links[n].fused_stage.stage.points)
    narrow = any(2 * product.extent(product.vector) < lanes for product in products.values())
    if not products or narrow or largest not in {*products, *windows}:
        return None
    packed = frozenset(number for number, product in products.items() if is_packable(task, product.panel))
    return ChainPlan(chain, lanes, tuple(products), windows, packed, tuple(_row_links(task, chain, lanes)))


def _row_links(task: Task, chain: Chain, lanes: int) -> Iterator[RowLinks]:
    """The links of a chain that run together along its rows, as many as can be each time; products run alone."""
    start = 0
    while start < len(chain.links) and not chain.is_sliding:
        candidates = (_along_rows(task, chain, (start, stop), lanes) for stop in range(len(chain.links), start + 1, -1))
        row_links = next((links for links in candidates if links), None)
        start = row_links.stop if row_links else start + 1
        if row_links:
            yield row_links


def _along_rows(task: Task, chain: Chain, span: tuple[int, int], lanes: int) -> RowLinks | None:
    """Some links together, if they are steps along the rows of the chain."""
    if any(link.product for link in chain.links[slice(*span)]):
        return None  # products have register tiles of their own
    parts = [link.fused_stage for link in chain.links]
    group = row_group(task, parts, *span)
    plan = plan_rows(group, lanes) if group else None
    if plan is None:
        return None
    names = {row.name: axis.name for row, axis in zip(plan.rows, parts[span[0]].stage.axes, strict=False)}
    if ROW not in names.values():
        return None
    named = tuple(replace(step, fused_stage=step.fused_stage.rename_axes(names)) for step in plan.steps)
    rows = tuple(replace(axis, name=names[axis.name]) for axis in plan.rows)
    lends = span[1] < len(parts)  # blocks of the last link lie somewhere in the output, others in memory of their own
    return RowLinks(*span, replace(plan, steps=named, rows=rows, may_use_output=lends))


def _is_window(link: Link, lanes: int) -> bool:
    stage = link.fused_stage.stage
    axes = vector_axes(link.fused_stage, lanes)
    few = prod(a.extent for a in stage.reduce) <= TAPS
    return not link.product and bool(stage.reduce) and few and axes[:1] in [[a.name] for a in stage.axes]
