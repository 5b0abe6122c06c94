"""Any kernel becomes a small picture of its loops, in lines that people can read."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Ramp, Var, const, op
from tunewright.codegen.ir.formula import CUT, formula, prefetch_formula, store_formula
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Prefetch, Scope, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import SKETCHES, lower, sketch
from tunewright.tuner.explain import nest as nests
from tunewright.tuner.explain.nest import BARRIER, MOST_LETTERS, MOST_NODES, NestLoop, NestStep, Part, nest, nodes

from ..search_space.oracle import NARROW, WIDE
from ..search_space.test_sketches import MODELS, tasks_of

i, j = Var("i"), Var("j")


def element(*index: Expr, tensor: str = "x") -> Load:
    return Load(tensor, index, DType.F32)


def kernel_of(*phases: Stmt) -> Kernel:
    return Kernel((), (), Block(phases))


def drawn(parts: tuple[Part, ...], depth: int = 0) -> Iterator[str]:
    """The tree as indented lines."""
    for part in parts:
        match part:
            case NestStep(text):
                yield "  " * depth + text
            case NestLoop(kind, var, extent, inside):
                yield f"{'  ' * depth}{kind} {var} < {extent}"
                yield from drawn(inside, depth + 1)


def check(parts: tuple[Part, ...], most_nodes: int = MOST_NODES) -> None:
    assert 0 < nodes(parts) <= most_nodes
    for line in drawn(parts):
        assert line.isprintable()
        assert len(line.strip()) <= MOST_LETTERS
    assert all(part.parts for part in loops(parts))
    assert tuple(map(nests.from_json, json.loads(json.dumps(list(map(nests.to_json, parts)))))) == parts


def loops(parts: tuple[Part, ...]) -> Iterator[NestLoop]:
    for part in parts:
        if isinstance(part, NestLoop):
            yield part
            yield from loops(part.parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=2)
@given(large=st.booleans(), target=st.sampled_from((WIDE, NARROW)), seed=st.integers(0, 2**31))
def test_any_schedule_of_any_sketch(name: str, large: bool, target: Target, seed: int) -> None:
    sizes = {"a": 56, "b": 28, "c": 64, "d": 32} if large else {"a": 13, "b": 7, "c": 37, "d": 3}
    for task in tasks_of(MODELS[name], sizes):
        for one in SKETCHES:
            if not find_space(one, task, target):
                continue
            space = sketch(one.name).space(task, target)
            [row] = space.sample(1, np.random.default_rng(seed))
            kernel = lower(Candidate(task, target, space.schedule(row)))
            parts = nest(kernel)
            check(parts)
            parallel = [p.extent for p in kernel.body.body if isinstance(p, For) and p.kind is LoopKind.PARALLEL]
            assert [p.extent for p in parts if isinstance(p, NestLoop) and p.kind == "parallel"] == parallel
            assert sum(p == NestStep(BARRIER) for p in parts) == len(kernel.body.body) - 1
            check(nest(kernel, 12), 12)
            check(nest(kernel, 3), 3)


def test_what_is_repeated_is_told_once() -> None:
    fold = [
        Store("acc", (const(n), Ramp(const(0), 16)), op("fma", element(i, const(n)), element(j), element(const(n))))
        for n in range(8)
    ]
    body = For("j", 4, Block(tuple(fold)), LoopKind.UNROLL)
    assert list(drawn(nest(kernel_of(For("i", 3, body, LoopKind.PARALLEL))))) == [
        "parallel i < 3",
        "  unroll j < 4",
        "    acc[0, 0:+16] = x[i, 0] * x[j] + x[0] (8 alike)",
    ]


def test_cases_for_tiles_of_other_sizes_are_told_once() -> None:
    def tile(rows: int) -> Stmt:
        acc = Buffer(".acc", (rows, 16), DType.F32, Scope.REGISTER)
        store = For("r", rows, Store("y", (Var("r"),), element(Var("r"), tensor=".acc")), LoopKind.UNROLL)
        return Alloc(acc, Block((For("r", rows, Store(".acc", (Var("r"),), Const(0.0, DType.F32))), store)))

    last = If(op("eq", i, 4), tile(9))
    body = For("i", 5, Block((last, If(op("lt", i, 4), tile(8)))), LoopKind.PARALLEL)
    assert list(drawn(nest(kernel_of(body)))) == [
        "parallel i < 5",
        "  only where i < 4 (1 more like this, of other sizes):",
        "  registers of 8 x 16 float32: acc",
        "  serial r < 8",
        "    acc[r] = 0",
        "  unroll r < 8",
        "    y[r] = acc[r]",
    ]


def test_what_comes_in_turn_is_told_once() -> None:
    turns = [Store(name, (const(n),), element(const(n))) for n in range(5) for name in ("a", "b")]
    assert list(drawn(nest(kernel_of(Block(tuple(turns)))))) == ["a[0] = x[0] (5 alike)", "b[0] = x[0] (5 alike)"]


def test_conditions_say_where_they_end() -> None:
    some = Block((Store("a", (i,), element(i)), For("j", 2, Store("b", (j,), element(j)))))
    rest = Store("c", (i,), element(i))
    loop = If(op("lt", i, 2), For("k", 2, Store("d", (i,), element(i))))
    body = Block((If(op("lt", i, 3), some), If(op("le", const(1), i), rest), loop))
    assert list(drawn(nest(kernel_of(For("i", 4, body))))) == [
        "serial i < 4",
        "  only where i < 3:",
        "  a[i] = x[i]",
        "  serial j < 2",
        "    b[j] = x[j]",
        "  in any case:",
        "  where 1 <= i: c[i] = x[i]",
        "  serial k < 2",
        "    only where i < 2:",
        "    d[i] = x[i]",
    ]


def test_what_runs_least_gives_way() -> None:
    rare = [For(f"r{n:02}", 2, Store(f"a{n:02}", (i,), element(i))) for n in range(40)]
    often = For("i", 1000, Store("y", (i,), element(i)))
    assert list(drawn(nest(kernel_of(Block((*rare[:20], often, *rare[20:]))), 4))) == [
        "20 more steps: 20 loops, 20 statements, to a00, a01, a02, a03, ...",
        "serial i < 1000",
        "  y[i] = x[i]",
        "20 more steps: 20 loops, 20 statements, to a20, a21, a22, a23, ...",
    ]


def test_phases_meet() -> None:
    one = For("i", 4, Store("a", (i,), element(i)), LoopKind.PARALLEL)
    assert list(drawn(nest(kernel_of(one, Block(()), one))))[2:] == [BARRIER, "parallel i < 4", "  a[i] = x[i]"]


def test_a_prefetch_alone_is_nothing() -> None:
    assert nest(kernel_of(For("i", 4, Prefetch("x", (i,))))) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((i + 1) * (j - 2) + 3, "(i + 1) * (j - 2) + 3"),
        (i - (j - i), "i - (j - i)"),
        (i + const(-3), "i - 3"),
        (i + const(-(1 << 63)), "i + -9223372036854775808"),
        (-(i + j), "-(i + j)"),
        (op("max", element(Ramp(i * 16, 16)), element(const(2))), "max(x[i * 16:+16], x[2])"),
        (Ramp(const(0), 16) * 2, "(0:+16) * 2"),
        (op("select", op("lt", i, j), 1.5, 2.0), "select(i < j, 1.5, 2)"),
        (op("cast", i, dtype=DType.F32), "float32(i)"),
        (Load(".kept0", (Ramp(i, 8),), DType.F32, 3), "kept0[i:+8 count=3]"),
        (op("and", op("lt", i, j), op("or", op("eq", i, 1), op("eq", j, 1))), "i < j & (i == 1 | j == 1)"),
    ],
)
def test_expressions_are_written_with_few_brackets(value: Expr, text: str) -> None:
    assert formula(value) == text


def test_what_adds_to_its_place_says_so() -> None:
    place = element(i, tensor="y")
    assert store_formula(Store("y", (i,), op("fma", element(i) + element(j), element(j), place))) == (
        "y[i] += (x[i] + x[j]) * x[j]"
    )
    assert store_formula(Store("y", (i,), place + element(j))) == "y[i] += x[j]"
    assert store_formula(Store("y", (j,), place + element(j), 3)) == "y[j count=3] = y[i] + x[j]"
    assert prefetch_formula(Prefetch("x", (i + 64,))) == "ask early for x[i + 64]"


def test_a_formula_takes_no_longer_than_its_line() -> None:
    value: Expr = element(i)
    for _ in range(200):
        value = op("mul", value, value)
    for written in (formula(value), store_formula(Store("y", (i,), value)), formula(value, 30)):
        assert written.endswith(CUT)
        assert len(written) <= 120
    for _ in range(5000):
        value = value + 1.0
    assert CUT in formula(value)
