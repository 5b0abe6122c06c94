"""The errors that `codegen.math` states, on this machine's own code."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, inf, nan
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Ramp, Var, op
from tunewright.codegen.expr.semantics import OPS
from tunewright.codegen.ir.ir import Block, Buffer, For, Kernel, Store

POINTS = 1 << 14
SPECIAL = [inf, -inf, nan, 0.0, -0.0, 3e38, -3e38, 1.0]

FUNCTIONS: dict[str, tuple[float, float, float, Callable[..., Any]]] = {
    "exp": (-86.64, 88.72283, 1.9e-7, np.exp),
    "log": (2.0**-149, 3.4e38, 1.3e-7, np.log),
    "sigmoid": (-86.0, 200.0, 2.5e-7, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (-30.0, 30.0, 3.9e-7, np.tanh),
    "erf": (-30.0, 30.0, 4.2e-7, np.vectorize(erf, otypes=[float])),
}


def kernel(name, points, lanes=16, dtype=DType.F32):
    place = Ramp(Var("i") * lanes, lanes)
    body = Store("y", (place,), op(name, Load("x", (place,), dtype)))
    params = Buffer("x", (points,), dtype), Buffer("y", (points,), dtype)
    return Kernel(params, (), Block((For("i", points // lanes, body),)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_stated_errors_hold_natively(execute, name):
    low, high, limit, exact = FUNCTIONS[name]
    values = np.linspace(low, high, POINTS // 2)
    small = np.exp(np.linspace(np.log(low if 0 < low < 2.0**-126 else 2.0**-126), np.log(high), POINTS // 4))
    x = np.concatenate([values, small, np.maximum(-small, low)]).astype(np.float32)
    want = exact(x.astype(np.float64))
    is_normal = np.abs(want) >= 2.0**-126
    got = execute(kernel(name, POINTS), x=x, exact=False)["y"]
    assert (np.abs(got - want)[is_normal] <= limit * np.abs(want[is_normal])).all()


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
def test_exp_of_all_magnitudes(execute, lanes):
    x = np.arange(-(2**31), 2**31, 2**14 + 1).astype(np.int32)[: 2**18 - 32].view(np.float32)
    got = execute(kernel("exp", len(x), lanes), x=x, exact=False)["y"]
    with np.errstate(all="ignore"):
        want = np.exp(x.astype(np.float64))
        errors = np.abs(got - want)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.isinf(got[x >= 88.72284]).all()
    normal = (x >= -86.64) & (x < 88.72284)
    assert (errors[normal] <= 1.9e-7 * want[normal]).all()
    assert (errors[x < -86.64] <= 1.7e-38).all()
    assert not got[x < -87.4].any()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("exp", [inf, 0, nan, 1, 1, inf, 0, np.e]),
        ("log", [inf, nan, nan, -inf, -inf, np.log(3e38), nan, 0]),
        ("sigmoid", [1, 0, nan, 0.5, 0.5, 1, 0, 1 / (1 + np.exp(-1))]),
        ("tanh", [1, -1, nan, 0, 0, 1, -1, np.tanh(1)]),
        ("erf", [1, -1, nan, 0, 0, 1, -1, erf(1)]),
    ],
)
def test_special_values_natively(execute, name, values):
    x = np.array(SPECIAL * 2, np.float32)
    got = execute(kernel(name, 16), x=x, exact=False)["y"]
    assert np.allclose(got, np.array(values * 2, np.float32), rtol=5e-7, atol=0, equal_nan=True)


DOUBLES: dict[str, tuple[float, float]] = {
    "acos": (-1, 1),
    "acosh": (1, 1e300),
    "asin": (-1, 1),
    "asinh": (-1e300, 1e300),
    "atan": (-1e300, 1e300),
    "atanh": (-1, 1),
    "cos": (-5e8, 5e8),
    "cosh": (-710, 710),
    "erf": (-7, 7),
    "exp": (-708, 709.7),
    "log": (5e-324, 1.7e308),
    "sigmoid": (-700, 700),
    "sin": (-5e8, 5e8),
    "sinh": (-710, 710),
    "tan": (-5e8, 5e8),
    "tanh": (-30, 30),
}


@pytest.mark.parametrize("name", DOUBLES)
def test_float64_is_right_to_two_units_in_the_last_place(execute, name):
    low, high = DOUBLES[name]
    random = np.random.default_rng(3)
    small = 10.0 ** random.uniform(max(-305, np.log10(max(low, 1e-305))), np.log10(high), POINTS // 2)
    near = random.uniform(max(low, -50), min(high, 50), POINTS // 4)
    x = np.concatenate([near, small, random.uniform(low, high, POINTS // 4)])
    x[: len(SPECIAL)] = SPECIAL
    x = np.where(np.isfinite(x), np.clip(x, low, high), x)
    with np.errstate(all="ignore"):
        want = np.vectorize(erf, otypes=[float])(x) if name == "erf" else OPS[name](x.astype(np.longdouble))
    got = execute(kernel(name, POINTS, 8, DType.F64), x=x, exact=False)["y"]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    is_normal = np.isfinite(want) & (np.abs(want) >= 2.0**-1022)
    assert (np.abs(got[is_normal] - want[is_normal]) <= 4.5e-16 * np.abs(want[is_normal])).all()
    assert (got[np.isinf(want)] == want[np.isinf(want)]).all()


def test_powers_of_float64(execute):
    random = np.random.default_rng(4)
    ends = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 5e-324, 2.0, -3.0, 0.5, 1e308, -1e-308, 1e22]
    x, y = map(np.ravel, np.meshgrid(ends, ends))
    bases = np.concatenate([10.0 ** random.uniform(-300, 300, 4000), random.uniform(0.9, 1.1, 4000)])
    x, y = np.append(x, bases), np.append(y, np.append(random.uniform(-1, 1, 4000), random.uniform(-5000, 5000, 4000)))
    count = len(x) // 4 * 4
    x, y = x[:count], y[:count]
    place = Ramp(Var("i") * 4, 4)
    value = op("pow", Load("x", (place,), DType.F64), Load("e", (place,), DType.F64))
    params = tuple(Buffer(name, (count,), DType.F64) for name in "xey")
    loop = For("i", count // 4, Store("y", (place,), value))
    got = execute(Kernel(params, (), Block((loop,))), x=x, e=y, exact=False)["y"]
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble)).astype(np.float64)
    is_normal = np.isfinite(want) & (np.abs(want) >= 2.0**-1022)
    assert (np.abs(got[is_normal] - want[is_normal]) <= 4.5e-16 * np.abs(want[is_normal])).all()
    np.testing.assert_array_equal(got[want == 0], 0.0)
    np.testing.assert_array_equal(got[~np.isfinite(want)], want[~np.isfinite(want)])
