"""Collection of trials on a GPU, as fast as they come: many processes build, one has the device. Read `collect`."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path
from typing import NamedTuple

from tunewright.codegen.cuda.build import GpuArtifact, build
from tunewright.codegen.llvm.build import BuildError
from tunewright.codegen.target import Target
from tunewright.codegen.verify_context import VerifyError
from tunewright.db.exchange import to_json
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Illegal
from tunewright.search_space.sketches import lower

from .plan import PlannedTask
from .trial_device import TrialDevice

QUEUED = 256
"""Builds that are under way or wait for the device."""

BUILD_LIMIT_S = 20.0
"""What a build may take, once the device waits for it."""


class Pending(NamedTuple):
    """A candidate, and its artifact to come, or what the compiler says against it."""

    candidate: Candidate
    build: AsyncResult[GpuArtifact | str | None]


def collect(
    planned_tasks: Iterable[PlannedTask], target: Target, device: TrialDevice, path: Path, within_s: float
) -> int:
    """Build and time what is planned until the time is over, and add a line to a file for each. Returns how many.

    Lines are those of `db.exchange`. Each is written out at once: what is there stays, however this ends.
    """
    deadline_s, count = time.monotonic() + within_s, 0
    with _builders() as builders, path.open("a", encoding="utf-8") as file:
        for candidate, pending in _queue(builders, planned_tasks, target):
            if time.monotonic() > deadline_s:
                break
            measurement = _measure(candidate, pending, device)
            if measurement is not None:
                file.write(f"{_line(candidate, measurement)}\n")
                file.flush()
                count += 1
    return count


def _builders() -> Pool:
    """Processes that build, one less than there are cores. Each imports what it needs, as forks of threads hang."""
    return multiprocessing.get_context("spawn").Pool(max(len(os.sched_getaffinity(0)) - 1, 1))


def _queue(builders: Pool, planned_tasks: Iterable[PlannedTask], target: Target) -> Iterator[Pending]:
    """The builds of all schedules, some ahead of what is timed."""
    queue: deque[Pending] = deque()
    for task, schedules in planned_tasks:
        for schedule in schedules:
            candidate = Candidate(task, target, schedule)
            queue.append(Pending(candidate, builders.apply_async(build_candidate, (candidate,))))
            if len(queue) >= QUEUED:
                yield queue.popleft()
    yield from queue


def build_candidate(candidate: Candidate) -> GpuArtifact | str | None:
    """In a process that builds: the artifact, or why there is none; None of a schedule that is none on this target."""
    try:
        return build(lower(candidate), candidate.target)
    except Illegal:
        return None
    except (BuildError, VerifyError) as error:
        return f"{type(error).__name__}: {error}"[:300]


def _measure(
    candidate: Candidate, pending: AsyncResult[GpuArtifact | str | None], device: TrialDevice
) -> Measurement | None:
    try:
        artifact = pending.get(BUILD_LIMIT_S)
    except multiprocessing.TimeoutError:
        return None  # others may have kept all builders busy: the next run tries again
    if isinstance(artifact, str):
        return Measurement(Status.BUILD_ERROR, error=artifact)
    return None if artifact is None else device.measure(candidate.task, artifact)


def _line(candidate: Candidate, measurement: Measurement) -> str:
    task, target = candidate.task, candidate.target
    record = Record(task.key, target.key, candidate.schedule, measurement)
    return json.dumps(to_json(task.to_json(), target.to_json(), record, datetime.now(UTC)), separators=(",", ":"))
