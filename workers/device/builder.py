"""Builder: builds candidates in a child."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunewright.search_space.measurement import Candidate, Measurement, Status

from ..lock import HostLock
from ..pool import Limits
from ..sandbox.process import Child, ChildLimits, RequestFailed
from ..wire import candidate_json


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of timers and builders: folder of the object cache, limits, and modules that children import."""

    objects: Path
    limits: Limits
    plugins: tuple[str, ...] = ()

    def child(self, *, once: bool = False) -> Child:
        """A child for candidates. `once`: see `Child`."""
        return Child(ChildLimits(self.limits.memory_bytes), self.plugins, once=once)


@dataclass(frozen=True, slots=True)
class Build:
    """A built candidate with its object code, to be timed on any machine of its target."""

    artifact: dict[str, Any] = field(repr=False)  # as `wire.artifact_json` has it
    identity: str  # what its time depends on
    build_s: float

    def failure(self, failure: RequestFailed, provenance: Mapping[str, str]) -> Measurement:
        """The measurement where the candidate is to blame for a failed request."""
        return Measurement(
            failure.status,
            error=str(failure),
            build_s=self.build_s,
            object_sha256=self.artifact["sha256"],
            provenance=dict(provenance),
        )


def request_build(child: Child, setup: Setup, candidate: Candidate) -> Build | Measurement:
    """Have a child build a candidate; the measurement of its failure if it can't be built. Raises RequestFailed."""
    limit_s, data = setup.limits.build_s, candidate_json(candidate)
    reply = child.request("build", limit_s, candidate=data, objects=str(setup.objects))
    if "error" not in reply:
        return Build(reply["artifact"], reply["identity"], reply["build_s"])
    provenance = dict(child.provenance)
    return Measurement(Status.BUILD_ERROR, error=reply["error"], build_s=reply["build_s"], provenance=provenance)


class Builder:
    """Owns the child that builds one candidate after the other."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = HostLock(setup.objects)
        self._child = setup.child()

    def build(self, candidate: Candidate) -> Build | Measurement:
        """Build a candidate; the measurement of its failure if it fails. Raises Illegal, and ChildError on a bug."""
        with self._lock.shared():
            start_s = time.perf_counter()
            try:
                return request_build(self._child, self._setup, candidate)
            except RequestFailed as failure:
                build_s, provenance = time.perf_counter() - start_s, dict(self._child.provenance)
                return Measurement(failure.status, error=str(failure), build_s=build_s, provenance=provenance)

    def kill(self) -> None:
        """Stop the current build, from any thread."""
        self._child.kill()

    def close(self) -> None:
        """End the child."""
        self._child.close()
