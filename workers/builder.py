"""Builder: builds candidates in a child."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunewright.search_space.measurement import Candidate, Measurement, Status

from .lock import HostLock
from .pool import Limits
from .process import Child, ChildLimits, Failed
from .wire import candidate_json


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate that was built, with its object code: it can be timed on any machine of its target."""

    artifact: dict[str, Any] = field(repr=False)  # as `wire.artifact_json` has it
    identity: str  # what its time depends on
    build_s: float

    def failed(self, failed: Failed, provenance: Mapping[str, str]) -> Measurement:
        """The measurement where it is to blame for what a child met."""
        return Measurement(
            failed.status,
            error=str(failed),
            build_s=self.build_s,
            object_sha256=self.artifact["sha256"],
            provenance=dict(provenance),
        )


class Builder:
    """Owns the child that one candidate after the other is built in. `objects` is the folder of the object cache."""

    def __init__(self, objects: Path, limits: Limits, plugins: Sequence[str] = ()) -> None:
        self._objects = objects
        self._limits = limits
        self._lock = HostLock(objects)
        self._child = Child(ChildLimits(limits.memory_bytes), plugins)

    def build(self, candidate: Candidate) -> Built | Measurement:
        """The candidate built, or the measurement of its failure. Raises Illegal, and ChildError on a bug."""
        with self._lock.building():
            start_s = time.perf_counter()
            try:
                reply = self._child.request(
                    "build", self._limits.build_s, candidate=candidate_json(candidate), objects=str(self._objects)
                )
            except Failed as failed:
                return self._failure(failed.status, str(failed), time.perf_counter() - start_s)
        if "error" in reply:
            return self._failure(Status.BUILD_ERROR, reply["error"], reply["build_s"])
        return Built(reply["artifact"], reply["identity"], reply["build_s"])

    def _failure(self, status: Status, error: str, build_s: float) -> Measurement:
        return Measurement(status, error=error, build_s=build_s, provenance=dict(self._child.provenance))

    def kill(self) -> None:
        """Stop the build that is under way, from any thread."""
        self._child.kill()

    def close(self) -> None:
        """End the child."""
        self._child.close()
