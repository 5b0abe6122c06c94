"""The errors that `codegen.math` states, on this machine's own code."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, inf, nan
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Ramp, Var, op
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


def kernel(name, points, lanes=16):
    place = Ramp(Var("i") * lanes, lanes)
    body = Store("y", (place,), op(name, Load("x", (place,), DType.F32)))
    params = Buffer("x", (points,), DType.F32), Buffer("y", (points,), DType.F32)
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
