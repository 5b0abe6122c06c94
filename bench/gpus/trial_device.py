"""The process that has the device while trials are collected, and its supervisor. Read `TrialDevice`.

A kernel that hangs, or breaks the device's context, costs the process; a spare one is ready to go on.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.device import NoDevice
from tunewright.codegen.cuda.driver import DeviceFault, DeviceMemory, Driver, Unloadable
from tunewright.codegen.expr.dtype import DType
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers.measure.gpu import UNWRITTEN, versions
from tunewright.workers.measure.sampling import with_samples

LIMIT_S, FIRST_LIMIT_S = 4.0, 15.0
"""What a schedule may take on the device, and the first one of a task, for which inputs are made."""

START_S = 120.0
"""What the first process may take to start."""

READY = "ready"
"""The first word of a process, which has the device from then on."""

RUNS, RUNS_OF_SLOW = 11, 3
"""Timed runs of a schedule, and of one that is slow."""

SLOW_S, SLOWER = 2e-3, 4.0
"""A slow run, and how much slower than the best so far."""

ERRORS = {DType.F16: 2e-2, DType.BF16: 6e-2, DType.F32: 2e-3}
"""Tolerated difference between outputs of two schedules, relative to the largest magnitude. Integers are equal."""

RANDOM_NUMBERS = 65_521
"""Random numbers of an input, after which they repeat: a prime, so that rows differ."""


class TrialAnswer(NamedTuple):
    """A measurement, and whether the process can go on."""

    measurement: Measurement
    is_sound: bool = True


class DeviceProcess(NamedTuple):
    """A process that has the device, and the pipe to it."""

    process: SpawnProcess
    pipe: Connection


class TrialDevice:
    """The device, in a process of its own; `serve` is what that runs."""

    def __init__(self, serve: Callable[[Connection], None] | None = None, limit_s: float = LIMIT_S) -> None:
        self._serve, self._limit_s = serve or serve_device, limit_s
        self._context = multiprocessing.get_context("spawn")
        self._current, self._spare = self._start(), self._start()
        self._task: Task | None = None
        self._is_ready = self._is_told = False  # whether the process has the device, and the task
        self._reference: GpuArtifact | None = None  # the first artifact of the task that ran

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for device_process in (self._current, self._spare):
            _kill(device_process)

    def measure(self, task: Task, artifact: GpuArtifact) -> Measurement | None:
        """The measurement of an artifact. The first one of a task that runs is what others are compared with.

        None where that one fails in a new process, so that there is nothing to compare with. Raises NoDevice where no
        process gets the device.
        """
        if self._task is None or task.key != self._task.key:
            self._task, self._is_told, self._reference = task, False, None
        if not self._is_told and self._reference is not None and self._ask(self._reference).status is not Status.OK:
            return None
        measurement = self._ask(artifact)
        if self._reference is None and measurement.status is Status.OK:
            self._reference = artifact
        return measurement

    def _ask(self, artifact: GpuArtifact) -> Measurement:
        self._require_ready()
        pipe = self._current.pipe
        limit_s = self._limit_s if self._is_told else max(self._limit_s, FIRST_LIMIT_S)
        try:
            pipe.send((None if self._is_told else self._task, artifact))
            answer = pipe.recv() if pipe.poll(limit_s) else None
        except (EOFError, OSError):
            answer = TrialAnswer(
                Measurement(Status.CRASH, error="the process that had the device died"), is_sound=False
            )
        if answer is None:
            answer = TrialAnswer(Measurement(Status.TIMEOUT, error=f"no result after {limit_s:g} s"), is_sound=False)
        self._is_told = True
        if not answer.is_sound:
            self._replace()
        return answer.measurement

    def _require_ready(self) -> None:
        """Wait until the process has the device. Raises NoDevice."""
        pipe = self._current.pipe
        with suppress(EOFError, OSError):  # it may die before
            self._is_ready = self._is_ready or (pipe.poll(START_S) and pipe.recv() == READY)
        if not self._is_ready:
            raise NoDevice(f"no process has the device after {START_S:g} s: tunewright doctor says what is missing")

    def _start(self) -> DeviceProcess:
        pipe, other = self._context.Pipe()
        process = self._context.Process(target=self._serve, args=(other,), daemon=True)
        process.start()
        other.close()
        return DeviceProcess(process, pipe)

    def _replace(self) -> None:
        _kill(self._current)
        self._current, self._spare = self._spare, self._start()
        self._is_told = self._is_ready = False


def _kill(device_process: DeviceProcess) -> None:
    device_process.process.kill()
    device_process.process.join()
    device_process.pipe.close()


# In the process that has the device:


def serve_device(pipe: Connection) -> None:
    """Time what comes through a pipe, until it is closed or the device fails."""
    import cupy

    serve(pipe, Driver(), cupy)


def serve(pipe: Connection, driver: Driver, arrays: Any) -> None:
    """As `serve_device`. `arrays`: the module of arrays in the driver's memory, CuPy."""
    pipe.send(READY)
    example: TrialExample | None = None
    while True:
        try:
            task, artifact = pipe.recv()
        except EOFError:
            return
        try:
            if task is not None:
                example = None  # its memory is freed first
                example = TrialExample(task, driver, arrays)
            assert example is not None
            answer = TrialAnswer(example.measure(artifact))
        except DeviceFault as fault:
            answer = TrialAnswer(Measurement(Status.CRASH, error=str(fault)), is_sound=False)
        except Unloadable as error:
            answer = TrialAnswer(Measurement(Status.BUILD_ERROR, error=str(error)))
        except MemoryError as error:
            text = " ".join(str(error).split())[:200]
            answer = TrialAnswer(Measurement(Status.OUT_OF_MEMORY, error=text), is_sound=False)
        pipe.send(answer)


