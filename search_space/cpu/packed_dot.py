"""A product of small numbers with packed weights, whose operands are read as words: what the sketches of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tunewright.codegen.expr.dtype import WORD_BYTES
from tunewright.codegen.expr.expr import Load
from tunewright.codegen.ir.ir import Buffer, Kernel, Packing, Stmt, words_of
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..buffers import buffer, kernel_around, own_buffer
from ..patterns.dot import copies_of
from ..patterns.product import Product, broadcast_tensor, pack_panel, prefetch_rows
from ..schedule import Schedule
from .contraction import ContractionSketch, nest_of, write_phase
from .loops.lower import lower

EXACT_BYTES = "bytes are multiplied four at a time, and added up exactly"
BF16_PAIRS = "bfloat16 is multiplied two at a time, and added up in float32"


class DotSketch(ContractionSketch):
    """A register-tiled loop nest of one product of words."""

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        nest = nest_of(product, schedule, target)
        width = -(-nest.tile_extent(product.vector) // nest.lanes) * nest.lanes
        dot = PackedDot.of(task, product, width)
        early = {dot.panel.name: prefetch_rows(width)} if schedule["ahead"] else {}
        main = lower(replace(nest, fused_stage=dot.product.fused_stage, prefetch=early))
        return dot.kernel(main, task, target)


def if_wide(product: Product | None, target: Target) -> Product | None:
    """The product, if it fills half of a vector of words."""
    return product if product and product.extent(product.vector) * 2 >= target.lanes(WORD_BYTES) else None


@dataclass(frozen=True, slots=True)
class PackedDot:
    """A product whose operands are read from `panel`, the words of the packed weights, and from `words`."""

    product: Product
    weights: str
    packing: Packing
    panel: Buffer
    words: Buffer

    @staticmethod
    def of(task: Task, product: Product, width: int) -> PackedDot:
        """A task's product, see `match_dot`, with weights packed in tiles of `width` columns."""
        tensor, operand = task.tensor(product.panel.tensor), broadcast_tensor(task, product)
        kind, read = product.panel.dtype, product.broadcast
        packing, index = pack_panel(product, tensor, width, kind.size_bytes // tensor.dtype.size_bytes)
        panel = words_of(Buffer(tensor.name, packing.shape, tensor.dtype), kind)
        words = words_of(buffer(operand))
        product = product.with_panel(Load(panel.name, index, kind))
        product = product.with_operand(read, Load(words.name, read.index, read.dtype))
        return PackedDot(product, tensor.name, packing, panel, words)

    def kernel(self, main: Stmt, task: Task, target: Target) -> Kernel:
        """The task's kernel, where `main` computes the product."""
        own = [own_buffer(phase) for phase in copies_of(self.product)]
        phase = partial(write_phase, target=target)
        kernel = kernel_around((main,), task, self.product.stages, phase, {self.weights: self.packing}, own)
        return replace(kernel, words=(self.panel, self.words))
