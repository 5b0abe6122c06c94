"""Contraction: matrix product and convolution as one register-tiled loop nest.

The task's main stage is a sum of products of two loads. The output's contiguous axis (`n`) lies along the vector
lanes and belongs to one operand alone, the *panel* (weights, as a rule); scalars of the other operand are broadcast
against its vectors. A constant panel is packed when a model is compiled, so that every vector of it is read in order;
a panel that is computed and not contiguous along `n` is transposed by a phase of its own. Padding, if the task has
any, is a phase before; everything pointwise after the sum is applied to the registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Op, Var, free_vars, transform
from tunewright.codegen.index import linear
from tunewright.codegen.ir import Block, Buffer, Kernel, Packing, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor

from ..loops import lower
from ..nest import Nest
from ..phases import buffer, plain_phase
from ..pieces import Piece, pieces
from ..schedule import Schedule
from ..space import Columns, Knob, Space, Tiling
from ..tile import INNER, TILE

BODY_LIMIT = 1024
"""Multiply-adds in one copy of the innermost body, beyond which the instruction cache suffers."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """The main piece of a task, seen as a product: which axes are what."""

    before: tuple[Piece, ...]
    piece: Piece
    after: tuple[Piece, ...]
    panel: Load  # the operand that varies along the vector axis
    vector: str
    rows: tuple[str, ...]  # axes of the other operand alone, outermost first
    batch: tuple[str, ...]  # axes of both
    columns: tuple[str, ...]  # axes of the panel alone, besides `vector`

    def extent(self, axis: str) -> int:
        """Extent of a spatial or reduction axis."""
        stage = self.piece.stage
        return next(a.extent for a in stage.axes + stage.reduce if a.name == axis)


@lru_cache(maxsize=256)
def contraction(task: Task) -> Contraction | None:
    """The task's product, or None if it has none that suits this sketch."""
    parts = pieces(task)
    main = max(range(len(parts)), key=lambda n: parts[n].stage.points)
    piece = parts[main]
    stage = piece.stage
    match stage.body:
        case Op("mul", (Load() as left, Load() as right), DType.F32) if stage.combiner == "sum":
            pass
        case _:
            return None
    if any(linear(e) is None for load in (left, right) for e in load.index):
        return None
    ways = [_seen(parts, main, left, right, vector) for vector in _last_axes(piece)]
    return max((w for w in ways if w is not None), key=lambda way: _panel_rank(task, way), default=None)


def _last_axes(piece: Piece) -> list[str]:
    """The contiguous axis of what is written, and that of the sum itself, which differs if the result is permuted."""
    last = [index[-1] for index in (piece.index, piece.stage.index) if index]
    return list(dict.fromkeys(e.name for e in last if isinstance(e, Var)))


def _seen(parts: Sequence[Piece], main: int, left: Load, right: Load, vector: str) -> Contraction | None:
    """The product with one axis along the lanes; None if both operands vary along it."""
    stage = parts[main].stage
    in_left, in_right = set(free_vars(left)), set(free_vars(right))
    panel, panel_vars, other_vars = (right, in_right, in_left) if vector in in_right else (left, in_left, in_right)
    axes = [a.name for a in stage.axes if a.name != vector]
    if vector in other_vars or len(axes) == len(stage.axes):
        return None
    return Contraction(
        before=tuple(parts[:main]),
        piece=parts[main],
        after=tuple(parts[main + 1 :]),
        panel=panel,
        vector=vector,
        rows=tuple(a for a in axes if a in other_vars and a not in panel_vars),
        batch=tuple(a for a in axes if a in other_vars and a in panel_vars),
        columns=tuple(a for a in axes if a not in other_vars),
    )


def _panel_rank(task: Task, way: Contraction) -> int:
    """A panel packed beforehand is best, one that must be transposed first worst. Of equals the first is taken."""
    if task.tensor(way.panel.tensor).constant:
        return 2
    return int(_contiguous(way.panel, way.vector))


class ContractionSketch:
    """See the module."""

    name = "contraction"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        found = contraction(task)
        return target.kind == "cpu" and found is not None and found.extent(found.vector) * 2 >= target.lanes(4)

    def space(self, task: Task, target: Target) -> Space:
        found = contraction(task)
        assert found is not None
        lanes = target.lanes(4)
        vectors = -(-found.extent(found.vector) // lanes)
        knobs = [Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors))]
        for axis, limit in zip(reversed(found.rows), (28, 4), strict=False):
            knobs.append(Knob(f"tile_{axis}", tuple(range(1, min(found.extent(axis), limit) + 1))))
        if found.rows:
            knobs.append(Knob("block_rows", _powers(found.extent(found.rows[0]))))
        knobs.append(Knob("block_columns", _powers(vectors)))
        knobs.append(Knob("unroll", tuple(n for n in (1, 2, 4, 8) if n <= found.piece.stage.reduce[-1].extent)))
        knobs.append(Knob("columns_inside", (0, 1)))
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=tuple(knobs),
            legal=lambda columns: _legal(found, target, columns),
            tiling=lambda columns: _tiling(found, target, columns),
            default=Schedule(self.name, self.version, _default(found, target, knobs)),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found = contraction(task)
        assert found is not None
        nest = _nest(found, schedule, target)
        found, scratch, packings, repack = _laid_out(task, found, nest)
        temporaries = [buffer(t) for t in task.temporaries if t.name in {p.output for p in found.before + found.after}]
        steps: list[Stmt] = [plain_phase(p, target) for p in (*found.before, *repack)]
        steps.append(lower(replace(nest, piece=found.piece)))
        steps += [plain_phase(p, target) for p in found.after]
        params = tuple(
            Buffer(t.name, packings[t.name].shape, t.dtype) if t.name in packings else buffer(t)
            for t in task.inputs + task.outputs
        )
        return Kernel(params, (*temporaries, *scratch), Block(tuple(steps)), packings)


