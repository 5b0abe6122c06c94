"""The tab Model: the graph of a job's model, a line for each fused task where it stands, and what it takes of a run.

What repeats is shown once (`blocks`), and what takes little is shown together where there is too much to show: a model
may have thousands of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from math import inf
from typing import Any, Literal

from markupsafe import Markup
from pydantic import Field

from tunewright.db.job import Job
from tunewright.tuner.models.task_graph import MOST_NODES, StepKind, TaskGraph
from tunewright.tuner.noise import total_noise
from tunewright.tuner.text import counted, duration, large, mark_noise, mark_trial, printable, share, shorten
from tunewright.tuner.units import in_s

from ...http.schemas.base import Answer
from ..drawing.graph import GraphBox, draw_graph
from ..html import task_url
from ..views import Text
from .blocks import StepBlock, find_blocks
from .tasks import ModelRun, total_ms

MOST_LINES = 120
"""Lines of the graph, and of all its blocks together."""

MOST_NAMES = 8
"""Names of a line."""

LONGEST_NAME = 60
"""Letters of a node's name beside the op of its task."""

MOST_OPS = 3
"""Ops that the line of several nodes names."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class GraphRun(StrEnum):
    """Which run of the model is looked at."""

    DEFAULT = "default"
    TUNED = "tuned"


class GraphLine(Answer):
    """A node of the graph: a task where it stands, a node that is none, or several of them."""

    kind: StepKind | Literal["block", "several"] = Field(
        description="A `task`, a node without a kernel (`fallback`), what the `runtime` does itself, an `input` or an "
        "`output` of the model; a `block` that repeats, or `several` that take little."
    )
    op: Text = Field(description="What it is, for people.")
    key: Text = Field(description="Of the task; empty where it is none.")
    block: Text = Field(description="The name of the block; empty where it is none.")
    nodes: int = Field(description="How many nodes it stands for, each time.")
    repeats: int = Field(description="How often they stand there one after the other.")
    type: Text = Field(description="Type and shape of what the last of them makes; empty: not known.")
    size_bytes: int = Field(description="Its size; 0: not known.")
    names: list[Text] = Field(
        max_length=MOST_NAMES,
        description="What the model calls its nodes; none where the names are not known. Of a block those of the first "
        "repetition.",
    )
    last_names: list[Text] = Field(max_length=MOST_NAMES, description="The same of the last repetition, if any.")
    sources: list[int] = Field(description="The places in the list, from 0 on, of those that it reads from.")
    time_ms: float | None = Field(description="What it takes of a run, all together; null: not known.")
    share: float | None = Field(description="The same as a part of the run.")
    is_tried: bool = Field(description="Whether that is of trials, which nothing has confirmed.")
    noise: Text = Field(description="Why the machine was too busy to rely on it; empty where it was not.")

    @property
    def time_text(self) -> str:
        """The time with the marks that it needs."""
        return mark_trial(mark_noise(duration(self.time_ms), self.noise), self.is_tried)

    @property
    def made_text(self) -> str:
        """What it makes, for people."""
        return f"{self.type}, {large(self.size_bytes, 'B')}" if self.size_bytes else self.type

    @property
    def name_text(self) -> str:
        """Its names, for people."""
        first, last = ", ".join(self.names), ", ".join(self.last_names)
        return f"{first} … {last}" if last and last != first else first


class GraphBlock(Answer):
    """A block: what it is made of, once."""

    name: Text
    repeats: int
    nodes: int = Field(description="Each time.")
    lines: list[GraphLine] = Field(description="Its nodes. What reads from none of them reads from what is before.")


class ModelGraph(Answer):
    """The graph of a model."""

    run: GraphRun = Field(description="Which run the times are of.")
    nodes: int = Field(description="How many the model has.")
    lines: list[GraphLine] = Field(description="In an order that computes them.")
    blocks: list[GraphBlock]
    why_none: Text = Field(description="Why there is nothing to see; empty where there is.")
    why_no_names: Text = Field(description="Why the model's own names are not there; empty where they are.")

    @property
    def has_names(self) -> bool:
        """Whether any line has a name."""
        every = [*self.lines, *(line for block in self.blocks for line in block.lines)]
        return any(line.names for line in every)


NO_NAMES = "The names of the model's nodes are not kept here, but for those of a model that was sent with them"


def stored_graph(job: Job, data: Any) -> tuple[TaskGraph | None, str]:
    """The graph of a job's model as the database has it; or None, and why."""
    if not job.spec.model_sha256:
        return None, "The job is of tasks alone, without a model that they were cut from."
    if data is None:
        return None, (
            "The job came without the graph of its model, as those of older versions did. The next job of this model "
            "has it; a report can draw it from the file."
        )
    try:
        graph = TaskGraph.of_json(data, len(job.spec.tasks))
    except (AttributeError, LookupError, TypeError, ValueError):
        return None, "What is kept of the model's graph can't be read by this version."
    if graph.left_out:
        return None, f"The model has {counted(graph.left_out, 'node')}; a graph is kept of {MOST_NODES:,} at most."
    return graph, ""


