"""Rates: what this machine can do at most, measured with our own code generator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunewright.codegen.build import build
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Ramp, Var, const, op
from tunewright.codegen.ir import Alloc, Block, Buffer, For, Kernel, LoopKind, Scope, Store
from tunewright.codegen.runtime.memory import lasting_empty
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.codegen.target import Target

from .lock import HostLock
from .noise import Noise, Watch
from .sampling import interval

NOISE_S = 0.4
"""How long it is looked how far times of one kernel lie apart, and who else is busy."""

SAMPLES, REPEATS = 9, 4
"""Samples that are taken in a row, and runs of each."""

ROUNDS = 20_000
"""Steps of the peak kernel's loop: about a millisecond."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates that no kernel of this machine exceeds, with all threads of the target at work."""

    peak_flops_s: float  # float32 multiply-adds on registers, two operations each
    bandwidth_bytes_s: float  # reading an array that exceeds the second-level caches


def measure(target: Target, objects: Path) -> Rates:
    """Measure both rates, in about a tenth of a second. The best of several samples counts: noise only slows.

    Waits until nobody who keeps objects in that folder builds or times candidates.
    """
    with HostLock(objects).timing(), ThreadPool(target.threads) as pool:
        flops = _best_s(_peak_kernel(target), target, pool)
        read_bytes = 4 * target.threads * target.l2_bytes
        reading = _best_s(_read_kernel(target, read_bytes), target, pool)
    vectors = _accumulators(target) * target.lanes(4)
    return Rates(2 * vectors * ROUNDS * target.threads / flops, read_bytes / reading)


def noise(target: Target, objects: Path) -> Noise:
    """How far times of this machine can be relied on now: one kernel, timed again and again for a moment.

    Raises as `measure` does.
    """
    with HostLock(objects).timing(), ThreadPool(target.threads) as pool:
        program = _program(_peak_kernel(target), target, pool)
        watch, taken = Watch(), program.time(samples=SAMPLES, repeats=REPEATS)
        while watch.seen().elapsed_s < NOISE_S:
            taken += program.time(samples=SAMPLES, repeats=REPEATS)
        return Noise.of(watch.seen(), target.threads, interval(taken).width)


def _best_s(kernel: Kernel, target: Target, pool: ThreadPool) -> float:
    return min(_program(kernel, target, pool).time(samples=15, repeats=1))


def _program(kernel: Kernel, target: Target, pool: ThreadPool) -> Program:
    artifact = build(kernel, target)
    arrays = [lasting_empty(b.shape, b.dtype) for b in kernel.params]
    for array in arrays:
        array[...] = 1
    return Program([(artifact, arrays)], pool)


def _accumulators(target: Target) -> int:
    return target.vector_registers // 2


def _peak_kernel(target: Target) -> Kernel:
    """Independent chains of multiply-adds, enough of them to hide the latency, no memory in the loop."""
    lanes, chains = target.lanes(4), _accumulators(target)
    acc = Buffer("acc", (chains, lanes), DType.F32, Scope.REGISTER)
    source = Load("source", (Ramp(const(0), lanes),), DType.F32)
    chain, lane = Var("chain"), Ramp(const(0), lanes)
    total = Load("acc", (chain, lane), DType.F32)

    def every_chain(store: Store) -> For:
        return For("chain", chains, store, LoopKind.UNROLL)

    body = Block(
        (
            every_chain(Store("acc", (chain, lane), source)),
            For("round", ROUNDS, every_chain(Store("acc", (chain, lane), op("fma", total, source, source)))),
            every_chain(Store("sums", (Var("thread"), chain, lane), total)),
        )
    )
    loop = For("thread", target.threads, Alloc(acc, body), LoopKind.PARALLEL)
    params = (Buffer("source", (lanes,), DType.F32), Buffer("sums", (target.threads, chains, lanes), DType.F32))
    return Kernel(params, (), Block((loop,)))


def _read_kernel(target: Target, size_bytes: int) -> Kernel:
    """Sum an array, a slice of it a thread."""
    lanes, chains = target.lanes(4), 8
    rows = size_bytes // (4 * lanes * chains * target.threads)
    acc = Buffer("acc", (chains, lanes), DType.F32, Scope.REGISTER)
    chain, lane = Var("chain"), Ramp(const(0), lanes)
    total: Expr = Load("acc", (chain, lane), DType.F32)
    value = Load("source", (Var("thread"), Var("row"), chain, lane), DType.F32)

    def every_chain(store: Store) -> For:
        return For("chain", chains, store, LoopKind.UNROLL)

    body = Block(
        (
            every_chain(Store("acc", (chain, lane), const(0.0))),
            For("row", rows, every_chain(Store("acc", (chain, lane), total + value))),
            every_chain(Store("sums", (Var("thread"), chain, lane), total)),
        )
    )
    loop = For("thread", target.threads, Alloc(acc, body), LoopKind.PARALLEL)
    source = Buffer("source", (target.threads, rows, chains, lanes), DType.F32)
    return Kernel((source, Buffer("sums", (target.threads, chains, lanes), DType.F32)), (), Block((loop,)))
