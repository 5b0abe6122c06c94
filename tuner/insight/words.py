"""Words: a schedule in plain sentences, for people who know what a tile is.

What is said of tiles, lanes and pieces comes from the tiling of the space, which the features are made of too. Where
that is an estimate, and for what no tiling shows, the numbers are those that the sketch itself lowers by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isqrt, prod

import numpy as np

from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.chains.chain import ROW
from tunewright.search_space.chains.plan import Plan as ChainPlan
from tunewright.search_space.chains.plan import RowLinks, plan_of
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.nests.nest import balanced
from tunewright.search_space.products.joint import joint
from tunewright.search_space.rows.steps import plan as rows_plan
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower
from tunewright.search_space.sketches.generic import layout
from tunewright.search_space.windows.planes import planes

from ..text import counted, large, shortened
from .grid_words import GRID_FORMS
from .phrases import copies, grouped, listed, work
from .point import Point, local_bytes_of, single

MOST_SENTENCES = 40
"""Of a schedule. The longest chains have a third of that."""

MOST_LETTERS = 300
"""Of a sentence."""

LARGEST_VECTOR_BYTES = 256
"""Memory of a piece up to which it is not worth telling of."""

TAPS = 3
"""Extent of the windows of Winograd's method."""


def describe(task: Task, target: Target, schedule: Schedule, kernel: Kernel | None = None) -> list[str]:
    """What a schedule does to the loops of a task, a sentence each. `kernel` is what it is lowered to, if known.

    Raises Illegal where the schedule is in no space of the task. With tasks of strangers it may take any time and
    memory: see `showing`.
    """
    kernel = lower(Candidate(task, target, schedule)) if kernel is None else kernel
    point = Point(task, target, schedule, kernel)
    form = FORMS.get(schedule.sketch, _any_form)
    found = [shortened(text, MOST_LETTERS) for text in (*form(point), *_memory(point))]
    if len(found) > MOST_SENTENCES:
        found[MOST_SENTENCES - 1 :] = [f"There are {len(found) - MOST_SENTENCES + 1} more things to say."]
    return found


# What sketches have in common


def _threads(point: Point) -> Iterator[str]:
    """How the work is shared."""
    threads = point.target.threads
    match point.pieces:
        case [1]:
            yield "One piece: it runs on one thread." if threads > 1 else "It runs on one thread, in one piece."
        case [count]:
            yield f"{counted(count, 'piece')} for {counted(threads, 'thread')}{_shares(count, threads)}."
        case counts:
            numbers = (
                listed([f"{grouped(count)}" for count in counts[:8]])
                if len(counts) <= 8
                else f"up to {grouped(max(counts))}"
            )
            yield f"{len(counts)} phases, of {numbers} pieces for {counted(threads, 'thread')}, which meet in between."


def _shares(count: int, threads: int) -> str:
    """How many pieces a thread gets."""
    if threads == 1:
        return ""
    if count < threads:
        return f", {threads - count} of which get none"
    return (
        f", {count // threads} each" if count % threads == 0 else f", {count // threads} or {count // threads + 1} each"
    )


def _piece(point: Point, piece: Mapping[str, int]) -> Iterator[str]:
    """What a piece covers."""
    cut = [
        f"{axis} {grouped(piece[axis])} of {grouped(point.whole[axis])}"
        for axis in piece
        if piece[axis] < point.whole[axis]
    ]
    if cut and point.pieces[point.main] > 1:
        yield f"A piece{point.in_main} has {listed(cut)}{'' if len(cut) == len(piece) else ', and all of the rest'}."


