"""Threads for native programs: a `ThreadPool` holds the workers of pool.ll and says where they run."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..closeable import Closeable
from ..host import available_cores
from ..target import MAX_THREADS
from .library import pool_functions

STACK_BYTES = 8 << 20
"""Stack of a worker, as on most main threads: room for the shared buffers of one phase."""

SPIN_S = 20e-6
"""Spinning time of a waiting thread. A futile yield, or a step that running threads share, costs a fraction of it."""

PATIENCE_S, IDLE_S = 2e-3, 200e-6
"""How long a thread waits awake for what others have begun, and for work."""

# Handlers of these run on the thread at fault, so it must not block them.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}

_SET_PROCESSORS = 1024  # as in pool.ll, and in the C library's sets


class ThreadPool(Closeable):
    """`threads` threads that run programs, the calling one included; `threads - 1` workers are started.

    Workers wait awake for work for `idle_s`, then asleep; the caller waits awake for what they have begun for
    `patience_s`. A waiting thread that is awake gives its processor to others after `SPIN_S`, or at once where the
    process has fewer processors than threads. What a thread has not begun others do in its place; one that lost its
    processor is left out for some time. If `pinned`, each thread keeps to processors of its own.
    One program runs at a time; others wait. A fork leaves the workers behind; the child starts its own when it runs.

    Raises ValueError on threads < 1, OSError if the system gives no more threads or is none of those supported.
    """

    def __init__(
        self, threads: int, *, pinned: bool = True, patience_s: float = PATIENCE_S, idle_s: float = IDLE_S
    ) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"{threads} threads: a pool has 1 to {MAX_THREADS}")
        self.threads = threads
        self.lock = threading.Lock()
        processors = available_cores()
        spin_s = SPIN_S if threads <= len(processors) else 0.0
        self._waits_ns = [round(wait_s * 1e9) for wait_s in (spin_s, patience_s, idle_s)]
        self._affinity = _affinity(threads, _cores(processors)) if pinned else None
        self._is_closed = False
        self._handle: int | None = None
        self._stop: weakref.finalize[[int], ThreadPool] | None = None
        _pools.add(self)
        self.handle()

    def handle(self) -> int | None:
        """Address of the native pool, None with one thread. Hold `lock`. Raises RuntimeError if closed."""
        if self._handle is not None:
            return self._handle
        if self._is_closed:
            raise RuntimeError("the thread pool is closed")
        if self.threads > 1:
            self._start()
        return self._handle

    def _start(self) -> None:
        native = pool_functions()
        # Workers inherit the mask: signals are for Python's threads.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        try:
            affinity_at = None if self._affinity is None else self._affinity.ctypes.data
            self._handle = native.create(self.threads, *self._waits_ns, STACK_BYTES, affinity_at)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._handle is None:
            raise OSError(f"can't start {self.threads - 1} threads")
        self._stop = weakref.finalize(self, native.destroy, self._handle)
        self._stop.atexit = False  # the process ends them; joining here could wait for a run on another thread

    def close(self) -> None:
        """End the workers, once the current run is over. Closing twice is harmless."""
        with self.lock:
            self._is_closed = True
            self._handle = None
            if self._stop is not None:
                self._stop()

    def forget(self) -> None:
        """Start afresh in the child of a fork: it has no workers, and maybe not the holder of the lock."""
        self.lock = threading.Lock()
        self._handle = None
        if self._stop is not None:
            self._stop.detach()
            self._stop = None


_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
_shared_pools: dict[int, ThreadPool] = {}


def _forget_workers() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_workers)


def shared_pool(threads: int) -> ThreadPool:
    """The process's pool of this many threads; nobody closes it. With one thread, a new pool, as it shares nothing."""
    if threads == 1:
        return ThreadPool(1)
    pool = _shared_pools.get(threads)
    if pool is None:
        pool = _shared_pools.setdefault(threads, ThreadPool(threads))
    return pool


def _cores(processors: Iterable[int]) -> list[list[int]]:
    """The processors, those of one core together, in the order of the system's numbers."""
    cores: dict[str, list[int]] = {}
    for processor in sorted(processors):
        siblings = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
        try:
            core = siblings.read_text(encoding="ascii")
        except OSError:  # not every sandbox shows it; then each processor counts as a core
            core = str(processor)
        cores.setdefault(core, []).append(processor)
    return list(cores.values())


def _affinity(threads: int, cores: Sequence[Sequence[int]]) -> NDArray[np.int64] | None:
    """The %Places of pool.ll: whole cores dealt to the threads in turn, or single processors if cores are few.

    Within its group a thread goes where the system wants. None if there are too few processors to deal.
    """
    if len(cores) < threads:
        cores = [[processor] for core in cores for processor in core]
    highest = max(processor for core in cores for processor in core)
    if len(cores) < threads or highest >= _SET_PROCESSORS:
        return None
    groups = np.full(_SET_PROCESSORS, -1, np.int64)
    sets = np.zeros((threads, _SET_PROCESSORS), bool)
    for number, core in enumerate(cores):
        groups[list(core)] = number % threads
        sets[number % threads, list(core)] = True
    packed = np.packbits(sets, axis=1, bitorder="little").view(np.int64)
    return np.concatenate([groups, packed.reshape(-1)])
