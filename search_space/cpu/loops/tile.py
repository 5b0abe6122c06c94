"""Tile: one register tile of a nest, of known sizes: initialise, reduce, finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import (
    Const,
    Expr,
    Load,
    Ramp,
    Var,
    const,
    free_vars,
    loads,
    op,
    substitute,
    transform,
    variables,
)
from tunewright.codegen.expr.index import form
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    replace_variables,
)
from tunewright.graph.task import COMBINERS, Axis, fold_value, identity

from ...axes import TileRun
from ...patterns.window_dim import WindowDim, inside_condition
from ...registers import ACC, HOIST, INNER, RESULT, TILE, TOTAL
from .nest import Nest

Hoists = dict[Load, tuple[int, Load, list[str]]]
"""Hoisted loads: load -> (tile loops around it, its register, loops that it is repeated over)."""


@dataclass(frozen=True, slots=True)
class TileVector:
    """One vector of a tile: its first index along the vector axis, and its lanes in use, None for all."""

    base: int
    count: int | None


def tile_vectors(extent: int, lanes: int) -> list[TileVector]:
    """The vectors that cover an extent."""
    return [TileVector(base, extent - base if extent - base < lanes else None) for base in range(0, extent, lanes)]


class Tile:
    """One register tile of known sizes: initialise, reduce, finish."""

    def __init__(self, nest: Nest, tile: Mapping[str, Expr], runs: Mapping[str, TileRun]) -> None:
        self.nest, self.runs = nest, runs
        self.sizes = {axis: run.size for axis, run in runs.items()}
        sizes = self.sizes
        self.stage = nest.fused_stage.stage
        self.lanes = nest.lanes
        self.spatial_vector = nest.vector if nest.vector in sizes else ""
        self.loops = [a for a in nest.spatial if sizes[a] > 1 and a != self.spatial_vector]
        self.acc = self._register(ACC, self.loops, self.stage.body.dtype)
        self.spans: Mapping[str, tuple[int, int]] = {}  # of indices of the tile that a body is for, if not all
        self._bodies: dict[object, tuple[Hoists, Stmt]] = {}  # shared by bodies for other indices of the tile
        self._fetches: dict[tuple[Load, Load], Stmt] = {}
        self.places: dict[str, Expr] = {}
        for axis in nest.spatial:
            inner = Var(axis + INNER) if axis in self.loops or axis == self.spatial_vector else const(0)
            self.places[axis] = tile[axis] * runs[axis].size + runs[axis].offset + inner
            self.places[axis + TILE] = tile[axis]
            self.places[axis + INNER] = inner

    def lower(self) -> Stmt:
        fused_stage = self.nest.fused_stage
        if not self.stage.reduce:
            value = fused_stage.apply_epilogue(self.stage.body)
            return self.each(value, self.write)
        if self.nest.vector and not self.spatial_vector:
            return LaneReduction(self).lower()
        initial = self.each(Const(identity(self.stage.combiner, self.acc.dtype), self.acc.dtype), self._set)
        fold = self._reduction(self.stage.reduce, {})
        return Alloc(self.acc, Block((initial, fold, self._write_all(fused_stage.apply_epilogue(self.result())))))

    def _write_all(self, value: Expr) -> Stmt:
        """Write the results; through registers, where the output is contiguous along another axis of the tile."""
        fused_stage = self.nest.fused_stage
        place = Load(fused_stage.output, tuple(substitute(e, self.places) for e in fused_stage.index), value.dtype)
        axis = self._crossing_axis(place)
        if not axis:
            is_crossing = self.nest.compact and self.spatial_vector + INNER in free_vars(*place.index[:-1])
            return self._one_by_one(value, place) if is_crossing else self.each(value, self.write)
        buffer, kind = self._register(RESULT, self.loops, value.dtype), LoopKind.UNROLL
        if self.nest.compact:
            buffer, kind = replace(buffer, scope=Scope.SHARED), LoopKind.SERIAL
        element = self._element(buffer, self.loops)
        store = self.each(value, lambda part, at: self._keep(element, part, at))
        body: Stmt = Block(tuple(self._transpose_store(element, place, axis, kind)))
        for other in reversed([a for a in self.loops if a != axis]):
            body = For(other + INNER, self.sizes[other], body, kind)
        return Alloc(buffer, Block((store, body)))

    def _one_by_one(self, value: Expr, place: Load) -> Stmt:
        """Write the results element by element, through memory: a loop has less code than copies."""
        axis = self.spatial_vector
        buffer = replace(self._register(RESULT, self.loops, value.dtype), scope=Scope.SHARED)
        element = self._element(buffer, self.loops)
        store = self.each(value, lambda part, at: self._keep(element, part, at))
        body: Stmt = Store(place.tensor, place.index, element)
        for other in reversed(self.loops):
            body = self._over(other, body)
        return Alloc(buffer, Block((store, For(axis + INNER, self.sizes[axis], body))))

    def _transpose_store(self, element: Load, place: Load, axis: str, kind: LoopKind) -> Iterator[Stmt]:
        """Transpose vectors along the lanes into vectors along an axis, and write them."""
        whole, rest = divmod(self.sizes[self.spatial_vector], self.lanes)
        number = f"{self.spatial_vector}.part"
        if whole:
            squares = self._squares(element, place, axis, Var(number) * self.lanes, None)
            yield For(number, whole, Block(tuple(squares)), kind)
        if rest:
            yield from self._squares(element, place, axis, const(whole * self.lanes), rest)

    def _squares(self, element: Load, place: Load, axis: str, base: Expr, count: int | None) -> Iterator[Stmt]:
        """One vector along the lanes at each index along an axis, as vectors along that axis."""
        lane, other = self.spatial_vector + INNER, axis + INNER
        vector = transform(vectorize(element, lane, base, self.lanes, count), read_whole)
        for across in tile_vectors(self.sizes[axis], self.lanes):
            last = self.sizes[axis] - 1
            rows = [substitute(vector, {other: const(min(across.base + n, last))}) for n in range(self.lanes)]
            index = [vectorize(e, other, const(across.base), self.lanes, across.count) for e in place.index]
            for n, value in enumerate(transpose(rows)[:count]):
                at = tuple(substitute(e, {lane: base + n}) for e in index)
                yield Store(place.tensor, at, value, across.count)

    def _reduction(self, axes: Sequence[Axis], spans: Mapping[str, tuple[int, int]]) -> Stmt:
        """The loops over reduction axes. `spans` are the indices of the tile that edges leave."""
        if not axes:
            return self._folds(spans)
        axis, *rest = axes
        edge = next((e for e in self.nest.edges if e.tap == axis.name), None)
        if edge is None or edge.is_always_inside(self.runs[edge.axis]):
            return self.reduce_loop(axis.name, axis.extent, self._reduction(rest, spans))
        run = self.runs[edge.axis]
        if run.count > 1:
            steps = [
                self._where(edge, span, self._reduction(rest, {**spans, edge.axis: span})) for span in edge.spans(run)
            ]
            return For(axis.name, axis.extent, Block(tuple(steps)))
        steps = []
        for taps in edge.groups(run.start, run.size):
            self.places[axis.name] = Var(axis.name) + taps.first
            body = self._reduction(rest, {**spans, edge.axis: taps.span})
            steps.append(self.reduce_loop(axis.name, taps.count, body))
        self.places.pop(axis.name, None)
        return Block(tuple(steps))

    def _where(self, edge: WindowDim, span: tuple[int, int], body: Stmt) -> Stmt:
        """Guard a body to the tiles of which exactly these indices read inside."""
        condition = substitute(inside_condition(edge, self.runs[edge.axis], span, edge.axis + TILE), self.places)
        return body if condition == const(True) else If(condition, body)

    def _folds(self, spans: Mapping[str, tuple[int, int]]) -> Stmt:
        """One evaluation of the body for each index of the tile that is left."""
        everywhere, self.spans = self.places, spans
        offsets = {axis + INNER: self._inner(axis) for axis, (first, _) in spans.items() if first}
        if offsets:
            self.places = {name: substitute(place, offsets) for name, place in everywhere.items()}
        body = Block((*self._prefetches(), self.each(self.stage.body, self._fold)))
        self.places, self.spans = everywhere, {}
        return body

    def _inner(self, axis: str) -> Expr:
        """The index inside of the tile along an axis."""
        first, _ = self.spans.get(axis, (0, 0))
        return Var(axis + INNER) + first

    def _over(self, axis: str, body: Stmt) -> Stmt:
        """The body for each index of the tile along an axis that is left."""
        first, last = self.spans.get(axis, (0, self.sizes[axis]))
        return For(axis + INNER, last - first, body, LoopKind.UNROLL)

    def _prefetches(self) -> list[Stmt]:
        """Prefetch what the innermost reduction reads in order, vector by vector, from far away.

        Processors see such a stream too, but lose it at the end of each page of memory.
        """
        if not self.spatial_vector:
            return []
        axis = self.stage.reduce[-1].name
        steps: list[Stmt] = []
        for load in loads(self.stage.body):
            distance = self.nest.prefetch.get(load.tensor, 0)
            for part in tile_vectors(self.sizes[self.spatial_vector], self.lanes) if distance else ():
                places = {**self.places, axis: self.places.get(axis, Var(axis)) + distance}
                first = {self.spatial_vector + INNER: const(part.base)}
                index = tuple(substitute(substitute(e, places), first) for e in load.index)
                steps.append(Prefetch(load.tensor, index))
        return steps

    def reduce_loop(self, axis: str, extent: int, body: Stmt) -> Stmt:
        copies = min(self.nest.unroll.get(axis, 1), extent)
        return unrolled_loop(axis, extent, copies, body)

    def _register(self, name: str, loops: list[str], dtype: DType, vector: bool = True) -> Buffer:
        shape = [self.sizes[a] for a in loops]
        if vector and self.spatial_vector:
            shape.append(self._vectors() * self.lanes)
        return Buffer(name, tuple(shape) or (1,), dtype, Scope.REGISTER)

    def _vectors(self) -> int:
        return -(-self.sizes[self.spatial_vector] // self.lanes)

    def _element(self, buffer: Buffer, loops: list[str], vector: bool = True) -> Load:
        index = [self._inner(axis) for axis in loops]
        if vector and self.spatial_vector:
            index.append(Var(self.spatial_vector + INNER))
        return Load(buffer.name, tuple(index) or (const(0),), buffer.dtype)

    def result(self) -> Load:
        return self._element(self.acc, self.loops)

    def _set(self, value: Expr, part: TileVector) -> Stmt:
        return self._keep(self.result(), value, part)

    def _fold(self, value: Expr, part: TileVector) -> Stmt:
        total = self._vectorize(self.result(), part)
        return self._keep(self.result(), fold_value(self.stage.combiner, total, value), part)

    def write(self, value: Expr, part: TileVector) -> Stmt:
        fused_stage = self.nest.fused_stage
        index = tuple(self._vectorize(substitute(e, self.places), part) for e in fused_stage.index)
        return Store(fused_stage.output, index, value, part.count if any(e.lanes > 1 for e in index) else None)

    def _keep(self, place: Load, value: Expr, part: TileVector) -> Stmt:
        """Store to a register. All lanes of it: those out of use do no harm."""
        target = self._vectorize(place, part)
        assert isinstance(target, Load)
        return Store(target.tensor, target.index, value)

    def _vectorize(self, value: Expr, part: TileVector) -> Expr:
        """Vectorise an expression along the lanes of one vector."""
        if not self.spatial_vector:
            return value
        vector = vectorize(value, self.spatial_vector + INNER, const(part.base), self.lanes, part.count)
        return vector if part.count is None else transform(vector, read_whole)

    def each(self, value: Expr, write: Callable[[Expr, TileVector], Stmt]) -> Stmt:
        """Call `write` for every vector of the tile, with loads of `value` hoisted as far as possible."""
        value = substitute(value, self.places)
        key = value, write, tuple((axis, first) for axis, (first, _) in self.spans.items())
        if key not in self._bodies:
            hoists = self._hoists(value)
            value = transform(value, lambda x: hoists[x][1] if isinstance(x, Load) and x in hoists else x)
            self._bodies[key] = hoists, self.each_vector(value, write)
        hoists, body = self._bodies[key]
        for depth in range(len(self.loops), -1, -1):
            body = self._with_loads(hoists, depth, body)
            if depth:
                body = self._over(self.loops[depth - 1], body)
        return body

    def each_vector(self, value: Expr, write: Callable[[Expr, TileVector], Stmt]) -> Stmt:
        if not self.spatial_vector:
            return write(value, TileVector(0, None))
        parts = tile_vectors(self.sizes[self.spatial_vector], self.lanes)
        return Block(tuple(write(self._vectorize(value, part), part) for part in parts))

    def _hoists(self, value: Expr) -> Hoists:
        """The loads to hoist out of loops of the tile."""
        hoists: Hoists = {}
        nested = {x for outer in loads(value) for x in loads(*outer.index)}
        for load in loads(value):
            names = variables(load)
            own = [a for a in self.loops if a + INNER in names]
            vector = self.spatial_vector + INNER in names
            crossed = self._crossing_axis(load)
            depth = next((n for n, a in enumerate(self.loops) if a not in own or a == crossed), len(self.loops))
            rest = [a for a in own if a not in self.loops[:depth]]
            everywhere = depth == len(self.loops) and (vector or not self.spatial_vector)
            if everywhere or load.tensor == self.acc.name or load in nested or any(loads(i) for i in load.index):
                continue
            buffer = self._register(f"{HOIST}{len(hoists)}", rest, load.dtype, vector)
            hoists[load] = (depth, self._element(buffer, rest, vector), rest)
        return hoists

    def _with_loads(self, hoists: Hoists, depth: int, body: Stmt) -> Stmt:
        early = [(load, place, rest) for load, (d, place, rest) in hoists.items() if d == depth]
        fetches = [self._fetch(load, place, rest) for load, place, rest in early]
        for load, place, rest in early:
            vector = len(place.index) > len(rest) and isinstance(place.index[-1], Var)
            buffer = self._register(place.tensor, rest, load.dtype, vector)
            body = Alloc(buffer, Block((*fetches, body)) if (load, place, rest) == early[0] else body)
        return body

    def _crossing_axis(self, load: Load) -> str:
        """The axis of the tile along which a load is contiguous, where it isn't along the lanes; "" if none is.

        It is worth a transposition in registers where the tile is half as long as a vector at least; a quarter, where
        little code is wanted.
        """
        lanes = self.spatial_vector + INNER
        if not self.spatial_vector or lanes not in variables(load):
            return ""
        *outer, last = load.index
        if lanes in variables(last):
            return ""
        parts = 4 if self.nest.compact else 2
        for axis in self.loops:
            name = axis + INNER
            alone = form(last).terms.get(Var(name)) == 1 and not any(name in variables(e) for e in outer)
            if alone and parts * self.nest.tile_extent(axis) >= self.lanes and not loads(*load.index):
                return axis
        return ""

    def _transpose_load(self, load: Load, place: Load, axis: str) -> Stmt:
        """Load vectors along an axis, and transpose them into vectors along the lanes."""
        steps: list[Stmt] = []
        lane, other = self.spatial_vector + INNER, axis + INNER
        for part in tile_vectors(self.sizes[self.spatial_vector], self.lanes):
            for across in tile_vectors(self.sizes[axis], self.lanes):
                count = part.count or self.lanes
                vector = vectorize(load, other, const(across.base), self.lanes, across.count)
                vectors = [substitute(vector, {lane: const(part.base + min(n, count - 1))}) for n in range(self.lanes)]
                for n, value in enumerate(transpose(vectors)[: across.count]):
                    index = tuple(substitute(e, {other: const(across.base + n)}) for e in place.index)
                    target = self._vectorize(Load(place.tensor, index, place.dtype), part)
                    assert isinstance(target, Load)
                    steps.append(Store(target.tensor, target.index, value))
        return Block(tuple(steps))

    def _fetch(self, load: Load, place: Load, rest: list[str]) -> Stmt:
        crossed = self._crossing_axis(load)
        key = load, place
        if key not in self._fetches:
            if crossed:
                body = self._transpose_load(load, place, crossed)
            elif self.spatial_vector and self.spatial_vector + INNER in variables(load):
                body = self.each_vector(load, lambda value, part: self._keep(place, value, part))
            else:
                body = Store(place.tensor, place.index, load)
            self._fetches[key] = body
        body = self._fetches[key]
        for axis in reversed([axis for axis in rest if axis != crossed]):
            body = self._over(axis, body)
        return body


class LaneReduction:
    """A tile whose reduction runs along the lanes: vectors of partial results, folded across the lanes at the end."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.stage = tile.stage
        self.axis = next(a for a in self.stage.reduce if a.name == tile.nest.vector)
        self.lanes = tile.lanes
        vectors = max(1, tile.nest.unroll.get(self.axis.name, 1))
        self.vectors = min(vectors, -(-self.axis.extent // self.lanes))
        shape = (*(tile.sizes[a] for a in tile.loops), self.vectors * self.lanes)
        self.acc = Buffer(ACC, shape, self.stage.body.dtype, Scope.REGISTER)
        self.total = tile.acc

    def lower(self) -> Stmt:
        combiner = self.stage.combiner
        start = Const(identity(combiner, self.acc.dtype), self.acc.dtype)
        initial = Block(tuple(Store(ACC, self._place(n), start) for n in range(self.vectors)))
        rename = Buffer(TOTAL, self.total.shape, self.total.dtype, Scope.REGISTER)
        total = Load(TOTAL, self.tile.result().index, rename.dtype)
        fused_stage = self.tile.nest.fused_stage
        epilogue = fused_stage.apply_epilogue(total)
        value: Expr = Load(ACC, self._place(0), self.acc.dtype)
        for n in range(1, self.vectors):
            value = op(COMBINERS[combiner], value, Load(ACC, self._place(n), self.acc.dtype))
        across = Store(TOTAL, total.index, op(ACROSS[combiner], value))
        steps = (self._repeat(initial), self._reduction(), self._repeat(across))
        return Alloc(self.acc, Alloc(rename, Block((*steps, self.tile.each(epilogue, self.tile.write)))))

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
                body = self.tile.reduce_loop(axis.name, axis.extent, body)
        return body

    def _fold(self, start: Expr, vector: int, count: int | None) -> Stmt:
        body = substitute(self.stage.body, self.tile.places)
        value = vectorize(body, self.axis.name, start + vector * self.lanes, self.lanes, count)
        old = Load(ACC, self._place(vector), self.acc.dtype)
        new = fold_value(self.stage.combiner, old, value)
        if count is not None:
            new = op("select", op("lt", Ramp(const(0), self.lanes), count), new, old)
        return Store(ACC, self._place(vector), new)


ACROSS = {"sum": "hsum", "max": "hmax", "min": "hmin", "prod": "hprod"}
"""The op that folds a combiner across the lanes of one vector."""


def transpose(rows: Sequence[Expr]) -> list[Expr]:
    """The columns of a square of vectors, as many as each has lanes, a power of two.

    Each round takes lanes from the two halves of the rows in turn, which moves one bit of a lane's number to the row's.
    """
    vectors, half = list(rows), len(rows) // 2
    for _ in range(half.bit_length()):
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [op(name, low, high) for low, high in pairs for name in ("zip_low", "zip_high")]
    return vectors


def unrolled_loop(var: str, extent: int, copies: int, body: Stmt) -> Stmt:
    """A loop with `copies` bodies in a row, and the rest after it."""
    if copies >= extent:
        return For(var, extent, body, LoopKind.UNROLL)
    if copies == 1:
        return For(var, extent, body)
    rounds, rest = divmod(extent, copies)

    def copy_body(start: Expr, count: int) -> Stmt:
        return For(f"{var}.copy", count, replace_variables(body, {var: start + Var(f"{var}.copy")}), LoopKind.UNROLL)

    parts: list[Stmt] = [For(f"{var}.round", rounds, copy_body(Var(f"{var}.round") * copies, copies))]
    if rest:
        parts.append(copy_body(const(rounds * copies), rest))
    return Block(tuple(parts))


def read_whole(node: Expr) -> Expr:
    """Registers are read whole: lanes out of use do no harm, and a masked read would keep them in memory."""
    if isinstance(node, Load) and node.tensor.startswith((ACC, TOTAL, HOIST, RESULT)):
        return Load(node.tensor, node.index, node.dtype)
    return node
