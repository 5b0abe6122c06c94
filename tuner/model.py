"""Model: a user's network, read, rewritten and cut into tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tunewright.graph.fusion import Call, Fallback, Step, partition
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task


@dataclass(frozen=True)
class Model:
    """The graph after all rewrites and the steps that run it."""

    label: str  # for people: the file name; hostile text is possible
    sha256: str  # of the ONNX bytes
    graph: Graph
    steps: tuple[Step, ...]

    @cached_property
    def tasks(self) -> dict[str, tuple[Task, int]]:
        """Task key -> task and how many steps are that task, in order of first appearance."""
        found: dict[str, tuple[Task, int]] = {}
        for step in self.steps:
            if isinstance(step, Call):
                _, count = found.get(step.task.key, (step.task, 0))
                found[step.task.key] = step.task, count + 1
        return found

    @property
    def native_nodes(self) -> int:
        """How many nodes, after rewriting, are part of a task."""
        return sum(len(step.nodes) for step in self.steps if isinstance(step, Call))

    @property
    def fallbacks(self) -> list[Fallback]:
        """The nodes without a native kernel."""
        return [step for step in self.steps if isinstance(step, Fallback)]

    @property
    def fallback_reasons(self) -> list[str]:
        """Why nodes have no native kernel, each reason once, beginning with the op."""
        return list(dict.fromkeys(step.reason for step in self.fallbacks))

    @property
    def fallback_ops(self) -> dict[str, int]:
        """Op -> how many of its nodes have no native kernel."""
        return dict(Counter(step.node.op for step in self.fallbacks))


def open_model(source: Path | str | bytes, dims: Mapping[str, int] | None = None) -> Model:
    """Read an ONNX model. `dims` binds its dynamic dimensions. Raises ModelError in one line for people."""
    if not isinstance(source, bytes):
        source = Path(source)
    try:
        graph = rewrite(load(source, dims or {}))
    except ModelError as error:
        if isinstance(source, bytes):
            raise
        raise ModelError(f"{str(source)!r}: {error}") from error
    data = source if isinstance(source, bytes) else source.read_bytes()
    label = "model" if isinstance(source, bytes) else source.name
    return Model(label, hashlib.sha256(data).hexdigest(), graph, tuple(partition(graph)))
