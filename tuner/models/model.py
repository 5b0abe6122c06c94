"""Model: a user's network, read, rewritten and cut into tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tunewright.graph.fusion import Call, Fallback, Step, partition
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.segments import Chain, chains
from tunewright.graph.task import Task

from .assembly import Assembly, Run, TaskChain

SegmentPlace = tuple[int, int, int]
"""Where a segment stands: the number of its chain, that of its first call in there, and that behind its last."""


@dataclass(frozen=True)
class Model:
    """The graph after all rewrites and the steps that run it.

    While it has `chains`, it is open which of their segments are run: `merged` and `chosen` make the model that is
    run. Until then the steps run all calls apart.
    """

    label: str  # for people: the file name; hostile text is possible
    sha256: str  # of the ONNX bytes
    graph: Graph
    steps: tuple[Step, ...]
    chains: tuple[Chain, ...] = ()
    places: tuple[SegmentPlace, ...] = ()  # of the segments that were put in
    last_use: bool = False  # it is compiled once more and for nothing else: its constants go as they are packed

    @cached_property
    def tasks(self) -> dict[str, tuple[Task, int]]:
        """Task key -> task and how often it occurs: those of the steps, then those that may stand for them.

        In order of first appearance. A segment occurs wherever it may stand for calls.
        """
        found: dict[str, tuple[Task, int]] = {}
        segments = (segment.call for chain in self.chains for segment in chain.segments)
        for call in (*(step for step in self.steps if isinstance(step, Call)), *segments):
            _, count = found.get(call.task.key, (call.task, 0))
            found[call.task.key] = call.task, count + 1
        return found

    @cached_property
    def assembly(self) -> Assembly:
        """What is run how often, and what is a matter of choice; by number of the task in `tasks`."""
        counts = Counter(self._alike)
        return Assembly(tuple(count for _, count in self.tasks.values()), tuple(counts.items()))

    @cached_property
    def _alike(self) -> list[TaskChain]:
        """The chains, as far as they differ in tasks."""
        numbers = {key: number for number, key in enumerate(self.tasks)}
        return [
            TaskChain(
                tuple(numbers[call.task.key] for call in chain.calls),
                tuple(Run(s.start, s.stop, numbers[s.call.task.key]) for s in chain.segments),
            )
            for chain in self.chains
        ]

    def chosen(self, times_s: Mapping[str, float]) -> Model:
        """The model as it is run: with the segments that take less time than their calls. By task key, as measured."""
        times = [times_s.get(key) for key in self.tasks]
        return self.merged(
            (number, part.start, part.stop)
            for number, chain in enumerate(self._alike)
            for part in chain.chosen(times)
            if part in chain.runs
        )

    def merged(self, places: Iterable[SegmentPlace]) -> Model:
        """The model with these segments in the place of their calls. Raises KeyError where there is no such segment."""
        places = tuple(places)
        if not self.chains and not places:
            return self
        segments = {
            (number, segment.start, segment.stop): segment.call
            for number, chain in enumerate(self.chains)
            for segment in chain.segments
        }
        instead: dict[tuple[str, ...], Call | None] = {}  # outputs of a call -> what runs where it stood
        for place in places:
            number, start, stop = place
            for call in self.chains[number].calls[start:stop] if place in segments else ():
                if call.outputs in instead:
                    raise KeyError(place)
                instead[call.outputs] = None
            instead[segments[place].outputs] = segments[place]
        steps = (instead.get(s.outputs, s) if isinstance(s, Call) else s for s in self.steps)
        return replace(self, steps=tuple(step for step in steps if step is not None), chains=(), places=places)

    @property
    def native_nodes(self) -> int:
        """How many nodes, after rewriting, are part of a task."""
        return len({node.outputs for step in self.steps if isinstance(step, Call) for node in step.nodes})

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


def open_model(
    source: Path | str | bytes,
    dims: Mapping[str, int] | None = None,
    *,
    widen: bool = True,
    given: Collection[str] = (),
) -> Model:
    """Read an ONNX model. `dims` binds its dynamic dimensions; `widen` as in `rewrite`; `given` as in `load`.

    Raises ModelError, one line.
    """
    if not isinstance(source, bytes):
        source = Path(source)
    try:
        graph = rewrite(load(source, dims or {}, given=given), widen=widen)
    except ModelError as error:
        if isinstance(source, bytes):
            raise
        raise ModelError(f"{str(source)!r}: {error}") from error
    label = "model" if isinstance(source, bytes) else source.name
    steps = tuple(partition(graph))
    return Model(label, _sha256(source), graph, steps, chains(graph, steps))


def _sha256(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
