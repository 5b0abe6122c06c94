"""Byte product: unsigned by known signed bytes, four at a time, as a register-tiled loop nest.

The loops are those of a contraction of words, see `contraction`; one instruction multiplies and adds the bytes of a
vector of them, or some do so where bytes have to be made numbers of 16 bits first: those of weights in registers, those
of activations as a phase copies them, as each is read for many columns. Small weights need neither. Each lane has
neighbours along the reduction: so they lie in the activations, and so weights are packed. Sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..description import SchedulePoint
from ..patterns.dot import match_dot
from ..patterns.product import Product
from .packed_dot import DotSketch, if_wide

LEAST_ROWS = 4
"""Rows below which activations are not copied as numbers of 16 bits: a phase more costs more than it saves."""


class ByteProductSketch(DotSketch):
    """A register-tiled loop nest of one product of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.version = "byte_product", 2

    def recognise(self, task: Task, target: Target) -> Product | None:
        product = match_dot(task) if target.has_dots else None
        if product and not target.has_quick_dots and prod(map(product.extent, product.rows)) >= LEAST_ROWS:
            product = match_dot(task, is_wide=True)
        return if_wide(product, target)

    def copies(self, depth: int, target: Target) -> tuple[int, ...]:
        # LLVM adds up what several copies multiplied before it adds that to the sums, which takes more registers than
        # there are. An instruction that adds as well leaves it nothing to add up.
        return super().copies(depth, target) if target.has_quick_dots else (1,)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from super().describe(point)
        is_quick = point.target.has_quick_dots or any(tensor.small for tensor in point.task.inputs)
        how = "four at a time" if is_quick else "two at a time, as words"
        yield f"Bytes are multiplied {how}, and added up exactly."
