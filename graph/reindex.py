"""The same place in memory under another shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tunewright.codegen.expr import Expr, const, op
from tunewright.codegen.index import Linear, linear


def reindex(
    index: Sequence[Expr], source: Sequence[int], target: Sequence[int], extents: Mapping[str, int]
) -> tuple[Expr, ...] | None:
    """The element `index` of a dense tensor of shape `source`, as an index under the shape `target`.

    `extents` are those of the axes. None where the result would not be exact without a division.
    """
    if tuple(source) == tuple(target):
        return tuple(index)
    own = [(at, extent) for at, extent in zip(index, source, strict=True) if extent > 1]
    wanted = [extent for extent in target if extent > 1]
    found: list[Expr] = []
    for mine, theirs in _aligned([extent for _, extent in own], wanted):
        parts = _split(_flat([own[d] for d in mine]), [wanted[d] for d in theirs], extents)
        if parts is None:
            return None
        found += parts
    rest = iter(found)
    return tuple(const(0) if extent == 1 else next(rest) for extent in target)


def _aligned(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Runs of dimensions of two shapes that hold equally many elements, as short as can be. No extent is 1."""
    a = b = 0
    while a < len(source):
        first_a, first_b, size_a, size_b = a, b, source[a], target[b]
        a, b = a + 1, b + 1
        while size_a != size_b:
            if size_a < size_b:
                size_a, a = size_a * source[a], a + 1
            else:
                size_b, b = size_b * target[b], b + 1
        yield range(first_a, a), range(first_b, b)


def _flat(parts: Sequence[tuple[Expr, int]]) -> Expr:
    """One index for several dimensions, given the index and extent of each."""
    total: Expr = const(0)
    for at, extent in parts:
        total = op("add", op("mul", total, extent), at)
    form = linear(total)
    return total if form is None or len(parts) == 1 else form.expr()


def _split(flat: Expr, shape: Sequence[int], extents: Mapping[str, int]) -> list[Expr] | None:
    """One index for each of several dimensions, given one for all of them."""
    if len(shape) == 1:
        return [flat]
    form = linear(flat)
    if form is None:
        return None
    found: list[Expr] = []
    for extent in reversed(shape[1:]):
        whole = {axis: c // extent for axis, c in form.coefficients.items() if c % extent == 0}
        rest = Linear({axis: c for axis, c in form.coefficients.items() if c % extent}, form.constant % extent)
        low, high = rest.bounds(extents)
        if low < 0 or high >= extent:
            return None
        found.append(rest.expr())
        form = Linear(whole, form.constant // extent)
    return [form.expr(), *reversed(found)]
