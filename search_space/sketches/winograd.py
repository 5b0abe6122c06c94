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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Load, Var
from tunewright.codegen.ir import Block, Kernel, Scope, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.nest import balanced
from ..nests.phases import params, plain_phase, temporaries
from ..products.product import pays_ahead
from ..schedule import Schedule
from ..sketch import BODY_LIMIT, LOCAL_BYTES, remembered
from ..space import Columns, Knob, Space, Tiling
from ..winograd.convolution import convolution
from ..winograd.plan import Plan
from ..winograd.steps import GIVEN, SUMS, Steps

CHUNKS = (0, 2, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 48, 56, 64)
"""Tiles that go through all steps together; 0 for a phase a step."""


@dataclass(frozen=True, slots=True)
class WinogradSketch:
    """See the module. `outputs` is the extent m of a tile of the output."""

    outputs: int
    version: int = 5

    @property
    def name(self) -> str:
        return f"winograd{self.outputs}"

    def applies(self, task: Task, target: Target) -> bool:
        found = convolution(task)
        return target.kind == "cpu" and found is not None and found.extent(found.product.vector) >= target.lanes(4)

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        plan = self._plan(task, target)
        knobs = (
            Knob("chunk_tiles", tuple(n for n in CHUNKS if n < plan.tiles)),
            Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6) if n <= plan.output_vectors)),
            Knob("tile", tuple(range(1, min(plan.tiles, 28) + 1))),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if n <= plan.channels)),
            Knob("ahead", (0, 1)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target, knobs),
            first_choice=self.outputs == 4 and plan.pays,
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        return _lowered(task, self._plan(task, target), schedule, target)

    def _plan(self, task: Task, target: Target) -> Plan:
        found = convolution(task)
        assert found is not None
        return Plan(found, self.outputs, target.lanes(4))


def _legal(plan: Plan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, the instruction cache and a chunk's memory, and no two points alike."""
    vectors, tile, together = columns["vectors"], columns["tile"], columns["chunk_tiles"]
    rows = np.where(together == 0, plan.tiles, together)
    legal = tile * vectors + vectors + 1 <= target.vector_registers
    legal &= tile * vectors * columns["unroll"] <= BODY_LIMIT
    legal &= tile == -(-rows // -(-rows // tile))  # others are balanced to one of these
    legal &= plan.local_bytes(together, vectors) <= LOCAL_BYTES
    return np.asarray(legal)


def _preferred(plan: Plan, target: Target, knobs: tuple[Knob, ...]) -> dict[str, int]:
    """Two vectors by eight tiles, or what there are registers for.

    In chunks, unless each would read more weights than stay in the cache.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    vectors = max(n for n in choices["vectors"] if n <= 2)
    most = min(8, (target.vector_registers - vectors - 1) // vectors)
    wanted = max(8, min(28, plan.tiles // (4 * target.threads)))
    if 4 * plan.elements * plan.channels * plan.outputs > target.l2_bytes:
        wanted = 0
    together = max(n for n in choices["chunk_tiles"] if n <= wanted and plan.local_bytes(n, 2) <= LOCAL_BYTES)
    return {
        "chunk_tiles": together,
        "vectors": vectors,
        "tile": balanced(together or plan.tiles, most),
        "unroll": 1,
        "ahead": int(pays_ahead(target)),
    }


def _tiling(plan: Plan, columns: Columns) -> Tiling:
    """Of the matrix products, where the time goes."""
    one = np.ones(len(columns["tile"]), np.int64)
    together = np.where(columns["chunk_tiles"] == 0, plan.tiles, columns["chunk_tiles"])
    width = np.minimum(columns["vectors"] * plan.lanes, plan.outputs)
    phases = columns["chunk_tiles"] == 0
    whole = {"e": one * plan.elements, "p": one * plan.tiles, "n": one * plan.outputs, "c": one * plan.channels}
    register = {"e": one, "p": columns["tile"], "n": width, "c": columns["unroll"]}
    panel = register | {"c": whole["c"]}
    block = panel | {"p": together}
    chunk = {
        "e": np.where(phases, 1, whole["e"]),
        "p": together,
        "n": np.where(phases, width, whole["n"]),
        "c": whole["c"],
    }
    chunks = np.where(phases, plan.elements * -(-plan.outputs // width), -(-plan.tiles // together))
    given = Load(GIVEN, (Var("e"), Var("p"), Var("c")), DType.F32)
    taps = Load("taps", (Var("e"), Var("c"), Var("n")), DType.F32)
    stage = Stage(
        output=SUMS,
        axes=(Axis("e", plan.elements), Axis("p", plan.tiles), Axis("n", plan.outputs)),
        body=given * taps,
        reduce=(Axis("c", plan.channels),),
        combiner="sum",
    )
    return Tiling(stage, (register, panel, block, chunk, whole), "n", chunks)


def _lowered(task: Task, plan: Plan, schedule: Schedule, target: Target) -> Kernel:
    found = plan.convolution
    steps = Steps(task, plan, dict(schedule.values))
    scratch = [*temporaries(task, (*found.before, *found.product.after))]
    together = schedule["chunk_tiles"]
    if together:
        main: tuple[Stmt, ...] = (steps.chunks(together),)
    else:
        scratch += [steps.given(plan.tiles, Scope.GLOBAL), steps.sums(plan.tiles, Scope.GLOBAL)]
        main = steps.phases()
    packings = {steps.panel.tensor: steps.packing}
    before, after = ([plain_phase(p, target) for p in ps] for ps in (found.before, found.product.after))
    return Kernel(params(task, packings), tuple(scratch), Block((*before, *main, *after)), packings)
