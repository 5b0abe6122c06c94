"""Specialized tiles, which one warp has fetched and others multiply: what they are for, come to, and need."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, const
from tunewright.codegen.expr.index import simplify
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.ir.ir import Fetch, Roles, statements
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Axis
from tunewright.search_space.cuda.tiles.fetch_tile import BoxSide, BoxView
from tunewright.search_space.cuda.tiles.sides import ProductOperand
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import default_schedule, lower, sketch

from .oracle import GPU, SMALL_GPU, interpret
from .test_sketches import agree, tasks_of
from .test_tensor_cores import PRODUCTS, bytes_task, compiler_report, exact, lower_default, spoilt_is_found

NAME = "specialized_tiles"


def task_of(text, sizes, target=GPU):
    return next(task for task in tasks_of(text, sizes) if sketch(NAME).applies(task, target))


def right(task, kernel):
    """A kernel passes `verify` and comes to what the oracle does."""
    verify(kernel)
    inputs = example_inputs(task, 0)
    agree(task, interpret(task, kernel, inputs, interp.run), reference(task, inputs))


ONE = {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 3, "group": 1}
TWO = {"block_rows": 128, "block_columns": 64, "warpgroups": 2, "stages": 4, "group": 1}
THREE = {"block_rows": 192, "block_columns": 128, "warpgroups": 3, "stages": 3, "group": 1}
WIDE = {"block_rows": 64, "block_columns": 192, "warpgroups": 1, "stages": 3, "group": 1}

SHAPES = (
    ("k.mn", {"a": 67, "b": 520, "c": 72}, ONE),
    ("k.mn", {"a": 5, "b": 40, "c": 8}, ONE),
    ("k.mn", {"a": 257, "b": 264, "c": 120}, THREE),
    ("k.k", {"a": 131, "b": 200, "c": 67}, TWO),
    ("k.k", {"a": 61, "b": 72, "c": 191}, WIDE),
    ("mn.mn", {"a": 136, "b": 331, "c": 72}, TWO),
    ("mn.mn", {"a": 200, "b": 37, "c": 128}, THREE),
    ("mn.k", {"a": 72, "b": 520, "c": 61}, ONE),
    ("bf16.k.mn", {"a": 131, "b": 264, "c": 72}, TWO),
)
"""Odd and prime sizes, as far as rows begin on multiples of 16 bytes."""


@pytest.mark.parametrize("staged", [0, 1])
@pytest.mark.parametrize(("lies", "sizes", "numbers"), SHAPES)
def test_products_of_matrices_that_lie_in_each_way(lies, sizes, numbers, staged):
    task = task_of(PRODUCTS[lies], sizes)
    kernel = lower_default(NAME, task, numbers | {"staged": staged})
    assert f"{lies}(" in str(kernel) and ("staged" in str(kernel)) == staged
    right(task, kernel)


@pytest.mark.parametrize("splits", [2, 4])
@pytest.mark.parametrize("staged", [0, 1])
def test_blocks_share_the_sum_of_a_tile(splits, staged):
    task = task_of(PRODUCTS["k.k"], {"a": 67, "b": 512, "c": 61})
    right(task, lower_default(NAME, task, ONE | {"splits": splits, "staged": staged}))


BATCHES = {
    "matrices": "float16: x[5, 67, 72] w[5, 72, 64] | y = MatMul(x, w) | y",
    "more of them": "float16: x[2, 3, 2, 67, 72] w[2, 3, 2, 72, 64] | y = MatMul(x, w) | y",
    "turned": "float16: x[3, 72, 64] w[3, 61, 72] | p = Transpose<perm=[0, 2, 1]>(x) q = Transpose<perm=[0, 2, 1]>(w)"
    " y = MatMul(p, q) | y",
    "a bias and a gate": "float16: x[3, 67, 72] w[3, 72, 64] z[64] | t = MatMul(x, w) u = Add(t, z) s = Sigmoid(u)"
    " y = Mul(u, s) | y ; z",
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name):
    task = task_of(BATCHES[name], {})
    right(task, lower_default(NAME, task, ONE))


def test_blocks_stay_for_several_tiles():
    """Some for one less than others."""
    task = task_of(PRODUCTS["k.k"], {"a": 509, "b": 136, "c": 127}, SMALL_GPU)
    for numbers in (ONE, TWO | {"group": 2}):
        kernel = lower_default(NAME, task, numbers, SMALL_GPU)
        [launch] = kernel.body.body
        assert launch.extent == min(SMALL_GPU.threads, 16 if numbers is ONE else 8)
        right(task, kernel)


@pytest.mark.parametrize(("left", "right_type"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("constant", [False, True])
def test_products_of_bytes_are_exact(left, right_type, constant):
    lies = "k.mn" if constant else "k.k"
    task = bytes_task(lies, left, right_type, {"a": 67, "b": 272, "c": 61}, constant)
    assert "k32.s32." in exact(NAME, task, ONE)
    assert "k32.s32." in exact(NAME, task, ONE | {"staged": 1 - sketch(NAME).space(task, GPU).default["staged"]})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_drawn_schedules_of_drawn_sizes(seed):
    rng = np.random.default_rng(seed)
    lies = list(PRODUCTS)[seed % len(PRODUCTS)]
    even = {"k.mn": "bc", "k.k": "b", "mn.mn": "ac", "mn.k": "ab", "bf16.k.mn": "bc"}[lies]
    sizes = {letter: int(rng.integers(8, 40)) * 8 if letter in even else int(rng.integers(64, 320)) for letter in "abc"}
    target = (GPU, SMALL_GPU)[int(rng.integers(2))]
    task = task_of(PRODUCTS[lies], sizes, target)
    space = sketch(NAME).space(task, target)
    for schedule in (space.default, *map(space.schedule, space.sample(2, rng))):
        right(task, lower(Candidate(task, target, schedule)))


ROW_AXES, DEPTH_AXES = (Axis("i", 64),), (Axis("k", 64),)
ROW, DEPTH, BATCH = Var("i"), Var("k"), [Var(f"b{n}") for n in range(5)]


def view(index, shape, rows=ROW_AXES, deep=DEPTH_AXES, dtype=DType.F16):
    return BoxView.of(ProductOperand(Load("x", tuple(index), dtype), rows, deep), shape)


@pytest.mark.parametrize(
    ("index", "shape", "extents", "strides"),
    [
        ((ROW, DEPTH), (64, 64), (64, 64), (64, 1)),
        ((DEPTH, ROW), (64, 64), (64, 64), (64, 1)),
        ((ROW, DEPTH), (64, 72), (64, 64), (72, 1)),
        ((BATCH[0], ROW, BATCH[1], DEPTH), (2, 64, 3, 64), (2, 3, 64, 64), (64 * 192, 64, 192, 1)),
        ((*BATCH[:3], ROW, DEPTH), (2, 3, 4, 64, 64), (2, 3, 4, 64, 64), (49152, 16384, 4096, 64, 1)),
        ((const(0), ROW, const(0), DEPTH), (1, 64, 1, 64), (64, 64), (64, 1)),
        ((const(2), ROW, DEPTH), (3, 64, 64), (3, 64, 64), (4096, 64, 1)),
    ],
)
def test_what_the_engine_can_copy(index, shape, extents, strides):
    box_view = view(index, shape)
    assert box_view is not None
    tensor_map = box_view.map(64)
    assert (tensor_map.extents, tensor_map.strides) == (extents, strides)
    assert tensor_map.box == (*[1] * (len(extents) - 2), 64, 64)


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        pytest.param((ROW, DEPTH), (64, 67), id="rows that begin unevenly"),
        pytest.param((ROW, BATCH[0], DEPTH), (64, 3, 68), id="what is outside begins unevenly"),
        pytest.param((ROW * 2, DEPTH), (128, 64), id="every other row"),
        pytest.param((ROW, DEPTH * 2), (64, 128), id="every other place of the reduction"),
        pytest.param((ROW + DEPTH, DEPTH), (128, 64), id="windows"),
        pytest.param((ROW, ROW, DEPTH), (64, 64, 64), id="a diagonal"),
        pytest.param((ROW, DEPTH, ROW * 64 + DEPTH), (64, 64, 4096), id="a diagonal of axes counted as one"),
        pytest.param((ROW, DEPTH, BATCH[0]), (64, 64, 8), id="no neighbours along either"),
        pytest.param((*BATCH[:4], ROW, DEPTH), (2, 2, 2, 2, 64, 64), id="six dimensions"),
        pytest.param((DEPTH,), (64,), id="the same for all rows"),
        pytest.param((ROW, DEPTH + 4), (64, 72), id="places that begin unevenly"),
        pytest.param((ROW, BATCH[0] * 68 + DEPTH), (64, 272), id="parts of rows that begin unevenly"),
        pytest.param((ROW, BATCH[0] * 192 + BATCH[1] * 64 + DEPTH), (64, 384), id="parts of parts of rows"),
        pytest.param((ROW - 1, DEPTH), (64, 64), id="before the first row"),
    ],
)
def test_what_the_engine_can_not_copy(index, shape):
    assert view(index, shape) is None


@pytest.mark.parametrize(
    ("index", "shape", "extents", "begin"),
    [
        ((ROW + 5, DEPTH), (80, 64), (69, 64), (5, 0)),
        ((ROW, DEPTH + 8), (64, 80), (64, 72), (0, 8)),
        ((BATCH[0] + 2, ROW + 1, DEPTH + 16), (9, 65, 80), (9, 65, 80), (2, 1, 16)),
        ((ROW, BATCH[0] * 64 + DEPTH + 128), (64, 384), (6, 64, 64), (2, 0, 0)),
        ((ROW, BATCH[0] * 72 + DEPTH + 80), (64, 360), (5, 64, 72), (1, 0, 8)),
        ((ROW, BATCH[0] // 3 + 2, DEPTH), (64, 6, 64), (6, 64, 64), (2, 0, 0)),
    ],
)
def test_what_begins_within_a_tensor_ends_within_it(index, shape, extents, begin):
    """Beyond the operand is zero, whatever the tensor has there."""
    box_view = view(index, shape)
    assert box_view is not None
    assert box_view.map(64).extents == extents
    first = box_view.place({axis.name: const(0) for axis in BATCH}, const(0), const(0))
    assert tuple(simplify(at, {}) for at in first) == tuple(map(const, begin))


def test_axes_that_lie_evenly_are_one():
    rows, deep = (Axis("i", 4), Axis("j", 16)), (Axis("k", 2), Axis("l", 32))
    index = ROW, Var("j"), DEPTH, Var("l")
    box_view = view(index, (4, 16, 2, 32), rows, deep)
    assert box_view is not None
    assert (box_view.along, box_view.depth) == (BoxSide(64, 64), BoxSide(64, 1))
    assert view((Var("j"), ROW, DEPTH, Var("l")), (16, 4, 2, 32), rows, deep) is None


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (PRODUCTS["k.mn"], {"a": 128, "b": 264, "c": 67}),
        (PRODUCTS["mn.k"], {"a": 67, "b": 264, "c": 128}),
        (PRODUCTS["k.mn"].removeprefix("float16: "), {"a": 128, "b": 256, "c": 128}),
        ("float16: x[1, 64, 9, 9] w[72, 64, 3, 3] | y = Conv<pads=[1, 1, 1, 1]>(x, w) | y ; w", {}),
    ],
)
def test_what_it_is_not_for(text, sizes):
    """Other sketches are."""
    tasks = tasks_of(text, sizes)
    assert not any(sketch(NAME).applies(task, GPU) for task in tasks)
    assert any(sketch("warp_tiles").applies(task, GPU) for task in tasks)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
def test_it_is_for_one_architecture(arch):
    task = task_of(PRODUCTS["k.mn"], {"a": 128, "b": 256, "c": 128})
    assert default_schedule(task, GPU).sketch == NAME
    assert not sketch(NAME).applies(task, Target.of_gpu(KNOWN[arch]))


def test_the_code_fetches_boxes_and_multiplies_in_groups():
    task = task_of(PRODUCTS["k.mn"], {"a": 256, "b": 512, "c": 256})
    kernel = lower_default(NAME, task, TWO)
    parts = list(statements(kernel.body))
    assert len({part.map for part in parts if isinstance(part, Fetch)}) == 2
    assert [[role.threads for role in part.roles] for part in parts if isinstance(part, Roles)] == [[256, 128]]
    try:
        text = nvrtc.ptx(source(kernel, GPU).text, GPU.cpu)
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    for words in (
        "cp.async.bulk.tensor.2d.shared::cluster.global",
        "setmaxnreg.inc.sync.aligned.u32 240",
        "setmaxnreg.dec.sync.aligned.u32 24",
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
        "mbarrier.try_wait.parity",
    ):
        assert words in text
    assert "ld.local" not in text and "st.local" not in text


@pytest.mark.parametrize("lies", ["k.mn", "mn.k"])
def test_products_go_on_while_warps_do(lies):
    """The compiler would say where it has them done one after the other."""
    task = task_of(PRODUCTS[lies], {"a": 256, "b": 512, "c": 256})
    space = sketch(NAME).space(task, GPU)
    for schedule in (space.default, *map(space.schedule, space.sample(3, np.random.default_rng(0)))):
        text = source(lower(Candidate(task, GPU, schedule)), GPU).text
        assert "serialized" not in compiler_report(text), schedule


@pytest.fixture(scope="module")
def task():
    """A product of more rounds than there are stages, and of several tiles."""
    return task_of(PRODUCTS["k.mn"], {"a": 128, "b": 64 * 6, "c": 128})


NOBODY = "threads wait for what nobody brings"


@pytest.mark.parametrize(
    ("gone", "tensor", "error"),
    [
        ("mbarrier.wait", "tiles_full", "is read before anything wrote it"),
        ("mbarrier.wait", "tiles_empty", "is touched before what comes to it was waited for"),
        ("mbarrier.init.1", "", "is read before anything wrote it"),
        ("mbarrier.expect.24576", "", NOBODY),
        ("mbarrier.arrive", "", NOBODY),
        ("wgmma.fence", "", "was not shown to it"),
        ("wgmma.commit", "", "is written before the product that reads it was waited for"),
        ("wgmma.wait.1", "", "is written before the product that reads it was waited for"),
        ("wgmma.wait.0", "", "is touched before what comes to it was waited for"),
        ("warp.sync", "", r"thread \d+ reads staged\[.*\], which thread \d+ wrote"),
    ],
)
def test_a_step_that_is_missing(task, gone, tensor, error):
    spoilt_is_found(task, NAME, TWO | {"staged": 1, "stages": 3}, gone, error, tensor)
