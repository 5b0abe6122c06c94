"""Contraction: matrix product and convolution as one register-tiled loop nest.

The task's main stage is a sum of products of two loads. The output's contiguous axis (`n`) lies along the vector
lanes and belongs to one operand alone, the *panel* (weights, as a rule); scalars of the other operand are broadcast
against its vectors. A constant panel is packed when a model is compiled, so that every vector of it is read in order;
a panel that is computed and not contiguous along `n` is transposed by a phase of its own. Zeros around an operand are
never multiplied: windows end at its edges. The epilogue is applied to the registers.

Where the output is contiguous along another axis, because channels come first, tiles are transposed in registers. Or
the product is transposed: that axis lies along the lanes, the panel is what the model computes, read in place, and the
weights are broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import compress
from itertools import product as product_of
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Load, Var, free_vars
from tunewright.codegen.ir.ir import Kernel, Packing, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..axes import balance, runs
from ..buffers import kernel_around, own_buffer
from ..counts import enumeration
from ..description import SchedulePoint
from ..patterns.fused_stage import FLOAT64, FLOATS, FusedStage
from ..patterns.product import (
    INTERIOR,
    Product,
    drop_padding,
    is_packable,
    is_prefetch_worthwhile,
    match_product,
    match_transposed_product,
    pack_panel,
    pack_rows,
    prefetch_rows,
)
from ..patterns.vector_axis import is_contiguous
from ..patterns.window_dim import WindowDim
from ..schedule import Schedule
from ..sketch import LOCAL_BYTES, PREFETCH, PatternSketch
from ..space import Columns, Knob, Space, Tiling, point_columns
from .loops.blocking import Shape, block_choices, chunk_cycles, tile_cycles, tiling
from .loops.lower import lower, plain_nest
from .loops.nest import Nest
from .loops.wide_panel import WidePanel

MOST_ROWS, MOST_OUTER_ROWS = 28, 4
"""Extents of a register tile along the last row axis and the one before."""

CODE_LIMIT = 512
"""Multiply-adds in all copies of the body. Beyond it a build takes long, and hardly anything is gained: of 115 padded
convolutions with some tens of schedules timed each, three had their fastest there, which makes a mean of 0.1%."""

FOLDED_ROWS = 4
"""Rows up to which a product by a transposed panel is slower than folds along vectors: with one it took 3.0 to 4.6
times as long on a Xeon with AVX-512, with four 1.1 to 2.0, with eight 0.7 to 1.3 (six sizes of 12,000 to 1,000,000)."""

S = TypeVar("S", int, NDArray[np.int64])

WIDE_SAYS = "Narrow weights are cast once for all rows of a chunk, not in registers at each tile."

CAST_TILES, CAST_ROWS = 3, 8
"""Tiles that read the same narrow weights from which on these are cast once by default, if tiles have few rows.

