"""Block matmul: weights of four or eight bits, of which every block along the reduction has a scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Op, Var
from tunewright.graph.task import Task, Tensor

from .fused_stage import FusedStage, fuse_stages


@dataclass(frozen=True, slots=True)
class BlockMatMul:
    """The main fused stage of a task as such a product, and its tensors.

    `x` is [rows, blocks, size], or without rows where there is one; `numbers` are [columns, blocks, size], `scales` and
    `zeros` [columns, blocks].
    """

    before: tuple[FusedStage, ...]
    fused_stage: FusedStage
    after: tuple[FusedStage, ...]
    x: Tensor
    numbers: Tensor
    scales: Tensor
    zeros: Tensor
    row: str  # "" where there is one
    column: str
    bits: int  # of a weight, 4 or 8

    @property
    def rows(self) -> int:
        """The number of rows."""
        return prod(self.x.shape[:-2])

    @property
    def blocks(self) -> int:
        """The blocks of a column."""
        return self.numbers.shape[1]

    @property
    def halves(self) -> int:
        """The numbers that share a byte: one of each half of a block, or of the whole."""
        return 8 // self.bits

    @property
    def places(self) -> int:
        """The bytes of a block."""
        return self.numbers.shape[2] // self.halves

    @property
    def stages(self) -> tuple[tuple[FusedStage, ...], FusedStage, tuple[FusedStage, ...]]:
        """The fused stages of the task: those before, this one, those after."""
        return self.before, self.fused_stage, self.after


@lru_cache(maxsize=256)
def match_block_matmul(task: Task) -> BlockMatMul | None:
    """The task's product with known weights in blocks, as `graph.ops` defines it; None if there is none."""
    fused_stages = fuse_stages(task)
    main = max(range(len(fused_stages)), key=lambda n: fused_stages[n].stage.points)
    fused_stage = fused_stages[main]
    bits, operands = _operands(fused_stage.stage.body)
    if operands is None or fused_stage.stage.combiner != "sum":
        return None
    names = {tensor.name: tensor for tensor in (*task.inputs, *task.temporaries)}
    x, numbers, zeros, scales = (names.get(load.tensor) for load in operands)
    if x is None or numbers is None or zeros is None or scales is None:
        return None
    if not (numbers.constant and zeros.constant and scales.constant) or numbers.shape[1:] != x.shape[-2:]:
        return None
    row, column = operands[0].index[0] if len(x.shape) == 3 else None, operands[1].index[0]
    if (
        not isinstance(column, Var)
        or len(numbers.shape) != 3
        or sum(_reads(fused_stages, tensor.name) for tensor in (numbers, zeros, scales)) > 3
    ):
        return None
    before, after = tuple(fused_stages[:main]), tuple(fused_stages[main + 1 :])
    name = row.name if isinstance(row, Var) else ""
    return BlockMatMul(before, fused_stage, after, x, numbers, scales, zeros, name, column.name, bits)


def _operands(body: Expr) -> tuple[int, tuple[Load, Load, Load, Load] | None]:
    """The bits of a weight, and what a product reads: x, the numbers, their zero points, their scales."""
    match body:
        case Op("mul", (Load() as x, Op("mul", (Op("cast", (Op("sub", (number, zero)),)), Load() as scale)))):
            match number, zero:
                case Op("mod", (Op("cast", (Load(dtype=DType.U8) as q,)), Const(16))), Op("cast", (Load() as z,)):
                    return 4, (x, q, z, scale)
                case Op("cast", (Load(dtype=DType.U8) as q,)), Op("cast", (Load() as z,)):
                    return 8, (x, q, z, scale)
    return 0, None


def _reads(fused_stages: list[FusedStage], tensor: str) -> int:
    return sum(load.tensor == tensor for fused_stage in fused_stages for load in fused_stage.reads)
