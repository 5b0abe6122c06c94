from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import (
    HORIZONTAL,
    OF_WORDS,
    Const,
    Load,
    Op,
    Ramp,
    Substitution,
    Var,
    apply,
    arity,
    const,
    evaluate,
    free_vars,
    from_json,
    loads,
    op,
    substitute,
    to_json,
    transform,
    variables,
    walk,
)
from tunewright.codegen.expr.lanes import lanes_of
from tunewright.codegen.expr.nodes import fact
from tunewright.codegen.expr.semantics import OPS

i, j = Var("i"), Var("j")


def no_loads(load, index):
    raise AssertionError(load)


def test_constants_fold_in_the_dtype_of_the_node():
    assert op("add", const(3), 4) == const(7)
    assert op("div", const(-7), 2) == const(-3)
    assert op("add", const(1.0), const(2.0**-30)) == const(1.0)
    assert op("cast", const(-2.7), dtype=DType.I32) == const(-2, DType.I32)
    assert op("bitcast", const(1.0), dtype=DType.I32) == const(0x3F800000, DType.I32)
    assert op("lt", const(2), 3) == const(True)


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32])
def test_integer_identities_keep_the_dtype(dtype):
    x = Load("x", (i,), dtype)
    zero = const(0, dtype)
    for same in (x + 0, 0 + x, x - 0, x * 1, 1 * x, x // 1):
        assert same is x
    for none in (x * 0, 0 * x, x % 1):
        assert none == zero


def test_float_identities_are_not_applied():
    x = Load("x", (i,), DType.F32)
    assert isinstance(x + 0, Op)  # -0.0 + 0 is 0.0
    assert isinstance(x * 0, Op)  # inf * 0 is nan


def test_constant_conditions_choose():
    x, y = Load("x", (i,), DType.F32), Load("y", (i,), DType.F32)
    assert op("select", const(True), x, y) is x
    assert op("select", const(False), x, y) is y
    inside = op("lt", i, 3)
    assert op("and", inside, True) is inside
    assert op("and", False, inside) == const(False)
    assert op("or", inside, const(True)) == const(True)
    assert op("or", const(False), inside) is inside


def test_numbers_take_the_dtype_of_the_other_operand_but_not_of_a_condition():
    assert (Load("x", (), DType.F32) * 2) == op("mul", Load("x", (), DType.F32), const(2.0))
    assert op("select", op("lt", i, 3), 1.0, 0.0).dtype is DType.F32
    with pytest.raises(ValueError, match=r"0\.5 is no int64"):
        i * 0.5


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, DType.U8), (-1, DType.U8), (2, DType.BOOL), (float("inf"), DType.I64), (2**31, DType.I32)],
)
def test_a_literal_must_fit(value, dtype):
    with pytest.raises(ValueError, match="is no"):
        const(value, dtype)


def test_transform_shares_and_leaves_alone_what_does_not_change():
    shared = op("mul", i, 3)
    root = op("add", op("add", shared, j), shared)
    nodes = []

    def visit(node):
        nodes.append(node)
        return node

    assert transform(root, visit) is root
    assert len(nodes) == len(list(walk(root)))
    result = substitute(root, {"j": const(2)})
    assert isinstance(result, Op) and result.args[1] is shared
    assert free_vars(result) == ["i"]


def test_substitution_replaces_what_roots_share_once():
    shared = op("mul", i, 3)
    x, y = Load("x", (shared,), DType.F32), Load("y", (shared + j,), DType.F32)
    substitution = Substitution({"i": j + 1})
    assert substitution(x).children[0] is substitution(y).children[0].children[0]
    assert substitution(y) is substitute(y, {"i": j + 1})
    untouched = Load("z", (j,), DType.F32)
    assert substitution(untouched) is untouched
    assert variables(substitution(x + y)) == {"j"} and variables(const(3)) == frozenset()


def test_indices_beyond_64_bits_wrap_as_those_of_machines_do():
    assert op("mul", const(2**62), 4) == const(0)
    assert op("lt", const(2**62), 2**62 + 1) == const(True)


def test_loads_and_lanes():
    x = Load("x", (i, Ramp(j, 8)), DType.F32)
    root = op("hsum", x * 2.0)
    assert x.lanes == 8 and root.lanes == 1
    assert loads(root) == [x]
    assert str(root) == "hsum((x[i, j:+8] * 2.0))"


def test_evaluate_runs_lanes_along_the_last_axis_and_is_silent():
    values = evaluate(Ramp(i * 4, 4), {"i": np.arange(3)[:, None]}, no_loads)
    assert np.array_equal(values, np.arange(12).reshape(3, 4))
    x = Load("x", (), DType.F32)
    assert evaluate(op("exp", x), {}, lambda *_: np.float32(1000)) == np.inf
    assert evaluate(op("sigmoid", x), {}, lambda *_: np.float32(-1000)) == 0
    assert np.isnan(evaluate(op("log", x), {}, lambda *_: np.float32(-1)))