def model_graph(
    job: Job, run: ModelRun, ops: Mapping[str, str], graph: TaskGraph | None, why_none: str, which: GraphRun
) -> ModelGraph:
    """The graph of a job's model with the times of a run. `ops` say what its tasks are."""
    if graph is None:
        return ModelGraph(run=which, nodes=0, lines=[], blocks=[], why_none=why_none, why_no_names="")
    if which is GraphRun.TUNED and not run.latency.is_kept:
        graph = graph.fastest(
            [in_s(times.best_ms) if uses else inf for uses, times in zip(run.uses, run.times, strict=True)]
        )
    facts = _Facts(job, run, ops, graph, which)
    steps = graph.steps
    found = find_blocks([(step.kind, step.op, step.task) for step in steps], [step.sources for step in steps])
    top = facts.gathered(found, MOST_LINES)
    repeated = [block for block in top if block.repeats > 1 and block.length > 1]
    names = {block: _letters(number) for number, block in enumerate(repeated)}
    blocks = [
        GraphBlock(
            name=names[block],
            repeats=block.repeats,
            nodes=block.length,
            lines=facts.lines(
                facts.gathered(
                    [StepBlock(place, 1) for place in range(block.start, block.start + block.length)],
                    MOST_LINES // len(repeated),
                ),
                {},
                block,
            ),
        )
        for block in repeated
    ]
    return ModelGraph(
        run=which,
        nodes=len(steps),
        lines=facts.lines(top, names),
        blocks=blocks,
        why_none="" if steps else "The model has no nodes.",
        why_no_names="" if any(step.names for step in steps) else NO_NAMES,
    )


def named_ops(job: Job, ops: Mapping[str, str], graph: TaskGraph) -> dict[str, str]:
    """Names of tasks by key, each with the first node of the model in it, and how many others run it."""
    names: dict[str, list[str]] = {}
    for step in graph.steps:
        if step.task >= 0 and step.names:
            names.setdefault(job.spec.tasks[step.task].task_key, []).append(step.names[0])
    result = dict(ops)
    for key, found in names.items():
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        result[key] = f"{ops.get(key, '')} ({shorten(printable(found[0]), LONGEST_NAME)}{more})"
    return result


def _letters(number: int) -> str:
    """The name of a block: A to Z, then AA and so on."""
    more, last = divmod(number, len(LETTERS))
    return (_letters(more - 1) if more else "") + LETTERS[last]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of each step of a graph."""

    job: Job
    run: ModelRun
    ops: Mapping[str, str]
    graph: TaskGraph
    which: GraphRun

    def gathered(self, blocks: Sequence[StepBlock], most: int) -> list[StepBlock]:
        """No more blocks than that: the heaviest ones as they are, and each run of others between them as one."""
        if len(blocks) <= most:
            return list(blocks)
        order = sorted(range(len(blocks)), key=lambda n: (-(self._time_ms(blocks[n]) or 0.0), n))
        heavy = set(order[: max(most // 2 - 1, 0)])
        result: list[StepBlock] = []
        for is_heavy, run in groupby(range(len(blocks)), key=heavy.__contains__):
            own = [blocks[n] for n in run]
            result += own if is_heavy or len(own) == 1 else [StepBlock(own[0].start, own[-1].stop - own[0].start)]
        return result

    def lines(
        self, blocks: Sequence[StepBlock], names: Mapping[StepBlock, str], within: StepBlock | None = None
    ) -> list[GraphLine]:
        """The lines of these blocks, which follow each other; `within` one that repeats, all repetitions count."""
        first = blocks[0].start if blocks else 0
        places = [n for n, block in enumerate(blocks) for _ in range(block.start, block.stop)]
        lines = []
        for n, block in enumerate(blocks):
            read = {source for step in self.graph.steps[block.start : block.stop] for source in step.sources}
            sources = sorted({places[source - first] for source in read if source >= first} - {n})
            lines.append(self._line(block, names.get(block, ""), sources, within))
        return lines

    def _line(self, block: StepBlock, name: str, sources: list[int], within: StepBlock | None) -> GraphLine:
        steps = self.graph.steps[block.start : block.start + block.length]
        tasks = [step.task for step in steps if step.task >= 0]
        times = within.repeats if within else 1
        time_ms = self._time_ms(block)
        time_ms = None if time_ms is None else times * time_ms
        whole_ms = self.run.default_ms if self.which is GraphRun.DEFAULT else self.run.tuned_ms
        last = steps[-1]
        kind: Any = last.kind if block.length == 1 else "block" if block.repeats > 1 else "several"
        again = block if block.repeats > 1 else within
        return GraphLine(
            kind=kind,
            op=self._what(block),
            key=self.job.spec.tasks[last.task].task_key if block.length == 1 and last.task >= 0 else "",
            block=name,
            nodes=block.length,
            repeats=block.repeats,
            type=last.type,
            size_bytes=last.size_bytes,
            names=self._names(block),
            last_names=self._names(replace(block, start=block.start + again.length * (again.repeats - 1)))
            if again
            else [],
            sources=sources,
            time_ms=time_ms,
            share=time_ms / whole_ms if time_ms is not None and whole_ms else None,
            is_tried=not all(self._is_confirmed(task) for task in tasks),
            noise=total_noise(self.run.times[task].noise for task in tasks),
        )

    def _what(self, block: StepBlock) -> str:
        ops = Counter(self._op(place) for place in range(block.start, block.start + block.length))
        if block.length == 1:
            return next(iter(ops))
        most = ", ".join(f"{count} {op}" if count > 1 else op for op, count in ops.most_common(MOST_OPS))
        return f"{most}, ..." if len(ops) > MOST_OPS else most

    def _op(self, place: int) -> str:
        step = self.graph.steps[place]
        return self.ops.get(self.job.spec.tasks[step.task].task_key, "") if step.task >= 0 else step.op

    def _names(self, block: StepBlock) -> list[str]:
        """The names of the nodes of a block, the first time; of several the first and the last node's."""
        steps = self.graph.steps[block.start : block.start + block.length]
        ends = steps if len(steps) < 2 else (steps[0], steps[-1])
        return list(dict.fromkeys(name for step in ends for name in step.names))[:MOST_NAMES]

    def _is_confirmed(self, task: int) -> bool:
        times = self.run.times[task]
        return times.is_default_confirmed if self._is_default else times.is_confirmed

    @property
    def _is_default(self) -> bool:
        return self.which is GraphRun.DEFAULT or self.run.latency.is_kept

    def _time_ms(self, block: StepBlock) -> float | None:
        """What all repetitions take together, of tasks alone; None where one is not known, or there is none."""
        steps = self.graph.steps[block.start : block.start + block.length]
        times = [self.run.times[step.task] for step in steps if step.task >= 0]
        own_ms = total_ms([time.default_ms if self._is_default else time.best_ms for time in times])
        return None if own_ms is None else block.repeats * own_ms


