"""Instructions of four warps of Hopper: products of matrices in shared memory, which go on while the warps do.

A matrix lies in panels of 128 bytes by some rows: along the reduction ("k") or across it ("mn"), eight rows after each
other. A product reads 32 bytes along the reduction, of elements of 16 bits or of bytes, which can't lie across it.

Sections are those of "PTX ISA", release 9.0, 9.7.15, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..expr import Expr
from ..ir import Scope
from .gpu import WARP
from .instruction import BF16, F16, F32, S8, S32, U8, Array, Instruction, Matrix, Operand, Order, Queue, nothing, same

ARCH = "sm_90a"
"""The only architecture that has them."""

GROUP = 4 * WARP
"""Threads of a warpgroup."""

ROWS = 64
"""Of one product."""

PANEL = 64
"""Elements of 16 bits in a row of a panel; rows of an operand that one instruction's threads name, 16 bytes each."""

COLUMNS = (64, 128, 256)
"""Of one product, of those that there are."""

CHUNK_BYTES, DEPTH_BYTES, ROW_BYTES, ATOM_BYTES = 16, 32, 128, 1024
"""What a thread names; what one product reads along the reduction; a row of a panel; eight rows of one."""

PANEL_ROWS = 64
"""Of a panel whose rows are places of the reduction: a round's."""


def depth(bytes_each: int) -> int:
    """Places of the reduction that one product reads."""
    return DEPTH_BYTES // bytes_each


PRELUDE = """\
static __device__ __forceinline__ unsigned long long matrix_at(const void* place) {
  const unsigned long long start = (shared_place(place) & 0x3ffff) >> 4;
  return start | LEADING << 16 | STRIDE << 32 | 1ull << 62;
}
static __device__ __forceinline__ unsigned long long packed_at(const void* place, unsigned long long rows) {
  const unsigned long long start = (shared_place(place) & 0x3ffff) >> 4;
  return start | rows << 16 | 8ull << 32;
}
""".replace("LEADING", f"{PANEL_ROWS * ROW_BYTES >> 4}ull").replace("STRIDE", f"{ATOM_BYTES >> 4}ull")
"""The descriptor of a matrix: 9.7.15.5.1.2.2. Chunks are exchanged over 128 bytes; the distance of eight rows, and of
panels side by side. What is packed lies chunk by chunk, all rows of one after each other."""


Number = TypeVar("Number", Expr, NDArray[np.int64])


def named(lies: str, thread: Number) -> tuple[Number, Number]:
    """The row and the chunk that a thread of a group names of 64 places along an operand, for one product.

    `lies`: "k" of rows along the reduction, of which two chunks are read; "mn" of rows across, of which sixteen are.
    """
    rows = depth(2) if lies == "mn" else PANEL
    return thread % rows, thread // rows


def places(lies: str, part: int, rows: int = ROWS) -> tuple[int, ...]:
    """See `Matrix`: of part `part`, each 64 places along an operand, which has so many in all."""
    row, chunk = named(lies, np.arange(GROUP))
    if lies == PACKED:
        return tuple(((chunk * rows + part * PANEL + row) * CHUNK_BYTES).tolist())
    before = part * PANEL * ROW_BYTES if lies == "k" else part * PANEL_ROWS * ROW_BYTES
    return tuple((before + row * ROW_BYTES + chunk * CHUNK_BYTES).tolist())


LIES = ("k", "mn")
"""How a matrix may lie that was copied as it is."""

PACKED = "packed"
"""How a right one lies that was packed: by chunks of 16 bytes along the reduction."""

OPERANDS = {"f16": F16, "bf16": BF16, "s8": S8, "u8": U8}
"""Their types, as instructions name them."""


class Sums(NamedTuple):
    """Sums of a type: in numpy, in CUDA C, and the kind of register."""

    dtype: np.dtype[Any]
    kind: str
    letter: str


SUMS = {"f32": Sums(F32, "float", "f"), "s32": Sums(S32, "int", "r")}
"""Of products, by the name of their type."""


