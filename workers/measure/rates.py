"""Peak rates of this machine, measured with our own code generator."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tunewright.codegen.expr.dtype import WORD_BYTES, DType
from tunewright.codegen.expr.expr import Expr, Load, Ramp, Var, const, op
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, Kernel, LoopKind, Scope, Store
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.memory import lasting_empty
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.codegen.target import Target

from ..lock import HostLock
from .noise import Noise, Watch
from .sampling import interval

WATCH_S = 0.4
"""How long the spread of a kernel's times and other processes are watched."""

SAMPLES, REPEATS = 9, 4
"""Samples of noise in a row, and runs of each."""

RATE_SAMPLES = 200
"""Samples of a rate, some 50 ms: for the first 10 ms a processor may run at 0.8 of the clock it then reaches."""

ROUNDS = 20_000
"""Steps of the peak kernel's loop: a quarter of a millisecond, or more."""


GOOD_MOMENTS, MOST_MOMENTS = 2, 4
"""Moments in which all threads ran at once that end the measurement, and the most that are tried."""

PAUSE_S = 0.1
"""Between moments: what holds a processor up is over by then, as a rule."""

AT_ONCE = 0.2
"""Least part of a moment in which all threads must have been on processors at once: samples take far less than the time
for which a system lets others run, so the fastest of them is of then."""

FULL_SPEED = 0.8
"""Part of the speed of one thread alone that each of all must have had, which tells the same on a busy machine. Where
they share the units of a core they never do. A thread that is missing leaves its work to others, so that it takes twice
as long."""

BUSY = "the machine was busy with other things each time that its peak was measured, so it may be higher"


@dataclass(frozen=True, slots=True)
class PeakRates:
    """The rates that no kernel of this machine exceeds, with all threads of the target at work."""

    peak_flops_s: float  # float32 multiply-adds on registers, two operations each
    bandwidth_bytes_s: float  # reading an array that exceeds the second-level caches
    noise: str = ""  # why the machine may reach more, for people; empty where it does not

    def highest(self, other: PeakRates | None) -> PeakRates:
        """The higher rates of both. They can be relied on where either was measured in a good moment."""
        if other is None:
            return self
        peak_flops_s = max(self.peak_flops_s, other.peak_flops_s)
        bandwidth_bytes_s = max(self.bandwidth_bytes_s, other.bandwidth_bytes_s)
        return PeakRates(peak_flops_s, bandwidth_bytes_s, self.noise and other.noise)


def measure(target: Target, objects: Path) -> PeakRates:
    """Measure both rates, in about half a second. The best of several moments counts, as noise only slows.

    Waits until no process with the same folder of objects builds or times candidates.
    """
    with HostLock(objects).exclusive(), ThreadPool(target.threads) as pool:
        read_bytes = 4 * target.threads * target.l2_bytes
        programs = [
            _program(kernel, target, pool) for kernel in (_peak_kernel(target), _read_kernel(target, read_bytes))
        ]
        alone_s = _alone_s(target)
        moments: list[list[float]] = []
        good = 0
        while good < GOOD_MOMENTS and len(moments) < MOST_MOMENTS:
            if moments:
                time.sleep(PAUSE_S)
            watch = _OwnTime(target.threads)
            moments.append([min(program.time(samples=RATE_SAMPLES, repeats=1)) for program in programs])
            good += watch.at_once() >= AT_ONCE or FULL_SPEED * target.threads * moments[-1][0] <= alone_s
    peak_s, read_s = map(min, zip(*moments, strict=True))
    vectors = _accumulators(target) * target.lanes(4)
    noise = "" if good else BUSY
    return PeakRates(2 * vectors * ROUNDS * target.threads / peak_s, read_bytes / read_s, noise)


BYTE_MOMENTS = 3
"""Moments in which the rate of products of bytes is measured."""


def byte_peak_ops_s(target: Target, objects: Path) -> float:
    """Operations a second of the instruction that multiplies bytes, two for each product, on registers.

    With all threads at work; the best of several moments. 0 where the target has no such instruction.
    """
    if not target.has_quick_dots:
        return 0.0
    operations = 2 * WORD_BYTES * _accumulators(target) * target.lanes(4) * ROUNDS * target.threads
    with HostLock(objects).exclusive(), ThreadPool(target.threads) as pool:
        program = _program(_byte_peak_kernel(target), target, pool)
        return operations / min(min(program.time(samples=RATE_SAMPLES, repeats=1)) for _ in range(BYTE_MOMENTS))


