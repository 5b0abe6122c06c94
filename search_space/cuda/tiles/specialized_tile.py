"""Specialized tiles: a product on Hopper by blocks that stay, in which one warp fetches and warpgroups multiply.

block                               as many as there are multiprocessors
  producer: one thread              tiles in turn
    rounds along the reduction      a stage of shared memory each
      wait until nobody reads it
      fetch left, right             a barrier counts what comes
  consumers: warpgroups             tiles in turn
    rounds along the reduction
      wait until it is there
      sums += left x right          goes on while the next round is waited for
      let the last stage go
    output = epilogue(sums)         meanwhile the producer fetches for the next tile

So the warp-specialized persistent kernels of CUTLASS: "Efficient GEMM in CUDA", NVIDIA's documentation of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tunewright.codegen.expr.expr import Expr, Var, const, op
from tunewright.codegen.gpu import THREAD_REGISTERS, WARP
from tunewright.codegen.instructions.warpgroup import GROUP
from tunewright.codegen.ir.ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    For,
    If,
    LoopKind,
    Roles,
    Stmt,
    ThreadRole,
)
from tunewright.graph.task import Task

from ...buffers import allocate
from ...patterns.product import Product
from .barriers import PHASE, StageBarriers
from .fetch_tile import BoxView, FetchTile, PatchView
from .fragments import SumStaging
from .group_product import GroupProduct
from .shared_tile import THREAD
from .sides import OperandTile, Sizes, operands
from .tiles import TilePlace, Tiles

ROUND, TURN = "round", "turn"

REGISTERS = {1: (0, 0), 2: (240, 24), 3: (160, 32)}
"""Registers of a thread that multiplies and of one that fetches, by the number of warpgroups that multiply: multiples
of 8. A multiprocessor has 65,536. One warpgroup has enough from the start.
"""


def group_registers(groups: Sizes) -> Sizes:
    """The registers of a thread that multiplies, by the number of warpgroups that do."""
    most = {count: consumers or THREAD_REGISTERS for count, (consumers, _) in REGISTERS.items()}
    return np.asarray([most[count] for count in groups.tolist()])


@dataclass(frozen=True, slots=True)
class SpecializedBlocks:
    """Blocks that stay for some tiles in turn, in which one warp fetches and warpgroups multiply."""

    groups: int  # warpgroups that multiply, one below the other
    total: int  # tiles
    count: int  # blocks at once

    @property
    def number(self) -> Expr:
        """The number of the tile whose turn it is."""
        return Var(TURN) * self.count + Var("block")

    def in_turns(self, stmt: Stmt) -> Stmt:
        """Repeat a statement for each tile of a block, whose number is `number`."""
        stmt = If(op("lt", self.number, self.total), stmt) if self.total % self.count else stmt
        return Alloc(PHASE, For(TURN, -(-self.total // self.count), stmt))

    def lower(
        self, stages: Sequence[StageBarriers], operands: Iterable[Buffer], producer: Stmt, consumer: Stmt
    ) -> Stmt:
        """The launch: `producer` is what the thread that fetches does for each tile."""
        first = GROUP * self.groups
        consumers, fetcher = REGISTERS[self.groups]
        fetching = If(op("eq", Var(THREAD), first), self.in_turns(producer))
        roles = ThreadRole(first, consumers, consumer), ThreadRole(GROUP, fetcher, fetching)
        begin = If(op("eq", Var(THREAD), 0), Block(tuple(one.begin() for one in stages)))
        threads = For(THREAD, first + GROUP, Block((begin, Barrier(), Roles(roles))), LoopKind.THREAD)
        shared = (*(buffer for one in stages for buffer in one.buffers), *operands)
        return For("block", self.count, allocate(shared, threads), LoopKind.BLOCK)


@dataclass(frozen=True, slots=True)
class SpecializedTile:
    """A product by blocks that stay, and the numbers of its launch."""

    tiles: Tiles
    views: tuple[BoxView | PatchView, BoxView]  # of the left operand and the right one
    depth: int  # of a round
    stages: int
    is_staged: bool  # sums go through shared memory, from where rows are written whole
    blocks: SpecializedBlocks

    @staticmethod
    def of(task: Task, tiles: Tiles, values: Mapping[str, int], blocks: int) -> SpecializedTile:
        """Take the numbers from the values of a schedule."""
        both = patch_views(task, tiles.product) if tiles.patch else views(task, tiles.product)
        assert both is not None
        return SpecializedTile(
            tiles,
            both,
            depth=values["block_depth"],
            stages=values["stages"],
            is_staged=values["staged"] == 1,
            blocks=SpecializedBlocks(values["warpgroups"], tiles.total, min(blocks, tiles.total)),
        )

    def lower(self) -> Stmt:
        """The loops of the launch."""
        left, right = self._copies(self.tiles.place_of(const(0)))
        staging = (self._staging.buffer,) if self.is_staged else ()
        operands = (*staging, right.buffer(self.stages), left.buffer(self.stages))
        return self.blocks.lower((self._stages,), operands, self._producer(), self._consumer())

    @property
    def _rounds(self) -> int:
        return self.tiles.rounds(self.depth)

    @property
    def _count(self) -> Expr:
        """The number of a round, over all tiles of a block."""
        return Var(TURN) * self._rounds + Var(ROUND)

    def _copies(self, place: TilePlace) -> tuple[FetchTile, FetchTile]:
        left, right = operands(self.tiles.product)
        shared = self.depth, place.batch, 1
        view = self.views[0]
        if isinstance(view, PatchView):
            view = replace(view, patch=self.tiles.patch, corner=place.corner)
        rows = FetchTile("left", OperandTile(left, place.row, self.tiles.rows, *shared), view)
        return rows, FetchTile("right", OperandTile(right, place.column, self.tiles.columns, *shared), self.views[1])

    @property
    def _stages(self) -> StageBarriers:
        size_bytes = sum(copy.buffer(1).size_bytes for copy in self._copies(self.tiles.place_of(const(0))))
        return StageBarriers("tiles", self.stages, size_bytes, self.blocks.groups * GROUP // WARP)

    def _producer(self) -> Stmt:
        place, stages = self.tiles.place_of(self.blocks.number), self._stages
        stage, step = self._count % self.stages, place.part * self._rounds + Var(ROUND)
        fetches = (copy.fetch(step, stage, stages.full(self._count)) for copy in self._copies(place))
        return For(ROUND, self._rounds, Block((stages.fill(self._count), *fetches)))

    @property
    def _product(self) -> GroupProduct:
        return GroupProduct.of(self.tiles, self.depth, self.blocks.groups)

    @property
    def _staging(self) -> SumStaging:
        return SumStaging(self._product.fragments, self.blocks.groups * GROUP // WARP)

    def _consumer(self) -> Stmt:
        product, place = self._product, self.tiles.place_of(self.blocks.number)
        left, right = self._copies(place)
        stages = self._stages
        body = Block(
            (
                stages.await_full(self._count),
                product.begin(left, right, self._count % self.stages),
                Do("wgmma.wait.1", (), ()),
                If(op("lt", 0, Var(ROUND)), stages.release(self._count - 1)),
            )
        )
        last = Var(TURN) * self._rounds + (self._rounds - 1)
        writer = self._staging if self.is_staged else product.fragments
        registers = self._staging.registers if self.is_staged else ()
        begin = (self._staging.begin(place, product.row, const(0)),) if registers else ()
        tile = Block(
            (
                product.fragments.clear(),
                product.hold(),
                *begin,
                For(ROUND, self._rounds, body),
                Do("wgmma.wait.0", (), ()),
                product.hold(),
                stages.release(last),
                writer.write(place, product.row, const(0)),
            )
        )
        return allocate((product.fragments.buffer, *registers), self.blocks.in_turns(tile))


def views(task: Task, product: Product) -> tuple[BoxView, BoxView] | None:
    """The views of both operands; None where the engine can't copy boxes of one of them."""
    left, right = (BoxView.of(operand, task.tensor(operand.load.tensor).shape) for operand in operands(product))
    return None if left is None or right is None else (left, right)


def patch_views(task: Task, product: Product) -> tuple[PatchView, BoxView] | None:
    """What `views` gives, where the rows of a tile are a patch of pixels."""
    _, right = operands(product)
    patch = PatchView.of(product, task.tensor(product.broadcast.tensor).shape)
    view = BoxView.of(right, task.tensor(right.load.tensor).shape)
    return None if patch is None or view is None else (patch, view)