def sum_map(columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the elements of D, 64 x columns, that each thread has: (128, columns / 2)."""
    thread, element = np.meshgrid(np.arange(GROUP), np.arange(ROWS * columns // GROUP), indexing="ij")
    warp, lane = thread // WARP, thread % WARP
    return 16 * warp + lane // 4 + 8 * (element // 2 % 2), 8 * (element // 4) + 2 * (lane % 4) + element % 2


def _matrix(lies: str, parts: tuple[Array, ...], wide: np.dtype[Any]) -> Array:
    """What threads named, as matrices (groups, rows, places of the reduction) in the type of sums."""
    found = []
    for part in parts:
        each, deep = part.shape[-1], 2 * part.shape[-1]
        chunks = part.astype(wide).reshape(-1, GROUP, each)
        if lies != "mn":
            found.append(chunks.reshape(-1, 2, 64, each).transpose(0, 2, 1, 3).reshape(-1, 64, deep))
        else:
            found.append(chunks.reshape(-1, 8, deep, each).transpose(0, 1, 3, 2).reshape(-1, PANEL, deep))
    return np.concatenate(found, axis=1)


def _product(left: str, right: str, columns: int, *operands: Array) -> tuple[Array]:
    """D = A B + C of each group."""
    a, *b, c = operands
    rows, across = sum_map(columns)
    total = np.zeros((a.shape[0] * WARP // GROUP, ROWS, columns), c.dtype)
    total[:, rows, across] = c.reshape(-1, GROUP, c.shape[-1])
    total = total + _matrix(left, (a,), c.dtype) @ _matrix(right, tuple(b), c.dtype).swapaxes(1, 2)
    return (total[:, rows, across].reshape(c.shape),)


def _wgmma(columns: int, kinds: tuple[str, str], wide: str, lies: tuple[str, str]) -> Instruction:
    """A product of 64 rows by so many columns, of two types of operands."""
    count, (left, right), (one, other) = ROWS * columns // GROUP, lies, kinds
    sums = Operand(Scope.REGISTER, SUMS[wide].dtype, 4 * count)
    parts = columns // PANEL
    matrices = [Operand(Scope.SHARED, OPERANDS[one], CHUNK_BYTES, Matrix(0, places(left, 0)))]
    matrices += [
        Operand(Scope.SHARED, OPERANDS[other], CHUNK_BYTES, Matrix(1, places(right, part, columns), right != PACKED))
        for part in range(parts)
    ]
    described = f"packed_at(b0, {columns}ull)" if right == PACKED else "matrix_at(b0)"
    registers = ", ".join(f"%{n}" for n in range(count))
    # Only floats can be negated, and turned.
    further = "".join(f", {n}" for n in (1, 1, int(left == "mn"), int(right == "mn"))) if wide == "f32" else ""
    shape = f"m{ROWS}n{columns}k{depth(OPERANDS[one].itemsize)}"
    words = f"wgmma.mma_async.sync.aligned.{shape}.{wide}.{one}.{other}"
    body = (
        f'  asm volatile("{{ .reg .pred more; setp.eq.u32 more, 0, 0;\\n"\n'
        f'      "{words} {{{registers}}}, %{count}, %{count + 1}, more{further}; }}"\n'
        f"      : {_changed(wide, count)}\n"
        f'      : "l"(matrix_at(a)), "l"({described}) : "memory");\n'
    )
    kind = SUMS[wide].kind
    return Instruction(
        f"wgmma.{shape}.{wide}.{one}.{other}.{left}.{right}",
        (sums,),
        (*matrices, sums),
        (f"{kind}* d", "const void* a", *(f"const void* b{part}" for part in range(parts)), f"const {kind}* c"),
        body,
        partial(_product, left, right, columns),
        "PTX ISA, 9.7.15.5.2, wgmma.mma_async",
        90,
        Order.COMMITTED,
        threads=GROUP,
        queue=Queue.PRODUCTS,
        is_in_place=True,
        arch=ARCH,
    )


def _changed(wide: str, count: int) -> str:
    """So many registers of sums, as an `asm` is told of them."""
    return ", ".join(f'"+{SUMS[wide].letter}"(d[{n}])' for n in range(count))


def _hold(wide: str, count: int) -> Instruction:
    """Nothing, with so many registers: whatever is computed in them is there before, and not used until after.

    The compiler knows neither that a fence is about the registers of sums nor that a wait is.
    """
    kind = SUMS[wide].kind
    sums = Operand(Scope.REGISTER, SUMS[wide].dtype, 4 * count)
    body = f'  asm volatile("" : {_changed(wide, count)} :: "memory");\n'
    pointers = f"{kind}* d", f"const {kind}* c"
    reference = "PTX ISA, 9.7.15.7.1, wgmma.fence"
    return Instruction(
        f"hold.{wide}.{count}", (sums,), (sums,), pointers, body, same, reference, 80, threads=1, is_in_place=True
    )


def _order(name: str, words: str, reference: str, order: Order, **more: Any) -> Instruction:
    """An instruction without operands."""
    body = f'  asm volatile("{words};" ::: "memory");\n'
    reference = f"PTX ISA, {reference}"
    return Instruction(name, (), (), (), body, nothing, reference, 90, order, **more)


def _all() -> Iterator[Instruction]:
    for columns in COLUMNS:
        for wide in SUMS:
            yield _hold(wide, ROWS * columns // GROUP)
        for name in ("f16", "bf16"):
            for lies in product(LIES, (*LIES, PACKED)):
                yield _wgmma(columns, (name, name), "f32", lies)
        for one, other, right in product(("s8", "u8"), ("s8", "u8"), ("k", PACKED)):
            yield _wgmma(columns, (one, other), "s32", ("k", right))
    words = "fence.proxy.async.shared::cta"
    yield _order("fence.proxy.async", words, "9.7.13.4, membar, fence", Order.SHOW, shows=Scope.SHARED)
    only = {"threads": GROUP, "arch": ARCH}
    words = "wgmma.fence.sync.aligned"
    yield _order("wgmma.fence", words, "9.7.15.7.1, wgmma.fence", Order.SHOW, shows=Scope.REGISTER, **only)
    only |= {"queue": Queue.PRODUCTS}
    words, reference = "wgmma.commit_group.sync.aligned", "9.7.15.7.2, wgmma.commit_group"
    yield _order("wgmma.commit", words, reference, Order.COMMIT, **only)
    for pending in range(2):
        words, reference = f"wgmma.wait_group.sync.aligned {pending}", "9.7.15.7.3, wgmma.wait_group"
        yield _order(f"wgmma.wait.{pending}", words, reference, Order.WAIT, pending=pending, **only)


WARPGROUP = tuple(_all())
"""All of them."""
