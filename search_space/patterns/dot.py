"""Dot: a product of small numbers as one of words, each of neighbours along the reduction.

Processors multiply unsigned bytes by signed ones, four at a time, and add up in 32 bits; and pairs of bfloat16, whose
sums are float32.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tunewright.codegen.expr.dtype import BYTES, PAIR, WORD_BYTES, DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, free_vars, op
from tunewright.graph.task import Axis, Stage, Task

from .fused_stage import FusedStage
from .product import INTERIOR, Product, broadcast_tensor, drop_padding, is_packable, match_product

COPIED = "copied"
"""The name of an operand that a phase copies: its numbers lie together along the reduction then, or have two bytes."""

ZERO = const(0, DType.I32)


def copies_of(product: Product) -> list[FusedStage]:
    """The phases before a product that only copy its operand."""
    return [phase for phase in product.before if phase.output in (INTERIOR, COPIED)]


@lru_cache(maxsize=256)
def match_dot(task: Task, is_padded: bool = False, is_wide: bool = False) -> Product | None:
    """The task's product of unsigned bytes by known signed ones, as one of words; None if there is none.

    `is_padded`: zeros around an operand are multiplied too, so that all windows are alike. `is_wide`: its unsigned
    bytes are copied as signed numbers of two, unless the others are small.
    """
    product = match_product(task, BYTES)
    if product is None or (product.panel.dtype, product.broadcast.dtype) != (DType.I8, DType.U8):
        return None
    is_small = task.tensor(product.panel.tensor).small
    words = _in_words(task, product, WORD_BYTES, is_padded)
    if words is None:
        return None
    return _multiply_halves(_widen(task, words)) if is_wide and not is_small else _multiply_bytes(words, is_small)


@lru_cache(maxsize=256)
def match_bf16_dot(task: Task, is_padded: bool = False) -> Product | None:
    """The task's product of bfloat16 by known ones, as one of words; None if there is none. `is_padded` as above."""
    product = match_product(task, frozenset({DType.BF16}))
    words = product and _in_words(task, product, PAIR, is_padded)
    return _multiply_words(words, "dot2_bf16", const(0.0), PAIR) if words else None


def _in_words(task: Task, product: Product, together: int, is_padded: bool) -> Product | None:
    """The product with so many numbers together along the reduction in both operands; None where they can't be.

    Those of the panel are so once it is packed.
    """
    last = product.fused_stage.stage.reduce[-1]
    if not is_packable(task, product.panel) or Var(last.name) not in product.panel.index or last.extent % together:
        return None
    bare = product if is_padded else drop_padding(task, product)
    if bare.broadcast.index[-1] == Var(last.name) and broadcast_tensor(task, bare).shape[-1] % together == 0:
        return bare
    return _turn(product)  # with the padding: it reads beyond the edges


def _turn(product: Product) -> Product:
    """The product with its operand copied: one element for each that is read, the reduction's last axis innermost."""
    stage, last = product.fused_stage.stage, product.fused_stage.stage.reduce[-1]
    extents = {axis.name: axis for axis in (*stage.axes, *stage.reduce)}
    names = [name for name in free_vars(*product.broadcast.index) if name != last.name]
    axes = (*(extents[name] for name in names), Axis(last.name, last.extent))
    copy = FusedStage.of(Stage(COPIED, axes, product.broadcast))
    index: tuple[Expr, ...] = tuple(Var(axis.name) for axis in axes)
    turned = product.with_operand(product.broadcast, Load(COPIED, index, product.broadcast.dtype))
    return replace(turned, before=(*product.before, copy))


def _widen(task: Task, product: Product) -> Product:
    """The product with its operand copied as signed numbers of two bytes, by the phase that copies it anyway if any."""
    read, tensor = product.broadcast, broadcast_tensor(task, product)
    copies = [copy for copy in copies_of(product) if copy.output == tensor.name]
    if copies:
        stage = copies[0].stage
    else:
        axes = tuple(Axis(f"i{number}", extent) for number, extent in enumerate(tensor.shape))
        stage = Stage(COPIED, axes, Load(tensor.name, tuple(Var(axis.name) for axis in axes), DType.U8))
    wide = FusedStage.of(replace(stage, body=op("cast", stage.body, dtype=DType.I16)))
    widened = product.with_operand(read, Load(stage.output, read.index, DType.I16))
    return replace(widened, before=(*(phase for phase in product.before if phase not in copies), wide))


def _multiply_bytes(product: Product, is_small: bool) -> Product:
    """The same sums, of words of four bytes of both operands."""
    return _multiply_words(product, "dot4_small" if is_small else "dot4", ZERO, WORD_BYTES)


def _multiply_words(product: Product, name: str, zero: Expr, together: int) -> Product:
    """The same sums, by an op on words of so many numbers of both operands."""
    panel, broadcast = (Load(x.tensor, x.index, DType.I32) for x in (product.panel, product.broadcast))
    return _of_words(product, panel, op(name, broadcast, panel, zero), together)


def _multiply_halves(product: Product) -> Product:
    """The same sums, of words of two numbers that were copied with two bytes each, and pairs of the panel's bytes."""
    panel, broadcast = Load(product.panel.tensor, product.panel.index, DType.I16), product.broadcast
    words = Load(broadcast.tensor, broadcast.index, DType.I32)
    return _of_words(product, panel, op("dot2", words, op("widen_bytes", panel, dtype=DType.I32), ZERO), PAIR)


def _of_words(product: Product, panel: Load, body: Expr, together: int) -> Product:
    """The product whose last axis of the reduction counts words of so many numbers."""
    stage = product.fused_stage.stage
    *outer, last = stage.reduce
    reduce = (*outer, replace(last, extent=last.extent // together))
    fused_stage = replace(product.fused_stage, stage=replace(stage, body=body, reduce=reduce))
    return replace(product, fused_stage=fused_stage, panel=panel)
