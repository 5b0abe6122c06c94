"""Ops that compute each element of the output from the elements in the same place, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from math import factorial, inf, prod, sqrt

import numpy as np

from tunewright.codegen.expr.dtype import BYTES, FLOATS, INTEGERS, DType
from tunewright.codegen.expr.expr import Expr, const, op
from tunewright.codegen.expr.semantics import LIMITS, is_in_range

from ..task import Index, Tensor, load
from .definition import ARITHMETIC, Definition, OpDef, TensorView, axis_of, quotient

F32, F64, I64, I32, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.BOOL
NUMBERS = (*FLOATS, *INTEGERS)


def unary(body: Callable[[Expr], Expr], *dtypes: DType) -> OpDef:
    """An op that applies `body` to its only input."""

    def define(d: Definition) -> None:
        x = d.input(0, *(dtypes or FLOATS))
        d.write(d.output(), lambda i: body(load(x, i)))

    return define


def unary_with_attrs(body: Callable[[Expr, Definition], Expr]) -> OpDef:
    """An op that applies `body` to its only input, with the attributes."""

    def define(d: Definition) -> None:
        x = d.input(0, *FLOATS)
        d.write(d.output(), lambda i: body(load(x, i), d))

    return define


def variadic(name: str, *dtypes: DType) -> OpDef:
    """An op of the expression language that joins all inputs from the left."""

    def define(d: Definition) -> None:
        parts = d.inputs(*dtypes)
        d.write(d.output(), lambda i: reduce(lambda a, b: op(name, a, b), (load(x, i) for x in parts)))

    return define


def compare(name: str, swapped: bool = False) -> OpDef:
    """A comparison of two inputs."""

    def define(d: Definition) -> None:
        a, b = d.input(0, *NUMBERS, BOOL), d.input(1, *NUMBERS, BOOL)
        d.require(name == "eq" or a.dtype is not BOOL, "an order of bool")
        if swapped:
            a, b = b, a

        d.write(d.output(), lambda i: op(name, load(a, i), load(b, i)))

    return define


def clip_to(x: Expr, low: Expr | float, high: Expr | float) -> Expr:
    """`x` moved into low .. high; `high` wins if they cross."""
    return op("min", op("max", x, low), high)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow, and with all digits where it is small."""
    power = op("exp", -op("abs", x))
    total = power + 1.0
    lost = power - (total - 1.0)  # in rounding; the logarithm of a total near 1 lacks as much
    return op("max", x, 0.0) + (op("log", total) + lost)


def exp_less_one(x: Expr) -> Expr:
    """exp(x) - 1 with all digits where it is small: there it is Taylor's polynomial, to 5e-8 or 1e-17."""
    terms = 7 if x.dtype is F32 else 15
    near: Expr = const(1 / factorial(terms), x.dtype)
    for n in range(terms - 1, 0, -1):
        near = near * x + 1 / factorial(n)
    return op("select", op("lt", op("abs", x), 0.4), near * x, op("exp", x) - 1.0)


def gelu(x: Expr, approximate: str) -> Expr:
    """x times the normal distribution function, or its usual approximation by tanh."""
    if approximate == "tanh":
        return x * 0.5 * (op("tanh", (x + x * x * x * 0.044715) * sqrt(0.6366197723675814)) + 1.0)
    return x * 0.5 * (op("erf", x * sqrt(0.5)) + 1.0)


def negative_part(x: Expr, value: Expr) -> Expr:
    """`value` below zero, else x (NaN included)."""
    return op("select", op("lt", x, 0.0), value, x)


def selu(x: Expr, alpha: float, gamma: float) -> Expr:
    """The scaled exponential linear unit; `alpha` and `gamma` as ONNX has them."""
    return negative_part(x, exp_less_one(op("min", x, 0.0)) * alpha) * gamma


def sign(x: Expr) -> Expr:
    """-1, 0 or 1; NaN stays."""
    zero, one = const(0, x.dtype), const(1, x.dtype)
    rest = op("select", op("lt", zero, x), one, x)
    return rest if x.dtype.is_unsigned else op("select", op("lt", x, zero), const(-1, x.dtype), rest)


