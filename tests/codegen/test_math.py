from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest

from tunewright.codegen.expr import semantics
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import TRANSCENDENTAL, Load, Op, Ramp, Var, const, evaluate, op, substitute, walk
from tunewright.codegen.expr.math import expand

x, y = Load("x", (Var("i"),), DType.F32), Load("y", (Var("i"),), DType.F32)


def fused(a, b, c):
    """A multiply-add rounded once (but for rare double roundings)."""
    if np.asarray(a).dtype == np.float32:
        return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)
    return a * b + c


@pytest.fixture(params=["fused", "unfused"], autouse=True)
def _fma(request, monkeypatch):
    """Both meanings of fma that a machine may give it."""
    if request.param == "fused":
        monkeypatch.setitem(semantics.OPS, "fma", fused)


@pytest.fixture(params=[1, 8], autouse=True)
def _lanes(request, monkeypatch):
    """Single values and vectors, which may have other expansions."""
    monkeypatch.setitem(PLACE, "i", Var("i") if request.param == 1 else Ramp(const(0), request.param))


PLACE = {"i": Var("i")}
"""Where values are read."""


def run(node, **tensors):
    node = substitute(node, PLACE)
    arrays = {name: np.asarray(values, np.float32) for name, values in tensors.items()}
    return evaluate(expand(node), {"i": 0}, lambda load, _: arrays[load.tensor])


def exact(name, values):
    """The function in float64."""
    wide = Load("x", (Var("i"),), DType.F64)
    return evaluate(Op(name, (wide,), DType.F64), {"i": 0}, lambda *_: np.asarray(values, np.float64))


def grid(low, high, points=60_000):
    """Floats between two ends: evenly in value, and evenly in bits on either side of zero."""
    smallest = np.float32(low if 0 < low < 2.0**-126 else 2.0**-126)  # denormals where they are asked for
    largest = np.float32(max(abs(low), abs(high)))
    bits = np.linspace(smallest.view(np.int32), largest.view(np.int32), points).astype(np.int32)
    every = np.concatenate([np.linspace(low, high, points).astype(np.float32), bits.view(np.float32)])
    every = np.concatenate([every, -every])
    return every[(every >= low) & (every <= high)]


@pytest.mark.parametrize(
    ("name", "low", "high", "limit"),
    [
        ("exp", -86.64, 88.72283, 1.9e-7),
        ("log", 2.0**-149, 3.4e38, 1.3e-7),
        ("log", 0.4, 2.5, 1.3e-7),
        ("sigmoid", -86, 200, 2.5e-7),
        ("tanh", -30, 30, 3.9e-7),
        ("erf", -30, 30, 4.2e-7),
        ("sin", -1e6, 1e6, 2e-7),
        ("cos", -1e6, 1e6, 2e-7),
        ("tan", -1e4, 1e4, 4e-7),
        ("asin", -1, 1, 3.5e-7),
        ("acos", -1, 0.999, 3e-7),
        ("atan", -1e30, 1e30, 3.5e-7),
        ("sinh", -89, 89, 7e-7),
        ("cosh", -89, 89, 7e-7),
        ("asinh", -3e38, 3e38, 3.5e-7),
        ("acosh", 1.001, 3e38, 3.5e-7),
        ("atanh", -0.9999, 0.9999, 3.5e-7),
    ],
)
def test_relative_error(name, low, high, limit):
    values = grid(low, high)
    want = exact(name, values)
    is_normal = np.abs(want) >= 2.0**-126
    errors = np.abs(run(op(name, x), x=values) - want)[is_normal]
    assert errors.max() > 0
    assert (errors <= limit * np.abs(want[is_normal])).all()


@pytest.mark.parametrize("factor", [0.7071067811865475, -0.5, 2.0, 0.01])
@pytest.mark.parametrize(("name", "limit"), [("tanh", 3.9e-7), ("erf", 4.2e-7)])
def test_constant_factors(name, limit, factor):
    values = grid(-30, 30, 20_000)
    want = exact(name, values * float(np.float32(factor)))
    errors = np.abs(run(op(name, x * factor), x=values) - want)
    rounded = 0 if abs(factor) > 0.1 else 6e-8  # of the product
    assert (errors <= (limit + rounded) * np.abs(want) + 2.0**-126).all()


