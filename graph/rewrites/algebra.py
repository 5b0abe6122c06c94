"""What a tensor is as a product or as a polynomial: lets a pattern match all the orders in which exporters write it."""

from __future__ import annotations

from collections.abc import Iterator

from tunewright.graph.ir import Node

from .edit import Edit

MAX_DEPTH = 6
"""How many nodes deep a product is looked at."""

MAX_DEGREE = 4
"""Highest power of a polynomial."""

FEW_ULPS = 2.0**-21
"""How far the constants of a pattern may be off, relatively: products of some float32 numbers as they are rounded."""

Polynomial = dict[int, float]
"""Exponent -> coefficient."""


def factors(
    edit: Edit, name: str, stop: frozenset[str] = frozenset(), depth: int = MAX_DEPTH
) -> tuple[float, list[str]]:
    """The tensor as a number times others, through nested Muls and Divs by numbers; `stop` is not taken apart."""
    scalar = edit.scalar(name)
    if scalar is not None:
        return scalar, []
    node = edit.made_by(name, "Mul", "Div") if name not in stop and depth else None
    if node is None:
        return 1.0, [name]
    return factors_of(edit, node, stop, depth - 1)


def factors_of(
    edit: Edit, node: Node, stop: frozenset[str] = frozenset(), depth: int = MAX_DEPTH
) -> tuple[float, list[str]]:
    """As `factors`, of what a Mul or a Div makes. A Div by anything but a number has no factors but its result."""
    number, others = factors(edit, node.inputs[0], stop, depth)
    if node.op == "Div":
        divisor = edit.scalar(node.inputs[1])
        return (number / divisor, others) if divisor else (1.0, list(node.outputs))
    more, rest = factors(edit, node.inputs[1], stop, depth)
    return number * more, others + rest


def operands(edit: Edit, name: str, depth: int = MAX_DEPTH) -> Iterator[str]:
    """The tensors that a product consists of, partial products and what is divided by numbers included."""
    node = edit.made_by(name, "Mul", "Div") if depth else None
    if node is None or (node.op == "Div" and edit.scalar(node.inputs[1]) is None):
        return
    for operand in node.inputs:
        yield operand
        yield from operands(edit, operand, depth - 1)


def polynomial(edit: Edit, name: str, base: str, depth: int = 2 * MAX_DEPTH) -> Polynomial | None:
    """The tensor as a polynomial in `base`; None if it isn't one."""
    if name == base:
        return {1: 1.0}
    scalar = edit.scalar(name)
    if scalar is not None:
        return {0: scalar}
    node = edit.made_by(name, "Add", "Mul", "Sub", "Pow", "Div") if depth else None
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
    if node.op == "Div":
        divisor = right.get(0, 0.0) if right.keys() == {0} else 0.0
        return {n: number / divisor for n, number in left.items()} if divisor else None
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


def near(a: float, b: float) -> bool:
    """Whether two numbers agree but for rounding."""
    return abs(a - b) <= FEW_ULPS * abs(b)


def close(a: Polynomial | None, b: Polynomial) -> bool:
    """Whether two polynomials agree but for rounding."""
    return a is not None and all(near(a.get(n, 0.0), b.get(n, 0.0)) for n in a.keys() | b.keys())