def causal_mask(d: Definition) -> None:
    """Scores, [.., queries, keys], with -infinity added where a key comes after its query."""
    x, past = d.input(0, *FLOATS), int(d.attr("past"))

    def body(i: Index) -> Expr:
        is_seen = op("le", i[-1], op("add", i[-2], past))
        return load(x, i) + op("select", is_seen, const(0.0, x.dtype), const(-inf, x.dtype))

    d.write(d.output(), body)


def is_infinite(d: Definition) -> None:
    """Whether an element is infinite, of the signs that count."""
    x, limit = d.input(0, *FLOATS), float("inf")
    signs = [value for value, name in ((limit, "detect_positive"), (-limit, "detect_negative")) if d.attr(name, 1)]

    def body(i: Index) -> Expr:
        infinite: Expr = const(False)
        for value in signs:
            infinite = op("or", infinite, op("eq", load(x, i), value))
        return infinite

    d.write(d.output(), body)


def divide(d: Definition) -> None:
    """Division; of integers towards zero, by zero 0."""
    a, b = d.input(0, *ARITHMETIC), d.input(1, *ARITHMETIC)
    divisor = d.constant_input(1)
    may_be_zero = not a.dtype.is_float and (divisor is None or not divisor.all())

    def body(i: Index) -> Expr:
        value = op("div", load(a, i), load(b, i))
        return op("select", op("eq", load(b, i), 0), const(0, a.dtype), value) if may_be_zero else value

    d.write(d.output(), body)


def modulo(d: Definition) -> None:
    """What a division leaves: of the dividend's sign with `fmod`, else of the divisor's. Of integers by zero 0."""
    a, b = d.input(0, *NUMBERS), d.input(1, *NUMBERS)
    is_c = bool(d.attr("fmod", 0)) or a.dtype.is_unsigned
    zero: Expr = const(0, a.dtype)

    def body(i: Index) -> Expr:
        divisor = load(b, i)
        rest = op("rem", load(a, i), divisor)
        if is_c:
            return rest
        none = zero
        if a.dtype.is_float:
            none = op("select", op("eq", rest, zero), op("select", op("lt", divisor, zero), -zero, zero), rest)
        is_other_side = op("ne", op("lt", rest, zero), op("lt", divisor, zero))
        moves = op("and", op("ne", rest, zero), is_other_side)
        return op("select", moves, rest + divisor, none if a.dtype.is_float else rest)

    d.write(d.output(), body)


def shift(d: Definition) -> None:
    """Bits moved to the left or the right; none are left of what is moved by its width or more."""
    a, b = d.input(0, *INTEGERS), d.input(1, *INTEGERS)
    name, width = "shl" if d.attr("direction") == "LEFT" else "shr", 8 * a.dtype.size_bytes

    def body(i: Index) -> Expr:
        value, count = load(a, i), load(b, i)
        beyond: Expr = const(0, a.dtype)
        if name == "shr" and not a.dtype.is_unsigned:
            beyond = op("select", op("lt", value, 0), const(-1, a.dtype), beyond)
        fits = op("lt", count, width)
        if not b.dtype.is_unsigned:
            fits = op("and", fits, op("le", const(0, b.dtype), count))
        return op("select", fits, op(name, value, count), beyond)

    d.write(d.output(), body)


def complement(x: Expr) -> Expr:
    """All bits the other way round."""
    return op("bitxor", x, LIMITS[x.dtype][1] if x.dtype.is_unsigned else -1)


def bit_cast(d: Definition) -> None:
    """The same bits as another type of the same size."""
    x, y = d.input(0, *NUMBERS, BOOL), d.output()
    if x.dtype is BOOL and y.dtype in BYTES:
        d.write(y, lambda i: op("cast", load(x, i), dtype=y.dtype))
        return
    d.require(
        {x.dtype, y.dtype} <= set(NUMBERS) and x.dtype.size_bytes == y.dtype.size_bytes, f"{x.dtype} as {y.dtype}"
    )
    d.write(y, lambda i: op("bitcast", load(x, i), dtype=y.dtype))


