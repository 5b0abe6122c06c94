"""Elementwise ops of one or several operands."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..draft import DraftTensor, InvalidNode, ModelDraft, element_type
from ..values import FLOATS, INTEGERS, ValueDomain
from .recipe import Recipes, broadcasts_with, pick_partner


def unary(op: str, d: ModelDraft) -> DraftTensor:
    """One operand, no attributes."""
    return d.op(op, d.pick(d.dtype_for(op), known=False))


def on_positive(op: str, d: ModelDraft) -> DraftTensor:
    """An op for positive numbers, mostly of such."""
    x = d.pick(d.dtype_for(op, among=FLOATS))
    if d.chance(0.6):
        x = d.op("Abs", x)
        if d.chance(0.5):
            x = d.op("Add", x, d.scalar(d.number(0.1, 1.0, 1e-5), x.dtype))
    return d.op(op, x)


def on_unit_range(op: str, d: ModelDraft) -> DraftTensor:
    """An op for numbers between -1 and 1, mostly of such."""
    x = d.pick(d.dtype_for(op, among=FLOATS))
    if d.chance(0.7):
        x = d.op(d.among("Sin", "Tanh"), x)
    return d.op(op, x)


def unary_with_numbers(op: str, names: dict[str, tuple[float, ...]], d: ModelDraft) -> DraftTensor:
    """One operand, and numeric attributes, each present or not."""
    attrs: dict[str, Any] = {name: d.number(*usual) for name, usual in names.items() if d.chance(0.6)}
    if op == "Celu" and attrs.get("alpha") == 0:  # by which is divided
        attrs.pop("alpha")
    return d.op(op, d.pick(d.dtype_for(op)), **attrs)


def binary(op: str, d: ModelDraft) -> DraftTensor:
    """Two operands that broadcast."""
    dtype = d.dtype_for(op)
    a = d.pick(dtype)
    b = pick_partner(d, a)
    return d.op(op, b, a) if d.chance(0.3) else d.op(op, a, b)


def divide(d: ModelDraft) -> DraftTensor:
    """A quotient; the divisor of integers is a constant other than 0, or an input that is never 0."""
    dtype = d.dtype_for("Div")
    a = d.pick(dtype)
    if dtype in FLOATS:
        b = pick_partner(d, a) if d.chance(0.5) else d.scalar(d.number(41.0, 3.0, 7.0, 255.0, 8.0, 0.1), dtype)
        return d.op("Div", a, b)
    if d.chance(0.6):
        signs = (1, -1) if dtype in ("int32", "int64") else (1,)
        return d.op("Div", a, d.constant(d.among(1, 2, 3, 5, 7, 8, 10) * d.among(*signs), dtype))
    return d.op("Div", a, d.fresh(dtype, a.shape or (), ValueDomain(1, 9), constant=0.3))


def modulo(d: ModelDraft) -> DraftTensor:
    """A remainder, in either meaning."""
    dtype = d.dtype_for("Mod")
    a = d.pick(dtype)
    b = d.fresh(dtype, d.among((), a.shape or ()), ValueDomain(1, 7), constant=0.7)
    return d.op("Mod", a, b, fmod=1 if dtype in FLOATS else d.among(None, 0, 1))


def power(d: ModelDraft) -> DraftTensor:
    """A power, mostly by a constant."""
    dtype = d.dtype_for("Pow", among=("float32", "float64", "float16", "int32", "int64"))
    a = d.pick(dtype)
    if dtype in INTEGERS:
        return d.op("Pow", a, d.constant(d.between(0, 3), dtype if d.opset < 12 else d.among("int64", "int32")))
    if d.chance(0.7):
        return d.op("Pow", a, d.scalar(d.number(2.0, 3.0, 0.5, -1.0, 1.0, 0.0, -2.0, 1.5, -0.5), dtype))
    return d.op("Pow", d.op("Abs", a), pick_partner(d, a))


def variadic(op: str, d: ModelDraft) -> DraftTensor:
    """One to four operands that broadcast."""
    first = d.pick(d.dtype_for(op))
    rest = [pick_partner(d, first) for _ in range(d.among(0, 1, 1, 1, 2, 3))]
    return d.op(op, first, *rest)


def shift(d: ModelDraft) -> DraftTensor:
    """A bit shift, by fewer bits than the type has."""
    dtype = d.dtype_for("BitShift")
    a = d.pick(dtype)
    return d.op(
        "BitShift", a, d.fresh(dtype, d.among((), a.shape or ()), ValueDomain(0, 7)), direction=d.among("LEFT", "RIGHT")
    )


def clip(d: ModelDraft) -> DraftTensor:
    """Either bound may be absent, and they may cross."""
    dtype = d.dtype_for("Clip")
    x = d.pick(dtype)
    low = d.number(0.0, -1.0) if d.chance(0.7) else None
    high = d.number(6.0, 1.0, 0.9999) if d.chance(0.7) else None
    if d.opset < 11:
        return d.op("Clip", x, min=low, max=high)
    bounds = [
        None if v is None else d.constant(np.asarray(v if dtype in FLOATS else abs(int(v) % 7)), dtype)
        for v in (low, high)
    ]
    return d.op("Clip", x, *bounds)


def where(d: ModelDraft) -> DraftTensor:
    """A choice between two tensors."""
    condition = d.pick("bool") if d.chance(0.5) else _comparison(d)
    shape = condition.shape
    if shape is None:
        raise InvalidNode("shape")
    dtype = d.dtype_for("Where", 1)
    a = d.pick(dtype, broadcasts_with(shape), lambda: shape)
    b = d.scalar(d.among(0, 1, float("-inf")), dtype) if dtype in FLOATS and d.chance(0.4) else pick_partner(d, a)
    return d.op("Where", condition, *((a, b) if d.chance(0.5) else (b, a)))


def _comparison(d: ModelDraft) -> DraftTensor:
    op = d.among("Greater", "Less", "Equal")
    x = d.pick(d.dtype_for(op, among=("float32", "float64", "int32", "int64")))
    return d.op(op, x, d.constant(d.among(0, 1, 3), x.dtype))


def cast(d: ModelDraft) -> DraftTensor:
    """A cast to any type; of floats to integers within a range that all runtimes agree on."""
    source = d.dtype_for("Cast")
    x = d.pick(source)
    to = d.rng.choice([t for t in d.dtypes("Cast") if t != source])
    if source in FLOATS and to in INTEGERS:
        low = 0 if to.startswith("u") else -100
        numbers = (float(low), 100.0)
        x = d.op("Max", d.op("Min", x, d.scalar(numbers[1], source)), d.scalar(numbers[0], source))
    return d.op("Cast", x, to=element_type(to))


def cast_like(d: ModelDraft) -> DraftTensor:
    """A cast to the type of another tensor."""
    x = d.pick(d.dtype_for("CastLike"))
    other = d.pick(d.rng.choice(["float32", "float64", "bool", "float16"]))
    return d.op("CastLike", x, other)


def prelu(d: ModelDraft) -> DraftTensor:
    """A slope that broadcasts one way only."""
    x = d.pick(d.dtype_for("PRelu"))
    shape = tuple(e if d.chance(0.6) else 1 for e in x.shape or ())
    return d.op("PRelu", x, d.fresh(x.dtype, shape[d.between(0, len(shape)) :], constant=0.8))


def gelu(d: ModelDraft) -> DraftTensor:
    """By erf or tanh."""
    return d.op("Gelu", d.pick(d.dtype_for("Gelu")), approximate=d.among(None, "none", "tanh"))


def is_infinite(d: ModelDraft) -> DraftTensor:
    """Infinities of either sign or both."""
    return d.op(
        "IsInf", d.pick(d.dtype_for("IsInf")), detect_negative=d.among(None, 0, 1), detect_positive=d.among(None, 0, 1)
    )


def dropout(d: ModelDraft) -> DraftTensor:
    """Dropout, which does nothing in inference."""
    x = d.pick(d.dtype_for("Dropout"))
    return d.op("Dropout", x, ratio=d.among(None, 0.3) if d.opset < 12 else None)


ELEMENTWISE: Recipes = {
    **{op: partial(unary, op) for op in (
        "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Identity", "IsNaN", "Mish", "Neg", "Not",
        "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tan", "Tanh", "Atan",
        "Asinh", "Sinh", "Cosh", "BitwiseNot",
    )},
    **{op: partial(on_positive, op) for op in ("Log", "Sqrt", "Acosh")},
    **{op: partial(on_unit_range, op) for op in ("Acos", "Asin", "Atanh")},
    **{op: partial(binary, op) for op in (
        "Add", "Sub", "Mul", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
        "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    )},
    **{op: partial(variadic, op) for op in ("Max", "Min", "Mean", "Sum")},
    "Celu": partial(unary_with_numbers, "Celu", {"alpha": (1.0, 0.5, 2.0)}),
    "Elu": partial(unary_with_numbers, "Elu", {"alpha": (1.0, 0.7)}),
    "HardSigmoid": partial(unary_with_numbers, "HardSigmoid", {"alpha": (0.2, 1 / 6), "beta": (0.5,)}),
    "LeakyRelu": partial(unary_with_numbers, "LeakyRelu", {"alpha": (0.01, 0.1, 0.2)}),
    "Selu": partial(unary_with_numbers, "Selu", {"alpha": (1.6732632,), "gamma": (1.050701,)}),
    "Shrink": partial(unary_with_numbers, "Shrink", {"lambd": (0.5,), "bias": (0.0, 0.5)}),
    "Swish": partial(unary_with_numbers, "Swish", {"alpha": (1.0, 1.702)}),
    "ThresholdedRelu": partial(unary_with_numbers, "ThresholdedRelu", {"alpha": (1.0,)}),
    "BitShift": shift,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Div": divide,
    "Dropout": dropout,
    "Gelu": gelu,
    "IsInf": is_infinite,
    "Mod": modulo,
    "PRelu": prelu,
    "Pow": power,
    "Where": where,
}  # fmt: skip
