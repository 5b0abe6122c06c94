"""Instructions of four warps of Hopper: products of matrices in shared memory, which go on while the warps do.

A matrix of 16-bit elements lies in panels of 64 elements, 128 bytes, by some rows: along the reduction ("k") or across
it ("mn"), eight rows after each other. A product reads 16 places of the reduction.

Sections are those of "PTX ISA", release 9.0, 9.7.15, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..expr import Expr
from ..ir import Scope
from .gpu import WARP
from .instruction import BF16, F16, F32, Array, Instruction, Matrix, Operand, Order, Queue, nothing, same

ARCH = "sm_90a"
"""The only architecture that has them."""

GROUP = 4 * WARP
"""Threads of a warpgroup."""

ROWS, DEPTH = 64, 16
"""Of one product."""

PANEL = 64
"""Elements of a row of a panel; rows of an operand that one instruction's threads name, 16 bytes each."""

COLUMNS = (64, 128, 256)
"""Of one product, of those that there are."""

CHUNK_BYTES, ROW_BYTES, ATOM_BYTES = 16, 128, 1024
"""What a thread names; a row of a panel; eight rows of one."""

PANEL_ROWS = 64
"""Of a panel whose rows are places of the reduction: a round's."""

PRELUDE = """\
static __device__ __forceinline__ unsigned long long matrix_at(const void* place) {
  const unsigned long long start = (shared_place(place) & 0x3ffff) >> 4;
  return start | LEADING << 16 | STRIDE << 32 | 1ull << 62;
}
""".replace("LEADING", f"{PANEL_ROWS * ROW_BYTES >> 4}ull").replace("STRIDE", f"{ATOM_BYTES >> 4}ull")
"""The descriptor of a matrix: 9.7.15.5.1.2.2. Chunks are exchanged over 128 bytes; the distance of eight rows, and of
panels side by side."""


Number = TypeVar("Number", Expr, NDArray[np.int64])


def named(lies: str, thread: Number) -> tuple[Number, Number]:
    """The row and the chunk that a thread of a group names of 64 places along an operand by 16 of the reduction.

    `lies`: "k" of rows along the reduction, of which two chunks are read; "mn" of rows across, of which sixteen are.
    """
    rows = PANEL if lies == "k" else DEPTH
    return thread % rows, thread // rows


def places(lies: str, part: int) -> tuple[int, ...]:
    """See `Matrix`: of part `part`, each 64 places along an operand."""
    row, chunk = named(lies, np.arange(GROUP))
    before = part * PANEL * ROW_BYTES if lies == "k" else part * PANEL_ROWS * ROW_BYTES
    return tuple((before + row * ROW_BYTES + chunk * CHUNK_BYTES).tolist())


LIES = ("k", "mn")
"""How a matrix may lie."""


def sum_map(columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the elements of D, 64 x columns, that each thread has: (128, columns / 2)."""
    thread, element = np.meshgrid(np.arange(GROUP), np.arange(ROWS * columns // GROUP), indexing="ij")
    warp, lane = thread // WARP, thread % WARP
    return 16 * warp + lane // 4 + 8 * (element // 2 % 2), 8 * (element // 4) + 2 * (lane % 4) + element % 2


def _matrix(lies: str, parts: tuple[Array, ...]) -> Array:
    """What threads named, as matrices (groups, rows, 16) of float32."""
    found = []
    for part in parts:
        chunks = part.astype(np.float32).reshape(-1, GROUP, 8)
        if lies == "k":
            found.append(chunks.reshape(-1, 2, 64, 8).transpose(0, 2, 1, 3).reshape(-1, 64, DEPTH))
        else:
            found.append(chunks.reshape(-1, 8, DEPTH, 8).transpose(0, 1, 3, 2).reshape(-1, PANEL, DEPTH))
    return np.concatenate(found, axis=1)


def _product(left: str, right: str, columns: int, *operands: Array) -> tuple[Array]:
    """D = A B + C of each group."""
    a, *b, c = operands
    rows, across = sum_map(columns)
    total = np.zeros((a.shape[0] * WARP // GROUP, ROWS, columns), np.float32)
    total[:, rows, across] = c.reshape(-1, GROUP, c.shape[-1])
    total = total + _matrix(left, (a,)) @ _matrix(right, tuple(b)).swapaxes(1, 2)
    return (total[:, rows, across].reshape(c.shape),)


def _wgmma(columns: int, name: str, operand: np.dtype[Any], left: str, right: str) -> Instruction:
    """A product of 64 x 16 by 16 x columns."""
    count = ROWS * columns // GROUP
    sums = Operand(Scope.REGISTER, F32, 4 * count)
    parts = columns // PANEL
    matrices = [Operand(Scope.SHARED, operand, CHUNK_BYTES, Matrix(0, places(left, 0)))]
    matrices += [Operand(Scope.SHARED, operand, CHUNK_BYTES, Matrix(1, places(right, part))) for part in range(parts)]
    registers = ", ".join(f"%{n}" for n in range(count))
    turned = ", ".join(str(int(lies == "mn")) for lies in (left, right))
    given = ", ".join(f'"+f"(d[{n}])' for n in range(count))
    words = f"wgmma.mma_async.sync.aligned.m64n{columns}k{DEPTH}.f32.{name}.{name}"
    body = (
        f'  asm volatile("{{ .reg .pred more; setp.eq.u32 more, 0, 0;\\n"\n'
        f'      "{words} {{{registers}}}, %{count}, %{count + 1}, more, 1, 1, {turned}; }}"\n'
        f"      : {given}\n"
        f'      : "l"(matrix_at(a)), "l"(matrix_at(b0)) : "memory");\n'
    )
    return Instruction(
        f"wgmma.m64n{columns}k{DEPTH}.f32.{name}.{left}.{right}",
        (sums,),
        (*matrices, sums),
        ("float* d", "const void* a", *(f"const void* b{part}" for part in range(parts)), "const float* c"),
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


def _hold(count: int) -> Instruction:
    """Nothing, with so many registers: whatever is computed in them is there before, and not used until after.

    The compiler knows neither that a fence is about the registers of sums nor that a wait is.
    """
    given = ", ".join(f'"+f"(d[{n}])' for n in range(count))
    sums = Operand(Scope.REGISTER, F32, 4 * count)
    body = f'  asm volatile("" : {given} :: "memory");\n'
    pointers = "float* d", "const float* c"
    reference = "PTX ISA, 9.7.15.7.1, wgmma.fence"
    return Instruction(
        f"hold.{count}", (sums,), (sums,), pointers, body, same, reference, 80, threads=1, is_in_place=True
    )


def _order(name: str, words: str, reference: str, order: Order, **more: Any) -> Instruction:
    """An instruction without operands."""
    body = f'  asm volatile("{words};" ::: "memory");\n'
    reference = f"PTX ISA, {reference}"
    return Instruction(name, (), (), (), body, nothing, reference, 90, order, **more)


def _all() -> Iterator[Instruction]:
    for columns in COLUMNS:
        yield _hold(ROWS * columns // GROUP)
        for name, operand in (("f16", F16), ("bf16", BF16)):
            for left in LIES:
                for right in LIES:
                    yield _wgmma(columns, name, operand, left, right)
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
