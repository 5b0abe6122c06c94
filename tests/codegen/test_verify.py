from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Load, Op, Ramp, Var, const, op
from tunewright.codegen.ir.ir import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Kernel,
    LoopKind,
    Packing,
    Prefetch,
    Scope,
    Store,
    single_words_of,
    words_of,
)
from tunewright.codegen.verify import verify
from tunewright.codegen.verify_context import VerifyError

F32, I64 = DType.F32, DType.I64
i, j, p, r = Var("i"), Var("j"), Var("p"), Var("r")
X, Y = Buffer("x", (12,), F32), Buffer("y", (12,), F32)


def load(tensor, *index, dtype=F32, count=None):
    return Load(tensor, tuple(const(k) if isinstance(k, int) else k for k in index), dtype, count)


def store(tensor, *index, value, count=None):
    return Store(tensor, tuple(const(k) if isinstance(k, int) else k for k in index), value, count)


def kernel(*body, params=(X, Y), scratch=(), **more):
    return Kernel(tuple(params), tuple(scratch), Block(tuple(body)), **more)


def copy(index, **more):
    return store("y", index, value=load("x", index, **more), **more)


def refused(built, *words):
    with pytest.raises(VerifyError) as caught:
        verify(built)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_plain_loop_passes():
    verify(kernel(For("i", 12, copy(i))))
    verify(kernel(For("i", 12, copy(i), LoopKind.PARALLEL)))
    verify(kernel(For("i", 3, copy(Ramp(i * 4, 4)))))


def test_out_of_bounds_says_where_which_and_the_limit():
    refused(kernel(For("i", 13, copy(i))), "serial i < 13", "x[i]", "0 .. 12", "limit 11")
    refused(kernel(For("i", 12, copy(i - 1))), "-1 .. 10")
    refused(kernel(For("i", 3, copy(Ramp(i * 4 + 1, 4)))), "limit 11")


def test_what_is_asked_for_early_may_be_outside_but_of_a_buffer():
    verify(kernel(For("i", 12, Block((Prefetch("x", (i + 100,)), copy(i))))))
    refused(kernel(Prefetch("z", (const(0),))), "no such buffer")
    refused(kernel(Prefetch("x", (const(0), const(0)))), "rank")
    refused(kernel(Prefetch("x", (i,))), "no loop of that variable")


