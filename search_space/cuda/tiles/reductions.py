"""Reductions: what lanes of a warp, or blocks of a launch, have of the same results is combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce

from tunewright.codegen.expr.expr import Expr, Load, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.instructions.table import shuffle_name
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, Do, Scope, Stmt, Store

PARTS = "parts"
"""The buffer of what blocks have that share results, the number of the part first."""

WHOLE = "whole"
"""The registers of what parts come to."""


def combine_all(combine: str, parts: Sequence[Expr]) -> Expr:
    """Parts combined by an op, one after another."""
    return reduce(partial(op, combine), parts)


def warp_reduce(combine: str, part: Load, other: Load, masks: Iterable[int]) -> Iterator[Stmt]:
    """Combine a register of each lane with those of the lanes whose numbers differ in bits of the masks.

    All of these lanes then have the result in `part`. `other` is a register for what another lane has.
    """
    for mask in masks:
        yield Do(shuffle_name(mask, part.dtype.size_bytes), (other,), (part,))
        yield Store(part.tensor, part.index, op(combine, part, other))


def part_width(extent: int) -> int:
    """Neighbours, of so many, whose parts a thread combines."""
    return next(n for n in (4, 2, 1) if extent % n == 0)


def combine_parts(combine: str, parts: Buffer, first: Sequence[Expr], write: Callable[[Load], Stmt], wide: int) -> Stmt:
    """What a thread does with the parts of `wide` neighbours from `first` on: `write` takes what they come to."""
    *outer, last = first
    index, own = (*outer, ramp(last, wide)), (ramp(const(0), wide),)
    loads = [Load(parts.name, (const(number), *index), parts.dtype) for number in range(parts.shape[0])]
    total = Load(WHOLE, own, parts.dtype)
    body = Block((Store(WHOLE, own, combine_all(combine, loads)), write(total)))
    return Alloc(Buffer(WHOLE, (wide,), parts.dtype, Scope.REGISTER), body)
