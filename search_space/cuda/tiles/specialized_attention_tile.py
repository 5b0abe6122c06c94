"""Attention on Hopper by blocks that stay, in which one warp fetches and warpgroups multiply: see `specialized_tile`.

block                                  as many as there are multiprocessors
  producer: one thread                 tiles of rows in turn
    queries                            once
    rounds along the keys              stages of shared memory
      keys, values
  consumers: warpgroups, 64 rows each
    scores = queries x first keys
    weights, top, total = softmax      `online_softmax`, in registers
    rounds
      scores = queries x next keys     both go on
      sums += weights x values         until the scores are there, and behind them
      top, total = softmax of scores   while the values are added
      sums, weights = sums * scale, scores rounded
    sums += weights x last values
    output = epilogue(sums / total)

Of causal attention, the stages of rounds whose keys no row of a tile may see pass empty, and nothing is computed with
them: so stages are counted alike everywhere.

Shah and others, "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision" (2024), section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.instructions.warpgroup import GROUP, IN_REGISTERS, PANEL, ROW_BYTES
from tunewright.codegen.instructions.warpgroup import ROWS as GROUP_ROWS
from tunewright.codegen.ir.ir import (
    Block,
    Buffer,
    Do,
    For,
    If,
    Scope,
    Stmt,
    Store,
)

from ...axes import axis_indices, unravel
from ...buffers import allocate
from ...patterns.attention import Attention
from .barriers import StageBarriers
from .fetch_tile import BoxView, FetchTile
from .group_product import begin_products, hold_sums, multiply_shared
from .online_softmax import SCORES, SUMS, OnlineSoftmax, is_seen
from .shared_tile import THREAD, product_depth, unroll
from .sides import OperandTile, Sides, operands, size, steps
from .specialized_tile import ROUND, TURN, SpecializedBlocks

TURN_REGISTER = Buffer("whose_turn", (1,), DType.I32, Scope.REGISTER)
"""The register in which a thread names the barrier of a warpgroup's turn."""


