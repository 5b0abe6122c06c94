"""Several products over the same axes, and pointwise stages of them.

The step of an LSTM or GRU is such: each gate is a product of the last state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tunewright.codegen.expr.expr import Var, free_vars, loads
from tunewright.graph.task import Stage, Task

from .fused_stage import FLOATS, FusedStage
from .product import Product, factors, is_packable
from .vector_axis import is_contiguous


@dataclass(frozen=True, slots=True)
class JointProduct:
    """Products with the same axis along the lanes, and the pointwise stages that follow, in order."""

    products: tuple[Product, ...]
    after: tuple[Stage, ...]
    outputs: frozenset[str]  # what the task gives away

    @property
    def vector(self) -> str:
        """The axis along the lanes."""
        return self.products[0].vector

    @property
    def rows(self) -> tuple[str, ...]:
        """The other axes. The last of them is tiled."""
        return tuple(axis.name for axis in self.products[0].fused_stage.stage.axes if axis.name != self.vector)

    @property
    def tile_axis(self) -> str:
        """The row axis of register tiles; "" if there is none."""
        return self.rows[-1] if self.rows else ""

    def extent(self, axis: str) -> int:
        """Extent of an axis; 1 for none."""
        return self.products[0].extent(axis) if axis else 1

    @property
    def depth(self) -> int:
        """Extent of the innermost reduction axis."""
        return self.products[0].fused_stage.stage.reduce[-1].extent

    @property
    def points(self) -> int:
        """Multiply-adds of all products."""
        return sum(product.fused_stage.stage.points for product in self.products)


@lru_cache(maxsize=256)
def match_joint_product(task: Task) -> JointProduct | None:
    """Match a task as several products and pointwise stages; None if it is anything else."""
    sums = [stage for stage in task.stages if stage.reduce]
    after = task.stages[len(sums) :]
    if len(sums) < 2 or not after or any(stage.reduce for stage in after):
        return None
    shape = sums[0].axes, sums[0].reduce
    if any((s.axes, s.reduce) != shape for s in sums) or any(s.axes != shape[0] for s in after) or not shape[0]:
        return None
    places = {stage.output: stage.index for stage in task.stages}
    between = all(x.index == places[x.tensor] for s in after for x in loads(s.body) if x.tensor in places)
    inner = {s.output for s in sums}
    outputs = {t.name for t in task.outputs}
    if not between or len(places) < len(task.stages) or inner & outputs:
        return None
    vector = shape[0][-1].name
    if any(_last_axis(s) != vector for s in after if s.output in outputs):
        return None
    products = [product for stage in sums if (product := _match_product(task, stage, vector)) is not None]
    if len(products) < len(sums) or inner & {x.tensor for s in sums for x in loads(s.body)}:
        return None
    return JointProduct(tuple(products), after, frozenset(outputs))


def _last_axis(stage: Stage) -> str:
    """The axis along which what a stage writes is contiguous."""
    return stage.index[-1].name if stage.index and isinstance(stage.index[-1], Var) else ""


def _match_product(task: Task, stage: Stage, vector: str) -> Product | None:
    """Match a stage as a product whose panel is packable or contiguous; None if it is anything else."""
    operands = factors(stage, FLOATS)
    product = Product.along(FusedStage.of(stage), operands, vector) if operands else None
    axes = [a.name for a in stage.axes if a.name != vector]
    if product is None or set(free_vars(product.panel)) & set(axes[-1:]):  # a vector of the panel serves several rows
        return None
    return product if is_packable(task, product.panel) or is_contiguous(product.panel.index, vector) else None
