"""Trigonometric and hyperbolic functions and their inverses, of float32, to a few units in the last place: see `math`.

Polynomials: Cephes (Moshier), single precision. They hold near zero; each function says how it gets there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log, nan, pi

from .dtype import DType
from .expr import Expr, const, op

_QUARTER_HIGH = 1.5707963109016418
"""pi / 2 to 24 bits, so that its products with whole numbers below 2^29 are exact in float64."""
_QUARTER_LOW = pi / 2 - _QUARTER_HIGH + 6.123233995736766e-17

_EIGHTH = 0.7854
"""The largest angle that is less than half a quarter of a turn away from whole ones."""

_LARGE = 1e10
"""Beyond it x * x + 1 is x * x, and x * x may be too large."""


def _polynomial(x: Expr, *coefficients: float) -> Expr:
    """By Horner's rule, the highest power first."""
    value: Expr = const(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _select(condition: Expr, yes: Expr | float, no: Expr | float) -> Expr:
    return op("select", condition, yes, no)


def _with_sign(x: Expr, magnitude: Expr) -> Expr:
    return _select(op("lt", x, 0.0), -magnitude, magnitude)


def _turn(x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """The sine and cosine of x less whole quarters of a turn, how many these are, 0 to 3, and whether that is odd.

    In float64, as float32 has no place left behind the point of a large angle. Angles beyond 5e8 lose places there too;
    of those beyond 1e16 nothing is left but that sines are between -1 and 1.
    """
    wide = op("cast", x, dtype=DType.F64)
    quarters = op("round", wide * (2 / pi))
    rest = wide - quarters * _QUARTER_HIGH - quarters * _QUARTER_LOW
    number = quarters - op("floor", quarters * 0.25) * 4.0
    r = op("max", op("min", op("cast", rest, dtype=DType.F32), _EIGHTH), -_EIGHTH)
    square = r * r
    sine = r + r * square * _polynomial(square, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
    cosine = _polynomial(square, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
    quarter = op("cast", number, dtype=DType.F32)
    is_odd = op("or", op("eq", quarter, 1.0), op("eq", quarter, 3.0))
    return sine, square * square * cosine - square * 0.5 + 1.0, quarter, is_odd


def _sin(x: Expr) -> Expr:
    sine, cosine, quarters, is_odd = _turn(x)
    value = _select(is_odd, cosine, sine)
    return _select(op("lt", quarters, 2.0), value, -value)


def _cos(x: Expr) -> Expr:
    sine, cosine, quarters, is_odd = _turn(x)
    value = _select(is_odd, sine, cosine)
    return _select(op("or", op("eq", quarters, 1.0), op("eq", quarters, 2.0)), -value, value)


def _tan(x: Expr) -> Expr:
    sine, cosine, _, is_odd = _turn(x)
    return op("div", _select(is_odd, -cosine, sine), _select(is_odd, sine, cosine))


def _arc_sine_of_half(x: Expr) -> Expr:
    """For 0 <= x <= 1 / 2."""
    square = x * x
    series = _polynomial(square, 4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
    return series * square * x + x


def _half_angle(x: Expr) -> tuple[Expr, Expr]:
    """Whether |x| > 1 / 2, and the arc sine of sqrt((1 - |x|) / 2) then, else of |x|."""
    size = op("abs", x)
    is_large = op("lt", 0.5, size)
    return is_large, _arc_sine_of_half(_select(is_large, op("sqrt", (1.0 - size) * 0.5), size))


def _asin(x: Expr) -> Expr:
    """Above 1 / 2 by the half angle: asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2))."""
    is_large, angle = _half_angle(x)
    return _with_sign(x, _select(is_large, pi / 2 - angle * 2.0, angle))


def _acos(x: Expr) -> Expr:
    """Near 1 by the half angle alone, as the difference from pi / 2 would lose its places."""
    is_large, angle = _half_angle(x)
    far = _select(op("lt", x, 0.0), pi - angle * 2.0, angle * 2.0)
    return _select(is_large, far, pi / 2 - _with_sign(x, angle))


def _atan(x: Expr) -> Expr:
    """Brought below tan(pi / 8) by the angles pi / 2 and pi / 4."""
    size = op("abs", x)
    is_large, is_small = op("lt", 2.414213562373095, size), op("le", size, 0.4142135623730950)
    small = _select(is_small, size, op("div", size - 1.0, size + 1.0))
    part = _select(is_large, op("div", const(-1.0), size), small)
    start = _select(is_large, pi / 2, _select(is_small, const(0.0), pi / 4))
    square = part * part
    series = _polynomial(square, 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
    return _with_sign(x, start + (series * square * part + part))


def _half_power(size: Expr) -> Expr:
    """exp(size) / 2, finite where exp(size) no longer is."""
    root = op("exp", size * 0.5)
    return root * 0.5 * root


def _sinh(x: Expr) -> Expr:
    """Below 1 by a polynomial, as exp(x) - exp(-x) would lose its places."""
    size, square = op("abs", x), x * x
    near = _polynomial(square, 2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1) * square * x + x
    half = _half_power(size)
    return _select(op("lt", size, 1.0), near, _with_sign(x, half - op("div", const(0.25), half)))


def _cosh(x: Expr) -> Expr:
    half = _half_power(op("abs", x))
    return half + op("div", const(0.25), half)


def _log_of_one_and(x: Expr) -> Expr:
    """log(1 + x) for x >= 0, with all digits where x is small."""
    total = x + 1.0
    lost = _select(op("lt", x, 1e7), op("div", x - (total - 1.0), total), const(0.0))
    return op("log", total) + lost


def _asinh(x: Expr) -> Expr:
    """log(|x| + sqrt(x * x + 1)), beyond `_LARGE` log(2 |x|)."""
    size = op("abs", x)
    square = op("min", _LARGE, size) * op("min", _LARGE, size)
    near = _log_of_one_and(size + op("div", square, op("sqrt", square + 1.0) + 1.0))
    return _with_sign(x, _select(op("lt", size, _LARGE), near, op("log", size) + log(2)))


def _acosh(x: Expr) -> Expr:
    """log(x + sqrt(x * x - 1)) from how much x is above 1, beyond `_LARGE` log(2 x); NaN below 1."""
    above = op("min", _LARGE, x) - 1.0
    near = _log_of_one_and(above + op("sqrt", above * (above + 2.0)))
    return _select(op("lt", x, 1.0), nan, _select(op("lt", x, _LARGE), near, op("log", x) + log(2)))


def _atanh(x: Expr) -> Expr:
    """log((1 + x) / (1 - x)) / 2."""
    size = op("abs", x)
    return _with_sign(x, _log_of_one_and(op("div", size * 2.0, 1.0 - size)) * 0.5)


TRIGONOMETRY: Mapping[str, Callable[[Expr], Expr]] = {
    "acos": _acos,
    "acosh": _acosh,
    "asin": _asin,
    "asinh": _asinh,
    "atan": _atan,
    "atanh": _atanh,
    "cos": _cos,
    "cosh": _cosh,
    "sin": _sin,
    "sinh": _sinh,
    "tan": _tan,
}
"""The expansion of each op on float32, which may have "exp" and "log" in it."""
