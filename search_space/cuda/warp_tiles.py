"""Warp tiles: one product on a GPU, by tiles that the tensor cores of warps multiply.

What a round needs is in shared memory (`block_tile`), where what a warp reads together lies in different banks:

    warp: sums += left x right         fragments of narrow floats, 16 x 16 and 16 x 8, by `ldmatrix` and `mma`;
                                       of bytes, 16 x 32 and 32 x 8
    output = epilogue(sums)

Tensor cores see 11 bits of the mantissas of float32 (TF32). So there are three products, the larger last: that of the
left operand and what was not seen of the right one, the other way round, and that of both. What none of them has is the
product of both rests, some 2^-20 of a term. Where an operand is infinite, its rest is not a number, nor is the sum.
When they add up, tensor cores are said to cut off what float32 would round (Ootomo and Yokota): not seen here so far.

Fused stages before and after the product are launches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, Kernel, Scope, Stmt
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..counts import counted
from ..description import SchedulePoint
from ..patterns.product import Product
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling
from .product_tiles import LEAST_DEPTH
from .tiles.block_tile import (
    BlockTile,
    Copies,
    copy_registers,
    match_tensor_product,
    may_group,
    pack_along_depth,
    smem_bytes,
    widths,
)
from .tiles.fragments import Fragments
from .tiles.shared_tile import COLUMNS, PRODUCTS, ROWS, THREAD, SharedTile, chunk, product_depth, unroll
from .tiles.sides import SPLITS, Sides, Sizes, are_tiles_full, fits_multiprocessor, pick_default, size, tiling
from .tiles.tiles import IN_TURN, SHARED, TAIL, TilePlace, Tiles, kernel, may_split

LEAST_ROUND = 16
"""Terms of a sum in the smallest round of narrow floats, as many as one product adds; of bytes these are more."""

OTHER_REGISTERS = 40
"""Registers of a thread for counts and indices, beside sums, operands and addresses."""

SPLIT_REGISTERS, SPLIT_ROUND = 40, 32
"""For float32, which is multiplied in parts: more registers for counts and indices, and terms of a sum in the largest
round. Beyond that the compiler keeps so much live at once that it spills.
"""

SPLIT_SIDES = 128
"""For float32: most rows and columns of a warp together, for the same reason."""

DEFAULTS = (
    {"block_rows": 128, "block_columns": 128, "block_depth": 32, "warp_rows": 64, "warp_columns": 32, "stages": 4},
    {"block_rows": 128, "block_columns": 64, "block_depth": 32, "warp_rows": 64, "warp_columns": 32, "stages": 4},
    {"block_rows": 64, "block_columns": 64, "block_depth": 32, "warp_rows": 32, "warp_columns": 32, "stages": 4},
    {"block_rows": 32, "block_columns": 32, "block_depth": 32, "warp_rows": 16, "warp_columns": 16, "stages": 4},
    {"block_rows": 16, "block_columns": 16, "block_depth": 32, "warp_rows": 16, "warp_columns": 16, "stages": 4},
)
"""From the largest tiles to the smallest: the first that gives each multiprocessor a block is taken."""


class WarpTilesSketch(PatternSketch[Product]):
    """Tiles of a product for the tensor cores of warps."""

    name = "warp_tiles"
    version = 2
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Product | None:
        gpu, product = target.gpu, match_tensor_product(pack_along_depth(task)[0])
        if gpu is None or product is None or product.panel.dtype is not DType.F32:
            return product
        is_faster = gpu.split_multiply_adds > gpu.multiply_adds
        return product if is_faster and size(Sides.of(product).depth) >= LEAST_DEPTH else None

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        wide, round_depth = widths(pack_along_depth(task)[0], product), _least_round(product)

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(product, wide, target, columns)

        knobs = (
            Knob("block_rows", (16, 32, 64, 128, 256)),
            Knob("block_columns", (16, 32, 64, 128, 256)),
            Knob("block_depth", (round_depth, 2 * round_depth, 4 * round_depth)),
            Knob("warp_rows", (16, 32, 64, 128)),
            Knob("warp_columns", (16, 32, 64, 128)),
            Knob("stages", (2, 3, 4, 5)),
            Knob("group", (1, 2, 4, 8), IN_TURN),
            Knob("splits", SPLITS, SHARED),
            Knob("tail", (0, 1), TAIL),
        )
        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: _tiling(product, columns),
            preferred=_preferred(product, target, legal),
            block=lambda columns: _block(product, wide, columns),
            first_choice=product.panel.dtype is not DType.F32,  # of which multiply-adds of threads are as good a guess
        )

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        (task, packings), values = pack_along_depth(task), dict(schedule.values)
        return kernel(task, target, product, values, lambda tiles: WarpTile.of(task, tiles, values).lower(), packings)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        values = point.values
        warps = values["block_rows"] // values["warp_rows"] * (values["block_columns"] // values["warp_columns"])
        yield from point.say_start(
            "A product by tiles on tensor cores: a block brings both operands into shared memory, warps multiply them.",
            warps * WARP,
        )
        yield from point.say_block_tile()
        yield f"A warp computes {counted(values['warp_rows'], 'row')} by {counted(values['warp_columns'], 'column')}."
        if self.pattern(point.task, point.target).panel.dtype is DType.F32:
            yield "Tensor cores see 11 bits of a float32, so three products stand for one, for the other bits."
        yield f"What a round needs is copied {counted(values['stages'] - 1, 'round')} ahead."
        yield from point.say_knobs()


def _least_round(product: Product) -> int:
    """Terms of a sum in the smallest round."""
    return max(LEAST_ROUND, product_depth(product.panel.dtype))


def _threads(columns: Columns) -> Sizes:
    """The threads of a block; 0 where tiles of warps are larger than those of blocks."""
    warps = columns["block_rows"] // columns["warp_rows"] * (columns["block_columns"] // columns["warp_columns"])
    return np.asarray(WARP * warps)


def _block(product: Product, wide: tuple[int, int], columns: Columns) -> BlockShape:
    threads = _threads(columns)
    warp_rows, warp_across = columns["warp_rows"], columns["warp_columns"]
    sums, fragments = warp_rows * warp_across // WARP, (warp_rows + warp_across) // 4
    copies = copy_registers(product, wide, columns, np.maximum(threads, WARP))
    registers = sums + fragments + copies + OTHER_REGISTERS
    if product.panel.dtype is DType.F32:
        registers = registers + fragments + SPLIT_REGISTERS  # the rests too
    return BlockShape(threads, registers, smem_bytes(product, columns), on_tensor_cores=True)


def _legal(product: Product, wide: tuple[int, int], target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    legal = (
        are_tiles_full(product, columns, _least_round(product))
        & may_group(product, columns)
        & may_split(product, target, columns)
    )
    if product.panel.dtype is DType.F32:
        sides = columns["warp_rows"] + columns["warp_columns"]
        legal &= (columns["block_depth"] <= SPLIT_ROUND) & (sides <= SPLIT_SIDES)
    return np.asarray(legal & fits_multiprocessor(target, _block(product, wide, columns)))


def _tiling(product: Product, columns: Columns) -> Tiling:
    """The tile of a warp, that of a round of a block, and that of the block."""
    depth = np.full_like(columns["stages"], product_depth(product.panel.dtype))
    return tiling(product, columns, (columns["warp_rows"], columns["warp_columns"], depth))


def _preferred(product: Product, target: Target, legal: Callable[[Columns], NDArray[np.bool_]]) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    others = {"group": 1, "splits": 1, "tail": 0}
    times = _least_round(product) // LEAST_ROUND
    choices = [
        values | others | {"block_depth": depth * times}
        for values in DEFAULTS
        for depth in dict.fromkeys((values["block_depth"], LEAST_ROUND))
    ]
    return pick_default(product, target, choices, legal)


@dataclass(frozen=True, slots=True)
class WarpTile:
    """A product of operands of one size by the warps of a block, which has two stages or more."""

    block: BlockTile
    warp_rows: int  # divides those of the block
    warp_columns: int  # likewise

    @staticmethod
    def of(task: Task, tiles: Tiles, values: Mapping[str, int]) -> WarpTile:
        """Take the numbers from the values of a schedule."""
        rows, columns = values["warp_rows"], values["warp_columns"]
        threads = WARP * (values["block_rows"] // rows) * (values["block_columns"] // columns)
        return WarpTile(BlockTile.of(task, tiles, values, threads), rows, columns)

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """The types of the left operand and the right one, which differ for bytes only."""
        return self.block.product.broadcast.dtype, self.block.product.panel.dtype

    @property
    def is_split(self) -> bool:
        """Whether there are three products for one."""
        return self.dtypes[0] is DType.F32

    @property
    def fragments(self) -> Fragments:
        """The sums of a warp."""
        return Fragments(self.block.tiles, self.warp_rows // ROWS, self.warp_columns // COLUMNS, ROWS)

    def lower(self) -> Stmt:
        """The loops of the launch."""
        return self.block.lower(self._registers(), self._body)

    def _registers(self) -> tuple[Buffer, ...]:
        sums = self.fragments
        counts = sums.down, sums.across // 2
        operands = (
            Buffer(f"{part}_{side}", (count, chunk(dtype)), dtype, Scope.REGISTER)
            for part in (("own", "rest") if self.is_split else ("own",))
            for side, count, dtype in zip(("left", "right"), counts, self.dtypes, strict=True)
        )
        return sums.buffer, *operands

    def _body(self, copies: Copies, place: TilePlace) -> Stmt:
        distance = self.block.stages - 1
        rounds = self.block.sum_rounds(copies, place.part, distance, lambda stage: self._multiply(copies, stage))
        return Block((self.fragments.clear(), *rounds, self.fragments.write(place, *self._own())))

    def _own(self) -> tuple[Expr, Expr]:
        """The first row and column of a warp within its block."""
        warp, across = Var(THREAD) // WARP, self.block.tiles.columns // self.warp_columns
        return warp // across * self.warp_rows, warp % across * self.warp_columns

    def _multiply(self, copies: Copies, stage: Expr) -> Stmt:
        """Add what one round brought. Of the right operand, what two neighbouring products need is read together."""
        row, column = self._own()
        down, pairs, depth = self.fragments.down, self.fragments.across // 2, product_depth(self.dtypes[0])
        left, right = copies
        assert isinstance(right, SharedTile)  # others are for warpgroups
        r, c, deep = Var("r"), Var("c"), Var("k") * depth
        own = self._fragments("own", r, c)
        body = [
            unroll(left.fragment(own[0], stage, row + r * ROWS, deep), r=down),
            unroll(right.fragment(own[1], stage, column + c * 2 * COLUMNS, deep), c=pairs),
        ]
        factors = [own]
        if self.is_split:
            rest = self._fragments("rest", r, c)
            body.append(unroll(Do("split.tf32", (own[0], rest[0]), (own[0],)), r=down))
            body.append(unroll(Do("split.tf32", (own[1], rest[1]), (own[1],)), c=pairs))
            factors = [(own[0], rest[1]), (rest[0], own[1]), own]
        body += [unroll(self._product(*pair), r=down, c=pairs, p=2) for pair in factors]
        return unroll(Block(tuple(body)), k=self.block.depth // depth)

    def _fragments(self, part: str, row: Expr, pair: Expr) -> tuple[Load, Load]:
        """A fragment of the left operand, and those of the right one for two neighbouring products."""
        left, right = self.dtypes
        lanes = ramp(const(0), chunk(left))
        return Load(f"{part}_left", (row, lanes), left), Load(f"{part}_right", (pair, lanes), right)

    def _product(self, left: Load, right: Load) -> Stmt:
        """Multiply fragment `r` by fragment `p` of pair `c`."""
        size, p = chunk(right.dtype) // 2, Var("p")
        sums = self.fragments.sums(Var("r"), Var("c") * 2 + p)
        half = replace(right, index=(Var("c"), ramp(p * size, size)))
        return Do(PRODUCTS[self.dtypes], (sums,), (left, half, sums))