@dataclass(frozen=True, slots=True)
class SpecializedAttentionTile:
    """Attention whose operands are of one narrow type, and the numbers of its launch."""

    attention: Attention
    views: tuple[BoxView, BoxView, BoxView]  # of queries, keys and values
    block_places: int  # of a round
    stages: int
    query_stages: int  # tiles of queries that fit into shared memory
    is_alternating: bool  # warpgroups take turns: while one begins products, others have softmax to do
    blocks: SpecializedBlocks

    @staticmethod
    def of(
        attention: Attention, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int], blocks: int
    ) -> SpecializedAttentionTile:
        """Take the numbers from the values of a schedule, on so many multiprocessors."""
        groups, sides = values["warpgroups"], Sides.of(attention.scores)
        total = size(sides.batch) * steps(sides.rows, GROUP_ROWS * groups)
        boxes = views(attention, shapes)
        assert boxes is not None
        return SpecializedAttentionTile(
            attention,
            boxes,
            block_places=values["block_places"],
            stages=values["stages"],
            query_stages=values["query_stages"],
            is_alternating=values["alternating"] == 1,
            blocks=SpecializedBlocks(groups, total, min(blocks, total)),
        )

    @property
    def block_rows(self) -> int:
        return GROUP_ROWS * self.blocks.groups

    @property
    def rounds(self) -> int:
        """Rounds along the keys."""
        return -(-self.attention.key_axis.extent // self.block_places)

    @property
    def _softmax(self) -> OnlineSoftmax:
        return OnlineSoftmax(self.attention, self.block_rows, self.block_places, self._columns)

    @property
    def _dtype(self) -> DType:
        return self.attention.scores.panel.dtype

    @property
    def _panel(self) -> int:
        """Elements of a row of shared memory."""
        return ROW_BYTES // self._dtype.size_bytes

    @property
    def _columns(self) -> int:
        """Columns of the values, in whole panels."""
        return -(-size(Sides.of(self.attention.context).columns) // PANEL) * PANEL

    @property
    def _inner_panels(self) -> int:
        """Panels of the terms of a score."""
        return steps(Sides.of(self.attention.scores).depth, self._panel)

    @property
    def _place_panels(self) -> int:
        """Panels of the keys of a round, as terms of the sums."""
        return self.block_places // self._panel

    # Shared memory

    def _tiles(self, batch: Expr, row: Expr, place: Expr) -> tuple[FetchTile, FetchTile, FetchTile]:
        """The tiles of queries, keys and values, one panel deep each."""
        (queries, keys), (_, values) = operands(self.attention.scores), operands(self.attention.context)
        scores, mixed = (
            axis_indices(Sides.of(product).batch, batch) for product in (self.attention.scores, self.attention.context)
        )
        deep = self._panel
        return (
            FetchTile("queries", OperandTile(queries, row, self.block_rows, deep, scores, 1), self.views[0]),
            FetchTile("keys", OperandTile(keys, place, self.block_places, deep, scores, 1), self.views[1]),
            FetchTile("values", OperandTile(values, const(0), self._columns, deep, mixed, 1), self.views[2]),
        )

    @property
    def _stages(self) -> tuple[StageBarriers, StageBarriers, StageBarriers]:
        """The stages of queries, keys and values."""
        tiles = self._tiles(const(0), const(0), const(0))
        panels = self._inner_panels, self._inner_panels, self._place_panels
        counts = self.query_stages, self.stages, self.stages
        queries, keys, values = (
            StageBarriers(tile.name, count, tile.buffer(panel_count).size_bytes, self.blocks.groups * GROUP // WARP)
            for tile, panel_count, count in zip(tiles, panels, counts, strict=True)
        )
        return queries, keys, values

    def lower(self) -> Stmt:
        """The loops of the launch."""
        queries, keys, values = self._tiles(const(0), const(0), const(0))
        operand_buffers = (
            values.buffer(self.stages * self._place_panels),
            keys.buffer(self.stages * self._inner_panels),
            queries.buffer(self.query_stages * self._inner_panels),
        )
        return self.blocks.lower(self._stages, operand_buffers, self._producer(), self._consumer())

    # Turns

    def _place(self) -> tuple[Expr, Expr]:
        """Batch and first row of a tile."""
        sides = Sides.of(self.attention.scores)
        counts = size(sides.batch), steps(sides.rows, self.block_rows)
        batch, tile = unravel(self.blocks.number, counts)
        return batch, tile * self.block_rows

    def _round(self, step: Expr) -> Expr:
        """The number of a round of a tile, over all tiles of a block."""
        return Var(TURN) * self.rounds + step

    # The producer

    def _producer(self) -> Stmt:
        batch, row = self._place()
        of_queries, of_keys, of_values = self._stages
        step = Var(ROUND)
        queries, keys, values = self._tiles(batch, row, step * self.block_places)
        turn, number, panel = Var(TURN), self._round(step), Var("p")

        def fetch(tile: FetchTile, stages: StageBarriers, count: Expr, first: Expr, panels: int) -> Stmt:
            """Fetch all panels of a stage, from panel `first` of the operand on."""
            stage = count % stages.count * panels + panel
            box = tile.fetch(first + panel, stage, stages.full(count))
            return Block((stages.fill(count), unroll(box, p=panels)))

        body = Block(
            (
                fetch(keys, of_keys, number, const(0), self._inner_panels),
                fetch(values, of_values, number, step * self._place_panels, self._place_panels),
            )
        )
        idle = Block((of_keys.skip(number), of_values.skip(number)))
        first = fetch(queries, of_queries, turn, const(0), self._inner_panels)
        return Block((first, For(ROUND, self.rounds, self._if_seen(row, step, body, idle))))

    def _if_seen(self, row: Expr, step: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
        """A statement where rows of the tile from `row` on may see keys of a round, else another one."""
        if self.attention.past is None:
            return then
        condition = is_seen(self.attention, row, self.block_rows, step * self.block_places)
        rest = (If(op("not", condition), otherwise),) if otherwise else ()
        return Block((If(condition, then), *rest))

    # The consumers

    def _consumer(self) -> Stmt:
        softmax = self._softmax
        batch, row = self._place()
        parts = (For(ROUND, self.rounds - 1, self._next_part(batch, row)),) if self.rounds > 1 else ()
        tile = Block((*self._first_part(batch, row), *parts, *self._last_sums(row), softmax.write(batch, row)))
        is_last = op("eq", Var(THREAD) // GROUP, self.blocks.groups - 1)
        begin = (If(is_last, self._pass_on()),) if self.is_alternating else ()
        return allocate((TURN_REGISTER, *softmax.registers), Block((*begin, self.blocks.in_turns(tile))))

    def _first_part(self, batch: Expr, row: Expr) -> tuple[Stmt, ...]:
        """Scores of the first part become weights."""
        softmax, (of_queries, of_keys, _) = self._softmax, self._stages
        first = self._round(const(0))
        return (
            softmax.begin(),
            of_queries.await_full(Var(TURN)),
            of_keys.await_full(first),
            self._await_turn(),
            self._score(first),
            self._pass_on(),
            Do("wgmma.wait.0", (), ()),
            hold_sums(_sums(SCORES, self.block_places)),
            of_keys.release(first),
            softmax.complete_scores(batch, row, const(0)),
            softmax.weigh(),
            softmax.round_weights(),
        )

    def _next_part(self, batch: Expr, row: Expr) -> Stmt:
        """Scores of the next part become weights, while the values of the last one are added by theirs."""
        softmax, (_, of_keys, of_values) = self._softmax, self._stages
        step = Var(ROUND) + 1
        number = self._round(step)
        part = Block(
            (
                of_keys.await_full(number),
                self._await_turn(),
                self._score(number),
                of_values.await_full(number - 1),
                self._mix(number - 1),
                self._pass_on(),
                Do("wgmma.wait.1", (), ()),
                hold_sums(_sums(SCORES, self.block_places)),
                of_keys.release(number),
                self._hold_place(Block((softmax.complete_scores(batch, row, step), softmax.weigh()))),
                Do("wgmma.wait.0", (), ()),
                hold_sums(_sums(SUMS, self._columns)),
                of_values.release(number - 1),
                softmax.rescale_sums(),
                softmax.round_weights(),
            )
        )
        idle = Block((of_keys.await_full(number), of_keys.release(number), self._add_values(row, Var(ROUND))))
        return self._if_seen(row, step, part, idle)

    def _last_sums(self, row: Expr) -> tuple[Stmt, ...]:
        """Add the values of the last part; nobody reads the queries any more."""
        of_queries, _, _ = self._stages
        return of_queries.release(Var(TURN)), self._add_values(row, const(self.rounds - 1))

    def _add_values(self, row: Expr, step: Expr) -> Stmt:
        """Add the values of a part whose scores nothing else is computed beside, if the part is seen."""
        _, _, of_values = self._stages
        number = self._round(step)
        sums = (self._mix(number), Do("wgmma.wait.0", (), ()), hold_sums(_sums(SUMS, self._columns)))
        begin, end = of_values.await_full(number), of_values.release(number)
        return Block((begin, self._if_seen(row, step, Block(sums)), end))

    def _await_turn(self) -> Stmt:
        """Wait until the warpgroup before this one has begun its products."""
        return self._at_barrier("barrier.sync", Var(THREAD) // GROUP)

    def _pass_on(self) -> Stmt:
        """Give the turn to the next warpgroup; the last one gives it to the first at the outset."""
        return self._at_barrier("barrier.arrive", (Var(THREAD) // GROUP + 1) % self.blocks.groups)

    def _at_barrier(self, instruction: str, group: Expr) -> Stmt:
        """Do something with the barrier of a warpgroup's turn, if they take turns."""
        if not self.is_alternating:
            return Block(())
        own = Load(TURN_REGISTER.name, (const(0),), DType.I32)
        number = op("cast", group + 1, dtype=DType.I32)
        return Block((Store(own.tensor, own.index, number), Do(instruction, (), (own,))))

    def _hold_place(self, stmt: Stmt) -> Stmt:
        """Keep a statement before the next wait for products, by a condition that always holds.

        NVIDIA's assembler has waits as early as it can: here at once, and nothing would be computed meanwhile. Out of a
        branch it moves nothing.
        """
        return If(op("lt", Var("block"), self.blocks.count), stmt)

    def _score(self, number: Expr) -> Stmt:
        """Begin products of queries and the keys of a round, whose sums start at 0."""
        queries, keys, _ = self._tiles(const(0), const(0), const(0))
        first, sums = number % self.stages * self._inner_panels, _sums(SCORES, self.block_places)
        first_rows = Var(TURN) % self.query_stages * self._inner_panels
        products: list[Stmt] = []
        for panel, k in product(range(self._inner_panels), range(self._products)):
            rows, stage = queries.chunk(first_rows + panel, Var(THREAD) // GROUP, const(k)), first + panel
            is_first = not products
            products.append(
                multiply_shared(sums, rows, queries.layout, keys, stage, const(k), self.block_places, is_first=is_first)
            )
        return begin_products(*products)

    def _mix(self, number: Expr) -> Stmt:
        """Begin products of the weights and the values of a round."""
        _, _, values = self._tiles(const(0), const(0), const(0))
        first, sums = number % self.stages * self._place_panels, _sums(SUMS, self._columns)
        products: list[Stmt] = []
        for panel, k in product(range(self._place_panels), range(self._products)):
            weights = self._softmax.weights(const(panel * self._products + k))
            products.append(
                multiply_shared(sums, weights, IN_REGISTERS, values, first + panel, const(k), self._columns)
            )
        return begin_products(*products)

    @property
    def _products(self) -> int:
        """Products of a panel along the reduction."""
        return self._panel // product_depth(self._dtype)


def _sums(name: str, columns: int) -> Load:
    """All sums of a thread, of 64 rows by so many columns."""
    return Load(name, (ramp(const(0), GROUP_ROWS * columns // GROUP),), DType.F32)


def views(attention: Attention, shapes: Mapping[str, tuple[int, ...]]) -> tuple[BoxView, BoxView, BoxView] | None:
    """The views of queries, keys and values; None where the engine can't copy boxes of one of them."""
    (queries, keys), (_, values) = operands(attention.scores), operands(attention.context)
    q, k, v = (BoxView.of(operand, shapes[operand.load.tensor]) for operand in (queries, keys, values))
    return None if q is None or k is None or v is None else (q, k, v)
