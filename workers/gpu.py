"""Kernels of a GPU in a child: checked and timed on the device, as `check.Loaded` does it on a processor.

Their launches are recorded, as those of a model are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import inf
from statistics import fmean

import numpy as np

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.device import driver_version
from tunewright.codegen.cuda.driver import Bytes, Clock, DeviceFault, Driver
from tunewright.codegen.ir import Buffer

from .check import Array, Example, checksum
from .pool import Unfit

GUARD_BYTES = 4096
"""Memory before and behind each operand that nobody may write to."""

GUARD, UNWRITTEN = 0xA5, 0xFF
"""What is in there, and in memory that nothing has been written to."""

PAUSES_S = (0.1, 1.0)
"""Between samples while the device has lowered its clock: the first and the longest. They double."""

PATIENCE_S = 10.0
"""What a request waits in such pauses, in all: half of the time that it has by default."""


@contextmanager
def _dying() -> Iterator[None]:
    """What breaks the device's context ends the process: nothing runs in it any more, and the parent starts another."""
    try:
        yield
    except DeviceFault as fault:
        os.write(2, f"{fault}\n".encode())
        os.abort()


@cache
def versions() -> dict[str, str]:
    """Of what made the code, and of what loads it: the newest CUDA that the driver takes."""
    return {"nvrtc": nvrtc.version(), "driver": driver_version()}


