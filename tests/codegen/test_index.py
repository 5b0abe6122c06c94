from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Load, Op, Ramp, Var, const, evaluate, loads, op
from tunewright.codegen.expr.index import Domain, Linear, build, contiguous, form, linear, simplify
from tunewright.codegen.expr.lanes import vectorize

a, b, p, i = Var("a"), Var("b"), Var("p"), Var("i")


def low(left, right):
    return op("min", left, right)


def high(left, right):
    return op("max", left, right)


def test_linear():
    assert linear(a * 8 + b - 3 - (a - 2) * 2) == Linear({"a": 6, "b": 1}, 1)
    assert linear(a * 4 - a * 4) == Linear({}, 0)
    assert linear(op("neg", a)) == Linear({"a": -1}, 0)
    assert linear(a * b) is None
    assert linear(a // 2) is None
    assert linear(Ramp(a, 4)) is None
    assert linear(op("cast", a, dtype=DType.F32)) is None
    assert linear(const(0.5)) is None


def test_linear_is_cheap_on_shared_parts():
    doubled = a + a
    for _ in range(59):
        doubled = doubled + doubled  # 2^60 nodes as a tree
    assert linear(doubled) == Linear({"a": 2**60}, 0)


@pytest.mark.parametrize(
    ("expression", "ranges", "expected"),
    [
        (a * 8 + b, {"a": (0, 4), "b": (0, 7)}, (0, 39)),
        (a * 8 + b - a * 8, {"a": (0, 4), "b": (2, 7)}, (2, 7)),
        (p // 4, {"p": (0, 10)}, (0, 2)),
        (p % 4, {"p": (0, 10)}, (0, 3)),
        (p % 4, {"p": (5, 6)}, (1, 2)),
        ((a * 4 + b) % 4, {"a": (0, 9), "b": (1, 3)}, (1, 3)),
        ((a * 4 + 2) % 8, {"a": (0, 9)}, (2, 6)),
        ((p // 4) * 4 + p % 4, {"p": (3, 10)}, (3, 10)),
        ((p // 4) * 7 + p % 4, {"p": (0, 11)}, (0, 17)),
        (p - (p // 5) * 5 - p % 5, {"p": (0, 99)}, (0, 0)),
        (low(high(i - 1, 0), 6), {"i": (0, 9)}, (0, 6)),
        (low(high(op("cast", Load("x", (i,), DType.F32), dtype=DType.I64), 0), 12), {"i": (0, 9)}, (0, 12)),
        (op("cast", Load("x", (i,), DType.U8), dtype=DType.I64), {"i": (0, 9)}, (0, 255)),
        (Load("x", (i,), DType.I64), {"i": (0, 9)}, None),
        (i + b, {"i": (0, 9)}, None),
        (i + b - b, {"i": (0, 9)}, (0, 9)),
        (op("select", op("lt", i, 3), i, i - 3), {"i": (0, 8)}, (0, 5)),
        (op("select", op("le", 3, i), 5, i), {"i": (0, 2)}, (0, 2)),
        (op("div", i - 9, 2), {"i": (0, 12)}, (-4, 1)),
        (op("abs", i - 9), {"i": (0, 12)}, (0, 9)),
        (op("min", op("abs", i - 3), 14 - op("abs", i - 3)), {"i": (0, 14)}, (0, 7)),
        (op("max", i, 9 - i), {"i": (0, 9)}, (5, 9)),
        (op("shl", i, 3), {"i": (1, 2)}, (8, 16)),
        (a * b, {"a": (-2, 3), "b": (-5, 1)}, (-15, 10)),
        (Ramp(a * 8, 8), {"a": (0, 2)}, (0, 23)),
    ],
)
def test_bounds(expression, ranges, expected):
    assert Domain(ranges).bounds(expression) == expected


def test_bounds_of_leading_lanes():
    assert Domain({"a": (0, 2)}, count=5).bounds(Ramp(a * 8, 8)) == (0, 20)
    assert Domain({"a": (0, 2)}, count=2).bounds(Ramp(a, 8) * 3) == (0, 9)


def test_guards_limit_what_contains_them():
    inside = Domain({"a": (0, 3), "b": (0, 7), "i": (0, 9)}).assume(op("lt", a * 8 + b, 29))
    assert inside.bounds(a * 8 + b) == (0, 28)
    assert inside.bounds((a * 8 + b) * 3 + 1) == (1, 85)
    assert inside.bounds(i * 29 + a * 8 + b) == (0, 9 * 29 + 28)
    assert inside.bounds(28 - b - a * 8) == (0, 28)
    assert inside.assume(op("lt", b, 3)).bounds(b) == (0, 2)
    both = Domain({"p": (0, 99)}).assume(op("and", op("le", 4, p), op("lt", p, 10)))
    assert both.bounds(p) == (4, 9)
    assert Domain({"p": (0, 99)}).assume(op("lt", p // 7, 3)).bounds((p // 7) * 2) == (0, 4)
    assert Domain({"p": (0, 99)}).assume(op("eq", p, 7)).bounds(p * 2) == (14, 14)
    assert Domain({"p": (0, 99)}).assume(op("not", op("lt", 9, p))).bounds(p) == (0, 9)
    assert Domain({"p": (0, 9)}).assume(op("lt", p, 0)).is_empty
    assert Domain({"a": (0, 3)}).assume(op("lt", a % 4, 3)).bounds(a * 7) == (0, 14)
    assert Domain({"a": (0, 4)}).assume(op("lt", a % 4, 3)).bounds(a * 7) == (0, 28)
    split = Domain({"a": (0, 5), "b": (0, 1)}).assume(op("lt", (a % 6) * 2 + b, 11))
    assert split.bounds((a % 6) * 2 + b) == split.bounds(a * 2 + b) == (0, 10)


def test_two_guards_add_up():
    ranges = {"a": (0, 3), "b": (0, 7), "i": (0, 3), "p": (0, 7)}
    domain = Domain(ranges).assume(op("and", op("lt", a * 8 + b, 29), op("lt", i * 8 + p, 27)))
    assert domain.bounds((a * 8 + b) * 27 + i * 8 + p) == (0, 28 * 27 + 26)
    assert domain.bounds((a * 8 + b) // 2) == (0, 14)


def test_a_guard_that_mentions_itself_ends():
    choice = op("select", op("lt", a, b), a, b * 2)
    domain = Domain({"a": (0, 3), "b": (0, 7)}).assume(op("lt", b, choice)).assume(op("lt", b, a // 2 + b // 3))
    assert domain.bounds(choice) is not None
    assert domain.bounds(b // 3 - choice) is not None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ((a * 8 + b) // 8, a),
        ((a * 8 + b) % 8, b),
        ((a * 8 + b + 16) // 8, a + 2),
        ((a * 4 + b % 4) // 8, a // 2),
        ((a * 4 + b % 4) % 8, (a % 2) * 4 + b % 4),
        ((a * 8 + p) // 8, a + p // 8),
        ((a * 8 + p) % 8, p % 8),
        ((p // 4) // 8, p // 32),
        ((p % 32) % 8, p % 8),
        ((p // 6) * 6 + p % 6, p),
        (low(a, 99), a),
        (low(a, -1), const(-1)),
        (high(b, 0), b),
        (op("lt", b, 8), const(True)),
        (op("lt", b, a * 8), op("lt", b, a * 8)),
        (op("select", op("lt", b, 8), a, b), a),
        (op("select", op("lt", p, 8), a, a), a),
        (a + b - a, b),
        (a * 3 - b - a * 3, op("neg", b)),
        (i + a, a),
        (Ramp(a * 8, 8) // 8, a),
        (Ramp(a * 8, 8) % 8, Ramp(const(0), 8)),
        (Ramp(a, 8) + b, Ramp(a + b, 8)),
        (Ramp(const(0), 8) * 2 + a, Ramp(const(0), 8) * 2 + a),
    ],
)
def test_simplify(expression, expected):
    ranges = {"a": (0, 5), "b": (0, 7), "p": (0, 1000), "i": (0, 0)}
    assert str(simplify(expression, ranges)) == str(expected)


def test_simplify_reaches_into_loads_and_conditions():
    x = Load("x", ((a * 8 + b) // 8, (a * 8 + b) % 8), DType.F32)
    whole = op("select", op("and", op("le", 0, b), op("lt", b, 8)), x * 2.0, 0.0)
    assert str(simplify(whole, {"a": (0, 5), "b": (0, 7)})) == "(x[a, b] * 2.0)"


def test_simplify_keeps_what_depends_on_the_number_of_lanes():
    total = op("hsum", op("cast", Ramp(a * 8, 8) // 8, dtype=DType.F32))
    assert simplify(total, {"a": (0, 5)}) == total
    part = Load("x", (Ramp(a * 8, 8) // 8,), DType.F32, count=3)
    assert simplify(part, {"a": (0, 5)}) == part


EXTENTS = {"a": 3, "b": 5, "c": 7}

indices = st.recursive(
    st.one_of(st.sampled_from([Var(name) for name in EXTENTS]), st.builds(const, st.integers(-9, 12))),
    lambda inner: st.one_of(
        st.builds(op, st.sampled_from(["add", "sub", "min", "max", "mul"]), inner, inner),
        st.builds(op, st.sampled_from(["mul", "floordiv", "mod", "div"]), inner,
                  st.integers(1, 9)),
        st.builds(lambda x: op("neg", x), inner),
        st.builds(lambda n, x, y, u, v: op("select", op(n, x, y), u, v), st.sampled_from(["lt", "le", "eq", "ne"]),
                  inner, inner, inner, inner),
    ),
    max_leaves=10,
)  # fmt: skip


def everywhere(expression, extents=EXTENTS):
    """The values of an index over the whole grid."""
    axes = np.meshgrid(*[np.arange(n) for n in extents.values()], indexing="ij")
    env = dict(zip(extents, axes, strict=True))
    return np.broadcast_to(evaluate(expression, env, lambda *_: None), axes[0].shape)


@given(indices)
def test_bounds_hold_everywhere(expression):
    interval = Domain({name: (0, n - 1) for name, n in EXTENTS.items()}).bounds(expression)
    assert interval is not None
    values = everywhere(expression)
    assert interval[0] <= values.min() and values.max() <= interval[1]


@given(indices)
def test_simplify_means_the_same(expression):
    fresh = simplify(expression, {name: (0, n - 1) for name, n in EXTENTS.items()})
    assert np.array_equal(everywhere(expression), everywhere(fresh))


@given(indices)
def test_build_inverts_form(expression):
    assert np.array_equal(everywhere(expression), everywhere(build(form(expression))))


@given(indices, indices, st.sampled_from(["lt", "le", "eq"]), indices)
def test_guarded_bounds_hold_where_the_guard_does(left, right, name, expression):
    guard = op(name, left, right)
    domain = Domain({name: (0, n - 1) for name, n in EXTENTS.items()}).assume(guard)
    values = everywhere(expression)[everywhere(guard).astype(bool)]
    if domain.is_empty:
        assert not values.size
    elif values.size:
        interval = domain.bounds(expression)
        assert interval is not None and interval[0] <= values.min() and values.max() <= interval[1]


@given(st.integers(1, 40), st.integers(1, 13), st.integers(1, 5))
def test_split_indices_are_exact(extent, tile, stride):
    outer = -(-extent // tile)
    domain = Domain({"a": (0, outer - 1), "b": (0, tile - 1)}).assume(op("lt", a * tile + b, extent))
    assert domain.bounds((a * tile + b) * stride) == (0, (extent - 1) * stride)
    clamped = low(a * tile + b, extent - 1)
    assert Domain({"a": (0, outer - 1), "b": (0, tile - 1)}).bounds(clamped) == (0, extent - 1)


def test_vectorize_chooses_how_each_load_moves():
    x = Load("x", (a, b * 8 + i), DType.F32)
    y = Load("y", (i, a), DType.F32)
    z = Load("z", (a,), DType.F32)
    s = Load("s", (i * 2,), DType.F32)
    fresh = vectorize(x * z + y + s, "i", p * 16, 16)
    by_name = {load.tensor: load for load in loads(fresh)}
    assert fresh.lanes == 16
    assert str(by_name["x"]) == "x[a, ((b * 8) + (p * 16)):+16]" and contiguous(by_name["x"].index)
    assert by_name["z"] is z
    assert str(by_name["y"]) == "y[(p * 16):+16, a]" and not contiguous(by_name["y"].index)
    assert str(by_name["s"]) == "s[((p * 16):+16 * 2)]" and not contiguous(by_name["s"].index)


def test_vectorize_with_count_and_the_variable_as_a_value():
    x = Load("x", (i, i), DType.F32)
    value = op("cast", i, dtype=DType.F32) * x
    fresh = vectorize(value, "i", const(0), 8, 5)
    assert str(fresh) == "(cast.float32(0:+8) * x[0:+8, 0:+8 count=5])"
    assert not contiguous(loads(fresh)[0].index)


def test_vectorize_shares_and_refuses_vectors():
    x = Load("x", (i,), DType.F32)
    fresh = vectorize(x * x, "i", a, 4)
    assert isinstance(fresh, Op) and fresh.args[0] is fresh.args[1]
    with pytest.raises(ValueError, match="vector already"):
        vectorize(Ramp(i, 4), "i", a, 4)


values = st.recursive(
    st.one_of(
        st.builds(lambda x, y: Load("x", (x % 11, y % 13), DType.F32), indices, indices),
        st.builds(lambda x: op("cast", x, dtype=DType.F32), indices),
    ),
    lambda inner: st.builds(op, st.sampled_from(["add", "mul", "max"]), inner, inner),
    max_leaves=4,
)


@given(values, st.integers(1, 7))
def test_vectorize_means_the_same(value, lanes):
    data = np.random.default_rng(0).random((11, 13), np.float32)

    def read(load, index):
        got = np.broadcast_to(data[tuple(index)], np.broadcast_shapes(*map(np.shape, index)))
        return got if load.count is None else np.where(np.arange(load.lanes) < load.count, got, np.float32(0))

    fresh = vectorize(value, "c", Var("a") + 1, lanes)
    for x, y in product(range(EXTENTS["a"]), range(EXTENTS["b"])):
        whole = np.broadcast_to(evaluate(fresh, {"a": x, "b": y}, read), lanes)
        single = [evaluate(value, {"a": x, "b": y, "c": x + 1 + lane}, read) for lane in range(lanes)]
        assert np.array_equal(whole, np.array(single, np.float32))


def test_no_point_left_decides_nothing_wrongly():
    assert isinstance(simplify(a // 3, {"a": (0, 2)}), Const)
    assert Domain({}).decide(op("lt", a, b)) is None
