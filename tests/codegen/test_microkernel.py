"""Microkernels: what runs long is a function of its own, and the same one whatever loops are around it."""

from __future__ import annotations

import re
from unittest.mock import Mock

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Ramp, Var, const, op
from tunewright.codegen.ir import microkernel
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Prefetch, Scope, Stmt, Store
from tunewright.codegen.ir.microkernel import MIN_STORES, extract_call, integer
from tunewright.codegen.llvm import build as building
from tunewright.codegen.llvm.build import ObjectCache, assembly, build, compile_text, source
from tunewright.codegen.llvm.emit import emit
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify

AVX512 = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "", 512, 32, 2, 48 << 10, 1 << 20, 32 << 20)
NEON = Target("cpu", "aarch64-unknown-linux-gnu", "neoverse-n1", "", 128, 32, 2, 64 << 10, 1 << 20, 32 << 20)
F32, I64 = DType.F32, DType.I64
ROWS, DEPTH = 12, 64
SHAPES = {"x": (ROWS, DEPTH), "w": (DEPTH, 16), "y": (ROWS, 16)}


def visible(kernel: Kernel) -> dict[str, Buffer]:
    return {buffer.name: buffer for buffer in (*kernel.params, *kernel.scratch)}


def row_of(at: Expr, depth: int = DEPTH, width: int = 16, column: int = 0, names: str = "xwy") -> Alloc:
    """y[at] = x[at] @ w, in registers: some of its columns."""
    acc = Buffer("acc", (width,), F32, Scope.REGISTER)
    x, w, y = list(names)
    lanes, columns, k = Ramp(const(0), width), Ramp(const(column), width), Var("k")
    more = op("fma", Load(x, (at, k), F32), Load(w, (k, columns), F32), Load("acc", (lanes,), F32))
    body = (
        Store("acc", (lanes,), const(0.0)),
        For("k", depth, Block((Prefetch(w, (k + 4, const(0))), Store("acc", (lanes,), more)))),
        Store(y, (at, columns), Load("acc", (lanes,), F32)),
    )
    return Alloc(acc, Block(body))


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(SHAPES[name]).astype(np.float32) for name in "xw"]


def product(loops: Stmt, depth: int = DEPTH) -> Kernel:
    params = (Buffer("x", (ROWS, depth), F32), Buffer("w", (depth, 16), F32), Buffer("y", (ROWS, 16), F32))
    return Kernel(params, (), Block((loops,)))


i, j = Var("i"), Var("j")

LOOPS = {
    "one": For("i", ROWS, row_of(i)),
    "parallel": For("i", ROWS, row_of(i), LoopKind.PARALLEL),
    "two": For("i", 3, For("j", 4, row_of(i * 4 + j))),
    "other order": For("j", 4, For("i", 3, row_of(i * 4 + j))),
    "one for two": For("i", ROWS, row_of(op("floordiv", i, 4) * 4 + op("mod", i, 4))),
    "under conditions": For("i", 2, Block((If(op("lt", i, 1), For("j", 7, row_of(j))), For("j", 5, row_of(j + 7))))),
}


@pytest.fixture
def small(monkeypatch):
    """All that could be a microkernel is one."""
    monkeypatch.setattr(microkernel, "MIN_STORES", 1)


def test_loops_around_it_make_no_other_microkernel(small, host, execute):
    x, w = inputs()
    shared = set()
    for loops in LOOPS.values():
        kernel = product(loops)
        phases, tile = build(kernel, host).objects
        assert phases != tile
        shared.add(tile)
        np.testing.assert_allclose(execute(kernel, exact=False, x=x, w=w)["y"], x @ w, rtol=1e-4, atol=1e-5)
    assert len(shared) == 1


def test_what_is_in_the_cache_is_not_compiled_again(small, host, tmp_path, monkeypatch):
    compiling, verifying = Mock(wraps=compile_text), Mock(wraps=verify)
    monkeypatch.setattr(building, "compile_text", compiling)
    monkeypatch.setattr(building, "verify", verifying)
    cache = ObjectCache(tmp_path / "objects")
    first = build(product(LOOPS["one"]), host, cache)
    assert (compiling.call_count, verifying.call_count) == (2, 1)
    other = build(product(LOOPS["two"]), host, cache)
    assert (compiling.call_count, verifying.call_count) == (3, 2)
    assert first.objects[1] == other.objects[1]
    assert build(product(LOOPS["one"]), host, cache) == first
    assert (compiling.call_count, verifying.call_count) == (3, 2)
    assert len(list(cache.folder.glob("*.o"))) == 3


