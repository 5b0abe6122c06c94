"""Elements: any task on a GPU, a few neighbours of the result for each thread.

Each fused stage is a launch, or those that don't wait for each other are one.

What is read again by other threads comes out of the caches. Products, convolutions and rows that are worth more have
sketches of their own; this one covers the rest, and is what those are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.gpu import BLOCK_THREADS, WARP, WIDEST_BYTES
from tunewright.codegen.ir.ir import Block, Kernel, Stmt
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Axis, Task

from ..buffers import params, temporaries
from ..description import SchedulePoint
from ..patterns.fused_stage import FusedStage, fuse_stages, independent_groups
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, flat_extents, whole_extents
from .tiles.element_launch import PLAIN_THREADS, ElementLaunch, joint_launch, output_order, plain_launch

VECTORS = (1, 2, 4, 8)
"""Neighbours of a thread: at most what one access writes."""

OTHER_REGISTERS = 24
"""Registers of a thread for indices, beside results and what is read."""

JOINT = "1: what does not wait for each other, such as the parts of a Concat, is one launch"
"""What the knob says by which fused stages are one launch."""

UNROLL = 4
"""Copies of the body of a fold by default."""


@dataclass(frozen=True)
class ElementsLayout:
    """The fused stages of a task, and the one that the knobs are for."""

    stages: tuple[FusedStage, ...]
    main: FusedStage

    @cached_property
    def groups(self) -> list[tuple[FusedStage, ...]]:
        """The fused stages in groups of which each may be one launch."""
        return independent_groups(self.stages)

    @property
    def has_groups(self) -> bool:
        """Whether some fused stages may be one launch."""
        return len(self.groups) < len(self.stages)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return output_order(self.main)

    @property
    def width(self) -> int:
        """Elements along the axis that neighbours lie along."""
        return self.axes[-1].extent if self.axes else 1

    @property
    def element_count(self) -> int:
        """Elements that the main fused stage computes."""
        return prod(axis.extent for axis in self.axes)


@lru_cache(maxsize=256)
def elements_layout(task: Task) -> ElementsLayout:
    """The layout of a task's loops."""
    stages = tuple(fuse_stages(task))
    return ElementsLayout(stages, max(stages, key=lambda fused_stage: fused_stage.stage.points))


class ElementsSketch(PatternSketch[ElementsLayout]):
    """Any task, element by element."""

    name = "elements"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> ElementsLayout | None:
        return elements_layout(task)

    def offer(self, task: Task, plan: ElementsLayout, target: Target) -> Space:
        each_bytes = plan.main.epilogue.dtype.size_bytes
        folds = plan.main.stage.reduce[-1].extent if plan.main.stage.reduce else 1
        knobs = (
            Knob("threads", tuple(n for n in _powers(WARP, BLOCK_THREADS) if n == WARP or n < 2 * plan.element_count)),
            Knob("vector", tuple(n for n in VECTORS if plan.width % n == 0 and n * each_bytes <= WIDEST_BYTES)),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8, 16) if n <= folds)),
            *((Knob("joint", (0, 1), JOINT),) if plan.has_groups else ()),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(plan, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target, knobs),
            block=_block,
        )

    def write(self, task: Task, plan: ElementsLayout, schedule: Schedule, target: Target) -> Kernel:
        main = ElementLaunch(plan.main, schedule["threads"], schedule["vector"], schedule["unroll"])
        is_joint = plan.has_groups and schedule["joint"]
        groups = plan.groups if is_joint else [(fused_stage,) for fused_stage in plan.stages]
        launches = tuple(_launch(group, main) for group in groups)
        return Kernel(params(task, {}), temporaries(task, plan.stages), Block(launches))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start(
            "Loops that follow from the indices of the task alone: a thread for each few elements of the result.",
            point.values["threads"],
        )
        if point.values["vector"] > 1:
            yield f"A thread computes {point.values['vector']} neighbours along {point.vector}."
        yield from point.say_copies(point.tiles[0])


def _launch(group: Sequence[FusedStage], main: ElementLaunch) -> Stmt:
    """A launch for fused stages that may run at the same time: with the numbers of the main one if it is among them."""
    if len(group) == 1:
        return main.lower() if group[0] is main.fused_stage else plain_launch(group[0])
    threads = main.threads if any(part is main.fused_stage for part in group) else PLAIN_THREADS
    return joint_launch([main if part is main.fused_stage else ElementLaunch(part, threads, 1) for part in group])


def _powers(first: int, last: int) -> list[int]:
    """Powers of two."""
    return [1 << n for n in range(first.bit_length() - 1, last.bit_length())]


def _block(columns: Columns) -> BlockShape:
    threads, vector = columns["threads"], columns["vector"]
    return BlockShape(threads, vector * (1 + columns["unroll"]) + OTHER_REGISTERS, np.zeros_like(threads))


def _legal(plan: ElementsLayout, columns: Columns) -> NDArray[np.bool_]:
    """Exclude blocks whose threads mostly idle."""
    needed = plan.element_count // columns["vector"]
    return np.asarray((columns["threads"] == WARP) | (columns["threads"] < 2 * needed))


def _preferred(plan: ElementsLayout, target: Target, knobs: tuple[Knob, ...]) -> Mapping[str, int]:
    """Wide accesses where there is enough to do for all multiprocessors, else as many threads as possible."""
    choices = {knob.name: knob.choices for knob in knobs}
    enough = target.threads * PLAIN_THREADS * 2
    vector = max(n for n in choices["vector"] if n == 1 or plan.element_count // n >= enough)
    most = min(PLAIN_THREADS, max(WARP, plan.element_count // vector // target.threads))
    return {
        "threads": max(n for n in choices["threads"] if n == WARP or n <= most),
        "vector": vector,
        "unroll": max(n for n in choices["unroll"] if n <= UNROLL),
    } | ({"joint": 1} if plan.has_groups else {})


def _tiling(plan: ElementsLayout, columns: Columns) -> Tiling:
    """The tile of a thread, with its whole fold, and that of a block."""
    stage, last = plan.main.stage, plan.axes[-1].name if plan.axes else ""
    width = columns["threads"] * columns["vector"]
    tile = {last: columns["vector"]} | {axis.name: columns["unroll"] for axis in stage.reduce[-1:]}
    levels = tile, whole_extents(stage.reduce), flat_extents(plan.axes, width)
    return Tiling.of(stage, last, columns, levels, -(-plan.element_count // width))
