"""Kernels of a GPU in a child: checked and timed on the device, as `check.CpuKernel` does it on a processor."""

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
from tunewright.codegen.cuda.device import NoDevice, driver_version
from tunewright.codegen.cuda.driver import Clock, DeviceFault, Driver, bytes_of, open_sensors
from tunewright.codegen.ir.ir import Buffer

from ..pool import Unfit
from .check import Array, Example, LoadedKernel, Operand, checksum
from .machine_watch import GpuState, MachineWatch

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


def gpu_watch(threads: int) -> MachineWatch:
    """A watch over this machine for what is timed on its GPU, with what that tells of itself."""
    try:
        sensors = open_sensors()
    except (DeviceFault, NoDevice, nvrtc.NoCompiler):  # whoever times says so
        sensors = None

    def state() -> GpuState:
        if sensors is None:
            return GpuState()
        try:
            clock = sensors.clock()
        except DeviceFault:
            return GpuState()
        known = GpuState() if clock is None else GpuState(clock.hz / 1e6, None, clock.is_slowed)
        return known._replace(temperature_c=sensors.temperature_c())

    return MachineWatch(threads, state)


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


class _DeviceOperand(Operand):
    """An operand on the device."""

    @_dying()
    def __init__(self, device: Driver, buffer: Buffer, content: Array | None) -> None:
        self._buffer = buffer
        data = np.full(buffer.size_bytes, UNWRITTEN, np.uint8)
        if content is not None:
            data = bytes_of(content)
        self._sum = None if content is None else checksum(data)
        guard = np.full(GUARD_BYTES, GUARD, np.uint8)
        self._whole = device.memory(2 * GUARD_BYTES + buffer.size_bytes)
        self._whole.write(np.concatenate([guard, data, guard]))
        self.memory = self._whole.part(GUARD_BYTES, buffer.size_bytes)

    @_dying()
    def clear(self) -> None:
        self.memory.write(np.full(self._buffer.size_bytes, UNWRITTEN, np.uint8))

    @_dying()
    def array(self) -> Array:
        content: Array = self.memory.read().view(self._buffer.dtype.numpy).reshape(self._buffer.shape)
        return content

    @_dying()
    def fault(self) -> str | None:
        whole = self._whole.read()
        if self._sum is not None and checksum(np.ascontiguousarray(whole[GUARD_BYTES:-GUARD_BYTES])) != self._sum:
            return "an input was changed"
        if not (whole[:GUARD_BYTES] == GUARD).all():
            return "written out of bounds, before the beginning"
        return None if (whole[-GUARD_BYTES:] == GUARD).all() else "written out of bounds, past the end"


class GpuKernel(LoadedKernel):
    """A kernel of a GPU, which has memory of its own. Its launches are recorded, as those of a model are."""

    @_dying()
    def __init__(self, example: Example, artifact: GpuArtifact, device: Driver, patience: Patience) -> None:
        self._device, self._patience = device, patience
        count = len(example.inputs)
        inputs = [
            _DeviceOperand(device, buffer, example.input(n, artifact.packings.get(buffer.name)).array())
            for n, buffer in enumerate(artifact.params[:count])
        ]
        outputs = [_DeviceOperand(device, buffer, None) for buffer in artifact.params[count:]]
        scratch = [_DeviceOperand(device, buffer, None) for buffer in artifact.scratch]
        super().__init__(example, inputs, outputs, scratch)
        self._run = device.capture(
            device.program(artifact, [operand.memory for operand in (*inputs, *outputs, *scratch)])
        )
        self._clocks: list[Clock] = []
        self.cold, self.warm = _Runs(self, is_cold=True), _Runs(self, is_cold=False)

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
        self.run_s()

    @_dying()
    def run_s(self) -> float:
        [run_s] = self._device.time(self._run, 1)
        return run_s

    @_dying()
    def times_s(self, samples: int, repeats: int, deadline_s: float, *, is_cold: bool) -> list[float]:
        """Seconds of a run, once a sample: the mean of `repeats`. Less samples where the deadline passes.

        What was taken while the clock was lowered (see `Clock`) is taken again, after a pause. Raises Unfit where it
        stays so.
        """
        taken: list[float] = []
        slowed = 0
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
        self._run = lambda: None
        self._outputs, self._operands = [], []


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of a kernel, each from a cold second-level cache, or with what the run before it left there."""

    kernel: GpuKernel
    is_cold: bool

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        """See `GpuKernel.times_s`."""
        return self.kernel.times_s(samples, repeats, deadline_s, is_cold=self.is_cold)
