"""Blocking: what tiles and chunks of a product cost, from its shape and the caches of a machine.

No measurement: a rule that ranks choices well enough for a default. A step of the reduction takes as long as its
multiply-adds, its loads or their latency, whichever is longest, and longer where the panel comes from an outer cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import free_vars, loads
from tunewright.codegen.expr.index import linear
from tunewright.codegen.target import Target
from tunewright.graph.task import Stage, Task

from ...axes import balance, runs
from ...patterns.product import Product, broadcast_tensor
from ...space import Columns, Tiling, whole_extents

LATENCY = 4.0
"""Cycles from a multiply-add to the next one that needs its result; two begin in each cycle."""

LOAD_CYCLES, LINE_LOAD_CYCLES = 0.55, 1.0
"""Cycles of a load, and of one as wide as a line of the cache: ideally half of one, as two begin in each.

Of seven products of 100 to 2,000 million operations on an Ice Lake Xeon, in float32 and in bytes, tiles of 3 vectors of
512 bits by 9 rows and of 4 by 6 took 0.87 to 0.95 of the time of 2 by 14, which load more for a multiply-add. Steps of
2 by 8 to 2 by 14 took about as many cycles as they load. With vectors of 256 bits, 2 by 6 and 3 by 4 took the same.
"""

LINE_BITS = 512
"""Bits of a line of the cache."""

TILE_CYCLES = 30.0
"""Cycles of a tile besides its reduction; each of its vectors takes one more."""

NEAR_CYCLES, FAR_CYCLES = 0.3, 1.0
"""Additional cycles of a vector of the panel from the second-level cache, and from beyond it."""

CROWD_CYCLES = 0.08
"""Additional cycles of a row that other rows of the tile evict from the first-level cache."""

TURN_CYCLES = 80.0
"""Cycles to transpose a vector of a tile, for each tensor that the epilogue accesses along another axis."""

PAGE_BYTES = 4096

BYTE_CYCLES = 0.03
"""Cycles of a byte that a chunk brings into the second-level cache."""

CHUNK_CYCLES = 200.0
"""Cycles of a chunk besides its tiles."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The extents of a product that the rule depends on."""

    outer: tuple[int, ...]  # of rows that are not tiled, outermost first
    rows: tuple[int, ...]  # of the others, outermost first; both together are the broadcast operand's own axes
    repeats: int  # of all further axes but the one along the lanes
    columns: int  # along the lanes
    depth: int  # of the reduction
    row_bytes: int  # that one row reads of the broadcast operand
    step_bytes: int  # between neighbouring rows of that operand
    turns: int  # tensors that the epilogue writes or reads along another axis than that along the lanes

    @staticmethod
    def of(product: Product, task: Task) -> Shape:
        """The shape of a task's product."""
        extents = [product.extent(a) for a in product.rows]
        taps = {edge.tap for edge in product.edges}
        return Shape(
            outer=tuple(extents[:-2]),
            rows=tuple(extents[-2:]),
            repeats=prod(product.extent(a) for a in (*product.batch, *product.columns)),
            columns=product.extent(product.vector),
            depth=prod(a.extent for a in product.fused_stage.stage.reduce),
            row_bytes=4 * prod(a.extent for a in product.fused_stage.stage.reduce if a.name not in taps),
            step_bytes=_step_bytes(product, task),
            turns=_turns(product),
        )


def _step_bytes(product: Product, task: Task) -> int:
    load = product.broadcast
    forms = [linear(e) for e in load.index]
    read = broadcast_tensor(task, product)
    axis = product.rows[-1] if product.rows else ""
    steps = [
        (form.coefficients.get(axis, 0) if form else 0) * prod(read.shape[d + 1 :]) for d, form in enumerate(forms)
    ]
    return read.dtype.size_bytes * sum(steps)


def _turns(product: Product) -> int:
    fused_stage = product.fused_stage
    reads = [x.index for x in loads(fused_stage.epilogue) if not fused_stage.is_result(x)]
    places = [index for index in (fused_stage.index, *reads) if product.vector in free_vars(*index)]
    return sum(product.vector not in free_vars(index[-1]) for index in places)


