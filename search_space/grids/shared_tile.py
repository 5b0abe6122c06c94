"""Shared tiles: tiles of narrow operands, copied asynchronously into shared memory and read there by tensor cores.

An operand lies in shared memory as in global memory: with neighbours along the reduction or along its own axes. Where
its memory has no 2, 4 or 8 neighbours on an even place, elements are copied one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, log2, prod

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const
from tunewright.codegen.index import form
from tunewright.codegen.ir import Block, Buffer, Do, For, LoopKind, Scope, Stmt, Store, Swizzle
from tunewright.codegen.lanes import lined

from .operand_tile import Operand, OperandTile

ROWS, COLUMNS, DEPTH = 16, 8, 16
"""Of one product of a warp."""

CHUNK = 8
"""Elements of 16 bytes: a row of a matrix that `ldmatrix` reads, and the widest copy."""

BANKS_BYTES = 128
"""Of shared memory that are read at once."""

PRODUCTS = {DType.F16: "mma.m16n8k16.f32.f16", DType.BF16: "mma.m16n8k16.f32.bf16"}
"""The instruction for each type of operands."""

THREAD = "thread"


@dataclass(frozen=True, slots=True)
class SharedTile:
    """An operand's tile on its way: into shared memory, and from there to those who multiply."""

    name: str
    tile: OperandTile
    is_left: bool  # of the products of warps
    wide: int  # elements of one copy
    panel: int = 0  # elements of a row, if rows are cut into panels, which lie after each other; a power of two

    def buffer(self, stages: int) -> Buffer:
        """Rows of neighbours, whose chunks are exchanged so that those of eight rows are in different banks."""
        tile = self.tile
        rows, columns = (tile.extent, tile.block_depth) if tile.operand.is_deep else (tile.block_depth, tile.extent)
        dtype = tile.operand.load.dtype
        shape = (columns // self.panel, rows, self.panel) if self.panel else (rows, columns)
        return Buffer(self.name, (stages, *shape), dtype, Scope.SHARED, _swizzle(shape[-1], dtype))

    def _place(self, stage: Expr, along: Expr, deep: Expr, wide: int) -> Load:
        """Neighbours in shared memory."""
        row, column = (along, deep) if self.tile.operand.is_deep else (deep, along)
        if not self.panel:
            return self.at(stage, row, lined(column, wide))
        chunk, chunks = column // wide, self.panel // wide
        return self.at(stage, chunk // chunks, row, lined(chunk % chunks * wide, wide))

    def at(self, *index: Expr) -> Load:
        """A place in shared memory, by the indices of the buffer."""
        return Load(self.name, index, self.tile.operand.load.dtype)

    def filled(self, step: Expr, stage: Expr) -> Stmt:
        """Bring what a round needs; zeros beyond the edges."""
        wide, tile = self.wide, self.tile
        dtype = tile.operand.load.dtype

        def one(n: Expr, along: Expr, deep: Expr) -> Stmt:
            to, element = self._place(stage, along, deep, wide), tile.element(step, along, deep, wide)
            moved: Stmt = Store(to.tensor, to.index, element)
            if wide > 1:
                assert isinstance(element, Load)
                moved = Do(f"cp.async.{wide * dtype.size_bytes}", (to,), (element,))
            stmt = tile.inside(step, along, deep, moved)
            if stmt is moved:
                return stmt
            zeros = Store(to.tensor, to.index, const(0.0, dtype))
            return Block((stmt, tile.outside(step, along, deep, zeros)))

        return tile.each(wide, one)

    def fragment(self, to: Load, stage: Expr, along: Expr, deep: Expr) -> Stmt:
        """Four matrices of 8 x 8: 16 places along the operand by 16 in depth, each lane naming a row of one of them.

        They come in the order of the registers: of the left operand, of which they make one 16 x 16, its own axis moves
        first; of the right one, of which they make two 16 x 8, depth does.
        """
        lane = Var(THREAD) % WARP
        row, second, third = lane % 8, lane // 8 % 2 * 8, lane // 16 * 8
        more_along, more_deep = (second, third) if self.is_left else (third, second)
        if self.tile.operand.is_deep:
            source = self._place(stage, along + more_along + row, deep + more_deep, CHUNK)
            return Do("ldmatrix.x4", (to,), (source,))
        source = self._place(stage, along + more_along, deep + more_deep + row, CHUNK)
        return Do("ldmatrix.x4.trans", (to,), (source,))


def unrolled(stmt: Stmt, **extents: int) -> Stmt:
    """The statement in unrolled loops, by variable, the outermost first."""
    for name, extent in reversed(extents.items()):
        stmt = For(name, extent, stmt, LoopKind.UNROLL)
    return stmt


def _swizzle(columns: int, dtype: DType) -> Swizzle:
    """For rows of so many elements, a power of two, of which eight below each other are read at once."""
    bits, base = int(log2(columns)), int(log2(CHUNK))
    most = int(log2(BANKS_BYTES // (CHUNK * dtype.size_bytes)))
    return Swizzle(min(most, bits - base), base, max(most, bits - base))


def width(operand: Operand, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Elements of one copy: as many as lie on a multiple of their size wherever they are read.

    By the shapes of the tensors that are read.
    """
    shape = shapes[operand.load.tensor]
    aligned = _aligned(operand.load, shape, operand.last.name)
    return operand.wide([wide for wide in (CHUNK, 4, 2) if aligned % wide == 0])


def _aligned(operand: Load, shape: tuple[int, ...], last: str) -> int:
    """What divides the number of any element that is read, but for its place along the axis `last`; 0 of 0 alone."""
    found = 0
    for d, at in enumerate(operand.index):
        known, stride = form(at), prod(shape[d + 1 :])
        terms = [coefficient for atom, coefficient in known.terms.items() if atom != Var(last)]
        found = gcd(found, *(number * stride for number in (known.constant, *terms)))
    return found
