"""Blocks: the loops of a chain, block by block of the rows of its last link.

    parallel chunk                     some blocks of rows of the output, of one place along the outer axes
      panels that are no constants     laid out as the register tiles read them
      rows before the first block      where windows slide: what it shares with the block before it
      block
        link 0 ... link n              each the rows that the next ones need, in memory of its own; the last, the output

Where windows overlap, a tensor is kept as a ring of rows: each block adds those that the one before did not need. Rows
of padding are filled, its columns once a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Const, Expr, Load, Var, const, free_vars, op, substitute, transform
from tunewright.codegen.index import linear
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Packing, Scope, Stmt, replaced
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.digits import digits
from ..nests.loops import lower
from ..nests.nest import Nest
from ..nests.phases import crossing, params, plain_nest, vector_axes
from ..nests.pieces import Piece
from ..nests.tile import INNER, TILE
from ..products.product import Product, packed
from ..space import Columns
from .chain import ROW, Chain, Link, chain

TAPS = 64
"""Most places of a window whose loops are written out."""

CALLER = frozenset({"chunk"})
"""Loops that are not the nest's: so it has no parallel one."""

FIRST, STEP = "first", "step"
"""Variables: the number of a chunk's first block, that of a block (written in terms of loops in the end)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A chain, and which of its links are what."""

    chain: Chain
    lanes: int
    products: tuple[int, ...]
    windows: tuple[int, ...]  # links that reduce a window, channels along the lanes
    constants: frozenset[str]  # tensors known when a model is compiled

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

    def width(self, number: int) -> int:
        """Extent of a product along the lanes."""
        return self.product(number).extent(self.product(number).vector)

    def tiled_axis(self, number: int) -> str:
        """The axis of a product that its register tile has beside the lanes; "" for none."""
        axes = [a for a in self.product(number).rows if a != ROW or not self.chain.slides]
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
        for number, (link, span) in enumerate(zip(self.links[:-1], spans, strict=False)):
            row_bytes = prod(link.tensor.shape[d] for d in link.inner) * link.tensor.dtype.size_bytes
            total = total + row_bytes * np.where(sliding, self.chain.ring(number, spans), span.end - span.first)
        for number in self.products:
            found = self.product(number)
            if not self.constant(number):
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

    def constant(self, number: int) -> bool:
        """Whether a product's panel is packed when a model is compiled."""
        panel = self.product(number).panel
        names = [e.name for e in panel.index if isinstance(e, Var)]
        simple = len(names) == len(set(names)) and all(isinstance(e, Var | Const) for e in panel.index)
        uses = sum(x.tensor == panel.tensor for link in self.links for x in link.piece.reads)
        return simple and uses == 1 and panel.tensor in self.constants

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
    constants = frozenset(t.name for t in task.inputs if t.constant)
    return Plan(found, lanes, tuple(products), windows, constants)


def _is_window(link: Link, lanes: int) -> bool:
    stage = link.piece.stage
    axes = vector_axes(link.piece, lanes)
    few = prod(a.extent for a in stage.reduce) <= TAPS
    return not link.product and bool(stage.reduce) and few and axes[:1] in [[a.name] for a in stage.axes]


