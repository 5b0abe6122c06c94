"""The interpreter of kernels for GPUs: what they compute, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda.interp import run
from tunewright.codegen.expr.expr import Load, Ramp, Var, const, op
from tunewright.codegen.ir.access import BoundsError, RaceError, UndefinedRead
from tunewright.codegen.ir.ir import Alloc, Buffer, Do, For, If, Kernel, LoopKind, Scope, Store, Swizzle
from tunewright.codegen.verify import verify
from tunewright.codegen.verify_context import VerifyError

from .kernels import F32, added, block, lowest_halves, multiplied, turned


def results(kernel, *inputs):
    """What a kernel makes of inputs."""
    verify(kernel)
    outputs = [np.full(b.shape, np.nan, b.dtype.numpy) for b in kernel.params[len(inputs) :]]
    run(kernel, [*inputs, *outputs])
    return outputs


def some(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 257])
def test_elements_side_by_side(size):
    x, y = some(size), some(size, seed=1)
    [z] = results(added(size), x, y)
    assert np.array_equal(z, x + np.maximum(y, 0))


def test_bytes_as_words():
    x = np.random.default_rng(0).integers(0, 256, 256, np.uint8)
    kernel = lowest_halves(64)
    z = np.zeros(64, np.int32)
    verify(kernel)
    run(kernel, [x, z])
    assert np.array_equal(z.view(np.uint8), x & 0x0F)


@pytest.mark.parametrize("swizzle", [None, Swizzle(5, 0, 5), Swizzle(3, 2, 3)], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (33, 64), (7, 91)])
def test_through_shared_memory(rows, columns, swizzle):
    x = some(rows, columns)
    [y] = results(turned(rows, columns, swizzle=swizzle), x)
    assert np.array_equal(y, x.T)


def test_a_product_whose_operands_come_while_it_computes():
    a, b = some(64, 40), some(40, 32, seed=1)
    a, b = (np.round(matrix * 8).astype(np.float32) for matrix in (a, b))  # no bits that TF32 lacks
    [c] = results(multiplied(64, 40, 32), a, b)
    assert np.array_equal(c, a @ b)


def test_a_barrier_that_is_missing():
    with pytest.raises(RaceError, match=r"thread \d+ reads tile\[.*\], which thread \d+ wrote"):
        results(turned(32, 32, meets=False), some(32, 32))
    with pytest.raises(RaceError, match=r"thread \d+ reads .*, which thread \d+ wrote"):
        results(multiplied(32, 16, 32, without="barrier"), some(32, 16), some(16, 32))


def test_a_wait_that_is_missing():
    with pytest.raises(RaceError, match="is touched before what comes to it was waited for"):
        results(multiplied(32, 16, 32, without="wait"), some(32, 16), some(16, 32))


def test_a_copy_from_an_uneven_place():
    x, tile = Buffer("x", (256,), F32), Buffer("tile", (128,), F32, Scope.SHARED)
    to, source = (Load(name, (Ramp(Var("t") * 4 + n, 4),), F32) for name, n in (("tile", 0), ("x", 2)))
    steps = Do("cp.async.16", (to,), (source,)), Do("cp.async.commit", (), ()), Do("cp.async.wait.0", (), ())
    threads = Alloc(tile, For("t", 32, block(*steps), LoopKind.THREAD))
    kernel = Kernel((x,), (), block(For("b", 1, threads, LoopKind.BLOCK)))
    with pytest.raises(BoundsError, match=r"cp.async.16: x\[2\] is not on a multiple of 16 bytes"):
        results(kernel, some(256))


def test_a_wrong_fragment():
    a, b = (np.round(some(*shape) * 8).astype(np.float32) for shape in ((32, 8), (8, 32)))
    [c] = results(multiplied(32, 8, 32, crossed=True), a, b)
    assert not np.array_equal(c, a @ b)


def grid(body, *, blocks=2, threads=4, buffers=(), allocs=()):
    for buffer in allocs:
        body = Alloc(buffer, body)
    loop = For("b", blocks, For("t", threads, body, LoopKind.THREAD), LoopKind.BLOCK)
    return Kernel(tuple(buffers), (), block(loop))


def test_blocks_must_not_write_the_same_element():
    y = Buffer("y", (4,), F32)
    with pytest.raises(RaceError, match=r"block \d writes y\[0\], which block \d writes too"):
        results(grid(Store("y", (Var("t"),), const(1.0)), buffers=[y]))


def test_threads_must_not_write_the_same_element_at_once():
    y = Buffer("y", (2,), F32)
    with pytest.raises(RaceError, match=r"thread \d writes y\[0\], which thread \d writes too"):
        results(grid(Store("y", (Var("b"),), const(1.0)), buffers=[y]))


def test_what_nobody_wrote():
    y, r = Buffer("y", (8,), F32), Buffer("r", (1,), F32, Scope.REGISTER)
    body = Store("y", (Var("b") * 4 + Var("t"),), Load("r", (const(0),), F32))
    with pytest.raises(UndefinedRead, match=r"r\[0\] is read before anything wrote it"):
        results(grid(body, buffers=[y], allocs=[r]))


def test_outside():
    y = Buffer("y", (7,), F32)
    kernel = grid(Store("y", (Var("b") * 4 + Var("t"),), const(1.0)), buffers=[y])
    with pytest.raises(VerifyError, match=r"is in 0 .. 7, the limit 6"):
        verify(kernel)
    with pytest.raises(BoundsError, match="y: index 7 is outside shape"):
        run(kernel, [np.zeros(7, np.float32)])


def test_threads_that_do_not_come_touch_nothing():
    y = Buffer("y", (8,), F32)
    place = Var("b") * 4 + Var("t")
    odd = If(op("eq", Var("t") % 2, 1), Store("y", (place,), const(1.0)))
    [values] = results(grid(odd, buffers=[y]))
    assert np.array_equal(np.nan_to_num(values), [0, 1] * 4)