SPECIAL = [inf, -inf, nan, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("exp", [inf, 0, nan, 1, 1, 1, 1, inf, 0, np.e]),
        ("log", [inf, nan, nan, -inf, -inf, np.log(2.0**-149), nan, np.log(3e38), nan, 0]),
        ("sigmoid", [1, 0, nan, 0.5, 0.5, 0.5, 0.5, 1, 0, 1 / (1 + np.exp(-1))]),
        ("tanh", [1, -1, nan, 0, 0, 1e-45, -1e-45, 1, -1, np.tanh(1)]),
        ("erf", [1, -1, nan, 0, 0, 1e-45, -1e-45, 1, -1, 0.8427007929]),
    ],
)
def test_special_values(name, values):
    got = run(op(name, x), x=SPECIAL)
    want = np.array(values, np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert np.allclose(got, want, rtol=5e-7, atol=0, equal_nan=True)


def test_odd_functions_keep_the_sign_of_zero_and_stay_inside_one():
    values = grid(-30, 30)
    for name in ("tanh", "erf"):
        assert np.signbit(run(op(name, x), x=[-0.0])).all()
        assert np.abs(run(op(name, x), x=values)).max() == 1


def test_exp_flushes_small_results_and_overflows_exactly():
    edge = np.float32(88.72284)  # the first float whose exponential is too large
    got = run(op("exp", x), x=[edge, np.nextafter(edge, np.float32(0)), -87.4, -88.0, -103.0, -1e30])
    assert got[0] == inf and np.isfinite(got[1])
    assert not got[2:].any()
    values = np.linspace(-104, -86.6, 10_000)
    assert np.abs(run(op("exp", x), x=values) - np.exp(values.astype(np.float32).astype(np.float64))).max() < 1.7e-38


@pytest.mark.parametrize("k", [0, 1, 7, 8, 1015, 1016, 2039])
def test_eighths_of_powers_of_two(k):
    bits = evaluate(op("exp2_bits", const(k, DType.I32)), {}, lambda *_: None)
    assert np.asarray(bits, np.int32).view(np.float32) == np.float32(2.0 ** (k / 8 - 127)) or k < 8


def test_gates_are_one_division():
    names = Counter(n.name for n in walk(expand(y * op("sigmoid", x))) if isinstance(n, Op))
    assert names["div"] == 1 and names["mul"] == 1
    shared = op("sigmoid", x)
    names = Counter(n.name for n in walk(expand(y * shared + shared)) if isinstance(n, Op))
    assert names["div"] == 1 and names["mul"] == 2
    values = grid(-80, 80, 5000)
    want = values / (1 + np.exp(-values.astype(np.float64)))
    assert np.allclose(run(x * op("sigmoid", x), x=values), want, rtol=2.5e-7, atol=0)


def test_exp_rises():
    assert (np.diff(run(op("exp", x), x=np.linspace(-1, 1, 20_001))) >= 0).all()


@pytest.mark.parametrize("exponent", [-3, -2, -1, 0, 1, 2, 3, 4, 7, 16, 31, 32])
def test_whole_powers_are_products(exponent):
    node = expand(op("pow", x, float(exponent)))
    names = {n.name for n in walk(node) if isinstance(n, Op)}
    assert names <= {"mul", "div"}
    values = np.concatenate([grid(0.2, 8, 2000), grid(-8, -0.2, 2000)])
    got = np.broadcast_to(run(op("pow", x, float(exponent)), x=values), values.shape)
    want = values.astype(np.float64) ** exponent
    assert np.allclose(got, want, rtol=6e-8 * max(abs(exponent), 1), atol=0)


@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5, -2.5])
def test_halves_go_through_the_square_root(exponent):
    names = {n.name for n in walk(expand(op("pow", x, exponent))) if isinstance(n, Op)}
    assert names <= {"add", "div", "eq", "mul", "select", "sqrt"}
    values = grid(0.01, 100, 5000)
    assert np.allclose(run(op("pow", x, exponent), x=values), values.astype(np.float64) ** exponent, rtol=4e-7, atol=0)
    assert np.isnan(run(op("pow", x, exponent), x=[-1.0])).all()


def test_logarithm_of_all_denormals():
    bits = np.concatenate([np.arange(1, 2000), np.arange(2000, 2**23 + 2000, 97)]).astype(np.int32)
    values = bits.view(np.float32)
    want = exact("log", values)
    assert (np.abs(run(op("log", x), x=values) - want) <= 1.3e-7 * np.abs(want)).all()


def test_powers_of_denormals():
    got = run(op("pow", x, y), x=[1e-45, 1e-40, -1e-40, 1e-45], y=[0.3, 0.7, 3.0, -0.2])
    assert np.allclose(got, [2.0 ** (-149 * 0.3), 1e-40**0.7, 0, 2.0 ** (149 * 0.2)], rtol=2e-5, atol=0)


