"""Shared tiles: tiles of operands, copied asynchronously into shared memory and read there by tensor cores.

An operand lies in shared memory as in global memory: with neighbours along the reduction or along its own axes. Where
no neighbours of what is narrow lie together on a multiple of four bytes there, it is copied one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, log2, prod

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const
from tunewright.codegen.index import form
from tunewright.codegen.ir import Block, Buffer, Do, For, LoopKind, Scope, Stmt, Store, Swizzle
from tunewright.codegen.lanes import lined

from .operand_tile import Operand, OperandTile

ROWS, COLUMNS = 16, 8
"""Of one product of a warp."""

CHUNK_BYTES = 16
"""A row of a matrix that `ldmatrix` reads, the widest copy, and what a thread has of 16 rows of a product's operand."""

COPY_BYTES = 4, 8, 16
"""Of one asynchronous copy."""

BANKS_BYTES = 128
"""Of shared memory that are read at once."""

PRODUCTS = {
    (DType.F16, DType.F16): "mma.m16n8k16.f32.f16",
    (DType.BF16, DType.BF16): "mma.m16n8k16.f32.bf16",
    (DType.F32, DType.F32): "mma.m16n8k8.f32.tf32",
    (DType.I8, DType.I8): "mma.m16n8k32.s32.s8.s8",
    (DType.I8, DType.U8): "mma.m16n8k32.s32.s8.u8",
    (DType.U8, DType.I8): "mma.m16n8k32.s32.u8.s8",
    (DType.U8, DType.U8): "mma.m16n8k32.s32.u8.u8",
}
"""The instruction for the types of the left operand and the right one."""

REGISTER_BYTES = 4
"""A thread has so many of a row of a product's operand at once."""

THREAD = "thread"


def chunk(dtype: DType) -> int:
    """Elements of `CHUNK_BYTES`."""
    return CHUNK_BYTES // dtype.size_bytes


def product_depth(dtype: DType) -> int:
    """Terms of a sum that one product of a warp adds: two chunks of each row."""
    return 2 * chunk(dtype)


@dataclass(frozen=True, slots=True)
class SharedTile:
    """An operand's tile on its way: into shared memory, and from there to those who multiply."""

    name: str
    tile: OperandTile
    is_left: bool  # of the products of warps
    wide: int  # elements of one copy
    panel: int = 0  # elements of a row, if rows are cut into panels, which lie after each other; a power of two

    def buffers(self, stages: int) -> tuple[Buffer]:
        """Rows of neighbours, exchanged so that what is read at once of some rows is in different banks."""
        tile = self.tile
        rows, columns = (tile.extent, tile.block_depth) if tile.operand.is_deep else (tile.block_depth, tile.extent)
        dtype = tile.operand.load.dtype
        shape = (columns // self.panel, rows, self.panel) if self.panel else (rows, columns)
        together = chunk(dtype) if tile.operand.is_deep else max(COLUMNS, self.wide)
        return (Buffer(self.name, (stages, *shape), dtype, Scope.SHARED, _swizzle(shape[-1], dtype, together)),)

    def _place(self, stage: Expr, along: Expr, deep: Expr, wide: int) -> Load:
        """Neighbours in shared memory."""
        row, column = (along, deep) if self.tile.operand.is_deep else (deep, along)
        if not self.panel:
            return self.at(stage, row, lined(column, wide))
        number, each = column // wide, self.panel // wide
        return self.at(stage, number // each, row, lined(number % each * wide, wide))

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
            if (copy_bytes := wide * dtype.size_bytes) in COPY_BYTES:
                assert isinstance(element, Load)
                moved = Do(f"cp.async.{copy_bytes}", (to,), (element,))
            stmt = tile.inside(step, along, deep, moved)
            if stmt is moved:
                return stmt
            zeros = Store(to.tensor, to.index, const(0.0, dtype))
            return Block((stmt, tile.outside(step, along, deep, zeros)))

        return tile.each(wide, one)

    def fragment(self, to: Load, stage: Expr, along: Expr, deep: Expr) -> Stmt:
        """Four matrices of 8 places along the operand by a chunk in depth, each lane naming a row of one of them.

        They come in the order of the registers: of the left operand, of which they make the one of a product, its own
        axis moves first; of the right one, of which they make those of two products, depth does.
        """
        each, lane = chunk(to.dtype), Var(THREAD) % WARP
        more_along, more_deep = self._matrix(lane // 8, each)
        row, along_it, deep_in_it = lane % 8, along + more_along, deep + more_deep
        if self.tile.operand.is_deep:
            return Do("ldmatrix.x4", (to,), (self._place(stage, along_it + row, deep_in_it, each),))
        if to.dtype.is_narrow:
            return Do("ldmatrix.x4.trans", (to,), (self._place(stage, along_it, deep_in_it + row, each),))
        return Block(tuple(self._singly(to, stage, along, deep)))

    def _singly(self, to: Load, stage: Expr, along: Expr, deep: Expr) -> Iterator[Stmt]:
        """What lies across, of elements that no instruction turns: one by one."""
        each, lane = chunk(to.dtype), Var(THREAD) % WARP
        together = REGISTER_BYTES // to.dtype.size_bytes
        for matrix in range(4):
            more_along, more_deep = self._matrix(const(matrix), each)
            for n in range(together):
                own_deep = deep + more_deep + lane % 4 * together + n
                source = self._place(stage, along + more_along + lane // 4, own_deep, 1)
                yield Store(to.tensor, (*to.index[:-1], const(matrix * together + n)), source)

    def _matrix(self, number: Expr, each: int) -> tuple[Expr, Expr]:
        """Where the matrices of a fragment begin, which are so deep: along the operand, and in depth."""
        second, third = number % 2, number // 2
        return (second * 8, third * each) if self.is_left else (third * 8, second * each)


def unrolled(stmt: Stmt, **extents: int) -> Stmt:
    """The statement in unrolled loops, by variable, the outermost first."""
    for name, extent in reversed(extents.items()):
        stmt = For(name, extent, stmt, LoopKind.UNROLL)
    return stmt


def _swizzle(columns: int, dtype: DType, together: int) -> Swizzle:
    """For rows of so many elements, a power of two, of which so many neighbours are read at once, of as many rows below
    each other as fill the banks.
    """
    bits, base = int(log2(columns)), int(log2(together))
    most = int(log2(BANKS_BYTES // (together * dtype.size_bytes)))
    return Swizzle(min(most, bits - base), base, max(most, bits - base))


def width(operand: Operand, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Elements of one copy: as many as lie on a multiple of their size wherever they are read, else one.

    By the shapes of the tensors that are read.
    """
    shape = shapes[operand.load.tensor]
    aligned = _aligned(operand.load, shape, operand.last.name)
    widths = (copy_bytes // operand.load.dtype.size_bytes for copy_bytes in reversed(COPY_BYTES))
    return operand.wide([wide for wide in widths if aligned % wide == 0])


def _aligned(operand: Load, shape: tuple[int, ...], last: str) -> int:
    """What divides the number of any element that is read, but for its place along the axis `last`; 0 of 0 alone."""
    found = 0
    for d, at in enumerate(operand.index):
        known, stride = form(at), prod(shape[d + 1 :])
        terms = [coefficient for atom, coefficient in known.terms.items() if atom != Var(last)]
        found = gcd(found, *(number * stride for number in (known.constant, *terms)))
    return found
