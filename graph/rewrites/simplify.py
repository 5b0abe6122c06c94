"""What makes any graph simpler: identities, movement, dead code, constants. No bit changes.

By algebraic identities nodes that change nothing go, and each computation gets one form.
Constants come second in Add and Mul, division by a power of two is a Mul, subtraction of a constant an Add, sums of
many operands are chains of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import copysign
from typing import Any

import numpy as np

from tunewright.graph.draft import prune
from tunewright.graph.ir import Graph, Node

from ..rounding import has_exact_inverse
from .edit import Edit, Result, Rule, apply, by_op, each

_BROADCASTING = """
Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul
Or Pow Sub Sum Where Xor
"""
BROADCASTING_OPS = frozenset(_BROADCASTING.split())
"""Ops of several operands that broadcast against each other."""

MAX_PARTS = 256
"""Operands of a Concat up to which it takes those of others."""


def identities(graph: Graph) -> Graph:
    """Remove nodes that change nothing, and write others in the forms that later rewrites look for.

    Before: `a = Identity(x); b = Mul(a, 1); c = Div(b, 4); y = Sum(c, z, w)`.
    After: `c = Mul(x, 0.25); d = Add(c, z); y = Add(d, w)`.
    """
    return apply(graph, by_op(_IDENTITIES))


def _same_type(edit: Edit, node: Node, position: int = 0) -> bool:
    """Whether an input has the known shape and the element type of the output."""
    input_type, output_type = edit.types[node.inputs[position]], edit.types[node.outputs[0]]
    return input_type == output_type and output_type.shape is not None


def _sum_or_product(neutral: float) -> Rule:
    """Constants second, and a second operand that changes nothing removed. (Adding 0 makes 0 of -0.)"""

    def rule(edit: Edit, node: Node) -> Result:
        first, second = node.inputs
        if first in edit.constants and second not in edit.constants:
            return edit.emit(node.op, second, first)
        scalar = edit.scalar(second)
        is_neutral = scalar == neutral and copysign(1, scalar) == copysign(1, neutral)
        return first if is_neutral and _same_type(edit, node) else None

    return rule


def _sub(edit: Edit, node: Node) -> Result:
    """x - c is x + (-c)."""
    array = edit.array(node.inputs[1])
    if array is None or not edit.is_float(node.inputs[1]):
        return None
    return edit.emit("Add", node.inputs[0], edit.constant(np.negative(array)))


def _div(edit: Edit, node: Node) -> Result:
    """x / c is x * (1 / c) for a power of two; 1 / x is a Reciprocal."""
    x, y = node.inputs
    if not edit.is_float(x):
        return None
    divisor = edit.scalar(y)
    if divisor is not None:
        if not has_exact_inverse(divisor, edit.types[y].dtype):
            return None
        inverse = np.full(edit.shape(y) or (), 1 / divisor, edit.types[y].dtype)
        return edit.emit("Mul", x, edit.constant(inverse))
    if edit.scalar(x) == 1.0 and _same_type(edit, node, 1):
        return edit.emit("Reciprocal", y)
    return None


def _pow(edit: Edit, node: Node) -> Result:
    """Powers 1, 2 and -1. (The square root differs from the power 0.5 in what it makes of -0 and -inf.)"""
    x = node.inputs[0]
    exponent = edit.array(node.inputs[1])
    if exponent is None or exponent.size != 1 or not edit.is_float(x) or not _same_type(edit, node):
        return None
    match float(exponent.reshape(-1)[0]):
        case 1.0:
            return x
        case 2.0:
            return edit.emit("Mul", x, x)
        case -1.0:
            return edit.emit("Reciprocal", x)
    return None


def _neg(edit: Edit, node: Node) -> Result:
    """-(-x) is x."""
    inner = edit.producer(node.inputs[0], "Neg")
    if inner is None:
        return None
    return inner.inputs[0]


def _clip(edit: Edit, node: Node) -> Result:
    """Remove a Clip without limits, replace one from 0 on by Relu, and merge one after a Relu or a Clip."""
    if len(node.inputs) > 1:
        return None
    low, high = node.attrs.get("min"), node.attrs.get("max")
    if low is None and high is None:
        return node.inputs[0]
    if high is None and low == 0 and edit.is_float(node.inputs[0]):
        return edit.emit("Relu", node.inputs[0])
    inner = edit.producer(node.inputs[0], "Relu", "Clip")
    if inner is None or len(inner.inputs) > 1 or (low is not None and high is not None and low > high):
        return None
    floor, ceiling = (0.0, None) if inner.op == "Relu" else (inner.attrs.get("min"), inner.attrs.get("max"))
    if any(limit is not None for limit in (floor, ceiling)) and not _inside(low, high, floor, ceiling):
        return None
    limits = {name: value for name, value in (("min", low), ("max", high)) if value is not None}
    return edit.emit("Clip", inner.inputs[0], **limits)


def _inside(low: float | None, high: float | None, floor: float | None, ceiling: float | None) -> bool:
    """Whether low .. high lies in floor .. ceiling, so that clipping to the latter first is of no effect."""
    above = floor is None or (low is not None and low >= floor)
    below = ceiling is None or (high is not None and high <= ceiling)
    return above and below


def _chain(op: str) -> Rule:
    """n operands, two at a time."""

    def rule(edit: Edit, node: Node) -> Result:
        if len(node.inputs) == 1:
            return node.inputs[0]
        if (len(node.inputs) == 2 and op == node.op) or edit.shape(node.outputs[0]) is None:
            return None
        return reduce(lambda a, b: edit.emit(op, a, b), node.inputs)

    return rule


def _mean(edit: Edit, node: Node) -> Result:
    if edit.shape(node.outputs[0]) is None:
        return None
    total = reduce(lambda a, b: edit.emit("Add", a, b), node.inputs)
    return edit.emit("Div", total, edit.scalar_like(total, len(node.inputs)))


def _cast(edit: Edit, node: Node) -> Result:
    same = edit.types[node.inputs[0]].dtype == edit.types[node.outputs[0]].dtype != "object"
    return node.inputs[0] if same else None


def _remove_movement(edit: Edit, node: Node) -> Result:
    """Remove a movement op whose result has the shape of its only operand.

    A Split with empty parts stays: these need a producer.
    """
    return node.inputs[0] if len(node.inputs) == len(node.outputs) == 1 and _same_type(edit, node) else None


def _slice(edit: Edit, node: Node) -> Result:
    return _remove_movement(edit, node) if all(step == 1 for step in node.attrs.get("steps", (0,))) else None


def _pad(edit: Edit, node: Node) -> Result:
    return None if any(node.attrs.get("pads", (1,))) else _remove_movement(edit, node)


def _concat(edit: Edit, node: Node) -> Result:
    """Remove empty parts, and a Concat of one part; inline parts that are Concats along the same axis.

    Up to MAX_PARTS: otherwise each of a chain of Concats would repeat all parts before it.
    """
    axis = node.attrs["axis"]
    parts: list[str] = []
    room = MAX_PARTS - len(node.inputs)
    for name in node.inputs:
        inner = edit.producer(name, "Concat")
        if (
            inner is not None
            and inner.attrs["axis"] == axis
            and edit.has_one_reader(name)
            and room >= len(inner.inputs) - 1
        ):
            parts += inner.inputs
            room -= len(inner.inputs) - 1
        elif 0 not in (edit.shape(name) or ()) or len(node.inputs) == 1:
            parts.append(name)
    if len(parts) == 1:
        return parts[0]
    if tuple(parts) == node.inputs or not parts or edit.shape(node.outputs[0]) is None:
        return None
    return edit.emit("Concat", *parts, axis=axis)


def _where(edit: Edit, node: Node) -> Result:
    """A condition that is the same everywhere."""
    condition = edit.array(node.inputs[0])
    if condition is None or condition.size == 0 or condition.min() != condition.max():
        return None
    position = 1 if condition.flat[0] else 2
    if not _same_type(edit, node, position):
        return None
    return node.inputs[position]


_IDENTITIES: Mapping[str, Rule] = {
    "Add": _sum_or_product(-0.0),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _div,
    "Expand": _remove_movement,
    "Identity": lambda _, node: node.inputs[0],
    "Max": _chain("Max"),
    "Mean": _mean,
    "Min": _chain("Min"),
    "Mul": _sum_or_product(1.0),
    "Neg": _neg,
    "Pad": _pad,
    "Pow": _pow,
    "Relu": lambda edit, node: node.inputs[0] if edit.producer(node.inputs[0], "Relu") else None,
    "Slice": _slice,
    "Split": _remove_movement,
    "Sub": _sub,
    "Sum": _chain("Add"),
    "Tile": _remove_movement,
    "Where": _where,
}


# Movement: Reshape, Transpose, Expand


def reshapes(graph: Graph) -> Graph:
    """Chains of Reshapes as one, and none that keeps the shape; an Expand only where broadcasting won't do.

    Before: `a = Reshape(x) shape=(6,); b = Reshape(a) shape=(3, 2); c = Expand(s) shape=(3, 2); y = Add(b, c)`.
    After: `b = Reshape(x) shape=(3, 2); y = Add(b, s)`.
    """
    return apply(graph, by_op({"Reshape": _reshape, "Expand": _expand, **dict.fromkeys(BROADCASTING_OPS, _broadcast)}))


def _reshape(edit: Edit, node: Node) -> Result:
    source, *others = node.inputs
    if others:
        return None
    if edit.types[source] == edit.types[node.outputs[0]]:
        return source
    inner = edit.producer(source, "Reshape")
    return replace(node, inputs=inner.inputs[:1]) if inner else None


def _expand(edit: Edit, node: Node) -> Result:
    """Replace an Expand that only adds dimensions of extent 1 by a Reshape."""
    source_shape, result_shape = edit.shape(node.inputs[0]), edit.shape(node.outputs[0])
    if (
        len(node.inputs) > 1
        or source_shape is None
        or result_shape is None
        or np.prod(source_shape) != np.prod(result_shape)
        or 0 in result_shape
    ):
        return None
    return edit.emit("Reshape", node.inputs[0], shape=result_shape)


def _broadcast(edit: Edit, node: Node) -> Result:
    result_shape = edit.shape(node.outputs[0])
    inputs = list(node.inputs)
    for position, name in enumerate(node.inputs):
        inner = edit.producer(name, "Expand") if name else None
        if inner is None or len(inner.inputs) > 1 or result_shape is None:
            continue
        inputs[position] = inner.inputs[0]
        shapes = [edit.shape(item) for item in inputs if item]
        if None in shapes or np.broadcast_shapes(*(shape for shape in shapes if shape is not None)) != result_shape:
            inputs[position] = name
    return None if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs))


@each("Transpose")
def transposes(edit: Edit, node: Node) -> Result:
    """Chains of Transposes as one, none that undo each other, and those that move only extents of 1 as Reshapes.

    Before: `a = Transpose(x) perm=(0, 2, 3, 1); y = Transpose(a) perm=(0, 3, 1, 2)`. After: `y = x`.
    """
    shape = edit.shape(node.inputs[0])
    if shape is None:
        return None
    perm = tuple(node.attrs["perm"])
    if perm == tuple(range(len(perm))):
        return node.inputs[0]
    inner = edit.producer(node.inputs[0], "Transpose")
    if inner is not None:
        first = inner.attrs["perm"]
        return edit.emit("Transpose", inner.inputs[0], perm=tuple(first[axis] for axis in perm))
    if moves_nothing(shape, perm):
        return edit.emit("Reshape", node.inputs[0], shape=tuple(shape[axis] for axis in perm))
    return None


def moves_nothing(shape: Sequence[int], perm: Sequence[int]) -> bool:
    """Whether a Transpose keeps the elements in order, as it moves only extents of 1."""
    axes = [axis for axis in perm if shape[axis] != 1]
    return axes == sorted(axes) and 0 not in shape


# What does not depend on the meaning of ops

MAX_MERGED_BYTES = 1 << 16
"""Largest constants that are compared with each other."""

COMMUTATIVE_OPS = frozenset({"Add", "And", "Equal", "Max", "Min", "Mul", "Or", "Xor"})

UNREPEATABLE_OPS = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Ops whose result differs from call to call."""


