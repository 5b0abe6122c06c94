"""Attention: a softmax of one product's rows, multiplied with another operand, as one pattern.

    scores = epilogue(queries x keys)      [batch, rows, keys]
    top = max over keys of scores
    weight = exp(scores - top)
    total = 1 / sum over keys of weight
    output = epilogue(weight * total x values)

Vaswani et al., "Attention Is All You Need" (2017); by blocks of keys, which is what this is for: Milakov and
Gimelshein, "Online normalizer calculation for softmax" (2018), Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Op, Var, const, op
from tunewright.codegen.expr.index import linear
from tunewright.graph.task import Axis, Task

from .fused_stage import FLOATS, FusedStage, fuse_stages
from .product import Product, factors


@dataclass(frozen=True, slots=True)
class Attention:
    """Both products. Between them is a softmax along `key_axis`, the last axis of the scores.

    One query for each head of keys has no rows: all that there are is a batch of heads.
    """

    scores: Product  # with the keys as panel
    context: Product  # with the values as panel

    @property
    def key_axis(self) -> Axis:
        """The axis of keys and values that is summed over."""
        return next(axis for axis in self.scores.fused_stage.stage.axes if axis.name == self.scores.vector)

    @property
    def score(self) -> Expr:
        """A score in float32, before it is cast to a narrow type."""
        return _widen(self.scores.fused_stage.epilogue)

    @property
    def past(self) -> int | None:
        """Keys before the first query, where no query sees a key after it, and the last axis of rows counts queries.

        None where that is not known. Each query sees the first key.
        """
        match self.score:
            case Op("add", (_, Op("select", (Op("le", (key, query)), shown, hidden)))) if self.scores.rows:
                form = linear(query)
                is_mask = key == Var(self.key_axis.name) and (shown, hidden) == (const(0.0), const(-inf))
                if is_mask and form is not None and form.coefficients == {self.scores.rows[-1]: 1}:
                    return form.constant if form.constant >= 0 else None
        return None


@lru_cache(maxsize=256)
def match_attention(task: Task) -> Attention | None:
    """Match a task as attention; None if it is anything else."""
    fused_stages = fuse_stages(task)
    if len(fused_stages) != 6 or len(task.outputs) != 1:
        return None
    first, *between, last = fused_stages
    scores, weights = _match_softmax(first, between)
    if scores is None or weights is None or first.stage.axes[-1].name != scores.name:
        return None
    queries = _match_product(first, scores.name)
    context = _match_context(last, weights)
    if queries is None or context is None:
        return None
    reads = {x.tensor for part in fused_stages for x in part.reads}
    outputs = [part.output for part in fused_stages]
    alone = not set(outputs[:-1]) & {tensor.name for tensor in task.outputs} and len(set(outputs)) == len(outputs)
    attention = Attention(queries, context)
    return attention if alone and outputs[-1] not in reads and _is_consistent(attention) else None


def _match_softmax(first: FusedStage, between: Sequence[FusedStage]) -> tuple[Var | None, str | None]:
    """Match four fused stages as a softmax of scores: its axis and its output; None for both if it is none."""
    top, weight, total, normal = between
    along = first.index[-1]
    if not isinstance(along, Var) or [part.stage.combiner for part in (top, total)] != ["max", "sum"]:
        return None, None
    if any(len(part.stage.reduce) != 1 for part in (top, total)) or weight.stage.reduce or normal.stage.reduce:
        return None, None
    if any(not all(isinstance(place, Var) for place in part.index) for part in (first, top, weight, total, normal)):
        return None, None

    def score(at: tuple[Expr, ...]) -> Expr:
        return op("cast", Load(first.output, at, first.epilogue.dtype), dtype=DType.F32)

    def fold_index(part: FusedStage) -> tuple[Expr, ...]:
        return (*part.stage.index, Var(part.stage.reduce[0].name))

    is_top = top.stage.body == score(fold_index(top)) and _is_plain(top)
    at = weight.index
    raised = op("exp", op("sub", score(at), Load(top.output, at[:-1], DType.F32)))
    is_weight = weight.apply_epilogue(weight.stage.body) == raised
    is_total = total.stage.body == Load(weight.output, fold_index(total), DType.F32)
    inverse = op("div", Const(1.0, DType.F32), Load(total.stage.output, total.stage.index, DType.F32))
    at = normal.index
    scaled = op("mul", Load(weight.output, at, DType.F32), Load(total.output, at[:-1], DType.F32))
    is_normal = _strip_cast(normal.apply_epilogue(normal.stage.body)) == scaled
    is_softmax = is_top and is_weight and is_total and total.epilogue == inverse and is_normal
    return (along, normal.output) if is_softmax else (None, None)


def _is_plain(part: FusedStage) -> bool:
    return part.epilogue == Load(part.stage.output, part.stage.index, part.epilogue.dtype)


def _strip_cast(value: Expr) -> Expr:
    """A value before it is cast to a narrow type."""
    if isinstance(value, Op) and value.name == "cast" and value.dtype.is_narrow:
        return value.args[0]
    return value


def _widen(value: Expr) -> Expr:
    """A value in float32: before it is cast to a narrow type, also where a condition chooses among some."""
    match value:
        case Op("select", (condition, yes, no)) if value.dtype.is_narrow:
            return op("select", condition, _widen(yes), _widen(no))
    inner = _strip_cast(value)
    return inner if inner.dtype is DType.F32 else op("cast", inner, dtype=DType.F32)


def _match_product(part: FusedStage, vector: str) -> Product | None:
    """Match a product of floats with an axis of its right operand along the lanes."""
    loads = factors(part.stage, FLOATS)
    return Product.along(part, loads, vector) if loads else None


def _match_context(last: FusedStage, weights: str) -> Product | None:
    """Match the product of weights and values, which are contiguous along the output's last axis."""
    context = _match_product(last, last.stage.axes[-1].name)
    if context is None or context.broadcast.tensor != weights or len(last.stage.reduce) != 1:
        return None
    index = context.broadcast.index
    is_row = index[-1] == Var(last.stage.reduce[0].name) and all(isinstance(place, Var) for place in index)
    return context if is_row else None


def _is_consistent(attention: Attention) -> bool:
    """Whether both products go through the same rows of the same batches, and keys and values have no axes beside."""
    scores, mixed = attention.scores, attention.context
    columns_of = dict(zip(_names(scores.fused_stage.index), _names(mixed.broadcast.index), strict=True))
    rows, batch = (tuple(columns_of.get(name) for name in names) for names in (scores.rows, scores.batch))
    same = rows == mixed.rows and batch == mixed.batch
    return same and not scores.columns and not mixed.columns


def _names(index: Sequence[Expr]) -> list[str]:
    return [place.name for place in index if isinstance(place, Var)]