def power(d: Definition) -> None:
    """Powers in the type of the base. The usual constant exponents need no logarithm."""
    a, b = d.input(0, *NUMBERS), d.input(1, *NUMBERS)
    simple = POWERS.get(d.scalar(1))
    is_float = a.dtype.is_float or b.dtype.is_float
    dtype = F32 if a.dtype is F32 and b.dtype is not F64 else F64
    wide = max(a.dtype, b.dtype, key=lambda one: one.size_bytes)

    def body(i: Index) -> Expr:
        if not is_float:
            return convert(op("pow", convert(load(a, i), wide), convert(load(b, i), wide), dtype=wide), a.dtype)
        if simple is not None and a.dtype.is_float:
            return simple(load(a, i))
        return convert(op("pow", op("cast", load(a, i), dtype=dtype), op("cast", load(b, i), dtype=dtype)), a.dtype)

    d.write(d.output(), body)


POWERS: Mapping[float | None, Callable[[Expr], Expr]] = {
    -1.0: lambda x: op("div", 1.0, x),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}
"""Exponents that are a few multiplications."""


def mean(d: Definition) -> None:
    """The mean of all inputs."""
    parts = d.inputs(*FLOATS)
    d.write(d.output(), lambda i: quotient(reduce(lambda a, b: a + b, (load(x, i) for x in parts)), len(parts)))


def clip(d: Definition) -> None:
    """Each bound is an attribute if it is known, else an input."""
    x = d.input(0, *ARITHMETIC)
    low, high = d.optional(1, x.dtype), d.optional(2, x.dtype)
    low_attr, high_attr = d.attr("min"), d.attr("max")

    d.require(all(bound is None or bound.shape in ((), (1,)) for bound in (low, high)), "bounds that are no scalars")

    def body(i: Index) -> Expr:
        value = load(x, i)
        if low is not None or low_attr is not None:
            value = op("max", value, load(low, [const(0)]) if low is not None else const(low_attr, x.dtype))
        if high is not None or high_attr is not None:
            value = op("min", value, load(high, [const(0)]) if high is not None else const(high_attr, x.dtype))
        return value

    d.write(d.output(), body)


def where(d: Definition) -> None:
    """The second input where the first holds, else the third."""
    condition, yes, no = d.input(0, BOOL), d.input(1), d.input(2)
    d.write(d.output(), lambda i: op("select", load(condition, i), load(yes, i), load(no, i)))


def prelu(d: Definition) -> None:
    """The slope broadcasts to the input as anything else, towards the last axis."""
    x, slope = d.input(0, *FLOATS), d.input(1, *FLOATS)
    d.write(d.output(), lambda i: negative_part(load(x, i), load(x, i) * load(slope, i)))


def cast(d: Definition) -> TensorView | None:
    """Conversion of element types; floats go to integers towards zero."""
    x, y = d.input(0), d.output()
    if x.dtype is y.dtype:
        return TensorView(x.name, y.name)
    d.write(y, lambda i: convert(load(x, i), y.dtype))
    return None


def convert(x: Expr, dtype: DType) -> Expr:
    """A value in another type: floats go to integers towards zero.

    To one and two bytes, and to 32 bits without a sign, by an integer of twice the size, the upper half of which is
    dropped: so it is what most processors do where a float is out of range, which ONNX leaves open.
    """
    if dtype is BOOL:
        return op("ne", x, const(0, x.dtype))
    if x.dtype.is_float and not dtype.is_float and (dtype.size_bytes < 4 or dtype is DType.U32):
        x = op("cast", x, dtype=I32 if dtype.size_bytes < 4 else I64)
    return op("cast", x, dtype=dtype)


def batch_normalization(d: Definition) -> None:
    """Inference with known statistics; as a rule rewrites fold it away or leave a multiply-add.

    In the order of ONNX's evaluator, whose bits it has where a step function follows.
    """
    d.require(not d.attr("training_mode", 0) and d.attr("spatial", 1) == 1, "training")
    x = d.input(0, *FLOATS)
    axis = len(x.shape) - 1 if d.attr("channels_last") else min(1, len(x.shape) - 1)
    scale, bias, mu, variance = (d.input(position, x.dtype) for position in range(1, 5))
    epsilon = float(d.attr("epsilon", 1e-5))

    def body(i: Index) -> Expr:
        at = [i[axis]]
        scaled = load(scale, at) * (load(x, i) - load(mu, at))
        return scaled / op("sqrt", load(variance, at) + epsilon) + load(bias, at)

    d.write(d.output(), body)


