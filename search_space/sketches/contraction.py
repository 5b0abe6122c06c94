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

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from itertools import product as product_of
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Load, Var, free_vars
from tunewright.codegen.ir import Block, Buffer, Kernel, Packing, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.loops import lower
from ..nests.nest import Edge, Nest, balanced, parted, runs
from ..nests.phases import buffer, params, plain_phase
from ..nests.pieces import Piece
from ..products.blocking import Shape, chunk_cycles, tile_cycles
from ..products.product import BARE, Product, ahead, contiguous, flipped, in_rows, packable, packed, product, unpadded
from ..schedule import Schedule
from ..space import Columns, Knob, Space, Tiling

BODY_LIMIT = 1024
"""Multiply-adds in one copy of the innermost body, beyond which the instruction cache suffers."""

CODE_LIMIT = 4096
"""Multiply-adds in all copies of the body, beyond which a build takes too long."""

BODY_DEFAULT = 64
"""Multiply-adds in one copy of the body of a default."""


class ContractionSketch:
    """See the module. `flipped`: with the axis along the lanes that another operand has, if there are two to choose."""

    def __init__(self, flipped: bool = False) -> None:
        self.name = "flipped" if flipped else "contraction"
        self.version = 1 if flipped else 3
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

    def space(self, task: Task, target: Target) -> Space:
        found = self._product(task)
        lanes = target.lanes(4)
        vectors = -(-found.extent(found.vector) // lanes)
        knobs = [Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors))]
        for axis, limit in zip(reversed(found.rows), (28, 4), strict=False):
            knobs.append(Knob(f"tile_{axis}", tuple(range(1, min(found.extent(axis), limit) + 1))))
        if found.rows:
            knobs.append(Knob("block_rows", _powers(found.extent(found.rows[0]))))
        knobs.append(Knob("block_columns", _powers(vectors)))
        depth = found.piece.stage.reduce[-1].extent
        knobs.append(Knob("unroll", tuple(n for n in (1, 2, 3, 4, 8) if n <= depth and (n != 3 or depth == 3))))
        knobs.append(Knob("columns_inside", (0, 1)))
        default = Schedule(self.name, self.version, _default(task, found, target, knobs))
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=tuple(knobs),
            legal=lambda columns: _legal(found, target, columns),
            tiling=lambda columns: _tiling(found, target, columns),
            default=default,
            first_choice=not self._flipped or self._wins(task, default, target),
        )

    def _wins(self, task: Task, default: Schedule, target: Target) -> bool:
        """Whether the rule of `blocking` finds less time for a product flipped than for the same as it is."""
        plain = ContractionSketch()
        theirs = plain.space(task, target).default
        return _cycles(task, self._product(task), default, target) < _cycles(task, plain._product(task), theirs, target)

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found = self._product(task)
        nest = _nest(found, schedule, target)
        found, scratch, packings, repack = _laid_out(task, found, nest)
        written = {p.output for p in (*found.before, found.piece, *found.after)}
        temporaries = [buffer(t) for t in task.temporaries if t.name in written]
        scratch += [_held(p) for p in found.before if p.output == BARE]
        steps: list[Stmt] = [plain_phase(p, target) for p in (*found.before, *repack)]
        early = {name: ahead(packing.shape[-1]) for name, packing in packings.items()}
        if packable(task, found.other) and Var(found.piece.stage.reduce[-1].name) in found.other.index:
            tensor = task.tensor(found.other.tensor)
            packings[tensor.name], index = in_rows(found, found.other, tensor)
            found = found.replacing(found.other, Load(tensor.name, index, tensor.dtype))
        steps.append(lower(replace(nest, piece=found.piece, ahead=early)))
        steps += [plain_phase(p, target) for p in found.after]
        return Kernel(params(task, packings), (*temporaries, *scratch), Block(tuple(steps)), packings)


def _held(piece: Piece) -> Buffer:
    """What a piece that is no task's own writes."""
    return Buffer(piece.output, tuple(a.extent for a in piece.stage.axes), piece.stage.body.dtype)


def _cycles(task: Task, found: Product, schedule: Schedule, target: Target) -> float:
    tile = tuple(schedule[f"tile_{axis}"] for axis in found.rows[-2:])
    return tile_cycles(Shape.of(found, task), target, schedule["vectors"], tile)


def _powers(extent: int) -> tuple[int, ...]:
    """1, 2, 4, ... below the extent, and 0 for all of it."""
    return (0, *(1 << n for n in range(max(extent - 1, 1).bit_length())))


