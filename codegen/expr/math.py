"""Transcendental functions as primitive operations: branch-free, so that they vectorise, and with stated errors.

`expand` is applied before emission, so no back end needs a mathematics library. The polynomials are minimax fits of
our own (Lawson's reweighted least squares in float64, coefficients rounded to float32 one by one, the rest refitted).

The formulas need IEEE arithmetic as written: no reassociation, and NaN and infinities honoured. A fused and an
unfused `fma` both do; the errors stated hold for either. Where a constant meets a variable in `min` or `max` the
constant stands first, so that NaN also passes on machines that answer a comparison with NaN by the second operand.
Denormal results may be inexact. One ulp is 2^-23 relative at most, that is 1.2e-7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import factorial, inf, nan
from math import log as log_of
from typing import TypeGuard

from .double import DOUBLES
from .dtype import FLOATS, DType
from .expr import TRANSCENDENTAL, Const, Expr, Op, const, op, transform, walk
from .nodes import fact
from .trigonometry import TRIGONOMETRY

LARGEST_POWER = 32
"""Constant whole exponents up to this one, negative ones too, become multiplications."""

SMALLEST_NORMAL_BITS = 1 << 23


def expand(expr: Expr) -> Expr:
    """The expression without transcendental ops. Parts that were shared stay so.

    Raises ValueError for dtypes other than F32 and F64, save powers.
    """
    return _expansion(expr) if is_expandable(expr) else expr


@fact
def is_expandable(node: Expr) -> bool:
    """Whether there is a transcendental op inside."""
    return any(isinstance(part, Op) and part.name in TRANSCENDENTAL for part in walk(node))


@fact
def _expansion(expr: Expr) -> Expr:
    uses = Counter(part for node in walk(expr) for part in node.children)
    return transform(transform(expr, lambda node: _quotient(node, uses)), _expand_op)


def has_expansion(node: Op) -> bool:
    """Whether `expand` knows a transcendental op: on float32 and float64 all, on integers powers."""
    return node.name == "pow" or node.dtype in FLOATS


def _quotient(node: Expr, uses: Counter[Expr]) -> Expr:
    """x * sigmoid(y) as one division, if nothing else needs the sigmoid."""
    match node:
        case Op("mul", (x, Op("sigmoid", (y,), DType.F32) as gate) | (Op("sigmoid", (y,), DType.F32) as gate, x)):
            return op("div", x, exp(y, -1) + 1.0) if uses[gate] == 1 else node
    return node


def _expand_op(node: Expr) -> Expr:
    if not isinstance(node, Op) or node.name not in TRANSCENDENTAL:
        return node
    if not has_expansion(node):
        raise ValueError(f"{node.name} of {node.dtype} has no expansion: {str(node)[:80]}")
    if node.name == "pow" and _is_product(node.args[1]) and (node.dtype.is_float or node.args[1].value >= 0):
        return _product(node.args[0], int(node.args[1].value))
    if not node.dtype.is_float:
        return integer_power(*node.args)
    expansions = DOUBLES if node.dtype is DType.F64 else EXPANSIONS
    return expand(expansions[node.name](*node.args))


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    """The polynomial with these coefficients, constant first."""
    total: Expr = const(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        total = x + coefficient if total == const(1.0, x.dtype) else op("fma", total, x, coefficient)
    return total


LOG2_E = 1.44269504
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the high part has 10 bits: a multiple up to 2^14 of it is exact
EXP_TWICE = (2.0, 1.9999994, 0.99998295, 0.33335304, 0.08379635, 0.01657872)  # 2*exp(r), |r| <= ln(2)/2: 9.2e-8
EXP_TWICE_LESS = (1.0, 2.0, 1.000129, 0.33333778)  # 2*exp(r) - 1, |r| <= ln(2)/16: 2.6e-8 of exp(r)
TABLE_LANES = (8, 16)
"""Vectors for which `exp` takes eighths of powers of two out of a table: machines that have them pick by index."""


def exp(x: Expr, sign: int = 1) -> Expr:
    """e to the x, or to -x if `sign` is -1: relative error 1.9e-7. What is over the largest float is inf.

    Results under 2.4e-38 (x < -86.64) may be too small by as much as 1.7e-38, and are 0 under x = -87.4.
    `x = n*ln(2)/steps + r`, with n whole and one step a power of two or an eighth of it. 2^(n/steps - 1) is made by
    shifting n into the exponent; the polynomial brings the other factor 2, so that the largest results are reached and
    what is larger overflows by itself.
    """
    table = x.lanes in TABLE_LANES
    steps = 8 if table else 1
    magic = 1.5 * 2**23 + 126 * steps  # added to a float32 n, it leaves n + 126 * steps in the low bits of the sum
    # Keeps n / steps in -126 .. 128.4: at the lower end the power of two is made of zero bits.
    low, high = sorted((sign * (-87.33655 if table else -87.6), sign * 89.0))
    x = op("min", high, op("max", low, x))
    shifted = op("fma", x, sign * LOG2_E * steps, const(magic))
    n = shifted - magic
    r = op("fma", n, -sign * LN2_LOW / steps, op("fma", n, -sign * LN2_HIGH / steps, x))  # or -r
    bits = op("bitcast", shifted, dtype=DType.I32)
    if not table:
        power = op("bitcast", op("shl", bits, 23), dtype=DType.F32)
        return _horner([c * sign**k for k, c in enumerate(EXP_TWICE)], r) * power
    power = op("bitcast", op("exp2_bits", bits), dtype=DType.F32)
    return op("fma", power, _horner([c * sign**k for k, c in enumerate(EXP_TWICE_LESS)], r), power)


LN_BITS = 0x3F2AAAAB  # the bits of 2/3, the lower end of the mantissas
LN_TAIL = (-0.49999937, 0.333332, -0.2500775, 0.20011073, -0.1641703, 0.13997135, -0.15383598, 0.14020582)
"""(ln(1 + f) - f) / f^2 for |f| <= 1/3; the relative error of the logarithm is 2.7e-8."""


def log(x: Expr) -> Expr:
    """The natural logarithm: relative error 1.3e-7, of denormals too. -inf of zeros, NaN of negative numbers.

    `x = 2^e * (1 + f)` with 1 + f in 2/3 .. 4/3. The bits of a denormal are how many times it has 2^-149: that number
    is taken apart in its place, and 149 is taken from its exponent. No denormal is computed with: where a machine takes
    them for zeros, only negative ones change, from NaN to -inf.
    """
    whole = op("bitcast", x, dtype=DType.I32)
    denormal = op("bitcast", op("cast", whole, dtype=DType.F32), dtype=DType.I32) - (149 << 23)
    bits = op("select", op("lt", whole, SMALLEST_NORMAL_BITS), denormal, whole)  # negative values: see below
    exponent = op("shr", bits - LN_BITS, 23)
    f = op("bitcast", bits - op("shl", exponent, 23), dtype=DType.F32) - 1.0
    result = op("fma", f * f, _horner(LN_TAIL, f), f)
    result = op("fma", op("cast", exponent, dtype=DType.F32), 0.693147181, result)
    none = op("select", op("lt", x, 0.0), nan, const(-inf))
    result = op("select", op("lt", 0, whole), result, none)
    return op("select", op("lt", x, inf), result, x)  # inf, and NaN, which is not less


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)): relative error 2.5e-7. 0 under x = -88.7."""
    return op("div", 1.0, exp(x, -1) + 1.0)