def _celu(x: Expr, d: Definition) -> Expr:
    alpha = float(d.attr("alpha", 1.0))
    return negative_part(x, exp_less_one(quotient(op("min", x, 0.0), alpha)) * alpha)


def shrink(d: Definition) -> None:
    """0 within a bound, elsewhere nearer to 0 by a bias. Whole numbers stay exact, and whole."""
    x = d.input(0, *ARITHMETIC)
    bound, bias = float(d.attr("lambd", 0.5)), float(d.attr("bias", 0.0))
    is_whole = not x.dtype.is_float and bias.is_integer() and is_in_range(int(abs(bias)), x.dtype)
    d.require(x.dtype.is_float or is_whole or x.dtype.size_bytes <= 4, "a bias that is no whole number")

    def body(i: Index) -> Expr:
        value = load(x, i)
        compared = value if x.dtype.is_float else op("cast", value, dtype=F64)
        moved = value if is_whole else compared
        step = const(abs(bias), moved.dtype)  # unsigned numbers have no negative one
        less, more = (moved - step, moved + step) if bias >= 0 else (moved + step, moved - step)
        if not (is_whole or x.dtype.is_float):
            less, more = convert(less, x.dtype), convert(more, x.dtype)
        above = op("select", op("lt", const(bound, compared.dtype), compared), less, const(0, x.dtype))
        return op("select", op("lt", compared, -bound), more, above)

    d.write(d.output(), body)


_ANGLES = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan")

_SIXTH = float(np.float32(1 / 6))
"""The attribute of the HardSigmoid that HardSwish is defined by: attributes are float32."""

ELEMENTWISE: Mapping[str, OpDef] = {
    **{name: unary(partial(op, name.lower())) for name in _ANGLES},
    "Abs": unary(lambda x: op("abs", x), *ARITHMETIC),
    "Add": variadic("add", *ARITHMETIC),
    "And": variadic("and", BOOL),
    "BitCast": bit_cast,
    "BitShift": shift,
    "BitwiseAnd": variadic("bitand", *INTEGERS),
    "BitwiseNot": unary(complement, *INTEGERS),
    "BitwiseOr": variadic("bitor", *INTEGERS),
    "BitwiseXor": variadic("bitxor", *INTEGERS),
    "BatchNormalization": batch_normalization,
    "Cast": cast,
    "Ceil": unary(lambda x: op("ceil", x)),
    "CausalMask": causal_mask,
    "Celu": unary_with_attrs(_celu),
    "Clip": clip,
    "Div": divide,
    "Elu": unary_with_attrs(lambda x, d: selu(x, float(d.attr("alpha", 1.0)), 1.0)),
    "Equal": compare("eq"),
    "Erf": unary(lambda x: op("erf", x)),
    "Exp": unary(lambda x: op("exp", x)),
    "Floor": unary(lambda x: op("floor", x)),
    "Gelu": unary_with_attrs(lambda x, d: gelu(x, d.attr("approximate", "none"))),
    "Greater": compare("lt", swapped=True),
    "GreaterOrEqual": compare("le", swapped=True),
    "HardSigmoid": unary_with_attrs(
        lambda x, d: clip_to(x * float(d.attr("alpha", 0.2)) + float(d.attr("beta", 0.5)), 0.0, 1.0)
    ),
    "HardSwish": unary(lambda x: x * clip_to(x * _SIXTH + 0.5, 0.0, 1.0)),
    "IsInf": is_infinite,
    "IsNaN": unary(lambda x: op("ne", x, x)),
    "LeakyRelu": unary_with_attrs(lambda x, d: negative_part(x, x * float(d.attr("alpha", 0.01)))),
    "Less": compare("lt"),
    "LessOrEqual": compare("le"),
    "Log": unary(lambda x: op("log", x)),
    "Max": variadic("max", *ARITHMETIC),
    "Mean": mean,
    "Min": variadic("min", *ARITHMETIC),
    "Mod": modulo,
    "Mish": unary(lambda x: x * op("tanh", softplus(x))),
    "Mul": variadic("mul", *ARITHMETIC),
    "Neg": unary(lambda x: -x, *ARITHMETIC),
    "Not": unary(lambda x: op("not", x), BOOL),
    "Or": variadic("or", BOOL),
    "PRelu": prelu,
    "Pow": power,
    "Reciprocal": unary(lambda x: op("div", 1.0, x)),
    "Relu": unary(lambda x: op("max", x, const(0, x.dtype)), *ARITHMETIC),
    "Round": unary(lambda x: op("round", x)),
    "Selu": unary_with_attrs(
        lambda x, d: selu(x, float(d.attr("alpha", 1.6732632423543772)), float(d.attr("gamma", 1.0507009873554805)))
    ),
    "Shrink": shrink,
    "Sigmoid": unary(lambda x: op("sigmoid", x)),
    "Sign": unary(sign, *ARITHMETIC),
    "Silu": unary(lambda x: x * op("sigmoid", x)),
    "Softplus": unary(softplus),
    "Softsign": unary(lambda x: x / (op("abs", x) + 1.0)),
    "Sqrt": unary(lambda x: op("sqrt", x)),
    "Sub": variadic("sub", *ARITHMETIC),
    "Sum": variadic("add", *ARITHMETIC),
    "Tanh": unary(lambda x: op("tanh", x)),
    "ThresholdedRelu": unary_with_attrs(
        lambda x, d: op("select", op("lt", const(float(d.attr("alpha", 1.0)), x.dtype), x), x, 0.0)
    ),
    "Where": where,
    "Xor": variadic("ne", BOOL),
}