def _piece_of_tiles(point: Point, tile: Mapping[str, int]) -> Iterator[str]:
    """What the largest piece covers, of so many tiles along each axis: of two sizes, the larger ones first."""
    covered = {axis: point.whole[axis] for axis in point.reduced}
    pieces = 1
    for axis in point.spatial:
        whole, size, wanted = point.whole[axis], tile[axis], point.tiles[-2][axis]
        tiles = -(-whole // size)
        each = tiles if wanted >= whole else max(wanted // size, 1)
        large_ones = tiles if axis == point.vector else tiles - (tiles * size - whole)
        covered[axis] = min(each * size - max(each - large_ones, 0), whole)
        pieces *= -(-tiles // each)
    if pieces == point.pieces[point.main]:  # else what is known of the loops is an estimate
        yield from _piece(point, covered)


def _tile(point: Point, tile: Mapping[str, int], together: int = 1) -> Iterator[str]:
    """The register tile, of `together` results at each place, and the lanes."""
    sides = [axis for axis in point.spatial if tile[axis] > 1 or axis == point.vector]
    vectors = -(-tile[point.vector] // point.lanes) if point.vector else 1
    results = together * prod(tile[axis] for axis in sides if axis != point.vector)
    registers = f"of {point.target.vector_registers} vector registers"
    yield from _lanes(point)
    if point.vector in point.reduced:
        around = f"Register tiles of {_by(tile, sides)}: " if sides else ""
        text = f"{around}{counted(results * vectors, 'vector')} of partial results along {point.vector}, {registers}"
        yield f"{text}, folded across the lanes in the end."
    elif sides:
        what = "results" if point.stage.reduce else "what is computed"
        yield f"Register tiles of {_by(tile, sides)}: {counted(results * vectors, 'vector')} of {what}, {registers}."


def _by(tile: Mapping[str, int], axes: Sequence[str]) -> str:
    return " by ".join(f"{axis} {grouped(tile[axis])}" for axis in axes)


def _lanes(point: Point) -> Iterator[str]:
    """What lies along the lanes."""
    if not point.vector:
        yield "Nothing lies along the lanes: it is computed element by element."
        return
    extent = point.whole[point.vector]
    rest = extent % point.lanes
    waste = f"; the last one of {grouped(extent)} has {rest} in use" if rest else ""
    waste = f", of which {extent} are in use" if extent < point.lanes else waste
    yield f"{point.vector} lies along the lanes of vectors of {point.lanes} elements{waste}."


def _memory(point: Point) -> Iterator[str]:
    """What is laid out beforehand, and the memory beside inputs and outputs."""
    packed: dict[str, list[str]] = {}
    for buffer in point.kernel.params:
        packing = point.kernel.packings.get(buffer.name)
        if packing is not None:
            how = "transformed and packed" if packing.maps else "packed"
            before, after = (" x ".join(map(str, s)) for s in (point.task.tensor(buffer.name).shape, buffer.shape))
            packed.setdefault(f"{how} when a model is compiled: {before} becomes {after}", []).append(buffer.name)
    for what, names in packed.items():
        yield f"{listed(names)} {'is' if len(names) == 1 else 'are'} {what}."
    scratch = [f"{b.name} ({large(b.size_bytes, 'B')})" for b in point.kernel.scratch]
    if scratch:
        yield f"Phases hand on {listed(scratch[:6])}{f' and {len(scratch) - 6} more' if scratch[6:] else ''}."
    local_bytes = max(map(local_bytes_of, point.kernel.body.body))
    if local_bytes > LARGEST_VECTOR_BYTES:
        piece = "piece has {} of memory of its own" if point.target.gpu is None else "block has {} of shared memory"
        yield f"A {piece.format(large(local_bytes, 'B'))}."


def _balanced(tile: Mapping[str, int], around: Mapping[str, int], but: str) -> dict[str, int]:
    """The tiles as nests cut them: evenly, but along the lanes."""
    return {axis: n if axis == but else balanced(around[axis], min(n, around[axis])) for axis, n in tile.items()}


# The sketches


def _any_form(point: Point) -> Iterator[str]:
    """A sketch that nothing is known of."""
    yield from work(point)
    yield from _threads(point)
    if single(point.tiling.chunks) in point.pieces:
        yield from _piece(point, point.tiles[-2])
    yield from _tile(point, point.tiles[0])
    yield from copies(point, point.tiles[0])
    yield f"Its knobs: {', '.join(f'{name} {value}' for name, value in point.schedule.values)}."


def _contraction(point: Point) -> Iterator[str]:
    flipped = point.schedule.sketch == "flipped"
    how = ", what the model computes along the lanes, its weights broadcast" if flipped else ""
    yield f"A matrix product or convolution as one nest of register tiles{how}."
    yield from work(point)
    yield from _threads(point)
    tile, piece = point.tiles[0], point.tiles[-2]
    yield from _piece_of_tiles(point, tile)
    yield from _tile(point, tile)
    yield from copies(point, tile)
    several = {axis for axis in point.spatial if tile[axis] < piece[axis]}
    if point.vector in several and len(several) > 1:
        rows = listed(sorted(several - {point.vector}))
        if point.values["columns_inside"]:
            yield f"Within a piece, each tile of {rows} meets all of {point.vector} before the next."
        else:
            yield f"Within a piece, each tile of {point.vector} meets all of {rows} before the next."
    yield from _weights_ahead(point)


def _joint(point: Point) -> Iterator[str]:
    found = joint(point.task)
    together = len(found.products) if found else 1
    yield f"{together} products over the same axes, side by side in registers until what needs them all is computed."
    yield from work(point)
    yield from _threads(point)
    yield from _piece(point, point.tiles[-2])
    yield from _tile(point, point.tiles[0], together)
    yield from copies(point, point.tiles[0])


def _winograd(point: Point) -> Iterator[str]:
    outputs = int(point.schedule.sketch.removeprefix("winograd"))
    side, window = isqrt(point.whole["e"]), TAPS * outputs
    stride = (side - TAPS) // (outputs - 1)
    steps = f" in steps of {stride}" if stride > 1 else ""
    yield (
        f"Winograd's method F({outputs}x{outputs}, {TAPS}x{TAPS}){steps}: {outputs} x {outputs} outputs come from "
        f"{side} x {side} inputs by {side**2} matrix products, with up to {window**2 / side**2:.3g} times fewer "
        "multiplications."
    )
    yield from work(point)
    yield from _threads(point)
    together, count = point.values["chunk_tiles"], counted(point.whole["p"], "tile")
    if together:
        yield f"{together} of {count} at a time are transformed, multiplied and transformed back."
    else:
        yield f"Each step is a phase over all of {count}: transform, multiply, transform back."
        yield from _piece(point, point.tiles[-2])
    tile = _balanced(point.tiles[0] | {"c": 1}, point.tiles[2], point.vector)
    yield from _tile(point, tile)
    yield from copies(point, point.tiles[0])
    yield from _weights_ahead(point)


def _weights_ahead(point: Point) -> Iterator[str]:
    if point.values["ahead"]:
        yield "Packed weights are asked for early."


def _window(point: Point) -> Iterator[str]:
    yield "Windows that slide over rows of pixels, channels along the lanes."
    yield from work(point)
    yield from _threads(point)
    yield from _piece(point, point.tiles[-2])
    yield from _tile(point, point.tiles[0])
    yield from copies(point, point.tiles[0])
    yield f"Loops over tiles, outermost first: {ORDERS[point.values['order']]}."


ORDERS = ("channels, rows, columns", "rows, channels, columns", "rows, columns, channels")
"""Of the loops of a window sketch, by its knob."""


def _plane(point: Point) -> Iterator[str]:
    found = planes(point.task)
    assert found is not None  # or there were no such schedule
    count = prod(axis.extent for axis in found.still)
    yield "Windows that slide over planes, neighbouring columns along the lanes."
    yield from work(point)
    yield from _threads(point)
    rows = min(point.values["block_rows"] * point.values["tile_rows"], found.rows.extent)
    if point.pieces[point.main] > 1:
        part = (
            f"{rows} of {found.rows.extent} rows"
            if rows
            else f"{point.values['block_planes']} of {grouped(count)} planes"
        )
        yield f"A piece{point.in_main} has {part}{f' of one of {grouped(count)} planes' if rows and count > 1 else ''}."
    yield from _tile(point, point.tiles[0])
    yield from copies(point, point.tiles[0])
    if point.values["held"]:
        yield "What is the same for a whole plane, such as weights, stays in registers."
    if point.values["ahead"]:
        yield "The rows of the next tile are asked for early."


def _rows(point: Point) -> Iterator[str]:
    found = rows_plan(point.task, point.lanes)
    assert found is not None  # or there were no such schedule
    vectors = -(-found.columns // point.lanes)
    together = min(point.values["vectors"], vectors)
    passes = counted(found.passes, "pass", "passes")
    yield f"Steps along {counted(found.row_count, 'row')} of {counted(found.columns, 'column')}, in {passes} each."
    yield from work(point)
    yield from _threads(point)
    if point.pieces[point.main] > 1:
        yield f"A piece has {grouped(point.values['chunk_rows'])} of {grouped(found.row_count)} rows."
    if point.values["rows"] > 1:
        yield f"{point.values['rows']} rows at a time share what there is one value a row of."
    yield from _lanes(point)
    yield f"A pass goes along a row in rounds of {counted(together, 'vector')}; a row has {grouped(vectors)}."
    if point.values["ahead"]:
        yield "The second pass asks early for the rows that come next."


def _split(point: Point) -> Iterator[str]:
    yield "A fold of many elements to few, whose reduction the threads share."
    yield from work(point)
    yield from _threads(point)
    longest = max(point.stage.reduce, key=lambda axis: axis.extent)
    parts = next(n for n in range(min(point.values["parts"], longest.extent), 0, -1) if longest.extent % n == 0)
    if parts > 1:
        part = f"{longest.name} {grouped(longest.extent // parts)} of {grouped(longest.extent)}"
        yield f"A piece folds {part}; a phase after folds what the {parts} come to."
    is_reduced = point.vector in point.reduced
    tile = point.tiles[0] | ({axis: 1 for axis in point.reduced if axis != point.vector} if is_reduced else {})
    yield from _tile(point, tile)
    yield from copies(point, tile)


def _generic(point: Point) -> Iterator[str]:
    plan = layout(point.task, point.lanes)
    yield "Loops that follow from the indices of the task alone, tiled and along the lanes."
    yield from work(point)
    yield from _threads(point)
    tile = _balanced(point.tiles[0], point.whole, point.vector)
    if plan.rows:
        each = min(plan.group.row_count, max(1, point.values["chunk_points"] // max(plan.group.row_points, 1)))
        piece = (
            f"; a piece has {grouped(each)} of {grouped(plan.group.row_count)} rows"
            if each < plan.group.row_count
            else ""
        )
        yield f"{len(plan.group.pieces)} steps run row by row{piece}."
    else:
        yield from _piece_of_tiles(point, tile)
    yield from _tile(point, tile)
    yield from copies(point, point.tiles[0])


def _chain(point: Point) -> Iterator[str]:
    plan = plan_of(point.task, point.lanes)
    assert plan is not None  # or there were no such schedule
    links = f"Links 0 to {len(plan.links) - 1} feed each other"
    yield f"{links}, block by block in memory that stays in the cache."
    yield from work(point)
    yield from _threads(point)
    yield from _chain_blocks(point, plan)
    yield f"Vectors have {point.lanes} elements."
    told = {number: _chain_product(point, plan, number) for number in plan.products}
    told |= {number: _chain_window(point, number) for number in plan.windows}
    told |= {together.first: _chain_rows(point, together) for together in plan.row_links}
    yield from (told[number] for number in sorted(told))
    if point.values["unroll"] > 1:
        yield f"The bodies of products are copied {point.values['unroll']} times."


def _chain_window(point: Point, number: int) -> str:
    """A window and its largest register tile."""
    tile = f"{point.values['tile']} places by {counted(point.values['vectors'], 'vector')} of channels"
    return f"Link {number} folds windows, in register tiles of {tile} at most."


def _chain_rows(point: Point, together: RowLinks) -> str:
    """Links that run together along the rows."""
    rows, vectors = point.values["rows"], -(-together.plan.columns // point.lanes)
    last = together.stop - 1
    which = f"Links {together.first} to {last} go together" if last > together.first else f"Link {last} goes"
    rounds = counted(min(point.values["round"], vectors), "vector")
    return f"{which} along the rows, {counted(rows, 'row')} a group, in rounds of {rounds}."


def _chain_blocks(point: Point, plan: ChainPlan) -> Iterator[str]:
    """How the rows of a chain are cut, and what blocks have in common."""
    block, chunks = point.values["block"], point.values["chunks"]
    blocks = -(-plan.chain.rows // block)
    each = -(-blocks // chunks)
    rows = grouped(plan.chain.rows)
    yield f"Each block, {counted(block, 'row')} of the {rows} of the output, goes through all links."
    if plan.outer * chunks > 1:
        where = f" at one of {grouped(plan.outer)} places along the axes that all links share" if plan.outer > 1 else ""
        yield f"A piece has {counted(each, 'block')} of {grouped(blocks)}{where}."
    if blocks > 1 and any(np.any(span.kept > 0) for span in plan.chain.spans(block)):
        sliding = bool(plan.sliding(np.array(block), np.array(chunks)))
        kept = "stay in memory from one to the next" if sliding else "are computed for each"
        yield f"Rows of the links that neighbouring blocks both need {kept}."


def _chain_product(point: Point, plan: ChainPlan, number: int) -> str:
    """A product and its register tile."""
    found, axis = plan.product(number), plan.tiled_axis(number)
    around = min(plan.tiled(number), point.values["block"]) if axis == ROW else plan.tiled(number)
    high = balanced(around, min(point.values[f"tile_{number}"], around))
    wide = min(point.values[f"vectors_{number}"], -(-plan.width(number) // plan.lanes))
    tile = f"{axis} {high} by {counted(wide, 'vector')}" if axis else counted(wide, "vector")
    panel = "packed when a model is compiled" if number in plan.packed else "copied for each piece"
    panel = "read where it is" if plan.in_place(number) else panel
    return f"Link {number} is a product, in register tiles of {tile} of {found.vector}; its panel is {panel}."


FORMS: Mapping[str, Callable[[Point], Iterator[str]]] = {
    "contraction": _contraction,
    "flipped": _contraction,
    "winograd2": _winograd,
    "winograd4": _winograd,
    "window": _window,
    "plane": _plane,
    "rows": _rows,
    "split": _split,
    "joint": _joint,
    "chain": _chain,
    "generic": _generic,
    **GRID_FORMS,
}
"""What is said of the schedules of each sketch."""
