"""Bandwidth: how fast our own code streams through memory, by how much of it there is and how much of that is written.

A thread goes through a slice of its own again and again, so that the slices lie in the smallest level of memory that
holds them. Nothing is computed but sums of what is read, on enough registers to hide their latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Ramp, Var, const
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, Kernel, LoopKind, Scope, Stmt, Store
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.memory import lasting_empty
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.codegen.target import Target

FINEST = 8
"""The largest whole number in a ratio of reads to writes."""

STEP_VECTORS = 8
"""The least number of vectors that a step of the loop moves."""

CHAINS = 8

SAMPLE_BYTES = 64 << 20
"""The least number of bytes that a sample moves: a millisecond or more in every level."""

SAMPLES = 9


@dataclass(frozen=True, slots=True)
class Traffic:
    """The least number of bytes that a computation reads and writes."""

    read_bytes: int
    write_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def level(traffic: Traffic, target: Target) -> str:
    """The smallest level of memory that holds everything: "L1", "L2", "L3" or "DRAM"."""
    own_bytes = traffic.total_bytes / target.threads
    if own_bytes <= target.l1_bytes:
        return "L1"
    if own_bytes <= target.l2_bytes:
        return "L2"
    return "L3" if traffic.total_bytes <= target.l3_bytes else "DRAM"


def sizes_bytes(target: Target) -> dict[str, int]:
    """Bytes, over all threads, that fit well into each level of memory and into no smaller one."""
    sizes = {"L1": target.threads * target.l1_bytes // 2, "L2": target.threads * target.l2_bytes // 2}
    if target.l3_bytes > 4 * target.threads * target.l2_bytes:
        sizes["L3"] = target.l3_bytes // 2
    return sizes | {"DRAM": 4 * max(target.l3_bytes, target.threads * target.l2_bytes)}


def streaming_s(traffic: Traffic, target: Target, pool: ThreadPool) -> float:
    """Seconds that moving so many bytes takes at least, with all threads of the target at work.

    The best of several samples counts: noise only slows.
    """
    reads, writes = _mix(traffic)
    step_bytes = (reads + writes) * target.vector_bits // 8
    rows = max(1, round(traffic.total_bytes / step_bytes / target.threads))
    moved_bytes = rows * step_bytes * target.threads
    rounds = ceil(SAMPLE_BYTES / moved_bytes)
    artifact = build(_kernel(target, rows, reads, writes, rounds), target)
    arrays = [lasting_empty(b.shape, b.dtype) for b in artifact.params]
    for array in arrays:
        array[...] = 1
    best_s = min(Program([(artifact, arrays)], pool).time(SAMPLES))
    return best_s / rounds * traffic.total_bytes / moved_bytes


def _mix(traffic: Traffic) -> tuple[int, int]:
    """The numbers of vectors that a step reads and writes, in about the ratio of the traffic."""
    if traffic.read_bytes > 2 * FINEST * traffic.write_bytes:
        return STEP_VECTORS, 0
    if traffic.write_bytes > 2 * FINEST * traffic.read_bytes:
        return 0, STEP_VECTORS
    ratio = Fraction(traffic.read_bytes, traffic.write_bytes)
    ratio = ratio.limit_denominator(FINEST) if ratio >= 1 else 1 / (1 / ratio).limit_denominator(FINEST)
    times = ceil(STEP_VECTORS / (ratio.numerator + ratio.denominator))
    return times * ratio.numerator, times * ratio.denominator


def _kernel(target: Target, rows: int, reads: int, writes: int, rounds: int) -> Kernel:
    """A kernel that copies vectors of each row, sums up surplus reads and fills surplus writes with ones."""
    lanes = target.lanes(4)
    acc = Buffer("acc", (CHAINS, lanes), DType.F32, Scope.REGISTER)
    lane, thread, row = Ramp(const(0), lanes), Var("thread"), Var("row")

    def source(number: int) -> Expr:
        return Load("source", (thread, row, const(number), lane), DType.F32)

    def total(chain: Expr) -> Expr:
        return Load("acc", (chain, lane), DType.F32)

    def every_chain(store: Store) -> For:
        return For("chain", CHAINS, store, LoopKind.UNROLL)

    step: list[Stmt] = [
        Store("sink", (thread, row, const(number), lane), source(number) if number < reads else const(1.0))
        for number in range(writes)
    ]
    for number in range(writes, reads):
        chain = const(number % CHAINS)
        step.append(Store("acc", (chain, lane), total(chain) + source(number)))
    body = Block(
        (
            every_chain(Store("acc", (Var("chain"), lane), const(0.0))),
            For("round", rounds, For("row", rows, Block(tuple(step)))),
            every_chain(Store("sums", (thread, Var("chain"), lane), total(Var("chain")))),
        )
    )
    sides = {"source": reads, "sink": writes}
    buffers = [Buffer(name, (target.threads, rows, max(count, 1), lanes), DType.F32) for name, count in sides.items()]
    sums = Buffer("sums", (target.threads, CHAINS, lanes), DType.F32)
    loop = For("thread", target.threads, Alloc(acc, body), LoopKind.PARALLEL)
    return Kernel((buffers[0], buffers[1], sums), (), Block((loop,)))