# Quantised numbers: bytes that stand for floats, by a scale and a zero point.

QUANTISED = (*BYTES, DType.I16, DType.U16)
"""Element types that floats are rounded to."""


def quantize_linear(d: Definition) -> None:
    """Floats in steps of the scale, rounded half to even and counted from the zero point, as far as the type goes."""
    x, scale, y = d.input(0, F32), d.input(1, F32), d.output()
    d.require(y.dtype in QUANTISED, f"no kernels for {y.dtype}")
    zero = _zero(d, y.dtype)
    at, zero_at = _place(d, x, scale), _place(d, x, zero)
    limits = np.iinfo(y.dtype.value)
    known = d.constant_input(1)
    is_in_steps = known is not None and bool(np.all(known == 1))

    def body(i: Index) -> Expr:
        steps = op("round", load(x, i) if is_in_steps else load(x, i) / load(scale, at(i)))
        if zero is not None:
            steps = steps + op("cast", load(zero, zero_at(i)), dtype=F32)
        return op("cast", clip_to(steps, float(limits.min), float(limits.max)), dtype=y.dtype)

    d.write(y, body)


def dequantize_linear(d: Definition) -> None:
    """The distance of numbers from the zero point, times the scale."""
    x, scale = d.input(0, *QUANTISED, I32), d.input(1, F32)
    zero = _zero(d, x.dtype)
    at, zero_at = _place(d, x, scale), _place(d, x, zero)

    def body(i: Index) -> Expr:
        steps = load(x, i)
        if zero is not None:
            steps = op("cast", steps, dtype=I32) - op("cast", load(zero, zero_at(i)), dtype=I32)
        return op("cast", steps, dtype=F32) * load(scale, at(i))

    d.write(d.output(), body)


def _place(d: Definition, x: Tensor, parameter: Tensor | None) -> Callable[[Index], Index]:
    """The index of an element's scale or zero point: one per tensor, per place of an axis, or per block along it."""
    if parameter is None or prod(parameter.shape) == 1:
        rank = len(parameter.shape) if parameter else 0
        return lambda i: [const(0)] * rank
    axis = axis_of(int(d.attr("axis", 1)), len(x.shape))
    block = int(d.attr("block_size", 0))
    if block:
        blocks = tuple(-(-extent // block) if k == axis else extent for k, extent in enumerate(x.shape))
        d.require(parameter.shape == blocks, "scales that are not of blocks")
        return lambda i: [*i[:axis], i[axis] // block, *i[axis + 1 :]]
    d.require(0 <= axis < len(x.shape) and parameter.shape == (x.shape[axis],), "scales that are not along an axis")
    return lambda i: [i[axis]]


def _zero(d: Definition, dtype: DType) -> Tensor | None:
    """The zero point; None where it is 0."""
    known = d.constant_input(2)
    return None if known is not None and not known.any() else d.optional(2, dtype)


QUANTISATION: Mapping[str, OpDef] = {
    "DequantizeLinear": dequantize_linear,
    "QuantizeLinear": quantize_linear,
}
