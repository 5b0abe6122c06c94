"""Quantisation without divisions: the same numbers as with them."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Op, Ramp, Var, const, op, walk
from tunewright.codegen.expr.quantise import fused, without_divisions
from tunewright.codegen.host import detect
from tunewright.codegen.ir.ir import Block, Buffer, For, Kernel, LoopKind, Store
from tunewright.codegen.llvm.build import assembly
from tunewright.codegen.target import Target

LANES = 16

X = Load("x", (Ramp(Var("i"), LANES),), DType.F32)

FUSING = Target("cpu", "x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma", 256, 16, 1, 32 << 10, 1 << 20, 0)
NEON = Target("cpu", "aarch64-unknown-linux-gnu", "cortex-a72", "", 128, 32, 1, 32 << 10, 1 << 20, 0)
SEPARATE = Target("cpu", "x86_64-unknown-linux-gnu", "x86-64", "", 128, 16, 1, 32 << 10, 1 << 20, 0)


def quantised(x: Expr, scale: float, zero: int = 0, dtype: DType = DType.U8) -> Expr:
    """What `QuantizeLinear` computes, as the op is defined."""
    limits = np.iinfo(dtype.value)
    steps = op("round", op("div", x, const(scale, DType.F32)))
    steps = steps + float(zero) if zero else steps
    return op("cast", op("min", op("max", steps, float(limits.min)), float(limits.max)), dtype=dtype)


def kernel(points: int, scale: float, zero: int, dtype: DType) -> Kernel:
    place = Ramp(Var("i") * LANES, LANES)
    body = Store("y", (place,), quantised(Load("x", (place,), DType.F32), scale, zero, dtype))
    params = Buffer("x", (points,), DType.F32), Buffer("y", (points,), dtype)
    return Kernel(params, (), Block((For("i", points // LANES, body),)))


def turns(scale: float, zero: int, dtype: DType) -> Any:
    """Floats around each place where the result changes, far ones, and some between."""
    limits = np.iinfo(dtype.value)
    whole = np.arange(limits.min - 2, limits.max + 2) - zero
    places = ((whole + 0.5) * np.float64(np.float32(scale))).astype(np.float32)
    near = (places.view(np.int32)[:, None] + np.arange(-5, 6, dtype=np.int32)).view(np.float32)
    between = np.random.default_rng(0).uniform(places[0], places[-1], 1000).astype(np.float32)
    far = np.array([inf, -inf, 3e38, -3e38, 0.0, -0.0, 1e-45, -1e-45], np.float32)
    x = np.concatenate([near.ravel(), between, far])
    return np.append(x, np.zeros(-len(x) % LANES, np.float32))


def names(expr: Expr) -> set[str]:
    return {node.name for node in walk(expr) if isinstance(node, Op)}


def expected(x: Any, scale: float, zero: int, dtype: DType) -> Any:
    limits = np.iinfo(dtype.value)
    with np.errstate(over="ignore"):
        return np.clip(np.rint(x / np.float32(scale)) + zero, limits.min, limits.max).astype(dtype.value)


@pytest.mark.slow
@given(
    exponent=st.floats(-30, 20),
    part=st.floats(1, 2),
    zero=st.integers(-128, 255),
    dtype=st.sampled_from([DType.U8, DType.I8]),
)
def test_any_float_comes_to_the_same_number(execute, exponent: float, part: float, zero: int, dtype: DType) -> None:
    scale = float(np.float32(part * 2.0 ** round(exponent)))
    x = turns(scale, zero, dtype)
    result = execute(kernel(len(x), scale, zero, dtype), x=x)["y"]
    np.testing.assert_array_equal(result, expected(x, scale, zero, dtype))


@pytest.mark.parametrize(("zero", "behind"), [(0, 0), (3, 3), (3, 200), (0, 4), (255, 0)])
def test_numbers_that_are_floats_again(execute, zero: int, behind: int) -> None:
    place = Ramp(Var("i") * LANES, LANES)
    whole = quantised(Load("x", (place,), DType.F32), 0.1, zero)
    whole = op("cast", whole, dtype=DType.I32) - const(behind, DType.I32) if behind else whole
    x = turns(0.1, zero, DType.U8)
    params = Buffer("x", (len(x),), DType.F32), Buffer("y", (len(x),), DType.F32)
    store = Store("y", (place,), op("cast", whole, dtype=DType.F32) * 0.1)
    assert not {"bitcast", "cast", "div"} & names(without_divisions(store.value))
    result = execute(Kernel(params, (), Block((For("i", len(x) // LANES, store),))), x=x)["y"]
    numbers = expected(x, 0.1, zero, DType.U8).astype(np.float32) - np.float32(behind)
    np.testing.assert_array_equal(result, numbers * np.float32(0.1))


@pytest.mark.parametrize("zero", [0, 3, -128])
def test_what_is_in_steps_already_is_rounded(execute, zero: int) -> None:
    place = Ramp(Var("i") * LANES, LANES)
    steps = op("round", Load("x", (place,), DType.F32)) + float(zero)
    whole = op("cast", op("min", op("max", steps, -128.0), 127.0), dtype=DType.I8)
    assert "round" not in names(without_divisions(whole))
    x = turns(1.0, zero, DType.I8)
    params = Buffer("x", (len(x),), DType.F32), Buffer("y", (len(x),), DType.I8)
    loop = For("i", len(x) // LANES, Store("y", (place,), whole))
    result = execute(Kernel(params, (), Block((loop,))), x=x)["y"]
    np.testing.assert_array_equal(result, expected(x, 1.0, zero, DType.I8))


@pytest.mark.parametrize(("target", "divides"), [(FUSING, False), (NEON, False), (SEPARATE, True)])
def test_a_machine_that_rounds_twice_divides(target: Target, divides: bool) -> None:
    assert ("div" in assembly(kernel(64, 0.1, 3, DType.U8), target)) is divides


@given(exponent=st.integers(-59, 59), part=st.floats(1, 2, width=32, exclude_max=True), zero=st.integers(-128, 255))
def test_few_scales_need_a_division(exponent: int, part: float, zero: int) -> None:
    """None of those that are drawn, and none of powers of two."""
    scale = float(np.float32(part * 2.0**exponent))
    for whole in (quantised(X, scale, zero), quantised(X, 2.0**exponent, zero)):
        assert "div" not in names(without_divisions(whole))


def test_sums_are_rounded_once() -> None:
    rng = np.random.default_rng(0)
    factor = np.float32(1 / 0.7)
    x = rng.standard_normal(300).astype(np.float32)
    added = (-x * factor * (1 + rng.integers(-3, 4, 300) * 2.0**-24)).astype(np.float32)
    for once, a, b in zip(fused(x, factor, added), x.tolist(), added.tolist(), strict=True):
        exact = Fraction(a) * Fraction(float(factor)) + Fraction(b)
        sides = [np.nextafter(once, np.float32(side)) for side in (-inf, inf)]
        assert all(abs(Fraction(float(once)) - exact) <= abs(Fraction(float(side)) - exact) for side in sides)


@pytest.mark.parametrize(
    "steps",
    [
        quantised(X, -0.1),
        quantised(X, 1e-30),
        quantised(X, 0.1, dtype=DType.U16),
        *(
            op("cast", op("min", op("max", op("round", op("div", X, const(0.1, DType.F32))), 0.0), 255.0), dtype=dtype)
            for dtype in (DType.I32, DType.U32, DType.I64, DType.U64, DType.I16)
        ),
        op("round", op("div", X, const(0.1, DType.F32))),
        op("cast", op("min", op("max", op("round", op("div", X, const(0.1, DType.F32))), -9.0), 200.0), dtype=DType.U8),
        op("cast", op("min", op("max", op("round", op("div", X, const(0.1, DType.F32))), 0.5), 255.0), dtype=DType.U8),
        op("cast", op("min", op("max", op("round", op("div", X, const(0.1, DType.F32))), -inf), inf), dtype=DType.U8),
    ],
    ids=[
        "negative scale", "small scale", "many steps", "i32", "u32", "i64", "u64", "i16", "no limits",
        "beyond", "limits between numbers", "infinite limits",
    ],
)  # fmt: skip
def test_other_steps_stay(steps: Expr) -> None:
    assert without_divisions(steps) is steps


def test_quantisations_inside_of_others_are_found() -> None:
    inner = op("cast", quantised(X, 0.1), dtype=DType.F32) * 0.1 + X
    assert "div" not in names(without_divisions(quantised(inner, 0.2)))


def test_numbers_far_from_the_zero_point_stay_bytes() -> None:
    """Such a difference is no float: what is subtracted as a whole number is rounded once."""
    far = op("cast", op("cast", quantised(X, 0.1), dtype=DType.I32) - const(-(2**24) - 1, DType.I32), dtype=DType.F32)
    assert "bitcast" in names(without_divisions(far))


def test_bits_of_others_stay() -> None:
    bits = op("bitcast", X + 1.5 * 2**23, dtype=DType.I32)
    foreign = op("cast", op("cast", bits, dtype=DType.U8), dtype=DType.F32)
    assert "bitcast" in names(without_divisions(foreign + op("cast", quantised(X, 0.1), dtype=DType.F32)))


def test_nan_is_the_least_number(execute) -> None:
    x = np.full(LANES, nan, np.float32)
    whole = kernel(LANES, 0.1, 3, DType.U8)
    if detect(1).has_fma:
        assert not execute(whole, x=x, exact=False)["y"].any()


def test_numbers_that_are_known_are_rounded_once(execute) -> None:
    """An index that is quantised, in a loop that is written out: its sum is 100.5 before the second rounding."""
    scale = 0.72636813
    body = Store("y", (Var("i"),), quantised(op("cast", Var("i"), dtype=DType.F32), scale))
    out = Buffer("y", (74,), DType.U8)
    for kind in (LoopKind.UNROLL, LoopKind.SERIAL):
        result = execute(Kernel((out,), (), Block((For("i", 74, body, kind),))))["y"]
        np.testing.assert_array_equal(result, expected(np.arange(74, dtype=np.float32), scale, 0, DType.U8))
