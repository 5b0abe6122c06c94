"""Roles of the threads of a block: some fetch boxes of a tensor, others read what has come."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.emit import emit
from tunewright.codegen.cuda.interp import run
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, const
from tunewright.codegen.ir.access import BoundsError, RaceError, UndefinedRead
from tunewright.codegen.ir.ir import (
    Alloc,
    Buffer,
    Do,
    Fetch,
    For,
    Kernel,
    LoopKind,
    Roles,
    Scope,
    Stmt,
    Store,
    ThreadRole,
    replace_variables,
    rewrite,
    statements,
    written_buffers,
)
from tunewright.codegen.ir.tensor_map import TensorMap
from tunewright.codegen.verify import verify

from .kernels import BOX_COLUMNS, BOX_ROWS, F32, block, fetched, one_box


def copied(kernel, x):
    """What a kernel makes of x."""
    y = np.full(kernel.params[1].shape, np.nan, np.float32)
    run(kernel, [x, y])
    return y


def some(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (320, 64), (1, 4), (131, 100)])
def test_what_some_threads_fetch_others_read(rows, columns):
    """With zeros where a box is beyond an edge."""
    kernel, x = fetched(rows, columns), some(rows, columns)
    verify(kernel)
    y = copied(kernel, x)
    assert y.shape == (-(-rows // BOX_ROWS) * BOX_ROWS, -(-columns // BOX_COLUMNS) * BOX_COLUMNS)
    assert np.array_equal(y[:rows, :columns], x)
    assert not y[rows:].any() and not y[:, columns:].any()


TOO_EARLY = "is touched before what comes to it was waited for"
NOBODY = "threads wait for what nobody brings"


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        ("wait full", RaceError, TOO_EARLY),
        ("wait empty", RaceError, TOO_EARLY),
        ("sync", RaceError, r"thread 0 writes tile\[.*\], which thread \d+ read"),
        ("arrive", RaceError, NOBODY),
        ("expect", RaceError, NOBODY),
        ("fetch", RaceError, NOBODY),
        ("init full", UndefinedRead, r"full\[0\] is read before anything wrote it"),
        ("init empty", UndefinedRead, r"empty\[0\] is read before anything wrote it"),
    ],
)
def test_a_step_that_is_missing(step, error, message):
    kernel = fetched(300, 32, without=step)
    verify(kernel)
    with pytest.raises(error, match=message):
        copied(kernel, some(300, 32))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("arrive", r"thread 0 writes tile\[.*\], which thread .* read"),
        ("wait full", f"empty: {NOBODY}"),  # they arrive more often than a phase of it has room for
    ],
)
def test_a_step_that_some_threads_do_for_others(step, message):
    kernel = fetched(300, 32, of_half=step)
    verify(kernel)
    with pytest.raises(RaceError, match=message):
        copied(kernel, some(300, 32))


def test_a_box_of_more_dimensions_begins_outside():
    """Of one matrix of many that lie between each other, from before its first row on."""
    rows = 70
    view = TensorMap("x", F32, (2, 3, rows, 32), (32, 64, 192, 1), (1, 1, BOX_ROWS, 32))
    values = some(rows, 3, 2, 32)
    kernel = one_box(view, (const(1), const(2), const(-3), const(0)), values.size)
    verify(kernel)
    y = copied(kernel, values.reshape(-1))
    assert np.array_equal(y, np.concatenate([np.zeros((3, 32), np.float32), values[: BOX_ROWS - 3, 2, 1]]))


def test_a_box_that_never_comes():
    """Where all threads wait there are no turns to take."""
    view = TensorMap("x", F32, (64, 64), (64, 1), (32, 32))  # half of what the barrier is told
    with pytest.raises(RaceError, match=f"full: {NOBODY}"):
        copied(one_box(view, (const(0), const(0)), 64 * 64), some(64 * 64))


def two_roles(first: Stmt, second: Stmt, *buffers: Buffer, registers: tuple[int, int] = (0, 0)) -> Kernel:
    """Four warps each."""
    roles = Roles((ThreadRole(128, registers[0], first), ThreadRole(128, registers[1], second)))
    return Kernel(buffers, (), block(For("b", 1, For("t", 256, roles, LoopKind.THREAD), LoopKind.BLOCK)))


def test_each_role_has_its_own_threads():
    y = Buffer("y", (256,), F32)
    kernel = two_roles(Store("y", (Var("t"),), const(1.0)), Store("y", (Var("t"),), const(2.0)), y)
    verify(kernel)
    values = np.zeros(256, np.float32)
    run(kernel, [values])
    assert np.array_equal(values, np.repeat([1.0, 2.0], 128))


def test_roles_that_nothing_orders():
    y = Buffer("y", (128,), F32)
    kernel = two_roles(Store("y", (Var("t"),), const(1.0)), Store("y", (Var("t") - 128,), const(2.0)), y)
    verify(kernel)
    with pytest.raises(RaceError, match=r"thread \d+ writes y\[\d+\], which thread \d+ wrote"):
        run(kernel, [np.zeros(128, np.float32)])


def test_the_first_failure_of_several_is_raised():
    """As the first role waits, the second one fails, which leaves the first one without what it waits for."""
    y, own = Buffer("y", (256,), F32), Buffer("own", (1,), F32, Scope.REGISTER)
    read = Alloc(own, Store("y", (Var("t"),), Load("own", (const(0),), F32)))
    with pytest.raises(UndefinedRead, match=r"own\[0\]"):
        run(two_roles(read, Store("y", (Var("t") + 1,), const(0.0)), y), [np.zeros(256, np.float32)])
    with pytest.raises(BoundsError, match="y: index 256"):
        run(
            two_roles(Store("y", (Var("t"),), const(0.0)), block(Store("y", (Var("t") + 1,), const(0.0)), read), y),
            [np.zeros(256, np.float32)],
        )


def test_the_text_of_roles():
    """Registers change hands, unless a role has what its threads begin with."""
    y = Buffer("y", (256,), F32)
    stores = Store("y", (Var("t"),), const(1.0)), Store("y", (Var("t"),), const(2.0))
    text = emit(two_roles(*stores, y, registers=(256, 40)), "k").text
    assert "__launch_bounds__(256, 1) k_p0(float* p0)" in text
    assert "if (threadIdx.x < 128) {" in text and "else if (threadIdx.x < 256) {" in text
    assert "setmaxnreg.inc" not in text and text.count("setmaxnreg.dec.sync.aligned.u32 40;") == 1
    assert "setmaxnreg" not in emit(two_roles(*stores, y), "k").text


def test_a_launch_takes_the_maps_of_its_boxes():
    source = emit(fetched(300, 44), "k")
    [launch] = source.launches
    assert launch.maps == (TensorMap("x", F32, (300, 44), (44, 1), (64, 32)),)
    assert "k_p0(const float* p0, float* p1, const __grid_constant__ TensorMap m0)" in source.text


def test_it_compiles_for_hopper():
    try:
        text = nvrtc.ptx(emit(fetched(300, 44), "k").text, "sm_90a")
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    for words in ("cp.async.bulk.tensor.2d", "setmaxnreg.inc.sync.aligned.u32 240", "mbarrier.try_wait.parity"):
        assert words in text


def test_the_text_of_a_kernel_says_its_roles():
    text = str(fetched(64, 32))
    assert "role of 128 threads, 24 registers:" in text
    assert "tile[(k % 2), 0, 0] = fetch x as [64, 32] by [32, 1] in boxes [64, 32] at [(k * 64), (b * 32)]" in text


def test_statements_of_roles_are_among_those_of_a_kernel():
    kernel = fetched(64, 32)
    names = {part.name for part in statements(kernel.body) if isinstance(part, Do)}
    assert {"mbarrier.init.1", "mbarrier.expect.8192", "mbarrier.arrive"} <= names
    assert {"tile", "y", "phase"} <= written_buffers(kernel.body) and "x" not in written_buffers(kernel.body)


def test_what_is_rewritten_is_so_in_boxes_and_roles():
    kernel = fetched(64, 32)
    assert str(rewrite(kernel.body, lambda node: node)) == str(kernel.body)
    fetches = [part for part in statements(replace_variables(kernel.body, {"b": const(0)})) if isinstance(part, Fetch)]
    assert [part.coordinates[1] for part in fetches] == [const(0)]


def test_a_map_as_data():
    tensor_map = TensorMap("x", DType.BF16, (3, 300, 44), (44 * 300, 44, 1), (1, 64, 64))
    assert TensorMap.from_json(json.loads(json.dumps(tensor_map.to_json()))) == tensor_map
    for change in ({"extents": None}, {"dtype": "float7"}, {"box": ["x"]}):
        with pytest.raises((TypeError, ValueError)):
            TensorMap.from_json(tensor_map.to_json() | change)
    with pytest.raises(KeyError):
        TensorMap.from_json({})
