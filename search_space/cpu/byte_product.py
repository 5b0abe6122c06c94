"""Byte product: unsigned by known signed bytes, four at a time, as a register-tiled loop nest.

The loops are those of a contraction of words, see `contraction`; one instruction multiplies and adds the bytes of a
vector of them. Each lane has four neighbours along the reduction: so they lie in the activations, and so weights are
packed. Sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load
from tunewright.codegen.ir.ir import WORD_BYTES, Buffer, Kernel, words_of
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..buffers import buffer, kernel_around, own_buffer
from ..description import SchedulePoint
from ..patterns.dot import TURNED, match_dot
from ..patterns.product import INTERIOR, Product, broadcast_tensor, pack_panel, prefetch_rows
from ..schedule import Schedule
from .contraction import ContractionSketch, nest_of, write_phase
from .loops.lower import lower


class ByteProductSketch(ContractionSketch):
    """A register-tiled loop nest of one product of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.version = "byte_product", 1

    def recognise(self, task: Task, target: Target) -> Product | None:
        product = match_dot(task) if target.has_dots else None
        return product if product and product.extent(product.vector) * 2 >= target.lanes(4) else None

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        nest = nest_of(product, schedule, target)
        tensor = task.tensor(product.panel.tensor)
        width = -(-nest.tile_extent(product.vector) // nest.lanes) * nest.lanes
        packing, index = pack_panel(product, tensor, width, together=WORD_BYTES)
        panel = words_of(Buffer(tensor.name, packing.shape, tensor.dtype))
        words = words_of(buffer(broadcast_tensor(task, product)))
        read = product.broadcast
        product = product.with_operand(read, Load(words.name, read.index, DType.I32))
        product = product.with_panel(Load(panel.name, index, DType.I32))
        early = {panel.name: prefetch_rows(width)} if schedule["ahead"] else {}
        main = lower(replace(nest, fused_stage=product.fused_stage, prefetch=early))
        own = [own_buffer(stage) for stage in product.before if stage.output in (INTERIOR, TURNED)]
        phase = partial(write_phase, target=target)
        kernel = kernel_around((main,), task, product.stages, phase, {tensor.name: packing}, own)
        return replace(kernel, words=(panel, words))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from super().describe(point)
        yield "Bytes are multiplied four at a time, and added up exactly."
