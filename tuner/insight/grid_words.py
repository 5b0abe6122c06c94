"""Words for the sketches of GPUs: see `words`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.cuda.warpgroup import GROUP
from tunewright.codegen.dtype import DType
from tunewright.search_space.grids.block_tile import tensor_product
from tunewright.search_space.grids.shared_tile import ROWS
from tunewright.search_space.rows.steps import plan as rows_plan

from ..text import counted
from .phrases import copies, grouped, work
from .point import Point


def _blocks(point: Point, threads: int) -> Iterator[str]:
    """How a GPU shares the work, in blocks of so many threads."""
    block, machine = counted(threads, "thread"), counted(point.target.threads, "multiprocessor")
    yield f"{counted(point.pieces[point.main], 'block')} of {block} for {machine}."
    if len(point.kernel.body.body) > 1:
        yield f"It takes {len(point.kernel.body.body)} launches, this being number {point.main + 1}."


def _elements(point: Point) -> Iterator[str]:
    yield "Loops that follow from the indices of the task alone: a thread for each few elements of the result."
    yield from work(point)
    yield from _blocks(point, point.values["threads"])
    if point.values["vector"] > 1:
        yield f"A thread computes {point.values['vector']} neighbours along {point.vector}."
    yield from copies(point, point.tiles[0])


def _product_tiles(point: Point) -> Iterator[str]:
    yield "A product by tiles: a block brings both operands into shared memory, a thread its own into registers."
    yield from work(point)
    values = point.values
    threads = values["block_rows"] // values["rows"] * (values["block_columns"] // values["columns"])
    yield from _blocks(point, threads)
    yield _tile(point)
    yield f"A thread computes {counted(values['rows'], 'row')} by {counted(values['columns'], 'column')}."
    if values["stages"] > 1:
        yield "What the next round needs is read while one is computed."
    yield from _splits(point)


def _tile(point: Point) -> str:
    """What a block has of a product."""
    rows, columns, depth = (point.values[f"block_{name}"] for name in ("rows", "columns", "depth"))
    tile = f"{grouped(rows)} rows by {grouped(columns)} columns"
    return f"A block computes {tile}, {depth} terms of the sums a round."


def _splits(point: Point) -> Iterator[str]:
    if point.values["splits"] > 1:
        which = "each tile that is left after whole waves" if point.values["tail"] else "the rounds of a tile"
        yield f"{point.values['splits']} blocks share {which}; a launch of its own adds up what they have."


def _warp_tiles(point: Point) -> Iterator[str]:
    yield "A product by tiles on tensor cores: a block brings both operands into shared memory, warps multiply them."
    yield from work(point)
    values = point.values
    warps = values["block_rows"] // values["warp_rows"] * (values["block_columns"] // values["warp_columns"])
    yield from _blocks(point, warps * WARP)
    yield _tile(point)
    yield f"A warp computes {counted(values['warp_rows'], 'row')} by {counted(values['warp_columns'], 'column')}."
    found = tensor_product(point.task)
    assert found is not None  # or there were no such schedule
    if found.panel.dtype is DType.F32:
        yield "Tensor cores see 11 bits of a float32, so three products stand for one: also of what they do not see."
    yield f"What a round needs is copied {counted(values['stages'] - 1, 'round')} ahead."
    yield from _bands(point)
    yield from _splits(point)


def _bands(point: Point) -> Iterator[str]:
    if point.values["group"] > 1:
        yield f"Blocks in a row take {point.values['group']} tiles of rows in turn, for the columns that they share."


def _thread_windows(point: Point) -> Iterator[str]:
    yield "Windows of a few neighbouring places in the registers of a thread, which reads what they share once."
    yield from work(point)
    yield from _blocks(point, point.values["threads"])
    rows, columns, channels = (point.values[name] for name in ("rows", "columns", "channels"))
    tile = f"{counted(rows, 'row')} by {counted(columns, 'column')} of windows"
    yield f"A thread folds {tile}, of {counted(channels, 'channel')} each."


def _row_blocks(point: Point) -> Iterator[str]:
    found = rows_plan(point.task, WARP)
    assert found is not None  # or there were no such schedule
    yield f"{counted(len(found.steps), 'step')} over the same rows, in registers from the first to the last."
    yield from work(point)
    warps, lines, vector = (point.values[name] for name in ("warps", "lines", "vector"))
    yield from _blocks(point, warps * lines * WARP)
    each = f"a thread takes {counted(vector, 'column')} at once"
    yield f"A block has {counted(lines, 'row')} of {counted(warps, 'warp')}; {each}."


def _turned_tiles(point: Point) -> Iterator[str]:
    yield "A change of order by tiles: a block reads one along one axis and writes it along another."
    yield from work(point)
    extent, each = point.values["extent"], point.values["each"]
    yield from _blocks(point, extent * extent // each)
    yield f"A block turns {extent} by {extent} elements in shared memory, a thread {counted(each, 'element')} of them."


def _warpgroup_tiles(point: Point) -> Iterator[str]:
    yield "A product by tiles on tensor cores, which read both operands from shared memory while warps go on."
    yield from work(point)
    values = point.values
    yield from _blocks(point, values["warpgroups"] * GROUP)
    yield _tile(point)
    rows = values["block_rows"] // values["warpgroups"]
    yield f"Four warps compute {counted(rows, 'row')} of it."
    if values["bulk"]:
        yield "The right operand is packed ahead of time; one thread has what a round needs of it copied at once."
    yield f"What a round needs is copied {counted(values['stages'] - 2, 'round')} ahead."
    yield from _bands(point)
    yield from _splits(point)


def _attention_tiles(point: Point) -> Iterator[str]:
    yield "Attention in one launch on tensor cores: scores and weights are in registers, and nowhere else."
    yield from work(point)
    warps, places, stages = (point.values[name] for name in ("warps", "block_places", "stages"))
    yield from _blocks(point, warps * WARP)
    rows = f"{counted(ROWS * warps, 'row')} of scores, {ROWS} a warp"
    yield f"A block has {rows}, for {counted(places, 'key')} a round and as many values."
    yield f"What a round needs is copied {counted(stages - 1, 'round')} ahead."


GRID_FORMS: Mapping[str, Callable[[Point], Iterator[str]]] = {
    "elements": _elements,
    "attention_tiles": _attention_tiles,
    "product_tiles": _product_tiles,
    "warpgroup_tiles": _warpgroup_tiles,
    "warp_tiles": _warp_tiles,
    "thread_windows": _thread_windows,
    "row_blocks": _row_blocks,
    "turned_tiles": _turned_tiles,
}
"""What is said of the schedules of each sketch of GPUs."""