def test_every_op_has_a_meaning_for_its_arity():
    for name, meaning in OPS.items():
        whole = ("shl", "shr", "bitand", "bitor", "bitxor", "widen_bytes", *OF_WORDS)
        values = [np.ones(4, np.int64 if name in whole else np.float32)] * arity(name)
        with np.errstate(all="ignore"):
            assert np.shape(meaning(*values)) == ((1,) if name in HORIZONTAL else (4,)), name


def test_integer_division_truncates():
    node = Op("div", (Var("a"), Var("b")), DType.I64)
    assert [int(apply(node, a, b)) for a, b in ((7, 2), (-7, 2), (7, -2), (-7, -2))] == [3, -3, -3, 3]
    least = np.int64(-(2**63))
    with np.errstate(all="ignore"):
        assert [int(apply(node, least, np.int64(b))) for b in (3, -3, -1)] == [-(2**63) // 3 + 1, 2**63 // 3, least]


expressions = st.recursive(
    st.one_of(
        st.builds(Var, st.sampled_from(["i", "j"])),
        st.builds(const, st.integers(-100, 100)),
        st.builds(lambda v: const(v, DType.F32), st.floats(width=32)),
        st.builds(const, st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: Op("add", (a, b), DType.I64), inner, inner),
        st.builds(lambda a: Load("t\n'\"../", (a, a), DType.U8), inner),
        st.builds(lambda a, b, c: Op("select", (a, b, c), DType.F32), inner, inner, inner),
    ),
    max_leaves=12,
)


@given(expressions)
def test_json_round_trip(expression):
    data = to_json(expression)
    assert to_json(from_json(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        ["op", "float32", "system", ["var", "i"]],
        ["op", "float32", "add", ["var", "i"]],
        ["op", "float32", "neg"],
        ["op", "float99", "neg", ["var", "i"]],
        ["const", "int64", "7"],
        ["const", "int64", 7.5],
        ["const", "uint8", 256],
        ["const", "bool", 1],
        ["const", "int64", True],
        ["const", "float32", True],
        ["const", "float32", "x"],
        ["var", 3],
        ["load", "float32", 3],
        ["ramp", ["var", "i"], 8],
    ],
)
def test_from_json_refuses(data):
    with pytest.raises(ValueError):
        from_json(data)


def test_vectors_have_no_json():
    with pytest.raises(ValueError, match="no place"):
        to_json(Ramp(i, 8))
    with pytest.raises(ValueError, match="no place"):
        to_json(Load("x", (i,), DType.F32, count=3))


def test_constants_of_special_value_survive_json():
    for value in (float("inf"), float("-inf"), -0.0):
        constant = from_json(to_json(const(value)))
        assert isinstance(constant, Const) and str(constant.value) == str(value)


def test_no_two_nodes_are_alike():
    def made():
        return Load("x", (Ramp(Var("i") * 8 + 1, 8),), DType.F32, 7) * const(2.5) + 0.0

    node = made()
    assert made() is node
    assert pickle.loads(pickle.dumps(node)) is node  # noqa: S301 - its own bytes
    assert copy.deepcopy(node) is node
    assert Const(0, DType.F32) is Const(0.0, DType.F32)
    assert const(float("nan")) is const(float("nan"))


def test_nodes_that_compute_otherwise_are_not_equal():
    x = Load("x", (const(0),), DType.F32)
    assert x + 0.0 != x + -0.0
    assert const(1) != const(True)
    assert const(1, DType.I32) != const(1, DType.U8)
    assert Load("x", (Ramp(const(0), 4),), DType.F32, 3) != Load("x", (Ramp(const(0), 4),), DType.F32)


def test_threads_make_the_same_nodes():
    def made(_):
        return [Var("i") * (10**9 + n) for n in range(200)]

    with ThreadPoolExecutor(8) as threads:
        first, *others = threads.map(made, range(16))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_a_fact_is_worked_out_once_and_forgotten_with_its_node():
    asked = []

    @fact
    def size(node):
        asked.append(str(node))
        return 1 + sum(map(size, node.children))

    name = "only here"
    assert size(Var(name) + Var(name)) == 3
    assert asked == [f"({name} + {name})", name]
    kept = Var(name)
    assert size(kept) == size(Var(name))
    assert asked.count(name) == 2


@pytest.mark.parametrize(("name", "expected"), [("zip_low", [0, 10, 1, 11]), ("zip_high", [2, 12, 3, 13])])
def test_lanes_of_zipped_vectors(name: str, expected: list[int]) -> None:
    zipped = op(name, Ramp(const(0), 4), Ramp(const(10), 4))
    assert [lane.constant for lane in lanes_of(zipped)] == expected
