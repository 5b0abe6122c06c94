"""Candidates and artifacts as plain data, for the way between processes. Object code travels along, in base64."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tunewright.codegen.artifact import Artifact, Phase
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.nvrtc import Usage
from tunewright.codegen.cuda.source import Launch
from tunewright.codegen.dtype import DType
from tunewright.codegen.ir import Buffer, Packing, Scope
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Plain data; `read_candidate` inverts it."""
    return {
        "task": candidate.task.to_json(),
        "target": candidate.target.to_json(),
        "schedule": candidate.schedule.to_json(),
    }


class LastTask:
    """The task that was read last: most candidates are of the same as the one before."""

    def __init__(self) -> None:
        self._data: dict[str, Any] | None = None
        self._task: Task | None = None

    def read(self, data: dict[str, Any]) -> Task:
        """The inverse of `Task.to_json`."""
        if self._task is None or data != self._data:
            self._data, self._task = data, Task.from_json(data)
        return self._task


def read_candidate(data: Mapping[str, Any], last: LastTask | None = None) -> Candidate:
    """The inverse of `candidate_json`."""
    task = (last or LastTask()).read(data["task"])
    return Candidate(task, Target.from_json(data["target"]), Schedule.from_json(data["schedule"]))


def artifact_json(artifact: Artifact | GpuArtifact) -> dict[str, Any]:
    """Plain data; `read_artifact` inverts it."""
    if isinstance(artifact, GpuArtifact):
        objects: tuple[bytes, ...] = (artifact.code,)
        form: dict[str, Any] = {
            "launches": [list(launch) for launch in artifact.launches],
            "usage": {symbol: list(usage) for symbol, usage in artifact.usage.items()},
        }
    else:
        objects = artifact.objects
        form = {"phases": [[phase.symbol, phase.iterations] for phase in artifact.phases]}
    return form | {
        "objects": [base64.b64encode(code).decode() for code in objects],
        "sha256": artifact.sha256,
        "params": [_buffer_json(buffer) for buffer in artifact.params],
        "scratch": [_buffer_json(buffer) for buffer in artifact.scratch],
        "packings": {name: packing.to_json() for name, packing in artifact.packings.items()},
    }


def read_artifact(data: Mapping[str, Any]) -> Artifact | GpuArtifact:
    """The inverse of `artifact_json`."""
    if "launches" in data:
        return _read_gpu_artifact(data)
    return Artifact(
        objects=tuple(base64.b64decode(code) for code in data["objects"]),
        sha256=data["sha256"],
        phases=tuple(Phase(symbol, iterations) for symbol, iterations in data["phases"]),
        params=tuple(_buffer(buffer) for buffer in data["params"]),
        scratch=tuple(_buffer(buffer) for buffer in data["scratch"]),
        packings={name: Packing.from_json(packing) for name, packing in data["packings"].items()},
    )


def _read_gpu_artifact(data: Mapping[str, Any]) -> GpuArtifact:
    [code] = data["objects"]
    return GpuArtifact(
        code=base64.b64decode(code),
        sha256=data["sha256"],
        launches=tuple(Launch(symbol, tuple(grid), *rest) for symbol, grid, *rest in data["launches"]),
        usage={symbol: Usage(*usage) for symbol, usage in data["usage"].items()},
        params=tuple(_buffer(buffer) for buffer in data["params"]),
        scratch=tuple(_buffer(buffer) for buffer in data["scratch"]),
        packings={name: Packing.from_json(packing) for name, packing in data["packings"].items()},
    )


def identity(data: Mapping[str, Any]) -> str:
    """SHA-256 of what an artifact's time depends on: its code, and how it is called."""
    parts = {name: value for name, value in data.items() if name != "objects"}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _buffer_json(buffer: Buffer) -> list[Any]:
    return [buffer.name, list(buffer.shape), buffer.dtype.value, buffer.scope.value]


def _buffer(data: list[Any]) -> Buffer:
    name, shape, dtype, scope = data
    return Buffer(name, tuple(shape), DType(dtype), Scope(scope))
