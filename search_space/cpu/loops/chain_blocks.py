"""The loops of a chain, block by block of the rows of its last link.

    parallel chunk                     some blocks of rows of the output, at one index along the outer axes
      panels that are no constants     laid out as the register tiles read them
      rows before the first block      where windows slide: what it shares with the block before it
      block
        link 0 ... link n              each the rows that the next ones need, in memory of its own; the last, the output

Links that go along the rows (softmax) run together, in the passes of `rows`: what passes between them is a row or less.
Where windows overlap, a tensor is kept as a line buffer: each block adds those that the one before did not need. Rows
of padding are filled, its columns once a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tunewright.codegen.expr.expr import Const, Expr, Load, Var, const, op, substitute, transform
from tunewright.codegen.expr.index import linear
from tunewright.codegen.ir.ir import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Kernel,
    Packing,
    Scope,
    Stmt,
    replace_variables,
)
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ...axes import IndexRange
from ...buffers import allocate, params
from ...patterns.chain import ROW
from ...patterns.fused_stage import FusedStage
from ...patterns.product import Product, pack_panel
from ...patterns.vector_axis import crossing_axis
from ...registers import INNER, TILE
from .chain_plan import ChainPlan, RowLinks
from .chunks import chunk_indices, chunk_loop
from .lower import lower, plain_nest
from .nest import CALLER, Nest
from .row_passes import GROUP, RowPasses

STEP = "step"
"""The variable of a block's number, which is replaced by the variables of loops."""


