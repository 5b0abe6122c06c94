"""Instructions of NVIDIA GPUs: the table. Those of a warp and of a thread are here, of four warps in `warpgroup.py`.

The figures of section numbers are those of "PTX ISA", release 9.0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gpu import WARP
from ..ir.ir import Scope
from .bulk import BULK, TENSOR_MAP, fetch_definition
from .instruction import (
    BF16,
    F16,
    F32,
    OPERANDS,
    SUMS,
    Array,
    Instruction,
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
from .warpgroup import PRELUDE as MATRICES
from .warpgroup import WARPGROUP

# Matrix products of a warp. Rows and columns of the elements that each lane has, as arrays (32, count).

Map = tuple[NDArray[np.int64], NDArray[np.int64]]


def _lanes(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The group of four of each lane, its number in there, and the number of each element: arrays (32, count)."""
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
    for matrix, values, (rows, columns) in (
        (left, a, left_map(depth, bytes_each)),
        (right, b, right_map(depth, bytes_each)),
        (total, c, sum_map()),
    ):
        matrix[:, rows, columns] = values.astype(wide)
    product = left @ right + total
    rows, columns = sum_map()
    return (product[:, rows, columns],)


TF32_MASK = 0xFFFFE000
"""The bits of a float32 that TF32 has: 10 of the mantissa."""


def _truncate(values: Array) -> Array:
    """float32 cut to the bits of TF32: hardware ignores the others."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(TF32_MASK)
    return bits.view(np.float32)


def _tf32_product(a: Array, b: Array, c: Array) -> tuple[Array]:
    return _product(8, F32.itemsize, F32, _truncate(a), _truncate(b), c)


def _mma(wide: str, left: str, right: str, depth: int, section: str) -> Instruction:
    """A product of 16 x depth by depth x 8, of operands of one size, by the names of their types."""
    sums, dtypes = SUMS[wide], (OPERANDS[left], OPERANDS[right])
    bytes_each = dtypes[0].itemsize
    first, second = (rows * depth // WARP * bytes_each // 4 for rows in (16, 8))  # registers
    operands = slots(0, 4), slots(4, first), slots(4 + first, second), slots(4 + first + second, 4)
    inputs = constraints("r", "a", first), constraints("r", "b", second), constraints(sums.letter, "c", 4)
    shape = f"m16n8k{depth}"
    body = (
        f'  asm("mma.sync.aligned.{shape}.row.col.{wide}.{left}.{right}.{wide} {", ".join(operands)};"\n'
        f"      : {constraints('=' + sums.letter, 'd', 4)}\n"
        f"      : {', '.join(inputs)});\n"
    )
    total = in_registers(sums.dtype, 16)
    return Instruction(
        f"mma.{shape}.{wide}.{left}" + (f".{right}" if wide == "s32" else ""),
        body,
        f"9.7.14.5.{section}",
        outs=(total,),
        ins=(in_registers(dtypes[0], 4 * first), in_registers(dtypes[1], 4 * second), total),
        parameters=f"{sums.kind}* d, const unsigned* a, const unsigned* b, const {sums.kind}* c",
        meaning=_tf32_product if left == "tf32" else partial(_product, depth, bytes_each, sums.dtype),
    )


# Matrices of 8 x 8 elements of 16 bits from shared memory into the registers of a warp.


def _spread(count: int, is_transposed: bool, rows: Array) -> tuple[Array]:
    """Lane 8 i + r names row r of matrix i. Each lane gets two elements of a row of each, or of a column.

    What is of another size than 16 bits is moved by 16 bits.
    """
    elements = np.ascontiguousarray(rows).view(np.uint16)
    matrices = elements.reshape(len(rows), WARP // 8, 8, 8)[:, :count]
    matrices = matrices.swapaxes(2, 3) if is_transposed else matrices
    pairs = matrices.reshape(len(rows), count, WARP, 2)
    fragments = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(len(rows), WARP, 2 * count)
    return (fragments.view(rows.dtype),)


def _ldmatrix(count: int, is_transposed: bool) -> Instruction:
    suffix = f"x{count}{'.trans' if is_transposed else ''}"
    body = (
        f'  asm volatile("ldmatrix.sync.aligned.m8n8.{suffix}.shared.b16 {slots(0, count)}, [%{count}];"\n'
        f'      : {constraints("=r", "d", count)} : "r"(shared_place(row)) : "memory");\n'
    )
    return Instruction(
        f"ldmatrix.{suffix}",
        body,
        "9.7.14.5.15, ldmatrix",
        outs=(in_registers(None, 4 * count),),
        ins=(in_shared(16),),
        parameters="unsigned* d, const void* row",
        meaning=partial(_spread, count, is_transposed),
    )


def _copy(size_bytes: int) -> Instruction:
    """A copy that does not wait. Those of 16 bytes bypass the first-level cache, as a block reads such data once."""
    words = f"cp.async.{'cg' if size_bytes == 16 else 'ca'}.shared.global [%0], [%1], {size_bytes}"
    return Instruction(
        f"cp.async.{size_bytes}",
        asm(words, '"r"(shared_place(to)), "l"(global_place(from))', gap="\n      "),
        "9.7.9.25.3.1, cp.async",
        outs=(in_shared(size_bytes),),
        ins=(OperandSpec(Scope.GLOBAL, None, size_bytes),),
        parameters="void* to, const void* from",
        meaning=same,
        order=Order.ASYNC,
        threads=1,
        queue=Queue.COPIES,
    )


def shuffle_name(mask: int, size_bytes: int) -> str:
    """The instruction that brings a value, of 4 or 8 bytes, from the lane whose number differs in the mask's bits."""
    return f"shfl{'64' if size_bytes == 8 else ''}.xor.{mask}"


