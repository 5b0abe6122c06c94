"""Blocks: the loops of a chain, block by block of the rows of its last link.

    parallel chunk                     some blocks of rows of the output, of one place along the outer axes
      panels that are no constants     laid out as the register tiles read them
      rows before the first block      where windows slide: what it shares with the block before it
      block
        link 0 ... link n              each the rows that the next ones need, in memory of its own; the last, the output

Links that go along the rows (softmax) run together, in the passes of `rows`: what passes between them is a row or less.
Where windows overlap, a tensor is kept as a ring of rows: each block adds those that the one before did not need. Rows
of padding are filled, its columns once a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tunewright.codegen.expr import Const, Expr, Load, Var, const, op, substitute, transform
from tunewright.codegen.index import linear
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Packing, Scope, Stmt, replaced
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.digits import digits
from ..nests.loops import lower
from ..nests.nest import CALLER, Nest
from ..nests.phases import crossing, params, plain_nest
from ..nests.pieces import Piece
from ..nests.tile import INNER, TILE
from ..products.product import Product, packed
from ..rows.passes import GROUP, Passes
from .chain import ROW
from .plan import Plan, RowLinks

STEP = "step"
"""The variable for the number of a block (written in terms of loops in the end)."""


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
        made = (link.tensor.name for link in self.links[:-1])
        self.makers = {name: number for number, name in enumerate(made) if name not in plan.within_rows}

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
        body = _decided(self._chunk(number * self.each, values))
        return For("chunk", count, body, LoopKind.PARALLEL) if count > 1 else body

    def _chunk(self, first: Expr, outer: Mapping[str, Expr]) -> Stmt:
        """One chunk, given the number of its first block and its place along the outer axes."""
        steps = [replaced(stmt, outer) for _, stmt in self.panels]
        steps += [self._columns(n) for n, link in enumerate(self.links) if link.padding]
        if self.sliding:
            steps += [replaced(self._before(n), {**outer, STEP: first}) for n in range(len(self.links))]
        step = first + Var("block") if self.each > 1 else first
        block = replaced(self._block(), {**outer, STEP: step})
        body: Stmt = Block((*steps, For("block", self.each, block) if self.each > 1 else block))
        for local in [*map(self._local, self.makers.values()), *(b for b, _ in self.panels)]:
            body = Alloc(local, body)
        return body

    def _block(self) -> Stmt:
        """All links, for the block with the number STEP."""
        if self.chain.slides:
            return Block(tuple(self._rows(n, *self._part(n)) for n in range(len(self.links))))
        whole, rest = divmod(self.chain.rows, self.block)
        parts = [self._plain_rows(self.block)]
        tests = [op("lt", Var(STEP), whole)]
        if rest:
            parts.append(self._plain_rows(rest))
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

    def _plain_rows(self, count: int) -> Stmt:
        """A block of a chain where row p of each link comes from row p of those before."""
        start = Var(STEP) * self.block
        starting = {together.first: together for together in self.plan.row_links}
        made: list[Stmt] = []
        number = 0
        while number < len(self.links):
            together = starting.get(number)
            if together:
                made.append(self._passes(together, start, count))
            else:
                made.append(self._nest(number, self._cut(number, start, count)))
            number = together.stop if together else number + 1
        return Block(tuple(made))

    def _passes(self, together: RowLinks, start: Expr, count: int) -> Stmt:
        """Links along the rows, for `count` rows from `start` on."""
        plan, group = together.plan, self.values["rows"]
        outer = {axis.name for axis in self.chain.outer}
        cut = replace(
            plan,
            steps=tuple(replace(step, piece=self._part_of(step.piece, start, count)) for step in plan.steps),
            rows=tuple(Axis(a.name, count) if a.name == ROW else a for a in plan.rows if a.name not in outer),
        )
        body = Passes(cut, self.values["round"], group, ahead=0).lower()
        groups = -(-cut.row_count // group)
        return For(GROUP, groups, body) if groups > 1 else replaced(body, {GROUP: const(0)})

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
        """A link for `count` rows from `start` on, without the outer axes, reading and writing local memory."""
        piece = self.products[number].piece if number in self.products else self.links[number].piece
        return self._part_of(piece, start, count)

    def _part_of(self, piece: Piece, start: Expr, count: int) -> Piece:
        """What `_cut` does, for the piece of a link."""
        stage = piece.stage
        row = {ROW: start + Var(ROW)}
        outer = {axis.name for axis in self.chain.outer}
        axes = tuple(Axis(a.name, count) if a.name == ROW else a for a in stage.axes if a.name not in outer)
        index = tuple(substitute(e, row) for e in piece.index)
        if piece.output in self.makers:
            index = self._local_index(self.makers[piece.output], index)

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
            order = tuple(a for a in (*found.batch, *found.columns, found.vector, *found.rows) if a not in outer)
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
        """A product reading its panel where it is, packed beforehand, or copied for each chunk."""
        found = self.plan.product(number)
        width = min(
            self.values[f"vectors_{number}"] * self.lanes, -(-self.plan.width(number) // self.lanes) * self.lanes
        )
        tensor = self.task.tensor(found.panel.tensor)
        if self.plan.in_place(number):
            return found
        if number in self.plan.packed:
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
