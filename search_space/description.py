"""SchedulePoint: a schedule with the facts that follow from it, and sentences on what sketches have in common.

Tiles, lanes and chunks come from the tiling of the space, as the features do. Where that is an estimate or says
nothing, the numbers are those that the sketch itself lowers by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from tunewright.codegen.ir.formula import formula
from tunewright.codegen.ir.ir import Alloc, Block, For, If, Kernel, LoopKind, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Stage, Task

from .axes import balance
from .counts import counted, digits, enumeration
from .schedule import Schedule
from .space import Space, Tiling

AXES = {
    "e": "elements of a transformed tile", "p": "tiles", "n": "channels of the output", "c": "channels of the input",
    "column": "columns of a row", "row": "rows that blocks are cut from",
}  # fmt: skip
"""The axes that sketches name themselves; those of a task are i0, i1, ... and r0, r1, ..."""

FOLDS = {"sum": "the sum", "max": "the maximum", "min": "the minimum", "prod": "the product"}


@dataclass(frozen=True)
class SchedulePoint:
    """A schedule with the facts that follow from it. `kernel` is its lowered form, `space` that of its sketch."""

    task: Task
    target: Target
    schedule: Schedule
    kernel: Kernel
    space: Space

    @cached_property
    def values(self) -> Mapping[str, int]:
        return dict(self.schedule.values)

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.values.get("lanes", self.target.lanes(4))

    @cached_property
    def tiling(self) -> Tiling:
        return self.space.tiling(self.space.columns(self.space.row(self.schedule)[None]))

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
    def spatial_axes(self) -> list[str]:
        return [axis.name for axis in self.stage.axes]

    @property
    def reduction_axes(self) -> list[str]:
        return [axis.name for axis in self.stage.reduce]

    @cached_property
    def chunks(self) -> list[int]:
        """The number of chunks of each phase, which the threads share; of one on a GPU, its blocks."""
        return [_iterations(phase) for phase in self.kernel.body.body]

    @cached_property
    def main(self) -> int:
        """The number of the phase that the tiling is of: with as many chunks if any has, and of those the largest."""
        chunks = single(self.tiling.chunks)
        alike = [n for n, count in enumerate(self.chunks) if count == chunks] or range(len(self.chunks))
        return max(alike, key=lambda n: _elements(self.kernel.body.body[n]))

    @property
    def in_main(self) -> str:
        """The main phase as a phrase, where there are several."""
        return f" of phase {self.main + 1}" if len(self.chunks) > 1 else ""

    def say_start(self, what: str, threads: int = 0) -> Iterator[str]:
        """What the sketch does, the main computation, and who shares it: on GPUs, blocks of so many threads."""
        yield what
        yield from self._say_work()
        yield from self._say_blocks(threads) if threads else self._say_threads()

    def _say_work(self) -> Iterator[str]:
        stage = self.stage
        place = f"{stage.output}[{', '.join(formula(e, 40) for e in stage.index)}]"
        fold = f"{FOLDS[stage.combiner]} over {enumeration(self.reduction_axes)} of " if stage.reduce else ""
        extents = ", ".join(f"{a.name} {digits(a.extent)}" for a in (*stage.axes, *stage.reduce))
        yield f"Most of the work: {place} = {fold}{formula(stage.body)}{f', for {extents}' if extents else ''}."
        texts = [f"{axis} counts {AXES[axis]}" for axis in (*self.spatial_axes, *self.reduction_axes) if axis in AXES]
        if texts:
            yield f"{enumeration(texts)}."

    def _say_blocks(self, threads: int) -> Iterator[str]:
        block, machine = counted(threads, "thread"), counted(self.target.threads, "multiprocessor")
        yield f"{counted(self.chunks[self.main], 'block')} of {block} for {machine}."
        if len(self.kernel.body.body) > 1:
            yield f"It takes {len(self.kernel.body.body)} launches, this being number {self.main + 1}."

    def _say_threads(self) -> Iterator[str]:
        threads = self.target.threads
        match self.chunks:
            case [1]:
                yield "One chunk: it runs on one thread." if threads > 1 else "It runs on one thread, in one chunk."
            case [count]:
                yield f"{counted(count, 'chunk')} for {counted(threads, 'thread')}{_shares(count, threads)}."
            case counts:
                few = len(counts) <= 8
                numbers = enumeration([digits(n) for n in counts]) if few else f"up to {digits(max(counts))}"
                share = f"of {numbers} chunks for {counted(threads, 'thread')}"
                yield f"{len(counts)} phases, {share}, which meet in between."

    def say_chunk(self, chunk: Mapping[str, int]) -> Iterator[str]:
        """The part that a chunk covers."""
        whole = self.whole
        cut = [f"{axis} {digits(chunk[axis])} of {digits(whole[axis])}" for axis in chunk if chunk[axis] < whole[axis]]
        if cut and self.chunks[self.main] > 1:
            rest = "" if len(cut) == len(chunk) else ", and all of the rest"
            yield f"A chunk{self.in_main} has {enumeration(cut)}{rest}."

    def say_chunk_of_tiles(self, tile: Mapping[str, int]) -> Iterator[str]:
        """The part that the largest chunk covers, in tiles of two sizes along each axis, the larger ones first."""
        covered = {axis: self.whole[axis] for axis in self.reduction_axes}
        chunks = 1
        for axis in self.spatial_axes:
            whole, size, chunk_extent = self.whole[axis], tile[axis], self.tiles[-2][axis]
            tiles = -(-whole // size)
            tiles_each = tiles if chunk_extent >= whole else max(chunk_extent // size, 1)
            large_ones = tiles if axis == self.vector else tiles - (tiles * size - whole)
            covered[axis] = min(tiles_each * size - max(tiles_each - large_ones, 0), whole)
            chunks *= -(-tiles // tiles_each)
        if chunks == self.chunks[self.main]:  # else what is known of the loops is an estimate
            yield from self.say_chunk(covered)

    def say_tile(self, tile: Mapping[str, int], together: int = 1) -> Iterator[str]:
        """The lanes, the register tile, of `together` results at each place, and unrolled loops of the reduction."""
        sides = [axis for axis in self.spatial_axes if tile[axis] > 1 or axis == self.vector]
        vectors = -(-tile[self.vector] // self.lanes) if self.vector else 1
        results = together * prod(tile[axis] for axis in sides if axis != self.vector)
        size = " by ".join(f"{axis} {digits(tile[axis])}" for axis in sides)
        registers = f"of {self.target.vector_registers} vector registers"
        yield from self.say_lanes()
        if self.vector in self.reduction_axes:
            around = f"Register tiles of {size}: " if sides else ""
            text = f"{around}{counted(results * vectors, 'vector')} of partial results along {self.vector}, {registers}"
            yield f"{text}, folded across the lanes in the end."
        elif sides:
            what = "results" if self.stage.reduce else "what is computed"
            yield f"Register tiles of {size}: {counted(results * vectors, 'vector')} of {what}, {registers}."

    def say_lanes(self) -> Iterator[str]:
        """The axis along the lanes."""
        if not self.vector:
            yield "Nothing lies along the lanes: it is computed element by element."
            return
        extent = self.whole[self.vector]
        rest = extent % self.lanes
        waste = f"; the last one of {digits(extent)} has {rest} in use" if rest else ""
        waste = f", of which {extent} are in use" if extent < self.lanes else waste
        yield f"{self.vector} lies along the lanes of vectors of {self.lanes} elements{waste}."

    def say_copies(self, tile: Mapping[str, int]) -> Iterator[str]:
        """The unrolled loops of the reduction."""
        axes = [axis for axis in self.reduction_axes if axis != self.vector and tile[axis] > 1]
        whole_axes = [axis for axis in axes if tile[axis] == self.whole[axis]]
        parts = [f"{tile[axis]} times along {axis}" for axis in axes if axis not in whole_axes]
        if whole_axes:
            yield f"The body is copied out for all of {enumeration(whole_axes)}."
        if parts:
            yield f"The body is copied {enumeration(parts)}."

    def say_block_tile(self) -> Iterator[str]:
        """The tile of a product that a block of a GPU computes."""
        rows, columns, depth = (self.values[f"block_{name}"] for name in ("rows", "columns", "depth"))
        tile = f"{digits(rows)} rows by {digits(columns)} columns"
        yield f"A block computes {tile}, {depth} terms of the sums a round."

    def say_knobs(self) -> Iterator[str]:
        """What the knobs say that have more than their first choice: see `Knob`."""
        for knob in self.space.knobs:
            value = self.values[knob.name]
            if knob.says and value != knob.choices[0]:
                yield knob.says.format(value)

    def even_tile(self, tile: Mapping[str, int], around: Mapping[str, int]) -> dict[str, int]:
        """The tile as nests cut it: evenly, but along the lanes."""
        return {
            axis: n if axis == self.vector else balance(around[axis], min(n, around[axis])) for axis, n in tile.items()
        }


def _shares(count: int, threads: int) -> str:
    """The number of chunks for a thread, as a phrase."""
    if threads == 1:
        return ""
    if count < threads:
        return f", {threads - count} of which get none"
    each = count // threads
    return f", {each} each" if count % threads == 0 else f", {each} or {each + 1} each"


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