def _powers(extent: int) -> tuple[int, ...]:
    """1, 2, 4, ... below the extent, and 0 for all of it."""
    return (0, *(1 << n for n in range(max(extent - 1, 1).bit_length())))


def _default(found: Contraction, target: Target, knobs: list[Knob]) -> tuple[tuple[str, int], ...]:
    """A tile of two vectors by up to six rows, a panel of columns a chunk: sound on any machine, made for none."""
    choices = {knob.name: knob.choices for knob in knobs}
    values = dict.fromkeys(choices, 1) | {"columns_inside": 0}
    values["vectors"] = max(n for n in choices["vectors"] if n <= 2)
    panels = -(-found.extent(found.vector) // (values["vectors"] * target.lanes(4)))
    values["block_columns"] = min(1, panels - 1)
    if found.rows:
        values[f"tile_{found.rows[-1]}"] = min(6, found.extent(found.rows[-1]))
        tiles = -(-found.extent(found.rows[0]) // values.get(f"tile_{found.rows[0]}", 1))
        values["block_rows"] = 0 if panels >= 2 * target.threads else min(1, tiles - 1)
    return tuple(values.items())


def _legal(found: Contraction, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache, and no two points alike."""
    vectors = columns["vectors"]
    rows = _tile_rows(found, columns)
    registers = rows * vectors + vectors + 1
    bodies = rows * vectors * columns["unroll"]
    legal = (registers <= target.vector_registers) & (bodies <= BODY_LIMIT)
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
    order_matters = (rows_inside > 1) & (columns_inside > 1)
    return np.asarray(legal & (order_matters | (columns["columns_inside"] == 0)))


def _tile_rows(found: Contraction, columns: Columns) -> NDArray[np.int64]:
    rows = np.ones(len(columns["vectors"]), np.int64)
    for axis in found.rows[-2:]:
        rows = rows * columns[f"tile_{axis}"]
    return rows


def _tiling(found: Contraction, target: Target, columns: Columns) -> Tiling:
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


def _nest(found: Contraction, schedule: Schedule, target: Target) -> Nest:
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
    return Nest(found.piece, lanes, found.vector, tile, block, unroll, order)


def _laid_out(
    task: Task, found: Contraction, nest: Nest
) -> tuple[Contraction, list[Buffer], dict[str, Packing], list[Piece]]:
    """The contraction reading its panel in the best layout there is, and what makes that layout."""
    inputs = {t.name: t for t in task.inputs}
    tensor = task.tensor(found.panel.tensor)
    plain = [e.name for e in found.panel.index if isinstance(e, Var)]
    simple = len(plain) == len(set(plain)) and all(isinstance(e, Var | Const) for e in found.panel.index)
    uses = sum(x.tensor == tensor.name for p in pieces(task) for x in p.reads)
    if simple and tensor.constant and tensor.name in inputs and uses == 1:
        packing, index = _packed(found, nest, tensor)
        return _reading(found, Load(tensor.name, index, tensor.dtype)), [], {tensor.name: packing}, []
    if _contiguous(found.panel, found.vector):
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
    return _reading(found, place), [copied], {}, [Piece(stage, "panel", stage.index, place)]


def _packed(found: Contraction, nest: Nest, tensor: Tensor) -> tuple[Packing, tuple[Expr, ...]]:
    """Panel layout [batch and other axes, n / width, reduction, n % width], padded with zeros to full vectors."""
    width = -(-nest.tile_extent(found.vector) // nest.lanes) * nest.lanes
    tiles = nest.tiles(found.vector)
    dims = [e.name if isinstance(e, Var) else "" for e in found.panel.index]
    splits = [(tiles, width) if d == found.vector else (tensor.shape[n],) for n, d in enumerate(dims)]
    padded = tuple(prod(s) for s in splits)
    parts: list[tuple[str, Expr]] = []
    for name, e in zip(dims, found.panel.index, strict=True):
        if name == found.vector:
            parts += [(name + TILE, Var(name + TILE)), (name + INNER, Var(name + INNER))]
        else:
            parts.append((name, e))
    reduction = {a.name for a in found.piece.stage.reduce}

    def rank(part: int) -> int:
        name = parts[part][0]
        return 3 if name.endswith(INNER) else 2 if name in reduction else 1 if name.endswith(TILE) else 0

    order = sorted(range(len(parts)), key=lambda part: (rank(part), part))
    packing = Packing(tuple(range(len(dims))), padded, tuple(splits), tuple(order))
    return packing, tuple(parts[part][1] for part in order)


def _reading(found: Contraction, panel: Load) -> Contraction:
    stage = found.piece.stage
    body = transform(stage.body, lambda node: panel if node == found.panel else node)
    return replace(found, piece=replace(found.piece, stage=replace(stage, body=body)), panel=panel)


def _contiguous(load: Load, axis: str) -> bool:
    """Whether neighbours along the axis are neighbours in memory."""
    last = linear(load.index[-1])
    return last is not None and last.coefficients.get(axis) == 1 and axis not in free_vars(*load.index[:-1])
