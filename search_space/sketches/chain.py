"""Chain: several reductions that feed each other, block by block in memory that stays in the cache.

Depthwise and pointwise convolutions, attention, and what else `chains.chain` finds: each block of rows of the output
runs through all links of the chain, as `chains.blocks` writes it. Few knobs: rows of a block (`block`), chunks that the
threads share (`chunks`), the register tile of each product (`vectors_N`, `tile_N`) and that of the windows (`vectors`,
`tile`), how often the body of a product is copied (`unroll`); and for links that run together along the rows, the rows
of a group (`rows`) and the vectors of a round (`round`, which the sketch `rows` calls `vectors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..chains.blocks import Blocks
from ..chains.chain import ROW
from ..chains.plan import Plan, plan_of
from ..rows.steps import ROUND
from ..schedule import Schedule
from ..sketch import BODY_LIMIT, LOCAL_BYTES, remembered
from ..space import Columns, Knob, Space, Tiling

BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 112, 128)

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

TILES = (1, 2, 4, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 24, 28)
"""Extents of register tiles, beside those that divide what is tiled."""

SLID_ROWS, PLAIN_ROWS = 4, 64
"""Most rows of a block by default: where windows slide, and else."""

UNEVEN = 4
"""Chunks for each thread from which on it does not matter whether all threads have as many."""

LATENCY = 8
"""Multiply-adds that must be under way at once to keep the multipliers busy."""


class ChainSketch:
    """See the module."""

    name = "chain"
    version = 2

    def applies(self, task: Task, target: Target) -> bool:
        plan = plan_of(task, target.lanes(4))
        return target.kind == "cpu" and plan is not None

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        plan = plan_of(task, target.lanes(4))
        assert plan is not None
        knobs = [Knob("block", _blocks(plan)), Knob("chunks", _chunks(plan))]
        for number in plan.products:
            vectors = -(-plan.width(number) // plan.lanes)
            knobs.append(Knob(f"vectors_{number}", tuple(n for n in (1, 2, 3, 4, 6) if n <= vectors)))
            tiled = plan.tiled(number)
            sizes = (n for n in range(1, min(tiled, TILES[-1]) + 1) if n in TILES or tiled % n == 0)
            knobs.append(Knob(f"tile_{number}", tuple(sizes)))
        if plan.row_links:
            knobs.append(Knob("rows", min((together.plan.groups for together in plan.row_links), key=len)))
            knobs.append(Knob("round", max((together.plan.rounds for together in plan.row_links), key=len)))
        if plan.windows:
            knobs.append(Knob("vectors", (1, 2, 4)))
            knobs.append(Knob("tile", tuple(n for n in (1, 2, 4, 7, 8) if n <= plan.across)))
        knobs.append(Knob("unroll", (1, 2, 4, 8)))
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=tuple(knobs),
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target, knobs),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        plan = plan_of(task, target.lanes(4))
        assert plan is not None
        return Blocks(task, plan, dict(schedule.values), target).kernel()


def _blocks(plan: Plan) -> tuple[int, ...]:
    """Rows of a block."""
    return tuple(sorted({*(n for n in BLOCKS if n < plan.chain.rows), *plan.even_blocks()}))


def _chunks(plan: Plan) -> tuple[int, ...]:
    """Chunks that the blocks of one place along the outer axes are shared out to."""
    return tuple(n for n in CHUNKS if n <= plan.chain.rows)


def _plainest(plan: Plan) -> dict[str, int]:
    """The smallest register tiles."""
    tiles = [f"{name}_{number}" for number in plan.products for name in ("vectors", "tile")]
    others = [*(("vectors", "tile") if plan.windows else ()), *(("rows", "round") if plan.row_links else ()), "unroll"]
    return dict.fromkeys([*tiles, *others], 1)


def _fitting(plan: Plan, target: Target, values: Mapping[str, int]) -> list[int]:
    """The numbers of chunks with which such values are legal."""
    chunks = np.array(_chunks(plan))
    columns = {name: np.full(len(chunks), value) for name, value in values.items()}
    return [int(n) for n in chunks[_legal(plan, target, columns | {"chunks": chunks})]]


def _legal(plan: Plan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, the instruction cache and a chunk's memory, and no two points alike."""
    block, chunks = columns["block"], columns["chunks"]
    blocks = -(-plan.chain.rows // block)
    legal = (chunks <= blocks) & (-(-blocks // np.maximum(-(-blocks // chunks), 1)) == chunks)
    legal &= plan.local_bytes(block, chunks, columns) <= LOCAL_BYTES
    for number in plan.products:
        vectors, tile = columns[f"vectors_{number}"], columns[f"tile_{number}"]
        legal &= tile * vectors + vectors + 1 <= target.vector_registers
        legal &= tile * vectors * columns["unroll"] <= BODY_LIMIT
        if plan.tiled_axis(number) == ROW:
            legal &= tile <= block
    for together in plan.row_links:
        legal &= (columns["rows"] <= block) & together.plan.near(columns["rows"])
    if plan.windows:
        copies = columns["tile"] * columns["vectors"]
        legal &= (copies + columns["vectors"] + 1 <= target.vector_registers) & (copies * plan.taps <= BODY_LIMIT)
    return np.asarray(legal)


def _preferred(plan: Plan, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """Blocks of a few even rows, as many chunks for each thread; register tiles that waste least.

    Where a chunk does not fit, blocks of other sizes are tried, then the smallest tiles.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    wanted = next(n for n in range(1, target.threads + 1) if n * plan.outer % target.threads == 0)
    wanted = 1 if plan.outer >= UNEVEN * target.threads else min(wanted, plan.chain.rows)
    most = SLID_ROWS if plan.chain.slides else PLAIN_ROWS
    even = -(-plan.chain.rows // max(wanted, -(-plan.chain.rows // most)))
    blocks = sorted(choices["block"], key=lambda n: (n > even, abs(n - even)))
    wide = ({"block": n, **_tiles(plan, target, n, choices)} for n in blocks)
    small = ({"block": n, **_plainest(plan)} for n in blocks)
    fitting = ((v, found) for v in chain(wide, small) if (found := _fitting(plan, target, v)))
    values, sizes = next(fitting, ({"block": blocks[0], **_plainest(plan)}, choices["chunks"]))
    return values | {"chunks": min((n for n in sizes if n >= wanted), default=sizes[-1])}


def _tiles(plan: Plan, target: Target, block: int, choices: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The register tiles of all links, for blocks of so many rows."""
    values = _plainest(plan)
    for number in plan.products:
        values |= _best_tile(plan, number, target, block, choices)
    if plan.row_links:
        near = [
            n
            for n in choices["rows"]
            if n <= block and all(together.plan.near(np.array(n)) for together in plan.row_links)
        ]
        values |= {"rows": near[-1], "round": max(n for n in choices["round"] if n <= ROUND)}
    if plan.windows:
        most = min(BODY_LIMIT // (2 * plan.taps), (target.vector_registers - 3) // 2)
        fitting = [n for n in choices["tile"] if n <= most]
        values |= {"vectors": 2, "tile": min(fitting, key=lambda n: (-(-plan.across // n) * max(n, 4), -n))}
    return values


def _best_tile(
    plan: Plan, number: int, target: Target, block: int, choices: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The register tile of a product for which its loops take fewest cycles of the multipliers or loads."""
    vectors, tiles = f"vectors_{number}", f"tile_{number}"
    rows = min(plan.tiled(number), block) if plan.tiled_axis(number) == ROW else plan.tiled(number)
    width = -(-plan.width(number) // plan.lanes)

    def cycles(across: int, down: int) -> int:
        """Of one step of the reduction in all tiles: one a product, or a load, or what latency asks for."""
        wide = [across] * (width // across) + [width % across] * (width % across > 0)
        high = [down] * (rows // down) + [rows % down] * (rows % down > 0)
        return sum(max(w * h, w + h, LATENCY) for w in wide for h in high)

    fitting = [
        (across, down)
        for across in choices[vectors]
        for down in choices[tiles]
        if down <= rows and across * down + across + 1 <= target.vector_registers
    ]
    across, down = min(fitting, key=lambda tile: (cycles(*tile), abs(tile[0] - 2), -tile[1]))
    return {vectors: across, tiles: down}


def _tiling(plan: Plan, columns: Columns) -> Tiling:
    """Of the largest product."""
    number = max(plan.products, key=lambda n: plan.links[n].piece.stage.points)
    found, stage = plan.product(number), plan.links[number].piece.stage
    one = np.ones(len(columns["block"]), np.int64)
    extents = {a.name: one * a.extent for a in (*stage.axes, *stage.reduce)}
    tile = dict.fromkeys(extents, one)
    tile[found.vector] = np.minimum(columns[f"vectors_{number}"] * plan.lanes, extents[found.vector])
    axis = plan.tiled_axis(number)
    if axis:
        tile[axis] = columns[f"tile_{number}"]
    tile[stage.reduce[-1].name] = np.minimum(columns["unroll"], stage.reduce[-1].extent)
    panel = tile | {a.name: extents[a.name] for a in stage.reduce}
    blocks = -(-plan.chain.rows // columns["block"])
    outer = {a.name for a in plan.chain.outer}
    span = plan.chain.spans(columns["block"])[number]
    block = {name: one if name in outer else extents[name] for name in extents}
    block[ROW] = np.minimum(np.maximum(span.stride, tile[ROW]), extents[ROW])
    chunk = block | {ROW: np.minimum(block[ROW] * -(-blocks // columns["chunks"]), extents[ROW])}
    return Tiling(stage, (tile, panel, block, chunk, extents), found.vector, columns["chunks"] * plan.outer)
