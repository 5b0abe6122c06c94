"""Schedules of many tasks timed on a GPU, as fast as they come: what its base cost model learns from.

Children build, one process has the device. A kernel that hangs or breaks the device costs that process, and the next
one goes on behind it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np

from tunewright.bench.suite import MODELS as SUITE
from tunewright.bench.suite.network import NetworkForm
from tunewright.bench.training.collection import choose_schedules
from tunewright.codegen.cuda.build import GpuArtifact, build
from tunewright.codegen.cuda.driver import DeviceFault, DeviceMemory, Driver, Unloadable
from tunewright.codegen.llvm.build import BuildError, ObjectCache
from tunewright.codegen.target import Target
from tunewright.db.exchange import to_json
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.sketches import lower
from tunewright.tuner.models.model import open_for

from .workloads import BUILD_WORKLOADS, KERNEL_WORKLOADS, heaviest_task

MOST_FLOPS = 4e11
"""The most operations of a task: half a millisecond of a large GPU's tensor cores."""

LIMIT_S = 6.0
"""What one schedule may take on the device."""

RUNS, RUNS_OF_SLOW = 11, 3
"""Runs of a schedule, from a cold second-level cache, and of one that is several times slower than the best."""

SLOWER = 3.0

MOST_ERROR = {"float16": 2e-2, "bfloat16": 6e-2, "float32": 2e-3, "float64": 1e-9}
"""Tolerances, relative to the largest magnitude, between schedules of a task; integers are equal."""

AHEAD = 4
"""Tasks that are built before the device comes to them."""


class Work(NamedTuple):
    """A schedule that was built, or why it was not."""

    candidate: Candidate
    artifact: GpuArtifact | str


def gpu_tasks(target: Target, models: Mapping[str, Callable[[], bytes]]) -> dict[str, Task]:
    """Tasks by key, in a fixed random order: of what is benched, of these models, and of networks in float16."""
    texts = [one.text for one in KERNEL_WORKLOADS.values()] + [one.text for one in BUILD_WORKLOADS.values()]
    tasks = list(map(heaviest_task, texts))
    for build_model in (*models.values(), *map(_narrow, SUITE.values())):
        data = build_model()
        if data is not None:
            tasks += [task for task, _ in open_for(target, data).tasks.values()]
    by_key = {task.key: task for task in tasks if task.flops <= MOST_FLOPS}
    keys = np.random.default_rng(3).permutation(sorted(by_key))
    return {key: by_key[key] for key in keys.tolist()}


def _narrow(build_model: Callable[..., bytes]) -> Callable[[], bytes | None]:
    def narrow() -> bytes | None:
        try:
            return build_model(NetworkForm(1, np.float16))
        except TypeError:  # a network of one form
            return None

    return narrow


def collect(tasks: Sequence[Task], target: Target, count: int, objects: Path, path: Path, within_s: float) -> int:
    """Time `count` schedules of each task, in turn, until the time is over; lines are added to a file. How many."""
    deadline_s, written = time.monotonic() + within_s, 0
    cores = max((os.cpu_count() or 2) - 2, 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context) as builders, _Device() as device, path.open("a") as file:
        for futures in _queue(builders, tasks, target, count, objects):
            for future in futures:
                if time.monotonic() > deadline_s:
                    builders.shutdown(wait=False, cancel_futures=True)
                    return written
                work = future.result()
                measurement = device.measure(work)
                file.write(json.dumps(_line(work.candidate, measurement)) + "\n")
                file.flush()
                written += 1
    return written


def _queue(
    builders: ProcessPoolExecutor, tasks: Sequence[Task], target: Target, count: int, objects: Path
) -> Iterator[list[Future[Work]]]:
    """The builds of each task, some tasks ahead of what is timed."""
    queued: list[list[Future[Work]]] = []
    choices = [builders.submit(choose_schedules, task, target, count) for task in tasks]
    for task, choice in zip(tasks, choices, strict=True):
        candidates = [Candidate(task, target, schedule) for schedule in choice.result()]
        queued.append([builders.submit(_build, candidate, objects) for candidate in candidates])
        if len(queued) > AHEAD:
            yield queued.pop(0)
    yield from queued


def _build(candidate: Candidate, objects: Path) -> Work:
    try:
        return Work(candidate, build(lower(candidate), candidate.target, ObjectCache(objects)))
    except BuildError as error:
        return Work(candidate, str(error))


def _line(candidate: Candidate, measurement: Measurement) -> dict[str, Any]:
    task, target = candidate.task, candidate.target
    record = Record(task.key, target.key, candidate.schedule, measurement)
    return to_json(task.to_json(), target.to_json(), record, datetime.now(UTC))


