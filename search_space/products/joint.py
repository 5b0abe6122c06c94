"""Joint: a task as several products over the same axes, and what follows from them element by element.

The step of an LSTM or GRU is such: each gate is a product of the last state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tunewright.codegen.expr import Var, free_vars, loads
from tunewright.graph.task import Stage, Task

from ..nests.phases import contiguous
from ..nests.pieces import Piece
from .product import Product, factors, packable


@dataclass(frozen=True, slots=True)
class Joint:
    """The products, each seen with the same axis along the lanes, and the stages that follow, in order."""

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
        return tuple(axis.name for axis in self.products[0].piece.stage.axes if axis.name != self.vector)

    @property
    def tiled(self) -> str:
        """The row axis that register tiles have several of; "" if there is none."""
        return self.rows[-1] if self.rows else ""

    def extent(self, axis: str) -> int:
        """Extent of an axis; 1 for none."""
        return self.products[0].extent(axis) if axis else 1

    @property
    def depth(self) -> int:
        """Extent of the innermost reduction axis."""
        return self.products[0].piece.stage.reduce[-1].extent

    @property
    def points(self) -> int:
        """Multiply-adds of all products."""
        return sum(one.piece.stage.points for one in self.products)


@lru_cache(maxsize=256)
def joint(task: Task) -> Joint | None:
    """The task as several products and what follows element by element; None if it is anything else."""
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
    given = {t.name for t in task.outputs}
    if not between or len(places) < len(task.stages) or inner & given:
        return None
    vector = shape[0][-1].name
    if any(_last(s) != vector for s in after if s.output in given):
        return None
    products = [one for stage in sums if (one := _product(task, stage, vector)) is not None]
    if len(products) < len(sums) or inner & {x.tensor for s in sums for x in loads(s.body)}:
        return None
    return Joint(tuple(products), after, frozenset(given))


def _last(stage: Stage) -> str:
    """The axis along which what a stage writes is contiguous."""
    return stage.index[-1].name if stage.index and isinstance(stage.index[-1], Var) else ""


def _product(task: Task, stage: Stage, vector: str) -> Product | None:
    """A stage as a product of scalars and a panel whose vectors can be read as they lie; None if it is no such."""
    operands = factors(stage)
    if operands is None or sum(vector in free_vars(load) for load in operands) != 1:
        return None
    left, right = operands
    panel, other = (right, left) if vector in free_vars(right) else (left, right)
    axes = [a.name for a in stage.axes if a.name != vector]
    if set(free_vars(panel)) & set(axes[-1:]):  # a vector of the panel serves several rows
        return None
    found = Product.of(Piece.of(stage), panel, other, vector)
    return found if packable(task, panel) or contiguous(panel.index, vector) else None
