"""Affine indices: places in memory as sums of multiples of axes, and the same place under another shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tunewright.codegen.expr import Const, Expr, Op, Var, const, op


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant` plus the sum of `coefficient * axis`. No coefficient is zero."""

    coefficients: Mapping[str, int]
    constant: int

    def plus(self, other: Affine, scale: int = 1) -> Affine:
        """`self + scale * other`."""
        total = dict(self.coefficients)
        for axis, coefficient in other.coefficients.items():
            total[axis] = total.get(axis, 0) + scale * coefficient
        return Affine({a: c for a, c in total.items() if c}, self.constant + scale * other.constant)

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value where each axis runs below its extent."""
        spans = [c * (extents[a] - 1) for a, c in self.coefficients.items()]
        return self.constant + sum(min(s, 0) for s in spans), self.constant + sum(max(s, 0) for s in spans)

    def expr(self) -> Expr:
        """The form as an expression."""
        total: Expr = const(0)
        for axis, coefficient in self.coefficients.items():
            total = op("add", total, op("mul", Var(axis), coefficient))
        return op("add", total, self.constant)


def affine(expr: Expr) -> Affine | None:
    """The affine form of an index; None if it has none."""
    match expr:
        case Const(int() as value):
            return Affine({}, value)
        case Var(name):
            return Affine({name: 1}, 0)
        case Op("add" | "sub" | "mul" as name, (left, right)):
            a, b = affine(left), affine(right)
            if a is None or b is None:
                return None
            if name != "mul":
                return a.plus(b, 1 if name == "add" else -1)
            if a.coefficients and b.coefficients:
                return None
            return Affine({}, 0).plus(*((a, b.constant) if a.coefficients else (b, a.constant)))
        case Op("neg", (inner,)):
            form = affine(inner)
            return form and Affine({}, 0).plus(form, -1)
    return None


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
    form = affine(total)
    return total if form is None or len(parts) == 1 else form.expr()


def _split(flat: Expr, shape: Sequence[int], extents: Mapping[str, int]) -> list[Expr] | None:
    """One index for each of several dimensions, given one for all of them."""
    if len(shape) == 1:
        return [flat]
    form = affine(flat)
    if form is None:
        return None
    found: list[Expr] = []
    for extent in reversed(shape[1:]):
        whole = {axis: c // extent for axis, c in form.coefficients.items() if c % extent == 0}
        rest = Affine({axis: c for axis, c in form.coefficients.items() if c % extent}, form.constant % extent)
        low, high = rest.bounds(extents)
        if low < 0 or high >= extent:
            return None
        found.append(rest.expr())
        form = Affine(whole, form.constant // extent)
    return [form.expr(), *reversed(found)]
