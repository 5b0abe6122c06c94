from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Op, Ramp, Var, const, op
from tunewright.codegen.ir.ir import Block, Buffer, For, Kernel, Prefetch, Store
from tunewright.codegen.llvm.build import source
from tunewright.codegen.llvm.function import evaluation_order, split_body
from tunewright.codegen.target import Target

F32 = DType.F32
AVX512 = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "", 512, 32, 2, 48 << 10, 1 << 20, 32 << 20)


def at(n):
    return (Ramp(const(16 * n), 16),)


def slow(n, into="y", out_of="x"):
    return Store(into, at(n), op("exp", Load(out_of, at(n), F32)))


def total(n, of="y"):
    return Store("sum", at(0), Load("sum", at(0), F32) + Load(of, at(n), F32))


def is_long(value):
    return isinstance(value, Op) and value.name == "exp"


def cut(body, registers=32):
    return [
        ([body.index(s) for s in part], [body.index(s) for s in ahead])
        for part, ahead in split_body(body, is_long, registers)
    ]


def test_long_values_go_together_past_short_ones():
    body = [slow(0), total(0), slow(1), Prefetch("x", (const(0),)), total(1), slow(2)]
    assert cut(body) == [([0, 1, 2, 3, 4, 5], [0, 2, 5])]


def test_registers_limit_how_many():
    body = [slow(n) for n in range(6)]
    assert cut(body) == [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 5], [4, 5])]
    assert cut(body, 16) == [([n, n + 1], [n, n + 1]) for n in (0, 2, 4)]


def test_what_was_written_is_not_read_ahead():
    body = [slow(0), slow(0, "z", "y"), slow(1)]
    assert cut(body) == [([0], [0]), ([1, 2], [1, 2])]
    body = [slow(0), For("i", 2, slow(1)), slow(2)]
    assert cut(body) == [([0], [0]), ([1], []), ([2], [2])]


def test_choices_that_may_never_be_made_are_left_out():
    x = Load("x", (Var("i"),), F32)
    by_loop = op("select", op("lt", Var("i"), 3), op("exp", x), op("log", x))
    assert not any(isinstance(n, Op) and n.name in ("exp", "log") for n in evaluation_order(by_loop))
    by_data = op("select", op("lt", x, 3.0), op("exp", x), op("log", x))
    assert {n.name for n in evaluation_order(by_data) if isinstance(n, Op)} == {"lt", "exp", "log", "select"}
    assert evaluation_order(by_data).count(x) == 1


def row(count):
    params = tuple(Buffer(name, (16 * count,), F32) for name in "xyz")
    sums = Buffer("sum", (16,), F32)
    body = [Store("sum", at(0), const(0.0))]
    for n in range(count):
        body += [slow(n), total(n), slow(n, "z", "y"), total(n, "z")]
    return Kernel((*params, sums), (), Block((For("i", 1, Block(tuple(body))),)))


def test_chains_are_written_in_turn():
    body = Block((For("i", 2, Block(tuple(slow(n) for n in range(4)))),))
    kernel = Kernel((Buffer("x", (64,), F32), Buffer("y", (64,), F32)), (), body)
    lines = source(kernel, AVX512).splitlines()
    ends = [n for n, line in enumerate(lines) if "store" in line]
    starts = [n for n, line in enumerate(lines) if "load <16" in line]
    assert len(starts) == len(ends) == 4
    assert max(starts) < min(starts) + 20 < min(ends)


@pytest.mark.parametrize("shared", [{}, {"y": "x"}])
def test_values_are_the_same(execute, shared):
    x = np.linspace(-9, 1, 7 * 16).astype(np.float32)
    kernel = row(7)
    got = execute(kernel, x=x.copy(), exact=False, shared=shared)
    y = np.exp(x.astype(np.float64))
    want = (y + np.exp(y)).reshape(7, 16).sum(0)
    assert np.allclose(got["z"], np.exp(y), rtol=1e-6)
    assert np.allclose(got["sum"], want, rtol=1e-6)