def _odd(x: Expr, largest: float, above: Sequence[float], below: Sequence[float]) -> Expr:
    """An odd function that tends to -1 and 1: x times a quotient of polynomials in x^2, clipped.

    Beyond `largest`, where the function is 1 in float32, only the factor x grows, and the clip makes it 1. A constant
    factor of x goes into the coefficients. The last one below is made 1: it then takes an addition, not an `fma`, of
    which there are more.
    """
    factor = 1.0
    match x:
        case Op("mul", (Const(value), inner) | (inner, Const(value))) if 0.1 <= abs(value) <= 10:
            x, factor = inner, value
    last = below[-1] * factor ** (2 * len(below) - 2)
    above = [c * factor ** (2 * k + 1) / last for k, c in enumerate(above)]
    below = [c * factor ** (2 * k) / last for k, c in enumerate(below)]
    square = op("min", (largest / factor) ** 2, x * x)
    result = op("div", x * _horner(above, square), _horner(below, square))
    return op("min", 1.0, op("max", -1.0, result))


TANH_ABOVE = (1.0, 0.13382688, 0.0034974578, 2.0635825e-05, 1.3384295e-08)
TANH_BELOW = (1.0, 0.46716008, 0.025884362, 0.00032885178, 7.790251e-07)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent: relative error 3.9e-7, at most 1 in size."""
    return _odd(x, 9.02, TANH_ABOVE, TANH_BELOW)


ERF_ABOVE = (1.1283792, 0.17601247, 0.05089786, 0.0031694598, 0.0002751636, 2.2045738e-06)
ERF_BELOW = (1.0, 0.48932156, 0.1082093, 0.0137637025, 0.0010253934, 3.9194292e-05)


def erf(x: Expr) -> Expr:
    """The error function: relative error 4.2e-7, at most 1 in size."""
    return _odd(x, 3.93, ERF_ABOVE, ERF_BELOW)


def _is_product(exponent: Expr) -> TypeGuard[Const]:
    return isinstance(exponent, Const) and abs(exponent.value) <= LARGEST_POWER and exponent.value % 1 == 0


def _product(x: Expr, exponent: int) -> Expr:
    """x to a whole power by squaring: relative error 6e-8 a factor."""
    if exponent < 0:
        return op("div", 1.0, _product(x, -exponent))
    result: Expr | None = None
    while exponent:
        if exponent % 2:
            result = x if result is None else result * x
        exponent //= 2
        x = x * x if exponent else x
    return const(1, x.dtype) if result is None else result


def power(x: Expr, y: Expr) -> Expr:
    """x to the y, computed in float64: the nearest float but for one in many thousands, relative error 6e-8, and exact
    where the power is a float: 13 to the 2 is 169.

    Negative x, -0 too, to a whole y has the sign that its parity says; finite ones to any other y are NaN. Constant
    halves, such as 0.5 and -1.5, go through the square root instead: a few 1e-7.
    """
    if isinstance(y, Const) and _is_product(const(2 * y.value)):
        x = op("select", op("eq", x, -inf), inf, x + 0.0)
        times = int(abs(y.value))
        root = op("sqrt", x) * _product(x, times) if times else op("sqrt", x)
        return root if y.value > 0 else op("div", 1.0, root)
    size = op("abs", x)
    is_one = op("or", op("eq", y, 0.0), op("eq", size, 1.0))  # 0 * log2(0) and inf * log2(1) would be NaN
    logarithm = _wide_log2(op("cast", size, dtype=DType.F64))
    wide = _wide_exp2(op("cast", y, dtype=DType.F64) * logarithm)
    result = op("select", is_one, 1.0, op("cast", wide, dtype=DType.F32))
    whole = op("eq", op("round", y), y)
    odd = op("and", whole, op("ne", op("round", y * 0.5), y * 0.5))
    signed = op("lt", op("bitcast", x, dtype=DType.I32), 0)  # -0 too
    result = op("select", op("and", signed, odd), op("neg", result), result)
    negative = op("and", op("lt", x, 0.0), op("lt", -inf, x))
    return op("select", op("and", negative, op("not", whole)), nan, result)


def integer_power(x: Expr, exponent: Expr) -> Expr:
    """A power of integers by squaring, a step for each bit of the exponent. Negative ones are cut off towards zero."""
    kind = exponent.dtype
    one: Expr = const(1, x.dtype)
    size = exponent if kind.is_unsigned else op("abs", exponent)
    result, square = one, x
    for bit in range(8 * kind.size_bytes):
        result = op("select", op("ne", op("bitand", op("shr", size, bit), 1), 0), result * square, result)
        square = square * square
    if kind.is_unsigned:
        return result
    is_unit: Expr = op("eq", x, one)
    if not x.dtype.is_unsigned:
        is_unit = op("or", is_unit, op("eq", x, -1))
    return op("select", op("or", op("le", const(0, kind), exponent), is_unit), result, const(0, x.dtype))


HALF_ROOT_BITS = 0x3FE6A09E667F3BCD  # the bits of the root of 1/2 as a float64, the lower end of the mantissas
LOG2_SERIES = [2 / log_of(2) / (2 * k + 1) for k in range(9)]
"""log2((1 + s) / (1 - s)) = 2 / ln(2) * (s + s^3 / 3 + s^5 / 5 ...): what is left out for |s| <= 0.172 is 4e-15."""
EXP2_SERIES = [log_of(2) ** k / factorial(k) for k in range(11)]
"""2^r = 1 + r * ln(2) + (r * ln(2))^2 / 2! ...: for |r| <= 1/2 what is left out is 3e-13."""


def _wide_log2(x: Expr) -> Expr:
    """The binary logarithm of a float64 that is a float32 too, not negative: relative error 1e-14, of powers of two 0.

    `x = 2^e * m` with m between the roots of 1/2 and of 2; s = (m - 1) / (m + 1).
    """
    bits = op("bitcast", x, dtype=DType.I64)
    exponent = op("shr", bits - HALF_ROOT_BITS, 52)
    m = op("bitcast", bits - op("shl", exponent, 52), dtype=DType.F64)
    s = op("div", m - 1.0, m + 1.0)
    result = op("cast", exponent, dtype=DType.F64) + s * _horner(LOG2_SERIES, s * s)
    result = op("select", op("eq", x, 0.0), const(-inf, DType.F64), result)
    return op("select", op("lt", x, inf), result, x)  # inf, and NaN, which is not less


def _wide_exp2(x: Expr) -> Expr:
    """2 to the x, of float64: relative error 1e-12. What x is beyond 1000 either way counts as that."""
    x = op("min", 1000.0, op("max", -1000.0, x))
    magic = 1.5 * 2**52 + 1023  # added to a float64 n, it leaves n + 1023 in the low bits of the sum
    shifted = x + magic
    r = x - (shifted - magic)
    exponent = op("shl", op("bitcast", shifted, dtype=DType.I64), 52)
    return op("bitcast", exponent, dtype=DType.F64) * _horner(EXP2_SERIES, r)


EXPANSIONS: Mapping[str, Callable[..., Expr]] = {
    "exp": exp,
    "log": log,
    "erf": erf,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "pow": power,
    **TRIGONOMETRY,
}
"""The expansion of each transcendental op on float32."""
