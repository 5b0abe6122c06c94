"""Contraction: matrix product and convolution as one register-tiled loop nest.

The task's main stage is a sum of products of two loads. The output's contiguous axis (`n`) lies along the vector
lanes and belongs to one operand alone, the *panel* (weights, as a rule); scalars of the other operand are broadcast
against its vectors. A constant panel is packed when a model is compiled, so that every vector of it is read in order;
a panel that is computed and not contiguous along `n` is transposed by a phase of its own. Zeros around an operand are
never multiplied: windows end at its edges. Everything pointwise after the sum is applied to the registers.

Where the output is contiguous along another axis, because channels come first, tiles are transposed in registers. Or
the product is flipped: that axis lies along the lanes, the panel is what the model computes, read in place, and the
weights are broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import compress
from itertools import product as product_of
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Load, Var, free_vars
from tunewright.codegen.ir import Block, Kernel, Packing, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.loops import lower
from ..nests.nest import Edge, Nest, balanced, runs
from ..nests.phases import contiguous, own_buffer, params, plain_nest, temporaries
from ..nests.pieces import Piece
from ..products.blocking import Shape, chunk_cycles, tile_cycles
from ..products.product import (
    BARE,
    Product,
    ahead,
    flipped,
    in_rows,
    packable,
    packed,
    pays_ahead,
    product,
    unpadded,
)
from ..products.tiling import block_choices, tiling
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

MOST_ROWS, MOST_OUTER_ROWS = 28, 4
"""Extents of a register tile along the last row axis and the one before."""

CODE_LIMIT = 512
"""Multiply-adds in all copies of the body. Beyond it a build takes long, and hardly anything is gained: of 115 padded
convolutions with some tens of schedules timed each, three had their fastest there, which makes a mean of 0.1%."""

BODY_DEFAULT = 64
"""Multiply-adds in one copy of the body of a default."""


class ContractionSketch:
    """See the module. `flipped`: with the parts of the two operands exchanged."""

    def __init__(self, flipped: bool = False) -> None:
        self.name = "flipped" if flipped else "contraction"
        self.version = 2 if flipped else 5
        self._flipped = flipped

    def applies(self, task: Task, target: Target) -> bool:
        found = self._seen(task)
        return target.kind == "cpu" and found is not None and found.extent(found.vector) * 2 >= target.lanes(4)

    def _seen(self, task: Task) -> Product | None:
        return flipped(task) if self._flipped else product(task)

    def _product(self, task: Task) -> Product:
        found = self._seen(task)
        assert found is not None
        return unpadded(task, found)

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = self._product(task)
        lanes = target.lanes(4)
        vectors = -(-found.extent(found.vector) // lanes)
        knobs = [Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors))]
        for axis, limit in zip(reversed(found.rows), (MOST_ROWS, MOST_OUTER_ROWS), strict=False):
            knobs.append(Knob(f"tile_{axis}", tuple(range(1, min(found.extent(axis), limit) + 1))))
        if found.rows:
            knobs.append(Knob("block_rows", block_choices(found.extent(found.rows[0]))))
        knobs.append(Knob("block_columns", block_choices(vectors)))
        depth = found.piece.stage.reduce[-1].extent
        knobs.append(Knob("unroll", tuple(n for n in (1, 2, 3, 4, 8) if n <= depth and (n != 3 or depth == 3))))
        knobs.append(Knob("columns_inside", (0, 1)))
        knobs.append(Knob("ahead", (0, 1) if packable(task, found.panel) else (0,)))
        preferred = _preferred(task, found, target, knobs)
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=tuple(knobs),
            legal=lambda columns: _legal(found, target, columns),
            tiling=lambda columns: _tiling(found, target, columns),
            preferred=preferred,
            first_choice=not self._flipped or self._wins(task, preferred, target),
        )

    def _wins(self, task: Task, values: Mapping[str, int], target: Target) -> bool:
        """Whether the rule of `blocking` finds less time for a product flipped than for the same as it is."""
        plain = ContractionSketch()
        theirs = plain.space(task, target).preferred
        return _cycles(task, self._product(task), values, target) < _cycles(task, plain._product(task), theirs, target)

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found = self._product(task)
        nest = _nest(found, schedule, target)
        found, packings, copying = _laid_out(task, found, nest)
        early = {name: ahead(packing.shape[-1]) for name, packing in packings.items() if schedule["ahead"]}
        if packable(task, found.other) and Var(found.piece.stage.reduce[-1].name) in found.other.index:
            tensor = task.tensor(found.other.tensor)
            packings[tensor.name], index = in_rows(found, tensor)
            found = found.replacing(found.other, Load(tensor.name, index, tensor.dtype))
        before, after = ([_phase(p, target) for p in ps] for ps in ((*found.before, *copying), found.after))
        main = lower(replace(nest, piece=found.piece, ahead=early))
        own = map(own_buffer, (*copying, *(p for p in found.before if p.output == BARE)))
        scratch = (*temporaries(task, (*found.before, found.piece, *found.after)), *own)
        return Kernel(params(task, packings), scratch, Block((*before, main, *after)), packings)


@lru_cache(maxsize=256)
def _phase(piece: Piece, target: Target) -> Stmt:
    """A piece before or after the product."""
    return lower(replace(plain_nest(piece, target), compact=True))


def _cycles(task: Task, found: Product, values: Mapping[str, int], target: Target) -> float:
    tile = tuple(values[f"tile_{axis}"] for axis in found.rows[-2:])
    return tile_cycles(Shape.of(found, task), target, values["vectors"], tile)


def _preferred(task: Task, found: Product, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """What the rule of `blocking` finds best: first the tile, then the chunks."""
    choices = {knob.name: knob.choices for knob in knobs}
    shape = Shape.of(found, task)
    names = ["vectors", *(f"tile_{axis}" for axis in found.rows[-2:])]
    tiles = list(product_of(*(choices[name] for name in names)))
    fixed = {"block_rows": 0, "block_columns": 0, "unroll": 1, "columns_inside": 0}
    columns = {name: np.array([tile[n] for tile in tiles]) for n, name in enumerate(names)}
    legal = _legal(found, target, columns | {name: np.full(len(tiles), value) for name, value in fixed.items()})
    tile = min(compress(tiles, legal), key=lambda t: tile_cycles(shape, target, t[0], t[1:]))
    values = dict.fromkeys(choices, 0) | dict(zip(names, tile, strict=True))
    values |= _default_blocks(shape, target, choices, tile)
    depth = found.piece.stage.reduce[-1].extent
    most = min(BODY_DEFAULT, CODE_LIMIT // int(_copies(found, {name: np.array([values[name]]) for name in names})[0]))
    copies = [n for n in choices["unroll"] if n * prod(tile) <= most and depth % n == 0]
    values["unroll"] = max(copies, default=1)
    values["ahead"] = int(pays_ahead(target) and 1 in choices["ahead"])
    return values


def _default_blocks(
    shape: Shape, target: Target, choices: Mapping[str, Sequence[int]], tile: tuple[int, ...]
) -> dict[str, int]:
    """The chunks for register tiles of so many vectors by rows: those that take the busiest thread least time."""
    vectors, *heights = tile
    cycles = tile_cycles(shape, target, vectors, tuple(heights))
    width, height = vectors * target.lanes(4), 1 if shape.outer else next(iter(heights), 1)
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


def _legal(found: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache, and no two points alike."""
    vectors = columns["vectors"]
    rows = _tile_rows(found, columns)
    registers = rows * vectors + vectors + 1
    code = rows * vectors * columns["unroll"] * _copies(found, columns)
    legal = (registers <= target.vector_registers) & (code <= CODE_LIMIT)
    column_tiles = -(-found.extent(found.vector) // (vectors * target.lanes(4)))
    legal &= columns["block_columns"] < column_tiles
    columns_inside = np.where(columns["block_columns"] == 0, column_tiles, columns["block_columns"])
    rows_inside = np.ones(len(vectors), np.int64)
    for number, axis in enumerate(found.rows):
        tiles = -(-found.extent(axis) // columns.get(f"tile_{axis}", np.ones(1, np.int64)))
        if number == 0:
            legal &= (columns["block_rows"] == 0) | (columns["block_rows"] < tiles)
            tiles = np.where(columns["block_rows"] == 0, tiles, columns["block_rows"])
        rows_inside = rows_inside * tiles
    for axis in found.rows[-2:]:  # the tiles that are no larger for a larger number
        wanted = columns[f"tile_{axis}"]
        legal &= wanted == -(-found.extent(axis) // -(-found.extent(axis) // wanted))
    order_matters = (rows_inside > 1) & (columns_inside > 1)
    return np.asarray(legal & (order_matters | (columns["columns_inside"] == 0)))


def _copies(found: Product, columns: Columns) -> NDArray[np.int64]:
    """How many copies of the innermost body there are, for tiles of different sizes and what edges leave of them."""
    copies = np.ones(len(columns["vectors"]), np.int64)
    for axis in found.rows[-2:]:
        edge = next((e for e in found.edges if e.axis == axis), None)
        copies = copies * _bodies_table(found.extent(axis), edge)[columns[f"tile_{axis}"]]
    return copies


@lru_cache(maxsize=256)
def _bodies_table(extent: int, edge: Edge | None) -> NDArray[np.int64]:
    """`_bodies` by the extent wanted of tiles; none is wanted of 0."""
    return np.array([0, *(_bodies(extent, edge, n) for n in range(1, min(extent, MOST_ROWS) + 1))])


def _bodies(extent: int, edge: Edge | None, wanted: int) -> int:
    """Copies of the body along one axis."""
    sizes = runs(extent, balanced(extent, wanted))
    return sum(max(1, len(edge.spans(run))) if edge else 1 for run in sizes)


def _tile_rows(found: Product, columns: Columns) -> NDArray[np.int64]:
    rows = np.ones(len(columns["vectors"]), np.int64)
    for axis in found.rows[-2:]:
        rows = rows * columns[f"tile_{axis}"]
    return rows


def _tiling(found: Product, target: Target, columns: Columns) -> Tiling:
    tile = {axis: columns[f"tile_{axis}"] for axis in found.rows[-2:]}
    tile[found.vector] = columns["vectors"] * target.lanes(4)
    block = dict.fromkeys(found.rows[1:], np.zeros_like(columns["vectors"]))
    if found.rows:
        block[found.rows[0]] = columns["block_rows"]
    block[found.vector] = columns["block_columns"]
    return tiling(found.piece.stage, found.vector, tile, block, columns["unroll"])


def _nest(found: Product, schedule: Schedule, target: Target) -> Nest:
    lanes = target.lanes(4)
    values = dict(schedule.values)
    tile = {axis: values[f"tile_{axis}"] for axis in found.rows[-2:]}
    tile[found.vector] = values["vectors"] * lanes
    block = dict.fromkeys(found.rows[1:], 0)
    if found.rows:
        block[found.rows[0]] = values["block_rows"]
    block[found.vector] = values["block_columns"]
    columns = (*found.columns, found.vector)
    order = (*found.batch, *found.rows, *columns) if values["columns_inside"] else (*found.batch, *columns, *found.rows)
    unroll = {found.piece.stage.reduce[-1].name: values["unroll"]}
    return Nest(found.piece, lanes, found.vector, tile, block, unroll, order, edges=found.edges, compact=True)


def _laid_out(task: Task, found: Product, nest: Nest) -> tuple[Product, dict[str, Packing], list[Piece]]:
    """The contraction reading its panel in the best layout there is, and what makes that: packings, or phases."""
    tensor = task.tensor(found.panel.tensor)
    if packable(task, found.panel):
        width = -(-nest.tile_extent(found.vector) // nest.lanes) * nest.lanes
        packing, index = packed(found, tensor, width)
        return found.reading(Load(tensor.name, index, tensor.dtype)), {tensor.name: packing}, []
    if contiguous(found.panel.index, found.vector):
        return found, {}, []
    names = free_vars(*found.panel.index)
    axes = [*(n for n in names if n != found.vector), found.vector]
    stage = Stage(output="panel", axes=tuple(Axis(n, found.extent(n)) for n in axes), body=found.panel)
    return found.reading(Load(stage.output, stage.index, tensor.dtype)), {}, [Piece.of(stage)]