class TrialExample:
    """The inputs of a task on the device, and the outputs of the first artifact that ran."""

    def __init__(self, task: Task, driver: Driver, arrays: Any) -> None:
        self.task, self._driver, self._arrays = task, driver, arrays
        rng = np.random.default_rng(0)
        self._inputs = [_random(rng, tensor.shape, tensor.dtype.numpy) for tensor in task.inputs]
        self._memory: dict[tuple[int, object], DeviceMemory] = {}
        self._expected: list[Any] = []
        self._best_s = inf
        self._provenance = {"gpu": driver.name, **versions()}

    def measure(self, artifact: GpuArtifact) -> Measurement:
        """Run, compare and time an artifact. Raises DeviceFault, Unloadable, MemoryError."""
        driver, count = self._driver, len(self._inputs)
        inputs = [self._input(n, artifact) for n in range(count)]
        others = [driver.memory(buffer.size_bytes) for buffer in (*artifact.params[count:], *artifact.scratch)]
        with driver.queueing():
            for memory in others:
                memory.array.fill(UNWRITTEN)
        run = driver.capture(driver.program(artifact, [*inputs, *others]))
        [first_s] = driver.time(run, 1)
        with driver.queueing():
            outputs = [
                _values(memory.array, buffer.dtype, self._arrays)
                for memory, buffer in zip(others, artifact.params[count:], strict=False)
            ]
            error = self._compare(outputs)
        tolerance = max(ERRORS.get(buffer.dtype, 0.0) for buffer in artifact.params[count:])
        if not error <= tolerance:
            text = f"off by {error:.3g} of the largest magnitude; {tolerance:g} is tolerated"
            return Measurement(Status.WRONG_RESULT, max_rel_err=error, error=text, provenance=self._provenance)
        is_slow = first_s > SLOW_S or first_s > SLOWER * self._best_s
        samples_s = driver.time(run, RUNS_OF_SLOW if is_slow else RUNS)
        self._best_s = min(self._best_s, median(samples_s))
        if "clock" not in self._provenance and (clock := driver.clock()):
            self._provenance = {**self._provenance, "clock": f"{clock.hz // 10**6} MHz"}
        measurement = Measurement(
            Status.OK, max_rel_err=error, object_sha256=artifact.sha256, provenance=self._provenance
        )
        return with_samples(measurement, samples_s)

    def _input(self, number: int, artifact: GpuArtifact) -> DeviceMemory:
        """An input in device memory, arranged as an artifact takes it."""
        key = number, artifact.packings.get(artifact.params[number].name)
        if key not in self._memory:
            self._memory[key] = self._driver.input_memory(artifact, number, self._inputs[number])
        return self._memory[key]

    def _compare(self, outputs: Sequence[Any]) -> float:
        """The largest difference from the first outputs, relative to their largest magnitude; 0 of the first ones."""
        if not self._expected:
            self._expected = [output.copy() for output in outputs]
            return 0.0
        pairs = zip(outputs, self._expected, strict=True)
        return max(_difference(output, expected, self._arrays) for output, expected in pairs)


def _difference(output: Any, expected: Any, arrays: Any) -> float:
    """As `TrialExample._compare`. What is no number on one side alone is infinitely off."""
    is_same = (output == expected) | (arrays.isnan(output) & arrays.isnan(expected))
    off = arrays.abs(arrays.where(is_same, 0.0, output) - arrays.where(is_same, 0.0, expected)).max()
    largest = arrays.where(arrays.isfinite(expected), arrays.abs(expected), 0.0).max()
    error = float(off) / max(float(largest), 1e-12)
    return inf if np.isnan(error) else error


def _values(array: Any, dtype: DType, arrays: Any) -> Any:
    """The content of memory as floats, which hold what it has of sums of bytes exactly enough to tell them apart."""
    if dtype is DType.BF16:
        return (array.view(arrays.uint16).astype(arrays.uint32) << 16).view(arrays.float32)
    values = array.view(dtype.numpy)
    return values.astype(arrays.float32 if dtype.is_float and dtype.size_bytes <= 4 else arrays.float64)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Random numbers: normal ones, small ones of integers."""
    if dtype.kind == "b":
        numbers: NDArray[Any] = rng.integers(0, 2, RANDOM_NUMBERS)
    elif dtype.kind in "iu":
        numbers = rng.integers(0, 4, RANDOM_NUMBERS)
    else:
        numbers = rng.standard_normal(RANDOM_NUMBERS)
    return np.resize(numbers.astype(dtype), shape)
