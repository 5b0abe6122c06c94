"""Compiled kernels in this process: a `Program` runs calls of kernels one after the other."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ..artifact import Artifact
from ..closeable import Closeable
from .control import Control, ControlKind, ProgramStop
from .layout import BindingSlice, Call, MovingOperand, Operand, StepWriter
from .library import Library, pool_functions
from .pool import ThreadPool

__all__ = ["BindingSlice", "Bindings", "Code", "MovingOperand", "Operand", "Program"]

_FOREVER_NS = 2**63 - 1

_ENDING = {ControlKind.STOP, ControlKind.LOOP}
"""What a run may end in."""


Bindings = Mapping[str, NDArray[np.generic] | int]
"""Memory for names: arrays, or addresses that the caller keeps alive and that nothing can check."""

_NOTHING: Bindings = MappingProxyType({})


class Code:
    """The code of artifacts, loaded into this process, equal ones once. Raises RuntimeError if it can't be loaded.

    It stays until all who share it have closed it, or nobody has it any more.
    """

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        symbols: dict[tuple[bytes, ...], dict[str, None]] = {}
        for artifact in artifacts:
            symbols.setdefault(artifact.objects, {}).update((phase.symbol, None) for phase in artifact.phases)
        self._library = Library([(objects, list(names)) for objects, names in symbols.items()])
        self._addresses = dict(zip(symbols, self._library.addresses, strict=True))
        self._lock, self._shares = threading.Lock(), 1

    def share(self) -> Code:
        """The same code, for one more who closes it."""
        with self._lock:
            self._shares += 1
        return self

    def addresses(self, artifact: Artifact) -> Mapping[str, int]:
        """The addresses of the functions of one of the artifacts, by symbol."""
        return self._addresses[artifact.objects]

    def close(self) -> None:
        """Give up a share; the last one unloads it."""
        with self._lock:
            self._shares -= 1
            is_last = not self._shares
        if is_last:
            self._library.close()


class Program(Closeable):
    """Calls of kernels in order, in native code: a run goes through all of them without Python.

    Between them may be branches, loops and copies (`Control`). `calls` pairs each artifact with the memory of its
    params and, if the caller plans it, of its scratch. Scratch that is not given is allocated here, one block that all
    calls share. Arrays are kept alive; they must be C-contiguous, aligned to their elements, and have their buffer's
    dtype and size (the shape may differ). `code` has that of all artifacts, and is closed by who made it; without it,
    the program loads its own.

    Raises ValueError on operands that don't match and blocks that don't nest, RuntimeError on object code that can't be
    loaded.
    """

    def __init__(self, calls: Sequence[Call | Control[Operand]], pool: ThreadPool, code: Code | None = None) -> None:
        artifacts = [call[0] for call in calls if not isinstance(call, Control)]
        self._pool = pool
        self._native = pool_functions()
        self._owns_code = code is None
        self._code = code or Code(artifacts)
        addresses = [self._code.addresses(artifact) for artifact in artifacts]
        layout = StepWriter(self._native.steps).lay_out(calls, addresses)
        self._arguments, self._steps, self._firsts = layout.arguments, layout.steps, layout.firsts
        self._names, self._owned = layout.names, layout.owned
        self._stops, self._stop_number, self._halt = layout.stops, layout.stop_number, layout.halt
        kinds = {call.kind for call in calls if isinstance(call, Control)}
        self._may_end, self._has_loops = bool(kinds & _ENDING), ControlKind.LOOP in kinds
        self._steps_at, self._count = self._steps.ctypes.data, len(self._steps)
        work = (self._steps[:, 0] != 0) & (self._steps[:, 2] > 1)
        self._parallel = pool.threads > 1 and bool(work.any())
        self._is_closed = False

    @property
    def names(self) -> Collection[str]:
        """The names that each run must bind."""
        return self._names.keys()

    @property
    def rows(self) -> tuple[int, int]:
        """Address and number of its steps, for callers in native code: what `tw_run` of pool.ll takes."""
        return self._steps_at, self._count

    @property
    def may_stop(self) -> bool:
        """Whether a run may come to a stop, which native callers are not told."""
        return bool(self._stops)

    @property
    def handle(self) -> int | None:
        """The pool that steps are shared by, for native callers; None where there is nothing to share."""
        with self._pool.lock:
            return self._pool.handle() if self._parallel else None

    def cells(self, name: str) -> list[tuple[int, int]]:
        """Addresses of words that are to hold the address of a name's memory, and the offsets to be added to it."""
        at = self._arguments.ctypes.data
        return [(at + 8 * cell, offset_bytes) for cell, offset_bytes in self._names[name].cells()]

    def run(self, bindings: Bindings = _NOTHING) -> None:
        """Run all calls once. `bindings` gives memory for each name among the operands.

        Other threads may call it too: runs on one pool wait for each other. Raises RuntimeError if the program or its
        pool is closed, ValueError if names are missing or unknown or arrays don't match, ProgramStop where it comes to
        a stop, and in the main thread KeyboardInterrupt if a loop was interrupted.
        """
        pool = self._pool
        with pool.lock:
            self._prepare(bindings)
            handle = pool.handle() if self._parallel else None
            if self._may_end:
                self._run_control(handle)
            else:
                self._native.run(handle, self._steps_at, self._count, None)

    def _run_control(self, handle: int | None) -> None:
        """Run what may come to a stop, or has loops, which an interrupt ends. Signals are for the main thread alone."""
        is_watched = self._has_loops and threading.current_thread() is threading.main_thread()
        word = self._halt.ctypes.data if is_watched else None
        self._native.run(handle, self._steps_at, self._count, word)
        if self._halt[0]:
            raise KeyboardInterrupt  # where the process's own handler did not
        if number := int(self._stop_number[0]):
            raise ProgramStop(self._stops[number - 1])

    def time(
        self,
        samples: int,
        repeats: int = 1,
        *,
        deadline_s: float = inf,
        calls: range | None = None,
        bindings: Bindings = _NOTHING,
    ) -> list[float]:
        """Seconds that a run takes, once a sample, each the mean of `repeats` runs in a row; the loop is native.

        A run goes through all calls, or those with the numbers in `calls`, which has no gaps. Fewer samples, but one at
        least, once `deadline_s` of time.monotonic() is past. Nothing is warmed up. Raises as `run` does.
        """
        if samples < 1 or repeats < 1:
            raise ValueError(f"{samples} samples of {repeats} runs: at least one of one")
        out_ns = np.empty(samples, np.int64)
        pool = self._pool
        with pool.lock:
            self._prepare(bindings)
            handle = pool.handle() if self._parallel else None
            steps = (self._steps_at, self._count) if calls is None else self._window(calls)
            deadline_ns = round(deadline_s * 1e9) if deadline_s * 1e9 < _FOREVER_NS else _FOREVER_NS
            count = self._native.time(handle, *steps, repeats, samples, deadline_ns, out_ns.ctypes.data)
        return [sample_ns / repeats * 1e-9 for sample_ns in out_ns[:count].tolist()]

    def _window(self, calls: range) -> tuple[int, int]:
        """Address and number of the steps of some calls."""
        begin, end = self._firsts[calls.start], self._firsts[calls.stop]
        return self._steps_at + begin * self._steps.strides[0], end - begin

    def _prepare(self, bindings: Bindings) -> None:
        if self._is_closed:
            raise RuntimeError("the program is closed; open the model again to run it")
        if self._may_end:
            self._halt[0] = self._stop_number[0] = 0
        if not bindings and not self._names:
            return
        if bindings.keys() != self._names.keys():
            raise ValueError(f"bound {sorted(bindings)}, but the names are {sorted(self._names)}")
        for name, cells in self._names.items():
            cells.fill(self._arguments, bindings[name])

    def close(self) -> None:
        """Unload its own code, once the current run is over. Closing twice is harmless."""
        with self._pool.lock:
            self._is_closed = True
            if self._owns_code:
                self._code.close()
            self._owned.clear()