@given(st.integers(1, 50), st.integers(1, 13), st.integers(1, 5))
def test_a_guard_makes_a_tiled_loop_legal_and_its_removal_illegal(extent, tile, inner):
    """Index k*e + rest under the guard e < c, for odd and prime sizes too."""
    whole = Buffer("x", (extent * inner,), F32), Buffer("y", (extent * inner,), F32)
    outer = -(-extent // tile)
    place = (i * tile + j) * inner + r
    body = For("r", inner, copy(place))

    def tiled(stmt):
        return kernel(For("i", outer, For("j", tile, stmt), LoopKind.PARALLEL), params=whole)

    verify(tiled(If(op("lt", i * tile + j, extent), body)))
    if extent % tile:
        refused(tiled(body), "the limit")
    else:
        verify(tiled(body))


@given(st.integers(2, 40), st.integers(2, 16))
def test_count_switches_lanes_off(extent, lanes):
    tail = extent % lanes
    buffers = Buffer("x", (extent,), F32), Buffer("y", (extent,), F32)
    full = For("i", extent // lanes, copy(Ramp(i * lanes, lanes)))
    rest = Ramp(const(extent - tail), lanes)
    body = [full] * bool(extent // lanes) + [copy(rest, count=tail)] * bool(tail)
    verify(kernel(*body, params=buffers))
    if tail:
        refused(kernel(copy(rest), params=buffers), "the limit")


def test_guards_of_both_sides_and_of_atoms():
    inside = op("and", op("le", 0, i + j - 3), op("lt", i + j - 3, 12))
    verify(kernel(For("i", 12, For("j", 7, If(inside, store("y", i, value=load("x", i + j - 3)))))))
    verify(kernel(For("i", 99, If(op("lt", i // 3, 4), copy(i // 3)))))
    halo = op("select", inside, load("x", op("min", op("max", i + j - 3, 0), 11)), 0.0)
    verify(kernel(For("i", 12, For("j", 7, store("y", i, value=halo)))))


def test_a_guard_that_never_holds_guards_anything():
    verify(kernel(For("i", 12, If(op("lt", i, 0), copy(i + 100)))))


def test_data_dependent_indices_must_be_clamped():
    index = Buffer("n", (12,), I64)
    chosen = load("n", i, dtype=I64)
    clamped = op("min", op("max", chosen, 0), 11)
    verify(kernel(For("i", 12, store("y", i, value=load("x", clamped))), params=(X, Y, index)))
    free = kernel(For("i", 12, store("y", i, value=load("x", chosen))), params=(X, Y, index))
    refused(free, "depends on data", "not clamped")
    half = kernel(For("i", 12, store("y", i, value=load("x", op("min", chosen, 11)))), params=(X, Y, index))
    refused(half, "not clamped")


def test_names():
    refused(kernel(copy(i)), "i: there is no loop")
    refused(kernel(For("i", 2, For("i", 2, copy(i)))), "an outer loop")
    refused(kernel(store("y", 0, value=load("z", 0))), "no buffer z")
    refused(kernel(store("z", 0, value=load("x", 0))), "no buffer z")
    refused(kernel(copy(const(0)), scratch=[X]), "exists twice")
    local = Buffer("x", (4,), F32, Scope.SHARED)
    refused(kernel(Alloc(local, copy(const(0)))), "buffer of that name")
    out_of_scope = Alloc(Buffer("t", (1,), F32, Scope.SHARED), copy(const(0)))
    refused(kernel(out_of_scope, store("t", 0, value=load("x", 0))), "no buffer t")
    twice = Alloc(Buffer("t", (1,), F32, Scope.SHARED), store("t", 0, value=const(0.0)))
    verify(kernel(twice, twice))


def test_buffers():
    refused(kernel(copy(const(0)), params=(X, replace(Y, scope=Scope.SHARED))), "can't be shared")
    refused(kernel(Alloc(Buffer("t", (4,), F32), copy(const(0)))), "can't be global")
    refused(kernel(copy(const(0)), scratch=[Buffer("t", (4, 0), F32)]), "1 at least")
    refused(kernel(For("i", 0, copy(i))), "1 at least")


def test_ranks_and_dtypes():
    refused(kernel(store("y", 0, 0, value=load("x", 0))), "2 indices for the 1 dimensions")
    refused(kernel(store("y", 0, value=load("x", 0, dtype=DType.F64))), "reads float64")
    refused(kernel(store("y", 0, value=const(3))), "a value of int64 into float32")
    short = op("cast", const(0), dtype=DType.I32)
    refused(kernel(store("y", short, value=load("x", 0))), "int32, not int64")


def test_lanes():
    refused(kernel(store("y", 0, value=load("x", Ramp(const(0), 4)))), "4 lanes to 1 places")
    verify(kernel(store("y", Ramp(const(0), 4), value=load("x", 0))))
    mixed = load("x", Ramp(const(0), 4)) + load("x", Ramp(const(0), 8))
    refused(kernel(store("y", Ramp(const(0), 8), value=mixed)), "arguments of [4, 8] lanes")
    refused(kernel(copy(Ramp(const(0), 4), count=5)), "count 5 of 4")
    refused(kernel(copy(const(0), count=1)), "count 1 of 1")
    refused(kernel(store("y", Ramp(Ramp(const(0), 2), 4), value=const(0.0))), "from a base of 2 lanes")
    refused(kernel(store("y", 0, value=op("hsum", load("x", 0)))), "no lanes to join")
    refused(kernel(store("y", 0, value=op("zip_low", load("x", 0), load("x", 1)))), "no halves of 1 lanes")
    matrix = Buffer("m", (12, 12), F32)
    skew = store("m", Ramp(const(0), 2), Ramp(const(0), 4), value=const(0.0))
    refused(kernel(skew, params=(matrix,)), "indices of [2, 4] lanes")


def test_parallel_loops_are_phases():
    inner = For("i", 12, copy(i), LoopKind.PARALLEL)
    refused(kernel(For("j", 2, inner)), "only a phase")
    refused(kernel(For("p", 2, inner, LoopKind.PARALLEL)), "only a phase")
    refused(kernel(Block((inner,))), "only a phase")
    verify(kernel(inner, inner))


def test_registers_need_unrolled_loops():
    tile = Buffer("t", (3, 8), F32, Scope.REGISTER)

    def tiled(kind, *index):
        body = For("r", 3, store("t", *index, value=const(0.0)), kind)
        return kernel(For("i", 3, Alloc(tile, body)))

    verify(tiled(LoopKind.UNROLL, r, Ramp(const(0), 8)))
    verify(tiled(LoopKind.UNROLL, r, r * 2 + 1))
    refused(tiled(LoopKind.SERIAL, r, 0), "depends on r, whose loop is not unrolled")
    refused(tiled(LoopKind.UNROLL, i, 0), "depends on i")
    clamped = op("max", op("min", op("cast", load("x", 0), dtype=I64), 2), 0)
    refused(tiled(LoopKind.UNROLL, clamped, 0), "depends on x[0]")
    refused(tiled(LoopKind.UNROLL, r, Ramp(const(0), 4) * 2), "consecutive")


def test_ops():
    def value(node):
        return kernel(store("y", 0, value=node))

    x = load("x", 0)
    n = op("cast", x, dtype=I64)
    refused(value(Op("add", (x, n), F32)), "add of float32, int64 to float32")
    refused(value(Op("select", (x, x, x), F32)), "select of")
    refused(value(Op("cast", (op("sqrt", n),), F32)), "sqrt of int64")
    refused(value(Op("cast", (Op("mod", (x, x), F32),), F32)), "mod of float32")
    refused(value(Op("add", (x,), F32)), "no op add of 1 arguments")
    refused(value(Op("fly", (x,), F32)), "no op fly")
    refused(value(Op("lt", (x, x), F32)), "lt of float32, float32 to float32")
    refused(value(Op("bitcast", (n,), F32)), "bitcast of int64 to float32")
    verify(value(Op("cast", (Op("exp", (op("cast", x, dtype=DType.F64),), DType.F64),), F32)))
    verify(value(op("exp", op("pow", x, 2.0))))
    verify(value(op("cast", op("pow", n, 2), dtype=F32)))
    verify(value(op("bitcast", op("shl", op("bitcast", x, dtype=DType.I32), 3), dtype=F32)))
    verify(value(op("select", op("and", op("lt", x, 0.0), op("not", op("eq", n, 3))), x, 1.0)))


@pytest.mark.parametrize("name", ["floordiv", "mod"])
def test_nothing_negative_is_divided_as_an_index(name):
    """Machines and numpy give different results for it."""
    number = op("cast", load("x", i), dtype=DType.I32)

    def divided(dividend, divisor=3):
        quotient = op(name, dividend, divisor)
        return kernel(For("i", 12, store("y", i, value=op("cast", quotient, dtype=F32))))

    verify(divided(i))
    verify(divided(op("max", number, 0)))
    verify(divided(op("cast", load("x", i), dtype=DType.U32)))
    refused(divided(number), "cast.int32(x[i])", "less than 0")
    refused(divided(i - 1), "less than 0")
    refused(divided(i, i), "less than 1")


def test_conditions_are_one_bool():
    refused(kernel(If(Const(1, I64), copy(const(0)))), "one bool")
    refused(kernel(If(op("lt", Ramp(const(0), 4), 3), copy(const(0)))), "one bool")


PACKING = Packing(order=(0,), padded=(12,), splits=((3, 4),), parts=(1, 0))


def test_packings():
    packed = Buffer("x", (4, 3), F32)
    body = store("y", 0, value=load("x", 3, 2))
    verify(kernel(body, params=(packed, Y), packings={"x": PACKING}))
    refused(kernel(body, params=(packed, Y), packings={"z": PACKING}), "no such parameter")
    refused(kernel(copy(const(0)), packings={"x": PACKING}), "shape (4, 3), but the parameter has (12,)")
    for wrong in (
        replace(PACKING, padded=(13,)),
        replace(PACKING, order=(1,)),
        replace(PACKING, parts=(0, 0)),
        replace(PACKING, splits=()),
        replace(PACKING, maps=((1, ((1.0,),)),)),
        replace(PACKING, maps=((0, ((1.0,),)), (0, ((1.0,),)))),
    ):
        refused(kernel(body, params=(packed, Y), packings={"x": wrong}), "packing of x")
    written = kernel(store("x", 0, 0, value=const(0.0)), params=(packed, Y), packings={"x": PACKING})
    refused(written, "packed constant")


def test_fused_loops_decode():
    matrix = Buffer("m", (5, 7), F32)
    fused = For("p", 35, store("m", p // 7, p % 7, value=const(0.0)), LoopKind.PARALLEL)
    verify(kernel(fused, params=(matrix,)))
    guarded = For("i", 9, For("j", 4, If(op("lt", i * 4 + j, 35), store("m", (i * 4 + j) // 7, (i * 4 + j) % 7,
                                                                       value=const(0.0)))))  # fmt: skip
    verify(kernel(guarded, params=(matrix,)))
    too_far = For("i", 9, For("j", 4, store("m", (i * 4 + j) // 7, (i * 4 + j) % 7, value=const(0.0))))
    refused(kernel(too_far, params=(matrix,)), "0 .. 5", "limit 4")


def test_words_are_another_form_of_bytes():
    bytes_ = Buffer("z", (3, 4), DType.U8)
    one = single_words_of(bytes_)
    fill = For("i", 3, Store("z.words", (i,), Const(7, DType.I32)))
    read = For("i", 3, Store("y", (i,), op("cast", Load("z", (i, const(1)), DType.U8), dtype=DType.F32)))
    verify(kernel(fill, read, params=(Y, bytes_), words=(one,)))
    verify(kernel(params=(Y, bytes_), words=(words_of(bytes_),)))
    for form in (replace(one, shape=(4,)), replace(one, name="x.words"), replace(one, dtype=DType.F64)):
        refused(kernel(params=(Y, bytes_), words=(form,)), "no buffer")
    refused(kernel(Block((fill, read)), params=(Y, bytes_), words=(one,)), "has to do with both")
