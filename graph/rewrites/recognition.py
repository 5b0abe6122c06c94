"""Activations, softmax and norms recognised in the nodes that exporters write for them.

Only where no step function follows (`rounding`): the whole rounds in another way than its parts, as `docs/numerics.md`
says; and where the constants are the function's own, but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import pi, sqrt
from typing import Any

import numpy as np

from tunewright.graph.ir import Array, Node

from .edit import Edit, Result, each
from .weights import keeps_range, product


@each("Div", "Mul")
def gelus(edit: Edit, node: Node) -> Result:
    """GELU from its form by erf or by tanh, in any order of the factors.

    Before: `a = Mul(x, 0.7071); b = Erf(a); c = Add(b, 1); d = Mul(x, c); y = Mul(d, 0.5)`. After: `y = Gelu(x)`.
    Before: `y = 0.5 * x * (1 + tanh(0.7979 * (x + 0.0447 * x ** 3)))`. After: `y = Gelu(x) approximate=tanh`.
    """
    if not edit.may_round(node.outputs[0]):
        return None
    parts = list(operands(edit, node.inputs[0])) + list(operands(edit, node.inputs[1])) + list(node.inputs)
    for gate in parts:
        curve = _one_plus(edit, gate)
        if curve is None:
            continue
        approximate, expected = _GELU[curve.op]
        for x in parts:
            if x == gate or not close(polynomial(edit, curve.inputs[0], x), expected):
                continue
            if _product_of(edit, node, (x, gate), 0.5):
                return edit.emit("Gelu", x, approximate=approximate)
    return None


_GELU = {
    "Erf": ("none", {1: sqrt(0.5)}),
    "Tanh": ("tanh", {1: sqrt(2 / pi), 3: 0.044715 * sqrt(2 / pi)}),
}


def _one_plus(edit: Edit, name: str) -> Node | None:
    """The Erf or Tanh that 1 is added to."""
    node = edit.producer(name, "Add")
    if node is None or edit.scalar(node.inputs[1]) != 1.0:
        return None
    return edit.producer(node.inputs[0], "Erf", "Tanh")


def _product_of(edit: Edit, node: Node, names: tuple[str, str], scalar: float) -> bool:
    """Whether a Mul or Div is `scalar` times the two tensors, and of their type."""
    stop = frozenset(names)
    number, tensors = factors_of(edit, node, stop)
    is_same_type = edit.types[names[0]] == edit.types[node.outputs[0]]
    return is_same_type and sorted(tensors) == sorted(names) and near(number, scalar)


@each("Div", "Mul")
def gates(edit: Edit, node: Node) -> Result:
    """SiLU and HardSwish.

    Before: `a = Sigmoid(x); y = Mul(x, a)`. After: `y = Silu(x)`.
    Before: `a = HardSigmoid(x) alpha=0.1667 beta=0.5; y = Mul(x, a)`. After: `y = HardSwish(x)`.
    Before: `a = Add(x, 3); b = Clip(a) min=0 max=6; c = Mul(x, b); y = Div(c, 6)`. After: `y = HardSwish(x)`.
    """
    result = _times_itself(edit, node) if node.op == "Mul" else None
    return result or (_hard_swish(edit, node) if edit.may_round(node.outputs[0]) else None)


def _times_itself(edit: Edit, node: Node) -> Result:
    """x * sigmoid(x), and the same of a hard sigmoid, bit by bit; but doubles have no such op."""
    for x, gate in (node.inputs, node.inputs[::-1]):
        sigmoid = edit.producer(gate, "Sigmoid", "HardSigmoid")
        if sigmoid is None or sigmoid.inputs[0] != x or edit.types[x].dtype == "float64":
            continue
        if sigmoid.op == "Sigmoid":
            return edit.emit("Silu", x)
        if (sigmoid.attrs["alpha"], sigmoid.attrs["beta"]) == (SIXTH, 0.5):
            return edit.emit("HardSwish", x)
    return None


SIXTH = float(np.float32(1 / 6))


def _hard_swish(edit: Edit, node: Node) -> Result:
    """x * Clip(x + 3, 0, 6) / 6 in any order of the factors."""
    for gate in (*node.inputs, *(name for side in node.inputs for name in operands(edit, side))):
        clip = edit.producer(gate, "Clip")
        line = edit.producer(clip.inputs[0], "Add") if clip and len(clip.inputs) == 1 else None
        if clip is None or line is None or (clip.attrs.get("min"), clip.attrs.get("max")) != (0, 6):
            continue
        x = line.inputs[0]
        if edit.scalar(line.inputs[1]) == 3.0 and _product_of(edit, node, (x, gate), 1 / 6):
            return edit.emit("HardSwish", x)
    return None


# Softmax and normalisation of rows


@each("Div", "Mul")
def softmaxes(edit: Edit, node: Node) -> Result:
    """Softmax from exponentials over their sum.

    Before: `m = ReduceMax(x) axes=(1,); a = Sub(x, m); e = Exp(a); s = ReduceSum(e) axes=(1,); y = Div(e, s)`.
    After: `y = Softmax(x) axis=1`. Not without the maximum: then large operands overflow, as the model says.
    """
    quotient = _quotient(edit, node)
    if quotient is None or not edit.may_round(node.outputs[0]):
        return None
    top, bottom = quotient
    power, total = edit.producer(top, "Exp"), edit.producer(bottom, "ReduceSum")
    if power is None or total is None or total.inputs != (top,) or not total.attrs["keepdims"]:
        return None
    axes = total.attrs["axes"]
    if len(axes) != 1:
        return None
    shifted = edit.producer(power.inputs[0], "Sub")
    highest = edit.producer(shifted.inputs[1], "ReduceMax") if shifted else None
    if not shifted or not highest or highest.inputs != shifted.inputs[:1] or highest.attrs != total.attrs:
        return None
    return edit.emit("Softmax", shifted.inputs[0], axis=axes[0])


def _quotient(edit: Edit, node: Node) -> tuple[str, str] | None:
    """a and b of a / b or a * (1 / b)."""
    if node.op == "Div":
        return node.inputs[0], node.inputs[1]
    if node.op == "Mul":
        for a, b in (node.inputs, node.inputs[::-1]):
            inverse = edit.producer(b, "Reciprocal")
            if inverse is not None:
                return a, inverse.inputs[0]
    return None


@each("Add", "Div", "Mul")
def layer_norms(edit: Edit, node: Node) -> Result:
    """LayerNormalization and RMSNormalization from means of squares, and their scale and bias into them.

    Before: `m = ReduceMean(x) axes=(2,); d = Sub(x, m); v = ReduceMean(d * d) axes=(2,); y = Div(d, Sqrt(v + e))`.
    After: `y = LayerNormalization(x, 1) axis=2 epsilon=e`. Without the mean: RMSNormalization.
    Before: `a = LayerNormalization(x, s, b); y = Add(Mul(a, t), c)`.
    After: `y = LayerNormalization(x, s * t, b * t + c)`.
    """
    if not edit.may_round(node.outputs[0]):
        return None
    return _affine(edit, node) or _normalisation(edit, node) or _folded_moments(edit, node)


def _normalisation(edit: Edit, node: Node) -> Result:
    """d / sqrt(mean(d * d) + epsilon)."""
    pair = _root_quotient(edit, node)
    moment = _moment(edit, pair[1]) if pair else None
    if pair is None or moment is None or edit.types[pair[0]] != edit.types[node.outputs[0]]:
        return None
    centred, axis, epsilon = moment
    if pair[0] != centred:
        return None
    x = _uncentre(edit, centred, axis)
    ones = edit.constant(np.ones((edit.shape(centred) or ())[axis:], edit.types[centred].dtype))
    op = "RMSNormalization" if x is None else "LayerNormalization"
    return edit.emit(op, x or centred, ones, axis=axis, epsilon=epsilon)


def _root_quotient(edit: Edit, node: Node) -> tuple[str, str] | None:
    """a and b of a / sqrt(b), a * (1 / sqrt(b)) and a * b ** -0.5."""
    quotient = _quotient(edit, node)
    if quotient is not None:
        root = _root_operand(edit, quotient[1])
        return None if root is None else (quotient[0], root)
    if node.op != "Mul":
        return None
    for a, b in (node.inputs, node.inputs[::-1]):
        root = _root_operand(edit, b, -0.5)
        if root is not None:
            return a, root
    return None


def _root_operand(edit: Edit, name: str, exponent: float = 0.5) -> str | None:
    """x of x to the power 0.5, as sqrt(x) too, or to another power."""
    node = edit.producer(name, "Sqrt", "Pow")
    if node is None:
        return None
    if node.op == "Sqrt":
        return node.inputs[0] if exponent == 0.5 else None
    return node.inputs[0] if edit.scalar(node.inputs[1]) == exponent else None


def _moment(edit: Edit, name: str) -> tuple[str, int, float] | None:
    """d, the first axis and epsilon of mean(d * d) + epsilon over all axes from the first on."""
    total = edit.producer(name, "Add")
    epsilon = edit.scalar(total.inputs[1]) if total else None
    mean = edit.producer(total.inputs[0], "ReduceMean") if total else None
    square = edit.producer(mean.inputs[0], "Mul") if mean else None
    if mean is None or square is None or epsilon is None or square.inputs[0] != square.inputs[1]:
        return None
    axis = _trailing_axis(edit, mean)
    return None if axis is None else (square.inputs[0], axis, epsilon)


def _trailing_axis(edit: Edit, mean: Node) -> int | None:
    """The first axis of a mean that keeps its dimensions and runs over all axes from there on."""
    rank, axes = edit.rank(mean.inputs[0]), mean.attrs.get("axes")  # else they are computed
    if not mean.attrs["keepdims"] or not axes or tuple(axes) != tuple(range(axes[0], rank)):
        return None
    return int(axes[0])


def _uncentre(edit: Edit, name: str, axis: int) -> str | None:
    """x of x - mean(x)."""
    centred = edit.producer(name, "Sub")
    mean = edit.producer(centred.inputs[1], "ReduceMean") if centred else None
    if centred is None or mean is None or mean.inputs[0] != centred.inputs[0] or _trailing_axis(edit, mean) != axis:
        return None
    return centred.inputs[0]


def _folded_moments(edit: Edit, node: Node) -> Result:
    """TensorFlow's form: x * a + (b - mean * a) with a = scale / sqrt(variance + epsilon)."""
    if node.op != "Add":
        return None
    for left, right in (node.inputs, node.inputs[::-1]):
        scaled, shift = edit.producer(left, "Mul"), edit.producer(right, "Sub")
        mean_product = edit.producer(shift.inputs[1], "Mul") if shift else None
        if scaled is None or shift is None or mean_product is None:
            continue
        for x, a in (scaled.inputs, scaled.inputs[::-1]):
            for mean, same in (mean_product.inputs, mean_product.inputs[::-1]):
                if same == a and (result := _emit_folded(edit, node, x, a, mean, shift.inputs[0])):
                    return result
    return None


