"""Unfolding: a convolution as a product of matrices, the left one with a row for what each window reads (im2col).

Rows in memory begin on multiples of 16 bytes. What would bring the operand into order, or put zeros around it, is
computed as elements are moved. The weights are a matrix as they lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tunewright.codegen.expr.expr import Expr, Load, Var, const, op, substitute
from tunewright.graph.task import Axis, Stage, Task, Tensor

from ..axes import unravel
from .fused_stage import FusedStage
from .padding import find_source
from .product import Product

PATCHES, PLACE = "patches", "place"
"""The tensor of what windows read, and the axis along one of them."""

UNIT_BYTES = 16
"""Rows are whole units of so many bytes, each written at once."""

MOST_BYTES = 256 << 20
"""Most memory for what windows read."""


@dataclass(frozen=True, slots=True)
class Unfolding:
    """A convolution as a product that reads `patches`, and its task with that tensor."""

    task: Task
    product: Product
    patches: FusedStage  # what fills it; the last of its axes goes along a row


@lru_cache(maxsize=256)
def unfold(task: Task, product: Product) -> Unfolding | None:
    """Unfold the windows that a product's broadcast operand is read by.

    None where all images have weights of their own, or the matrix is too large.
    """
    stage, read = product.fused_stage.stage, product.broadcast
    if product.batch or len(stage.reduce) < 2 or read is product.panel:
        return None
    depth, unit = prod(axis.extent for axis in stage.reduce), UNIT_BYTES // read.dtype.size_bytes
    rows = tuple(axis for axis in stage.axes if axis.name in product.rows)
    place = Axis(PLACE, -(-depth // unit) * unit)
    tensor = Tensor(PATCHES, tuple(axis.extent for axis in (*rows, place)), read.dtype)
    if tensor.size_bytes > MOST_BYTES:
        return None
    source = find_source(task, (*product.before, product.fused_stage, *product.after), read, border=None)
    element: Expr = read if source is None else source.at(read.index)
    # Beyond the end of a row, which nobody reads, is its last element once more: so all that is read is there.
    number = op("min", Var(PLACE), depth - 1) if place.extent > depth else Var(PLACE)
    indices = unravel(number, [axis.extent for axis in stage.reduce])
    body = substitute(element, dict(zip((axis.name for axis in stage.reduce), indices, strict=True)))
    patches = FusedStage.of(Stage(PATCHES, (*rows, place), body))
    before = tuple(p for p in product.before if source is None or p is not source.fused_stage)
    matrix = Load(PATCHES, (*(Var(axis.name) for axis in rows), _flat(stage.reduce)), read.dtype)
    return Unfolding(
        replace(task, temporaries=(*task.temporaries, tensor)),
        replace(product.with_operand(read, matrix), before=(*before, patches)),
        patches,
    )


def _flat(axes: tuple[Axis, ...]) -> Expr:
    """The flat index along some axes, of which the last moves first."""
    number: Expr = const(0)
    for axis in axes:
        number = number * axis.extent + Var(axis.name)
    return number
