from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import FLOATS, INTEGERS, DType
from tunewright.codegen.expr.expr import (
    COMPARISONS,
    HORIZONTAL,
    OF_WORDS,
    TRANSCENDENTAL,
    ZIPS,
    Load,
    Op,
    Ramp,
    Var,
    arity,
    const,
    evaluate,
    op,
)
from tunewright.codegen.expr.semantics import OPS
from tunewright.codegen.ir.access import BoundsError, RaceError, UndefinedRead
from tunewright.codegen.ir.interp import run
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Scope, Store
from tunewright.codegen.verify import verify
from tunewright.codegen.verify_context import VerifyError

F32, I64 = DType.F32, DType.I64
UNROLL, PARALLEL = LoopKind.UNROLL, LoopKind.PARALLEL
i, j, k, m, n = Var("i"), Var("j"), Var("k"), Var("m"), Var("n")
X, Y = Buffer("x", (12,), F32), Buffer("y", (12,), F32)


def load(tensor, *index, dtype=F32, count=None):
    return Load(tensor, tuple(const(e) if isinstance(e, int) else e for e in index), dtype, count)


def store(tensor, *index, value, count=None):
    return Store(tensor, tuple(const(e) if isinstance(e, int) else e for e in index), value, count)


def kernel(*body, params=(X, Y), scratch=()):
    return Kernel(tuple(params), tuple(scratch), Block(tuple(body)))


