"""What a tensor is as a product or as a polynomial: lets a pattern match all the orders in which exporters write it."""

from __future__ import annotations

from collections.abc import Iterator

from .edit import Edit

MAX_DEPTH = 6
"""How many nodes deep a product is looked at."""

MAX_DEGREE = 4
"""Highest power of a polynomial."""

Polynomial = dict[int, float]
"""Exponent -> coefficient."""


def factors(
    edit: Edit, name: str, stop: frozenset[str] = frozenset(), depth: int = MAX_DEPTH
) -> tuple[float, list[str]]:
    """The tensor as a number times other tensors, through nested Muls; those in `stop` are not taken apart."""
    scalar = edit.scalar(name)
    if scalar is not None:
        return scalar, []
    node = edit.made_by(name, "Mul") if name not in stop and depth else None
    if node is None:
        return 1.0, [name]
    parts = [factors(edit, operand, stop, depth - 1) for operand in node.inputs]
    return parts[0][0] * parts[1][0], parts[0][1] + parts[1][1]


def operands(edit: Edit, name: str, depth: int = MAX_DEPTH) -> Iterator[str]:
    """The tensors that a product consists of, partial products included."""
    node = edit.made_by(name, "Mul")
    for operand in node.inputs if node and depth else ():
        yield operand
        yield from operands(edit, operand, depth - 1)


def polynomial(edit: Edit, name: str, base: str, depth: int = 2 * MAX_DEPTH) -> Polynomial | None:
    """The tensor as a polynomial in `base`; None if it isn't one."""
    if name == base:
        return {1: 1.0}
    scalar = edit.scalar(name)
    if scalar is not None:
        return {0: scalar}
    node = edit.made_by(name, "Add", "Mul", "Sub", "Pow") if depth else None
    if node is None:
        return None
    left = polynomial(edit, node.inputs[0], base, depth - 1)
    if left is None:
        return None
    if node.op == "Pow":
        exponent = edit.scalar(node.inputs[1])
        if exponent is None or exponent not in range(1, MAX_DEGREE + 1):
            return None
        result = left
        for _ in range(int(exponent) - 1):
            result = _product(result, left)
        return _limited(result)
    right = polynomial(edit, node.inputs[1], base, depth - 1)
    if right is None:
        return None
    if node.op == "Mul":
        return _limited(_product(left, right))
    sign = 1.0 if node.op == "Add" else -1.0
    return {n: left.get(n, 0.0) + sign * right.get(n, 0.0) for n in left.keys() | right.keys()}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for n, x in a.items():
        for m, y in b.items():
            result[n + m] = result.get(n + m, 0.0) + x * y
    return result


def _limited(a: Polynomial) -> Polynomial | None:
    return a if max(a) <= MAX_DEGREE else None


def close(a: Polynomial | None, b: Polynomial, relative: float = 1e-3) -> bool:
    """Whether two polynomials agree; models write constants with as few as four digits."""
    if a is None:
        return False
    return all(abs(a.get(n, 0.0) - b.get(n, 0.0)) <= relative * abs(b.get(n, 0.0)) for n in a.keys() | b.keys())