@lru_cache(maxsize=1 << 14)
def tile_cycles(shape: Shape, target: Target, vectors: int, tile: tuple[int, ...]) -> float:
    """Cycles that all tiles take on one thread, for register tiles of so many vectors by `tile` rows."""
    lanes = target.lanes(4)
    whole, rest = divmod(-(-shape.columns // lanes), vectors)
    total = 0.0
    for rows, count in _row_tiles(shape.rows, tile).items():
        total += count * whole * _one_tile(shape, target, vectors, rows)
        total += count * _one_tile(shape, target, rest, rows) if rest else 0.0
    return total * prod(shape.outer) * shape.repeats


def _row_tiles(extents: Sequence[int], tile: Sequence[int]) -> Counter[int]:
    """How many register tiles there are of each number of rows."""
    counts = Counter({1: 1})
    for extent, size in zip(extents, tile, strict=True):
        fresh: Counter[int] = Counter()
        for run in runs(extent, balance(extent, size)):
            for rows, count in counts.items():
                fresh[rows * run.size] += count * run.count
        counts = fresh
    return counts


def _one_tile(shape: Shape, target: Target, vectors: int, rows: int) -> float:
    lanes = target.lanes(4)
    panel_bytes = shape.depth * vectors * target.vector_bits // 8
    distance = NEAR_CYCLES if 2 * panel_bytes > target.l1_bytes else 0.0
    distance = FAR_CYCLES if 2 * panel_bytes > target.l2_bytes else distance
    crowd = rows * CROWD_CYCLES if rows > 1 and _is_crowded(shape, target, rows) else 0.0
    step = crowd + step_cycles(target, vectors, rows) + distance * vectors
    turns = shape.turns * vectors * -(-rows // lanes) * TURN_CYCLES
    return shape.depth * step + TILE_CYCLES + rows * vectors + turns


def _runs(extent: int, size: int) -> list[tuple[int, int]]:
    """Sizes of tiles along an axis, and how many there are of each; the last may be smaller."""
    whole, rest = divmod(extent, size)
    return [(size, whole), *([(rest, 1)] if rest else [])]


def step_cycles(target: Target, vectors: int, rows: int) -> float:
    """Cycles of one step of the reduction in a register tile, by its multiply-adds, loads or their latency."""
    load_cycles = LOAD_CYCLES if target.vector_bits < LINE_BITS else LINE_LOAD_CYCLES
    return max(rows * vectors / 2, (rows + vectors) * load_cycles, LATENCY)


def best_tile(target: Target, vectors: int, rows: int, tiles: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The register tile, vectors by rows, that covers so many in fewest cycles where the panel stays near.

    Of those that take as many, the one nearest to two vectors, with most rows.
    """

    def cycles(tile: tuple[int, int]) -> float:
        across, down = _runs(vectors, tile[0]), _runs(rows, tile[1])
        return sum(n * m * step_cycles(target, w, h) for w, n in across for h, m in down)

    return min(tiles, key=lambda tile: (cycles(tile), abs(tile[0] - 2), -tile[1]))


def _is_crowded(shape: Shape, target: Target, rows: int) -> bool:
    """Whether the lines that a tile's rows are at, with one of the panel, are more than a set of the first cache has.

    An address selects its set by its offset inside of a page.
    """
    period = PAGE_BYTES // gcd(PAGE_BYTES, shape.step_bytes)
    return -(-rows // period) >= max(1, target.l1_bytes // PAGE_BYTES)


def chunk_cycles(shape: Shape, target: Target, cycles: float, rows: int, columns: int) -> float:
    """Cycles of the busiest thread with chunks of so many rows of the first axis by so many columns.

    `cycles` is what all tiles take on one thread.
    """
    first, *inner = (*shape.outer, *shape.rows) or (1,)
    rows, columns = min(rows, first), min(columns, shape.columns)
    chunks = -(-first // rows) * -(-shape.columns // columns) * shape.repeats
    chunks_per_thread = -(-chunks // target.threads)
    share = max(chunks_per_thread * rows / first * columns / shape.columns / shape.repeats, 1 / target.threads)
    block_bytes = rows * prod(inner) * shape.row_bytes
    if 2 * block_bytes > target.l2_bytes:  # then each panel reads it anew
        block_bytes *= -(-columns // (2 * target.lanes(4)))
    panel_bytes = 4 * columns * shape.depth
    return share * cycles + chunks_per_thread * (BYTE_CYCLES * (block_bytes + panel_bytes) + CHUNK_CYCLES)


def block_choices(tiles: int) -> tuple[int, ...]:
    """How many tiles along an axis may be of one chunk: 0 for all, or powers of two."""
    return (0, *(1 << n for n in range(max(tiles - 1, 1).bit_length())))


def tiling(stage: Stage, vector: str, tile: Columns, block: Columns, unroll: NDArray[np.int64]) -> Tiling:
    """The levels of a product: a register tile, the same over the whole reduction, a chunk, everything.

    `tile` and `block` map axes to extents of the register tile and to tiles in a chunk, 0 for all; what they leave out
    has 1. `unroll` is how often the body of the innermost reduction is copied.
    """
    extents = whole_extents(stage.axes)
    chunk = {
        axis: np.where(tiles == 0, extents[axis], np.minimum(tile.get(axis, 1), extents[axis]) * tiles)
        for axis, tiles in block.items()
    }
    levels = {**tile, stage.reduce[-1].name: unroll}, whole_extents(stage.reduce), chunk
    return Tiling.of(stage, vector, {"unroll": unroll}, levels)
