"""Model: a user's network, read, rewritten and cut into tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.codegen.target import CUDA, Target
from tunewright.graph.control.flat import FlatStep
from tunewright.graph.control.lower import lower
from tunewright.graph.control.steps import Branch, LoopEnd, LoopStart, Routine
from tunewright.graph.evaluation.sizes import CUT
from tunewright.graph.fusion.fusion import Fallback, TaskCall, partition
from tunewright.graph.fusion.joined_products import join_products
from tunewright.graph.fusion.segments import CallChain, chains
from tunewright.graph.ir import Graph
from tunewright.graph.numerics import PROCESSOR, Numerics, Precision
from tunewright.graph.onnx_import import faults_named, load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.sketches import attention_rows, has_enough_blocks

from .assembly import Assembly, CallRange, TaskChain

SegmentPlace = tuple[int, int, int]
"""The place of a segment: the number of its chain, of its first call there, and of the call behind its last."""

MANY_QUERIES = 16
"""Queries of a head from which on attention on a GPU is one launch, whatever anybody measures."""

MOST_OCCURRENCES = 1_000_000
"""A task counts as occurring this often at most: loops in loops run far more often than anything is tuned for."""


@dataclass(frozen=True)
class Model:
    """The graph after all rewrites and the steps that run it.

    While it has `chains`, it is open which of their segments are run: `merge` and `fastest` make the model that is
    run. Until then the steps run all calls apart.
    """

    label: str  # for people: the file name; hostile text is possible
    sha256: str  # of the ONNX bytes
    graph: Graph
    steps: tuple[FlatStep, ...]
    chains: tuple[CallChain, ...] = ()
    places: tuple[SegmentPlace, ...] = ()  # of the segments that were put in
    precision: Precision = Precision.AS_GIVEN  # that it is computed in
    last_use: bool = False  # it is compiled once more and for nothing else: its constants go as they are packed

    @cached_property
    def tasks(self) -> dict[str, tuple[Task, int]]:
        """Task key -> task and how often it occurs: those of the steps, then those that may stand for them.

        In order of first appearance. A segment occurs wherever it may stand for calls. What is in a loop occurs once an
        iteration, where their number is known.
        """
        counts: dict[str, tuple[Task, int]] = {}

        def add(call: TaskCall, occurrences: int) -> None:
            _, count = counts.get(call.task.key, (call.task, 0))
            counts[call.task.key] = call.task, count + occurrences

        repeats = [1]
        for step in self.steps:
            match step:
                case LoopStart(count=count):
                    repeats.append(min(repeats[-1] * (count or 1), MOST_OCCURRENCES))
                case LoopEnd():
                    repeats.pop()
                case TaskCall():
                    add(step, repeats[-1])
        for chain in self.chains:
            for segment in chain.segments:
                add(segment.call, 1)
        return counts

    @cached_property
    def assembly(self) -> Assembly:
        """The uses and alternatives of tasks, by their number in `tasks`."""
        counts = Counter(self._task_chains)
        return Assembly(tuple(count for _, count in self.tasks.values()), tuple(counts.items()))

    @cached_property
    def _task_chains(self) -> list[TaskChain]:
        """The chains, as far as they differ in tasks."""
        numbers = {key: number for number, key in enumerate(self.tasks)}
        return [
            TaskChain(
                tuple(numbers[call.task.key] for call in chain.calls),
                tuple(CallRange(s.start, s.stop, numbers[s.call.task.key]) for s in chain.segments),
            )
            for chain in self.chains
        ]

    def fastest(self, times_s: Mapping[str, float]) -> Model:
        """The model as it is run: with the segments that take less time than their calls. By task key, as measured."""
        times = [times_s.get(key) for key in self.tasks]
        return self.merge(
            (number, part.start, part.stop)
            for number, chain in enumerate(self._task_chains)
            for part in chain.fastest(times)
            if part in chain.runs
        )

    def merge(self, places: Iterable[SegmentPlace]) -> Model:
        """The model with these segments in the place of their calls. Raises KeyError where there is no such segment."""
        places = tuple(places)
        if not self.chains and not places:
            return self
        segments = {
            (number, segment.start, segment.stop): segment.call
            for number, chain in enumerate(self.chains)
            for segment in chain.segments
        }
        replacements: dict[tuple[str, ...], TaskCall | None] = {}  # outputs of a call -> what runs where it stood
        for place in places:
            number, start, stop = place
            for call in self.chains[number].calls[start:stop] if place in segments else ():
                if call.outputs in replacements:
                    raise KeyError(place)
                replacements[call.outputs] = None
            replacements[segments[place].outputs] = segments[place]
        steps = (replacements.get(s.outputs, s) if isinstance(s, TaskCall) else s for s in self.steps)
        return replace(self, steps=tuple(step for step in steps if step is not None), chains=(), places=places)

    def settle_attention(self, target: Target) -> Model:
        """The model for a GPU: attention is one launch where its kernels apply.

        Few queries that keep few multiprocessors busy are left to measurements. Segments that are no such launch are
        dropped.
        """
        offered = [
            [(segment, rows) for segment in chain.segments if (rows := attention_rows(segment.call.task, target))]
            for chain in self.chains
        ]
        settled = {
            number: segments[0][0]  # one is all that a chain has, unless softmaxes follow each other
            for number, segments in enumerate(offered)
            if segments and (segments[0][1] >= MANY_QUERIES or has_enough_blocks(segments[0][0].call.task, target))
        }
        open_chains = tuple(
            replace(chain, segments=tuple(segment for segment, _ in segments))
            for number, (chain, segments) in enumerate(zip(self.chains, offered, strict=True))
            if segments and number not in settled
        )
        model = self.merge((number, segment.start, segment.stop) for number, segment in settled.items())
        return replace(model, chains=open_chains, places=())

    @property
    def native_nodes(self) -> int:
        """The number of nodes, after rewriting, that are part of a task, or of the runtime's own between tasks."""
        nodes = {node.outputs for step in self.steps if isinstance(step, TaskCall) for node in step.nodes}
        return self.runtime_nodes + len(nodes)

    @property
    def runtime_nodes(self) -> int:
        """The number of those that are the runtime's own: they are no task, and nothing of them is tuned."""
        return sum(isinstance(step, Branch | LoopStart | Routine) for step in self.steps)

    @property
    def fallbacks(self) -> list[Fallback]:
        """The nodes without a native kernel, but for those that only cut an operand of these to its size."""
        return [step for step in self.steps if isinstance(step, Fallback) and step.node.op != CUT]

    @property
    def fallback_reasons(self) -> list[str]:
        """The reasons why nodes have no native kernel, each once, beginning with the op."""
        return list(dict.fromkeys(step.reason for step in self.fallbacks))

    @property
    def fallback_ops(self) -> dict[str, int]:
        """Op -> how many of its nodes have no native kernel."""
        return dict(Counter(step.node.op for step in self.fallbacks))


