"""Block matmul: weights of four or eight bits, of which every block along the reduction has a scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunewright.codegen.expr.dtype import WORD_BYTES
from tunewright.codegen.expr.expr import Load, Var
from tunewright.graph.block_product import match_block_product
from tunewright.graph.task import Task, Tensor

from .fused_stage import FusedStage, fuse_stages


@dataclass(frozen=True, slots=True)
class BlockMatMul:
    """The main fused stage of a task as such a product, and its tensors.

    `numbers` are [columns, blocks, size], `scales`, of a type that is cast to float32, and `zeros` [columns, blocks],
    or one number. Where `x` is rounded to bytes, `x_scales` are [rows, blocks].
    """

    before: tuple[FusedStage, ...]
    fused_stage: FusedStage
    after: tuple[FusedStage, ...]
    x: Tensor
    numbers: Tensor
    scales: Tensor
    zeros: Tensor | int
    is_plain: bool  # whether `x` is [rows, blocks, size], or without rows where there is one
    row: str  # "" where there is one; of a plain `x`
    column: str
    bits: int  # of a weight, 4 or 8
    x_scales: Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of rows of a plain `x`."""
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
    def together(self) -> int:
        """The bytes of a block that are multiplied by one instruction, along the reduction."""
        return 1 if self.x_scales is None else WORD_BYTES

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
    operands = match_block_product(fused_stage.stage.body)
    if operands is None or fused_stage.stage.combiner != "sum":
        return None
    bits, loads = operands.bits, (operands.x, operands.number, operands.scale)
    names = {tensor.name: tensor for tensor in (*task.inputs, *task.temporaries)}
    x, numbers, scales = (names.get(load.tensor) for load in loads)
    zeros = names.get(operands.zero.tensor) if isinstance(operands.zero, Load) else int(operands.zero.value)
    x_scales = names.get(operands.x_scale.tensor) if operands.x_scale else None
    if x is None or numbers is None or zeros is None or scales is None or (operands.x_scale and x_scales is None):
        return None
    weights = [tensor for tensor in (numbers, scales, zeros) if isinstance(tensor, Tensor)]
    if not all(tensor.constant for tensor in weights) or len(numbers.shape) != 3:
        return None
    column, *deep = operands.number.index
    if not isinstance(column, Var) or any(_reads(fused_stages, tensor.name) > 1 for tensor in weights):
        return None
    is_plain = numbers.shape[1:] == x.shape[-2:] and operands.x.index[-2:] == tuple(deep)
    row = operands.x.index[0] if is_plain and len(x.shape) == 3 else None
    name = row.name if isinstance(row, Var) else ""
    before, after = tuple(fused_stages[:main]), tuple(fused_stages[main + 1 :])
    return BlockMatMul(
        before, fused_stage, after, x, numbers, scales, zeros, is_plain, name, column.name, bits, x_scales
    )


def _reads(fused_stages: list[FusedStage], tensor: str) -> int:
    return sum(load.tensor == tensor for fused_stage in fused_stages for load in fused_stage.reads)
