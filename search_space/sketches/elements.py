"""Elements: any task on a GPU, as one launch a piece in which each thread computes a few neighbours of the result.

What is read again by other threads comes out of the caches. Products, convolutions and rows that are worth more have
sketches of their own; this one covers the rest, and is what those are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import BLOCK_THREADS, WARP, WIDEST_BYTES
from tunewright.codegen.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Axis, Task

from ..grids.elements import PLAIN_THREADS, Elements, ordered, plain_launch
from ..nests.phases import params, temporaries
from ..nests.pieces import Piece, pieces
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

VECTORS = (1, 2, 4, 8)
"""Neighbours of a thread: at most what one access writes."""

UNROLL = 4
"""Copies of the body of a fold by default."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A task's pieces, and the one that its numbers are for."""

    pieces: tuple[Piece, ...]
    main: Piece

    @property
    def axes(self) -> tuple[Axis, ...]:
        return ordered(self.main)

    @property
    def width(self) -> int:
        """Elements along the axis that neighbours lie along."""
        return self.axes[-1].extent if self.axes else 1

    @property
    def written(self) -> int:
        """Elements that the main piece computes."""
        return prod(axis.extent for axis in self.axes)


@lru_cache(maxsize=256)
def layout(task: Task) -> Layout:
    """The task's loops before any number is chosen."""
    found = tuple(pieces(task))
    return Layout(found, max(found, key=lambda piece: piece.stage.points))


class ElementsSketch:
    """See the module."""

    name = "elements"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == CUDA

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        plan = layout(task)
        each_bytes = plan.main.finish.dtype.size_bytes
        folds = plan.main.stage.reduce[-1].extent if plan.main.stage.reduce else 1
        knobs = (
            Knob("threads", tuple(n for n in _powers(WARP, BLOCK_THREADS) if n == WARP or n < 2 * plan.written)),
            Knob("vector", tuple(n for n in VECTORS if plan.width % n == 0 and n * each_bytes <= WIDEST_BYTES)),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8, 16) if n <= folds)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(plan, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target, knobs),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        plan = layout(task)
        main = Elements(plan.main, schedule["threads"], schedule["vector"], schedule["unroll"]).lower()
        launches = tuple(main if piece is plan.main else plain_launch(piece) for piece in plan.pieces)
        return Kernel(params(task, {}), temporaries(task, plan.pieces), Block(launches))


def _powers(first: int, last: int) -> list[int]:
    """Powers of two."""
    return [1 << n for n in range(first.bit_length() - 1, last.bit_length())]


def _legal(plan: Layout, columns: Columns) -> NDArray[np.bool_]:
    """No blocks of threads that mostly have nothing to do."""
    needed = plan.written // columns["vector"]
    return np.asarray((columns["threads"] == WARP) | (columns["threads"] < 2 * needed))


def _preferred(plan: Layout, target: Target, knobs: tuple[Knob, ...]) -> Mapping[str, int]:
    """Wide accesses where there is enough to do for all multiprocessors, else as many threads as possible."""
    choices = {knob.name: knob.choices for knob in knobs}
    enough = target.threads * PLAIN_THREADS * 2
    vector = max(n for n in choices["vector"] if n == 1 or plan.written // n >= enough)
    most = min(PLAIN_THREADS, max(WARP, plan.written // vector // target.threads))
    return {
        "threads": max(n for n in choices["threads"] if n == WARP or n <= most),
        "vector": vector,
        "unroll": max(n for n in choices["unroll"] if n <= UNROLL),
    }


def _tiling(plan: Layout, columns: Columns) -> Tiling:
    """The tile of a thread, with its whole fold, and that of a block."""
    stage = plan.main.stage
    one = np.ones(len(columns["threads"]), np.int64)
    extents = {axis.name: one * axis.extent for axis in (*stage.axes, *stage.reduce)}
    tile = dict.fromkeys(extents, one)
    if plan.axes:
        tile[plan.axes[-1].name] = columns["vector"]
    if stage.reduce:
        tile[stage.reduce[-1].name] = columns["unroll"]
    whole = tile | {axis.name: extents[axis.name] for axis in stage.reduce}
    block = dict(whole)
    left = columns["threads"] * columns["vector"]
    for axis in reversed(plan.axes):
        block[axis.name] = np.clip(left, 1, axis.extent)
        left = -(-left // axis.extent)
    chunks = -(-plan.written // (columns["threads"] * columns["vector"]))
    return Tiling(stage, (tile, whole, block, extents), plan.axes[-1].name if plan.axes else "", chunks)