def test_phases_call_one_microkernel_with_their_own_buffers(small, host, execute):
    params = tuple(Buffer(name, shape, F32) for name, shape in SHAPES.items())
    other = Buffer("z", (ROWS, 16), F32)
    second = row_of(i, names="xwz")
    kernel = Kernel((*params, other), (), Block((For("i", ROWS, row_of(i)), For("j", 1, For("i", ROWS, second)))))
    assert len(build(kernel, host).objects) == 2
    x, w = inputs()
    got = execute(kernel, exact=False, x=x, w=w)
    np.testing.assert_allclose(got["y"], x @ w, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got["z"], got["y"])


def test_a_kernel_calls_several_microkernels(small, host, execute):
    short = For("i", 5, row_of(i))
    long = For("i", 7, row_of(i + 5, width=8)), For("i", 7, row_of(i + 5, width=8, column=8))
    kernel = product(Block((short, *long)))
    assert len(build(kernel, host).objects) == 4  # the last two write to other columns
    x, w = inputs()
    np.testing.assert_allclose(execute(kernel, exact=False, x=x, w=w)["y"], x @ w, rtol=1e-4, atol=1e-5)


def test_memory_that_is_shared_in_place_is_read_before_it_is_written(small, host, execute):
    acc = Buffer("acc", (16,), F32, Scope.REGISTER)
    lanes = (i, Ramp(const(0), 16))
    body = Alloc(acc, Block((
        Store("acc", (Ramp(const(0), 16),), Load("x", lanes, F32) * 2.0),
        Store("y", lanes, Load("acc", (Ramp(const(0), 16),), F32)),
        Store("y", lanes, Load("x", lanes, F32) + Load("y", lanes, F32)),
    )))  # fmt: skip
    params = (Buffer("x", (4, 16), F32), Buffer("y", (4, 16), F32))
    kernel = Kernel(params, (), Block((For("i", 4, body),)))
    assert len(build(kernel, host).objects) == 2
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    np.testing.assert_array_equal(execute(kernel, x=x)["y"], x + 2 * x)
    np.testing.assert_array_equal(execute(kernel, x=x, shared={"y": "x"})["x"], 4 * x)


def test_data_may_pass_64_bits(small, host, execute):
    """As in numpy; an index may not."""
    low, k = -(1 << 63), Var("k")
    value = (Load("x", (i * 2 + k,), I64) * (1 << 62)) * 2 * 2 + const(low, I64) + const(low, I64) + (i * 2 + k)
    body = Alloc(Buffer("acc", (1,), I64, Scope.REGISTER), For("k", 2, Block((
        Store("acc", (const(0),), value),
        Store("y", (i * 2 + k,), Load("acc", (const(0),), I64)),
    ))))  # fmt: skip
    kernel = Kernel((Buffer("x", (8,), I64), Buffer("y", (8,), I64)), (), Block((For("i", 4, body),)))
    assert len(build(kernel, host).objects) == 2
    assert execute(kernel, x=np.arange(8))["y"].tolist() == list(range(8))


def test_lanes_that_cancel_stay_lanes(small, host, execute):
    """Of a load that leaves lanes out, each one counts."""
    alike = Ramp(i, 16) - Ramp(const(0), 16)
    value = op("hsum", Load("x", (alike,), F32, 3))
    body = Alloc(Buffer("acc", (1,), F32, Scope.REGISTER), Block((
        Store("acc", (const(0),), value),
        Store("y", (i,), Load("acc", (const(0),), F32)),
    )))  # fmt: skip
    kernel = Kernel((Buffer("x", (4,), F32), Buffer("y", (4,), F32)), (), Block((For("i", 4, body),)))
    assert len(build(kernel, host).objects) == 2
    assert execute(kernel, x=np.arange(4, dtype=np.float32))["y"].tolist() == [0, 3, 6, 9]


def test_integers_may_be_functions(small, host, execute):
    """Which no instruction computes."""
    power = op("cast", op("exp", op("cast", i, dtype=F32)), dtype=I64)
    body = Alloc(Buffer("acc", (1,), F32, Scope.REGISTER), Block((
        Store("acc", (const(0),), op("cast", power, dtype=F32)),
        Store("y", (i,), Load("acc", (const(0),), F32)),
    )))  # fmt: skip
    kernel = Kernel((Buffer("y", (4,), F32),), (), Block((For("i", 4, body),)))
    assert len(build(kernel, host).objects) == 2
    assert execute(kernel)["y"].tolist() == [1, 2, 7, 20]


def test_another_machine_has_microkernels_too(small):
    assert len(build(product(LOOPS["two"]), NEON).objects) == 2


def test_another_tile_is_another_microkernel(small, host):
    tiles = {build(product(For("i", ROWS, row_of(i, depth)), depth), host).objects[1] for depth in (DEPTH, 63)}
    assert len(tiles) == 2