class Blocks:
    """The loops of one schedule."""

    def __init__(self, task: Task, plan: Plan, values: Mapping[str, int], target: Target) -> None:
        self.task, self.plan, self.values, self.target = task, plan, values, target
        self.chain, self.links, self.lanes = plan.chain, plan.links, plan.lanes
        self.block = values["block"]
        self.blocks = -(-self.chain.rows // self.block)
        self.each = -(-self.blocks // values["chunks"])  # blocks of a chunk
        self.spans = self.chain.spans(self.block)
        self.sliding = bool(plan.sliding(np.array(self.block), np.array(values["chunks"])))
        self.packings: dict[str, Packing] = {}
        self.panels: list[tuple[Buffer, Stmt]] = []
        self.products = {number: self._panel(number) for number in plan.products}
        self.makers = {link.tensor.name: number for number, link in enumerate(self.links[:-1])}

    def kernel(self) -> Kernel:
        return Kernel(params(self.task, self.packings), (), Block((self._chunks(),)), self.packings)

    # Loops

    def _chunks(self) -> Stmt:
        """The parallel loop: the blocks shared out, for each place along the outer axes."""
        along = self.values["chunks"]
        count = along * self.plan.outer
        chunk: Expr = Var("chunk") if count > 1 else const(0)
        *outer, number = digits(chunk, [*(axis.extent for axis in self.chain.outer), along])
        values = dict(zip((axis.name for axis in self.chain.outer), outer, strict=True))
        body = _decided(replaced(self._chunk(), values | {FIRST: number * self.each}))
        return For("chunk", count, body, LoopKind.PARALLEL) if count > 1 else body

    def _chunk(self) -> Stmt:
        steps = [stmt for _, stmt in self.panels]
        steps += [self._columns(n) for n, link in enumerate(self.links) if link.padding]
        if self.sliding:
            steps += [replaced(self._before(n), {STEP: Var(FIRST)}) for n in range(len(self.links))]
        step = Var(FIRST) + Var("block") if self.each > 1 else Var(FIRST)
        block = replaced(self._block(), {STEP: step})
        body: Stmt = Block((*steps, For("block", self.each, block) if self.each > 1 else block))
        for local in [*(self._local(n) for n in range(len(self.links) - 1)), *(b for b, _ in self.panels)]:
            body = Alloc(local, body)
        return body

    def _block(self) -> Stmt:
        """All links, for the block with the number STEP."""
        if self.chain.slides:
            return Block(tuple(self._rows(n, *self._part(n)) for n in range(len(self.links))))
        whole, rest = divmod(self.chain.rows, self.block)
        parts = [Block(tuple(self._plain_rows(n, self.block) for n in range(len(self.links))))]
        tests = [op("lt", Var(STEP), whole)]
        if rest:
            parts.append(Block(tuple(self._plain_rows(n, rest) for n in range(len(self.links)))))
            tests.append(op("eq", Var(STEP), whole))
        always = self.each * self.values["chunks"] == whole
        return parts[0] if always else Block(tuple(If(t, p) for t, p in zip(tests, parts, strict=True)))

    def _part(self, number: int) -> tuple[int, int]:
        """The first row that a link makes in block 0, without those of the block before, and how many it makes."""
        span = self.spans[number]
        first = int(span.first) + (max(int(span.kept), 0) if self.sliding else 0)
        return first, int(span.end) - first

    def _before(self, number: int) -> Stmt:
        """What the first block of a chunk finds done."""
        span = self.spans[number]
        return self._rows(number, int(span.first), int(span.kept)) if span.kept > 0 else Block(())

    # Memory

    def _local(self, number: int) -> Buffer:
        link = self.links[number]
        shape = (self._kept(number), *(link.tensor.shape[d] for d in link.inner))
        return Buffer(link.tensor.name, shape, link.tensor.dtype, Scope.SHARED)

    def _kept(self, number: int) -> int:
        """Rows of a link in memory."""
        span = self.spans[number]
        return int(self.chain.ring(number, self.spans)) if self.sliding else int(span.end - span.first)

    def _place(self, number: int, row: Expr) -> Expr:
        """Where in memory a row of a link is."""
        span = self.spans[number]
        if self.sliding and span.kept > 0:
            kept = self._kept(number)
            lift = -(-max(-int(span.first), 0) // kept) * kept  # so that no row is less than 0
            return _tidy(row + lift) % kept
        first, _ = self._part(number)
        return _tidy(row - Var(STEP) * int(span.stride) - first)

    def _local_index(self, number: int, index: Sequence[Expr]) -> tuple[Expr, ...]:
        link = self.links[number]
        return (self._place(number, index[link.row]), *(index[d] for d in link.inner))

    # Links

    def _plain_rows(self, number: int, count: int) -> Stmt:
        """A block of a link in a chain where row p of each comes from row p of those before."""
        return self._nest(number, self._cut(number, Var(STEP) * self.block, count))

    def _rows(self, number: int, first: int, count: int) -> Stmt:
        """Rows of a link from STEP * stride + first on, padding counted, as far as there are any."""
        link, stride = self.links[number], int(self.spans[number].stride)
        last = self.each * self.values["chunks"] - 1  # number of a block
        start = Var(STEP) * stride + (first - link.front)
        low, high = first - link.front, last * stride + first - link.front + count
        if not last and (low < 0 or high > link.rows):  # known now: there is one block
            inside = range(max(low, 0), max(min(high, link.rows), 0))
            outside = [row for row in range(low, high) if row not in inside and link.padding]
            filled = [self._fill_rows(number, const(row + link.front)) for row in outside]
            return Block((*filled, self._nest(number, self._cut(number, const(inside.start), len(inside)))))
        made = self._nest(number, self._cut(number, start, count))
        if low >= 0 and high <= link.rows:
            return made
        made = _guarded(made, count, lambda row: _within(_tidy(start + row), low, high, link.rows))
        if not link.padding:
            return made
        row = _tidy(start + Var("filled"))
        missing = op("not", _within(row, low, high, link.rows))
        fill = If(missing, self._fill_rows(number, row + link.front))
        return Block((For("filled", count, fill), made))

    def _cut(self, number: int, start: Expr, count: int) -> Piece:
        """The piece for `count` rows from `start` on, without the outer axes, reading and writing local memory."""
        link = self.links[number]
        piece = self.products[number].piece if number in self.products else link.piece
        stage = piece.stage
        row = {ROW: start + Var(ROW)}
        outer = {axis.name for axis in self.chain.outer}
        axes = tuple(Axis(a.name, count) if a.name == ROW else a for a in stage.axes if a.name not in outer)
        index = tuple(substitute(e, row) for e in piece.index)
        if number < len(self.links) - 1:
            index = self._local_index(number, index)

        def local(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.tensor == stage.output:
                return node
            maker = self.makers.get(node.tensor)
            if maker is None:
                return replace(node, index=tuple(map(_tidy, node.index)))
            return replace(node, index=self._local_index(maker, node.index))

        body, finish = (transform(substitute(e, row), local) for e in (stage.body, piece.finish))
        own = tuple(Var(a.name) for a in axes) or (const(0),)
        return Piece(Stage(stage.output, axes, body, stage.reduce, stage.combiner, own), piece.output, index, finish)

    def _nest(self, number: int, piece: Piece) -> Stmt:
        whole = {a.name: 0 for a in piece.stage.axes}
        if number in self.products:
            found = self.plan.product(number)
            tile = {found.vector: self.values[f"vectors_{number}"] * self.lanes}
            axis = self.plan.tiled_axis(number)
            if axis:
                tile[axis] = self.values[f"tile_{number}"]
            outer = {a.name for a in self.chain.outer}
            order = (*(a for a in found.batch if a not in outer), *found.columns, found.vector, *found.rows)
            unroll = {piece.stage.reduce[-1].name: self.values["unroll"]}
            return lower(Nest(piece, self.lanes, found.vector, tile, whole, unroll, order, fixed=CALLER))
        nest = replace(plain_nest(piece, self.target, CALLER), block=whole)
        if number in self.plan.windows:
            others = [a.name for a in piece.stage.axes if a.name not in (ROW, nest.vector)]
            tile = {nest.vector: self.values["vectors"] * self.lanes}
            tile |= {others[-1]: self.values["tile"]} if others else {}
            unroll = {a.name: a.extent for a in piece.stage.reduce}
            nest = replace(
                nest, tile=tile, unroll=unroll, order=(nest.vector, *(a for a in nest.spatial if a != nest.vector))
            )
        return lower(nest)

    def _panel(self, number: int) -> Product:
        """A product reading its panel in the best layout there is: packed beforehand, or copied for each chunk."""
        found = self.plan.product(number)
        width = min(
            self.values[f"vectors_{number}"] * self.lanes, -(-self.plan.width(number) // self.lanes) * self.lanes
        )
        tensor = self.task.tensor(found.panel.tensor)
        if self.plan.constant(number):
            packing, index = packed(found, tensor, width)
            self.packings[tensor.name] = packing
            return found.reading(Load(tensor.name, index, tensor.dtype))
        names = self.plan.panel_axes(number)
        index = (Var(found.vector + TILE), *map(Var, names), Var(found.vector + INNER))
        shape = (-(-self.plan.width(number) // width), *map(found.extent, names), width)
        local = Buffer(f"panel{number}", shape, tensor.dtype, Scope.SHARED)
        place = Load(local.name, index, tensor.dtype)
        axes = tuple(Axis(name, found.extent(name)) for name in (*names, found.vector))
        piece = Piece(Stage(local.name, axes, found.panel), local.name, index, place)
        crossed = crossing(piece, found.vector)
        tile = {found.vector: width} | ({crossed: self.lanes} if crossed else {})
        block = {a.name: 0 for a in axes}
        nest = Nest(piece, self.lanes, found.vector, tile, block, {}, (found.vector, *names), CALLER)
        self.panels.append((local, lower(nest)))
        return found.reading(place)

    # Padding

    def _fill_rows(self, number: int, row: Expr) -> Stmt:
        """A row of padding."""
        link = self.links[number]
        axes = [Axis(f"d{d}", link.tensor.shape[d]) for d in link.inner]
        return self._filled(number, (self._place(number, row), *(Var(a.name) for a in axes)), axes)

    def _columns(self, number: int) -> Stmt:
        """Padding beside the rows, in all of a link's memory."""
        link, padding = self.links[number], self.links[number].padding
        assert padding is not None
        steps: list[Stmt] = []
        for along in link.inner:
            inside = padding.inside[along]
            for outside in (range(inside.start), range(inside.stop, link.tensor.shape[along])):
                extents = {d: len(outside) if d == along else link.tensor.shape[d] for d in link.inner}
                axes = [Axis(ROW, self._kept(number)), *(Axis(f"d{d}", n) for d, n in extents.items())]
                places = [Var(f"d{d}") + (outside.start if d == along else 0) for d in link.inner]
                if outside:
                    steps.append(self._filled(number, (Var(ROW), *places), axes))
        return Block(tuple(steps))

    def _filled(self, number: int, index: tuple[Expr, ...], axes: Sequence[Axis]) -> Stmt:
        link = self.links[number]
        assert link.padding is not None
        name = link.tensor.name
        stage = Stage(name, tuple(axes), link.padding.fill)
        piece = Piece(stage, name, index, Load(name, stage.index, link.tensor.dtype))
        return lower(replace(plain_nest(piece, self.target, CALLER), block={a.name: 0 for a in axes}))


def _tidy(place: Expr) -> Expr:
    """An index with what cancels taken out."""
    form = linear(place)
    return form.expr() if form is not None else place


def _within(row: Expr, low: int, high: int, rows: int) -> Expr:
    """Whether a row, somewhere in low .. high - 1, is one that there is."""
    test: Expr = const(True)
    if low < 0:
        test = op("le", const(0), row)
    if high > rows:
        test = op("and", test, op("lt", row, rows))
    return test


def _decided(stmt: Stmt) -> Stmt:
    """The statement without conditions that always hold, and without what never happens."""
    match stmt:
        case If(Const(value), then):
            return _decided(then) if value else Block(())
        case If(condition, then):
            return If(condition, _decided(then))
        case Block(body):
            return Block(tuple(map(_decided, body)))
        case For(var, extent, body, kind):
            return For(var, extent, _decided(body), kind)
        case Alloc(local, body):
            return Alloc(local, _decided(body))
    return stmt


def _guarded(stmt: Stmt, count: int, test: Callable[[Expr], Expr]) -> Stmt:
    """Loops over rows, one by one, that leave out rows for which a test fails."""
    if count == 1:
        return If(test(const(0)), stmt)

    def go(inner: Stmt) -> Stmt:
        match inner:
            case For(var, extent, body, kind) if var == ROW + TILE:
                return For(var, extent, If(test(Var(var)), body), kind)
            case For(var, extent, body, kind):
                return For(var, extent, go(body), kind)
            case Block(body):
                return Block(tuple(map(go, body)))
            case If(condition, body):
                return If(condition, go(body))
            case Alloc(local, body):
                return Alloc(local, go(body))
        return inner

    return go(stmt)
