"""Dot: a product of bytes as one of words, each of four bytes that lie together along the reduction.

Processors multiply unsigned bytes by signed ones, four at a time, and add up in 32 bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tunewright.codegen.expr.dtype import BYTES, DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, free_vars, op
from tunewright.codegen.ir.ir import WORD_BYTES
from tunewright.graph.task import Axis, Stage, Task

from .fused_stage import FusedStage
from .product import Product, broadcast_tensor, drop_padding, is_packable, match_product

TURNED = "turned"
"""The name of an operand that a phase copies so that bytes lie together along the reduction."""


@lru_cache(maxsize=256)
def match_dot(task: Task, is_padded: bool = False) -> Product | None:
    """The task's product of unsigned bytes by known signed ones, as one of words; None if there is none.

    `is_padded`: zeros around an operand are multiplied too, so that all windows are alike.
    """
    product = match_product(task, BYTES)
    if product is None or not is_packable(task, product.panel):
        return None
    if not is_padded:
        product = drop_padding(task, product)
    panel, broadcast, last = product.panel, product.broadcast, product.fused_stage.stage.reduce[-1]
    if (panel.dtype, broadcast.dtype) != (DType.I8, DType.U8) or Var(last.name) not in panel.index:
        return None
    if last.extent % WORD_BYTES:
        return None
    if broadcast.index[-1] != Var(last.name) or broadcast_tensor(task, product).shape[-1] % WORD_BYTES:
        product = _turn(product)
    return _multiply_words(product)


def _turn(product: Product) -> Product:
    """The product with its operand copied: one element for each that is read, the reduction's last axis innermost."""
    stage, last = product.fused_stage.stage, product.fused_stage.stage.reduce[-1]
    extents = {axis.name: axis for axis in (*stage.axes, *stage.reduce)}
    names = [name for name in free_vars(*product.broadcast.index) if name != last.name]
    axes = (*(extents[name] for name in names), Axis(last.name, last.extent))
    copy = FusedStage.of(Stage(TURNED, axes, product.broadcast))
    index: tuple[Expr, ...] = tuple(Var(axis.name) for axis in axes)
    turned = product.with_operand(product.broadcast, Load(TURNED, index, DType.U8))
    return replace(turned, before=(*product.before, copy))


def _multiply_words(product: Product) -> Product:
    """The same sums, of the words of both operands."""
    stage = product.fused_stage.stage
    *outer, last = stage.reduce
    panel, broadcast = (Load(x.tensor, x.index, DType.I32) for x in (product.panel, product.broadcast))
    body = op("dot4", broadcast, panel, const(0, DType.I32))
    reduce = (*outer, replace(last, extent=last.extent // WORD_BYTES))
    fused_stage = replace(product.fused_stage, stage=replace(stage, body=body, reduce=reduce))
    return replace(product, fused_stage=fused_stage, panel=panel)
