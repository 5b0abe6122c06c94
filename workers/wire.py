"""Candidates and artifacts as plain data, to be sent between processes. Object code is base64."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tunewright.codegen.artifact import Artifact, Phase
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.emit import Launch
from tunewright.codegen.cuda.nvrtc import Usage
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir.ir import Buffer, Packing, Scope
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """A candidate as plain data; `read_candidate` inverts it."""
    return {
        "task": candidate.task.to_json(),
        "target": candidate.target.to_json(),
        "schedule": candidate.schedule.to_json(),
    }


class TaskCache:
    """The task that was read last, as most candidates are of the same task as the one before."""

    def __init__(self) -> None:
        self._data: dict[str, Any] | None = None
        self._task: Task | None = None

    def read(self, data: dict[str, Any]) -> Task:
        """The inverse of `Task.to_json`."""
        if self._task is None or data != self._data:
            self._data, self._task = data, Task.from_json(data)
        return self._task


def read_candidate(data: Mapping[str, Any], cache: TaskCache | None = None) -> Candidate:
    """The inverse of `candidate_json`."""
    task = (cache or TaskCache()).read(data["task"])
    return Candidate(task, Target.from_json(data["target"]), Schedule.from_json(data["schedule"]))


def artifact_json(artifact: Artifact | GpuArtifact) -> dict[str, Any]:
    """An artifact as plain data; `read_artifact` inverts it."""
    if isinstance(artifact, GpuArtifact):
        objects: tuple[bytes, ...] = (artifact.code,)
        form: dict[str, Any] = {
            "launches": [launch.to_json() for launch in artifact.launches],
            "usage": {symbol: list(usage) for symbol, usage in artifact.usage.items()},
        }
    else:
        objects = artifact.objects
        form = {"phases": [[phase.symbol, phase.iterations] for phase in artifact.phases]}
        form |= {"numbers": list(artifact.numbers)} if artifact.numbers else {}
    return form | {
        "objects": [base64.b64encode(code).decode() for code in objects],
        "sha256": artifact.sha256,
        "params": list(map(_buffer_json, artifact.params)),
        "scratch": list(map(_buffer_json, artifact.scratch)),
        "packings": {name: packing.to_json() for name, packing in artifact.packings.items()},
    }


def read_artifact(data: Mapping[str, Any]) -> Artifact | GpuArtifact:
    """The inverse of `artifact_json`."""
    objects = tuple(map(base64.b64decode, data["objects"]))
    common: dict[str, Any] = {
        "sha256": data["sha256"],
        "params": tuple(map(_read_buffer, data["params"])),
        "scratch": tuple(map(_read_buffer, data["scratch"])),
        "packings": {name: Packing.from_json(packing) for name, packing in data["packings"].items()},
    }
    if "launches" not in data:
        phases = tuple(Phase(symbol, iterations) for symbol, iterations in data["phases"])
        return Artifact(objects=objects, phases=phases, numbers=tuple(data.get("numbers", ())), **common)
    usage = {symbol: Usage(*figures) for symbol, figures in data["usage"].items()}
    return GpuArtifact(code=objects[0], launches=tuple(map(Launch.from_json, data["launches"])), usage=usage, **common)


def identity(data: Mapping[str, Any]) -> str:
    """SHA-256 of what an artifact's time depends on: its code, and how it is called."""
    parts = {name: value for name, value in data.items() if name != "objects"}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _buffer_json(buffer: Buffer) -> list[Any]:
    return [buffer.name, list(buffer.shape), buffer.dtype.value, buffer.scope.value]


def _read_buffer(data: list[Any]) -> Buffer:
    name, shape, dtype, scope = data
    return Buffer(name, tuple(shape), DType(dtype), Scope(scope))
