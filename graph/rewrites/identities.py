"""Algebra, element by element: what changes nothing goes, and each thing is written in one way. Not a bit changes.

Constants come second in Add and Mul, division by a power of two is a Mul, subtraction of a constant an Add, sums of
many operands are chains of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import copysign

import numpy as np

from tunewright.graph.inverse import has_exact_inverse
from tunewright.graph.ir import Graph, Node

from .edit import Edit, apply

MAX_PARTS = 256
"""Operands of a Concat up to which it takes those of others."""


def identities(graph: Graph) -> Graph:
    """Without nodes that change nothing, in the forms that later rewrites look for.

    Before: `a = Identity(x); b = Mul(a, 1); c = Div(b, 4); y = Sum(c, z, w)`.
    After: `c = Mul(x, 0.25); d = Add(c, z); y = Add(d, w)`.
    """
    return apply(graph, _rule)


def _rule(edit: Edit, node: Node) -> bool:
    rule = _RULES.get(node.op) if not node.domain else None
    return rule is not None and rule(edit, node)


def _gone(edit: Edit, node: Node) -> bool:
    """The node's only input stands for its output."""
    edit.alias(node.outputs[0], node.inputs[0])
    return True


def _same_type(edit: Edit, node: Node, position: int = 0) -> bool:
    """Whether an input has the known shape and the element type of the output."""
    given, made = edit.types[node.inputs[position]], edit.types[node.outputs[0]]
    return given == made and made.shape is not None


def _add(edit: Edit, node: Node) -> bool:
    """x + -0, and constants second. (Adding 0 makes 0 of -0.)"""
    return _constant_second(edit, node) or _neutral(edit, node, -0.0)


def _mul(edit: Edit, node: Node) -> bool:
    """x * 1, and constants second."""
    return _constant_second(edit, node) or _neutral(edit, node, 1.0)


def _neutral(edit: Edit, node: Node, value: float) -> bool:
    found = edit.scalar(node.inputs[1])
    if found != value or not _same_type(edit, node) or copysign(1, found) != copysign(1, value):
        return False
    return _gone(edit, node)


def _constant_second(edit: Edit, node: Node) -> bool:
    first, second = node.inputs
    if first not in edit.constants or second in edit.constants:
        return False
    edit.emit(node.op, second, first, to=node.outputs[0])
    return True


def _sub(edit: Edit, node: Node) -> bool:
    """x - c is x + (-c)."""
    array = edit.array(node.inputs[1])
    if array is None or not edit.is_float(node.inputs[1]):
        return False
    edit.emit("Add", node.inputs[0], edit.constant(np.negative(array)), to=node.outputs[0])
    return True


def _div(edit: Edit, node: Node) -> bool:
    """x / c is x * (1 / c) for a power of two; 1 / x is a Reciprocal."""
    x, y = node.inputs
    if not edit.is_float(x):
        return False
    divisor = edit.scalar(y)
    if divisor is not None:
        if not has_exact_inverse(divisor, edit.types[y].dtype):
            return False
        inverse = np.full(edit.shape(y) or (), 1 / divisor, edit.types[y].dtype)
        edit.emit("Mul", x, edit.constant(inverse), to=node.outputs[0])
        return True
    if edit.scalar(x) == 1.0 and _same_type(edit, node, 1):
        edit.emit("Reciprocal", y, to=node.outputs[0])
        return True
    return False


def _pow(edit: Edit, node: Node) -> bool:
    """Powers 1, 2 and -1. (The square root differs from the power 0.5 in what it makes of -0 and -inf.)"""
    x = node.inputs[0]
    exponent = edit.array(node.inputs[1])
    if exponent is None or exponent.size != 1 or not edit.is_float(x) or not _same_type(edit, node):
        return False
    to = node.outputs[0]
    match float(exponent.reshape(-1)[0]):
        case 1.0:
            edit.alias(to, x)
        case 2.0:
            edit.emit("Mul", x, x, to=to)
        case -1.0:
            edit.emit("Reciprocal", x, to=to)
        case _:
            return False
    return True


def _neg(edit: Edit, node: Node) -> bool:
    """-(-x) is x."""
    inner = edit.made_by(node.inputs[0], "Neg")
    if inner is None:
        return False
    edit.alias(node.outputs[0], inner.inputs[0])
    return True


def _relu(edit: Edit, node: Node) -> bool:
    """Relu of Relu is Relu."""
    return edit.made_by(node.inputs[0], "Relu") is not None and _gone(edit, node)


