"""Instructions of four warps of Hopper: products of matrices in shared memory, which go on while the warps do.

A matrix lies in panels of 128 bytes by some rows: along the reduction ("k") or across it ("mn"), eight rows after each
other. A product reads 32 bytes along the reduction, of elements of 16 bits or of bytes, which can't lie across it.

Sections are those of "PTX ISA", release 9.0, 9.7.15, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..expr.expr import Expr
from ..gpu import WARP, WARPGROUP_ARCH
from ..ir.ir import Scope
from .instruction import (
    OPERANDS,
    S32,
    SUMS,
    Array,
    Instruction,
    Matrix,
    OperandSpec,
    Order,
    Queue,
    asm,
    constraints,
    in_registers,
    in_shared,
    same,
    slots,
)

GROUP = 4 * WARP
"""Threads of a warpgroup."""

PAIR = 2 * GROUP
"""Threads that end a phase of a named barrier."""

HOPPER: Mapping[str, Any] = {"capability": 90, "threads": GROUP, "arch": WARPGROUP_ARCH}
"""What instructions of warpgroups have in common."""

ROWS = 64
"""Rows of one product."""

PANEL = 64
"""Elements of 16 bits in a row of a panel, and rows of an operand that one instruction addresses."""

COLUMNS = (64, 128, 192, 256)
"""Columns of one product: the sizes in use."""

CHUNK_BYTES, DEPTH_BYTES, ROW_BYTES, ATOM_BYTES = 16, 32, 128, 1024
"""Bytes that a thread addresses; that a product reads along the reduction; of a row of a panel; of eight rows."""

PANEL_ROWS = 64
"""Rows of a panel whose rows run across the reduction."""


def depth(bytes_each: int) -> int:
    """Elements along the reduction that one product reads."""
    return DEPTH_BYTES // bytes_each


PRELUDE = """\
static __device__ __forceinline__ unsigned long long matrix_at(const void* place) {
  const unsigned start = (shared_place(place) >> 4) + (LEADING << 16);
  return start | STRIDE << 32 | 1ull << 62;
}
static __device__ __forceinline__ unsigned long long packed_at(const void* place, unsigned rows) {
  const unsigned start = (shared_place(place) >> 4) + (rows << 16);
  return start | 8ull << 32;
}
""".replace("LEADING", f"{PANEL_ROWS * ROW_BYTES >> 4}u").replace("STRIDE", f"{ATOM_BYTES >> 4}ull")
"""The descriptor of a matrix: 9.7.15.5.1.2.2. Addresses of shared memory have 18 bits. Chunks are exchanged over 128
bytes; the distance of eight rows, and of panels side by side. What is packed lies chunk by chunk, all rows of one after
each other."""


Number = TypeVar("Number", Expr, NDArray[np.int64])


def chunk_of(major: str, thread: Number) -> tuple[Number, Number]:
    """The row and the chunk that a thread of a group addresses, of 64 rows or columns of an operand, for one product.

    `major`: "k" of rows along the reduction, of which two chunks are read; "mn" of rows across, of which sixteen are.
    """
    rows = depth(2) if major == "mn" else PANEL
    return thread % rows, thread // rows


def thread_offsets_bytes(major: str, part: int, rows: int = ROWS) -> tuple[int, ...]:
    """`Matrix.offsets_bytes` of one part: 64 rows or columns of an operand that has `rows` of them."""
    row, chunk = chunk_of(major, np.arange(GROUP))
    if major == PACKED:
        return tuple(((chunk * rows + part * PANEL + row) * CHUNK_BYTES).tolist())
    before = part * PANEL * ROW_BYTES if major == "k" else part * PANEL_ROWS * ROW_BYTES
    return tuple((before + row * ROW_BYTES + chunk * CHUNK_BYTES).tolist())


MAJORS = ("k", "mn")
"""Orders of a matrix that was copied unchanged: rows along the reduction, or across it."""

IN_REGISTERS = "r"
"""The left operand in registers, in the layout of `mma`: 16 rows in each warp."""

PACKED = "packed"
"""The right operand in a packed order: by chunks of 16 bytes along the reduction."""


def sum_map(columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the elements of D (64 x columns) in each thread, as arrays (128, columns / 2)."""
    thread, element = np.meshgrid(np.arange(GROUP), np.arange(ROWS * columns // GROUP), indexing="ij")
    warp, lane = thread // WARP, thread % WARP
    return 16 * warp + lane // 4 + 8 * (element // 2 % 2), 8 * (element // 4) + 2 * (lane % 4) + element % 2


def register_map() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the elements (64 x 16) in each thread's registers, as arrays (128, 8)."""
    thread, element = np.meshgrid(np.arange(GROUP), np.arange(8), indexing="ij")
    warp, lane = thread // WARP, thread % WARP
    row = 16 * warp + lane // 4 + 8 * (element // 2 % 2)
    return row, lane % 4 * 2 + element % 2 + 8 * (element // 4)


def _matrix(major: str, parts: tuple[Array, ...], wide: np.dtype[Any]) -> Array:
    """The chunks that threads address, as matrices (groups, rows, reduction) in the type of sums."""
    blocks = []
    if major == IN_REGISTERS:
        [part] = parts
        rows, columns = register_map()
        matrix = np.zeros((part.shape[0] * WARP // GROUP, ROWS, 16), wide)
        matrix[:, rows, columns] = part.astype(wide).reshape(-1, GROUP, 8)
        return matrix
    for part in parts:
        each, deep = part.shape[-1], 2 * part.shape[-1]
        chunks = part.astype(wide).reshape(-1, GROUP, each)
        if major != "mn":
            blocks.append(chunks.reshape(-1, 2, 64, each).transpose(0, 2, 1, 3).reshape(-1, 64, deep))
        else:
            blocks.append(chunks.reshape(-1, 8, deep, each).transpose(0, 1, 3, 2).reshape(-1, PANEL, deep))
    return np.concatenate(blocks, axis=1)


def _product(left: str, right: str, columns: int, is_first: bool, *operands: Array) -> tuple[Array]:
    """D = A B + C of each group; D = A B, if it is the first."""
    if is_first:
        operands = (*operands, np.zeros((*operands[0].shape[:-1], ROWS * columns // GROUP), np.float32))
    a, *b, c = operands
    rows, across = sum_map(columns)
    total = np.zeros((a.shape[0] * WARP // GROUP, ROWS, columns), c.dtype)
    total[:, rows, across] = c.reshape(-1, GROUP, c.shape[-1])
    total = total + _matrix(left, (a,), c.dtype) @ _matrix(right, tuple(b), c.dtype).swapaxes(1, 2)
    return (total[:, rows, across].reshape(c.shape),)


def _left_operand(kind: str, major: str) -> tuple[OperandSpec, str, list[str]]:
    """The left operand: what it is, the type of the pointer to it, and how it goes into an `asm`."""
    dtype = OPERANDS[kind]
    if major == IN_REGISTERS:
        return in_registers(dtype, CHUNK_BYTES), "unsigned", constraints("r", "a", 4).split(", ")
    return in_shared(CHUNK_BYTES, dtype, Matrix(0, thread_offsets_bytes(major, 0))), "void", ['"l"(matrix_at(a))']


def _wgmma(
    columns: int, kinds: tuple[str, str], wide: str, majors: tuple[str, str], *, is_first: bool = False
) -> Instruction:
    """A product of 64 rows by so many columns, of two types of operands; the first adds to nothing."""
    count, (left, right) = ROWS * columns // GROUP, majors
    sums, parts = in_registers(SUMS[wide].dtype, 4 * count), range(columns // PANEL)
    a, left_kind, inputs = _left_operand(kinds[0], left)
    matrices = (Matrix(1, thread_offsets_bytes(right, part, columns), right != PACKED) for part in parts)
    factors = (a, *(in_shared(CHUNK_BYTES, OPERANDS[kinds[1]], matrix) for matrix in matrices))
    inputs.append(f'"l"(packed_at(b0, {columns}u))' if right == PACKED else '"l"(matrix_at(b0))')
    left_slots = slots(count, 4) if left == IN_REGISTERS else f"%{count}"
    # Only floats can be negated, and those in shared memory transposed.
    signs = (1, 1, *(int(major == "mn") for major in majors if major != IN_REGISTERS)) if wide == "f32" else ()
    flags = "".join(f", {n}" for n in signs)
    words = f"m{ROWS}n{columns}k{depth(a.dtype.itemsize)}.{wide}.{kinds[0]}.{kinds[1]}" if a.dtype else ""
    body = (
        f'  asm volatile("{{ .reg .pred more; setp.{"ne" if is_first else "eq"}.u32 more, 0, 0;\\n"\n'
        f'      "wgmma.mma_async.sync.aligned.{words} {slots(0, count)}, {left_slots}, %{count + len(inputs) - 1}'
        f', more{flags}; }}"\n'
        f"      : {constraints(('=' if is_first else '+') + SUMS[wide].letter, 'd', count)}\n"
        f'      : {", ".join(inputs)} : "memory");\n'
    )
    pointers = [f"{SUMS[wide].kind}* d", f"const {left_kind}* a", *(f"const void* b{part}" for part in parts)]
    return Instruction(
        f"wgmma.{words}.{left}.{right}{'.first' if is_first else ''}",
        body,
        "9.7.15.5.2, wgmma.mma_async",
        outs=(sums,),
        ins=factors if is_first else (*factors, sums),
        parameters=", ".join(pointers if is_first else (*pointers, f"const {SUMS[wide].kind}* c")),
        meaning=partial(_product, left, right, columns, is_first),
        order=Order.ASYNC,
        queue=Queue.PRODUCTS,
        is_in_place=not is_first,
        **HOPPER,
    )


def _hold(wide: str, count: int) -> Instruction:
    """An empty `asm` that pins registers: their values are computed before it and used after it.

    The compiler does not know that a fence or a wait concerns the registers of sums.
    """
    kind, sums = SUMS[wide].kind, in_registers(SUMS[wide].dtype, 4 * count)
    return Instruction(
        f"hold.{wide}.{count}",
        f'  asm volatile("" : {constraints("+" + SUMS[wide].letter, "d", count)} :: "memory");\n',
        "9.7.15.7.1, wgmma.fence",
        outs=(sums,),
        ins=(sums,),
        parameters=f"{kind}* d, const {kind}* c",
        meaning=same,
        threads=1,
        is_in_place=True,
    )


def _products() -> Iterator[Instruction]:
    """The products of each size, and what holds their sums."""
    for columns in COLUMNS:
        for wide in SUMS:
            yield _hold(wide, ROWS * columns // GROUP)
        for name in ("f16", "bf16"):
            for majors in (*product(MAJORS, (*MAJORS, PACKED)), *product((IN_REGISTERS,), MAJORS)):
                yield _wgmma(columns, (name, name), "f32", majors)
            for majors in product(MAJORS, MAJORS):
                yield _wgmma(columns, (name, name), "f32", majors, is_first=True)
        for left, right, major in product(("s8", "u8"), ("s8", "u8"), ("k", PACKED)):
            yield _wgmma(columns, (left, right), "s32", ("k", major))


def _order(name: str, words: str, section: str, order: Order, **more: Any) -> Instruction:
    """An instruction of a warpgroup without operands."""
    return Instruction(name, asm(words), section, order=order, **({**HOPPER, **more}))


def _named_barrier(name: str, words: str, order: Order) -> Instruction:
    """An instruction of a named barrier, by its number from 1 on: 0 is the barrier of all threads."""
    return Instruction(
        name,
        asm(f"{words} %0, {PAIR}", '"r"(number[0])'),
        "9.7.13.1, barrier",
        ins=(in_registers(S32, 4),),
        parameters="const unsigned* number",
        order=order,
        threads=GROUP,
        queue=Queue.NAMED,
    )


WARPGROUP = (
    *_products(),
    Instruction(
        "fence.proxy.async",
        asm("fence.proxy.async.shared::cta"),
        "9.7.13.4, membar, fence",
        capability=90,
        order=Order.FENCE,
        fences=Scope.SHARED,
    ),
    _order("wgmma.fence", "wgmma.fence.sync.aligned", "9.7.15.7.1, wgmma.fence", Order.FENCE, fences=Scope.REGISTER),
    _order(
        "wgmma.commit",
        "wgmma.commit_group.sync.aligned",
        "9.7.15.7.2, wgmma.commit_group",
        Order.COMMIT,
        queue=Queue.PRODUCTS,
    ),
    *(
        _order(
            f"wgmma.wait.{pending}",
            f"wgmma.wait_group.sync.aligned {pending}",
            "9.7.15.7.3, wgmma.wait_group",
            Order.WAIT,
            pending=pending,
            queue=Queue.PRODUCTS,
        )
        for pending in range(2)
    ),
    _named_barrier("barrier.sync", "barrier.cta.sync", Order.WAIT),
    _named_barrier("barrier.arrive", "barrier.cta.arrive", Order.COMMIT),
)
"""All instructions of warpgroups."""