def test_what_is_short_is_no_function(host):
    def objects(depth: int) -> int:
        return len(build(product(For("i", ROWS, row_of(i, depth)), depth), host).objects)

    assert objects(MIN_STORES - 2) == 2  # two more stores are around the loop
    assert objects(MIN_STORES - 3) == 1


def test_copies_are_no_functions(small, host):
    assert len(build(product(For("i", ROWS, row_of(i), LoopKind.UNROLL)), host).objects) == 1
    assert len(build(product(For("i", 1, row_of(i), LoopKind.UNROLL)), host).objects) == 2


def test_sums_that_differ_by_a_constant_are_one_integer(small):
    body = Block(tuple(Store("y", (i * 2 + j + n, Ramp(j * 8, 8)), const(0.0)) for n in (3, 0, 5)))
    kernel = Kernel((Buffer("y", (64, 64), F32),), (), Block((body,)))
    call = extract_call(Alloc(Buffer("r", (1,), F32, Scope.REGISTER), body), visible(kernel))
    assert call is not None and call.microkernel.integers == 2
    assert [str(value) for value in call.integers] == ["(((i * 2) + j) + 3)", "(j * 8)"]
    inner = call.microkernel.body.body
    assert isinstance(inner, Block)
    first = [stmt.index[0] for stmt in inner.body if isinstance(stmt, Store)]
    assert first == [integer(0), integer(0) - 3, integer(0) + 2]


def test_a_quotient_is_computed_under_its_condition(small, host, execute):
    value = op("cast", op("floordiv", const(60), i - 3), dtype=F32)
    acc = Buffer("acc", (1,), F32, Scope.REGISTER)
    body = Alloc(acc, Block((
        If(op("lt", 3, i), Store("acc", (const(0),), value)),
        If(op("lt", 3, i), For("k", 2, Store("y", (i, Var("k")), Load("acc", (const(0),), F32)))),
    )))  # fmt: skip
    kernel = Kernel((Buffer("y", (8, 2), F32),), (), Block((For("i", 8, body),)))
    assert len(build(kernel, host).objects) == 2
    assert execute(kernel)["y"][4:].tolist() == [[60, 60], [30, 30], [20, 20], [15, 15]]


def test_registers_from_around_it_keep_it_where_it_is(small):
    inner = Alloc(Buffer("s", (1,), F32, Scope.REGISTER), Store("y", (i,), Load("r", (const(0),), F32)))
    for scope in Scope:
        call = extract_call(inner, {"y": Buffer("y", (4,), F32), "r": Buffer("r", (1,), F32, scope)})
        assert (call is None) == (scope is Scope.REGISTER)


def test_registers_chosen_from_outside_keep_it_where_it_is(small):
    """Their numbers have to be known: a loop of one copy makes that of its variable."""
    for at, is_called in ((j, False), (const(0), True)):
        stores = Store("s", (at,), const(0.0)), Store("y", (i,), Load("s", (at,), F32))
        inner = Alloc(Buffer("s", (1,), F32, Scope.REGISTER), Block(stores))
        assert (extract_call(inner, {"y": Buffer("y", (4,), F32)}) is not None) == is_called


def test_a_stack_buffer_is_handed_over(small, host, execute):
    row = Buffer("row", (16,), F32, Scope.SHARED)
    k = Var("k")
    tile = Alloc(Buffer("s", (1,), F32, Scope.REGISTER), For("k", 16, Block((
        Store("s", (const(0),), Load("row", (k,), F32) * 2.0),
        Store("row", (k,), Load("s", (const(0),), F32)),
        Store("y", (i, k), Load("row", (k,), F32)),
    ))))  # fmt: skip
    fill = Store("row", (Ramp(const(0), 16),), Load("x", (i, Ramp(const(0), 16)), F32))
    read = Store("z", (i, Ramp(const(0), 16)), Load("row", (Ramp(const(0), 16),), F32))
    params = tuple(Buffer(name, (4, 16), F32) for name in "xyz")
    kernel = Kernel(params, (), Block((For("i", 4, Alloc(row, Block((fill, tile, read)))),)))
    assert len(build(kernel, host).objects) == 2
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    got = execute(kernel, x=x)
    np.testing.assert_array_equal(got["y"], 2 * x)
    np.testing.assert_array_equal(got["z"], 2 * x)


def test_the_text_that_is_shown_is_one_module(small, host):
    text = source(product(LOOPS["one"]), host)
    assert compile_text(text, host)
    [symbol] = set(re.findall(r"@(m[0-9a-f]{24})\(", text))
    assert text.count(f"@{symbol}(") == 2  # called and defined
    assert assembly(product(LOOPS["one"]), host).count(f"\n{symbol}:") == 1


def test_golden_text(small, golden):
    golden("microkernel_avx512.ll", str(emit(product(LOOPS["one for two"]), AVX512, "kernel")))
