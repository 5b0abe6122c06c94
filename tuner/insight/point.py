"""Point: a schedule of a task on a target, with what follows from it, for words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tunewright.codegen.ir import Alloc, Block, For, If, Kernel, LoopKind, Scope, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Stage, Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import sketch
from tunewright.search_space.space import Tiling


@dataclass(frozen=True)
class Point:
    """A schedule, with what follows from it."""

    task: Task
    target: Target
    schedule: Schedule
    kernel: Kernel

    @cached_property
    def values(self) -> Mapping[str, int]:
        return dict(self.schedule.values)

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.values.get("lanes", self.target.lanes(4))

    @cached_property
    def tiling(self) -> Tiling:
        space = sketch(self.schedule.sketch).space(self.task, self.target)
        return space.tiling(space.columns(space.row(self.schedule)[None]))

    @property
    def stage(self) -> Stage:
        return self.tiling.stage

    @cached_property
    def tiles(self) -> list[dict[str, int]]:
        """Extents of the levels, from the innermost outwards."""
        return [{axis: single(extent) for axis, extent in tile.items()} for tile in self.tiling.tiles]

    @property
    def whole(self) -> Mapping[str, int]:
        return self.tiles[-1]

    @cached_property
    def vector(self) -> str:
        """The axis along the lanes; "" for none."""
        return str(np.broadcast_to(self.tiling.vector_axis, 1)[0])

    @property
    def spatial(self) -> list[str]:
        return [axis.name for axis in self.stage.axes]

    @property
    def reduced(self) -> list[str]:
        return [axis.name for axis in self.stage.reduce]

    @cached_property
    def pieces(self) -> list[int]:
        """How many pieces each phase has for the threads."""
        return [_iterations(phase) for phase in self.kernel.body.body]

    @cached_property
    def main(self) -> int:
        """The number of the phase that the tiling is of: with as many pieces if any has, and of those the largest."""
        chunks = single(self.tiling.chunks)
        alike = [n for n, count in enumerate(self.pieces) if count == chunks] or range(len(self.pieces))
        return max(alike, key=lambda n: _elements(self.kernel.body.body[n]))

    @property
    def in_main(self) -> str:
        """Says of which phase something is, where there are several."""
        return f" of phase {self.main + 1}" if len(self.pieces) > 1 else ""


def single(values: object) -> int:
    """The one number of an array."""
    return int(np.broadcast_to(np.asarray(values), 1)[0])


def _iterations(phase: Stmt) -> int:
    match phase:
        case For(extent=extent, kind=LoopKind.PARALLEL):
            return extent
        case For(extent=extent, kind=LoopKind.BLOCK, body=body):
            return extent * _iterations(body)
    return 1


def _elements(stmt: Stmt) -> int:
    """Elements that a statement writes, in registers too, as if all conditions held."""
    match stmt:
        case Block(body):
            return sum(map(_elements, body))
        case For(_, extent, body):
            return extent * _elements(body)
        case If(_, body) | Alloc(_, body):
            return _elements(body)
        case Store(_, index, value):
            return max(value.lanes, *(at.lanes for at in index), 1)
    return 0


def local_bytes_of(stmt: Stmt) -> int:
    """Memory that lives inside a statement, at most at any time."""
    match stmt:
        case Block(body):
            return max(map(local_bytes_of, body), default=0)
        case For(_, _, body) | If(_, body):
            return local_bytes_of(body)
        case Alloc(buffer, body):
            return (buffer.size_bytes if buffer.scope is Scope.SHARED else 0) + local_bytes_of(body)
    return 0