On a busy Xeon, beside float32 weights, products in tiles of 6 rows (AVX2) took up to 1.2 times as long with casts in
registers, and no longer when cast once; in tiles of 14 rows (AVX-512) no longer with casts in registers.
"""

BODY_DEFAULT = 64
"""Multiply-adds in one copy of the body of a default."""


class ContractionSketch(PatternSketch[Product]):
    """A register-tiled loop nest of one product, or with `flipped` of its transpose."""

    def __init__(self, flipped: bool = False) -> None:
        self.name = "flipped" if flipped else "contraction"
        self.version = 2 if flipped else 5
        self._is_transposed = flipped

    def recognise(self, task: Task, target: Target) -> Product | None:
        if self._is_transposed:
            product = match_transposed_product(task)
        else:
            product = match_product(task, FLOATS) or match_product(task, FLOAT64)
        if product is None or _is_folded_faster(task, product):
            return None
        if product.extent(product.vector) * 2 < lanes_of(product, target):
            return None
        return drop_padding(task, product)

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        vectors = -(-product.extent(product.vector) // lanes_of(product, target))
        knobs = [Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors))]
        for axis, limit in zip(reversed(product.rows), (MOST_ROWS, MOST_OUTER_ROWS), strict=False):
            knobs.append(Knob(f"tile_{axis}", tuple(range(1, min(product.extent(axis), limit) + 1))))
        if product.rows:
            knobs.append(Knob("block_rows", block_choices(product.extent(product.rows[0]))))
        knobs.append(Knob("block_columns", block_choices(vectors)))
        knobs.append(Knob("unroll", self.copies(product.fused_stage.stage.reduce[-1].extent, target)))
        knobs.append(Knob("columns_inside", (0, 1)))
        knobs.append(Knob("ahead", (0, 1) if is_packable(task, product.panel) else (0,), PREFETCH))
        if _is_panel_narrow(task, product):
            knobs.append(Knob("held", (0, 1), WIDE_SAYS))
        preferred = _preferred(task, product, target, knobs)
        return self.space_of(
            tuple(knobs),
            legal=lambda columns: _legal(product, target, columns),
            tiling=lambda columns: _tiling(product, target, columns),
            preferred=preferred,
            first_choice=not self._is_transposed or _is_faster(task, product, preferred, target),
        )

    def copies(self, depth: int, target: Target) -> tuple[int, ...]:
        """How many copies of the body may follow each other along a reduction of `depth`."""
        return tuple(n for n in (1, 2, 3, 4, 8) if n <= depth and (n != 3 or depth == 3))

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        nest = nest_of(product, schedule, target)
        product, packings, copies = _pack(task, product, nest)
        if dict(schedule.values).get("held"):
            wide = WidePanel.of(product, packings[product.panel.tensor].shape[-1])
            product, nest = wide.read_by(product), replace(nest, wide_panel=wide)
        early = {name: prefetch_rows(packing.shape[-1]) for name, packing in packings.items() if schedule["ahead"]}
        if (
            is_packable(task, product.broadcast)
            and Var(product.fused_stage.stage.reduce[-1].name) in product.broadcast.index
        ):
            tensor = task.tensor(product.broadcast.tensor)
            packings[tensor.name], index = pack_rows(product, tensor)
            product = product.with_operand(product.broadcast, Load(tensor.name, index, tensor.dtype))
        main = lower(replace(nest, fused_stage=product.fused_stage, prefetch=early))
        own = map(own_buffer, (*copies, *(p for p in product.before if p.output == INTERIOR)))
        stages = (*product.before, *copies), product.fused_stage, product.after
        return kernel_around((main,), task, stages, partial(write_phase, target=target), packings, own)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        how = ", what the model computes along the lanes, its weights broadcast" if self._is_transposed else ""
        yield from point.say_start(f"A matrix product or convolution as one nest of register tiles{how}.")
        tile, chunk = point.tiles[0], point.tiles[-2]
        yield from point.say_chunk_of_tiles(tile)
        yield from point.say_tile(tile)
        yield from point.say_copies(tile)
        several = {axis for axis in point.spatial_axes if tile[axis] < chunk[axis]}
        if point.vector in several and len(several) > 1:
            rows, columns = enumeration(sorted(several - {point.vector})), point.vector
            inside, outside = (columns, rows) if point.values["columns_inside"] else (rows, columns)
            yield f"Within a chunk, each tile of {outside} meets all of {inside} before the next."
        yield from point.say_knobs()


@lru_cache(maxsize=256)
def write_phase(fused_stage: FusedStage, target: Target) -> Stmt:
    """A fused stage before or after the product."""
    return lower(replace(plain_nest(fused_stage, target), compact=True))


def lanes_of(product: Product, target: Target) -> int:
    """How many sums of a product a vector has."""
    return target.lanes(product.dtype.size_bytes)


def _is_folded_faster(task: Task, product: Product) -> bool:
    """Whether vectors along the reduction are faster: few rows meet a panel that would have to be transposed for them.

    So it is in each step of a decoder, whose keys lie as they were made.
    """
    if is_packable(task, product.panel) or is_contiguous(product.panel.index, product.vector):
        return False
    rows, last = prod(product.extent(axis) for axis in product.rows), product.fused_stage.stage.reduce[-1].name
    return rows <= FOLDED_ROWS and all(is_contiguous(x.index, last) for x in (product.panel, product.broadcast))


def _is_faster(task: Task, product: Product, values: Mapping[str, int], target: Target) -> bool:
    """Whether a transposed product takes less time than the plain one, by the rule of `blocking`."""
    plain = match_product(task)
    assert plain is not None  # what can be transposed is a product
    plain = drop_padding(task, plain)
    plain_values = ContractionSketch().offer(task, plain, target).preferred
    return _cycles(task, product, values, target) < _cycles(task, plain, plain_values, target)


def _cycles(task: Task, product: Product, values: Mapping[str, int], target: Target) -> float:
    tile = tuple(values[f"tile_{axis}"] for axis in product.rows[-2:])
    return tile_cycles(Shape.of(product, task), target, values["vectors"], tile)


def _preferred(task: Task, product: Product, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """The tile, then the chunks, that are best by the rule of `blocking`."""
    choices = {knob.name: knob.choices for knob in knobs}
    shape = Shape.of(product, task)
    names = ["vectors", *(f"tile_{axis}" for axis in product.rows[-2:])]
    tiles = list(product_of(*(choices[name] for name in names)))
    fixed = {"block_rows": 0, "block_columns": 0, "unroll": 1, "columns_inside": 0}
    columns = {name: np.array([tile[n] for tile in tiles]) for n, name in enumerate(names)}
    legal = _legal(product, target, columns | {name: np.full(len(tiles), value) for name, value in fixed.items()})
    tile = min(compress(tiles, legal), key=lambda t: tile_cycles(shape, target, t[0], t[1:]))
    values = dict.fromkeys(choices, 0) | dict(zip(names, tile, strict=True))
    values |= _default_blocks(shape, target, choices, tile, lanes_of(product, target))
    depth = product.fused_stage.stage.reduce[-1].extent
    most = min(
        BODY_DEFAULT, CODE_LIMIT // int(_copies(product, point_columns({name: values[name] for name in names}))[0])
    )
    copies = [n for n in choices["unroll"] if n * prod(tile) <= most and depth % n == 0]
    values["unroll"] = max(copies, default=1)
    values["ahead"] = int(is_prefetch_worthwhile(target) and 1 in choices["ahead"])
    held = values | {"ahead": 0, "held": 1}
    is_better = "held" in choices and _is_wide_panel_faster(product, values, target)
    return held if is_better and _legal(product, target, point_columns(held))[0] else values


def _is_wide_panel_faster(product: Product, values: Mapping[str, int], target: Target) -> bool:
    """Whether to cast a part of a narrow panel once for all rows that read it takes less time than in registers."""
    rows = prod(values[f"tile_{axis}"] for axis in product.rows[-2:])
    is_near = _wide_panel_bytes(product, target, values["vectors"]) <= target.l2_bytes // 2
    return is_near and rows <= CAST_ROWS and _tiles_beside(product, values) >= CAST_TILES


def _wide_panel_bytes(product: Product, target: Target, vectors: S) -> S:
    """The bytes of a wide panel."""
    depth = prod(axis.extent for axis in product.fused_stage.stage.reduce)
    return vectors * (4 * lanes_of(product, target) * depth)


def _tiles_beside(product: Product, values: Mapping[str, int]) -> int:
    """The tiles of a chunk that read the same of the panel, one after the other."""
    tiles = [-(-product.extent(axis) // values.get(f"tile_{axis}", 1)) for axis in product.rows]
    return prod([values["block_rows"] or tiles[0], *tiles[1:]]) if tiles else 1


def _default_blocks(
    shape: Shape, target: Target, choices: Mapping[str, Sequence[int]], tile: tuple[int, ...], lanes: int
) -> dict[str, int]:
    """The chunks for register tiles of so many vectors by rows: those that take the busiest thread least time."""
    vectors, *heights = tile
    cycles = tile_cycles(shape, target, vectors, tuple(heights))
    width, height = vectors * lanes, 1 if shape.outer else next(iter(heights), 1)
    rows = next(iter(shape.outer + shape.rows), 1)  # of the first axis, as is `height`
    blocks = [
        (down, across)
        for down in choices.get("block_rows", (0,))
        for across in choices["block_columns"]
        if down * height < rows and across * width < shape.columns
    ]
    down, across = min(
        blocks, key=lambda b: chunk_cycles(shape, target, cycles, b[0] * height or rows, b[1] * width or shape.columns)
    )
    return {"block_columns": across} | ({"block_rows": down} if "block_rows" in choices else {})


def _legal(product: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache, and no two points alike."""
    vectors = columns["vectors"]
    rows = _tile_rows(product, columns)
    registers = rows * vectors + vectors + 1
    code = rows * vectors * columns["unroll"] * _copies(product, columns)
    legal = (registers <= target.vector_registers) & (code <= CODE_LIMIT)
    small = np.flatnonzero(legal)  # of a whole space few are: what is left to see is seen of them alone
    legal[small] = _is_distinct(product, target, {name: column[small] for name, column in columns.items()})
    return legal


