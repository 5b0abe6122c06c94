"""Nest: register-tiled loops for one piece, the part that all CPU sketches share.

    parallel chunk                     pieces of the output, shared by the threads
      tile loops (order)               origins of register tiles inside the chunk
        if full / if tail              an odd extent is a second, smaller tile
          acc[tile] = identity         register buffer, one vector a lane group
          reduce loops                 the innermost unrolled
            acc[tile] = fold(acc[tile], body)
          output[tile] = finish(acc[tile])

One axis lies along the vector lanes: either a spatial axis, or a reduction axis, whose partial results are folded
across the lanes at the end. A load that does not depend on all axes of the tile is made once and kept in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Op, Ramp, Var, const, free_vars, loads, op, substitute, transform
from tunewright.codegen.index import vectorize
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, LoopKind, Scope, Stmt, Store
from tunewright.graph.task import COMBINERS, IDENTITIES

from .pieces import Piece

TILE, INNER = ".tile", ".in"
"""Suffixes of the variables that an expression may use beside an axis: the number of its tile, the place inside it."""


@dataclass(frozen=True, slots=True)
class Nest:
    """How the loops of one piece are tiled. Axes that a mapping leaves out have 1."""

    piece: Piece
    lanes: int
    vector: str  # the axis along the lanes: spatial or reduction; empty for scalar code
    tile: Mapping[str, int]  # spatial axis -> extent of the register tile
    block: Mapping[str, int]  # spatial axis -> tiles in one parallel chunk; 0 for all
    unroll: Mapping[str, int]  # reduction axis -> copies of its body (of vectors, for the axis along the lanes)
    order: tuple[str, ...] = ()  # tile loops of a chunk, outermost first; empty: as the axes are
    fixed: frozenset[str] = frozenset()  # axes whose loops are the caller's

    def tiles(self, axis: str) -> int:
        """Number of tiles along a spatial axis, the smaller last one included."""
        return -(-self.extent(axis) // self.tile_extent(axis))

    def tile_extent(self, axis: str) -> int:
        """Extent of a full register tile."""
        return min(self.tile.get(axis, 1), self.extent(axis))

    def tiles_per_chunk(self, axis: str) -> int:
        """How many tiles along the axis belong to one chunk."""
        return min(self.block.get(axis, 1) or self.tiles(axis), self.tiles(axis))

    def chunks(self, axis: str) -> int:
        """Number of chunks along a spatial axis."""
        return -(-self.tiles(axis) // self.tiles_per_chunk(axis))

    def with_chunks(self, points: int) -> Nest:
        """The same nest with chunks that evaluate the body about `points` times: whole inner axes, a block of one."""
        block: dict[str, int] = {}
        covered = prod(a.extent for a in self.piece.stage.reduce)
        for axis in reversed(self.spatial):
            extent = self.extent(axis)
            whole = covered * extent <= points
            block[axis] = 0 if whole else max(1, points // (covered * self.tile_extent(axis)))
            covered *= extent
        return replace(self, block=block)

    def extent(self, axis: str) -> int:
        """Extent of a spatial axis."""
        return next(a.extent for a in self.piece.stage.axes if a.name == axis)

    @property
    def spatial(self) -> tuple[str, ...]:
        """The axes whose loops are made here, in the order of the stage."""
        return tuple(a.name for a in self.piece.stage.axes if a.name not in self.fixed)


def lower(nest: Nest) -> Stmt:
    """The loops of a nest. With fixed axes, or one chunk, there is no parallel loop."""
    total = prod(nest.chunks(a) for a in nest.spatial)
    parallel = total > 1 and not nest.fixed
    numbers: dict[str, Expr] = {}
    stride = total
    for axis in nest.spatial:
        count = nest.chunks(axis)
        stride //= count
        if count == 1:
            numbers[axis] = const(0)
        elif parallel:
            outer = Var("chunk") // stride
            numbers[axis] = outer if stride * count == total else outer % count
        else:
            numbers[axis] = Var(f"{axis}.chunk")
    body = _tile_loops(nest, numbers)
    if parallel:
        return For("chunk", total, body, LoopKind.PARALLEL)
    for axis in reversed(nest.spatial):
        if nest.chunks(axis) > 1:
            body = For(f"{axis}.chunk", nest.chunks(axis), body)
    return body


def _tile_loops(nest: Nest, chunk: Mapping[str, Expr]) -> Stmt:
    tile = {}
    for axis in nest.spatial:
        inside = nest.tiles_per_chunk(axis)
        step = Var(axis + TILE) if inside > 1 else const(0)
        tile[axis] = chunk[axis] * inside + step
    body = _variants(nest, tile, nest.spatial, {})
    for axis in reversed(nest.order or nest.spatial):
        if nest.tiles_per_chunk(axis) > 1:
            body = For(axis + TILE, nest.tiles_per_chunk(axis), body)
    return body


def _variants(nest: Nest, tile: Mapping[str, Expr], axes: Sequence[str], sizes: dict[str, int]) -> Stmt:
    """The tile body once for full tiles and once for the smaller last one, along each axis."""
    if not axes:
        return _Tile(nest, tile, sizes).lower()
    axis, *rest = axes
    extent, size = nest.extent(axis), nest.tile_extent(axis)
    full, tail = divmod(extent, size)
    whole = _variants(nest, tile, rest, {**sizes, axis: size})
    if tail:
        part = _variants(nest, tile, rest, {**sizes, axis: tail})
        return Block((If(op("lt", tile[axis], full), whole), If(op("eq", tile[axis], full), part)))
    if nest.chunks(axis) * nest.tiles_per_chunk(axis) > full:
        return If(op("lt", tile[axis], full), whole)
    return whole


class _Tile:
    """One register tile of known sizes: initialise, reduce, finish."""

    def __init__(self, nest: Nest, tile: Mapping[str, Expr], sizes: Mapping[str, int]) -> None:
        self.nest, self.sizes = nest, sizes
        self.stage = nest.piece.stage
        self.lanes = nest.lanes
        self.spatial_vector = nest.vector if nest.vector in sizes else ""
        self.loops = [a for a in nest.spatial if sizes[a] > 1 and a != self.spatial_vector]
        self.acc = self._register("acc", [*self.loops], self.stage.body.dtype)
        self.places: dict[str, Expr] = {}
        for axis in nest.spatial:
            inner = Var(axis + INNER) if axis in self.loops or axis == self.spatial_vector else const(0)
            self.places[axis] = tile[axis] * nest.tile_extent(axis) + inner
            self.places[axis + TILE] = tile[axis]
            self.places[axis + INNER] = inner

    def lower(self) -> Stmt:
        piece = self.nest.piece
        if not self.stage.reduce:
            value = transform(piece.finish, lambda x: self.stage.body if self._is_result(x) else x)
            return self._each(value, self._write)
        if self.nest.vector and not self.spatial_vector:
            return _LaneReduction(self).lower()
        initial = self._each(identity(self.stage.combiner, self.acc.dtype), self._set)
        fold = self._each(self.stage.body, self._fold)
        for axis in reversed(self.stage.reduce):
            fold = self._reduce_loop(axis.name, axis.extent, fold)
        finish = transform(piece.finish, lambda x: self._result() if self._is_result(x) else x)
        return Alloc(self.acc, Block((initial, fold, self._each(finish, self._write))))

    def _reduce_loop(self, axis: str, extent: int, body: Stmt) -> Stmt:
        copies = min(self.nest.unroll.get(axis, 1), extent)
        return unrolled_loop(axis, extent, copies, body)

    def _is_result(self, node: Expr) -> bool:
        return isinstance(node, Load) and node.tensor == self.stage.output

    def _register(self, name: str, loops: list[str], dtype: DType, vector: bool = True) -> Buffer:
        shape = [self.sizes[a] for a in loops]
        if vector and self.spatial_vector:
            shape.append(self._vectors() * self.lanes)
        return Buffer(name, tuple(shape) or (1,), dtype, Scope.REGISTER)

    def _vectors(self) -> int:
        return -(-self.sizes[self.spatial_vector] // self.lanes)

    def _element(self, buffer: Buffer, loops: list[str], vector: bool = True) -> Load:
        index: list[Expr] = [Var(a + INNER) for a in loops]
        if vector and self.spatial_vector:
            index.append(Var(self.spatial_vector + INNER))
        return Load(buffer.name, tuple(index) or (const(0),), buffer.dtype)

    def _result(self) -> Load:
        return self._element(self.acc, self.loops)

    def _set(self, value: Expr, count: int | None) -> Stmt:
        return self._store_register(self._result(), value)

    def _fold(self, value: Expr, count: int | None) -> Stmt:
        return self._store_register(self._result(), folded(self.stage.combiner, self._lane(self._result()), value))

    def _write(self, value: Expr, count: int | None) -> Stmt:
        piece = self.nest.piece
        index = tuple(self._lane(substitute(e, self.places), None) for e in piece.index)
        return Store(piece.output, index, value, count if any(e.lanes > 1 for e in index) else None)

    def _store_register(self, place: Load, value: Expr) -> Stmt:
        target = self._lane(place)
        assert isinstance(target, Load)
        return Store(target.tensor, target.index, value)

    # The vector that is being written while `_each` runs: its first place in the tile and its lanes in use.
    _base: int = 0
    _count: int | None = None

    def _lane(self, value: Expr, count: int | None = None) -> Expr:
        """Lay an expression along the lanes of the current vector."""
        if not self.spatial_vector:
            return value
        laid = vectorize(value, self.spatial_vector + INNER, const(self._base), self.lanes, count)
        return transform(laid, _without_count)

    def _each(self, value: Expr, write: Callable[[Expr, int | None], Stmt]) -> Stmt:
        """`write` for every vector of the tile, with the loads of `value` made as few times as possible."""
        value = substitute(value, self.places)
        staged = self._staged(value)
        value = transform(value, lambda x: staged[x][1] if isinstance(x, Load) and x in staged else x)
        body = self._each_vector(value, write)
        for depth in range(len(self.loops), -1, -1):
            body = self._with_loads(staged, depth, body)
            if depth:
                axis = self.loops[depth - 1]
                body = For(axis + INNER, self.sizes[axis], body, LoopKind.UNROLL)
        return body

    def _each_vector(self, value: Expr, write: Callable[[Expr, int | None], Stmt]) -> Stmt:
        if not self.spatial_vector:
            return write(value, None)
        parts = []
        for n in range(self._vectors()):
            left = self.sizes[self.spatial_vector] - n * self.lanes
            self._base, self._count = n * self.lanes, left if left < self.lanes else None
            parts.append(write(self._lane(value, self._count), self._count))
        return Block(tuple(parts))

    def _staged(self, value: Expr) -> dict[Load, tuple[int, Load, list[str]]]:
        """Loads to make early: load -> (number of tile loops around it, its register, loops it is repeated over)."""
        staged: dict[Load, tuple[int, Load, list[str]]] = {}
        nested = {x for outer in loads(value) for x in loads(*outer.index)}
        for load in loads(value):
            names = free_vars(load)
            own = [a for a in self.loops if a + INNER in names]
            vector = self.spatial_vector + INNER in names
            depth = next((n for n, a in enumerate(self.loops) if a not in own), len(self.loops))
            rest = [a for a in own if a not in self.loops[:depth]]
            everywhere = depth == len(self.loops) and (vector or not self.spatial_vector)
            if everywhere or load.tensor == self.acc.name or load in nested or any(loads(i) for i in load.index):
                continue
            buffer = self._register(f"x{len(staged)}", rest, load.dtype, vector)
            staged[load] = (depth, self._element(buffer, rest, vector), rest)
        return staged

    def _with_loads(self, staged: Mapping[Load, tuple[int, Load, list[str]]], depth: int, body: Stmt) -> Stmt:
        early = [(load, place, rest) for load, (d, place, rest) in staged.items() if d == depth]
        fetches = [self._fetch(load, place, rest) for load, place, rest in early]
        for load, place, rest in early:
            vector = len(place.index) > len(rest) and isinstance(place.index[-1], Var)
            buffer = self._register(place.tensor, rest, load.dtype, vector)
            body = Alloc(buffer, Block((*fetches, body)) if (load, place, rest) == early[0] else body)
        return body

    def _fetch(self, load: Load, place: Load, rest: list[str]) -> Stmt:
        if self.spatial_vector and self.spatial_vector + INNER in free_vars(load):
            body = self._each_vector(load, lambda value, _: self._store_register(place, value))
        else:
            body = Store(place.tensor, place.index, load)
        for axis in reversed(rest):
            body = For(axis + INNER, self.sizes[axis], body, LoopKind.UNROLL)
        return body


class _LaneReduction:
    """A tile whose reduction runs along the lanes: vectors of partial results, folded across the lanes at the end."""

    def __init__(self, tile: _Tile) -> None:
        self.tile = tile
        self.stage = tile.stage
        self.axis = next(a for a in self.stage.reduce if a.name == tile.nest.vector)
        self.lanes = tile.lanes
        wanted = max(1, tile.nest.unroll.get(self.axis.name, 1))
        self.vectors = min(wanted, -(-self.axis.extent // self.lanes))
        shape = (*(tile.sizes[a] for a in tile.loops), self.vectors * self.lanes)
        self.acc = Buffer("acc", shape, self.stage.body.dtype, Scope.REGISTER)
        self.total = tile.acc

    def lower(self) -> Stmt:
        combiner = self.stage.combiner
        start = identity(combiner, self.acc.dtype)
        initial = Block(tuple(Store("acc", self._place(n), start) for n in range(self.vectors)))
        rename = Buffer("total", self.total.shape, self.total.dtype, Scope.REGISTER)
        total = Load("total", self.tile._result().index, rename.dtype)
        piece = self.tile.nest.piece
        finish = transform(piece.finish, lambda x: total if self.tile._is_result(x) else x)
        value: Expr = Load("acc", self._place(0), self.acc.dtype)
        for n in range(1, self.vectors):
            value = op(COMBINERS[combiner], value, Load("acc", self._place(n), self.acc.dtype))
        across = Store("total", total.index, op(ACROSS[combiner], value))
        steps = (self._repeat(initial), self._reduction(), self._repeat(across))
        return Alloc(self.acc, Alloc(rename, Block((*steps, self.tile._each(finish, self.tile._write)))))

    def _place(self, vector: int) -> tuple[Expr, ...]:
        return (*(Var(a + INNER) for a in self.tile.loops), Ramp(const(vector * self.lanes), self.lanes))

    def _repeat(self, body: Stmt) -> Stmt:
        for axis in reversed(self.tile.loops):
            body = For(axis + INNER, self.tile.sizes[axis], body, LoopKind.UNROLL)
        return body

    def _reduction(self) -> Stmt:
        step = self.vectors * self.lanes
        rounds, rest = divmod(self.axis.extent, step)
        parts: list[Stmt] = []
        if rounds:
            start = Var(self.axis.name) * step if rounds > 1 else const(0)
            body = self._repeat(Block(tuple(self._fold(start, n, None) for n in range(self.vectors))))
            parts.append(For(self.axis.name, rounds, body) if rounds > 1 else body)
        for n in range(-(-rest // self.lanes)):
            left = rest - n * self.lanes
            count = left if left < self.lanes else None
            parts.append(self._repeat(self._fold(const(rounds * step), n, count)))
        body = Block(tuple(parts))
        for axis in reversed(self.stage.reduce):
            if axis is not self.axis:
                body = self.tile._reduce_loop(axis.name, axis.extent, body)
        return body

    def _fold(self, start: Expr, vector: int, count: int | None) -> Stmt:
        body = substitute(self.stage.body, self.tile.places)
        value = vectorize(body, self.axis.name, start + vector * self.lanes, self.lanes, count)
        old = Load("acc", self._place(vector), self.acc.dtype)
        new = folded(self.stage.combiner, old, value)
        if count is not None:
            new = op("select", op("lt", Ramp(const(0), self.lanes), count), new, old)
        return Store("acc", self._place(vector), new)


ACROSS = {"sum": "hsum", "max": "hmax", "min": "hmin", "prod": "hprod"}
"""The op that folds a combiner across the lanes of one vector."""


def unrolled_loop(var: str, extent: int, copies: int, body: Stmt) -> Stmt:
    """`for var < extent: body` with `copies` bodies in a row, and what does not divide after it."""
    if copies >= extent:
        return For(var, extent, body, LoopKind.UNROLL)
    if copies == 1:
        return For(var, extent, body)
    rounds, rest = divmod(extent, copies)

    def copied(start: Expr, count: int) -> Stmt:
        return For(f"{var}.copy", count, replaced(body, var, start + Var(f"{var}.copy")), LoopKind.UNROLL)

    parts: list[Stmt] = [For(f"{var}.round", rounds, copied(Var(f"{var}.round") * copies, copies))]
    if rest:
        parts.append(copied(const(rounds * copies), rest))
    return Block(tuple(parts))


def replaced(stmt: Stmt, var: str, value: Expr) -> Stmt:
    """The statement with a variable replaced in every expression."""
    values = {var: value}
    match stmt:
        case Block(body):
            return Block(tuple(replaced(s, var, value) for s in body))
        case For(name, extent, inner, kind):
            return For(name, extent, replaced(inner, var, value), kind)
        case If(condition, then):
            return If(substitute(condition, values), replaced(then, var, value))
        case Alloc(buffer, inner):
            return Alloc(buffer, replaced(inner, var, value))
        case Store(tensor, index, stored, count):
            return Store(tensor, tuple(substitute(e, values) for e in index), substitute(stored, values), count)


def folded(combiner: str, total: Expr, value: Expr) -> Expr:
    """`total` joined with one more value; a float product joins a sum as a fused multiply-add."""
    match combiner, value:
        case "sum", Op("mul", (left, right), dtype) if dtype.is_float:
            return op("fma", left, right, total)
        case _:
            return op(COMBINERS[combiner], total, value)


def identity(combiner: str, dtype: DType) -> Const:
    """What a fold starts from, in the element type."""
    value = IDENTITIES[combiner]
    if dtype.is_float or np.isfinite(value):
        return Const(value if dtype.is_float else int(value), dtype)
    limits = np.iinfo(dtype.numpy)
    return Const(int(limits.min if value < 0 else limits.max), dtype)


def _without_count(node: Expr) -> Expr:
    """Registers are read whole: lanes out of use hold zeros, and a masked read would keep them in memory."""
    if isinstance(node, Load) and (node.tensor in ("acc", "total") or node.tensor.startswith("x")):
        return Load(node.tensor, node.index, node.dtype)
    return node
