"""Chain: several reductions that feed each other, block by block in memory that stays in the cache.

Depthwise and pointwise convolutions, attention, and others (`patterns.chain`): each block of rows of the output runs
through all links of the chain, as `loops.chain_blocks` writes it. Few knobs: rows of a block (`block`), chunks that the
threads share (`chunks`), the register tile of each product (`vectors_N`, `tile_N`) and that of the windows (`vectors`,
`tile`), how often the body of a product is copied (`unroll`); and for links that run together along the rows, the rows
of a group (`rows`) and the vectors of a round (`round`, which the sketch `rows` calls `vectors`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..axes import balance
from ..counts import counted, digits
from ..description import SchedulePoint
from ..patterns.chain import ROW
from ..patterns.rows import ROUND
from ..schedule import Schedule
from ..sketch import BODY_LIMIT, LOCAL_BYTES, PatternSketch
from ..space import Columns, Knob, Space, Tiling, whole_extents
from .loops.blocking import best_tile
from .loops.chain_blocks import ChainBlocks
from .loops.chain_plan import ChainPlan, RowLinks, plan_chain

BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 112, 128)

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

TILES = (1, 2, 4, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 24, 28)
"""Extents of register tiles, beside those that divide what is tiled."""

SLID_ROWS, PLAIN_ROWS = 4, 64
"""Most rows of a block by default: where windows slide, and else."""

UNEVEN = 4
"""Chunks for each thread from which on it does not matter whether all threads have as many."""


class ChainSketch(PatternSketch[ChainPlan]):
    """Blocks of rows that run through all links of a chain."""

    name = "chain"
    version = 2

    def recognise(self, task: Task, target: Target) -> ChainPlan | None:
        return plan_chain(task, target.lanes(4))

    def offer(self, task: Task, plan: ChainPlan, target: Target) -> Space:
        knobs = [Knob("block", _blocks(plan)), Knob("chunks", _chunks(plan))]
        for number in plan.products:
            vectors = -(-plan.width(number) // plan.lanes)
            knobs.append(Knob(f"vectors_{number}", tuple(n for n in (1, 2, 3, 4, 6) if n <= vectors)))
            tiled = plan.tile_extent(number)
            sizes = (n for n in range(1, min(tiled, TILES[-1]) + 1) if n in TILES or tiled % n == 0)
            knobs.append(Knob(f"tile_{number}", tuple(sizes)))
        if plan.row_links:
            knobs.append(Knob("rows", min((links.plan.groups for links in plan.row_links), key=len)))
            knobs.append(Knob("round", max((links.plan.rounds for links in plan.row_links), key=len)))
        if plan.windows:
            knobs.append(Knob("vectors", (1, 2, 4)))
            knobs.append(Knob("tile", tuple(n for n in (1, 2, 4, 7, 8) if n <= plan.across)))
        knobs.append(Knob("unroll", (1, 2, 4, 8), "The bodies of products are copied {} times."))
        return self.space_of(
            tuple(knobs),
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target, knobs),
        )

    def write(self, task: Task, plan: ChainPlan, schedule: Schedule, target: Target) -> Kernel:
        return ChainBlocks(task, plan, dict(schedule.values), target).kernel()

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        plan = self.pattern(point.task, point.target)
        links = f"Links 0 to {len(plan.links) - 1} feed each other"
        yield from point.say_start(f"{links}, block by block in memory that stays in the cache.")
        yield from _describe_blocks(point, plan)
        yield f"Vectors have {point.lanes} elements."
        texts = {number: _describe_product(point, plan, number) for number in plan.products}
        texts |= {number: _describe_window(point, number) for number in plan.windows}
        texts |= {together.first: _describe_rows(point, together) for together in plan.row_links}
        yield from (texts[number] for number in sorted(texts))
        yield from point.say_knobs()


def _describe_blocks(point: SchedulePoint, plan: ChainPlan) -> Iterator[str]:
    """The blocks of rows of a chain, and what they have in common."""
    block, chunks = point.values["block"], point.values["chunks"]
    blocks = -(-plan.chain.rows // block)
    rows, each = digits(plan.chain.rows), -(-blocks // chunks)
    yield f"Each block, {counted(block, 'row')} of the {rows} of the output, goes through all links."
    if plan.outer * chunks > 1:
        where = f" at one of {digits(plan.outer)} places along the axes that all links share" if plan.outer > 1 else ""
        yield f"A chunk has {counted(each, 'block')} of {digits(blocks)}{where}."
    if blocks > 1 and any(np.any(span.overlap > 0) for span in plan.chain.spans(block)):
        is_sliding = bool(plan.is_sliding(np.array(block), np.array(chunks)))
        row_text = "stay in memory from one to the next" if is_sliding else "are computed for each"
        yield f"Rows of the links that neighbouring blocks both need {row_text}."


def _describe_product(point: SchedulePoint, plan: ChainPlan, number: int) -> str:
    """A product and its register tile."""
    product, axis = plan.product(number), plan.tile_axis(number)
    around = min(plan.tile_extent(number), point.values["block"]) if axis == ROW else plan.tile_extent(number)
    high = balance(around, min(point.values[f"tile_{number}"], around))
    wide = min(point.values[f"vectors_{number}"], -(-plan.width(number) // plan.lanes))
    tile = f"{axis} {high} by {counted(wide, 'vector')}" if axis else counted(wide, "vector")
    panel = "packed when a model is compiled" if number in plan.packed_products else "copied for each chunk"
    panel = "read where it is" if plan.is_in_place(number) else panel
    return f"Link {number} is a product, in register tiles of {tile} of {product.vector}; its panel is {panel}."


def _describe_window(point: SchedulePoint, number: int) -> str:
    """A window and its largest register tile."""
    tile = f"{point.values['tile']} places by {counted(point.values['vectors'], 'vector')} of channels"
    return f"Link {number} folds windows, in register tiles of {tile} at most."


def _describe_rows(point: SchedulePoint, together: RowLinks) -> str:
    """Links that run together along the rows."""
    rows, vectors = point.values["rows"], -(-together.plan.columns // point.lanes)
    last = together.stop - 1
    which = f"Links {together.first} to {last} go together" if last > together.first else f"Link {last} goes"
    rounds = counted(min(point.values["round"], vectors), "vector")
    return f"{which} along the rows, {counted(rows, 'row')} a group, in rounds of {rounds}."


def _blocks(plan: ChainPlan) -> tuple[int, ...]:
    """Rows of a block."""
    return tuple(sorted({*(n for n in BLOCKS if n < plan.chain.rows), *plan.even_blocks()}))


def _chunks(plan: ChainPlan) -> tuple[int, ...]:
    """The choices of chunks for the blocks at one index along the outer axes."""
    return tuple(n for n in CHUNKS if n <= plan.chain.rows)


def _smallest_tiles(plan: ChainPlan) -> dict[str, int]:
    """The smallest register tiles."""
    tiles = [f"{name}_{number}" for number in plan.products for name in ("vectors", "tile")]
    others = [*(("vectors", "tile") if plan.windows else ()), *(("rows", "round") if plan.row_links else ()), "unroll"]
    return dict.fromkeys([*tiles, *others], 1)


def _legal_chunks(plan: ChainPlan, target: Target, values: Mapping[str, int]) -> list[int]:
    """The numbers of chunks with which these values are legal."""
    chunks = np.array(_chunks(plan))
    columns = {name: np.full(len(chunks), value) for name, value in values.items()}
    return [int(n) for n in chunks[_legal(plan, target, columns | {"chunks": chunks})]]


def _legal(plan: ChainPlan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, the instruction cache and a chunk's memory, and no two points alike."""
    block, chunks = columns["block"], columns["chunks"]
    blocks = -(-plan.chain.rows // block)
    legal = (chunks <= blocks) & (-(-blocks // np.maximum(-(-blocks // chunks), 1)) == chunks)
    for number in plan.products:
        vectors, tile = columns[f"vectors_{number}"], columns[f"tile_{number}"]
        legal &= tile * vectors + vectors + 1 <= target.vector_registers
        legal &= tile * vectors * columns["unroll"] <= BODY_LIMIT
        if plan.tile_axis(number) == ROW:
            legal &= tile <= block
    for links in plan.row_links:
        legal &= (columns["rows"] <= block) & links.plan.fits_cache(columns["rows"])
    if plan.windows:
        copies = columns["tile"] * columns["vectors"]
        legal &= (copies + columns["vectors"] + 1 <= target.vector_registers) & (copies * plan.taps <= BODY_LIMIT)
    small = np.flatnonzero(legal)  # few of a whole space: the memory is told of them alone
    rest = {name: column[small] for name, column in columns.items()}
    legal[small] = plan.local_bytes(rest["block"], rest["chunks"], rest) <= LOCAL_BYTES
    return np.asarray(legal)


def _preferred(plan: ChainPlan, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """Blocks of a few even rows, as many chunks for each thread; register tiles that waste least.

    Where a chunk does not fit, blocks of other sizes are tried, then the smallest tiles.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    share = next(n for n in range(1, target.threads + 1) if n * plan.outer % target.threads == 0)
    share = 1 if plan.outer >= UNEVEN * target.threads else min(share, plan.chain.rows)
    most = SLID_ROWS if plan.chain.is_sliding else PLAIN_ROWS
    even = -(-plan.chain.rows // max(share, -(-plan.chain.rows // most)))
    blocks = sorted(choices["block"], key=lambda n: (n > even, abs(n - even)))
    wide = ({"block": n, **_tiles(plan, target, n, choices)} for n in blocks)
    small = ({"block": n, **_smallest_tiles(plan)} for n in blocks)
    fitting = ((v, chunk_counts) for v in chain(wide, small) if (chunk_counts := _legal_chunks(plan, target, v)))
    values, sizes = next(fitting, ({"block": blocks[0], **_smallest_tiles(plan)}, choices["chunks"]))
    return values | {"chunks": min((n for n in sizes if n >= share), default=sizes[-1])}


def _tiles(plan: ChainPlan, target: Target, block: int, choices: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The register tiles of all links, for blocks of so many rows."""
    values = _smallest_tiles(plan)
    for number in plan.products:
        values |= _best_tile(plan, number, target, block, choices)
    if plan.row_links:
        sizes = [
            n
            for n in choices["rows"]
            if n <= block and all(links.plan.fits_cache(np.array(n)) for links in plan.row_links)
        ]
        values |= {"rows": sizes[-1], "round": max(n for n in choices["round"] if n <= ROUND)}
    if plan.windows:
        most = min(BODY_LIMIT // (2 * plan.taps), (target.vector_registers - 3) // 2)
        fitting = [n for n in choices["tile"] if n <= most]
        values |= {"vectors": 2, "tile": min(fitting, key=lambda n: (-(-plan.across // n) * max(n, 4), -n))}
    return values


def _best_tile(
    plan: ChainPlan, number: int, target: Target, block: int, choices: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The register tile of a product that is best by the rule of `blocking`."""
    vectors, tiles = f"vectors_{number}", f"tile_{number}"
    rows = min(plan.tile_extent(number), block) if plan.tile_axis(number) == ROW else plan.tile_extent(number)
    width = -(-plan.width(number) // plan.lanes)
    fitting = [
        (across, down)
        for across in choices[vectors]
        for down in choices[tiles]
        if down <= rows and across * down + across + 1 <= target.vector_registers
    ]
    across, down = best_tile(target, width, rows, fitting)
    return {vectors: across, tiles: down}


def _tiling(plan: ChainPlan, columns: Columns) -> Tiling:
    """The tiling of the largest product."""
    number = max(plan.products, key=lambda n: plan.links[n].fused_stage.stage.points)
    vector, stage = plan.product(number).vector, plan.links[number].fused_stage.stage
    tile = {vector: columns[f"vectors_{number}"] * plan.lanes, plan.tile_axis(number): columns[f"tile_{number}"]}
    span = plan.chain.spans(columns["block"])[number]
    outer = {a.name for a in plan.chain.outer}
    rows = np.maximum(span.stride, tile.get(ROW, 1))
    block = whole_extents([a for a in (*stage.axes, *stage.reduce) if a.name not in outer]) | {ROW: rows}
    blocks = -(-plan.chain.rows // columns["block"])
    rows = np.minimum(rows, plan.links[number].rows) * -(-blocks // columns["chunks"])
    levels = {**tile, stage.reduce[-1].name: columns["unroll"]}, whole_extents(stage.reduce), block, {ROW: rows}
    return Tiling.of(stage, vector, columns, levels, columns["chunks"] * plan.outer)