class Patience:
    """Pauses for a device to get its clock back, those of all kernels of a request together."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self.renew()

    def renew(self) -> None:
        """A request begins."""
        self._left_s = PATIENCE_S

    def pause(self, count: int, name: str) -> None:
        """The pause after `count` slowed samples in a row. Raises Unfit where it has lasted too long."""
        first_s, longest_s = PAUSES_S
        pause_s = min(first_s * 2.0 ** min(count - 1, 10), longest_s)
        if pause_s > self._left_s:
            raise Unfit(f"{name} keeps its clock low: it is hot, or its machine lacks power")
        self._left_s -= pause_s
        self._sleep(pause_s)


class _Operand:
    """An operand on the device, between guards."""

    def __init__(self, device: Driver, buffer: Buffer, content: Array | None) -> None:
        self.buffer = buffer
        data = np.full(buffer.size_bytes, UNWRITTEN, np.uint8)
        if content is not None:
            data = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        self._sum = None if content is None else checksum(data)
        guard = np.full(GUARD_BYTES, GUARD, np.uint8)
        self._whole = device.memory(2 * GUARD_BYTES + buffer.size_bytes)
        self._whole.write(np.concatenate([guard, data, guard]))
        self.memory = self._whole.part(GUARD_BYTES, buffer.size_bytes)

    def clear(self) -> None:
        """As if nobody had written to it."""
        self.memory.write(np.full(self.buffer.size_bytes, UNWRITTEN, np.uint8))

    def array(self) -> Array:
        """What is in it now."""
        found: Array = self.memory.read().view(self.buffer.dtype.numpy).reshape(self.buffer.shape)
        return found

    def fault(self) -> str | None:
        """What was written beside it, or to it if it is an input."""
        whole = self._whole.read()
        if self._sum is not None and checksum(_inner(whole)) != self._sum:
            return "an input was changed"
        if not (whole[:GUARD_BYTES] == GUARD).all():
            return "written out of bounds, before the beginning"
        return None if (whole[-GUARD_BYTES:] == GUARD).all() else "written out of bounds, past the end"


def _inner(whole: Bytes) -> Bytes:
    return np.ascontiguousarray(whole[GUARD_BYTES:-GUARD_BYTES])


class GpuLoaded:
    """See `check.Loaded`. Raises RuntimeError on code that can't be loaded."""

    def __init__(self, example: Example, artifact: GpuArtifact, device: Driver, patience: Patience) -> None:
        self._example, self._device, self._patience = example, device, patience
        inputs = len(example.inputs)
        with _dying():
            self._inputs = [
                _Operand(device, buffer, example.input(n, artifact.packings.get(buffer.name)).guarded.array)
                for n, buffer in enumerate(artifact.params[:inputs])
            ]
            self._outputs = [_Operand(device, buffer, None) for buffer in artifact.params[inputs:]]
            self._scratch = [_Operand(device, buffer, None) for buffer in artifact.scratch]
            operands = (*self._inputs, *self._outputs, *self._scratch)
            self._run = device.recorded(device.program(artifact, [one.memory for one in operands]))
        self._sums: list[int] | None = None
        self._clocks: list[Clock] = []
        self.once_s = 0.0
        self.cold = _Runs(self, is_cold=True)
        self.warm = _Runs(self, is_cold=False)

    @property
    def provenance(self) -> dict[str, str]:
        """The device, versions of what its code goes through, and how fast it ran when samples were taken."""
        told = {"gpu": self._device.name, **versions()}
        if self._clocks:
            slowest, fastest = (choose(clock.hz for clock in self._clocks) // 10**6 for choose in (min, max))
            told["clock"] = f"{slowest} to {fastest} MHz"
        return told

    def fill(self) -> None:
        """Run once, so that outputs are of this one: others may have run meanwhile."""
        with _dying():
            self._device.time(self._run, 1)

    def again(self) -> None:
        """Run once more, and let the faster run count."""
        with _dying():
            self.once_s = min(self.once_s, *self._device.time(self._run, 1))

    def check(self) -> tuple[str | None, float | None]:
        """Run once, compare with the reference: what is wrong, and the largest relative error."""
        with _dying():
            for output in self._outputs:
                output.clear()
            [self.once_s] = self._device.time(self._run, 1)
            outputs = [output.array() for output in self._outputs]
            fault, error = self._example.compared(outputs)
            self._sums = [checksum(array) for array in outputs]
            return fault and (self.damage() or fault), error

    def recheck(self) -> str | None:
        """What is wrong after further runs."""
        with _dying():
            return self.damage() or self.recheck_outputs()

    def recheck_outputs(self) -> str | None:
        """Whether the last run gave the same bits."""
        with _dying():
            sums = [checksum(output.array()) for output in self._outputs]
        return "the result differs from run to run" if sums != self._sums else None

    def damage(self) -> str | None:
        """See `check.Loaded`."""
        named = [
            *((tensor.name, one) for tensor, one in zip(self._example.task.inputs, self._inputs, strict=True)),
            *((tensor.name, one) for tensor, one in zip(self._example.task.outputs, self._outputs, strict=True)),
            *(("scratch", one) for one in self._scratch),
        ]
        with _dying():
            return next((f"{name}: {fault}" for name, one in named if (fault := one.fault())), None)

    def times_s(self, samples: int, repeats: int, deadline_s: float, *, is_cold: bool) -> list[float]:
        """Seconds of a run, once a sample: the mean of `repeats`. Less samples where the deadline passes.

        What was taken while the clock was lowered (see `Clock`) is taken again, after a pause. Raises Unfit where it
        stays so.
        """
        taken: list[float] = []
        slowed = 0
        with _dying():
            while len(taken) < samples and not (taken and time.monotonic() >= deadline_s):
                before = self._device.clock()
                times_s = self._device.time(self._run, repeats, is_cold=is_cold)
                clocks = [clock for clock in (before, self._device.clock()) if clock is not None]
                if any(clock.is_slowed for clock in clocks):
                    slowed += 1
                    self._patience.pause(slowed, self._device.name)
                    continue
                slowed = 0
                self._clocks += clocks
                taken.append(fmean(times_s))
        return taken

    def close(self) -> None:
        """Let go of the code and the memory."""
        self._run = _nothing
        self._inputs, self._outputs, self._scratch = [], [], []


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of a kernel, each from a cold second-level cache, or with what the run before it left there."""

    loaded: GpuLoaded
    is_cold: bool

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        """See `GpuLoaded.times_s`."""
        return self.loaded.times_s(samples, repeats, deadline_s, is_cold=self.is_cold)


def _nothing() -> None:
    """What is left of a kernel that was unloaded."""
