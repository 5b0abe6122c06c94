"""A plugin for the children of a pool: a GPU that the interpreter stands in for, and kernels that do what none should.

What is "compiled" is the candidate itself. The sketch "simulated.<fault>" is the default kernel of the task, whose run
goes wrong.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda import interp
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.driver import Bytes, Clock, DeviceFault, Driver, bytes_of
from tunewright.codegen.cuda.driver import DeviceMemory as DeviceMemory
from tunewright.codegen.cuda.emit import emit
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.task import Task
from tunewright.search_space import sketches
from tunewright.search_space.description import SchedulePoint
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.space import Space
from tunewright.workers.measure import gpu, measure
from tunewright.workers.wire import candidate_json, read_candidate

FAULTS = ("ok", "wrong", "changed", "beyond", "crash", "hang", "hot")

TIME_S, WARM_S = 1e-3, 0.5e-3
"""Of every run, from a cold cache and as it comes."""

FOREVER = threading.Event()


class Memory(DeviceMemory):
    """Memory of the host."""

    def __init__(self, array: Bytes) -> None:
        self.array: Bytes = array

    def write(self, array: NDArray[Any]) -> None:
        self.array[...] = bytes_of(array)

    def read(self) -> Bytes:
        return self.array.copy()

    def part(self, begin: int, size_bytes: int) -> Memory:
        return Memory(self.array[begin : begin + size_bytes])

    def copy(self, source: DeviceMemory) -> None:
        self.array[...] = content_of(source)


VERSIONS = {"nvrtc": "13.5", "driver": "13.0"}


def content_of(memory: DeviceMemory) -> Bytes:
    assert isinstance(memory, Memory)
    array: Bytes = memory.array
    return array


@dataclass(frozen=True)
class Recorded:
    """As if it were a graph."""

    run: Callable[[], None]

    def __call__(self) -> None:
        self.run()


class Simulated(Driver):
    """A driver. `clocks` are what it tells of its clock, the last one for ever."""

    def __init__(self, clocks: Sequence[Clock | None] = (Clock(10**9, is_slowed=False),)) -> None:
        self._clocks = list(clocks)
        self._turn = threading.RLock()

    @property
    def name(self) -> str:
        return "a simulated GPU"

    @property
    def release(self) -> str:
        return "580.159.04"

    @property
    def cuda_version(self) -> str:
        return VERSIONS["driver"]

    @property
    def turn(self) -> threading.RLock:
        return self._turn

    def memory(self, size_bytes: int) -> Memory:
        return Memory(np.zeros(size_bytes, np.uint8))

    def program(self, artifact: GpuArtifact, operands: Sequence[DeviceMemory]) -> Callable[[], None]:
        kernel = kernel_of(artifact.code)
        fault = read_candidate(json.loads(artifact.code)).schedule.sketch.partition("simulated.")[2]
        if fault == "hot":
            self._clocks = [Clock(10**8, is_slowed=True)]
        buffers = (*artifact.params, *artifact.scratch)
        arrays = [
            content_of(memory).view(buffer.dtype.numpy).reshape(buffer.shape)
            for buffer, memory in zip(buffers, operands, strict=True)
        ]

        operands_seen: list[Any] = []

        def run() -> None:
            if fault == "crash":
                raise DeviceFault("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
            if fault == "hang":
                FOREVER.wait()
            if not operands_seen:
                interp.run(kernel, arrays[: len(kernel.params)])
                operands_seen.extend(array.copy() for array in arrays)
            for array, content in zip(arrays, operands_seen, strict=True):  # another run gives the same
                array[...] = content
            if fault == "wrong":
                arrays[len(artifact.params) - 1].reshape(-1)[-1] += 1
            if fault == "changed":
                arrays[0].reshape(-1)[0] += 1
            if fault == "beyond":
                whole: Any = content_of(operands[len(artifact.params) - 1]).base
                whole[-gpu.GUARD_BYTES] ^= 1

        return run

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        return Recorded(run)

    def time(self, run: Callable[[], None], count: int, *, is_cold: bool = True) -> list[float]:
        assert isinstance(run, Recorded), "the time to queue launches one by one would be in it"
        run()
        return [TIME_S if is_cold else WARM_S] * count

    def clock(self) -> Clock | None:
        return self._clocks.pop(0) if len(self._clocks) > 1 else self._clocks[0]


def kernel_of(code: bytes) -> Kernel:
    """The kernel of a candidate that was "compiled"."""
    return sketches.lower(read_candidate(json.loads(code)))


def compiled(candidate: Candidate) -> GpuArtifact:
    """A candidate as an artifact that a simulated GPU runs."""
    kernel = sketches.lower(candidate)
    verify(kernel)
    code = json.dumps(candidate_json(candidate)).encode()
    return GpuArtifact(
        code=code,
        sha256=hashlib.sha256(code).hexdigest(),
        launches=emit(kernel, "kernel").launches,
        usage={},
        params=kernel.params,
        scratch=kernel.scratch,
        packings=dict(kernel.packings),
    )


@dataclass(frozen=True)
class SimulatedSketch:
    fault: str
    version: int = 1

    @property
    def name(self) -> str:
        return f"simulated.{self.fault}"

    def applies(self, task: Task, target: Target) -> bool:
        return True

    def space(self, task: Task, target: Target) -> Space:
        return real(task, target).space(task, target)

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        return real(task, target).lower(task, self.space(task, target).default, target)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield f"The fault {self.fault} on a simulated GPU."


def real(task: Task, target: Target) -> Sketch:
    """The first sketch of the project that is offered for a task."""
    return next(sketch for sketch in REAL if find_space(sketch, task, target))


def lowered(candidate: Candidate) -> Kernel:
    """As `measure` lowers; `built` is asked for the same candidate next."""
    global LAST
    LAST = candidate
    return sketches.lower(candidate)


def built(kernel: Kernel, target: Target, cache: object) -> GpuArtifact:
    assert LAST is not None
    return compiled(LAST)


LAST: Candidate | None = None
REAL = sketches.SKETCHES
WITH_SIMULATED = (*(SimulatedSketch(fault) for fault in FAULTS), *REAL)


def install() -> None:
    """Have the functions that children call use it."""
    sketches.SKETCHES = WITH_SIMULATED
    setattr(gpu, "versions", lambda: VERSIONS)  # noqa: B010
    setattr(measure, "gpu_driver", Simulated)  # noqa: B010 - names that it imports
    setattr(measure, "lower", lowered)  # noqa: B010
    setattr(measure, "gpu_build", built)  # noqa: B010
    setattr(measure, "_patience", gpu.Patience(sleep=lambda _: None))  # noqa: B010
