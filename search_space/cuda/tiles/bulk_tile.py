"""Bulk tiles: the right operand of a product, packed ahead of time so that the tile of a round is contiguous.

One thread copies a tile into shared memory, and a barrier there counts its bytes (`codegen.cuda.bulk`). It lies as
products of warpgroups take it, chunk by chunk of 16 bytes along the reduction, zeros beyond the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.instructions.warpgroup import GROUP, PACKED, PANEL, chunk_of
from tunewright.codegen.ir.ir import Barrier, Block, Buffer, Do, If, Packing, Scope, Stmt
from tunewright.graph.task import Task

from ...axes import unravel
from ...patterns.product import Product, is_packable
from .barriers import wait
from .shared_tile import THREAD, chunk, unroll
from .sides import Sides


def may_bulk(task: Task, product: Product) -> bool:
    """Whether the right operand is a constant that can be packed like this."""
    sides = Sides.of(product)
    is_first = all(at == const(0) for at in product.panel.index if isinstance(at, Const))
    return is_first and not sides.batch and len(sides.columns) == 1 and is_packable(task, product.panel)


def is_whole(product: Product, depth: int) -> bool:
    """Whether rounds of such depth don't reach beyond the last axis of several."""
    *others, last = Sides.of(product).depth
    return not others or last.extent % depth == 0


def bulk_packing(task: Task, product: Product, columns: int, depth: int) -> Packing:
    """How the right operand is packed for tiles of so many columns and rounds of such depth.

    Its dimensions are then what is outside of the product, tiles, axes of the reduction but for the last, rounds along
    that, and all that a round needs.
    """
    tensor = task.tensor(product.panel.tensor)
    chunk_size, sides = chunk(tensor.dtype), Sides.of(product)
    last = sides.depth[-1].name
    splits: list[tuple[int, ...]] = []
    ranks: list[tuple[int, int]] = []  # of each part, by which they are sorted
    for at, extent in zip(product.panel.index, tensor.shape, strict=True):
        name = at.name if isinstance(at, Var) else ""
        if name == product.vector:
            splits.append((-(-extent // columns), columns))
            ranks += [(1, 0), (5, 0)]
        elif name == last:
            splits.append((-(-extent // depth), depth // chunk_size, chunk_size))
            ranks += [(3, 0), (4, 0), (6, 0)]
        else:
            splits.append((extent,))
            axes = [axis.name for axis in sides.depth]
            ranks.append((2, axes.index(name)) if name in axes else (0, 0))
    padded = tuple(map(prod, splits))
    parts = tuple(sorted(range(len(ranks)), key=lambda part: (ranks[part], part)))
    return Packing(tuple(range(len(splits))), padded, tuple(splits), parts, joined=3)


@dataclass(frozen=True, slots=True)
class BulkTile:
    """A tile of the packed right operand, `columns` by `depth`, and its copies in shared memory."""

    name: str
    tensor: str
    dtype: DType
    outside: int  # dimensions of the operand, as it is packed, that are outside of the product
    rounds: tuple[int, ...]  # along the reduction, by its axes
    tile: Expr  # which of columns
    columns: int
    depth: int

    @staticmethod
    def of(name: str, product: Product, packing: Packing, tile: Expr, columns: int, depth: int) -> BulkTile:
        """The tile of a product's right operand, by its packing."""
        panel, axes = product.panel, len(Sides.of(product).depth)
        *outer, _ = packing.shape
        outside = len(outer) - 1 - axes
        return BulkTile(name, panel.tensor, panel.dtype, outside, tuple(outer[outside + 1 :]), tile, columns, depth)

    @property
    def size(self) -> int:
        """Elements of a tile."""
        return self.columns * self.depth

    @property
    def size_bytes(self) -> int:
        return self.size * self.dtype.size_bytes

    def buffers(self, stages: int) -> tuple[Buffer, ...]:
        """The buffers in shared memory: a tile and a barrier for each stage."""
        operand = Buffer(self.name, (stages, self.size), self.dtype, Scope.SHARED)
        return operand, Buffer(self._barriers, (stages,), DType.I64, Scope.SHARED)

    @property
    def _barriers(self) -> str:
        return f"{self.name}_arrived"

    def _barrier(self, stage: Expr) -> Load:
        return Load(self._barriers, (stage,), DType.I64)

    def begin(self, stages: int) -> Stmt:
        """Set all barriers up, before anything is copied."""
        first = unroll(Block((Do("mbarrier.init.1", (self._barrier(Var("s")),), ()),)), s=stages)
        return Block((If(op("eq", Var(THREAD), 0), first), Barrier()))

    def fill(self, step: Expr, stage: Expr) -> Stmt:
        """Copy the tile of a round, and say how many bytes that is."""
        outside = (const(0) for _ in range(self.outside))
        index = (*outside, self.tile, *unravel(step, self.rounds), ramp(const(0), self.size))
        source = Load(self.tensor, index, self.dtype)
        target = Load(self.name, (stage, ramp(const(0), self.size)), self.dtype)
        barrier = self._barrier(stage)
        expected = Do(f"mbarrier.expect.{self.size_bytes}", (), (barrier,))
        copy = Do(f"cp.async.bulk.{self.size_bytes}", (target,), (barrier, source))
        return If(op("eq", Var(THREAD), 0), Block((expected, copy)))

    def await_round(self, step: Expr, stages: int) -> tuple[Stmt, ...]:
        """Wait until the tile of round `step` of this block has come."""
        return wait(self._barrier(step % stages), step // stages)

    layout = PACKED

    def chunk(self, stage: Expr, part: Expr, k: Expr) -> Load:
        """See `SharedMatrix.chunk`."""
        size = chunk(self.dtype)
        row, number = chunk_of(PACKED, Var(THREAD) % GROUP)
        place = ((k * 2 + number) * self.columns + part * PANEL + row) * size
        return Load(self.name, (stage, ramp(place, size)), self.dtype)
