"""Copies of whole pieces of memory on Hopper: one thread begins them, a barrier in shared memory counts what has come.

Such a barrier goes from one phase to the next, counted from 0. A phase is over when a thread has said how many bytes
come in it, and as many have come. Whoever waits names the phase by its last bit.

Sections are those of "PTX ISA", release 9.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..ir import Scope
from .instruction import S32, Instruction, Operand, Order, Queue, nothing, same
from .warpgroup import COLUMNS, ROW_BYTES

PIECE_BYTES = tuple(columns * ROW_BYTES for columns in COLUMNS)
"""Of those copies that there are: what a round of a product of warpgroups needs of so many columns."""

BARRIER = Operand(Scope.SHARED, np.dtype(np.int64), 8)
"""As instructions name it."""


def _of_barrier(name: str, operands: tuple[Operand, ...], pointers: tuple[str, ...], **more: Any) -> Instruction:
    """An instruction of one thread that gives nothing."""
    ins, given = (BARRIER, *operands), ("void* barrier", *pointers)
    return Instruction(name, (), ins, given, meaning=nothing, threads=1, queue=Queue.BARRIER, capability=90, **more)


def _all() -> Iterator[Instruction]:
    at = '"r"(shared_place(barrier))'
    yield Instruction(
        "mbarrier.init",
        (BARRIER,),
        (),
        ("void* barrier",),
        f"""  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: {at} : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
""",
        nothing,
        "PTX ISA, 9.7.13.15.9, mbarrier.init; 9.7.13.4, fence",
        90,
        threads=1,
        queue=Queue.BARRIER,
    )
    yield _of_barrier(
        "mbarrier.wait",
        (Operand(Scope.REGISTER, S32, 4),),
        ("const unsigned* phase",),
        body=f"""  unsigned is_over;
  do {{
    asm volatile("{{ .reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\\n"
        "selp.u32 %0, 1, 0, over; }}"
        : "=r"(is_over) : {at}, "r"(phase[0]) : "memory");
  }} while (!is_over);
""",
        reference="PTX ISA, 9.7.13.15.16, mbarrier.try_wait",
        order=Order.WAIT,
    )
    for size_bytes in PIECE_BYTES:
        yield _of_barrier(
            f"mbarrier.expect.{size_bytes}",
            (),
            (),
            body=f"""  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {size_bytes};"
      :: {at} : "memory");
""",
            reference="PTX ISA, 9.7.13.15.13, mbarrier.arrive",
            order=Order.COMMIT,
            size_bytes=size_bytes,
        )
        words = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        yield Instruction(
            f"cp.async.bulk.{size_bytes}",
            (Operand(Scope.SHARED, None, size_bytes),),
            (BARRIER, Operand(Scope.GLOBAL, None, size_bytes)),
            ("void* to", "void* barrier", "const void* from"),
            f"""  asm volatile("{words} [%0], [%1], {size_bytes}, [%2];"
      :: "r"(shared_place(to)), "l"(global_place(from)), {at} : "memory");
""",
            same,
            "PTX ISA, 9.7.9.25.4.1, cp.async.bulk",
            90,
            Order.COMMITTED,
            threads=1,
            queue=Queue.BARRIER,
        )


BULK = tuple(_all())
"""All of them."""