def _exchange_lanes(mask: int, values: Array) -> tuple[Array]:
    return (values[:, np.arange(WARP) ^ mask],)


def _shuffle(mask: int, size_bytes: int) -> Instruction:
    """Values, of 4 or 8 bytes, of the lane whose number differs in the bits of the mask."""
    kind = "unsigned long long" if size_bytes == 8 else "unsigned"
    return Instruction(
        shuffle_name(mask, size_bytes),
        f"  d[0] = __shfl_xor_sync(0xffffffffu, a[0], {mask});\n",
        "9.7.9.6, shfl.sync",
        outs=(in_registers(None, size_bytes),),
        ins=(in_registers(None, size_bytes),),
        parameters=f"{kind}* d, const {kind}* a",
        meaning=partial(_exchange_lanes, mask),
        capability=30,
    )


# Instructions of single threads.


def _split_values(values: Array) -> tuple[Array, Array]:
    first = _truncate(values)
    with np.errstate(invalid="ignore"):  # nothing is left of what is infinite, as on the device
        return first, values - first


SPLIT = Instruction(
    "split.tf32",
    "  for (int n = 0; n < 4; ++n) {\n"
    "    const float whole = a[n];\n"
    f"    d[n] = __uint_as_float(__float_as_uint(whole) & 0x{TF32_MASK:x}u);\n"
    "    rest[n] = whole - d[n];\n"
    "  }\n",
    "5.2.3, tf32; Ootomo and Yokota, Recovering Single Precision Accuracy from Tensor Cores, 2022",
    outs=(in_registers(F32, 16), in_registers(F32, 16)),
    ins=(in_registers(F32, 16),),
    parameters="float* d, float* rest, const float* a",
    meaning=_split_values,
    threads=1,
)
"""Floats as TF32 and a remainder, whose sum they are. The first result may overwrite the operand."""

POWER = Instruction(
    "ex2",
    '  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d[0]) : "f"(a[0]));\n',
    "9.7.3.23, ex2",
    outs=(in_registers(F32, 4),),
    ins=(in_registers(F32, 4),),
    parameters="float* d, const float* a",
    meaning=lambda values: (np.exp2(values),),
    threads=1,
)
"""2 to the power of a register, as the unit for special functions has it: off by 2 units in the last place."""


def _narrow(name: str, dtype: np.dtype[Any], kind: str) -> Instruction:
    """Two neighbours of float32 in a narrow type, by one instruction."""
    return Instruction(
        name,
        f'  asm("cvt.rn.{kind}x2.f32 %0, %2, %1;" : "=r"(d[0]) : "f"(a[0]), "f"(a[1]));\n',
        "9.7.9.22, cvt",
        outs=(in_registers(dtype, 4),),
        ins=(in_registers(F32, 8),),
        parameters="unsigned* d, const float* a",
        meaning=lambda values: (values.astype(dtype),),
        threads=1,
    )


def _copy_order(name: str, words: str, section: str, order: Order, pending: int = 0) -> Instruction:
    """An instruction that orders copies."""
    return Instruction(name, asm(words), section, order=order, pending=pending, queue=Queue.COPIES)


MOST_PENDING = 7
"""Groups of copies under way while a block waits for an older one."""

INSTRUCTIONS: Mapping[str, Instruction] = {
    instruction.name: instruction
    for instruction in (
        _mma("f32", "f16", "f16", 16, "8, mma.m16n8k16 of floating point"),
        _mma("f32", "bf16", "bf16", 16, "8, mma.m16n8k16 of floating point"),
        _mma("f32", "tf32", "tf32", 8, "7, mma.m16n8k8"),
        SPLIT,
        *(_mma("s32", left, right, 32, "10, mma.m16n8k32") for left, right in product(("s8", "u8"), repeat=2)),
        *(_ldmatrix(count, is_transposed) for count in (1, 2, 4) for is_transposed in (False, True)),
        *(_copy(size_bytes) for size_bytes in (4, 8, 16)),
        _copy_order("cp.async.commit", "cp.async.commit_group", "9.7.9.25.3.2, cp.async.commit_group", Order.COMMIT),
        *(
            _copy_order(
                f"cp.async.wait.{pending}",
                f"cp.async.wait_group {pending}",
                "9.7.9.25.3.3, cp.async.wait_group",
                Order.WAIT,
                pending,
            )
            for pending in range(MOST_PENDING + 1)
        ),
        *(_shuffle(1 << bit, size_bytes) for size_bytes in (4, 8) for bit in range(5)),
        Instruction(
            "warp.sync",
            asm("bar.warp.sync 0xffffffff"),
            "9.7.13.2, bar.warp.sync",
            capability=70,
            order=Order.SYNC,
        ),
        POWER,
        _narrow("cvt.float16x2", F16, "f16"),
        _narrow("cvt.bfloat16x2", BF16, "bf16"),
        *WARPGROUP,
        *BULK,
    )
}
"""All instructions by name."""

PRELUDE = """\
static __device__ __forceinline__ unsigned shared_place(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
static __device__ __forceinline__ unsigned long long global_place(const void* place) {
  return static_cast<unsigned long long>(__cvta_generic_to_global(place));
}
"""
"""Helpers of the device functions."""


def device_functions(names: Collection[str], fetch_ranks: Collection[int]) -> str:
    """The device functions of some instructions, in the order of the table, and of fetches of some ranks; nothing where
    there are none.
    """
    texts = [instruction.definition for name, instruction in INSTRUCTIONS.items() if name in names]
    matrices = MATRICES if any(instruction.name in names for instruction in WARPGROUP) else ""
    fetches = [TENSOR_MAP, *map(fetch_definition, sorted(fetch_ranks))] if fetch_ranks else []
    return PRELUDE + matrices + "".join((*texts, *fetches)) if texts or fetches else ""