def execute(built, *arrays):
    """Run on copies of inputs, outputs starting as NaN; the outputs."""
    copies = [np.array(a) for a in arrays]
    outputs = [np.full(b.shape, np.nan, b.dtype.numpy) for b in built.params[len(arrays) :]]
    run(built, [*copies, *outputs])
    return outputs[0] if len(outputs) == 1 else outputs


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matmul(M, N, K, rows, lanes, guarded=True):
    """A register-tiled product: rows guarded by a condition, columns by switched-off lanes."""
    row = i * rows + m
    column = Ramp(j * lanes, lanes)
    tile = Buffer("t", (rows, lanes), F32, Scope.REGISTER)
    place = (m, Ramp(const(0), lanes))

    def block(at, count):
        a, b, c = load("a", row, k), load("b", k, at, count=count), load("t", *place)
        inside = op("lt", row, M)

        def every_row(stmt):
            return For("m", rows, If(inside, stmt) if guarded else stmt, UNROLL)

        zero = For("m", rows, store("t", *place, value=const(0.0)), UNROLL)
        add = For("k", K, every_row(store("t", *place, value=op("fma", a, b, c))))
        out = every_row(store("c", row, at, value=c, count=count))
        return Alloc(tile, Block((zero, add, out)))

    whole = [For("j", N // lanes, block(column, None))] * bool(N // lanes)
    tail = [block(Ramp(const(N - N % lanes), lanes), N % lanes)] * bool(N % lanes)
    loop = For("i", -(-M // rows), Block((*whole, *tail)), PARALLEL)
    params = (Buffer("a", (M, K), F32), Buffer("b", (K, N), F32), Buffer("c", (M, N), F32))
    return kernel(loop, params=params)


@given(st.integers(1, 11), st.integers(1, 13), st.integers(1, 5), st.integers(1, 4), st.sampled_from([2, 4, 8]))
def test_matrix_products_of_odd_sizes(M, N, K, rows, lanes):
    built = matmul(M, N, K, rows, lanes)
    verify(built)
    a, b = numbers(M, K), numbers(K, N, seed=1)
    assert np.allclose(execute(built, a, b), a @ b, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 11), st.integers(1, 13), st.integers(2, 4))
def test_a_removed_guard_is_caught_by_both(M, N, rows):
    built = matmul(M, N, 3, rows, 4, guarded=False)
    if M % rows == 0:
        verify(built)
        execute(built, numbers(M, 3), numbers(3, N))
        return
    with pytest.raises(VerifyError, match="the limit"):
        verify(built)
    with pytest.raises(BoundsError, match=r"a\[\d+, 0\] is outside shape"):
        execute(built, numbers(M, 3), numbers(3, N))


def test_bounds_errors_name_buffer_index_and_shape():
    cases = [
        (store("y", 12, value=const(0.0)), r"y\[12\] is outside shape \[12\]"),
        (store("y", 0, value=load("x", -1)), r"x\[-1\] is outside"),
        (store("y", 0, value=op("hsum", load("x", Ramp(const(9), 4)))), r"x\[9\] \(4 lanes\)"),
        (store("y", 0, value=op("hsum", load("x", Ramp(const(0), 4) * 4))), r"x\[\[0, 4, 8, 12\]\] \(4 lanes\)"),
        (store("y", Ramp(const(4), 16), value=const(0.0)), r"y\[4\] \(16 lanes\)"),
    ]
    for stmt, message in cases:
        with pytest.raises(BoundsError, match=message):
            execute(kernel(stmt), numbers(12))
    assert issubclass(BoundsError, IndexError)


def test_lanes_switched_off_touch_no_memory_and_read_zero():
    built = kernel(
        For("i", 12, store("y", i, value=const(-1.0))),
        store("y", Ramp(const(8), 8), value=load("x", Ramp(const(9), 8), count=3) + 1.0, count=4),
    )
    x = numbers(12)
    want = np.full(12, -1, np.float32)
    want[8:] = [*(x[9:] + 1), 1]
    assert np.array_equal(execute(built, x), want)


def test_gathers_and_scatters():
    matrix = Buffer("a", (5, 7), F32)
    diagonal = load("a", Ramp(const(0), 5), Ramp(const(0), 5) + 1)
    built = kernel(store("y", Ramp(const(0), 5) * 2, value=diagonal, count=3), params=(matrix, Y))
    a = numbers(5, 7)
    got = execute(built, a)
    assert np.array_equal(got[[0, 2, 4]], a[[0, 1, 2], [1, 2, 3]])
    assert np.isnan(np.delete(got, [0, 2, 4])).all()


def test_data_decides_the_index():
    index = Buffer("n", (4,), I64)
    built = kernel(For("i", 4, store("y", i, value=load("x", load("n", i, dtype=I64)))), params=(X, index, Y))
    x, chosen = numbers(12), np.array([3, 11, 0, 3])
    assert np.array_equal(execute(built, x, chosen)[:4], x[chosen])
    with pytest.raises(BoundsError, match=r"x\[12\]"):
        execute(built, x, np.array([0, 1, 2, 12]))


@pytest.mark.parametrize(
    "scope", [Scope.SHARED, Scope.REGISTER], ids=["shared", "register"]
)  # both start undefined, again in every iteration
def test_local_memory_starts_undefined_every_time(scope):
    local = Buffer("t", (4,), F32, scope)
    body = Block((If(op("eq", i, 0), store("t", 2, value=const(1.0))), store("y", i, value=load("t", 2))))
    with pytest.raises(UndefinedRead, match=r"t\[2\] is read before"):
        execute(kernel(For("i", 2, Alloc(local, body))), numbers(12))


def test_scratch_and_outputs_start_undefined():
    scratch = Buffer("s", (3, 4), F32)
    partly = store("s", 1, Ramp(const(0), 4), value=const(0.0), count=3)
    for read in (load("s", 1, Ramp(const(0), 4)), load("s", const(1), Ramp(const(0), 4) * 1 + 0)):
        built = kernel(partly, store("y", Ramp(const(0), 4), value=read), scratch=[scratch])
        with pytest.raises(UndefinedRead, match=r"s\[1, 3\]"):
            execute(built, numbers(12))
    with pytest.raises(UndefinedRead, match=r"y\[5\]"):
        execute(kernel(store("y", 4, value=load("y", 5))), numbers(12))
    scattered = kernel(store("y", Ramp(const(0), 2) * 3, value=const(0.0)),
                       store("y", 1, value=op("hsum", load("y", Ramp(const(0), 3) * 3))))  # fmt: skip
    with pytest.raises(UndefinedRead, match=r"y\[6\]"):
        execute(scattered, numbers(12))


def test_races_are_caught_in_either_order():
    both_write = For("i", 4, store("y", i // 2, value=const(0.0)), PARALLEL)
    with pytest.raises(RaceError, match=r"iteration 1 writes y\[0\], which iteration 0 wrote"):
        execute(kernel(both_write), numbers(12))
    fill = For("j", 12, store("y", j, value=const(0.0)))
    reads_later = For("i", 4, store("y", i, value=load("y", i + 1)), PARALLEL)
    with pytest.raises(RaceError, match=r"iteration 1 writes y\[1\], which iteration 0 read"):
        execute(kernel(fill, reads_later), numbers(12))
    reads_earlier = For("i", 4, store("y", i + 1, value=load("y", i)), PARALLEL)
    with pytest.raises(RaceError, match=r"iteration 1 reads y\[1\], which iteration 0 wrote"):
        execute(kernel(fill, reads_earlier), numbers(12))
    vectors = For("i", 3, store("y", Ramp(i * 3, 4), value=const(0.0)), PARALLEL)
    with pytest.raises(RaceError, match=r"y\[3\]"):
        execute(kernel(vectors), numbers(12))
    scatter = For("i", 2, store("y", Ramp(const(0), 3) * 3 + i * 3, value=const(0.0)), PARALLEL)
    with pytest.raises(RaceError, match=r"y\[3\]"):
        execute(kernel(scatter), numbers(12))


def test_what_is_no_race():
    own = Block((store("y", i, value=load("x", i)), store("y", i, value=load("y", i) + 1.0)))
    x = numbers(12)
    assert np.array_equal(execute(kernel(For("i", 12, own, PARALLEL)), x), x + 1)
    shift = For("i", 11, store("y", i, value=load("s", i + 1)), PARALLEL)
    fill = For("i", 12, store("s", i, value=load("x", i)), PARALLEL)
    got = execute(kernel(fill, shift, scratch=[Buffer("s", (12,), F32)]), x)  # a barrier lies between phases
    assert np.array_equal(got[:11], x[1:])
    local = Buffer("t", (1,), F32, Scope.SHARED)
    private = Alloc(local, Block((store("t", 0, value=load("x", i)), store("y", i, value=load("t", 0)))))
    assert np.array_equal(execute(kernel(For("i", 12, private, PARALLEL)), x), x)


def test_conditions_and_scalars():
    built = kernel(For("i", 12, Block((
        If(op("and", op("lt", i, 7), op("not", op("eq", i % 2, 0))), store("y", i, value=load("x", i))),
        If(op("or", op("le", 7, i), op("eq", i % 2, 0)), store("y", i, value=op("cast", i * i - 3, dtype=F32))),
    ))))  # fmt: skip
    x, places = numbers(12), np.arange(12)
    assert np.array_equal(execute(built, x), np.where((places < 7) & (places % 2 == 1), x, places**2 - 3))


def test_empty_bodies_and_scalar_buffers():
    scalar = Buffer("s", (), F32)
    built = kernel(For("i", 3, Block(())), Block(()), Store("s", (), load("x", 3)), params=(X, scalar))
    x = numbers(12)
    assert execute(built, x)[()] == x[3]
    with pytest.raises(UndefinedRead, match=r"s\[\]"):
        execute(kernel(Store("s", (), load("s")), params=(X, scalar)), x)


def test_deep_nests_run():
    body = store("y", 0, value=load("x", 0))
    for depth in range(40):
        body = For(f"v{depth}", 1, If(op("lt", Var(f"v{depth}"), 1), body) if depth % 8 == 0 else body)
    x = numbers(12)
    assert execute(kernel(body), x)[0] == x[0]


def test_names_of_the_kernel_stay_out_of_the_program():
    hostile = 'x\'); import os\n"""../'
    params = (Buffer(hostile, (3,), F32), Buffer("data1", (3,), F32))
    body = For(hostile, 3, Store("data1", (Var(hostile),), Load(hostile, (Var(hostile),), F32)))
    x = numbers(3)
    assert np.array_equal(execute(kernel(body, params=params), x), x)


def test_arrays_must_fit():
    built = kernel(For("i", 12, store("y", i, value=load("x", i))))
    x, y = numbers(12), np.empty(12, np.float32)
    for wrong in (x.astype(np.float64), numbers(13), numbers(24)[::2], x.reshape(3, 4)):
        with pytest.raises(ValueError, match="parameter x"):
            run(built, [wrong, y])
    with pytest.raises(ValueError, match="zip"):
        run(built, [x])


def arguments(name, dtype):
    """Loads that an op of a dtype can take."""
    if name == "select":
        return [op("lt", load("x", Ramp(const(0), 8), dtype=dtype), 1), *arguments("add", dtype)]
    if name in ("and", "or", "not"):
        return [op("lt", a, 1) for a in arguments("add", dtype)[: arity(name)]]
    starts = [0, 3, 1][: arity(name)]
    return [load("x", Ramp(const(s), 8), dtype=dtype) for s in starts]


def applies(name, dtype):
    if name in OF_WORDS:
        return dtype is DType.I32
    if name == "widen_bytes":
        return dtype is DType.I16
    integers_only = name in ("floordiv", "mod", "shl", "shr", "bitand", "bitor", "bitxor")
    floats_only = name in ("sqrt", "floor", "ceil", "round", "bitcast", *TRANSCENDENTAL - {"pow"})
    return not (integers_only and dtype.is_float) and not (floats_only and not dtype.is_float)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_every_op_means_what_evaluate_says(dtype, lanes):
    x = np.abs(numbers(12) * 5 + 3).astype(dtype.numpy) + dtype.numpy.type(1)
    for name in [n for n in OPS if applies(n, dtype) and not (lanes == 1 and n in HORIZONTAL | ZIPS)]:
        args = arguments(name, dtype)
        result = DType.BOOL if name in COMPARISONS or name in ("and", "or", "not") else dtype
        if name in ("cast", "bitcast"):
            result = {DType.F32: DType.I32, DType.F64: DType.I64}.get(dtype, DType.F32)
        if name == "widen_bytes":
            result = DType.I32
        node = Op(name, tuple(args), result)
        want = evaluate(node, {}, lambda load, index: x[index[-1]])
        if lanes == 1:
            node = Op(name, tuple(first_lane(a) for a in args), result)
            want = want[:1]
        place = Ramp(const(0), lanes) if node.lanes > 1 else const(0)
        built = kernel(Store("y", (place,), node), params=(Buffer("x", (12,), dtype), Buffer("y", (8,), result)))
        outputs = np.zeros(8, result.numpy)
        run(built, [x, outputs])
        assert np.array_equal(outputs[: len(want)], want, equal_nan=True), name


def first_lane(node):
    match node:
        case Op(name, args):
            return op(name, *map(first_lane, args))
        case Load(tensor, (Ramp(base, _),), dtype):
            return Load(tensor, (base,), dtype)
    return node


@given(st.integers(1, 6), st.integers(1, 7), st.integers(0, 3), st.integers(1, 2))
def test_padded_windows_clamp(height, width, pad, stride):
    """A padded sum over windows: select reads both sides, so the clamp is what keeps it inside."""
    out = (height + 2 * pad - 1) // stride + 1
    row = i * stride + k - pad
    clamped = op("min", op("max", row, 0), height - 1)
    inside = op("and", op("le", 0, row), op("lt", row, height))
    value = load("y", i, j) + op("select", inside, load("x", clamped, j), 0.0)
    body = Block((store("y", i, j, value=const(0.0)), For("k", 1, store("y", i, j, value=value))))
    params = (Buffer("x", (height, width), F32), Buffer("y", (out, width), F32))
    built = kernel(For("i", out, For("j", width, body), PARALLEL), params=params)
    verify(built)
    x = numbers(height, width)
    assert np.array_equal(execute(built, x), np.pad(x, ((pad, pad), (0, 0)))[::stride])
