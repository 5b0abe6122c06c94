"""Instructions of NVIDIA GPUs: the table. Those of a warp and of a thread are here, of four warps in `warpgroup.py`.

The figures of section numbers are those of "PTX ISA", release 9.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Scope
from .bulk import BULK
from .gpu import WARP
from .instruction import BF16, F16, F32, S8, S32, U8, Array, Instruction, Operand, Order, Queue, nothing, same
from .warpgroup import PRELUDE as MATRICES
from .warpgroup import WARPGROUP

# Matrix products of a warp. Rows and columns of the elements that each lane has, as arrays (32, count).

Map = tuple[NDArray[np.int64], NDArray[np.int64]]


def _lanes(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each element of each lane: the lane's group of four, its number in there, and the element's number."""
    lane, element = np.meshgrid(np.arange(WARP), np.arange(count), indexing="ij")
    return lane // 4, lane % 4, element


def left_map(depth: int, bytes_each: int) -> Map:
    """Where the elements of A, 16 x depth, are: registers of four bytes, the lower rows second."""
    each = 4 // bytes_each
    group, member, element = _lanes(16 * depth // WARP)
    register, within = element // each, element % each
    return group + 8 * (register % 2), member * each + within + 4 * each * (register // 2)


def right_map(depth: int, bytes_each: int) -> Map:
    """Where the elements of B, depth x 8, are."""
    each = 4 // bytes_each
    group, member, element = _lanes(8 * depth // WARP)
    return member * each + element % each + 4 * each * (element // each), group


def sum_map() -> Map:
    """Where the elements of C and D, 16 x 8, are."""
    group, member, element = _lanes(4)
    return group + 8 * (element // 2), 2 * member + element % 2


def _product(depth: int, bytes_each: int, wide: np.dtype[Any], a: Array, b: Array, c: Array) -> tuple[Array]:
    """D = A B + C of each warp, sums in `wide`."""
    left = np.zeros((len(a), 16, depth), wide)
    right = np.zeros((len(b), depth, 8), wide)
    total = np.zeros((len(c), 16, 8), wide)
    for matrix, values, places in (
        (left, a, left_map(depth, bytes_each)),
        (right, b, right_map(depth, bytes_each)),
        (total, c, sum_map()),
    ):
        matrix[:, places[0], places[1]] = values.astype(wide)
    found = left @ right + total
    rows, columns = sum_map()
    return (found[:, rows, columns],)


TF32_MASK = 0xFFFFE000
"""The bits of a float32 that TF32 has: 10 of the mantissa."""


def _cut(values: Array) -> Array:
    """Of float32, what TF32 has: hardware does not look at the other bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(TF32_MASK)
    return bits.view(np.float32)


def _tf32_product(a: Array, b: Array, c: Array) -> tuple[Array]:
    return _product(8, F32.itemsize, F32, _cut(a), _cut(b), c)


def _parted(values: Array) -> tuple[Array, Array]:
    first = _cut(values)
    with np.errstate(invalid="ignore"):  # nothing is left of what is infinite, as on the device
        return first, values - first


def _split() -> Instruction:
    """Floats as those of TF32 and what is left, whose sum they are. The first may take the place of what is split."""
    body = (
        "  for (int n = 0; n < 4; ++n) {\n"
        "    const float whole = a[n];\n"
        f"    d[n] = __uint_as_float(__float_as_uint(whole) & 0x{TF32_MASK:x}u);\n"
        "    rest[n] = whole - d[n];\n"
        "  }\n"
    )
    four = Operand(Scope.REGISTER, F32, 16)
    reference = "PTX ISA, 5.2.3, tf32; Ootomo and Yokota, Recovering Single Precision Accuracy from Tensor Cores, 2022"
    pointers = "float* d", "float* rest", "const float* a"
    return Instruction("split.tf32", (four, four), (four,), pointers, body, _parted, reference, 80, threads=1)


def _mma(
    name: str, depth: int, operands: tuple[np.dtype[Any], np.dtype[Any]], wide: np.dtype[Any], words: str, section: str
) -> Instruction:
    """A product of 16 x depth by depth x 8, of operands of one size."""
    counts = 16 * depth // WARP, 8 * depth // WARP
    bytes_each = operands[0].itemsize
    registers = [count * bytes_each // 4 for count in counts]
    letter, kind = ("f", "float") if wide == F32 else ("r", "int")
    slots = iter(range(8 + sum(registers)))
    d, a, b, c = (_braced(slots, count) for count in (4, *registers, 4))
    given = [f'"r"(a[{n}])' for n in range(registers[0])] + [f'"r"(b[{n}])' for n in range(registers[1])]
    given += [f'"{letter}"(c[{n}])' for n in range(4)]
    results = ", ".join(f'"={letter}"(d[{n}])' for n in range(4))
    shape = f"m16n8k{depth}"
    pointers = f"{kind}* d", "const unsigned* a", "const unsigned* b", f"const {kind}* c"
    body = (
        f'  asm("mma.sync.aligned.{shape}.row.col.{words} {d}, {a}, {b}, {c};"\n'
        f"      : {results}\n"
        f"      : {', '.join(given)});\n"
    )
    meaning = _tf32_product if name == "f32.tf32" else partial(_product, depth, bytes_each, wide)
    sums = Operand(Scope.REGISTER, wide, 16)
    given_in = (Operand(Scope.REGISTER, dtype, 4 * n) for dtype, n in zip(operands, registers, strict=True))
    ins = (*given_in, sums)
    return Instruction(f"mma.{shape}.{name}", (sums,), ins, pointers, body, meaning, f"PTX ISA, {section}", 80)


def _byte_products() -> Iterator[Instruction]:
    """Of bytes with a sign and without one."""
    kinds = {"s8": S8, "u8": U8}
    for left, right in product(kinds, repeat=2):
        words, dtypes = f"{left}.{right}", (kinds[left], kinds[right])
        yield _mma(f"s32.{words}", 32, dtypes, S32, f"s32.{words}.s32", "9.7.14.5.10, mma.m16n8k32")


def _braced(slots: Any, count: int) -> str:
    """So many operands of an `asm`, e.g. {%0, %1}."""
    return "{" + ", ".join(f"%{next(slots)}" for _ in range(count)) + "}"


# Matrices of 8 x 8 elements of 16 bits from shared memory into the registers of a warp.


def _spread(count: int, turned: bool, rows: Array) -> tuple[Array]:
    """Lane 8 i + r names row r of matrix i. Each lane gets two elements of a row of each, or of a column.

    What is of another size than 16 bits is moved by 16 bits.
    """
    elements = np.ascontiguousarray(rows).view(np.uint16)
    matrices = elements.reshape(len(rows), WARP // 8, 8, 8)[:, :count]
    matrices = matrices.swapaxes(2, 3) if turned else matrices
    pairs = matrices.reshape(len(rows), count, WARP, 2)
    found = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(len(rows), WARP, 2 * count)
    return (found.view(rows.dtype),)


def _ldmatrix(count: int, turned: bool) -> Instruction:
    name = f"ldmatrix.x{count}{'.trans' if turned else ''}"
    slots = iter(range(count + 1))
    results = ", ".join(f'"=r"(d[{n}])' for n in range(count))
    words = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if turned else ''}.shared.b16"
    body = (
        f'  asm volatile("{words} {_braced(slots, count)}, [%{count}];"\n'
        f'      : {results} : "r"(shared_place(row)) : "memory");\n'
    )
    return Instruction(
        name,
        (Operand(Scope.REGISTER, None, 4 * count),),
        (Operand(Scope.SHARED, None, 16),),
        ("unsigned* d", "const void* row"),
        body,
        partial(_spread, count, turned),
        "PTX ISA, 9.7.14.5.15, ldmatrix",
        80,
    )


# Copies from global into shared memory that do not wait.


def _copy(size_bytes: int) -> Instruction:
    """Of 16 bytes past the first-level cache: what a block reads so, it reads once."""
    name, level = f"cp.async.{size_bytes}", "cg" if size_bytes == 16 else "ca"
    body = (
        f'  asm volatile("cp.async.{level}.shared.global [%0], [%1], {size_bytes};"\n'
        '      :: "r"(shared_place(to)), "l"(global_place(from)) : "memory");\n'
    )
    return Instruction(
        name,
        (Operand(Scope.SHARED, None, size_bytes),),
        (Operand(Scope.GLOBAL, None, size_bytes),),
        ("void* to", "const void* from"),
        body,
        same,
        "PTX ISA, 9.7.9.25.3.1, cp.async",
        80,
        Order.COMMITTED,
        threads=1,
        queue=Queue.COPIES,
    )


def _commit() -> Instruction:
    body = '  asm volatile("cp.async.commit_group;" ::: "memory");\n'
    reference = "PTX ISA, 9.7.9.25.3.2, cp.async.commit_group"
    return Instruction("cp.async.commit", (), (), (), body, nothing, reference, 80, Order.COMMIT, queue=Queue.COPIES)


def _wait(pending: int) -> Instruction:
    body = f'  asm volatile("cp.async.wait_group {pending};" ::: "memory");\n'
    reference = "PTX ISA, 9.7.9.25.3.3, cp.async.wait_group"
    name = f"cp.async.wait.{pending}"
    return Instruction(name, (), (), (), body, nothing, reference, 80, Order.WAIT, pending, queue=Queue.COPIES)


# Values of other lanes.


def _crossed(mask: int, values: Array) -> tuple[Array]:
    return (values[:, np.arange(WARP) ^ mask],)


def _shuffle(mask: int) -> Instruction:
    """What the lane has whose number differs in the bits of the mask."""
    one = Operand(Scope.REGISTER, None, 4)
    body = f"  d[0] = __shfl_xor_sync(0xffffffffu, a[0], {mask});\n"
    pointers = "unsigned* d", "const unsigned* a"
    reference = "PTX ISA, 9.7.9.6, shfl.sync"
    return Instruction(f"shfl.xor.{mask}", (one,), (one,), pointers, body, partial(_crossed, mask), reference, 30)


MOST_PENDING = 7
"""Groups of copies under way while a block waits for an older one."""

INSTRUCTIONS: Mapping[str, Instruction] = {
    one.name: one
    for one in (
        _mma("f32.f16", 16, (F16, F16), F32, "f32.f16.f16.f32", "9.7.14.5.8, mma.m16n8k16 of floating point"),
        _mma("f32.bf16", 16, (BF16, BF16), F32, "f32.bf16.bf16.f32", "9.7.14.5.8, mma.m16n8k16 of floating point"),
        _mma("f32.tf32", 8, (F32, F32), F32, "f32.tf32.tf32.f32", "9.7.14.5.7, mma.m16n8k8"),
        _split(),
        *_byte_products(),
        *(_ldmatrix(count, turned) for count in (1, 2, 4) for turned in (False, True)),
        *(_copy(size_bytes) for size_bytes in (4, 8, 16)),
        _commit(),
        *(_wait(pending) for pending in range(MOST_PENDING + 1)),
        *(_shuffle(1 << bit) for bit in range(5)),
        *WARPGROUP,
        *BULK,
    )
}
"""By name."""

PRELUDE = """\
static __device__ __forceinline__ unsigned shared_place(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
static __device__ __forceinline__ unsigned long long global_place(const void* place) {
  return static_cast<unsigned long long>(__cvta_generic_to_global(place));
}
"""
"""What the device functions use."""


def definitions(names: Collection[str]) -> str:
    """The device functions of some instructions, in the order of the table; nothing where there are none."""
    texts = [one.definition for name, one in INSTRUCTIONS.items() if name in names]
    matrices = MATRICES if any(one.name in names for one in WARPGROUP) else ""
    return PRELUDE + matrices + "".join(texts) if texts else ""
