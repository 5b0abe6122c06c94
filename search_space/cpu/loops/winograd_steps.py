"""Winograd's method for a convolution in tiles of its output, and what these cost.

The steps: transform inputs, sum products over the channels, transform the sums back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Ramp, Var, const, op, substitute, transform
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    LoopKind,
    Packing,
    Scope,
    Stmt,
    Store,
)
from tunewright.graph.task import Axis, Stage, Task

from ...axes import unravel
from ...patterns.convolution import TAPS, Convolution
from ...patterns.fused_stage import FusedStage
from ...patterns.product import prefetch_rows, row_pitch
from .chunks import CHUNK, chunk_loop, chunk_number
from .lower import lower
from .nest import CALLER, Nest
from .toom_cook import multiply, transforms

INPUTS, SUMS, HALF = "given", "sums", "half"
"""Buffers: the tiles of the input transformed, the sums to transform back, one vector of a tile halfway."""


class WinogradSteps:
    """The three steps of one schedule."""

    def __init__(self, task: Task, plan: WinogradPlan, values: Mapping[str, int]) -> None:
        self.plan, self.values = plan, values
        self.convolution = plan.convolution
        self.product = plan.convolution.product
        self.matrices = transforms(plan.m, TAPS, plan.convolution.stride)
        self.width = values["vectors"] * plan.lanes
        self.panels = -(-plan.outputs // self.width)
        self.packing, self.panel = self._panel(task)

    def _panel(self, task: Task) -> tuple[Packing, Load]:
        """Pack transformed weights as [outputs / width, element, channel, outputs % width]; read at panel, e, c, n."""
        panel = self.product.panel
        tensor = task.tensor(panel.tensor)
        taps = [panel.index.index(Var(tap)) for _, tap in self.convolution.window_axes]
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

    def inputs(self, tiles: int, scope: Scope) -> Buffer:
        """Memory for the tiles of the input transformed: [element, tile * channels + channel]."""
        return Buffer(INPUTS, (self.plan.elements, row_pitch(tiles * self.plan.channels)), DType.F32, scope)

    def sums(self, tiles: int, scope: Scope) -> Buffer:
        """Memory for the sums, of all channels of the output, or of one panel: [panel, element, tile * width + n]."""
        panels = self.panels if scope is Scope.GLOBAL else 1
        return Buffer(SUMS, (panels, self.plan.elements, row_pitch(tiles * self.width)), DType.F32, scope)

    def phases(self) -> tuple[Stmt, ...]:
        """The steps one after the other, each shared by the threads."""
        plan = self.plan
        tile, product = Var(CHUNK), Var(CHUNK)
        back = self.transform_output(tile, tile, Var("panel"), Var("panel"))
        products = self.products(
            plan.tiles, product // plan.elements, product // plan.elements, product % plan.elements
        )
        return (
            For(CHUNK, plan.tiles, self.transform_input(tile, tile), LoopKind.PARALLEL),
            For(CHUNK, self.panels * plan.elements, products, LoopKind.PARALLEL),
            For(CHUNK, plan.tiles, For("panel", self.panels, back), LoopKind.PARALLEL),
        )

    def chunks(self, chunk_tiles: int) -> Stmt:
        """All steps for some tiles at a time."""
        plan = self.plan
        count = -(-plan.tiles // chunk_tiles)
        tile = chunk_number(count) * chunk_tiles + Var("slot")
        spare = count * chunk_tiles > plan.tiles  # the last chunk does the last tile again instead of what there is not
        clamped = op("min", tile, plan.tiles - 1) if spare else tile
        forth: Stmt = For("slot", chunk_tiles, self.transform_input(clamped, Var("slot")))
        back = self.transform_output(tile, Var("slot"), Var("panel"), const(0))
        back = If(op("lt", tile, plan.tiles), back) if spare else back
        products = For("e", plan.elements, self.products(chunk_tiles, Var("panel"), const(0), Var("e")))
        panels = For("panel", self.panels, Block((products, For("slot", chunk_tiles, back))))
        body: Stmt = Alloc(self.sums(chunk_tiles, Scope.SHARED), Block((forth, panels)))
        return chunk_loop(count, Alloc(self.inputs(chunk_tiles, Scope.SHARED), body))

    def transform_input(self, tile: Expr, slot: Expr) -> Stmt:
        """Transform one tile of the input, all channels: first the columns, then the rows."""
        plan, side = self.plan, self.plan.side
        half = Buffer(HALF, (side, side, plan.lanes), DType.F32, Scope.SHARED)
        origin = plan.origin(tile)
        i, j = Var("i"), Var("j")

        def vector(base: Expr, count: int | None) -> Stmt:
            column = [self._element(origin, (const(n), j), base, count) for n in range(side)]
            down = enumerate(multiply(self.matrices.input, column))
            columns = [Store(HALF, self._half(const(n), j), value) for n, value in down]
            row: list[Expr] = [Load(HALF, self._half(i, const(n)), DType.F32) for n in range(side)]
            rows: list[Stmt] = []
            for n, value in enumerate(multiply(self.matrices.input, row)):
                place = i * side + n, Ramp(slot * plan.channels + base, plan.lanes)
                rows.append(Store(INPUTS, place, value, count))
            across = For("i", side, Block(tuple(rows)), LoopKind.UNROLL)  # as a loop it takes the whole 1% longer
            return Alloc(half, Block((For("j", side, Block(tuple(columns))), across)))

        return self._vectors("vector", plan.channels, vector)

    def _half(self, i: Expr, j: Expr) -> tuple[Expr, ...]:
        """The index of a vector that is transformed along its column alone."""
        return i, j, Ramp(const(0), self.plan.lanes)

    def _element(self, origin: Mapping[str, Expr], at: tuple[Expr, Expr], base: Expr, count: int | None) -> Expr:
        """A vector of the input, at an index of the tile that begins at `origin`.

        Indices beyond the last output's window are clamped to its edge: their results are not used.
        """
        convolution, m = self.convolution, self.plan.m
        places = dict(origin)
        for (axis, tap), offset in zip(convolution.window_axes, at, strict=True):
            last = (convolution.extent(axis) - 1) * convolution.stride + TAPS - 1
            place = origin[axis] * convolution.stride + offset
            is_partial = (convolution.extent(axis) - 1) // m * m * convolution.stride + self.plan.side - 1 > last
            places[axis], places[tap] = const(0), op("min", place, last) if is_partial else place
        element = substitute(convolution.element, places)
        return vectorize(element, convolution.channels.name, base, self.plan.lanes, count)

    def _vectors(self, var: str, extent: int, write: Callable[[Expr, int | None], Stmt]) -> Stmt:
        """`write` for each vector that covers an extent: its first element, and its lanes in use, None for all."""
        whole, rest = divmod(extent, self.plan.lanes)
        steps: list[Stmt] = []
        if whole:
            steps.append(For(var, whole, write(Var(var) * self.plan.lanes, None)))
        if rest:
            steps.append(write(const(whole * self.plan.lanes), rest))
        return Block(tuple(steps))

    def products(self, tiles: int, panel: Expr, slot: Expr, element: Expr) -> Stmt:
        """The matrix product of one element and one panel of the weights."""
        values = {"panel": panel, "e": element}
        weights = substitute(self.panel, values)
        body = Load(INPUTS, (element, Var("p") * self.plan.channels + Var("c")), DType.F32) * weights
        stage = Stage(
            output=SUMS,
            axes=(Axis("p", tiles), Axis("n", self.width)),
            body=body,
            reduce=(Axis("c", self.plan.channels),),
            combiner="sum",
            index=(slot, element, Var("p") * self.width + Var("n")),
        )
        tile = {"p": self.values["tile"], "n": self.width}
        early = {self.panel.tensor: prefetch_rows(self.width)} if self.values["ahead"] else {}
        nest = Nest(
            FusedStage.of(stage),
            self.plan.lanes,
            "n",
            tile,
            {"p": 0, "n": 0},
            {"c": self.values["unroll"]},
            fixed=CALLER,
            prefetch=early,
        )
        return lower(nest)

    def transform_output(self, tile: Expr, slot: Expr, panel: Expr, sums_panel: Expr) -> Stmt:
        """One tile of the output, of one panel of channels, as far as it is inside."""
        vectors, lanes = self.values["vectors"], self.plan.lanes
        whole, rest = divmod(self.plan.outputs, lanes)
        number = panel * vectors + Var("column")
        full = self._tile(tile, slot, sums_panel, number * lanes, None)
        steps: list[Stmt] = [If(op("lt", number, whole), full) if self.panels * vectors > whole else full]
        if rest:
            steps.append(If(op("eq", number, whole), self._tile(tile, slot, sums_panel, const(whole * lanes), rest)))
        return For("column", vectors, Block(tuple(steps)))

    def _tile(self, tile: Expr, slot: Expr, sums_panel: Expr, base: Expr, count: int | None) -> Stmt:
        """One vector of channels of one tile of the output."""
        plan, m, side = self.plan, self.plan.m, self.plan.side
        half = Buffer(HALF, (m, side, plan.lanes), DType.F32, Scope.SHARED)
        place = Ramp(slot * self.width + Var("column") * plan.lanes, plan.lanes)
        i, j = Var("i"), Var("j")
        column: list[Expr] = [Load(SUMS, (sums_panel, j + n * side, place), DType.F32) for n in range(side)]
        back = enumerate(multiply(self.matrices.output, column))
        columns = [Store(HALF, self._half(const(n), j), value) for n, value in back]
        row: list[Expr] = [Load(HALF, self._half(i, const(n)), DType.F32) for n in range(side)]
        (down, _), (across, _) = self.convolution.window_axes
        places = {**plan.origin(tile), self.product.vector: base + Var("lane")}
        places[down] += i
        rows: list[Stmt] = []
        for n, value in enumerate(multiply(self.matrices.output, row)):
            at = {**places, across: places[across] + n}
            if n < self.convolution.extent(across):
                rows.append(self._within(across, at[across], n, self._write(at, value, count)))
        high = min(m, self.convolution.extent(down))
        results = self._within(down, places[down], high - 1, Block(tuple(rows)))
        return Alloc(half, Block((For("j", side, Block(tuple(columns))), For("i", high, results))))

    def _within(self, axis: str, place: Expr, offset: int, body: Stmt) -> Stmt:
        """Guard a body to an index, at most `offset` from the first of its tile, that is in the output."""
        extent = self.convolution.extent(axis)
        last = (extent - 1) // self.plan.m * self.plan.m
        return If(op("lt", place, extent), body) if last + offset >= extent else body

    def _write(self, places: Mapping[str, Expr], value: Expr, count: int | None) -> Stmt:
        """Write one vector of results, after their epilogue."""
        fused_stage, plan = self.product.fused_stage, self.plan
        total = Load(fused_stage.stage.output, (Var("lane"),), DType.F32)
        epilogue = fused_stage.apply_epilogue(total)

        def vectorize_at(expr: Expr) -> Expr:
            return vectorize(substitute(expr, places), "lane", const(0), plan.lanes, count)

        index = tuple(map(vectorize_at, fused_stage.index))
        result = transform(vectorize_at(epilogue), lambda node: value if fused_stage.is_result(node) else node)
        return Store(fused_stage.output, index, result, count if any(e.lanes > 1 for e in index) else None)


TILES_PER_GROWTH = 4
"""Tiles from which on it takes less time to read the transformed weights than they save, by how many times as large
they are as the weights."""

TRANSFORM_OPS = 13
"""Multiply-adds that take as long as transforming one element of a channel, forth or back, on vectors of 512 bits."""


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """A convolution in tiles of `m` by `m`, with vectors of `lanes`."""

    convolution: Convolution
    m: int
    lanes: int

    @property
    def side(self) -> int:
        """Extent of a tile of the input, before and after its transformation."""
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
    def is_worthwhile(self) -> bool:
        """Whether the method saves more time in multiplications than it takes for transforms and larger weights."""
        window = TAPS**2
        saved = (window * self.m**2 - self.elements) * self.channels * self.outputs
        transforms_ops = TRANSFORM_OPS * self.elements * (self.channels + self.outputs)
        return saved > transforms_ops and self.tiles * window >= TILES_PER_GROWTH * self.elements

    def local_bytes(self, tiles: Any, vectors: Any) -> Any:
        """The bytes of a chunk of tiles: transformed inputs, and sums of one panel. Takes arrays too."""
        return 4 * self.elements * tiles * (self.channels + vectors * self.lanes)

    def origin(self, tile: Expr) -> dict[str, Expr]:
        """The first index of a tile along all axes of the output but the channels."""
        convolution = self.convolution
        steps = [*((a.name, 1) for a in convolution.outer), *((axis, self.m) for axis, _ in convolution.window_axes)]
        numbers = unravel(tile, convolution.grid(self.m))
        return {name: number * step for (name, step), number in zip(steps, numbers, strict=True)}