def _clip(edit: Edit, node: Node) -> bool:
    """No limits: nothing. Only at 0: Relu. After Relu, from 0 on: Relu not needed. Of Clip: one Clip."""
    if len(node.inputs) > 1:
        return False
    low, high = node.attrs.get("min"), node.attrs.get("max")
    if low is None and high is None:
        return _gone(edit, node)
    if high is None and low == 0 and edit.is_float(node.inputs[0]):
        edit.emit("Relu", node.inputs[0], to=node.outputs[0])
        return True
    inner = edit.made_by(node.inputs[0], "Relu", "Clip")
    if inner is None or len(inner.inputs) > 1 or (low is not None and high is not None and low > high):
        return False
    floor, ceiling = (0.0, None) if inner.op == "Relu" else (inner.attrs.get("min"), inner.attrs.get("max"))
    if any(limit is not None for limit in (floor, ceiling)) and not _inside(low, high, floor, ceiling):
        return False
    limits = {name: value for name, value in (("min", low), ("max", high)) if value is not None}
    edit.emit("Clip", inner.inputs[0], to=node.outputs[0], **limits)
    return True


def _inside(low: float | None, high: float | None, floor: float | None, ceiling: float | None) -> bool:
    """Whether low .. high lies in floor .. ceiling, so that clipping to the latter first is of no effect."""
    above = floor is None or (low is not None and low >= floor)
    below = ceiling is None or (high is not None and high <= ceiling)
    return above and below


def _chain(op: str) -> Callable[[Edit, Node], bool]:
    """n operands, two at a time."""

    def rule(edit: Edit, node: Node) -> bool:
        if len(node.inputs) == 1:
            return _gone(edit, node)
        if (len(node.inputs) == 2 and op == node.op) or edit.shape(node.outputs[0]) is None:
            return False
        head = reduce(lambda a, b: edit.emit(op, a, b), node.inputs[:-1])
        edit.emit(op, head, node.inputs[-1], to=node.outputs[0])
        return True

    return rule


def _mean(edit: Edit, node: Node) -> bool:
    if edit.shape(node.outputs[0]) is None:
        return False
    total = reduce(lambda a, b: edit.emit("Add", a, b), node.inputs)
    edit.emit("Div", total, edit.like(total, len(node.inputs)), to=node.outputs[0])
    return True


def _cast(edit: Edit, node: Node) -> bool:
    return edit.types[node.inputs[0]].dtype == edit.types[node.outputs[0]].dtype != "object" and _gone(edit, node)


def _unchanged(edit: Edit, node: Node) -> bool:
    """Ops that move elements and here move none: the result has the shape of the operand.

    Not so a Split with empty parts beside the whole: they would have nowhere to come from.
    """
    return len(node.inputs) == len(node.outputs) == 1 and _same_type(edit, node) and _gone(edit, node)


def _slice(edit: Edit, node: Node) -> bool:
    return all(step == 1 for step in node.attrs.get("steps", (0,))) and _unchanged(edit, node)


def _pad(edit: Edit, node: Node) -> bool:
    return not any(node.attrs.get("pads", (1,))) and _unchanged(edit, node)


def _concat(edit: Edit, node: Node) -> bool:
    """Without empty parts; of one part: nothing. A Concat whose parts are Concats along the same axis takes theirs.

    It has MAX_PARTS then at most: each of a chain of Concats would else be written anew with all parts before it.
    """
    axis = node.attrs["axis"]
    parts: list[str] = []
    room = MAX_PARTS - len(node.inputs)
    for name in node.inputs:
        inner = edit.made_by(name, "Concat")
        if inner is not None and inner.attrs["axis"] == axis and edit.single(name) and room >= len(inner.inputs) - 1:
            parts += inner.inputs
            room -= len(inner.inputs) - 1
        elif 0 not in (edit.shape(name) or ()) or len(node.inputs) == 1:
            parts.append(name)
    if len(parts) == 1:
        edit.alias(node.outputs[0], parts[0])
        return True
    if tuple(parts) == node.inputs or not parts or edit.shape(node.outputs[0]) is None:
        return False
    edit.emit("Concat", *parts, to=node.outputs[0], axis=axis)
    return True


def _where(edit: Edit, node: Node) -> bool:
    """A condition that is the same everywhere."""
    condition = edit.array(node.inputs[0])
    if condition is None or condition.size == 0 or condition.min() != condition.max():
        return False
    chosen = 1 if condition.flat[0] else 2
    if not _same_type(edit, node, chosen):
        return False
    edit.alias(node.outputs[0], node.inputs[chosen])
    return True


_RULES: Mapping[str, Callable[[Edit, Node], bool]] = {
    "Add": _add,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _div,
    "Expand": _unchanged,
    "Identity": _gone,
    "Max": _chain("Max"),
    "Mean": _mean,
    "Min": _chain("Min"),
    "Mul": _mul,
    "Neg": _neg,
    "Pad": _pad,
    "Pow": _pow,
    "Relu": _relu,
    "Slice": _slice,
    "Split": _unchanged,
    "Sub": _sub,
    "Sum": _chain("Add"),
    "Tile": _unchanged,
    "Where": _where,
}
