"""Transcendental functions of float64, to two units in the last place, 4.5e-16: see `math`, which has float32's.

Polynomials are Taylor's, or interpolate at Chebyshev's points. What a float64 can't hold is kept in two: a high part of
few bits, whose products are exact, and the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import factorial, inf, nan, pi
from math import log as log_of

from .dtype import DType
from .expr import Expr, const, op

F64, I64 = DType.F64, DType.I64

MAGIC = 1.5 * 2**52
"""Added to a float64 that is less than 2^51 in size, it leaves the nearest whole number in the low bits of the sum."""
MAGIC_BITS = 0x4338000000000000
BIAS = 1023
MANTISSA_BITS = 52
SIGN = -(1 << 63)

LN2_HIGH, LN2_LOW = 0.6931471805592082, 7.371002565167799e-13  # the high part has 40 bits
EXP_SERIES = [1 / factorial(k) for k in range(14)]  # |r| <= ln(2) / 2: what is left out is 4e-18


def _bits(x: Expr) -> Expr:
    return op("bitcast", x, dtype=I64)


def _float(bits: Expr) -> Expr:
    return op("bitcast", bits, dtype=F64)


def _select(condition: Expr, yes: Expr | float, no: Expr | float) -> Expr:
    return op("select", condition, yes, no)


def _number(value: float) -> Expr:
    return const(value, F64)


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    """The polynomial with these coefficients, constant first."""
    total: Expr = _number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = op("fma", total, x, coefficient)
    return total


def _rounded(x: Expr) -> Expr:
    """The first half of the bits of a value, to be multiplied exactly."""
    return op("cast", op("cast", x, dtype=DType.F32), dtype=F64)


def _with_sign(x: Expr, size: Expr) -> Expr:
    """A size with the sign of x, which may be -0."""
    return _float(op("bitor", _bits(size), op("bitand", _bits(x), SIGN)))


def _nearest(x: Expr) -> tuple[Expr, Expr]:
    """The nearest whole number of at most 2^51, as a float64 and as an int64."""
    shifted = x + MAGIC
    return shifted - MAGIC, _bits(shifted) - MAGIC_BITS


def _power_of_two(exponent: Expr) -> Expr:
    return _float(op("shl", exponent + BIAS, MANTISSA_BITS))


def _scale(x: Expr, exponent: Expr) -> Expr:
    """x * 2^exponent, in two steps, so that subnormals and the largest numbers come out."""
    half = op("shr", exponent, 1)
    return x * _power_of_two(half) * _power_of_two(exponent - half)


def _reduce(x: Expr) -> tuple[Expr, Expr]:
    """x = n * ln(2) + r: r, and n as an integer."""
    n, whole = _nearest(x * (1 / log_of(2)))
    return op("fma", n, -LN2_LOW, op("fma", n, -LN2_HIGH, x)), whole


def exp(x: Expr) -> Expr:
    """e to the x."""
    r, whole = _reduce(op("min", 720.0, op("max", -750.0, x)))
    return _scale(_horner(EXP_SERIES, r), whole)


def _exp_less_one(x: Expr) -> Expr:
    """exp(x) - 1 for 0 <= x <= 700, with all digits where it is small."""
    r, whole = _reduce(x)
    power = _power_of_two(whole)
    return op("fma", power, r + r * r * _horner(EXP_SERIES[2:], r), power - 1.0)


HALF_ROOT_BITS = 0x3FE6A09E667F3BCD  # the bits of the root of 1/2, the lower end of the mantissas
SMALLEST_NORMAL = 2.0**-1022
LN_SERIES = [2 / (2 * k + 3) for k in range(10)]  # |s| <= 0.172: what is left out is 1e-18


def _take_apart(x: Expr) -> tuple[Expr, Expr]:
    """The exponent of a positive x, as a float64, and its mantissa, between the roots of 1/2 and of 2."""
    is_small = op("lt", x, SMALLEST_NORMAL)
    bits = _bits(_select(is_small, x * 2.0**54, x))
    exponent = op("shr", bits - HALF_ROOT_BITS, MANTISSA_BITS)
    whole = _float(exponent + MAGIC_BITS) - MAGIC
    return _select(is_small, whole - 54.0, whole), _float(bits - op("shl", exponent, MANTISSA_BITS))


def log(x: Expr) -> Expr:
    """The natural logarithm: -inf of zeros, NaN of negative numbers.

    log(1 + f) = f - (f^2 / 2 - s * (f^2 / 2 + R)) with s = f / (2 + f), R the rest of the series of its atanh.
    """
    exponent, mantissa = _take_apart(x)
    f = mantissa - 1.0
    s = op("div", f, f + 2.0)
    half_square, z = f * f * 0.5, s * s
    rest = s * (half_square + z * _horner(LN_SERIES, z)) + exponent * LN2_LOW
    result = exponent * LN2_HIGH - ((half_square - rest) - f)
    none = _select(op("lt", x, 0.0), nan, _number(-inf))
    result = _select(op("lt", _number(0.0), x), result, none)
    return _select(op("lt", x, inf), result, x)  # inf, and NaN, which is not less


def _log_of_one_and(x: Expr) -> Expr:
    """log(1 + x) for x >= 0, with all digits where x is small."""
    total = x + 1.0
    lost = _select(op("lt", x, 1e15), op("div", x - (total - 1.0), total), 0.0)
    return log(total) + lost


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return op("div", 1.0, exp(-x) + 1.0)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    power = _exp_less_one(op("min", 22.0, op("abs", x)) * 2.0)
    return _with_sign(x, op("div", power, power + 2.0))


ERF_NEAR = (
    1.1283791670955126, -0.37612638903183676, 0.11283791670952624, -0.02686617064480267, 0.005223977623179348,
    -0.0008548326929470691, 0.00012055330429899759, -1.4925602741550847e-05, 1.6461484722454145e-06,
    -1.6359841594724727e-07, 1.4765666857055745e-08, -1.2083048517022723e-09, 8.685870114391334e-11,
    -4.9101179846805086e-12, 1.5889546007818838e-13,
)  # fmt: skip
"""erf(x) / x by x^2, below 1.5."""
ERF_FAR = (
    0.17900115118138996, -0.3262335600430373, 0.24560380171233084, -0.15011593650075908, 0.07166583719799241,
    -0.024392499320435457, 0.004269136331470249, 0.0007077465146204264, -0.000597061890058902,
    4.52536291244002e-05, 6.405526733564472e-05, -1.2840747911901877e-05, -7.962858694540765e-06,
    2.0005258636100395e-06, 1.1594073360789873e-06,
)  # fmt: skip
"""(1 - erf(x)) * exp(x^2) by (x - 3) / (x + 3), between 1.5 and 6."""


def erf(x: Expr) -> Expr:
    """The error function, beyond 6 1."""
    size = op("abs", x)
    near = op("min", 1.5, size)
    far = op("max", 1.5, op("min", 6.0, size))
    tail = exp(-(far * far)) * _horner(ERF_FAR, op("div", far - 3.0, far + 3.0))
    small = near * _horner(ERF_NEAR, near * near)
    return _with_sign(x, _select(op("lt", size, 1.5), small, _number(1.0) - tail))


LOG2_TAIL = [3 / (2 * k + 5) for k in range(10)]  # 3 * atanh(s) / s - 3 - s^2 by s^2, without its factor s^4
THIRD, THIRD_HIGH, THIRD_LOW = 0.9617966939259756, 0.9617967009544373, -7.028461650952758e-09  # 2 / (3 ln(2))
LN2, LN2_SHORT, LN2_REST = 0.6931471805599453, 0.6931471824645996, -1.904654299957768e-09


def _log2_in_two(x: Expr) -> tuple[Expr, Expr]:
    """The binary logarithm of a positive x, as a part of 24 bits and the rest."""
    exponent, m = _take_apart(x)
    f, above = m - 1.0, m + 1.0
    s = op("div", f, above)
    short, above_short = _rounded(s), _rounded(above)
    low = op("div", (f - short * above_short) - short * (m - (above_short - 1.0)), above)
    z, square = s * s, short * short
    tail = z * z * _horner(LOG2_TAIL, z) + low * (short + s)
    series = _rounded(square + 3.0 + tail)
    series_low = tail - ((series - 3.0) - square)
    product, product_low = short * series, low * series + series_low * s
    high = _rounded(product + product_low)
    high_low = product_low - (high - product)
    scaled, scaled_low = high * THIRD_HIGH, high * THIRD_LOW + high_low * THIRD
    whole = _rounded(scaled + scaled_low + exponent)
    return whole, scaled_low - ((whole - exponent) - scaled)


def _positive_power(size: Expr, y: Expr) -> Expr:
    """A positive finite number to the y, which is finite."""
    high, low = _log2_in_two(size)
    y = op("min", 1e22, op("max", -1e22, y))
    y_short = _rounded(y)
    rest, product = (y - y_short) * high + y * low, y_short * high
    total = product + rest
    n, whole = _nearest(op("min", 1100.0, op("max", -1100.0, total)))
    product = product - n
    short = _rounded(product + rest)
    power, power_low = short * LN2_SHORT, (rest - (short - product)) * LN2 + short * LN2_REST
    r = power + power_low
    value = _horner(EXP_SERIES, r)
    result = _scale(op("fma", value, power_low - (r - power), value), whole)
    result = _select(op("lt", total, -1080.0), 0.0, result)
    return _select(op("lt", 1025.0, total), inf, result)


def power(x: Expr, y: Expr) -> Expr:
    """x to the y. Negative x, -0 too, to a whole y has the sign that its parity says; to any other y NaN."""
    size = op("abs", x)
    result = _positive_power(size, y)
    is_falling = op("lt", y, 0.0)
    result = _select(op("eq", size, 0.0), _select(is_falling, inf, _number(0.0)), result)
    result = _select(op("eq", size, inf), _select(is_falling, 0.0, _number(inf)), result)
    whole = op("eq", op("round", y), y)
    odd = op("and", whole, op("ne", op("round", y * 0.5), y * 0.5))
    result = _select(op("and", op("lt", _bits(x), 0), odd), -result, result)
    negative = op("and", op("lt", x, 0.0), op("lt", -inf, x))
    result = _select(op("and", negative, op("not", whole)), nan, result)
    result = _select(op("or", op("ne", x, x), op("ne", y, y)), nan, result)
    is_minus_one = op("and", op("eq", x, -1.0), op("eq", op("abs", y), inf))
    is_one = op("or", op("or", op("eq", y, 0.0), op("eq", x, 1.0)), is_minus_one)
    return _select(is_one, 1.0, result)


QUARTER = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15, 3.2820035428735005e-22)
"""pi / 2 in parts: the first three of 24 bits, so that their products with whole numbers below 2^29 are exact."""
SINE_SERIES = [(-1) ** k / factorial(2 * k + 1) for k in range(1, 9)]  # |r| <= pi / 4: what is left out is 1e-19
COSINE_SERIES = [(-1) ** k / factorial(2 * k) for k in range(2, 9)]  # 3e-18


def _turn(x: Expr) -> tuple[Expr, Expr, Expr]:
    """The sine and cosine of x less whole quarters of a turn, and how many these are, 0 to 3."""
    quarters = op("round", x * (2 / pi))
    first, product = x - quarters * QUARTER[0] - quarters * QUARTER[1], quarters * QUARTER[2]
    second = first - product
    rest = quarters * QUARTER[3] - ((first - second) - product)
    r = op("min", 0.8, op("max", -0.8, second - rest))  # it is without that, but of angles beyond 8e8
    low = op("min", 1e-16, op("max", -1e-16, (second - r) - rest))
    z = r * r
    sine = r + (r * z * _horner(SINE_SERIES, z) + low * (_number(1.0) - z * 0.5))
    cosine = _number(1.0) - (z * 0.5 - (z * z * _horner(COSINE_SERIES, z) - r * low))
    return sine, cosine, quarters - op("floor", quarters * 0.25) * 4.0


def _sin(x: Expr) -> Expr:
    sine, cosine, quarters = _turn(x)
    is_odd = op("or", op("eq", quarters, 1.0), op("eq", quarters, 3.0))
    value = _select(is_odd, cosine, sine)
    return _select(op("eq", x, 0.0), x, _select(op("lt", quarters, 2.0), value, -value))


def _cos(x: Expr) -> Expr:
    sine, cosine, quarters = _turn(x)
    is_odd = op("or", op("eq", quarters, 1.0), op("eq", quarters, 3.0))
    value = _select(is_odd, sine, cosine)
    return _select(op("or", op("eq", quarters, 1.0), op("eq", quarters, 2.0)), -value, value)


def _tan(x: Expr) -> Expr:
    sine, cosine, quarters = _turn(x)
    is_odd = op("or", op("eq", quarters, 1.0), op("eq", quarters, 3.0))
    value = op("div", _select(is_odd, -cosine, sine), _select(is_odd, sine, cosine))
    return _select(op("eq", x, 0.0), x, value)


ATAN_SERIES = (
    1.0, -0.3333333333333333, 0.1999999999999985, -0.1428571428569207, 0.11111111109371868, -0.09090909009170237,
    0.07692305196817181, -0.06666614763951215, 0.0588159674450445, -0.05255335786975338, 0.04704406413312675,
    -0.0405104212790224, 0.029530928077580138, -0.012909226369020815,
)  # fmt: skip
"""atan(x) / x by x^2, below tan(pi / 8)."""
HALF_PI_LOW, QUARTER_PI_LOW = 6.123233995736766e-17, 3.061616997868383e-17


def _atan(x: Expr) -> Expr:
    """Brought below tan(pi / 8) by the angles pi / 2 and pi / 4."""
    size = op("abs", x)
    is_large, is_small = op("lt", 2.414213562373095, size), op("le", size, 0.4142135623730950)
    part = _select(is_small, size, op("div", size - 1.0, size + 1.0))
    part = _select(is_large, op("div", -1.0, size), part)
    start = _select(is_large, pi / 2, _select(is_small, 0.0, _number(pi / 4)))
    low = _select(is_large, HALF_PI_LOW, _select(is_small, 0.0, _number(QUARTER_PI_LOW)))
    return _with_sign(x, start + (part * _horner(ATAN_SERIES, part * part) + low))


def _asin(x: Expr) -> Expr:
    return _atan(op("div", x, op("sqrt", (_number(1.0) - x) * (x + 1.0))))


def _acos(x: Expr) -> Expr:
    return _atan(op("sqrt", op("div", _number(1.0) - x, x + 1.0))) * 2.0


def _half_power(size: Expr) -> Expr:
    """exp(size) / 2, finite where exp(size) no longer is."""
    root = exp(size * 0.5)
    return root * 0.5 * root


def _sinh(x: Expr) -> Expr:
    size = op("abs", x)
    power = _exp_less_one(op("min", 22.0, size))
    near = (power + op("div", power, power + 1.0)) * 0.5
    return _with_sign(x, _select(op("lt", size, 22.0), near, _half_power(size)))


def _cosh(x: Expr) -> Expr:
    half = _half_power(op("abs", x))
    return half + op("div", 0.25, half)


_LARGE = 1e10
"""Beyond it x * x + 1 is x * x, and x * x may be too large."""


def _asinh(x: Expr) -> Expr:
    """log(|x| + sqrt(x * x + 1)), beyond `_LARGE` log(2 |x|)."""
    size = op("abs", x)
    small = op("min", _LARGE, size)
    square = small * small
    near = _log_of_one_and(small + op("div", square, op("sqrt", square + 1.0) + 1.0))
    return _with_sign(x, _select(op("lt", size, _LARGE), near, log(size) + LN2))


def _acosh(x: Expr) -> Expr:
    """log(x + sqrt(x * x - 1)) from how much x is above 1, beyond `_LARGE` log(2 x); NaN below 1."""
    above = op("min", _LARGE, x) - 1.0
    near = _log_of_one_and(above + op("sqrt", above * (above + 2.0)))
    return _select(op("lt", x, 1.0), nan, _select(op("lt", x, _LARGE), near, log(x) + LN2))


def _atanh(x: Expr) -> Expr:
    """log((1 + x) / (1 - x)) / 2."""
    size = op("abs", x)
    return _with_sign(x, _log_of_one_and(op("div", size * 2.0, _number(1.0) - size)) * 0.5)


DOUBLES: Mapping[str, Callable[..., Expr]] = {
    "acos": _acos,
    "acosh": _acosh,
    "asin": _asin,
    "asinh": _asinh,
    "atan": _atan,
    "atanh": _atanh,
    "cos": _cos,
    "cosh": _cosh,
    "erf": erf,
    "exp": exp,
    "log": log,
    "pow": power,
    "sigmoid": sigmoid,
    "sin": _sin,
    "sinh": _sinh,
    "tan": _tan,
    "tanh": tanh,
}
"""The expansion of each transcendental op on float64."""