class _Device:
    """The process that has the device; another one where it dies."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def measure(self, work: Work) -> Measurement:
        """The measurement of a build; a hang and a crash are measurements too."""
        if isinstance(work.artifact, str):
            return Measurement(Status.BUILD_ERROR, error=work.artifact)
        if self._process is None:
            self._pipe, other = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
            self._pipe.recv()  # it has the device
        try:
            self._pipe.send((work.candidate.task, work.artifact))
            if not self._pipe.poll(LIMIT_S):
                self._end()
                return Measurement(Status.TIMEOUT, error=f"no result after {LIMIT_S:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._end()
            return Measurement(Status.CRASH, error="the process that had the device died")
        if isinstance(answer, Measurement):
            return answer
        self._end()
        return Measurement(Status.CRASH, error=str(answer))

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


# In the process that has the device


def _serve(pipe: Connection) -> None:
    driver = Driver()
    pipe.send("ready")
    example: _Example | None = None
    while True:
        try:
            task, artifact = pipe.recv()
        except EOFError:
            return
        if example is None or example.task.key != task.key:
            example = _Example(task, driver)
        try:
            pipe.send(example.measure(artifact))
        except DeviceFault as fault:
            pipe.send(str(fault))
            return
        except (Unloadable, MemoryError) as error:
            pipe.send(Measurement(Status.BUILD_ERROR, error=str(error)[:300]))


class _Example:
    """The inputs of a task on the device, and the outputs that a first schedule computed."""

    def __init__(self, task: Task, driver: Driver) -> None:
        self.task, self._driver = task, driver
        rng = np.random.default_rng(0)
        self._inputs = [_random(rng, tensor.shape, tensor.dtype.numpy) for tensor in task.inputs]
        self._memory: dict[tuple[str, Any], DeviceMemory] = {}
        self._expected: list[np.ndarray[Any, Any]] | None = None
        self._best_s = float("inf")

    def measure(self, artifact: GpuArtifact) -> Measurement:
        driver, inputs = self._driver, []
        for buffer, array in zip(artifact.params, self._inputs, strict=False):
            packing = artifact.packings.get(buffer.name)
            key = buffer.name, packing
            if key not in self._memory:
                laid = np.ascontiguousarray(array if packing is None else packing.arrange(array))
                self._memory[key] = driver.memory(buffer.size_bytes)
                self._memory[key].write(laid.reshape(-1).view(np.uint8))
            inputs.append(self._memory[key])
        others = (*artifact.params[len(inputs) :], *artifact.scratch)
        made = [driver.memory(buffer.size_bytes) for buffer in others]
        for memory in made:
            with driver.queueing():
                memory.array.fill(0xFF)
        run = driver.capture(driver.program(artifact, [*inputs, *made]))
        [first_s] = driver.time(run, 1)
        outputs = [
            made[n].read().view(buffer.dtype.numpy).reshape(buffer.shape)
            for n, buffer in enumerate(artifact.params[len(inputs) :])
        ]
        if self._expected is None:
            self._expected = outputs
        error = max(map(_error, outputs, self._expected))
        tolerance = MOST_ERROR.get(self.task.outputs[0].dtype.value, 0.0)
        if not error <= tolerance:
            return Measurement(Status.WRONG_RESULT, max_rel_err=error, error=f"off by {error:.3g} of the largest")
        runs = RUNS_OF_SLOW if first_s > SLOWER * self._best_s or first_s > 2e-3 else RUNS
        samples_s = sorted(driver.time(run, runs))
        self._best_s = min(self._best_s, median(samples_s))
        clock = driver.clock()
        return Measurement(
            Status.OK,
            samples_s=tuple(samples_s),
            median_s=median(samples_s),
            low_s=samples_s[len(samples_s) // 4],
            high_s=samples_s[-1 - len(samples_s) // 4],
            max_rel_err=error,
            provenance={"gpu": driver.name} | ({"clock": f"{clock.hz // 10**6} MHz"} if clock else {}),
        )


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape))
    block: np.ndarray[Any, Any]
    if dtype.kind in "iu":
        block = rng.integers(0, 4, min(size, 1 << 16))
    elif dtype.kind == "b":
        block = rng.integers(0, 2, min(size, 1 << 16))
    else:
        block = rng.standard_normal(min(size, 1 << 16))
    return np.resize(block, shape).astype(dtype)


def _error(output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """The largest difference of a part, relative to the largest magnitude."""
    step = max(output.size >> 18, 1) | 1
    one, other = (array.reshape(-1)[::step].astype(np.float64) for array in (output, expected))
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-12)) if one.size else 0.0
