"""Shared tiles: tiles of operands, copied asynchronously into shared memory and read there by tensor cores.

An operand lies in shared memory as in global memory: with neighbours along the reduction or along its own axes. Where
no neighbours of what is narrow lie together on a multiple of four bytes there, it is copied one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, log2, prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.expr.index import form
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.instructions import warpgroup
from tunewright.codegen.ir.ir import Block, Buffer, Do, For, LoopKind, Scope, Stmt, Store, Swizzle

from .sides import OperandTile, ProductOperand

ROWS, COLUMNS = 16, 8
"""Rows and columns of one product of a warp."""

CHUNK_BYTES = 16
"""A row of a matrix that `ldmatrix` reads, the widest copy, and what a thread has of 16 rows of a product's operand."""

COPY_BYTES = 4, 8, 16
"""Sizes of one asynchronous copy."""

BANKS_BYTES = 128
"""Bytes of shared memory that are read at once."""

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
"""Bytes of a row of a product's operand in one register of a thread."""

THREAD = "thread"


def chunk(dtype: DType) -> int:
    """Elements of `CHUNK_BYTES`."""
    return CHUNK_BYTES // dtype.size_bytes


def product_depth(dtype: DType) -> int:
    """Terms of a sum that one product of a warp adds: two chunks of each row."""
    return 2 * chunk(dtype)


def shared_layout(is_deep: bool) -> str:
    """The name of an operand's layout in shared memory, where it is copied as it is."""
    return "k" if is_deep else "mn"


def chunk_index(is_deep: bool, stage: Expr, part: Expr, k: Expr, dtype: DType) -> tuple[Expr, ...]:
    """The chunk that a thread names, in a buffer of rows of 128 bytes: (stages, places, depth) of an operand that is
    deep, else (stages, panels, depth, places of a panel).
    """
    size, deep = chunk(dtype), product_depth(dtype)
    row, number = warpgroup.chunk_of(shared_layout(is_deep), Var(THREAD) % warpgroup.GROUP)
    if is_deep:
        return stage, part * warpgroup.PANEL + row, ramp(k * deep + number * size, size)
    return stage, part, k * deep + row, ramp(number * size, size)


@dataclass(frozen=True, slots=True)
class SharedOperand:
    """A tile of an operand in shared memory, by the name of its buffer, as products of warpgroups take it."""

    name: str
    tile: OperandTile

    @property
    def dtype(self) -> DType:
        return self.tile.operand.load.dtype

    @property
    def layout(self) -> str:
        """How the operand lies in shared memory: see `warpgroup.chunk_of`."""
        return shared_layout(self.tile.operand.is_deep)

    def chunk(self, stage: Expr, part: Expr, k: Expr) -> Load:
        """See `SharedMatrix.chunk`."""
        return self.at(*chunk_index(self.tile.operand.is_deep, stage, part, k, self.dtype))

    def at(self, *index: Expr) -> Load:
        """A place in shared memory, by the indices of the buffer."""
        return Load(self.name, index, self.dtype)