def _is_distinct(product: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Whether no point that comes before has the same loops."""
    vectors = columns["vectors"]
    column_tiles = -(-product.extent(product.vector) // (vectors * lanes_of(product, target)))
    distinct = columns["block_columns"] < column_tiles
    held = columns.get("held", np.zeros(len(vectors), np.int64)) == 1
    columns_inside = np.where(columns["block_columns"] == 0, column_tiles, columns["block_columns"])
    rows_inside = np.ones(len(vectors), np.int64)
    for number, axis in enumerate(product.rows):
        tiles = -(-product.extent(axis) // columns.get(f"tile_{axis}", np.ones(1, np.int64)))
        if number == 0:
            distinct &= (columns["block_rows"] == 0) | (columns["block_rows"] < tiles)
            tiles = np.where(columns["block_rows"] == 0, tiles, columns["block_rows"])
        rows_inside = rows_inside * tiles
    for axis in product.rows[-2:]:  # the tiles that are no larger for a larger number
        size = columns[f"tile_{axis}"]
        distinct &= size == -(-product.extent(axis) // -(-product.extent(axis) // size))
    if held.any():  # where one tile reads it, or others come between, nothing is gained
        panel_bytes = _wide_panel_bytes(product, target, vectors)
        is_of_use = (rows_inside > 1) & (columns["columns_inside"] == 0) & (columns["ahead"] == 0)
        distinct &= ~held | (is_of_use & (panel_bytes <= LOCAL_BYTES))
    order_matters = (rows_inside > 1) & (columns_inside > 1)
    return np.asarray(distinct & (order_matters | (columns["columns_inside"] == 0)))


def _copies(product: Product, columns: Columns) -> NDArray[np.int64]:
    """The copies of the innermost body, for tiles of different sizes and their parts at edges."""
    copies = np.ones(len(columns["vectors"]), np.int64)
    for axis in product.rows[-2:]:
        edge = next((e for e in product.edges if e.axis == axis), None)
        copies = copies * _bodies_table(product.extent(axis), edge)[columns[f"tile_{axis}"]]
    return copies


@lru_cache(maxsize=256)
def _bodies_table(extent: int, edge: WindowDim | None) -> NDArray[np.int64]:
    """A table of `_bodies` by the size of tiles, from 0 on."""
    return np.array([0, *(_bodies(extent, edge, n) for n in range(1, min(extent, MOST_ROWS) + 1))])


def _bodies(extent: int, edge: WindowDim | None, size: int) -> int:
    """Copies of the body along one axis."""
    sizes = runs(extent, balance(extent, size))
    return sum(max(1, len(edge.spans(run))) if edge else 1 for run in sizes)


def _tile_rows(product: Product, columns: Columns) -> NDArray[np.int64]:
    rows = np.ones(len(columns["vectors"]), np.int64)
    for axis in product.rows[-2:]:
        rows = rows * columns[f"tile_{axis}"]
    return rows


def _tiling(product: Product, target: Target, columns: Columns) -> Tiling:
    tile, block = _sizes(product, target, columns)
    return tiling(product.fused_stage.stage, product.vector, tile, block, columns["unroll"])


def _sizes(product: Product, target: Target, values: Mapping[str, S]) -> tuple[dict[str, S], dict[str, S]]:
    """The register tile, and the tiles in a chunk, by axes; of one schedule, or of the columns of many."""
    tile = {axis: values[f"tile_{axis}"] for axis in product.rows[-2:]}
    tile[product.vector] = values["vectors"] * lanes_of(product, target)
    block = dict.fromkeys(product.rows[1:], values["vectors"] * 0)
    if product.rows:
        block[product.rows[0]] = values["block_rows"]
    block[product.vector] = values["block_columns"]
    return tile, block


def nest_of(product: Product, schedule: Schedule, target: Target) -> Nest:
    """The loops of a product by a schedule of this space."""
    values = dict(schedule.values)
    tile, block = _sizes(product, target, values)
    columns = (*product.columns, product.vector)
    order = (
        (*product.batch, *product.rows, *columns)
        if values["columns_inside"]
        else (*product.batch, *columns, *product.rows)
    )
    unroll = {product.fused_stage.stage.reduce[-1].name: values["unroll"]}
    return Nest(
        product.fused_stage,
        lanes_of(product, target),
        product.vector,
        tile,
        block,
        unroll,
        order,
        edges=product.edges,
        compact=True,
    )


def _is_panel_narrow(task: Task, product: Product) -> bool:
    """Whether weights are cast to be multiplied, which may be done once for several tiles."""
    return is_packable(task, product.panel) and product.panel.dtype.is_narrow


def _pack(task: Task, product: Product, nest: Nest) -> tuple[Product, dict[str, Packing], list[FusedStage]]:
    """The product that reads its panel in the best layout, and the packings or the phases that make it."""
    tensor = task.tensor(product.panel.tensor)
    if is_packable(task, product.panel):
        width = -(-nest.tile_extent(product.vector) // nest.lanes) * nest.lanes
        packing, index = pack_panel(product, tensor, width)
        return product.with_panel(Load(tensor.name, index, tensor.dtype)), {tensor.name: packing}, []
    if is_contiguous(product.panel.index, product.vector):
        return product, {}, []
    names = free_vars(*product.panel.index)
    axes = [*(n for n in names if n != product.vector), product.vector]
    stage = Stage(output="panel", axes=tuple(Axis(n, product.extent(n)) for n in axes), body=product.panel)
    return product.with_panel(Load(stage.output, stage.index, tensor.dtype)), {}, [FusedStage.of(stage)]
