"""Winograd: 3x3 convolutions of stride 1 or 2 with fewer multiplications, F(m x m, 3x3).

The output is cut into tiles of m by m. For each, (m + 2)^2 elements of every input channel are transformed, (2m + 1)^2
with stride 2; products with the transformed weights are summed over the channels, one matrix product an element of the
transformed tile; the sums are transformed back (Lavin and Gray 2015). The weights are transformed when a model is
compiled.

Either a chunk of tiles goes through all three steps at once, in memory of its own that stays in the cache, or each
step is a phase over all tiles: then the weights, where they are more than the tiles, are read once only.
Padding is part of the first step. Results differ from those of the plain sum by more rounding: some 1e-6 of the largest
output with m = 2, some 1e-5 with m = 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Ramp, Var, const, loads, op, substitute, transform
from tunewright.codegen.index import vectorize
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Packing, Scope, Stmt, Store, replaced
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.digits import digits
from ..nests.direction import direction_along
from ..nests.loops import lower
from ..nests.nest import CALLER, Nest, balanced
from ..nests.padding import source
from ..nests.phases import params, plain_phase, temporaries
from ..nests.pieces import Piece
from ..products.product import Product, ahead, packable, product
from ..products.toom_cook import multiplied, transforms
from ..schedule import Schedule
from ..sketch import BODY_LIMIT, LOCAL_BYTES
from ..space import Columns, Knob, Space, Tiling

TAPS = 3
"""Extent of the window along both axes."""

STRIDES = (1, 2)

CHUNKS = (0, 2, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 48, 56, 64)
"""Tiles that go through all steps together; 0 for a phase a step."""

TILES_PER_GROWTH = 4
"""Tiles from which on it takes less time to read the transformed weights than they save, by how many times as large
they are as the weights."""

TRANSFORM_OPS = 13
"""Multiply-adds that take as long as transforming one element of a channel, forth or back, on vectors of 512 bits."""

GIVEN, SUMS = "given", "sums"
"""Buffers: the tiles of the input transformed, the sums to transform back."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A task's convolution, as this sketch sees it."""

    product: Product
    before: tuple[Piece, ...]  # phases; without that which `element` makes unnecessary
    element: Expr  # of the input, padding included, over the axes of the product
    directions: tuple[tuple[str, str], ...]  # the two axes of the output, each with that of the window
    stride: int  # along both
    channels: Axis
    others: tuple[Axis, ...]  # further axes of the input alone, such as the batch

    def extent(self, axis: str) -> int:
        return self.product.extent(axis)

    def grid(self, m: int) -> list[int]:
        """Tiles of `m` along each of the other axes, then along both directions."""
        return [*(a.extent for a in self.others), *(-(-self.extent(axis) // m) for axis, _ in self.directions)]


@lru_cache(maxsize=256)
def convolution(task: Task) -> Convolution | None:
    """The task's convolution, or None if it has none that suits this sketch."""
    found = product(task)
    if found is None or found.batch or found.columns or not packable(task, found.panel):
        return None
    stage = found.piece.stage
    (read,) = [x for x in loads(stage.body) if x != found.panel]
    directions, strides = [], set()
    for dimension, (at, extent) in enumerate(zip(read.index, task.tensor(read.tensor).shape, strict=True)):
        way = direction_along(found.piece, at, range(extent), dimension)
        if way is not None and not (way.axis and way.tap):
            continue
        if way is None or way.axis not in found.rows or (way.taps, way.dilation) != (TAPS, 1):
            return None
        directions.append((way.axis, way.tap))
        strides.add(way.stride)
    channels = [a for a in stage.reduce if a.name not in {tap for _, tap in directions}]
    if len(dict(directions)) != 2 or len(stage.reduce) != 3 or Var(channels[0].name) not in read.index:
        return None
    if len(strides) > 1 or not strides <= set(STRIDES):
        return None
    if any(Var(a.name) not in found.panel.index for a in stage.reduce):
        return None
    others = tuple(a for a in stage.axes if a.name in found.rows and a.name not in dict(directions))
    seen = source(task, (*found.before, found.piece, *found.after), read, border=None)
    before = tuple(p for p in found.before if seen is None or p is not seen.piece)
    element = read if seen is None else seen.at(read.index)
    return Convolution(found, before, element, tuple(directions), strides.pop(), channels[0], others)


@dataclass(frozen=True, slots=True)
class WinogradSketch:
    """See the module. `outputs` is the extent m of a tile of the output."""

    outputs: int
    version: int = 3

    @property
    def name(self) -> str:
        return f"winograd{self.outputs}"

    def applies(self, task: Task, target: Target) -> bool:
        found = convolution(task)
        return target.kind == "cpu" and found is not None and found.extent(found.product.vector) >= target.lanes(4)

    def space(self, task: Task, target: Target) -> Space:
        plan = self._plan(task, target)
        knobs = (
            Knob("chunk_tiles", tuple(n for n in CHUNKS if n < plan.tiles)),
            Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6) if n <= plan.output_vectors)),
            Knob("tile", tuple(range(1, min(plan.tiles, 28) + 1))),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if n <= plan.channels)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, columns),
            default=Schedule(self.name, self.version, _default(plan, target, knobs)),
            first_choice=self.outputs == 4 and plan.pays,
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        return _lowered(task, self._plan(task, target), schedule, target)

    def _plan(self, task: Task, target: Target) -> Plan:
        found = convolution(task)
        assert found is not None
        return Plan(found, self.outputs, target.lanes(4))


