"""Copies of whole pieces of memory on Hopper: one thread begins them, a barrier in shared memory counts what has come.

Such a barrier goes from one phase to the next, counted from 0. A phase is over when as many threads have arrived as it
was set up for, and all bytes have come that they announced at their arrival. Who waits for a phase names it by the last
bit of its number.

Sections are those of "PTX ISA", release 9.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expr.dtype import DType
from ..ir.ir import Scope, Swizzle
from .instruction import S32, Instruction, OperandSpec, Order, Queue, asm, in_registers, in_shared, same
from .warpgroup import CHUNK_BYTES, COLUMNS, PANEL, ROW_BYTES

PIECE_BYTES = tuple(columns * ROW_BYTES for columns in COLUMNS)
"""Sizes of copies: the operand of so many columns that one round of a product of warpgroups needs."""

FETCH_BYTES = tuple(rows * ROW_BYTES for rows in range(2 * PANEL, 8 * PANEL + 1, PANEL))
"""Sizes of both operands that one round of a product of warpgroups needs, in whole panels."""

ARRIVALS = (1, 4, 8, 12)
"""Threads that end a phase: one, or one of each warp of some warpgroups."""

BARRIER = in_shared(8, np.dtype(np.int64))
"""The operand of an instruction that names a barrier."""

AT = '"r"(shared_place(barrier))'
"""The barrier as an operand of `asm`."""


def _on_barrier(name: str, body: str, section: str, *operands: OperandSpec, **more: Any) -> Instruction:
    """An instruction of one thread on a barrier."""
    more = {"ins": (BARRIER, *operands), "parameters": "void* barrier"} | more
    return Instruction(name, body, section, capability=90, threads=1, queue=Queue.BARRIER, **more)


def _init(arrivals: int) -> Instruction:
    """Set a barrier up: so many arrivals end each of its phases."""
    body = asm(f"mbarrier.init.shared::cta.b64 [%0], {arrivals}", AT) + asm("fence.mbarrier_init.release.cluster")
    section = "9.7.13.15.9, mbarrier.init; 9.7.13.4, fence"
    return _on_barrier(f"mbarrier.init.{arrivals}", body, section, outs=(BARRIER,), ins=(), arrivals=arrivals)


WAIT = f"""  unsigned is_over;
  do {{
    asm volatile("{{ .reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\\n"
        "selp.u32 %0, 1, 0, over; }}"
        : "=r"(is_over) : {AT}, "r"(phase[0]) : "memory");
  }} while (!is_over);
"""
"""Wait until a phase is over, named by its last bit."""


def _expect(size_bytes: int) -> Instruction:
    """Arrive, and say that so many bytes come in this phase."""
    body = asm(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {size_bytes}", AT, gap="\n      ")
    name, section = f"mbarrier.expect.{size_bytes}", "9.7.13.15.13, mbarrier.arrive"
    return _on_barrier(name, body, section, order=Order.COMMIT, size_bytes=size_bytes)


def _copy(size_bytes: int) -> Instruction:
    """Begin to copy a piece, whose bytes a barrier counts."""
    words = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    return _on_barrier(
        f"cp.async.bulk.{size_bytes}",
        asm(
            f"{words} [%0], [%1], {size_bytes}, [%2]",
            f'"r"(shared_place(to)), "l"(global_place(from)), {AT}',
            gap="\n      ",
        ),
        "9.7.9.25.4.1, cp.async.bulk",
        OperandSpec(Scope.GLOBAL, None, size_bytes),
        outs=(in_shared(size_bytes),),
        parameters="void* to, void* barrier, const void* from",
        meaning=same,
        order=Order.ASYNC,
    )


BULK = (
    *map(_init, ARRIVALS),
    _on_barrier(
        "mbarrier.arrive",
        asm("mbarrier.arrive.shared::cta.b64 _, [%0]", AT),
        "9.7.13.15.13, mbarrier.arrive",
        order=Order.COMMIT,
    ),
    _on_barrier(
        "mbarrier.wait",
        WAIT,
        "9.7.13.15.16, mbarrier.try_wait",
        in_registers(S32, 4),
        parameters="void* barrier, const unsigned* phase",
        order=Order.WAIT,
    ),
    *map(_expect, sorted({*PIECE_BYTES, *FETCH_BYTES})),
    *map(_copy, PIECE_BYTES),
)
"""All instructions of bulk copies and their barriers."""

FETCH_RANKS = range(2, 6)
"""Dimensions of a tensor of which the engine copies boxes, as far as they are used."""

MOST_BOX = 256
"""Most elements that a box spans along a dimension (CUDA Driver API, cuTensorMapEncodeTiled)."""

MOST_STEP = 8
"""Longest step from one element of a box to the next one along a dimension (as above)."""

SWIZZLE_BITS = 3
"""Bits of the number of a row of 128 bytes by which its chunks are exchanged, as products of warpgroups expect."""


def fetch_swizzle(dtype: DType) -> Swizzle:
    """The layout of a box of rows of 128 bytes in shared memory."""
    return Swizzle(SWIZZLE_BITS, (CHUNK_BYTES // dtype.size_bytes).bit_length() - 1, SWIZZLE_BITS)


TENSOR_MAP = "struct alignas(64) TensorMap { unsigned long long words[16]; };\n"
"""The driver's form of an `ir.TensorMap` for the engine: opaque ("CUDA Driver API", CUtensorMap)."""


def fetch_definition(rank: int) -> str:
    """The device function of a fetch by so many coordinates, the innermost first (PTX ISA, 9.7.9.27.1)."""
    names = [f"c{n}" for n in range(rank)]
    words = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    slots = ", ".join(f"%{3 + n}" for n in range(rank))
    return f"""\
static __device__ __forceinline__ void fetch_{rank}d(
    void* to, const TensorMap* map, void* barrier, {", ".join(f"int {name}" for name in names)}) {{
  asm volatile("{words} [%0], [%1, {{{slots}}}], [%2];"
      :: "r"(shared_place(to)), "l"(map), "r"(shared_place(barrier)), {", ".join(f'"r"({name})' for name in names)}
      : "memory");
}}
"""