def _emit_folded(edit: Edit, node: Node, x: str, a: str, mean: str, bias: str) -> Result:
    average = edit.producer(mean, "ReduceMean")
    axis = _trailing_axis(edit, average) if average and average.inputs == (x,) else None
    scaled = edit.producer(a, "Mul")
    power = scaled.inputs[0] if scaled else a
    inverse = edit.producer(power, "Reciprocal")
    root = _root_operand(edit, inverse.inputs[0]) if inverse else _root_operand(edit, power, -0.5)
    moment = _moment(edit, root) if root else None
    if axis is None or moment is None or moment[1] != axis or _uncentre(edit, moment[0], axis) != x:
        return None
    shape = (edit.shape(x) or ())[axis:]
    scale = edit.array(scaled.inputs[1]) if scaled else np.ones((), edit.types[x].dtype)
    parts = [scale, edit.array(bias)]
    values = [_broadcast_constant(part, shape) for part in parts]
    if values[0] is None or values[1] is None or edit.types[x] != edit.types[node.outputs[0]]:
        return None
    names = [edit.constant(value) for value in values]
    return edit.emit("LayerNormalization", x, *names, axis=axis, epsilon=moment[2])


def _broadcast_constant(array: Array | None, shape: tuple[int, ...]) -> Any:
    """The constant over the normalised axes; None if it isn't one value a place there."""
    if array is None or array.size > np.prod(shape):
        return None
    while array.ndim > len(shape):
        if array.shape[0] != 1:
            return None
        array = array[0]
    try:
        return np.ascontiguousarray(np.broadcast_to(array, shape))
    except ValueError:
        return None