@dataclass(frozen=True, slots=True)
class Plan:
    """A convolution in tiles of `m` by `m`, with vectors of `lanes`."""

    convolution: Convolution
    m: int
    lanes: int

    @property
    def side(self) -> int:
        """Extent of a tile of the input, and of what it is transformed to."""
        return self.convolution.stride * (self.m - 1) + TAPS

    @property
    def elements(self) -> int:
        """Matrix products."""
        return self.side**2

    @property
    def tiles(self) -> int:
        return prod(self.convolution.grid(self.m))

    @property
    def channels(self) -> int:
        return self.convolution.channels.extent

    @property
    def outputs(self) -> int:
        """Channels of the output."""
        return self.convolution.extent(self.convolution.product.vector)

    @property
    def output_vectors(self) -> int:
        return -(-self.outputs // self.lanes)

    @property
    def pays(self) -> bool:
        """Whether the multiplications that it saves take longer than the transforms and larger weights."""
        window = TAPS**2
        saved = (window * self.m**2 - self.elements) * self.channels * self.outputs
        transforms_ops = TRANSFORM_OPS * self.elements * (self.channels + self.outputs)
        return saved > transforms_ops and self.tiles * window >= TILES_PER_GROWTH * self.elements

    def local_bytes(self, tiles: Any, vectors: Any) -> Any:
        """Memory of a chunk of tiles: what is transformed, and the sums of one panel of channels. Takes arrays too."""
        return 4 * self.elements * tiles * (self.channels + vectors * self.lanes)

    def origin(self, tile: Expr) -> dict[str, Expr]:
        """Where a tile begins, by its number: all axes of the output but the channels."""
        found = self.convolution
        steps = [*((a.name, 1) for a in found.others), *((axis, self.m) for axis, _ in found.directions)]
        numbers = digits(tile, found.grid(self.m))
        return {name: number * step for (name, step), number in zip(steps, numbers, strict=True)}


def _legal(plan: Plan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, the instruction cache and a chunk's memory, and no two points alike."""
    vectors, tile, together = columns["vectors"], columns["tile"], columns["chunk_tiles"]
    rows = np.where(together == 0, plan.tiles, together)
    legal = tile * vectors + vectors + 1 <= target.vector_registers
    legal &= tile * vectors * columns["unroll"] <= BODY_LIMIT
    legal &= tile == -(-rows // -(-rows // tile))  # others are balanced to one of these
    legal &= plan.local_bytes(together, vectors) <= LOCAL_BYTES
    return np.asarray(legal)


def _default(plan: Plan, target: Target, knobs: tuple[Knob, ...]) -> tuple[tuple[str, int], ...]:
    """Two vectors by eight tiles, or what there are registers for.

    In chunks, unless each would read more weights than stay in the cache.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    vectors = max(n for n in choices["vectors"] if n <= 2)
    most = min(8, (target.vector_registers - vectors - 1) // vectors)
    wanted = max(8, min(28, plan.tiles // (4 * target.threads)))
    if 4 * plan.elements * plan.channels * plan.outputs > target.l2_bytes:
        wanted = 0
    together = max(n for n in choices["chunk_tiles"] if n <= wanted and plan.local_bytes(n, 2) <= LOCAL_BYTES)
    return (
        ("chunk_tiles", together),
        ("vectors", vectors),
        ("tile", balanced(together or plan.tiles, most)),
        ("unroll", 1),
    )


def _tiling(plan: Plan, columns: Columns) -> Tiling:
    """Of the matrix products, where the time goes."""
    one = np.ones(len(columns["tile"]), np.int64)
    together = np.where(columns["chunk_tiles"] == 0, plan.tiles, columns["chunk_tiles"])
    width = np.minimum(columns["vectors"] * plan.lanes, plan.outputs)
    phases = columns["chunk_tiles"] == 0
    whole = {"e": one * plan.elements, "p": one * plan.tiles, "n": one * plan.outputs, "c": one * plan.channels}
    register = {"e": one, "p": columns["tile"], "n": width, "c": columns["unroll"]}
    panel = register | {"c": whole["c"]}
    block = panel | {"p": together}
    chunk = {
        "e": np.where(phases, 1, whole["e"]),
        "p": together,
        "n": np.where(phases, width, whole["n"]),
        "c": whole["c"],
    }
    chunks = np.where(phases, plan.elements * -(-plan.outputs // width), -(-plan.tiles // together))
    given = Load(GIVEN, (Var("e"), Var("p"), Var("c")), DType.F32)
    taps = Load("taps", (Var("e"), Var("c"), Var("n")), DType.F32)
    stage = Stage(
        output=SUMS,
        axes=(Axis("e", plan.elements), Axis("p", plan.tiles), Axis("n", plan.outputs)),
        body=given * taps,
        reduce=(Axis("c", plan.channels),),
        combiner="sum",
    )
    return Tiling(stage, (register, panel, block, chunk, whole), "n", chunks)


def _lowered(task: Task, plan: Plan, schedule: Schedule, target: Target) -> Kernel:
    found = plan.convolution
    steps = _Steps(task, plan, dict(schedule.values))
    scratch = [*temporaries(task, (*found.before, *found.product.after))]
    together = schedule["chunk_tiles"]
    if together:
        main: tuple[Stmt, ...] = (steps.chunks(together),)
    else:
        scratch += [steps.given(plan.tiles, Scope.GLOBAL), steps.sums(plan.tiles, Scope.GLOBAL)]
        main = steps.phases()
    packings = {steps.panel.tensor: steps.packing}
    before, after = ([plain_phase(p, target) for p in ps] for ps in (found.before, found.product.after))
    return Kernel(params(task, packings), tuple(scratch), Block((*before, *main, *after)), packings)


class _Steps:
    """The three steps of one schedule."""

    def __init__(self, task: Task, plan: Plan, values: Mapping[str, int]) -> None:
        self.plan, self.values = plan, values
        self.convolution = plan.convolution
        self.product = plan.convolution.product
        self.matrices = transforms(plan.m, TAPS, plan.convolution.stride)
        self.width = values["vectors"] * plan.lanes
        self.panels = -(-plan.outputs // self.width)
        self.packing, self.panel = self._panel(task)

    def _panel(self, task: Task) -> tuple[Packing, Load]:
        """The weights transformed: [outputs / width, element, channel, outputs % width]; read at panel, e, c, n."""
        panel = self.product.panel
        tensor = task.tensor(panel.tensor)
        taps = [panel.index.index(Var(tap)) for _, tap in self.convolution.directions]
        channel, vector = (panel.index.index(Var(n)) for n in (self.convolution.channels.name, self.product.vector))
        rest = [d for d in range(len(tensor.shape)) if d not in (*taps, channel, vector)]  # of extent 1
        order = (*rest, vector, *taps, channel)
        side, width = self.plan.side, self.width
        extents = (*(tensor.shape[d] for d in rest), self.panels * width, side, side, tensor.shape[channel])
        splits = tuple((self.panels, width) if d == len(rest) else (extent,) for d, extent in enumerate(extents))
        outer = tuple(range(len(rest)))
        first = len(rest)
        parts = (*outer, first, first + 2, first + 3, first + 4, first + 1)
        packing = Packing(order, extents, splits, parts, tuple((d, self.matrices.filter) for d in taps))
        element = Var("e")
        index = (*(const(0) for _ in rest), Var("panel"), element // side, element % side, Var("c"), Var("n"))
        return packing, Load(panel.tensor, index, tensor.dtype)

    def given(self, tiles: int, scope: Scope) -> Buffer:
        """Memory for the tiles of the input transformed."""
        return Buffer(GIVEN, (self.plan.elements, tiles, self.plan.channels), DType.F32, scope)

    def sums(self, tiles: int, scope: Scope) -> Buffer:
        """Memory for the sums: of all channels of the output, or of one panel in a chunk."""
        panels = self.panels if scope is Scope.GLOBAL else 1
        return Buffer(SUMS, (panels, self.plan.elements, tiles, self.width), DType.F32, scope)

    def phases(self) -> tuple[Stmt, ...]:
        """The steps one after the other, each shared by the threads."""
        plan = self.plan
        tile, each = Var("chunk"), Var("chunk")
        back = self.back(tile, tile, Var("panel"), Var("panel"))
        products = self.products(plan.tiles, each // plan.elements, each // plan.elements, each % plan.elements)
        return (
            For("chunk", plan.tiles, self.forth(tile, tile), LoopKind.PARALLEL),
            For("chunk", self.panels * plan.elements, products, LoopKind.PARALLEL),
            For("chunk", plan.tiles, For("panel", self.panels, back), LoopKind.PARALLEL),
        )

    def chunks(self, together: int) -> Stmt:
        """All steps for some tiles at a time."""
        plan = self.plan
        count = -(-plan.tiles // together)
        tile = Var("chunk") * together + Var("slot")
        spare = count * together > plan.tiles  # the last chunk does the last tile again instead of what there is not
        clamped = op("min", tile, plan.tiles - 1) if spare else tile
        forth: Stmt = For("slot", together, self.forth(clamped, Var("slot")))
        back = self.back(tile, Var("slot"), Var("panel"), const(0))
        back = If(op("lt", tile, plan.tiles), back) if spare else back
        products = For("e", plan.elements, self.products(together, Var("panel"), const(0), Var("e")))
        panels = For("panel", self.panels, Block((products, For("slot", together, back))))
        body: Stmt = Alloc(self.sums(together, Scope.SHARED), Block((forth, panels)))
        body = Alloc(self.given(together, Scope.SHARED), body)
        return For("chunk", count, body, LoopKind.PARALLEL) if count > 1 else replaced(body, {"chunk": const(0)})

    def forth(self, tile: Expr, slot: Expr) -> Stmt:
        """One tile of the input transformed, all channels."""
        plan, side = self.plan, self.plan.side
        half = Buffer("half", (side, side, plan.lanes), DType.F32, Scope.REGISTER)
        origin = plan.origin(tile)

        def vector(base: Expr, count: int | None) -> Stmt:
            lanes = Ramp(const(0), plan.lanes)
            steps: list[Stmt] = []
            for j in range(side):
                column = [self._element(origin, i, j, base, count) for i in range(side)]
                for i, value in enumerate(multiplied(self.matrices.input, column)):
                    steps.append(Store(half.name, (const(i), const(j), lanes), value))
            for i in range(side):
                row = [Load(half.name, (const(i), const(j), lanes), DType.F32) for j in range(side)]
                for j, value in enumerate(multiplied(self.matrices.input, row)):
                    place = (const(i * side + j), slot, Ramp(base, plan.lanes))
                    steps.append(Store(GIVEN, place, value, count))
            return Alloc(half, Block(tuple(steps)))

        return self._vectors("vector", plan.channels, vector)

    def _element(self, origin: Mapping[str, Expr], i: int, j: int, base: Expr, count: int | None) -> Expr:
        """A vector of the input, at a place of the tile that begins at `origin`.

        Places beyond the last output's window are taken from its edge: nothing that they lead to is kept.
        """
        found, m = self.convolution, self.plan.m
        places = dict(origin)
        for (axis, tap), offset in zip(found.directions, (i, j), strict=True):
            step, turn = divmod(offset, found.stride)
            most = found.extent(axis) - 1 + (TAPS - 1 - turn) // found.stride
            place = origin[axis] + step
            beyond = (found.extent(axis) - 1) // m * m + step > most
            places[axis] = op("min", place, most) if beyond else place
            places[tap] = const(turn)
        element = substitute(found.element, places)
        return vectorize(element, found.channels.name, base, self.plan.lanes, count)

    def _vectors(self, var: str, extent: int, write: Callable[[Expr, int | None], Stmt]) -> Stmt:
        """`write` for each vector that covers an extent: its first element, and its lanes in use, None for all."""
        whole, rest = divmod(extent, self.plan.lanes)
        steps: list[Stmt] = []
        if whole:
            steps.append(For(var, whole, write(Var(var) * self.plan.lanes, None)))
        if rest:
            steps.append(write(const(whole * self.plan.lanes), rest))
        return Block(tuple(steps))

    def products(self, tiles: int, panel: Expr, kept: Expr, element: Expr) -> Stmt:
        """The matrix product of one element and one panel of the weights."""
        values = {"panel": panel, "e": element}
        weights = substitute(self.panel, values)
        body = Load(GIVEN, (element, Var("p"), Var("c")), DType.F32) * weights
        stage = Stage(
            output=SUMS,
            axes=(Axis("p", tiles), Axis("n", self.width)),
            body=body,
            reduce=(Axis("c", self.plan.channels),),
            combiner="sum",
            index=(kept, element, Var("p"), Var("n")),
        )
        piece = Piece(stage, SUMS, stage.index, Load(SUMS, stage.index, DType.F32))
        tile = {"p": self.values["tile"], "n": self.width}
        early = {self.panel.tensor: ahead(self.width)}
        nest = Nest(
            piece, self.plan.lanes, "n", tile, {"p": 0, "n": 0}, {"c": self.values["unroll"]}, fixed=CALLER, ahead=early
        )
        return lower(nest)

    def back(self, tile: Expr, slot: Expr, panel: Expr, kept: Expr) -> Stmt:
        """One tile of the output, of one panel of channels, as far as it is inside."""
        vectors, lanes = self.values["vectors"], self.plan.lanes
        whole, rest = divmod(self.plan.outputs, lanes)
        number = panel * vectors + Var("column")
        full = self._tile(tile, slot, kept, number * lanes, None)
        steps: list[Stmt] = [If(op("lt", number, whole), full) if self.panels * vectors > whole else full]
        if rest:
            steps.append(If(op("eq", number, whole), self._tile(tile, slot, kept, const(whole * lanes), rest)))
        return For("column", vectors, Block(tuple(steps)))

    def _tile(self, tile: Expr, slot: Expr, kept: Expr, base: Expr, count: int | None) -> Stmt:
        """One vector of channels of one tile of the output."""
        plan, m, side = self.plan, self.plan.m, self.plan.side
        half = Buffer("half", (m, side, plan.lanes), DType.F32, Scope.REGISTER)
        lanes = Ramp(const(0), plan.lanes)
        place = Ramp(Var("column") * plan.lanes, plan.lanes)
        steps: list[Stmt] = []
        for j in range(side):
            column: list[Expr] = [Load(SUMS, (kept, const(i * side + j), slot, place), DType.F32) for i in range(side)]
            for i, value in enumerate(multiplied(self.matrices.output, column)):
                steps.append(Store(half.name, (const(i), const(j), lanes), value))
        origin = plan.origin(tile)
        for i in range(m):
            row: list[Expr] = [Load(half.name, (const(i), const(j), lanes), DType.F32) for j in range(side)]
            for j, value in enumerate(multiplied(self.matrices.output, row)):
                steps.append(self._finished(origin, (i, j), value, base, count))
        return Alloc(half, Block(tuple(steps)))

    def _finished(
        self, origin: Mapping[str, Expr], inside: tuple[int, int], value: Expr, base: Expr, count: int | None
    ) -> Stmt:
        """Write one vector of sums, with what follows them, unless it is beyond the output."""
        piece, found, plan = self.product.piece, self.convolution, self.plan
        places = {**origin, self.product.vector: base + Var("lane")}
        within: Expr = const(True)
        for (axis, _), offset in zip(found.directions, inside, strict=True):
            places[axis] = origin[axis] + offset
            if found.extent(axis) % plan.m and offset >= found.extent(axis) % plan.m:
                if found.extent(axis) <= offset:
                    return Block(())
                within = op("and", within, op("lt", places[axis], found.extent(axis)))
        own = Load(piece.stage.output, (Var("lane"),), DType.F32)
        finish = piece.finished(own)

        def laid(expr: Expr) -> Expr:
            return vectorize(substitute(expr, places), "lane", const(0), plan.lanes, count)

        index = tuple(map(laid, piece.index))
        written = transform(laid(finish), lambda node: value if piece.is_result(node) else node)
        store = Store(piece.output, index, written, count if any(e.lanes > 1 for e in index) else None)
        return If(within, store) if within != const(True) else store