# Charts


def graph_charts(view: ModelGraph, job_id: int, target_key: str) -> dict[str, Markup]:
    """`graph`, and the graph of each block by its name: `block-A`."""
    run = "on default schedules" if view.run is GraphRun.DEFAULT else "as tuned"
    charts = {"graph": _chart(f"The model, {run}", view.lines, view, job_id, target_key)}
    for block in view.blocks:
        charts[f"block-{block.name}"] = _chart(f"Block {block.name}", block.lines, view, job_id, target_key)
    return charts


def _chart(title: str, lines: Sequence[GraphLine], view: ModelGraph, job_id: int, target_key: str) -> Markup:
    heaviest = sorted((line for line in lines if line.share), key=lambda line: -(line.share or 0.0))[:MOST_OPS]
    told = "; ".join(f"{line.op}: {share(line.share)}" for line in heaviest)
    words = f"{counted(len(lines), 'box', 'boxes')}. Most of a run take: {told}." if told else ""
    boxes = [_box(line, view.has_names, job_id, target_key) for line in lines]
    return draw_graph(title, words, boxes, view.why_none)


def _box(line: GraphLine, has_names: bool, job_id: int, target_key: str) -> GraphBox:
    head = f"Block {line.block}" if line.block else counted(line.nodes, "node") if line.kind == "several" else line.op
    if line.repeats > 1:
        head = f"{head} ×{line.repeats}"
    about = line.op if line.nodes > 1 else (has_names and line.name_text) or line.type
    time = line.time_text if line.share is None else f"{line.time_text} · {share(line.share)}"
    words = [head, line.op, line.name_text, line.made_text, "" if line.time_ms is None else time]
    href = f"#in-block-{line.block}" if line.block else None
    if line.key and target_key:
        href = task_url(line.key, target_key, job=job_id)
    return GraphBox(
        lines=(head, about, "" if line.time_ms is None else time),
        kind=_KINDS[line.kind] if line.repeats == 1 else "pile",
        sources=tuple(line.sources),
        share=line.share,
        words="\n".join(dict.fromkeys(word for word in words if word)),
        carries=line.made_text,
        href=href,
    )


_KINDS: dict[str, Literal["task", "plain", "port", "pile"]] = {
    StepKind.TASK: "task",
    StepKind.FALLBACK: "plain",
    StepKind.RUNTIME: "plain",
    StepKind.INPUT: "port",
    StepKind.OUTPUT: "port",
    "block": "pile",
    "several": "pile",
}