def _alone_s(target: Target) -> float:
    """Seconds in which one thread does what all of them do in a run of the peak kernel."""
    with ThreadPool(1) as pool:
        samples = max(1, RATE_SAMPLES // target.threads)
        return min(_program(_peak_kernel(target), target, pool).time(samples=samples, repeats=1))


class _OwnTime:
    """The time that threads of this process were on processors since its creation."""

    def __init__(self, threads: int) -> None:
        self._threads, self._start_s, self._own_s = threads, time.perf_counter(), time.process_time()

    def at_once(self) -> float:
        """The part of the time in which so many threads ran at once, at the least: else one of them was missing."""
        elapsed_s = max(time.perf_counter() - self._start_s, 1e-9)
        return (time.process_time() - self._own_s) / elapsed_s - (self._threads - 1)


def noise(target: Target, objects: Path) -> Noise:
    """Noise of this machine now, from one kernel that is timed again and again for a moment.

    Waits as `measure` does.
    """
    with HostLock(objects).exclusive(), ThreadPool(target.threads) as pool:
        program = _program(_peak_kernel(target), target, pool)
        watch, samples_s = Watch(), program.time(samples=SAMPLES, repeats=REPEATS)
        while watch.disturbance().elapsed_s < WATCH_S:
            samples_s += program.time(samples=SAMPLES, repeats=REPEATS)
        return Noise.of(watch.disturbance(), target.threads, interval(samples_s).width)


def _program(kernel: Kernel, target: Target, pool: ThreadPool) -> Program:
    artifact = build(kernel, target)
    arrays = [lasting_empty(b.shape, b.dtype) for b in kernel.params]
    for array in arrays:
        array[...] = 1
    return Program([(artifact, arrays)], pool)


def _accumulators(target: Target) -> int:
    """Chains that hide the latency of multiply-adds even where some steps wait: by half of the registers, of which AVX2
    has 16, Zen 3 reaches 0.8 of its peak now and then.
    """
    return 3 * target.vector_registers // 4


def _peak_kernel(target: Target) -> Kernel:
    """Independent chains of multiply-adds, enough to hide the latency, without memory accesses in the loop."""
    value = Load("source", (Ramp(const(0), target.lanes(4)),), DType.F32)
    source = Buffer("source", (target.lanes(4),), DType.F32)
    chains = _accumulators(target)
    return _chains_kernel(target, source, chains, value, ROUNDS, lambda total: op("fma", total, value, value))


def _byte_peak_kernel(target: Target) -> Kernel:
    """As `_peak_kernel`, of products of four bytes a lane."""
    value = Load("source", (Ramp(const(0), target.lanes(4)),), DType.I32)
    source = Buffer("source", (target.lanes(4),), DType.I32)
    chains, first = _accumulators(target), const(0, DType.I32)
    return _chains_kernel(target, source, chains, first, ROUNDS, lambda total: op("dot4", value, value, total))


def _read_kernel(target: Target, size_bytes: int) -> Kernel:
    """The sum of an array, with a slice for each thread."""
    lanes, chains = target.lanes(4), 8
    rows = size_bytes // (4 * lanes * chains * target.threads)
    source = Buffer("source", (target.threads, rows, chains, lanes), DType.F32)
    value = Load("source", (Var("thread"), Var("round"), Var("chain"), Ramp(const(0), lanes)), DType.F32)
    return _chains_kernel(target, source, chains, const(0.0), rows, lambda total: total + value)


def _chains_kernel(
    target: Target, source: Buffer, chains: int, first: Expr, rounds: int, following: Callable[[Expr], Expr]
) -> Kernel:
    """Vectors in registers, `chains` of each thread: `first` at the beginning, then what follows on it each round."""
    lanes = target.lanes(4)
    acc = Buffer("acc", (chains, lanes), source.dtype, Scope.REGISTER)
    sums = Buffer("sums", (target.threads, chains, lanes), source.dtype)
    place = Var("chain"), Ramp(const(0), lanes)
    total = Load("acc", place, source.dtype)

    def every_chain(store: Store) -> For:
        return For("chain", chains, store, LoopKind.UNROLL)

    body = Block(
        (
            every_chain(Store("acc", place, first)),
            For("round", rounds, every_chain(Store("acc", place, following(total)))),
            every_chain(Store("sums", (Var("thread"), *place), total)),
        )
    )
    loop = For("thread", target.threads, Alloc(acc, body), LoopKind.PARALLEL)
    return Kernel((source, sums), (), Block((loop,)))