def _affine(edit: Edit, node: Node) -> Result:
    """A constant that multiplies after the normalisation, or is added where none was yet."""
    if node.op == "Div":
        return None
    inner = edit.producer(node.inputs[0], "LayerNormalization", "RMSNormalization")
    constant = edit.array(node.inputs[1])
    if inner is None or constant is None or not edit.has_one_reader(node.inputs[0]):
        return None
    axis = inner.attrs["axis"]
    value = _broadcast_constant(constant, (edit.shape(node.outputs[0]) or ())[axis:])
    if value is None or edit.types[inner.outputs[0]] != edit.types[node.outputs[0]]:
        return None
    parts = [edit.array(name) for name in inner.inputs[1:]]
    if any(part is None for part in parts):
        return None
    if node.op == "Mul":
        parameters = [product(part, value) for part in parts]
        if not all(keeps_range(parameter, part, value) for parameter, part in zip(parameters, parts, strict=True)):
            return None
    elif inner.op == "LayerNormalization" and len(parts) == 1:
        parameters = [*parts, value]
    else:
        return None
    names = [edit.constant(np.ascontiguousarray(np.broadcast_to(parameter, value.shape))) for parameter in parameters]
    return replace(inner, inputs=(inner.inputs[0], *names))


# Tensors as products or polynomials, so that a pattern matches all the orders in which exporters write it

