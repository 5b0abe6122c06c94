from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
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
    apply,
    arity,
    const,
    evaluate,
    op,
)
from tunewright.codegen.expr.semantics import OPS
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Prefetch, Scope, Store
from tunewright.codegen.llvm import build as build_module
from tunewright.codegen.llvm import emit as emit_module
from tunewright.codegen.llvm.build import assembly
from tunewright.codegen.llvm.ops import memory_type
from tunewright.codegen.target import Target

F32, F64, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL = DType
INTEGERS = (I64, I32, I8, U8)
AVX512 = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "", 512, 32, 2, 48 << 10, 1 << 20, 32 << 20)
AVX2 = replace(AVX512, cpu="haswell", vector_bits=256, vector_registers=16)
NEON = replace(AVX512, triple="aarch64-unknown-linux-gnu", cpu="neoverse-n1", vector_bits=128)
i, j, k, n, u = map(Var, "ijknu")
UNROLL, PARALLEL = LoopKind.UNROLL, LoopKind.PARALLEL


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is emitted is tested beyond what the rules of kernels let through."""
    monkeypatch.setattr(build_module, "verify", lambda kernel: None)


def load(tensor, *index, dtype=F32, count=None):
    return Load(tensor, tuple(const(x) if isinstance(x, int) else x for x in index), dtype, count)


def store(tensor, *index, value, count=None):
    return Store(tensor, tuple(const(x) if isinstance(x, int) else x for x in index), value, count)


def kernel(params, *phases, scratch=()):
    return Kernel(tuple(params), tuple(scratch), Block(phases))


def block(*body):
    return Block(body)


def buffer(name, *shape, dtype=F32, scope=Scope.GLOBAL):
    return Buffer(name, shape, dtype, scope)


def ramp(base, lanes):
    return Ramp(const(base) if isinstance(base, int) else base, lanes)


def f32(values):
    return np.array(values, np.float32)


def draw(dtype, shape, seed=0):
    """Values that every op of the dtype has an answer for."""
    random = np.random.default_rng(seed)
    if dtype is BOOL:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return random.normal(0, 3, shape).astype(dtype.numpy)
    return random.integers(0 if dtype.is_unsigned else -9, 9, shape).astype(dtype.numpy)


# Every op against its meaning in numpy.

LANES = 16


def operands(name, dtype):
    x, y, z = (draw(dtype, LANES, seed) for seed in range(3))
    match name:
        case "floordiv" | "mod":
            x, y = np.abs(x), np.abs(y) + y.dtype.type(1)
        case "div" if not dtype.is_float:
            y[y == 0] = 3
        case "shl" | "shr":
            y = np.abs(y) % 7
        case "sqrt" | "log":
            x = np.abs(x)
        case "pow":
            x, y = np.abs(x), y / 3
        case "select":
            x = draw(BOOL, LANES)
        case "dot2_bf16":
            return [*(draw(DType.BF16, 2 * LANES, seed).view(np.int32) for seed in range(2)), draw(F32, LANES)]
    return [a.astype(BOOL.numpy if a.dtype == bool else dtype.numpy) for a in (x, y, z)[: arity(name)]]


def supported(name, dtype):
    if name in ("cast", "bitcast", *ZIPS):
        return False
    if dtype.is_narrow:
        return name == "select"
    if name in TRANSCENDENTAL:
        return dtype in (F32, F64) or (name == "pow" and dtype is not BOOL)
    if name in ("and", "or", "not"):
        return dtype is BOOL
    if dtype is BOOL:
        return name in (*COMPARISONS, *HORIZONTAL, "select", "min", "max")
    if name in OF_WORDS:
        return dtype is DType.I32
    if name == "widen_bytes":
        return dtype is DType.I16
    if name in ("shl", "shr", "floordiv", "mod", "bitand", "bitor", "bitxor"):
        return not dtype.is_float
    return name not in ("sqrt", "round") or dtype.is_float


@pytest.mark.parametrize(("name", "dtype"), [(o, d) for o in OPS for d in DType if supported(o, d)])
def test_ops_mean_what_numpy_says(execute, name, dtype):
    arrays = operands(name, dtype)
    names = "xyz"[: len(arrays)]
    kinds = [DType(a.dtype.name) for a in arrays]
    params = [buffer(b, LANES, dtype=d) for b, d in zip(names, kinds, strict=True)]
    result = BOOL if name in COMPARISONS else DType.I32 if name == "widen_bytes" else kinds[-1]
    vector = Op(name, tuple(load(b, ramp(0, LANES), dtype=d) for b, d in zip(names, kinds, strict=True)), result)
    scalar = Op(name, tuple(load(b, i, dtype=d) for b, d in zip(names, kinds, strict=True)), result)
    out = store("v", ramp(0, LANES), value=vector) if vector.lanes > 1 else store("v", 0, value=vector)
    params += [buffer("v", vector.lanes, dtype=result), buffer("s", LANES, dtype=result)]
    got = execute(
        kernel(params, out, For("i", LANES, store("s", i, value=scalar))),
        exact=name not in ("dot2_bf16", "fma") and name not in TRANSCENDENTAL and name not in HORIZONTAL,
        **dict(zip(names, arrays, strict=True)),
    )
    with np.errstate(all="ignore"):
        want = np.asarray(apply(vector, *arrays))
        each = want if name not in HORIZONTAL else arrays[0]
    rtol = 0 if not dtype.is_float else 1e-6 if dtype is F32 else 1e-14
    np.testing.assert_allclose(got["v"], np.broadcast_to(want, got["v"].shape), rtol=rtol, atol=0)
    np.testing.assert_allclose(got["s"], each, rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("lanes", [2, 8, 16])
def test_zips_take_lanes_in_turn(execute, dtype, lanes):
    x, y = draw(dtype, lanes), draw(dtype, lanes, 1)
    pair = [load(b, ramp(0, lanes), dtype=dtype) for b in "xy"]
    low, high = (store("v", n, ramp(0, lanes), value=op(name, *pair)) for n, name in enumerate(("zip_low", "zip_high")))
    params = [buffer("x", lanes, dtype=dtype), buffer("y", lanes, dtype=dtype), buffer("v", 2, lanes, dtype=dtype)]
    got = execute(kernel(params, block(low, high)), x=x, y=y)
    np.testing.assert_array_equal(got["v"].reshape(-1), np.stack([x, y], 1).reshape(-1))


def castable(source, target):
    return F32 in (source, target) or not (source.is_narrow or target.is_narrow)


@pytest.mark.parametrize(("source", "target"), [(s, t) for s in DType for t in DType if castable(s, t)])
def test_casts(execute, source, target):
    x = draw(source, LANES)
    if target.is_unsigned:
        x = np.abs(x)
    cast = Op("cast", (load("x", ramp(0, LANES), dtype=source),), target)
    body = store("y", ramp(0, LANES), value=cast)
    got = execute(kernel([buffer("x", LANES, dtype=source), buffer("y", LANES, dtype=target)], body), x=x)
    np.testing.assert_array_equal(got["y"], x.astype(target.numpy))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_floats_are_rounded_to_the_nearest(execute, dtype):
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-39, 6e-8, 65519, 65520, 3.4e38, -3.4e38]
    halfway = 1 + np.array([1, 2, 3, 5]) * float(ml_dtypes.finfo(dtype.numpy).eps) / 2
    x = f32([*ends, *halfway])
    narrow = op("cast", load("x", ramp(0, 16)), dtype=dtype)
    element = op("cast", load("x", i), dtype=dtype)
    wide = op("cast", load("y", ramp(0, 16), dtype=dtype), dtype=F32)
    body = block(store("y", ramp(0, 16), value=narrow), store("z", ramp(0, 16), value=wide))
    body = block(body, For("i", 16, store("s", i, value=element)))
    params = [buffer("x", 16), buffer("y", 16, dtype=dtype), buffer("z", 16), buffer("s", 16, dtype=dtype)]
    got = execute(kernel(params, body), x=x)
    with np.errstate(over="ignore"):
        want = x.astype(dtype.numpy)
    for name in "ys":
        np.testing.assert_array_equal(got[name].astype(np.float32), want.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got["z"][:2]), [False, True])
    np.testing.assert_array_equal(got["z"], want.astype(np.float32))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_floats_that_loops_hand_on_need_no_library(dtype):
    """They stand in registers between two blocks of code. LLVM would round them from float32 there, by a call."""
    place, kept = Var("j"), buffer("r", LANES, dtype=dtype, scope=Scope.SHARED)
    chosen = [
        If(op("eq", place, n), store("y", n, value=op("cast", load("r", n, dtype=dtype), dtype=F32) * load("z", place)))
        for n in range(3)
    ]
    fill = store("r", ramp(0, LANES), value=load("x", ramp(0, LANES), dtype=dtype))
    body = Alloc(kept, block(fill, For("j", 3, block(*chosen))))
    params = [buffer("x", LANES, dtype=dtype), buffer("y", 3), buffer("z", 3)]
    text = assembly(kernel(params, body), AVX2)
    assert "callq" not in text and "__" not in text


def test_wide_integers_and_unsigned_bytes_keep_their_range(execute):
    large = np.array([2**62, -(2**63), 2**63 - 1, -1], np.int64)
    bytes_ = np.array([255, 128, 127, 0], np.uint8)
    body = block(
        store("f", ramp(0, 4), value=op("cast", load("b", ramp(0, 4), dtype=U8), dtype=F32)),
        store("w", ramp(0, 4), value=op("cast", load("b", ramp(0, 4), dtype=U8), dtype=I64)),
        store("n", ramp(0, 4), value=op("cast", load("x", ramp(0, 4), dtype=I64), dtype=I8)),
        store("lt", ramp(0, 4), value=op("lt", load("b", ramp(0, 4), dtype=U8), const(128, U8))),
        store("a", ramp(0, 4), value=op("abs", load("x", ramp(0, 4), dtype=I64))),
        store("back", ramp(0, 4), value=op("cast", load("g", ramp(0, 4)), dtype=U8)),
    )
    params = [buffer("x", 4, dtype=I64), buffer("b", 4, dtype=U8), buffer("f", 4), buffer("w", 4, dtype=I64)]
    params += [buffer("n", 4, dtype=I8), buffer("lt", 4, dtype=BOOL), buffer("a", 4, dtype=I64)]
    params += [buffer("g", 4), buffer("back", 4, dtype=U8)]
    got = execute(kernel(params, body), x=large, b=bytes_, g=f32([255.9, 200, 0.5, 1]))
    np.testing.assert_array_equal(got["f"], bytes_.astype(np.float32))
    np.testing.assert_array_equal(got["w"], bytes_)
    np.testing.assert_array_equal(got["n"], large.astype(np.int8))
    np.testing.assert_array_equal(got["lt"], bytes_ < 128)
    np.testing.assert_array_equal(got["a"], np.abs(large))
    np.testing.assert_array_equal(got["back"], [255, 200, 0, 1])


@pytest.mark.parametrize(("source", "target"), [(F32, I32), (I32, F32), (F64, I64), (I64, F64), (I8, U8), (U8, I8)])
def test_bitcasts(execute, source, target):
    x = draw(source, LANES)
    value = op("bitcast", load("x", ramp(0, LANES), dtype=source), dtype=target)
    params = [buffer("x", LANES, dtype=source), buffer("y", LANES, dtype=target)]
    got = execute(kernel(params, store("y", ramp(0, LANES), value=value)), x=x)
    np.testing.assert_array_equal(got["y"], x.view(target.numpy))


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_nan_passes_through_from_either_side_and_across_lanes(execute, name, dtype):
    x, y = draw(dtype, LANES, 1), draw(dtype, LANES, 2)
    x[3] = y[7] = x[9] = y[9] = np.nan
    vx, vy = load("x", ramp(0, LANES), dtype=dtype), load("y", ramp(0, LANES), dtype=dtype)
    body = block(
        store("pair", ramp(0, LANES), value=op(name, vx, vy)),
        store("left", ramp(0, LANES), value=op(name, 0.5, vx)),
        store("right", ramp(0, LANES), value=op(name, vx, 0.5)),
        store("all", 0, value=Op(f"h{name}", (vx,), dtype)),
        store("sound", 0, value=Op(f"h{name}", (load("z", ramp(0, LANES), dtype=dtype),), dtype)),
    )
    sizes = {"x": LANES, "y": LANES, "z": LANES, "pair": LANES, "left": LANES, "right": LANES, "all": 1, "sound": 1}
    z = draw(dtype, LANES, 3)
    got = execute(kernel([buffer(b, s, dtype=dtype) for b, s in sizes.items()], body), x=x, y=y, z=z)
    numpy = {"min": np.minimum, "max": np.maximum}[name]
    np.testing.assert_array_equal(got["pair"], numpy(x, y))
    np.testing.assert_array_equal(got["left"], numpy(x, dtype.numpy.type(0.5)))
    np.testing.assert_array_equal(got["right"], numpy(x, dtype.numpy.type(0.5)))
    assert np.isnan(got["all"][0])
    assert got["sound"][0] == numpy.reduce(z)


def test_special_constants_and_comparisons_with_nan(execute):
    x = f32([np.nan, np.inf, -np.inf, -0.0])
    v = load("x", ramp(0, 4))
    tests = {name: Op(name, (v, load("x", ramp(0, 4))), BOOL) for name in sorted(COMPARISONS)}
    values = {"nan": const(float("nan")), "inf": const(float("inf")), "zero": const(-0.0), "tiny": const(1e-42)}
    body = [store(name, ramp(0, 4), value=value) for name, value in {**tests, **values}.items()]
    params = [buffer("x", 4), *(buffer(b, 4, dtype=BOOL) for b in tests), *(buffer(b, 4) for b in values)]
    got = execute(kernel(params, block(*body)), x=x)
    for name in tests:
        np.testing.assert_array_equal(got[name], OPS[name](x, x))
    for name, value in values.items():
        assert isinstance(value.value, float)
        want = np.full(4, value.value, np.float32)
        np.testing.assert_array_equal(got[name].view(np.int32), want.view(np.int32))


def test_mul_and_add_are_not_contracted(execute):
    x = f32([1 + 2**-12] * LANES)
    value = load("x", ramp(0, LANES)) * load("x", ramp(0, LANES)) + const(-1.0)
    got = execute(kernel([buffer("x", LANES), buffer("y", LANES)], store("y", ramp(0, LANES), value=value)), x=x)
    np.testing.assert_array_equal(got["y"], x * x - np.float32(1))


def test_a_horizontal_op_counts_the_lanes_of_a_uniform_vector(execute):
    uniform = op("select", op("lt", n, 9), load("x", ramp(0, LANES)) * 0.0 + 1.0, load("x", ramp(0, LANES)))
    known = op("select", op("lt", n, 9), const(2.0), load("x", ramp(0, LANES)))
    body = For("n", 2, block(store("y", 0, value=op("hsum", uniform)), store("y", 1, value=op("hsum", known))), UNROLL)
    got = execute(kernel([buffer("x", LANES), buffer("y", 2)], body))
    np.testing.assert_array_equal(got["y"], [LANES, 2 * LANES])


@pytest.mark.parametrize(
    ("name", "dtype"), [("sqrt", I64), ("floordiv", F32), ("shl", F64), ("sub", BOOL), ("not", I8)]
)
def test_ops_that_a_dtype_lacks_are_refused(name, dtype):
    value = Op(name, (load("x", 0, dtype=dtype),) * arity(name), dtype)
    with pytest.raises(ValueError, match=f"{name} of {dtype}"):
        emit_module.emit(kernel([buffer("x", 1, dtype=dtype)], store("x", 0, value=value)), AVX512, "f")


# Expressions at random: small integers in floats, so that every order of operations gives the same.


@st.composite
def expressions(draw_, depth=3):
    """A float expression over x, y and the loop variables n < 2, u < 3: contiguous, gathered, cut short, scalar."""
    if depth == 0 or draw_(st.integers(0, 4)) == 0:
        leaves = [
            load("x", ramp(8 * n, 8)),
            load("x", ramp(8 * u + n, 8), count=5),
            load("y", ramp(0, 8) * 3 + n),
            load("y", (ramp(n, 8) + u) // 2),
            load("y", 9 - ramp(n, 8), count=3),
            load("y", op("cast", load("z", ramp(u, 8), dtype=I32), dtype=I64)),
            load("x", n),
            const(2.0),
            op("cast", n * 2 - u, dtype=F32),
            op("cast", ramp(u, 8) % 3, dtype=F32),
        ]
        return draw_(st.sampled_from(leaves))
    inner = expressions(depth - 1)
    name = draw_(st.sampled_from(["add", "sub", "mul", "min", "max", "neg", "fma", "select", "abs", "hsum", "hmax"]))
    args = [draw_(inner) for _ in range(arity(name))]
    if name == "select":
        args[0] = op(draw_(st.sampled_from(["lt", "le", "ne"])), draw_(inner), draw_(inner))
    if name in HORIZONTAL and args[0].lanes == 1:
        args[0] = args[0] + load("x", ramp(0, 8))
    return op(name, *args)


@pytest.mark.slow
@settings(max_examples=60)
@given(value=expressions(), kinds=st.tuples(*[st.sampled_from([LoopKind.SERIAL, UNROLL])] * 2))
def test_expressions_at_random(execute, value, kinds):
    arrays = {"x": draw(I32, 32) % 3 - 1, "y": draw(I32, 32, 1) % 3 - 1, "z": np.abs(draw(I32, 16, 2))}
    arrays = {b: a.astype(np.int32 if b == "z" else np.float32) for b, a in arrays.items()}

    def read(node, indices):
        lanes = np.broadcast_arrays(*indices)[0].shape
        values = arrays[node.tensor][tuple(np.clip(x, 0, 31) for x in indices)]
        used = np.arange(8) < node.count if node.count is not None and lanes else True
        return np.where(used, values, node.dtype.numpy.type(0))

    params = [buffer("x", 32), buffer("y", 32), buffer("z", 16, dtype=I32), buffer("out", 2, 3, 8)]
    body = For("n", 2, For("u", 3, store("out", n, u, ramp(0, 8), value=value), kinds[1]), kinds[0])
    got = execute(kernel(params, body), **arrays)["out"]
    want = [[np.broadcast_to(evaluate(value, {"n": a, "u": b}, read), 8) for b in range(3)] for a in range(2)]
    np.testing.assert_array_equal(got, f32(want))


# Memory: tails, gathers, scatters.


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("count", [1, 5, 15, 16])
def test_count_switches_trailing_lanes_off(execute, dtype, count):
    """The buffers end where the lanes in use end, and no memory behind them may be touched."""
    x = draw(dtype, (2, count))
    copied = load("x", 1, ramp(0, LANES), dtype=dtype, count=count)
    body = block(
        store("y", 1, ramp(0, LANES), value=copied, count=count),
        store("whole", ramp(0, LANES), value=copied),
        For("i", count, store("z", 0, i, value=load("x", 1, i, dtype=dtype))),
        store("z", 1, ramp(0, LANES), value=load("x", 0, 0, dtype=dtype), count=count),
    )
    shapes = {"x": (2, count), "y": (2, count), "whole": (LANES,), "z": (2, count)}
    got = execute(kernel([buffer(b, *s, dtype=dtype) for b, s in shapes.items()], body), x=x)
    np.testing.assert_array_equal(got["y"][1], x[1])
    assert not got["y"][0].any()
    np.testing.assert_array_equal(got["whole"], np.pad(x[1], (0, LANES - count)))
    np.testing.assert_array_equal(got["z"], [x[1], np.full(count, x[0, 0])])


@pytest.mark.parametrize(
    ("source", "target"), [(s, t) for s in DType for t in DType if castable(s, t) and s.size_bytes > t.size_bytes]
)
def test_lanes_out_of_use_are_not_written_with_a_value_that_was_cut_short(execute, source, target):
    """LLVM joins a cast with the store behind it. The last row shows what is written behind the others."""
    cases = [(lanes, count) for lanes in (4, 8, 16) for count in (1, lanes // 2 + 1, lanes - 1)]
    x, y = np.abs(draw(source, (len(cases), LANES))), draw(target, (len(cases) + 1, LANES), 1)
    body, want = [], y.copy()
    for row, (lanes, count) in enumerate(cases):
        value = Op("cast", (load("x", row, ramp(0, lanes), dtype=source),), target)
        body.append(store("y", row, ramp(0, lanes), value=value, count=count))
        want[row, :count] = x[row, :count].astype(target.numpy)
    params = [buffer("x", *x.shape, dtype=source), buffer("y", *y.shape, dtype=target)]
    np.testing.assert_array_equal(execute(kernel(params, block(*body)), x=x, y=y)["y"], want)


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON], ids=str)
@pytest.mark.parametrize("dtype", DType)
def test_one_lane_is_stored_as_a_scalar(target, dtype):
    """Some versions of LLVM store too much for a mask of one lane."""
    value = load("x", ramp(0, LANES), dtype=dtype)
    params = [buffer(name, LANES, dtype=dtype) for name in "xy"]
    text = str(emit_module.emit(kernel(params, store("y", ramp(0, LANES), value=value, count=1)), target, "f"))
    assert re.findall(r"^ *(?:store|call void).*", text, re.MULTILINE)[0].split()[:2] == ["store", memory_type(dtype)]
    assert "masked" not in text


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", ["div", "rem"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_lanes_out_of_use_add_nothing_to_a_sum_of_quotients(execute, count, name, dtype):
    """LLVM sees that both operands are 0 there, and takes 0 / 0 for 0."""
    x, y = draw(dtype, count, 1), np.abs(draw(dtype, count, 2)) + 1
    operands = (load(tensor, ramp(0, 8), dtype=dtype, count=count) for tensor in "xy")
    so_far = load("sum", ramp(0, 8), dtype=dtype)
    added = op("select", op("lt", ramp(0, 8), count), so_far + op(name, *operands), so_far)
    total = block(
        store("sum", ramp(0, 8), value=const(0.0, dtype)),
        store("sum", ramp(0, 8), value=added),
        store("z", 0, value=Op("hsum", (load("sum", ramp(0, 8), dtype=dtype),), dtype)),
    )
    body = Alloc(buffer("sum", 8, dtype=dtype, scope=Scope.REGISTER), total)
    got = execute(
        kernel([buffer(b, s, dtype=dtype) for b, s in {"x": count, "y": count, "z": 1}.items()], body), x=x, y=y
    )
    wanted = x / y if name == "div" else np.fmod(x, y)
    np.testing.assert_allclose(got["z"], wanted.sum(), rtol=1e-5)


GATHERS = {  # by loop variable i < 2, into 32 elements
    "stride 2": ramp(0, 8) * 2 + 1,
    "backwards": 20 - ramp(i, 8),
    "the same element": ramp(0, 8) // 8 + 3,
    "quotient": (ramp(i, 8) + 5) // 3,
    "remainder": (ramp(i, 8) * 5) % 7,
    "of data": load("p", ramp(0, 8), dtype=I64),
    "clamped": op("max", op("min", ramp(i, 8) * 3, 11), 2),
    "chosen": op("select", op("lt", ramp(0, 8), 3), ramp(0, 8) + 7, ramp(0, 8) * 2),
    "contiguous after all": ramp(0, 8) * 2 - ramp(0, 8) + 5,
    "cancelled": ramp(i, 8) - ramp(0, 8) + 1,
}


@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize("name", GATHERS)
@pytest.mark.parametrize("dtype", [F32, BOOL])
def test_gathers_and_scatters(execute, name, count, dtype):
    index = GATHERS[name]
    x, p = draw(dtype, 32), np.array([4, 0, 9, 9, 1, 30, 2, 7])
    value = load("x", index, dtype=dtype, count=count)
    spread = store("s", index, value=load("x", ramp(0, 8), dtype=dtype), count=count)
    body = For("i", 2, block(store("y", i, ramp(0, 8), value=value), spread))
    params = [buffer("x", 32, dtype=dtype), buffer("p", 8, dtype=I64), buffer("y", 2, 8, dtype=dtype)]
    got = execute(kernel([*params, buffer("s", 32, dtype=dtype)], body), x=x, p=p)
    scattered = np.zeros_like(x)
    for row in range(2):
        places = np.broadcast_to(evaluate(index, {"i": row}, lambda node, at: p[at[0]]), 8)
        used = np.arange(8) < (count or 8)
        np.testing.assert_array_equal(got["y"][row], np.where(used, x[places], x.dtype.type(0)))
        for lane in range(count or 8):
            scattered[places[lane]] = x[lane]
    np.testing.assert_array_equal(got["s"], scattered)


def test_a_strided_gather_touches_nothing_behind_its_last_element(execute):
    x = draw(F32, 15)
    body = store("y", ramp(0, 8), value=load("x", ramp(0, 8) * 2))
    got = execute(kernel([buffer("x", 15), buffer("y", 8)], body), x=x)
    np.testing.assert_array_equal(got["y"], x[::2])


def test_gathers_in_several_dimensions(execute):
    x = draw(F32, (4, 5, 6))
    value = load("x", ramp(0, 4), i, ramp(1, 4))
    got = execute(
        kernel([buffer("x", 4, 5, 6), buffer("y", 5, 4)], For("i", 5, store("y", i, ramp(0, 4), value=value))), x=x
    )
    np.testing.assert_array_equal(got["y"], np.stack([x[d, :, d + 1] for d in range(4)], 1))


# What a block remembers of memory.


def test_buffers_may_share_memory_in_place(execute):
    """A load after a store to another buffer reads again, as the two may be the same memory."""
    x = draw(F32, LANES)
    v = load("x", ramp(0, LANES))
    body = block(store("y", ramp(0, LANES), value=v + 1.0), store("z", ramp(0, LANES), value=v * 2.0))
    got = execute(kernel([buffer(b, LANES) for b in "xyz"], body), x=x, shared={"y": "x"})
    np.testing.assert_array_equal(got["z"], (x + 1) * 2)


def test_register_slots_of_different_widths_overlap(execute):
    x = draw(F32, 8)
    acc = buffer("acc", 8, scope=Scope.REGISTER)
    body = block(
        store("acc", ramp(0, 8), value=load("x", ramp(0, 8))),
        store("acc", 2, value=load("acc", 1) + 1.0),
        store("acc", ramp(4, 4), value=load("acc", ramp(1, 4))),
        store("acc", ramp(0, 8), value=load("x", 7), count=1),
        store("y", ramp(0, 8), value=load("acc", ramp(0, 8))),
    )
    got = execute(kernel([buffer("x", 8), buffer("y", 8)], Alloc(acc, body)), x=x)
    want = x.copy()
    want[2] = want[1] + 1
    want[4:] = want[1:5].copy()
    want[0] = x[7]
    np.testing.assert_array_equal(got["y"], want)


def test_register_buffers_may_be_indexed_by_loops(execute):
    x = draw(F32, 8)
    acc = buffer("acc", 8, scope=Scope.REGISTER)
    body = block(
        store("acc", ramp(0, 8), value=load("x", ramp(0, 8))),
        store("acc", 3, value=const(1.0)),
        For("i", 7, store("acc", i + 1, value=load("acc", i) + load("acc", i + 1))),
        store("acc", 0, value=load("acc", 3)),
        store("y", ramp(0, 8), value=load("acc", ramp(0, 8))),
    )
    got = execute(kernel([buffer("x", 8), buffer("y", 8)], Alloc(acc, body)), x=x)
    want = x.copy()
    want[3] = 1
    for at in range(7):
        want[at + 1] += want[at]
    want[0] = want[3]
    np.testing.assert_array_equal(got["y"], want)


def test_an_unrolled_accumulation_in_global_memory(execute):
    x = draw(F32, (6, LANES))
    total = store("y", ramp(0, LANES), value=load("y", ramp(0, LANES)) + load("x", i, ramp(0, LANES)))
    got = execute(kernel([buffer("x", 6, LANES), buffer("y", LANES)], For("i", 6, total, UNROLL)), x=x)
    np.testing.assert_allclose(got["y"], x.sum(0), rtol=1e-5)


# Loops, conditions, buffers.


def test_loops_nest_unroll_and_shadow(execute):
    body = For("i", 3, For("j", 4, block(
        store("y", i, j, 0, value=op("cast", i * 100 + j * 10, dtype=F32)),
        For("i", 2, store("y", 2 - i, 3 - j, i + 1, value=op("cast", i * 100 + j * 10, dtype=F32)), UNROLL),
    )), PARALLEL)  # fmt: skip
    got = execute(kernel([buffer("y", 3, 4, 3)], body))["y"]
    want = np.zeros((3, 4, 3), np.float32)
    want[..., 0] = np.add.outer(np.arange(3) * 100, np.arange(4) * 10)
    for inner in range(2):
        want[2 - inner, :, inner + 1] = inner * 100 + np.arange(4)[::-1] * 10
    np.testing.assert_array_equal(got, want)


def test_loops_of_one_and_no_iteration(execute):
    body = block(
        For("i", 1, store("y", i, value=const(1.0))),
        For("i", 0, store("y", 1, value=const(1.0))),
        For("i", 0, store("y", 1, value=const(1.0)), UNROLL),
    )
    assert execute(kernel([buffer("y", 2)], body, For("i", 0, body, PARALLEL)))["y"].tolist() == [1, 0]


def test_conditions(execute):
    body = For("i", 10, block(
        If(op("lt", i, 7), store("y", i, value=const(1.0))),
        If(op("and", op("le", 2, i), op("ne", i % 3, 0)), For("j", 2, store("z", i, j, value=const(2.0)))),
        If(op("lt", load("x", i), 0.0), store("w", i, value=load("x", i))),
    ))  # fmt: skip
    x = draw(F32, 10)
    got = execute(kernel([buffer("x", 10), buffer("y", 10), buffer("z", 10, 2), buffer("w", 10)], body), x=x)
    rows = np.arange(10)
    np.testing.assert_array_equal(got["y"], rows < 7)
    np.testing.assert_array_equal(got["z"], 2 * np.outer((rows >= 2) & (rows % 3 != 0), [1, 1]))
    np.testing.assert_array_equal(got["w"], np.minimum(x, 0))


def test_conditions_known_after_unrolling_leave_no_branch():
    body = For("i", 4, If(op("lt", i, 2), store("y", i, value=const(1.0))), UNROLL)
    text = str(emit_module.emit(kernel([buffer("y", 4)], body), AVX512, "f"))
    assert text.count("store") == 2
    assert "br " not in text


def test_a_choice_known_after_unrolling_reads_one_side(execute):
    """As where padding is read: the other side lies outside the buffer."""
    value = op("select", op("lt", i, 3), load("x", i), 0.0)
    built = kernel([buffer("x", 3), buffer("y", 6)], For("i", 6, store("y", i, value=value), UNROLL))
    assert str(emit_module.emit(built, AVX512, "f")).count("load float") == 3
    x = draw(F32, 3)
    np.testing.assert_array_equal(execute(built, x=x)["y"], np.pad(x, (0, 3)))


def test_a_division_stays_under_its_condition(execute):
    quotient = op("cast", op("floordiv", const(60), i - 3), dtype=F32)
    body = For("j", 2, For("i", 8, If(op("lt", 3, i), store("y", j, i, value=quotient))))
    got = execute(kernel([buffer("y", 2, 8)], body))
    np.testing.assert_array_equal(got["y"], [[0, 0, 0, 0, 60, 30, 20, 15]] * 2)


def test_shared_buffers_belong_to_one_iteration(execute):
    x = draw(F32, (6, 40))
    panel = buffer("panel", 40, scope=Scope.SHARED)
    reversal = For("j", 40, store("panel", 39 - j, value=load("x", i, j)))
    sums = For("j", 39, store("y", i, j, value=load("panel", j) + load("panel", j + 1)))
    body = For("i", 6, Alloc(panel, block(reversal, sums)), PARALLEL)
    got = execute(kernel([buffer("x", 6, 40), buffer("y", 6, 39)], body), x=x)
    back = x[:, ::-1]
    np.testing.assert_array_equal(got["y"], back[:, 1:] + back[:, :-1])


def test_shared_buffers_of_different_times_share_the_stack():
    """Two panels of 1 MiB, one after the other, take one place."""

    def panel(row):
        fill = For("j", 1 << 18, store("panel", j, value=load("x", row)))
        total = For("j", 1 << 18, store("x", row, value=load("x", row) + load("panel", j)))
        return Alloc(buffer("panel", 1 << 18, scope=Scope.SHARED), block(fill, total))

    text = assembly(kernel([buffer("x", 2)], block(panel(0), panel(1))), AVX512)
    frames = [int(line.split("$")[1].split(",")[0]) for line in text.splitlines() if "subq" in line and "rsp" in line]
    assert len(frames) == 1
    assert 1 << 20 <= frames[0] < 5 << 18


def test_memory_may_be_asked_for_beyond_its_end(execute):
    body = For("i", 4, block(Prefetch("x", (i + 1000,)), store("y", i, value=load("x", i))))
    asking = kernel([buffer("x", 4), buffer("y", 4)], body)
    x = draw(F32, (4,))
    np.testing.assert_array_equal(execute(asking, x=x)["y"], x)
    assert "prefetcht0\t4000(" in assembly(asking, AVX512)


def test_a_name_may_stand_for_another_buffer_inside(execute):
    y = load("y", i)
    inner = Alloc(buffer("y", 1, scope=Scope.REGISTER), block(
        store("y", 0, value=const(5.0)), store("x", i, value=load("y", 0)),
    ))  # fmt: skip
    body = For("i", 4, block(store("y", i, value=const(3.0)), inner, store("y", i, value=y + load("x", i))))
    got = execute(kernel([buffer("x", 4), buffer("y", 4)], body))
    assert got["y"].tolist() == [8] * 4


def test_phases_use_scratch(execute):
    x = draw(F32, (5, LANES))
    square = For(
        "i",
        5,
        store("t", i, ramp(0, LANES), value=load("x", i, ramp(0, LANES)) * load("x", i, ramp(0, LANES))),
        PARALLEL,
    )
    total = store("y", 0, value=const(0.0))
    rows = For("i", 5, store("y", 0, value=load("y", 0) + op("hsum", load("t", i, ramp(0, LANES)))))
    got = execute(
        kernel([buffer("x", 5, LANES), buffer("y", 1)], square, block(total, rows), scratch=[buffer("t", 5, LANES)]),
        x=x,
    )
    np.testing.assert_allclose(got["y"], [(x * x).sum()], rtol=1e-5)


def test_parallel_loops_stand_on_top():
    inner = For("i", 2, For("j", 2, store("y", j, value=const(1.0)), PARALLEL))
    with pytest.raises(ValueError, match="parallel"):
        emit_module.emit(kernel([buffer("y", 2)], inner), AVX512, "f")


# The text.


def gemm(rows, floats, depth, lanes=16):
    """C tile += A panel * B panel, one register tile: [m/rows][k][rows] times [n/floats][k][floats]."""
    acc = buffer("acc", rows, floats, scope=Scope.REGISTER)
    place = i, ramp(j * lanes, lanes)
    product = op("fma", load("a", n, k, i), load("b", u, k, place[1]), load("acc", *place))

    def each(stmt):
        return For("i", rows, For("j", floats // lanes, stmt, UNROLL), UNROLL)

    written = store("c", n * rows + i, ramp(u * floats + j * lanes, lanes), value=load("acc", *place))
    tile = block(
        each(store("acc", *place, value=const(0.0))),
        For("k", depth, each(store("acc", *place, value=product))),
        each(written),
    )
    params = [buffer("a", 2, depth, rows), buffer("b", 3, depth, floats), buffer("c", 2 * rows, 3 * floats)]
    return kernel(params, For("u", 3, For("n", 2, Alloc(acc, tile)), PARALLEL))


def test_register_tiled_gemm_is_right(execute):
    a, b = draw(F32, (2, 7, 4)), draw(F32, (3, 7, 32))
    got = execute(gemm(4, 32, 7), a=a, b=b, exact=False)
    want = a.transpose(0, 2, 1).reshape(8, 7) @ b.transpose(1, 0, 2).reshape(7, 96)
    np.testing.assert_allclose(got["c"], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "rows", "floats", "lanes"), [(AVX512, 14, 32, 16), (AVX2, 6, 16, 8), (NEON, 8, 8, 4)], ids=str
)
def test_register_tiles_stay_in_registers(target, rows, floats, lanes):
    text = assembly(gemm(rows, floats, 64, lanes), target)
    for stack in ("(%rsp", "(%rbp", "[sp", "[x29"):
        assert stack not in text
    assert text.count("vfmadd") + text.count("fmla") == rows * floats // lanes


@pytest.mark.parametrize("name", ["'; drop", 'a"b', "x\n}", "%v1", "@llvm.trap"])
def test_names_of_a_kernel_do_not_reach_the_text(name):
    var = Var(name)
    tile = buffer(name + "t", 4, scope=Scope.REGISTER)
    body = For(
        name,
        4,
        Alloc(tile, block(store(name + "t", 0, value=load(name, var)), store(name, var, value=load(name + "t", 0)))),
    )
    text = emit_module.emit(kernel([buffer(name, 4)], body), AVX512, "f")
    plain = emit_module.emit(
        kernel([buffer("x", 4)], For("i", 4, Alloc(buffer("t", 4, scope=Scope.REGISTER), block(
            store("t", 0, value=load("x", i)), store("x", i, value=load("t", 0)),
        )))), AVX512, "f",
    )  # fmt: skip
    assert text == plain


def elementwise():
    value = op("max", 0.0, load("x", i, ramp(j * 16, 16)) * load("s", ramp(j * 16, 16)))
    tail = op("max", 0.0, load("x", i, ramp(48, 16), count=3) * load("s", ramp(48, 16), count=3))
    mask = op("lt", load("x", i, ramp(48, 16), count=3), tail)
    body = block(
        For("j", 3, store("y", i, ramp(j * 16, 16), value=value)),
        store("y", i, ramp(48, 16), value=tail, count=3),
        store("m", i, ramp(0, 16), value=mask, count=3),
    )
    params = [buffer("x", 8, 51), buffer("s", 51), buffer("y", 8, 51), buffer("m", 8, 3, dtype=BOOL)]
    return kernel(params, For("i", 8, body, PARALLEL))


def turned():
    body = For("i", 4, store("y", i, ramp(0, 4), value=load("x", ramp(0, 4), (i + 1) % 3)))
    return kernel([buffer("x", 4, 3), buffer("y", 4, 4)], body)


def row_sums():
    acc = buffer("acc", 1, scope=Scope.REGISTER)
    row = buffer("row", 64, scope=Scope.SHARED)
    body = block(
        store("acc", 0, value=const(0.0)),
        For("j", 4, block(
            store("row", ramp(j * 16, 16), value=load("x", i, ramp(j * 16, 16))),
            If(op("lt", j, 3), store("acc", 0, value=load("acc", 0) + op("hsum", load("row", ramp(j * 16, 16))))),
        )),
        store("t", i, value=load("acc", 0)),
    )  # fmt: skip
    params = [buffer("x", 8, 64), buffer("y", 1)]
    first = For("i", 8, Alloc(row, Alloc(acc, body)), PARALLEL)
    return kernel(params, first, store("y", 0, value=op("hmax", load("t", ramp(0, 8)))), scratch=[buffer("t", 8)])


GOLDENS = {
    "elementwise_avx512.ll": (elementwise, AVX512),
    "elementwise_neon.ll": (elementwise, NEON),
    "gemm_2x8_neon.ll": (lambda: gemm(2, 8, 16, 4), NEON),
    "gather.ll": (turned, AVX2),
    "row_sums.ll": (row_sums, AVX512),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_text(golden, name):
    make, target = GOLDENS[name]
    golden(name, str(emit_module.emit(make(), target, "kernel")))


def test_what_was_stored_is_not_taken_for_what_loop_variables_say(execute):
    body = block(
        Alloc(buffer("t", 1, dtype=I64, scope=Scope.REGISTER), For("i", 3, block(
            store("t", 0, value=i * 2),
            store("y", i, 0, value=op("cast", load("t", 0, dtype=I64), dtype=F32)),
            store("t", 0, value=const(7)),
            store("y", i, 1, value=op("cast", load("t", 0, dtype=I64), dtype=F32)),
        ), UNROLL)),
    )  # fmt: skip
    got = execute(kernel([buffer("y", 3, 2)], body))["y"]
    assert got.tolist() == [[0, 7], [2, 7], [4, 7]]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("is_vector", [False, True])
def test_integers_without_a_quotient_stop_nothing(execute, dtype, is_vector):
    """A lane beyond an edge reads zeros, and x86 ends a program that divides by one."""
    least = np.iinfo(dtype.numpy).min
    x = np.resize(np.array([7, least, -7 if least else 7, 0, 100], dtype.numpy), LANES)
    y = np.resize(np.array([0, -1 if least else 3, 2], dtype.numpy), LANES)
    params = [buffer(name, LANES, dtype=dtype) for name in "xyz"]
    places = [ramp(0, LANES)] if is_vector else range(LANES)
    divided = [store("z", at, value=op("div", load("x", at, dtype=dtype), load("y", at, dtype=dtype))) for at in places]
    got = execute(kernel(params, block(*divided)), x=x, y=y)["z"]
    has_one = (y != 0) & ~((x == least) & (y == (-1 if least else 0)))
    want = np.trunc(x.astype(np.float64)[has_one] / y[has_one])
    np.testing.assert_array_equal(got[has_one], want)


def test_lanes_beyond_an_edge_divide_by_nothing(execute):
    """Such a lane of a divisor is zero."""
    x, y = np.arange(1, LANES + 1, dtype=np.int32) * 12, np.full(LANES, 3, np.int32)
    at = (ramp(0, LANES),)
    value = op("div", Load("x", at, I32, 3), Load("y", at, I32, 3))
    params = [buffer(name, LANES, dtype=I32) for name in "xyz"]
    got = execute(kernel(params, store("z", ramp(0, LANES), value=value)), x=x, y=y)["z"]
    np.testing.assert_array_equal(got[:3], [4, 8, 12])
