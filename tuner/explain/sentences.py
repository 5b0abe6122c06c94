"""A schedule in plain sentences, for people who know what a tile is."""

from __future__ import annotations

from collections.abc import Iterator

from tunewright.codegen.ir.ir import Alloc, Block, For, If, Kernel, Scope, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.counts import enumeration
from tunewright.search_space.description import SchedulePoint
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import point_of, sketch

from ..text import large, shorten

MOST_SENTENCES = 40
"""Sentences of a schedule. The longest chains have a third of that."""

MOST_LETTERS = 300
"""Letters of a sentence."""

LARGEST_VECTOR_BYTES = 256
"""Memory of a chunk up to which it is not mentioned."""


def describe(task: Task, target: Target, schedule: Schedule, kernel: Kernel | None = None) -> list[str]:
    """The sentences of a schedule of a task. `kernel` is its lowered form, if known.

    Raises Illegal where the schedule is in no space of the task. With tasks of strangers it may take any time and
    memory: see `describer`.
    """
    point = point_of(Candidate(task, target, schedule), kernel)
    said = sketch(schedule.sketch).describe(point)
    texts = [shorten(text, MOST_LETTERS) for text in (*said, *_memory(point))]
    if len(texts) > MOST_SENTENCES:
        texts[MOST_SENTENCES - 1 :] = [f"There are {len(texts) - MOST_SENTENCES + 1} more things to say."]
    return texts


def _memory(point: SchedulePoint) -> Iterator[str]:
    """Packed constants, and the memory beside inputs and outputs."""
    packed: dict[str, list[str]] = {}
    for buffer in point.kernel.params:
        packing = point.kernel.packings.get(buffer.name)
        if packing is not None:
            how = "transformed and packed" if packing.maps else "packed"
            before, after = (" x ".join(map(str, s)) for s in (point.task.tensor(buffer.name).shape, buffer.shape))
            packed.setdefault(f"{how} when a model is compiled: {before} becomes {after}", []).append(buffer.name)
    for what, names in packed.items():
        yield f"{enumeration(names)} {'is' if len(names) == 1 else 'are'} {what}."
    scratch = [f"{b.name} ({large(b.size_bytes, 'B')})" for b in point.kernel.scratch]
    if scratch:
        yield f"Phases hand on {enumeration(scratch[:6])}{f' and {len(scratch) - 6} more' if scratch[6:] else ''}."
    local_bytes = max(map(_local_bytes, point.kernel.body.body))
    if local_bytes > LARGEST_VECTOR_BYTES:
        whose = "chunk has {} of memory of its own" if point.target.gpu is None else "block has {} of shared memory"
        yield f"A {whose.format(large(local_bytes, 'B'))}."


def _local_bytes(stmt: Stmt) -> int:
    """Memory that lives inside a statement, at most at any time."""
    match stmt:
        case Block(body):
            return max(map(_local_bytes, body), default=0)
        case For(_, _, body) | If(_, body):
            return _local_bytes(body)
        case Alloc(buffer, body):
            return (buffer.size_bytes if buffer.scope is Scope.SHARED else 0) + _local_bytes(body)
    return 0