def open_for(
    target: Target | None,
    source: Path | str | bytes,
    dims: Mapping[str, int] | None = None,
    overrides: Collection[str] = (),
    precision: Precision = Precision.AS_GIVEN,
) -> Model:
    """Read an ONNX model, as `open_model`, in the arithmetic of a target: its tasks are those of this target.

    None: of any processor.
    """
    if target is None:
        return open_model(source, dims, Numerics(precision=precision), overrides=overrides)
    is_gpu = target.kind == CUDA
    numerics = Numerics(widen=not is_gpu, dots=target.has_dots, bf16=target.has_bf16, precision=precision)
    model = open_model(source, dims, numerics, multiprocessors=target.threads if is_gpu else 0, overrides=overrides)
    return model.settle_attention(target) if is_gpu else model


def open_model(
    source: Path | str | bytes,
    dims: Mapping[str, int] | None = None,
    numerics: Numerics = PROCESSOR,
    *,
    multiprocessors: int = 0,
    overrides: Collection[str] = (),
) -> Model:
    """Read an ONNX model. `dims` binds its dynamic dimensions; `overrides` are weights that become inputs, `given` in
    `load`. `numerics` as in `rewrite`; on processors control flow becomes steps, too.
    `multiprocessors` as in `join_products`, for GPUs; with 0 no products are joined. See `open_for` too.

    Raises ModelError, one line.
    """
    if not isinstance(source, bytes):
        source = Path(source)
    label = "model" if isinstance(source, bytes) else source.name
    with ThreadPoolExecutor(1, "tunewright-digest") as thread:
        sha256 = thread.submit(_sha256, source)  # of a large file it takes as long as reading it
        with faults_named(source):
            graph = rewrite(load(source, dims or {}, weight_inputs=overrides), numerics=numerics)
        graph, steps = join_products(graph, multiprocessors) if multiprocessors else (graph, partition(graph))
        segments = chains(graph, steps, on_gpu=bool(multiprocessors))
        flat_graph, flat_steps = lower(graph, steps, numerics) if numerics.widen else (graph, list[FlatStep](steps))
        return Model(label, sha256.result(), flat_graph, tuple(flat_steps), segments, precision=numerics.precision)


def _sha256(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def example_feeds(model: Model, seed: int = 0) -> dict[str, Any]:
    """One array for each input, by its label: floats around zero, zeros and ones, false and true, short texts."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for value in model.graph.inputs:
        kind = model.graph.type(value.tensor)
        shape = kind.shape or ()
        if kind.dtype == "string":
            feeds[value.label] = np.array([f"text {n}" for n in range(prod(shape))], object).reshape(shape)
        elif kind.dtype == "bfloat16" or np.issubdtype(np.dtype(kind.dtype), np.floating):
            feeds[value.label] = rng.standard_normal(shape).astype(kind.dtype)
        else:
            feeds[value.label] = rng.integers(0, 2, shape).astype(kind.dtype)
    return feeds
