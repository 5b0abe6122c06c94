"""Plan: which links of a chain are what: products, windows, steps along the rows; and the memory that blocks take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import free_vars
from tunewright.graph.task import Task

from ..nests.phases import contiguous, vector_axes
from ..products.product import Product, packable
from ..rows.rows import row_group
from ..rows.steps import Plan as RowPlan
from ..rows.steps import planned
from ..space import Columns
from .chain import ROW, Chain, Link, chain

TAPS = 64
"""Most places of a window whose loops are written out."""


@dataclass(frozen=True, slots=True)
class RowLinks:
    """Links that run together along the rows, as `plan` has them: the first, and that behind the last."""

    first: int
    stop: int
    plan: RowPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """A chain, and which of its links are what."""

    chain: Chain
    lanes: int
    products: tuple[int, ...]
    windows: tuple[int, ...]  # links that reduce a window, channels along the lanes
    packed: frozenset[int]  # products whose panels are packed when a model is compiled
    row_links: tuple[RowLinks, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        return self.chain.links

    @property
    def outer(self) -> int:
        """Places along the outer axes."""
        return prod(axis.extent for axis in self.chain.outer)

    def product(self, number: int) -> Product:
        found = self.links[number].product
        assert found is not None
        return found

    @property
    def within_rows(self) -> frozenset[str]:
        """Tensors of which one row at a time is enough: what links that run together pass on."""
        return frozenset(name for together in self.row_links for name in together.plan.local)

    def in_place(self, number: int) -> bool:
        """Whether a product's panel is read where it is."""
        found = self.product(number)
        return number not in self.packed and contiguous(found.panel.index, found.vector)

    def width(self, number: int) -> int:
        """Extent of a product along the lanes."""
        return self.product(number).extent(self.product(number).vector)

    def tiled_axis(self, number: int) -> str:
        """The axis of a product that its register tile has beside the lanes; "" for none."""
        fixed = {axis.name for axis in self.chain.outer} | ({ROW} if self.chain.slides else set())
        axes = [a for a in self.product(number).rows if a not in fixed]
        return axes[-1] if axes else ""

    def tiled(self, number: int) -> int:
        """Extent of that axis."""
        axis = self.tiled_axis(number)
        return self.product(number).extent(axis) if axis else 1

    @property
    def across(self) -> int:
        """Extent of the axis that the register tile of a window has beside the lanes."""
        inner = [self.links[n] for n in self.windows if len(self.links[n].inner) > 1]
        return max((link.tensor.shape[-2] for link in inner), default=1)

    @property
    def taps(self) -> int:
        """Places of the largest window."""
        return max(prod(a.extent for a in self.links[n].piece.stage.reduce) for n in self.windows)

    def even_blocks(self) -> set[int]:
        """Blocks that share the rows evenly."""
        return {-(-self.chain.rows // n) for n in (1, 2, 3, 4)}

    def local_bytes(self, block: NDArray[np.int64], chunks: NDArray[np.int64], columns: Columns) -> NDArray[np.int64]:
        """Memory of a chunk: rows of every link but the last, and panels."""
        spans = self.chain.spans(block)
        sliding = self.sliding(block, chunks)
        total = block * 0
        for together in self.row_links:
            total = total + columns["rows"] * together.plan.handed_bytes
        for number, (link, span) in enumerate(zip(self.links[:-1], spans, strict=False)):
            if link.tensor.name in self.within_rows:
                continue
            row_bytes = prod(link.tensor.shape[d] for d in link.inner) * link.tensor.dtype.size_bytes
            total = total + row_bytes * np.where(sliding, self.chain.ring(number, spans), span.end - span.first)
        for number in self.products:
            found = self.product(number)
            if number not in self.packed and not self.in_place(number):
                width = columns.get(f"vectors_{number}", block * 0 + 1) * self.lanes
                depth = prod(found.extent(a) for a in self.panel_axes(number))
                total = total + 4 * depth * width * -(-self.width(number) // width)
        return total

    def sliding(self, block: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether blocks follow each other in a chunk and share rows."""
        if not any(np.any(span.kept > 0) for span in self.chain.spans(block)):
            return np.zeros(np.shape(block), np.bool_)
        blocks = -(-self.chain.rows // block)
        return np.asarray(-(-blocks // chunks) > 1)

    def panel_axes(self, number: int) -> list[str]:
        """The axes of a panel beside the lanes, that of its reduction last."""
        found = self.product(number)
        outer = {axis.name for axis in self.chain.outer}
        reduction = [a.name for a in found.piece.stage.reduce]
        names = [n for n in free_vars(found.panel) if n != found.vector and n not in outer]
        return [n for n in names if n not in reduction] + [n for n in reduction if n in names]


@lru_cache(maxsize=256)
def plan_of(task: Task, lanes: int) -> Plan | None:
    """The task as a chain of several reductions, most of the work products or windows; None if it isn't one."""
    found = chain(task)
    if found is None or sum(bool(link.piece.stage.reduce) for link in found.links) < 2:
        return None
    products = {n: link.product for n, link in enumerate(found.links) if link.product}
    windows = tuple(n for n, link in enumerate(found.links) if _is_window(link, lanes))
    largest = max(range(len(found.links)), key=lambda n: found.links[n].piece.stage.points)
    narrow = any(2 * way.extent(way.vector) < lanes for way in products.values())
    if not products or narrow or largest not in {*products, *windows}:
        return None
    packed = frozenset(number for number, way in products.items() if packable(task, way.panel))
    return Plan(found, lanes, tuple(products), windows, packed, tuple(_row_links(task, found, lanes)))


def _row_links(task: Task, found: Chain, lanes: int) -> Iterator[RowLinks]:
    """The links of a chain that run together along its rows, as many as can be each time; products run alone."""
    start = 0
    while start < len(found.links) and not found.slides:
        ways = (_along_rows(task, found, (start, stop), lanes) for stop in range(len(found.links), start + 1, -1))
        together = next((way for way in ways if way), None)
        start = together.stop if together else start + 1
        if together:
            yield together


def _along_rows(task: Task, found: Chain, span: tuple[int, int], lanes: int) -> RowLinks | None:
    """Some links together, if they are steps along the rows of the chain."""
    if any(link.product for link in found.links[slice(*span)]):
        return None  # products have register tiles of their own
    parts = [link.piece for link in found.links]
    group = row_group(task, parts, *span)
    plan = planned(group, lanes) if group else None
    if plan is None:
        return None
    names = {row.name: axis.name for row, axis in zip(plan.rows, parts[span[0]].stage.axes, strict=False)}
    if ROW not in names.values():
        return None
    named = tuple(replace(step, piece=step.piece.renamed(names)) for step in plan.steps)
    rows = tuple(replace(axis, name=names[axis.name]) for axis in plan.rows)
    lends = span[1] < len(parts)  # blocks of the last link lie somewhere in the output, others in memory of their own
    return RowLinks(*span, replace(plan, steps=named, rows=rows, lends=lends))


def _is_window(link: Link, lanes: int) -> bool:
    stage = link.piece.stage
    axes = vector_axes(link.piece, lanes)
    few = prod(a.extent for a in stage.reduce) <= TAPS
    return not link.product and bool(stage.reduce) and few and axes[:1] in [[a.name] for a in stage.axes]
