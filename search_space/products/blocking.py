"""Blocking: what tiles and chunks of a product cost, from its shape and the caches of a machine.

No measurement: a rule that ranks choices well enough for a default. A step of the reduction takes as long as its
multiply-adds, its loads or their latency, whichever is longest, and longer where the panel comes from an outer cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

from tunewright.codegen.expr import free_vars, loads
from tunewright.codegen.index import linear
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..nests.nest import balanced, runs
from .product import BARE, Product

LATENCY = 4.0
"""Cycles from a multiply-add to the next one that needs its result; two begin in each cycle."""

LOAD_CYCLES = 0.55
"""What a load takes of a cycle: two begin in each, but for what is in their way."""

TILE_CYCLES = 30.0
"""What a tile takes besides its reduction; and one cycle more for each of its vectors."""

NEAR_CYCLES, FAR_CYCLES = 0.3, 1.0
"""What a vector of the panel costs more if it comes from the second cache, and if it comes from beyond."""

CROWD_CYCLES = 0.08
"""What a row costs more that other rows of the tile drive out of the first cache."""

TURN_CYCLES = 80.0
"""What a vector of a tile takes to turn, for what is written or read once by its finish along the other axis."""

PAGE_BYTES = 4096

BYTE_CYCLES = 0.03
"""What a byte costs that a chunk brings into the second cache."""

CHUNK_CYCLES = 200.0
"""What a chunk takes besides its tiles."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A product as the rule sees it: extents."""

    outer: tuple[int, ...]  # of rows whose tiles have one place, outermost first
    rows: tuple[int, ...]  # of the others, outermost first; both together are the other operand's own axes
    repeats: int  # of all further axes but the one along the lanes
    columns: int  # along the lanes
    depth: int  # of the reduction
    row_bytes: int  # that one row reads of the other operand
    step_bytes: int  # between neighbouring rows of that operand
    turns: int  # tensors that the finish writes or reads along another axis than that along the lanes

    @staticmethod
    def of(found: Product, task: Task) -> Shape:
        """The shape of a task's product."""
        extents = [found.extent(a) for a in found.rows]
        taps = {edge.tap for edge in found.edges}
        return Shape(
            outer=tuple(extents[:-2]),
            rows=tuple(extents[-2:]),
            repeats=prod(found.extent(a) for a in (*found.batch, *found.columns)),
            columns=found.extent(found.vector),
            depth=prod(a.extent for a in found.piece.stage.reduce),
            row_bytes=4 * prod(a.extent for a in found.piece.stage.reduce if a.name not in taps),
            step_bytes=_step_bytes(found, task),
            turns=_turns(found),
        )


def _step_bytes(found: Product, task: Task) -> int:
    other = found.other
    forms = [linear(e) for e in other.index]
    copied = [tuple(a.extent for a in p.stage.axes) for p in found.before if p.output == BARE]
    shape = copied[0] if other.tensor == BARE else task.tensor(other.tensor).shape
    axis = found.rows[-1] if found.rows else ""
    steps = [(form.coefficients.get(axis, 0) if form else 0) * prod(shape[d + 1 :]) for d, form in enumerate(forms)]
    return 4 * sum(steps)


def _turns(found: Product) -> int:
    piece = found.piece
    reads = [x.index for x in loads(piece.finish) if not piece.is_result(x)]
    places = [index for index in (piece.index, *reads) if found.vector in free_vars(*index)]
    return sum(found.vector not in free_vars(index[-1]) for index in places)


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
        for run in runs(extent, balanced(extent, size)):
            for rows, count in counts.items():
                fresh[rows * run.size] += count * run.count
        counts = fresh
    return counts


def _one_tile(shape: Shape, target: Target, vectors: int, rows: int) -> float:
    lanes = target.lanes(4)
    panel_bytes = shape.depth * vectors * target.vector_bits // 8
    distance = NEAR_CYCLES if 2 * panel_bytes > target.l1_bytes else 0.0
    distance = FAR_CYCLES if 2 * panel_bytes > target.l2_bytes else distance
    crowd = rows * CROWD_CYCLES if rows > 1 and _crowded(shape, target, rows) else 0.0
    step = crowd + max(rows * vectors / 2, (rows + vectors) * LOAD_CYCLES, LATENCY) + distance * vectors
    turns = shape.turns * vectors * -(-rows // lanes) * TURN_CYCLES
    return shape.depth * step + TILE_CYCLES + rows * vectors + turns


def _crowded(shape: Shape, target: Target, rows: int) -> bool:
    """Whether the lines that a tile's rows are at, with one of the panel, are more than a set of the first cache has.

    Its sets are told apart by the place inside a page of memory.
    """
    apart = PAGE_BYTES // gcd(PAGE_BYTES, shape.step_bytes)
    return -(-rows // apart) >= max(1, target.l1_bytes // PAGE_BYTES)


def chunk_cycles(shape: Shape, target: Target, cycles: float, rows: int, columns: int) -> float:
    """Cycles of the busiest thread with chunks of so many rows of the first axis by so many columns.

    `cycles` is what all tiles take on one thread.
    """
    first, *inner = (*shape.outer, *shape.rows) or (1,)
    rows, columns = min(rows, first), min(columns, shape.columns)
    chunks = -(-first // rows) * -(-shape.columns // columns) * shape.repeats
    mine = -(-chunks // target.threads)
    share = max(mine * rows / first * columns / shape.columns / shape.repeats, 1 / target.threads)
    block_bytes = rows * prod(inner) * shape.row_bytes
    if 2 * block_bytes > target.l2_bytes:  # then each panel reads it anew
        block_bytes *= -(-columns // (2 * target.lanes(4)))
    panel_bytes = 4 * columns * shape.depth
    return share * cycles + mine * (BYTE_CYCLES * (block_bytes + panel_bytes) + CHUNK_CYCLES)
