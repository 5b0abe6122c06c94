"""Steps: tiles of the input transformed, products summed over the channels, the sums transformed back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Ramp, Var, const, op, substitute, transform
from tunewright.codegen.ir import Alloc, Block, Buffer, For, If, LoopKind, Packing, Scope, Stmt, Store, replaced
from tunewright.codegen.lanes import vectorize
from tunewright.graph.task import Axis, Stage, Task

from ..nests.loops import lower
from ..nests.nest import CALLER, Nest
from ..nests.pieces import Piece
from ..products.product import ahead, apart
from .convolution import TAPS
from .plan import Plan
from .toom_cook import multiplied, transforms

GIVEN, SUMS, HALF = "given", "sums", "half"
"""Buffers: the tiles of the input transformed, the sums to transform back, one vector of a tile halfway."""


class Steps:
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
        """Memory for the tiles of the input transformed: [element, tile * channels + channel]."""
        return Buffer(GIVEN, (self.plan.elements, apart(tiles * self.plan.channels)), DType.F32, scope)

    def sums(self, tiles: int, scope: Scope) -> Buffer:
        """Memory for the sums, of all channels of the output, or of one panel: [panel, element, tile * width + n]."""
        panels = self.panels if scope is Scope.GLOBAL else 1
        return Buffer(SUMS, (panels, self.plan.elements, apart(tiles * self.width)), DType.F32, scope)

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
        """One tile of the input transformed, all channels: first its columns, then the rows of what they give."""
        plan, side = self.plan, self.plan.side
        half = Buffer(HALF, (side, side, plan.lanes), DType.F32, Scope.SHARED)
        origin = plan.origin(tile)
        i, j = Var("i"), Var("j")

        def vector(base: Expr, count: int | None) -> Stmt:
            column = [self._element(origin, (const(n), j), base, count) for n in range(side)]
            down = enumerate(multiplied(self.matrices.input, column))
            columns = [Store(HALF, self._half(const(n), j), value) for n, value in down]
            row: list[Expr] = [Load(HALF, self._half(i, const(n)), DType.F32) for n in range(side)]
            rows: list[Stmt] = []
            for n, value in enumerate(multiplied(self.matrices.input, row)):
                place = i * side + n, Ramp(slot * plan.channels + base, plan.lanes)
                rows.append(Store(GIVEN, place, value, count))
            across = For("i", side, Block(tuple(rows)), LoopKind.UNROLL)  # as a loop it takes the whole 1% longer
            return Alloc(half, Block((For("j", side, Block(tuple(columns))), across)))

        return self._vectors("vector", plan.channels, vector)

    def _half(self, i: Expr, j: Expr) -> tuple[Expr, ...]:
        """Where a vector is that was transformed along its column alone."""
        return i, j, Ramp(const(0), self.plan.lanes)

    def _element(self, origin: Mapping[str, Expr], at: tuple[Expr, Expr], base: Expr, count: int | None) -> Expr:
        """A vector of the input, at a place of the tile that begins at `origin`.

        Places beyond the last output's window are taken from its edge: nothing that they lead to is kept.
        """
        found, m = self.convolution, self.plan.m
        places = dict(origin)
        for (axis, tap), offset in zip(found.directions, at, strict=True):
            most = (found.extent(axis) - 1) * found.stride + TAPS - 1
            place = origin[axis] * found.stride + offset
            beyond = (found.extent(axis) - 1) // m * m * found.stride + self.plan.side - 1 > most
            places[axis], places[tap] = const(0), op("min", place, most) if beyond else place
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
        body = Load(GIVEN, (element, Var("p") * self.plan.channels + Var("c")), DType.F32) * weights
        stage = Stage(
            output=SUMS,
            axes=(Axis("p", tiles), Axis("n", self.width)),
            body=body,
            reduce=(Axis("c", self.plan.channels),),
            combiner="sum",
            index=(kept, element, Var("p") * self.width + Var("n")),
        )
        piece = Piece(stage, SUMS, stage.index, Load(SUMS, stage.index, DType.F32))
        tile = {"p": self.values["tile"], "n": self.width}
        early = {self.panel.tensor: ahead(self.width)} if self.values["ahead"] else {}
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
        half = Buffer(HALF, (m, side, plan.lanes), DType.F32, Scope.SHARED)
        place = Ramp(slot * self.width + Var("column") * plan.lanes, plan.lanes)
        i, j = Var("i"), Var("j")
        column: list[Expr] = [Load(SUMS, (kept, j + n * side, place), DType.F32) for n in range(side)]
        back = enumerate(multiplied(self.matrices.output, column))
        columns = [Store(HALF, self._half(const(n), j), value) for n, value in back]
        row: list[Expr] = [Load(HALF, self._half(i, const(n)), DType.F32) for n in range(side)]
        (down, _), (across, _) = self.convolution.directions
        places = {**plan.origin(tile), self.product.vector: base + Var("lane")}
        places[down] += i
        rows: list[Stmt] = []
        for n, value in enumerate(multiplied(self.matrices.output, row)):
            at = {**places, across: places[across] + n}
            if n < self.convolution.extent(across):
                rows.append(self._within(across, at[across], n, self._finished(at, value, count)))
        high = min(m, self.convolution.extent(down))
        written = self._within(down, places[down], high - 1, Block(tuple(rows)))
        return Alloc(half, Block((For("j", side, Block(tuple(columns))), For("i", high, written))))

    def _within(self, axis: str, place: Expr, offset: int, body: Stmt) -> Stmt:
        """The body where a place, at most `offset` from the first of its tile, is in the output."""
        extent = self.convolution.extent(axis)
        last = (extent - 1) // self.plan.m * self.plan.m
        return If(op("lt", place, extent), body) if last + offset >= extent else body

    def _finished(self, places: Mapping[str, Expr], value: Expr, count: int | None) -> Stmt:
        """Write one vector of sums, with what follows them."""
        piece, plan = self.product.piece, self.plan
        own = Load(piece.stage.output, (Var("lane"),), DType.F32)
        finish = piece.finished(own)

        def laid(expr: Expr) -> Expr:
            return vectorize(substitute(expr, places), "lane", const(0), plan.lanes, count)

        index = tuple(map(laid, piece.index))
        written = transform(laid(finish), lambda node: value if piece.is_result(node) else node)
        return Store(piece.output, index, written, count if any(e.lanes > 1 for e in index) else None)