@dataclass(frozen=True, slots=True)
class SharedTile(SharedOperand):
    """A tile that the threads of a block copy themselves: its copies and its fragments."""

    is_left: bool  # of the products of warps
    wide: int  # elements of one copy
    panel: int = 0  # elements of a row, if rows are cut into panels, which lie after each other; a power of two

    def buffers(self, stages: int) -> tuple[Buffer]:
        """The buffer: rows of neighbours, swizzled so that what is read together is in different banks."""
        tile = self.tile
        rows, columns = (tile.extent, tile.block_depth) if tile.operand.is_deep else (tile.block_depth, tile.extent)
        dtype = tile.operand.load.dtype
        shape = (columns // self.panel, rows, self.panel) if self.panel else (rows, columns)
        read_width = chunk(dtype) if tile.operand.is_deep else max(COLUMNS, self.wide)
        return (Buffer(self.name, (stages, *shape), dtype, Scope.SHARED, _swizzle(shape[-1], dtype, read_width)),)

    def _place(self, stage: Expr, along: Expr, deep: Expr, wide: int) -> Load:
        """Neighbours in shared memory."""
        row, column = (along, deep) if self.tile.operand.is_deep else (deep, along)
        if not self.panel:
            return self.at(stage, row, ramp(column, wide))
        number, accesses = column // wide, self.panel // wide
        return self.at(stage, number // accesses, row, ramp(number % accesses * wide, wide))

    def fill(self, step: Expr, stage: Expr) -> Stmt:
        """Copy the tile of a round; zeros beyond the edges."""
        wide, tile = self.wide, self.tile
        dtype = tile.operand.load.dtype

        def copy_at(n: Expr, along: Expr, deep: Expr) -> Stmt:
            to, element = self._place(stage, along, deep, wide), tile.element(step, along, deep, wide)
            copy: Stmt = Store(to.tensor, to.index, element)
            if (copy_bytes := wide * dtype.size_bytes) in COPY_BYTES:
                assert isinstance(element, Load)
                copy = Do(f"cp.async.{copy_bytes}", (to,), (element,))
            stmt = tile.inside(step, along, deep, copy)
            if stmt is copy:
                return stmt
            zeros = Store(to.tensor, to.index, const(0.0, dtype))
            return Block((stmt, tile.outside(step, along, deep, zeros)))

        return tile.for_each(wide, copy_at)

    def fragment(self, to: Load, stage: Expr, along: Expr, deep: Expr) -> Stmt:
        """Four matrices of 8 places along the operand by a chunk in depth, each lane naming a row of one of them.

        They come in the order of the registers: of the left operand, of which they make the one of a product, its own
        axis moves first; of the right one, of which they make those of two products, depth does.
        """
        size, lane = chunk(to.dtype), Var(THREAD) % WARP
        more_along, more_deep = self._matrix(lane // 8, size)
        row, along_it, deep_in_it = lane % 8, along + more_along, deep + more_deep
        if self.tile.operand.is_deep:
            return Do("ldmatrix.x4", (to,), (self._place(stage, along_it + row, deep_in_it, size),))
        if to.dtype.is_narrow:
            return Do("ldmatrix.x4.trans", (to,), (self._place(stage, along_it, deep_in_it + row, size),))
        return Block(tuple(self._load_singly(to, stage, along, deep)))

    def _load_singly(self, to: Load, stage: Expr, along: Expr, deep: Expr) -> Iterator[Stmt]:
        """Load elements across the rows one by one, as no instruction transposes them."""
        size, lane = chunk(to.dtype), Var(THREAD) % WARP
        count = REGISTER_BYTES // to.dtype.size_bytes
        for matrix in range(4):
            more_along, more_deep = self._matrix(const(matrix), size)
            for n in range(count):
                own_deep = deep + more_deep + lane % 4 * count + n
                source = self._place(stage, along + more_along + lane // 4, own_deep, 1)
                yield Store(to.tensor, (*to.index[:-1], const(matrix * count + n)), source)

    def _matrix(self, number: Expr, depth: int) -> tuple[Expr, Expr]:
        """The first index of a fragment's matrix, along the operand and in depth."""
        second, third = number % 2, number // 2
        return (second * 8, third * depth) if self.is_left else (third * 8, second * depth)


def unroll(stmt: Stmt, **extents: int) -> Stmt:
    """The statement in unrolled loops, by variable, the outermost first."""
    for name, extent in reversed(extents.items()):
        stmt = For(name, extent, stmt, LoopKind.UNROLL)
    return stmt


def _swizzle(columns: int, dtype: DType, wide: int) -> Swizzle:
    """For rows of so many elements, a power of two, of which so many neighbours are read at once, of as many rows below
    each other as fill the banks.
    """
    bits, base = int(log2(columns)), int(log2(wide))
    most = int(log2(BANKS_BYTES // (wide * dtype.size_bytes)))
    return Swizzle(min(most, bits - base), base, max(most, bits - base))


def width(operand: ProductOperand, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Elements of one copy: as many as lie on a multiple of their size wherever they are read, else one.

    By the shapes of the tensors that are read.
    """
    shape = shapes[operand.load.tensor]
    aligned = _alignment(operand.load, shape, operand.last.name)
    widths = (copy_bytes // operand.load.dtype.size_bytes for copy_bytes in reversed(COPY_BYTES))
    return operand.wide([wide for wide in widths if aligned % wide == 0])


def _alignment(operand: Load, shape: tuple[int, ...], last: str) -> int:
    """The greatest divisor of all flat indices that are read, without the axis `last`; 0 if all are 0."""
    divisor = 0
    for d, at in enumerate(operand.index):
        linear, stride = form(at), prod(shape[d + 1 :])
        terms = [coefficient for atom, coefficient in linear.terms.items() if atom != Var(last)]
        divisor = gcd(divisor, *(number * stride for number in (linear.constant, *terms)))
    return divisor