def dead_code(graph: Graph) -> Graph:
    """Remove nodes and constants that no output needs.

    Before: `y = Relu(x); z = Neg(x); return y`. After: `y = Relu(x); return y`.
    """
    pruned = prune(graph)
    same = len(pruned.nodes) == len(graph.nodes) and len(pruned.constants) == len(graph.constants)
    return graph if same else pruned


def constant_folding(graph: Graph) -> Graph:
    """Replace every node that depends on constants alone by its value (adding to a `Draft` folds).

    Before: `a = Transpose(w) perm=(1, 0); y = MatMul(x, a)`. After: `y = MatMul(x, a)` with a constant `a`.
    """
    known = graph.constants.keys()
    if not any(all(name in known for name in node.inputs if name) for node in graph.nodes):
        return graph
    edit = Edit(graph)
    for node in graph.nodes:
        edit.add(node)
    folded = edit.finish(graph.inputs, graph.outputs)
    return graph if len(folded.nodes) == len(graph.nodes) else folded


def empty_tensors(graph: Graph) -> Graph:
    """Let nodes read a constant in the place of what has no elements: there is one such value, and it is known.

    Before: `y = ReduceSum(x) axes=(1,)` of x float32[2, 0, 4]. After: a constant `y`, by `constant_folding`.
    """
    empty = {
        name: kind
        for node in graph.nodes
        if not node.bodies
        for name, kind in ((name, graph.types[name]) for name in node.inputs if name and name not in graph.constants)
        if kind.shape is not None and 0 in kind.shape and kind.dtype not in ("object", "string")
    }
    if not empty:
        return graph
    edit = Edit(graph)
    values = {name: edit.constant(np.empty(kind.shape or (), kind.dtype)) for name, kind in empty.items()}
    for node in graph.nodes:
        inputs = node.inputs if node.bodies else tuple(values.get(name, name) for name in node.inputs)
        edit.add(replace(node, inputs=inputs))
    return edit.finish(graph.inputs, graph.outputs)


def common_subexpressions(graph: Graph) -> Graph:
    """Merge nodes that compute the same, and small constants that are the same.

    Before: `a = Sub(x, m); b = Sub(x, m); y = Mul(a, b)`. After: `a = Sub(x, m); y = Mul(a, a)`.
    """
    first_outputs: dict[Any, tuple[str, ...]] = {}
    constants: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, array in graph.constants.items():
        if array.dtype.kind != "O" and array.nbytes <= MAX_MERGED_BYTES:
            same[name] = constants.setdefault((array.dtype.str, array.shape, array.tobytes()), name)

    def rule(_: Edit, node: Node) -> Result:
        if node.op in UNREPEATABLE_OPS:
            return None
        inputs = tuple(same.get(name, name) for name in node.inputs)
        operands = tuple(sorted(inputs)) if node.op in COMMUTATIVE_OPS else inputs
        key = (node.op, node.domain, node.version, operands, node.attrs_key, tuple(map(bool, node.outputs)))
        first = first_outputs.setdefault(key, node.outputs)
        if first is not node.outputs:
            return first
        return None if inputs == node.inputs else replace(node, inputs=inputs)

    return apply(graph, rule)
