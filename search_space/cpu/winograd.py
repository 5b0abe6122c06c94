"""Winograd: 3x3 convolutions of stride 1 or 2 with fewer multiplications, F(m x m, 3x3).

The output is cut into tiles of m by m. For each, (m + 2)^2 elements of every input channel are transformed, (2m + 1)^2
with stride 2; products with the transformed weights are summed over the channels, one matrix product an element of the
transformed tile; the sums are transformed back (Lavin and Gray 2015). The weights are transformed when a model is
compiled.

Either a chunk of tiles goes through all three steps at once, in memory of its own that stays in the cache, or each
step is a phase over all tiles: then the weights, where they are more than the tiles, are read once only.
Padding is part of the first step. Results differ from those of the plain sum by more rounding: some 1e-6 of the largest
output with m = 2, some 1e-5 with m = 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import compress
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.codegen.ir.ir import Kernel, Scope
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..axes import balance
from ..buffers import kernel_around
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.convolution import TAPS, match_convolution
from ..patterns.product import is_prefetch_worthwhile
from ..schedule import Schedule
from ..sketch import BODY_LIMIT, LOCAL_BYTES, PREFETCH, PatternSketch
from ..space import Columns, Knob, Space, Tiling
from .loops.blocking import best_tile
from .loops.lower import plain_phase
from .loops.winograd_steps import INPUTS, SUMS, WinogradPlan, WinogradSteps

CHUNKS = (0, 2, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 48, 56, 64)
"""Tiles that go through all steps together; 0 for a phase a step."""


class WinogradSketch(PatternSketch[WinogradPlan]):
    """Winograd's method with tiles of m x m outputs, where m is `outputs`."""

    version = 5

    def __init__(self, outputs: int) -> None:
        self.name = f"winograd{outputs}"
        self.outputs = outputs

    def recognise(self, task: Task, target: Target) -> WinogradPlan | None:
        convolution, lanes = match_convolution(task), target.lanes(4)
        if convolution is None or convolution.extent(convolution.product.vector) < lanes:
            return None
        return WinogradPlan(convolution, self.outputs, lanes)

    def offer(self, task: Task, plan: WinogradPlan, target: Target) -> Space:
        knobs = (
            Knob("chunk_tiles", tuple(n for n in CHUNKS if n < plan.tiles)),
            Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6) if n <= plan.output_vectors)),
            Knob("tile", tuple(range(1, min(plan.tiles, 28) + 1))),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if n <= plan.channels)),
            Knob("ahead", (0, 1), PREFETCH),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target, knobs),
            first_choice=self.outputs == 4 and plan.is_worthwhile,
        )

    def write(self, task: Task, plan: WinogradPlan, schedule: Schedule, target: Target) -> Kernel:
        product, steps = plan.convolution.product, WinogradSteps(task, plan, dict(schedule.values))
        main, scratch = steps.phases(), [make(plan.tiles, Scope.GLOBAL) for make in (steps.inputs, steps.sums)]
        if schedule["chunk_tiles"]:
            main, scratch = (steps.chunks(schedule["chunk_tiles"]),), []
        stages = plan.convolution.before, product.fused_stage, product.after
        packings = {steps.panel.tensor: steps.packing}
        return kernel_around(main, task, stages, partial(plain_phase, target=target), packings, scratch)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        side, window = isqrt(point.whole["e"]), TAPS * self.outputs
        stride = (side - TAPS) // (self.outputs - 1)
        steps = f" in steps of {stride}" if stride > 1 else ""
        yield from point.say_start(
            f"Winograd's method F({self.outputs}x{self.outputs}, {TAPS}x{TAPS}){steps}: {self.outputs} x "
            f"{self.outputs} outputs come from {side} x {side} inputs by {side**2} matrix products, with up to "
            f"{window**2 / side**2:.3g} times fewer multiplications."
        )
        together, count = point.values["chunk_tiles"], counted(point.whole["p"], "tile")
        if together:
            yield f"{together} of {count} at a time are transformed, multiplied and transformed back."
        else:
            yield f"Each step is a phase over all of {count}: transform, multiply, transform back."
            yield from point.say_chunk(point.tiles[-2])
        yield from point.say_tile(point.even_tile(point.tiles[0] | {"c": 1}, point.tiles[2]))
        yield from point.say_copies(point.tiles[0])
        yield from point.say_knobs()


def _legal(plan: WinogradPlan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, the instruction cache and a chunk's memory, and no two points alike."""
    vectors, tile, chunk_tiles = columns["vectors"], columns["tile"], columns["chunk_tiles"]
    rows = np.where(chunk_tiles == 0, plan.tiles, chunk_tiles)
    legal = tile * vectors + vectors + 1 <= target.vector_registers
    legal &= tile * vectors * columns["unroll"] <= BODY_LIMIT
    legal &= tile == -(-rows // -(-rows // tile))  # others are balanced to one of these
    legal &= plan.local_bytes(chunk_tiles, vectors) <= LOCAL_BYTES
    return np.asarray(legal)


def _preferred(plan: WinogradPlan, target: Target, knobs: tuple[Knob, ...]) -> dict[str, int]:
    """Chunks, unless each would read more weights than stay in the cache, and the tile that is best by `blocking`."""
    choices = {knob.name: knob.choices for knob in knobs}
    size = max(8, min(28, plan.tiles // (4 * target.threads)))
    if 4 * plan.elements * plan.channels * plan.outputs > target.l2_bytes:
        size = 0
    chunk_tiles = max(n for n in choices["chunk_tiles"] if n <= size and plan.local_bytes(n, 2) <= LOCAL_BYTES)
    rows = chunk_tiles or plan.tiles
    tiles = [(across, balance(rows, down)) for across in choices["vectors"] for down in choices["tile"]]
    columns = np.array([(*tile, chunk_tiles, 1) for tile in tiles]).T
    legal = _legal(plan, target, dict(zip(("vectors", "tile", "chunk_tiles", "unroll"), columns, strict=True)))
    vectors, tile = best_tile(target, plan.output_vectors, rows, compress(tiles, legal))
    return {
        "chunk_tiles": chunk_tiles,
        "vectors": vectors,
        "tile": tile,
        "unroll": 1,
        "ahead": int(is_prefetch_worthwhile(target)),
    }


def _tiling(plan: WinogradPlan, columns: Columns) -> Tiling:
    """The tiling of the matrix products, which take most of the time."""
    phases = columns["chunk_tiles"] == 0
    chunk_tiles = np.where(phases, plan.tiles, columns["chunk_tiles"])
    width = np.minimum(columns["vectors"] * plan.lanes, plan.outputs)
    chunk = {"e": np.where(phases, 1, plan.elements), "n": np.where(phases, width, plan.outputs)}
    chunks = np.where(phases, plan.elements * -(-plan.outputs // width), -(-plan.tiles // chunk_tiles))
    inputs = Load(INPUTS, (Var("e"), Var("p"), Var("c")), DType.F32)
    taps = Load("taps", (Var("e"), Var("c"), Var("n")), DType.F32)
    stage = Stage(
        output=SUMS,
        axes=(Axis("e", plan.elements), Axis("p", plan.tiles), Axis("n", plan.outputs)),
        body=inputs * taps,
        reduce=(Axis("c", plan.channels),),
        combiner="sum",
    )
    register = {"p": columns["tile"], "n": width, "c": columns["unroll"]}
    return Tiling.of(stage, "n", columns, (register, {"c": plan.channels}, {"p": chunk_tiles}, chunk), chunks)
