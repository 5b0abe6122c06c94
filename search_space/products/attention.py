"""Attention: a softmax of one product's rows, multiplied with another operand, seen as one.

    scores = finish(queries x keys)        [batch, rows, places]
    top = max over places of scores
    weight = exp(scores - top)
    total = 1 / sum over places of weight
    output = finish(weight * total x values)

Vaswani et al., "Attention Is All You Need" (2017); by blocks of places, which is what this is for: Milakov and
Gimelshein, "Online normalizer calculation for softmax" (2018), Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Op, Var, free_vars, op
from tunewright.graph.task import Axis, Task

from ..nests.pieces import NARROW_TOO, Piece, pieces
from .product import Product, factors


@dataclass(frozen=True, slots=True)
class Attention:
    """Both products. What stands between them is a softmax along `places`, the last axis of the scores."""

    scores: Product  # its panel are the keys
    mixed: Product  # its panel are the values

    @property
    def places(self) -> Axis:
        """The axis of keys and values that is summed over."""
        return next(axis for axis in self.scores.piece.stage.axes if axis.name == self.scores.vector)

    @property
    def score(self) -> Expr:
        """What a score is, before it is rounded to where nothing of it is written."""
        return _unrounded(self.scores.piece.finish)


@lru_cache(maxsize=256)
def attention(task: Task) -> Attention | None:
    """The task as attention; None if it is anything else."""
    parts = pieces(task)
    if len(parts) != 6 or len(task.outputs) != 1:
        return None
    first, *between, last = parts
    scores, weights = _softmax(first, between)
    if scores is None or weights is None or first.stage.axes[-1].name != scores.name:
        return None
    keys = _operands(first, scores.name)
    values = _mixed(last, weights)
    if keys is None or values is None:
        return None
    reads = {x.tensor for part in parts for x in part.reads}
    made = [part.output for part in parts]
    alone = not set(made[:-1]) & {tensor.name for tensor in task.outputs} and len(set(made)) == len(made)
    found = Attention(Product.of(first, keys[1], keys[0], scores.name), values)
    return found if alone and made[-1] not in reads and _alike(found) else None


def _softmax(first: Piece, between: Sequence[Piece]) -> tuple[Var | None, str | None]:
    """The axis of scores that four pieces take the softmax along, and the tensor that they make; else nothing."""
    top, weight, total, normal = between
    *rows, along = first.index
    if not isinstance(along, Var) or [part.stage.combiner for part in (top, total)] != ["max", "sum"]:
        return None, None
    if any(len(part.stage.reduce) != 1 for part in (top, total)) or weight.stage.reduce or normal.stage.reduce:
        return None, None
    if any(not all(isinstance(place, Var) for place in part.index) for part in (first, top, weight, total, normal)):
        return None, None

    def score(at: tuple[Expr, ...]) -> Expr:
        return op("cast", Load(first.output, at, first.finish.dtype), dtype=DType.F32)

    def folded(part: Piece) -> tuple[Expr, ...]:
        return (*part.stage.index, Var(part.stage.reduce[0].name))

    is_top = top.stage.body == score(folded(top)) and _is_plain(top)
    at = weight.index
    raised = op("exp", op("sub", score(at), Load(top.output, at[:-1], DType.F32)))
    is_weight = weight.finished(weight.stage.body) == raised
    is_total = total.stage.body == Load(weight.output, folded(total), DType.F32)
    inverse = op("div", Const(1.0, DType.F32), Load(total.stage.output, total.stage.index, DType.F32))
    at = normal.index
    scaled = op("mul", Load(weight.output, at, DType.F32), Load(total.output, at[:-1], DType.F32))
    is_normal = _unrounded(normal.finished(normal.stage.body)) == scaled
    is_softmax = is_top and is_weight and is_total and total.finish == inverse and is_normal
    return (along, normal.output) if is_softmax and rows else (None, None)


def _is_plain(part: Piece) -> bool:
    return part.finish == Load(part.stage.output, part.stage.index, part.finish.dtype)


def _unrounded(value: Expr) -> Expr:
    """A value before it is cast to a narrow type."""
    if isinstance(value, Op) and value.name == "cast" and value.dtype.is_narrow:
        return value.args[0]
    return value


def _operands(first: Piece, along: str) -> tuple[Load, Load] | None:
    """Queries and keys."""
    found = factors(first.stage, NARROW_TOO)
    if found is None:
        return None
    one, other = found
    if along in free_vars(one):
        one, other = other, one
    return None if along in free_vars(one) or along not in free_vars(other) else (one, other)


def _mixed(last: Piece, weights: str) -> Product | None:
    """The product of the weights and the values, which lie along the output's last axis."""
    found = factors(last.stage, NARROW_TOO)
    if found is None or weights not in (found[0].tensor, found[1].tensor) or len(last.stage.reduce) != 1:
        return None
    weight, values = found if found[0].tensor == weights else found[::-1]
    vector = last.stage.axes[-1].name
    along = last.stage.reduce[0].name
    if weight.index[-1] != Var(along) or vector in free_vars(weight) or vector not in free_vars(values):
        return None
    if not all(isinstance(place, Var) for place in weight.index):
        return None
    return Product.of(last, values, weight, vector)


def _alike(found: Attention) -> bool:
    """Whether both products go through the same rows of the same batches, and keys and values have no axes beside."""
    scores, mixed = found.scores, found.mixed
    mine = dict(zip(_names(scores.piece.index), _names(mixed.other.index), strict=True))
    rows, batch = (tuple(mine.get(name) for name in names) for names in (scores.rows, scores.batch))
    same = rows == mixed.rows and batch == mixed.batch
    return same and not scores.columns and not mixed.columns and bool(rows)


def _names(index: Sequence[Expr]) -> list[str]:
    return [place.name for place in index if isinstance(place, Var)]
