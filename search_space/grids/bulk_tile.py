"""Bulk tiles: the right operand of a product, packed ahead of time so that what a round needs of it is in one piece.

One thread has a piece copied into shared memory, and a barrier there counts what has come (`codegen.cuda.bulk`). It
lies as products of warpgroups take it, chunk by chunk of 16 bytes along the reduction, zeros beyond the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tunewright.codegen.cuda.warpgroup import PANEL
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Var, const, op
from tunewright.codegen.ir import Barrier, Block, Buffer, Do, If, Packing, Scope, Stmt, Store
from tunewright.codegen.lanes import lined
from tunewright.graph.task import Task

from ..nests.digits import digits
from ..products.product import Product, packable
from .shared_tile import THREAD, chunk, unrolled
from .sides import Sides

PHASE = "phase"

PHASE_REGISTER = Buffer(PHASE, (1,), DType.I32, Scope.REGISTER)
"""In which a thread names the phase of a barrier."""


def may_bulk(task: Task, found: Product) -> bool:
    """Whether the right operand is a constant that can be packed so."""
    sides = Sides.of(found)
    is_first = all(at == const(0) for at in found.panel.index if isinstance(at, Const))
    return is_first and not sides.batch and len(sides.columns) == 1 and packable(task, found.panel)


def is_whole(found: Product, depth: int) -> bool:
    """Whether rounds of such depth don't reach beyond the last axis of several."""
    *others, last = Sides.of(found).depth
    return not others or last.extent % depth == 0


def bulk_packing(task: Task, found: Product, columns: int, depth: int) -> Packing:
    """How the right operand is packed for tiles of so many columns and rounds of such depth.

    Its dimensions are then what is outside of the product, tiles, axes of the reduction but for the last, rounds along
    that, and all that a round needs.
    """
    tensor = task.tensor(found.panel.tensor)
    each, sides = chunk(tensor.dtype), Sides.of(found)
    last = sides.depth[-1].name
    splits: list[tuple[int, ...]] = []
    ranks: list[tuple[int, int]] = []  # of each part, by which they are sorted
    for at, extent in zip(found.panel.index, tensor.shape, strict=True):
        name = at.name if isinstance(at, Var) else ""
        if name == found.vector:
            splits.append((-(-extent // columns), columns))
            ranks += [(1, 0), (5, 0)]
        elif name == last:
            splits.append((-(-extent // depth), depth // each, each))
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
    """See the module: a tile of the right operand on its way, `columns` by `depth`."""

    name: str
    tensor: str
    dtype: DType
    outside: int  # dimensions of the operand, as it is packed, that are outside of the product
    rounds: tuple[int, ...]  # along the reduction, by its axes
    tile: Expr  # which of columns
    columns: int
    depth: int

    @staticmethod
    def of(name: str, found: Product, packing: Packing, tile: Expr, columns: int, depth: int) -> BulkTile:
        """That of a product's right operand, which is packed so."""
        panel, axes = found.panel, len(Sides.of(found).depth)
        *outer, _ = packing.shape
        outside = len(outer) - 1 - axes
        return BulkTile(name, panel.tensor, panel.dtype, outside, tuple(outer[outside + 1 :]), tile, columns, depth)

    @property
    def size(self) -> int:
        """Elements of a piece."""
        return self.columns * self.depth

    @property
    def size_bytes(self) -> int:
        return self.size * self.dtype.size_bytes

    def buffers(self, stages: int) -> tuple[Buffer, ...]:
        """In shared memory: a piece and a barrier for each stage."""
        pieces = Buffer(self.name, (stages, self.size), self.dtype, Scope.SHARED)
        return pieces, Buffer(self._barriers, (stages,), DType.I64, Scope.SHARED)

    @property
    def _barriers(self) -> str:
        return f"{self.name}_arrived"

    def _barrier(self, stage: Expr) -> Load:
        return Load(self._barriers, (stage,), DType.I64)

    def begun(self, stages: int) -> Stmt:
        """Set all barriers up, before anything is copied."""
        first = unrolled(Block((Do("mbarrier.init", (self._barrier(Var("s")),), ()),)), s=stages)
        return Block((If(op("eq", Var(THREAD), 0), first), Barrier()))

    def filled(self, step: Expr, stage: Expr) -> Stmt:
        """Have what a round needs brought, and say how much that is."""
        outside = (const(0) for _ in range(self.outside))
        index = (*outside, self.tile, *digits(step, self.rounds), lined(const(0), self.size))
        source = Load(self.tensor, index, self.dtype)
        piece = Load(self.name, (stage, lined(const(0), self.size)), self.dtype)
        barrier = self._barrier(stage)
        expected = Do(f"mbarrier.expect.{self.size_bytes}", (), (barrier,))
        copied = Do(f"cp.async.bulk.{self.size_bytes}", (piece,), (barrier, source))
        return If(op("eq", Var(THREAD), 0), Block((expected, copied)))

    def awaited(self, step: Expr, stages: int) -> tuple[Stmt, ...]:
        """Until what the round number `step` of this block needs is there."""
        phase = Load(PHASE, (const(0),), DType.I32)
        number = op("cast", step // stages % 2, dtype=DType.I32)
        return Store(PHASE, (const(0),), number), Do("mbarrier.wait", (), (self._barrier(step % stages), phase))

    def named(self, stage: Expr, part: Expr, row: Expr, chunk_number: Expr) -> Load:
        """A chunk of a row of a part, each of which has `PANEL`."""
        each = chunk(self.dtype)
        place = (chunk_number * self.columns + part * PANEL + row) * each
        return Load(self.name, (stage, lined(place, each)), self.dtype)
