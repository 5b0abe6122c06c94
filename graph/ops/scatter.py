"""Ops that sort, or write where indices say, by comparisons: each place looks for what is for it.

That takes time in proportion to places times candidates, in vectors and without branches. Where they are few it is
less than leaving native code; the others run elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..task import Index, Tensor, identity, load
from .definition import ARITHMETIC, Definition, OpDef, where_all

I64 = DType.I64
INDICES = (DType.I64, DType.I32)

MAX_COMPARISONS = 1 << 16
"""Most comparisons of a node: some 15 us on one core, what a node costs that runs elsewhere."""

FEW = 4
"""Candidates that any number of places may be compared with: not much more than a copy."""

_COMBINERS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def _require_few(d: Definition, places: int, candidates: int) -> None:
    is_few = candidates <= FEW or places * candidates <= MAX_COMPARISONS
    d.require(is_few, f"{candidates:,} candidates for {places:,} places; at most {MAX_COMPARISONS:,} comparisons")


def _clamp(number: Expr, count: int) -> Expr:
    """A number that is in bounds, which a kernel has to see."""
    return op("min", op("max", number, 0), count - 1)


def _index(indices: Tensor, at: Index, extent: int) -> Expr:
    """An index, which may count from the end."""
    value = op("cast", load(indices, at), dtype=I64)
    return op("select", op("lt", value, 0), op("add", value, extent), value)


def _scatter(
    d: Definition,
    count: int,
    rank: int,
    is_for: Callable[[Index, Expr], list[Expr]],
    update: Callable[[Index, Expr], Expr],
) -> None:
    """Write the result, for conditions that an update of a number is for a place, in which `rank` dimensions matter."""
    x, y, reduction = d.input(0), d.output(), str(d.attr("reduction", "none"))
    _require_few(d, prod(x.shape[:rank] if reduction == "none" else x.shape), count)
    if reduction == "none":
        last = d.fold(
            d.temporary(x.shape[:rank], I64), "max", (count,), lambda i, r: where_all(is_for(i, r[0]), r[0], const(-1))
        )

        def element(i: Index) -> Expr:
            number = load(last, i[:rank])
            return op("select", op("le", const(0), number), update(i, _clamp(number, count)), load(x, i))

        d.write(y, element)
        return
    d.require(x.dtype in ARITHMETIC, f"{x.dtype} operand")
    combiner = _COMBINERS[reduction]
    nothing = const(identity(combiner, x.dtype), x.dtype)
    total = d.fold(
        d.temporary(x.shape, x.dtype),
        combiner,
        (count,),
        lambda i, r: where_all(is_for(i, r[0]), update(i, r[0]), nothing),
    )
    d.write(y, lambda i: op(reduction, load(x, i), load(total, i)))


def scatter_elements(d: Definition) -> None:
    """Single elements replaced by updates, each at an index along one dimension, or joined with them.

    Of several updates for a place the last one stays. An index outside is for no place.
    """
    x, indices, updates = d.input(0), d.input(1, *INDICES), d.input(2)
    axis = int(d.attr("axis"))
    count = indices.shape[axis]

    def source(i: Index, number: Expr) -> tuple[Index, list[Expr]]:
        """Where a place's update of that number along the axis is, and the conditions that there is one."""
        place, inside = list(i), []
        for k, (own, whole) in enumerate(zip(indices.shape, x.shape, strict=True)):
            if k != axis and own < whole:
                inside.append(op("lt", i[k], own))
                place[k] = op("min", i[k], own - 1)
        place[axis] = number
        return place, inside

    def is_for(i: Index, number: Expr) -> list[Expr]:
        place, inside = source(i, number)
        return [*inside, op("eq", _index(indices, place, x.shape[axis]), i[axis])]

    _scatter(d, count, len(x.shape), is_for, lambda i, number: load(updates, source(i, number)[0]))


def scatter_nd(d: Definition) -> None:
    """Slices replaced by updates, each at an index vector, or joined with them; see `scatter_elements`."""
    x, indices, updates = d.input(0), d.input(1, *INDICES), d.input(2)
    length = indices.shape[-1]
    count = prod(indices.shape[:-1])
    indices = d.reshape(indices, (count, length))
    updates = d.reshape(updates, (count, *x.shape[length:]))

    def is_for(i: Index, number: Expr) -> list[Expr]:
        return [op("eq", _index(indices, [number, const(k)], x.shape[k]), i[k]) for k in range(length)]

    _scatter(d, count, length, is_for, lambda i, number: load(updates, [number, *i[length:]]))


def top_k(d: Definition) -> None:
    """The largest or smallest elements along an axis and where they are; of equal ones the first. NaN is the largest.

    An element's rank is the number of those before it.
    """
    x = d.input(0, *ARITHMETIC)
    d.require(bool(x.shape), "a scalar")
    (k,), axis, is_largest = d.ints("k"), int(d.attr("axis")), bool(d.attr("largest", 1))
    extent = x.shape[axis]
    shape = [k if a == axis else e for a, e in enumerate(x.shape)]
    _require_few(d, prod(x.shape), extent)

    def at(i: Index, place: Expr) -> Index:
        return [*i[:axis], place, *i[axis + 1 :]]

    def is_before(i: Index, r: Index) -> Expr:
        own, other = load(x, i), load(x, at(i, r[0]))
        low, high = (own, other) if is_largest else (other, own)
        is_ahead, is_same = op("lt", low, high), op("eq", own, other)
        if x.dtype.is_float:
            low_is_nan, high_is_nan = op("ne", low, low), op("ne", high, high)
            is_ahead = op(
                "or", is_ahead, op("lt", op("cast", low_is_nan, dtype=I64), op("cast", high_is_nan, dtype=I64))
            )
            is_same = op("or", is_same, op("and", low_is_nan, high_is_nan))
        is_earlier = op("and", is_same, op("lt", r[0], i[axis]))
        return op("select", op("or", is_ahead, is_earlier), const(1), const(0))

    rank = d.fold(d.temporary(x.shape, I64), "sum", (extent,), is_before)
    places = d.output(1) if d.has_output(1) else d.temporary(shape, I64)
    d.fold(
        places,
        "max",
        (extent,),
        lambda i, r: op("select", op("eq", load(rank, at(i, r[0])), i[axis]), r[0], const(0)),
    )
    if d.has_output(0):
        d.write(d.output(0), lambda i: load(x, at(i, _clamp(load(places, i), extent))))


SCATTER: Mapping[str, OpDef] = {"ScatterElements": scatter_elements, "ScatterND": scatter_nd, "TopK": top_k}