MAX_DEPTH = 6
"""Most nodes between a product and its factors."""

MAX_DEGREE = 4
"""Highest power of a polynomial."""

FEW_ULPS = 2.0**-21
"""Relative error allowed to the constants of a pattern, which may be products of rounded float32 numbers."""

Polynomial = dict[int, float]
"""Exponent -> coefficient."""


def factors(
    edit: Edit, name: str, stop: frozenset[str] = frozenset(), depth: int = MAX_DEPTH
) -> tuple[float, list[str]]:
    """The tensor as a number times others, through nested Muls and Divs by numbers; `stop` is not taken apart."""
    scalar = edit.scalar(name)
    if scalar is not None:
        return scalar, []
    node = edit.producer(name, "Mul", "Div") if name not in stop and depth else None
    if node is None:
        return 1.0, [name]
    return factors_of(edit, node, stop, depth - 1)


def factors_of(
    edit: Edit, node: Node, stop: frozenset[str] = frozenset(), depth: int = MAX_DEPTH
) -> tuple[float, list[str]]:
    """As `factors`, for a Mul or a Div. A Div by anything but a number has no factors but its result."""
    number, others = factors(edit, node.inputs[0], stop, depth)
    if node.op == "Div":
        divisor = edit.scalar(node.inputs[1])
        return (number / divisor, others) if divisor else (1.0, list(node.outputs))
    more, rest = factors(edit, node.inputs[1], stop, depth)
    return number * more, others + rest


def operands(edit: Edit, name: str, depth: int = MAX_DEPTH) -> Iterator[str]:
    """The tensors that a product consists of, partial products and what is divided by numbers included."""
    node = edit.producer(name, "Mul", "Div") if depth else None
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
    node = edit.producer(name, "Add", "Mul", "Sub", "Pow", "Div") if depth else None
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
        return _limit_degree(result)
    right = polynomial(edit, node.inputs[1], base, depth - 1)
    if right is None:
        return None
    if node.op == "Div":
        divisor = right.get(0, 0.0) if right.keys() == {0} else 0.0
        return {n: number / divisor for n, number in left.items()} if divisor else None
    if node.op == "Mul":
        return _limit_degree(_product(left, right))
    sign = 1.0 if node.op == "Add" else -1.0
    return {n: left.get(n, 0.0) + sign * right.get(n, 0.0) for n in left.keys() | right.keys()}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for n, x in a.items():
        for m, y in b.items():
            result[n + m] = result.get(n + m, 0.0) + x * y
    return result


def _limit_degree(a: Polynomial) -> Polynomial | None:
    return a if max(a) <= MAX_DEGREE else None


def near(a: float, b: float) -> bool:
    """Whether two numbers agree but for rounding."""
    return abs(a - b) <= FEW_ULPS * abs(b)


def close(a: Polynomial | None, b: Polynomial) -> bool:
    """Whether two polynomials agree but for rounding."""
    return a is not None and all(near(a.get(n, 0.0), b.get(n, 0.0)) for n in a.keys() | b.keys())