def _default(task: Task, found: Product, target: Target, knobs: Sequence[Knob]) -> tuple[tuple[str, int], ...]:
    """What the rule of `blocking` finds best: first the tile, then the chunks."""
    choices = {knob.name: knob.choices for knob in knobs}
    shape, lanes = Shape.of(found, task), target.lanes(4)
    axes = [f"tile_{axis}" for axis in found.rows[-2:]]
    tiles = list(product_of(choices["vectors"], *(choices[axis] for axis in axes)))
    fixed = {"block_rows": 0, "block_columns": 0, "unroll": 1, "columns_inside": 0}
    columns = {name: np.array([tile[n] for tile in tiles]) for n, name in enumerate(["vectors", *axes])}
    legal = _legal(found, target, columns | {name: np.full(len(tiles), value) for name, value in fixed.items()})
    tile = min(compress(tiles, legal), key=lambda t: tile_cycles(shape, target, t[0], t[1:]))
    vectors, rows = tile[0], prod(tile[1:])
    values = dict.fromkeys(choices, 0) | dict(zip(["vectors", *axes], tile, strict=True))
    cycles = tile_cycles(shape, target, vectors, tile[1:])
    first = values.get(f"tile_{found.rows[0]}", 1) if found.rows else 1

    def chunk(block: tuple[int, int]) -> float:
        sizes = (first * block[0] or found.extent(found.rows[0]) if found.rows else 1, vectors * lanes * block[1])
        return chunk_cycles(shape, target, cycles, sizes[0], sizes[1] or shape.columns)

    blocks = [
        (down, across)
        for down in choices.get("block_rows", (0,))
        for across in choices["block_columns"]
        if (not down or down * first < found.extent(found.rows[0]))
        and (not across or across * vectors * lanes < shape.columns)
    ]
    down, across = min(blocks, key=chunk)
    depth = found.piece.stage.reduce[-1].extent
    copies = [n for n in choices["unroll"] if n * rows * vectors <= BODY_DEFAULT and depth % n == 0]
    values |= {"block_columns": across, "unroll": max(copies, default=1)}
    return tuple((values | ({"block_rows": down} if found.rows else {})).items())


def _legal(found: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache, and no two points alike."""
    vectors = columns["vectors"]
    rows = _tile_rows(found, columns)
    registers = rows * vectors + vectors + 1
    bodies = rows * vectors * columns["unroll"]
    legal = (registers <= target.vector_registers) & (bodies * _copies(found, columns) <= CODE_LIMIT)
    legal &= bodies <= BODY_LIMIT
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
    """How many copies of the innermost body there are, for tiles of different sizes and at edges."""
    copies = np.ones(len(columns["vectors"]), np.int64)
    for axis in found.rows[-2:]:
        edge = next((e for e in found.edges if e.axis == axis), None)
        wanted, where = np.unique(columns[f"tile_{axis}"], return_inverse=True)
        copies = copies * np.array([_bodies(found.extent(axis), edge, int(n)) for n in wanted])[where]
    return copies


def _bodies(extent: int, edge: Edge | None, wanted: int) -> int:
    """Copies of the body along one axis."""
    parts = [part for run in runs(extent, balanced(extent, wanted)) for part in parted(run, edge)]
    if edge is None:
        return len(parts)
    return sum(1 if p.size == 1 or p.count > 1 else max(1, len(edge.groups(p.start, p.size))) for p in parts)


def _tile_rows(found: Product, columns: Columns) -> NDArray[np.int64]:
    rows = np.ones(len(columns["vectors"]), np.int64)
    for axis in found.rows[-2:]:
        rows = rows * columns[f"tile_{axis}"]
    return rows


def _tiling(found: Product, target: Target, columns: Columns) -> Tiling:
    stage = found.piece.stage
    one = np.ones(len(columns["vectors"]), np.int64)
    extents = {a.name: one * a.extent for a in stage.axes + stage.reduce}
    tile = {a.name: one for a in stage.axes + stage.reduce}
    tile[found.vector] = np.minimum(columns["vectors"] * target.lanes(4), extents[found.vector])
    for axis in found.rows[-2:]:
        tile[axis] = columns[f"tile_{axis}"]
    tile[stage.reduce[-1].name] = columns["unroll"]
    panel = {**tile, **{a.name: extents[a.name] for a in stage.reduce}}
    chunk = dict(panel)
    blocks = {found.vector: columns["block_columns"]}
    if found.rows:
        blocks[found.rows[0]] = columns["block_rows"]
        for axis in found.rows[1:]:
            blocks[axis] = one * 0
    for axis, block in blocks.items():
        covered = np.where(block == 0, extents[axis], tile[axis] * block)
        chunk[axis] = np.minimum(covered, extents[axis])
    chunks = one
    for spatial in stage.axes:
        chunks = chunks * -(-extents[spatial.name] // chunk[spatial.name])
    return Tiling(stage, (tile, panel, chunk, extents), found.vector, chunks)


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
    return Nest(found.piece, lanes, found.vector, tile, block, unroll, order, edges=found.edges)


def _laid_out(task: Task, found: Product, nest: Nest) -> tuple[Product, list[Buffer], dict[str, Packing], list[Piece]]:
    """The contraction reading its panel in the best layout there is, and what makes that layout."""
    tensor = task.tensor(found.panel.tensor)
    if packable(task, found.panel):
        width = -(-nest.tile_extent(found.vector) // nest.lanes) * nest.lanes
        packing, index = packed(found, tensor, width)
        return found.reading(Load(tensor.name, index, tensor.dtype)), [], {tensor.name: packing}, []
    if contiguous(found.panel, found.vector):
        return found, [], {}, []
    names = free_vars(*found.panel.index)
    axes = [*(n for n in names if n != found.vector), found.vector]
    stage = Stage(
        output="panel",
        axes=tuple(Axis(n, found.extent(n)) for n in axes),
        body=found.panel,
    )
    place = Load("panel", stage.index, tensor.dtype)
    copied = Buffer("panel", tuple(a.extent for a in stage.axes), tensor.dtype)
    return found.reading(place), [copied], {}, [Piece(stage, "panel", stage.index, place)]