@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5])
def test_infinities_and_zeros_to_halves(exponent):
    """As in C, not as by the square root alone."""
    positive, negative = (inf, 0.0) if exponent > 0 else (0.0, inf)
    got = run(op("pow", x, exponent), x=[inf, -inf, 0.0, -0.0, -1.0])
    assert got.tolist()[:4] == [positive, positive, negative, negative] and np.isnan(got[4])
    assert not np.signbit(got[:4]).any()


def test_general_powers():
    rng = np.random.default_rng(0)
    bases = np.exp(rng.uniform(-8, 8, 50_000)).astype(np.float32)
    powers = rng.uniform(-10, 10, 50_000).astype(np.float32)
    want = bases.astype(np.float64) ** powers
    got = run(op("pow", x, y), x=bases, y=powers)
    assert (np.abs(got / want - 1) <= 6e-8).all()
    assert (got == want.astype(np.float32)).mean() > 0.9999


@pytest.mark.parametrize("constant", [False, True])
def test_powers_of_special_values(constant):
    bases = [-2.0, -2.0, -2.0, 0.0, 0.0, 0.0, 1.0, nan, -1.0, inf, -inf, -2.0, nan, 2.0, -inf, -0.0, -0.0]
    powers = [35.0, 36.0, 35.3, 0.0, 40.3, -40.3, inf, 0.0, inf, -0.3, 35.0, -inf, 0.3, nan, 0.3, -35.0, 0.3]
    with np.errstate(all="ignore"):
        want = np.power(np.array(bases), np.array(powers)).astype(np.float32)
    for base, power, value in zip(bases, powers, want, strict=True):
        got = run(op("pow", x, power if constant else y), x=[base], y=[power])
        assert np.allclose(got, value, rtol=1e-5, atol=0, equal_nan=True), (base, power, got, value)


def test_nothing_transcendental_is_left_and_sharing_stays():
    shared = op("exp", x)
    node = expand(op("div", shared, shared + op("tanh", op("erf", shared))))
    assert not any(isinstance(n, Op) and n.name in TRANSCENDENTAL for n in walk(node))
    assert isinstance(node, Op) and isinstance(node.args[1], Op)
    assert node.args[0] is node.args[1].args[0]
    plain = x * 2.0 + y
    assert expand(plain) is plain


def test_expansions_are_short_and_branch_free():
    sizes = {"exp": 13, "log": 26, "sigmoid": 16, "tanh": 14, "erf": 16}
    for name, limit in sizes.items():
        ops = [n for n in walk(expand(op(name, x))) if isinstance(n, Op) and n.name != "bitcast"]
        assert len(ops) <= limit, name
        assert all(n.dtype in (DType.F32, DType.I32, DType.BOOL) for n in ops)


def test_vectors_expand_to_vectors():
    lanes = Load("x", (Ramp(const(0), 8),), DType.F32)
    assert all(expand(op(name, lanes)).lanes == 8 for name in ("exp", "log", "erf", "tanh", "sigmoid"))


def test_integer_powers_and_refusals():
    n = Load("n", (Var("i"),), DType.I64)
    cube = expand(op("pow", n, 3))
    assert evaluate(cube, {"i": 0}, lambda *_: np.arange(5)).tolist() == [0, 1, 8, 27, 64]
    inverse = expand(op("pow", n, -1))
    assert evaluate(inverse, {"i": 0}, lambda *_: np.arange(-2, 3)).tolist() == [0, -1, 0, 1, 0]
    with pytest.raises(ValueError, match="exp of int64"):
        expand(Op("exp", (n,), DType.I64))


def test_neighbouring_functions_agree():
    values = grid(-20, 20, 5000)
    halves = run(op("sigmoid", x), x=values) * 2 - 1
    assert np.allclose(halves, run(op("tanh", x), x=values / 2), atol=3e-7)
    positive = np.sort(values[values > 0.01])
    round_trip = run(op("exp", op("log", x)), x=positive)
    assert np.allclose(round_trip, positive, rtol=1e-6)
    assert all(a <= b * (1 + 1e-6) for a, b in pairwise(round_trip))


def test_powers_that_are_floats_are_exact():
    bases, powers = (v.ravel() for v in np.meshgrid(np.arange(-60, 61) / 4, np.arange(-8.0, 13.0)))
    with np.errstate(all="ignore"):
        want = bases**powers
    is_float = want == want.astype(np.float32)
    assert is_float.sum() > 900
    got = run(op("pow", x, y), x=bases[is_float], y=powers[is_float])
    np.testing.assert_array_equal(got, want[is_float])
    roots = run(op("pow", x, y), x=np.arange(1, 4000) ** 2, y=np.full(3999, 0.5))
    np.testing.assert_array_equal(roots, np.arange(1, 4000))
