"""Toom-Cook: the matrices of Winograd's convolutions, and sums of products by small constant matrices.

`m` outputs of a filter of `r` taps, y[i] = sum over k of g[k] * d[i + k], take n = m + r - 1 multiplications instead
of m * r:  y = output @ ((filter @ g) * (input @ d)).  The matrices follow from n - 1 points at which polynomials are
evaluated, and the point at infinity (Lavin and Gray 2015, Fast algorithms for convolutional neural networks;
Blahut 2010, Fast algorithms for signal processing, chapter 5).

With a stride s, every s-th tap meets every s-th value: these are s convolutions of stride 1, added up. They take
n = s * (m - 1) + r multiplications, as many as there are values.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from tunewright.codegen.expr.expr import Expr, op
from tunewright.codegen.ir.ir import AxisMatrix

POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))
"""Small ones first: they keep the entries of the matrices, and with them the rounding errors, small."""


class Transforms(NamedTuple):
    """The three matrices, by what they are multiplied with."""

    input: AxisMatrix  # [n, n]
    filter: AxisMatrix  # [n, r]
    output: AxisMatrix  # [m, n]


@cache
def transforms(m: int, r: int, stride: int = 1) -> Transforms:
    """The matrices for `m` outputs of `r` taps, at least `stride` of them.

    Raises ValueError where they would take more than the points known.
    """
    turns = [_dense(m, len(range(turn, r, stride))) for turn in range(stride)]
    count = stride * (m - 1) + r
    return Transforms(
        tuple(_spread(row, turn, stride, count) for turn, part in enumerate(turns) for row in part.input),
        tuple(_spread(row, turn, stride, r) for turn, part in enumerate(turns) for row in part.filter),
        tuple(tuple(value for part in turns for value in part.output[i]) for i in range(m)),
    )


def _spread(row: Sequence[float], first: int, step: int, count: int) -> tuple[float, ...]:
    """A row of `count` with the values of another at every `step`-th index, and 0 elsewhere."""
    spread = [0.0] * count
    spread[first::step] = row
    return tuple(spread)


def _dense(m: int, r: int) -> Transforms:
    """The matrices of stride 1. One tap needs none: each value is multiplied with it."""
    if r == 1:
        identity = _floats([[Fraction(i == j) for j in range(m)] for i in range(m)])
        return Transforms(identity, ((1.0,),) * m, identity)
    count = m + r - 2
    if count > len(POINTS):
        raise ValueError(f"{m} outputs of {r} taps take {count} points, there are {len(POINTS)}")
    points = POINTS[:count]
    everything = _polynomial(points)
    inputs, taps = [], []
    for number, point in enumerate(points):
        others = [p for n, p in enumerate(points) if n != number]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        inputs.append([*_polynomial(others), Fraction(0)])
        taps.append([point**k / scale for k in range(r)])
    infinity = [Fraction(0)] * (r - 1) + [Fraction(1)]
    results = [[*(p**i for p in points), Fraction(i == m - 1)] for i in range(m)]
    return Transforms(_floats([*inputs, everything]), _floats([*taps, infinity]), _floats(results))


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, constant first, of the product of all x - root."""
    total = [Fraction(1)]
    for root in roots:
        total = [low - root * high for low, high in zip([Fraction(0), *total], [*total, Fraction(0)], strict=True)]
    return total


def _floats(rows: Sequence[Sequence[Fraction]]) -> AxisMatrix:
    return tuple(tuple(map(float, row)) for row in rows)


def multiply(matrix: AxisMatrix, values: Sequence[Expr]) -> list[Expr]:
    """The matrix times a vector of expressions, in few operations.

    The matrices of `transforms` come from points p and -p, so two of their rows, or of their columns, are alike but
    for signs: what such a pair shares is computed once.
    """
    columns, values = _pair_columns(matrix, values)
    results: dict[int, Expr] = {}
    for number, row in enumerate(columns):
        if number in results:
            continue
        twin = next((n for n in range(number + 1, len(columns)) if _is_mirror(row, columns[n])), None)
        if twin is None:
            results[number] = _sum(row, values)
            continue
        same, opposite = (_sum(part, values) for part in _halves(row, columns[twin]))
        results[number], results[twin] = same + opposite, same - opposite
    return [results[number] for number in range(len(columns))]


def _is_mirror(row: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two rows differ in signs alone, some equal and some opposite."""
    pairs = [(a, b) for a, b in zip(row, other, strict=True) if a or b]
    alike = all(abs(a) == abs(b) for a, b in pairs)
    return alike and len({a == b for a, b in pairs}) == 2


def _halves(row: Sequence[float], other: Sequence[float]) -> tuple[list[float], list[float]]:
    """The entries that a row has in common with its mirror, and those of opposite sign."""
    pairs = list(zip(row, other, strict=True))
    return [a if a == b else 0.0 for a, b in pairs], [a if a == -b else 0.0 for a, b in pairs]


def _pair_columns(matrix: AxisMatrix, values: Sequence[Expr]) -> tuple[list[list[float]], list[Expr]]:
    """The same product, with sums and differences of two values in the place of the values, where that saves work."""
    columns = [list(column) for column in zip(*matrix, strict=True)]
    fresh: list[Expr] = []
    twins: set[int] = set()
    result: list[list[float]] = []
    for number, column in enumerate(columns):
        if number in twins:
            continue
        twin = next((n for n in range(number + 1, len(columns)) if _is_mirror(column, columns[n])), None)
        if twin is None or twin in twins:
            result.append(column)
            fresh.append(values[number])
            continue
        twins.add(twin)
        result += _halves(column, columns[twin])
        fresh += [values[number] + values[twin], values[number] - values[twin]]
    return [list(row) for row in zip(*result, strict=True)], fresh


def _sum(coefficients: Sequence[float], values: Sequence[Expr]) -> Expr:
    """The sum of products with constants, those with 1 first, as they need no multiplication."""
    terms = [(c, v) for c, v in zip(coefficients, values, strict=True) if c]
    terms.sort(key=lambda term: (term[0] != 1, term[0] != -1))
    factor, total = terms[0]
    if factor != 1:
        total = total * factor
    for factor, value in terms[1:]:
        if factor == 1:
            total = total + value
        elif factor == -1:
            total = total - value
        else:
            total = op("fma", value, factor, total)
    return total