class ChainBlocks:
    """The loops of one schedule."""

    def __init__(self, task: Task, plan: ChainPlan, values: Mapping[str, int], target: Target) -> None:
        self.task, self.plan, self.values, self.target = task, plan, values, target
        self.chain, self.links, self.lanes = plan.chain, plan.links, plan.lanes
        self.block = values["block"]
        self.blocks = -(-self.chain.rows // self.block)
        self.blocks_per_chunk = -(-self.blocks // values["chunks"])  # blocks of a chunk
        self.spans = self.chain.spans(self.block)
        self.is_sliding = bool(plan.is_sliding(np.array(self.block), np.array(values["chunks"])))
        self.packings: dict[str, Packing] = {}
        self.panels: list[tuple[Buffer, Stmt]] = []
        self.products = {number: self._panel(number) for number in plan.products}
        names = (link.tensor.name for link in self.links[:-1])
        self.makers = {name: number for number, name in enumerate(names) if name not in plan.within_rows}

    def kernel(self) -> Kernel:
        return Kernel(params(self.task, self.packings), (), Block((self._chunks(),)), self.packings)

    # Loops

    def _chunks(self) -> Stmt:
        """The parallel loop: the blocks shared out, for each index along the outer axes."""
        along = self.values["chunks"]
        count = along * self.plan.outer
        *outer, number = chunk_indices([*(axis.extent for axis in self.chain.outer), along])
        values = dict(zip((axis.name for axis in self.chain.outer), outer, strict=True))
        body = _fold_conditions(self._chunk(number * self.blocks_per_chunk, values))
        return chunk_loop(count, body)

    def _chunk(self, first: Expr, outer: Mapping[str, Expr]) -> Stmt:
        """One chunk, given the number of its first block and its index along the outer axes."""
        steps = [replace_variables(stmt, outer) for _, stmt in self.panels]
        steps += [self._columns(n) for n, link in enumerate(self.links) if link.padding]
        if self.is_sliding:
            steps += [replace_variables(self._warm_up(n), {**outer, STEP: first}) for n in range(len(self.links))]
        step = first + Var("block") if self.blocks_per_chunk > 1 else first
        block = replace_variables(self._block(), {**outer, STEP: step})
        body: Stmt = Block((*steps, For("block", self.blocks_per_chunk, block) if self.blocks_per_chunk > 1 else block))
        return allocate([*map(self._local, self.makers.values()), *(b for b, _ in self.panels)], body)

    def _block(self) -> Stmt:
        """All links, for the block with the number STEP."""
        if self.chain.is_sliding:
            return Block(tuple(self._rows(n, *self._part(n)) for n in range(len(self.links))))
        whole, rest = divmod(self.chain.rows, self.block)
        parts = [self._plain_rows(self.block)]
        tests = [op("lt", Var(STEP), whole)]
        if rest:
            parts.append(self._plain_rows(rest))
            tests.append(op("eq", Var(STEP), whole))
        always = self.blocks_per_chunk * self.values["chunks"] == whole
        return parts[0] if always else Block(tuple(If(t, p) for t, p in zip(tests, parts, strict=True)))

    def _part(self, number: int) -> tuple[int, int]:
        """The first row that a link makes in block 0, without those of the block before, and how many it makes."""
        span = self.spans[number]
        first = int(span.first) + (max(int(span.overlap), 0) if self.is_sliding else 0)
        return first, int(span.end) - first

    def _warm_up(self, number: int) -> Stmt:
        """The rows that are computed before the first block of a chunk."""
        span = self.spans[number]
        return self._rows(number, int(span.first), int(span.overlap)) if span.overlap > 0 else Block(())

    # Memory

    def _local(self, number: int) -> Buffer:
        link = self.links[number]
        shape = (self._buffer_rows(number), *(link.tensor.shape[d] for d in link.inner))
        return Buffer(link.tensor.name, shape, link.tensor.dtype, Scope.SHARED)

    def _buffer_rows(self, number: int) -> int:
        """The rows of a link's buffer."""
        span = self.spans[number]
        return int(self.chain.line_buffer_rows(number, self.spans)) if self.is_sliding else int(span.end - span.first)

    def _buffer_row(self, number: int, row: Expr) -> Expr:
        """The index of a row in the buffer of its link."""
        span = self.spans[number]
        if self.is_sliding and span.overlap > 0:
            size = self._buffer_rows(number)
            lift = -(-max(-int(span.first), 0) // size) * size  # so that no row is less than 0
            return _simplify(row + lift) % size
        first, _ = self._part(number)
        return _simplify(row - Var(STEP) * int(span.stride) - first)

    def _local_index(self, number: int, index: Sequence[Expr]) -> tuple[Expr, ...]:
        link = self.links[number]
        return (self._buffer_row(number, index[link.row]), *(index[d] for d in link.inner))

    # Links

    def _plain_rows(self, count: int) -> Stmt:
        """A block of a chain where row p of each link comes from row p of those before."""
        start = Var(STEP) * self.block
        starting = {links.first: links for links in self.plan.row_links}
        steps: list[Stmt] = []
        number = 0
        while number < len(self.links):
            links = starting.get(number)
            if links:
                steps.append(self._passes(links, start, count))
            else:
                steps.append(self._nest(number, self._cut(number, start, count)))
            number = links.stop if links else number + 1
        return Block(tuple(steps))

    def _passes(self, links: RowLinks, start: Expr, count: int) -> Stmt:
        """Links along the rows, for `count` rows from `start` on."""
        plan, group = links.plan, self.values["rows"]
        outer = {axis.name for axis in self.chain.outer}
        cut = replace(
            plan,
            steps=tuple(
                replace(step, fused_stage=self._part_of(step.fused_stage, start, count)) for step in plan.steps
            ),
            rows=tuple(Axis(a.name, count) if a.name == ROW else a for a in plan.rows if a.name not in outer),
        )
        body = RowPasses(cut, self.values["round"], group, prefetch=0).lower()
        groups = -(-cut.row_count // group)
        return For(GROUP, groups, body) if groups > 1 else replace_variables(body, {GROUP: const(0)})

    def _rows(self, number: int, first: int, count: int) -> Stmt:
        """Compute `count` rows of a link from STEP * stride + first on, padding included, as far as they exist."""
        link, stride = self.links[number], int(self.spans[number].stride)
        last = self.blocks_per_chunk * self.values["chunks"] - 1  # number of a block
        start = Var(STEP) * stride + (first - link.front)
        low, high = first - link.front, last * stride + first - link.front + count
        if not last and (low < 0 or high > link.rows):  # known now: there is one block
            inside = range(max(low, 0), max(min(high, link.rows), 0))
            outside = [row for row in range(low, high) if row not in inside and link.padding]
            filled = [self._fill_rows(number, const(row + link.front)) for row in outside]
            return Block((*filled, self._nest(number, self._cut(number, const(inside.start), len(inside)))))
        loops = self._nest(number, self._cut(number, start, count))
        if low >= 0 and high <= link.rows:
            return loops
        loops = _guard_rows(loops, count, lambda row: _is_inside(_simplify(start + row), low, high, link.rows))
        if not link.padding:
            return loops
        row = _simplify(start + Var("filled"))
        missing = op("not", _is_inside(row, low, high, link.rows))
        fill = If(missing, self._fill_rows(number, row + link.front))
        return Block((For("filled", count, fill), loops))

    def _cut(self, number: int, start: Expr, count: int) -> FusedStage:
        """A link for `count` rows from `start` on, without the outer axes, between local buffers."""
        fused_stage = self.products[number].fused_stage if number in self.products else self.links[number].fused_stage
        return self._part_of(fused_stage, start, count)

    def _part_of(self, fused_stage: FusedStage, start: Expr, count: int) -> FusedStage:
        """Do what `_cut` does for the fused stage of a link."""
        stage = fused_stage.stage
        row = {ROW: start + Var(ROW)}
        outer = {axis.name for axis in self.chain.outer}
        axes = tuple(Axis(a.name, count) if a.name == ROW else a for a in stage.axes if a.name not in outer)
        index = tuple(substitute(e, row) for e in fused_stage.index)
        if fused_stage.output in self.makers:
            index = self._local_index(self.makers[fused_stage.output], index)

        def local(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.tensor == stage.output:
                return node
            maker = self.makers.get(node.tensor)
            if maker is None:
                return replace(node, index=tuple(map(_simplify, node.index)))
            return replace(node, index=self._local_index(maker, node.index))

        body, epilogue = (transform(substitute(e, row), local) for e in (stage.body, fused_stage.epilogue))
        own = tuple(Var(a.name) for a in axes) or (const(0),)
        return FusedStage(
            Stage(stage.output, axes, body, stage.reduce, stage.combiner, own), fused_stage.output, index, epilogue
        )

    def _nest(self, number: int, fused_stage: FusedStage) -> Stmt:
        blocks = {a.name: 0 for a in fused_stage.stage.axes}
        if number in self.products:
            product = self.plan.product(number)
            tile = {product.vector: self.values[f"vectors_{number}"] * self.lanes}
            axis = self.plan.tile_axis(number)
            if axis:
                tile[axis] = self.values[f"tile_{number}"]
            outer = {a.name for a in self.chain.outer}
            order = tuple(
                a for a in (*product.batch, *product.columns, product.vector, *product.rows) if a not in outer
            )
            unroll = {fused_stage.stage.reduce[-1].name: self.values["unroll"]}
            return lower(Nest(fused_stage, self.lanes, product.vector, tile, blocks, unroll, order, fixed=CALLER))
        nest = replace(plain_nest(fused_stage, self.target, CALLER), block=blocks)
        if number in self.plan.windows:
            others = [a.name for a in fused_stage.stage.axes if a.name not in (ROW, nest.vector)]
            tile = {nest.vector: self.values["vectors"] * self.lanes}
            tile |= {others[-1]: self.values["tile"]} if others else {}
            unroll = {a.name: a.extent for a in fused_stage.stage.reduce}
            nest = replace(
                nest, tile=tile, unroll=unroll, order=(nest.vector, *(a for a in nest.spatial if a != nest.vector))
            )
        return lower(nest)

    def _panel(self, number: int) -> Product:
        """A product with its panel in place, packed, or copied for each chunk."""
        product = self.plan.product(number)
        width = min(
            self.values[f"vectors_{number}"] * self.lanes, -(-self.plan.width(number) // self.lanes) * self.lanes
        )
        tensor = self.task.tensor(product.panel.tensor)
        if self.plan.is_in_place(number):
            return product
        if number in self.plan.packed_products:
            packing, index = pack_panel(product, tensor, width)
            self.packings[tensor.name] = packing
            return product.with_panel(Load(tensor.name, index, tensor.dtype))
        names = self.plan.panel_axes(number)
        index = (Var(product.vector + TILE), *map(Var, names), Var(product.vector + INNER))
        shape = (-(-self.plan.width(number) // width), *map(product.extent, names), width)
        local = Buffer(f"panel{number}", shape, tensor.dtype, Scope.SHARED)
        place = Load(local.name, index, tensor.dtype)
        axes = tuple(Axis(name, product.extent(name)) for name in (*names, product.vector))
        fused_stage = FusedStage.of(Stage(local.name, axes, product.panel), index)
        crossed = crossing_axis(fused_stage, product.vector)
        tile = {product.vector: width} | ({crossed: self.lanes} if crossed else {})
        block = {a.name: 0 for a in axes}
        nest = Nest(fused_stage, self.lanes, product.vector, tile, block, {}, (product.vector, *names), CALLER)
        self.panels.append((local, lower(nest)))
        return product.with_panel(place)

    # Padding

    def _fill_rows(self, number: int, row: Expr) -> Stmt:
        """A row of padding."""
        link = self.links[number]
        axes = [Axis(f"d{d}", link.tensor.shape[d]) for d in link.inner]
        return self._fill(number, (self._buffer_row(number, row), *(Var(a.name) for a in axes)), axes)

    def _columns(self, number: int) -> Stmt:
        """Padding beside the rows, in all of a link's memory."""
        link, padding = self.links[number], self.links[number].padding
        assert padding is not None
        steps: list[Stmt] = []
        for along in link.inner:
            inside = padding.inside[along]
            for outside in (IndexRange(0, inside.start), IndexRange(inside.stop, link.tensor.shape[along])):
                extents = {d: outside.extent if d == along else link.tensor.shape[d] for d in link.inner}
                axes = [Axis(ROW, self._buffer_rows(number)), *(Axis(f"d{d}", n) for d, n in extents.items())]
                places = [Var(f"d{d}") + (outside.start if d == along else 0) for d in link.inner]
                if outside.extent:
                    steps.append(self._fill(number, (Var(ROW), *places), axes))
        return Block(tuple(steps))

    def _fill(self, number: int, index: tuple[Expr, ...], axes: Sequence[Axis]) -> Stmt:
        link = self.links[number]
        assert link.padding is not None
        fused_stage = FusedStage.of(Stage(link.tensor.name, tuple(axes), link.padding.fill), index)
        return lower(replace(plain_nest(fused_stage, self.target, CALLER), block={a.name: 0 for a in axes}))


def _simplify(place: Expr) -> Expr:
    """Simplify an index that is linear."""
    form = linear(place)
    return form.expr() if form is not None else place


def _is_inside(row: Expr, low: int, high: int, rows: int) -> Expr:
    """The condition that a row of low .. high - 1 is one of `rows`."""
    test: Expr = const(True)
    if low < 0:
        test = op("le", const(0), row)
    if high > rows:
        test = op("and", test, op("lt", row, rows))
    return test


def _fold_conditions(stmt: Stmt) -> Stmt:
    """Remove constant conditions, and the statements under those that never hold."""
    match stmt:
        case If(Const(value), then):
            return _fold_conditions(then) if value else Block(())
        case If(condition, then):
            return If(condition, _fold_conditions(then))
        case Block(body):
            return Block(tuple(map(_fold_conditions, body)))
        case For(var, extent, body, kind):
            return For(var, extent, _fold_conditions(body), kind)
        case Alloc(local, body):
            return Alloc(local, _fold_conditions(body))
    return stmt


def _guard_rows(stmt: Stmt, count: int, test: Callable[[Expr], Expr]) -> Stmt:
    """Skip the rows for which a test fails."""
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
