"""Shared folds, of which each result is by many threads: what they are for, come to, and cost."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import build, source
from tunewright.codegen.ir.ir import For
from tunewright.graph.oracle import example_inputs
from tunewright.graph.task import Task, Tensor
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.patterns.block_matmul import BlockMatMul, match_block_matmul
from tunewright.search_space.sketches import default_schedule, lower, sketch, spaces

from .drawing import few_bits_text
from .oracle import GPU, interpret
from .test_sketches import gpu_schedules_agree, tasks_of

NAME = "shared_folds"

FOLDS = {
    "columns": "float16: x[{a}, {b}] w[{b}, {c}] z[{c}] r[{a}, {c}] | t = MatMul(x, w) u = Add(t, z) v = Relu(u)"
    " y = Add(v, r) | y ; w z",
    "depth": "float16: x[{a}, {b}] w[{c}, {b}] z[{c}] | t = Gemm<transB=1>(x, w, z) y = Relu(t) | y",
    "batch": "x[3, {a}, {b}] w[3, {b}, {c}] | t = MatMul(x, w) y = Relu(t) | y",
    "vector": "x[{c}, {b}] w[{b}] | y = MatMul(x, w) | y",
    "sum": "float16: x[{a}, {b}, {c}] | y = ReduceMean<keepdims=0>(x, axes) | y ; axes",
    "maximum": "x[{a}, {b}, {c}] | y = ReduceMax<keepdims=0>(x, axes) | y ; axes",
}

SIZES = (
    {"a": 1, "b": 67, "c": 72},
    {"a": 3, "b": 131, "c": 61},
    {"a": 8, "b": 40, "c": 24},
    {"a": 7, "b": 256, "c": 40},
    {"a": 2, "b": 331, "c": 8},
)
"""Odd and prime sizes."""


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes.values())))
@pytest.mark.parametrize("text", FOLDS)
def test_folds_are_right(text, sizes):
    [task] = tasks_of(FOLDS[text], sizes)
    gpu_schedules_agree(task, NAME, 3)


FEW_BITS = (
    (1, 33, 5, 32),
    (3, 48, 7, 16),
    (8, 64, 6, 16),
    (5, 18, 3, 48),
    (2, 130, 3, 128),
    (4, 24, 2, 256),
    (1, 20, 11, 8),
    (7, 22, 8, 8),
)
"""Rows, columns, blocks and numbers of a block: parts of blocks, one and several blocks are read at once."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "float16: ", "bfloat16: "], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("bits", "has_zeros"), [(4, False), (4, True), (8, True)])
@pytest.mark.parametrize("sizes", FEW_BITS, ids=lambda sizes: "x".join(map(str, sizes)))
def test_weights_of_few_bits_are_multiplied_as_they_are(sizes, bits, has_zeros, kind):
    then = "p = Add(t, z) y = Relu(p)"
    [task] = tasks_of(kind + few_bits_text(*sizes, bits=bits, has_zeros=has_zeros, then=then), {})
    assert task.op == "BlockMatMul+Add+Relu"
    gpu_schedules_agree(task, NAME, 2)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
@pytest.mark.parametrize("blocks", [4, 6])
def test_activations_may_lie_otherwise(blocks, order):
    """Such as heads that come of attention."""
    [task] = tasks_of(few_bits_text(4, 32, blocks, 16, order=order), {})
    gpu_schedules_agree(task, NAME, 2, [GPU])


def block_product(task: Task) -> BlockMatMul:
    product = match_block_matmul(task)
    assert product is not None
    return product


@pytest.mark.parametrize(("bits", "extent"), [(4, 8), (4, 16), (4, 32), (4, 64), (8, 8), (8, 32)])
def test_numbers_of_few_bits_are_unpacked_exactly(bits, extent):
    """Each of them, less its zero point, is what a row of a one and zeros comes to."""
    blocks, columns = max(64 // extent, 2), 64
    depth = blocks * extent
    text = few_bits_text(8, columns, blocks, extent, bits=bits, has_zeros=True, then="y = Identity(t)")
    [task] = tasks_of(text, {})
    product = block_product(task)
    assert isinstance(product.zeros, Tensor)
    space, rng = sketch(NAME).space(task, GPU), np.random.default_rng(0)
    numbers = rng.integers(0, 1 << bits, (columns, blocks, extent), np.uint8)
    zeros, scales = rng.integers(0, 1 << bits, (columns, blocks), np.uint8), np.ones((columns, blocks), np.float32)
    values = {product.numbers.name: numbers, product.zeros.name: zeros}
    wanted = (numbers.astype(np.float32) - zeros[..., None]).reshape(columns, depth).T
    kernels = [lower(Candidate(task, GPU, one)) for one in (space.default, space.schedule(space.sample(1, rng)[0]))]
    for first in range(0, depth, 8):
        x = np.eye(depth, dtype=np.float32)[first : first + 8].reshape(8, blocks, extent)
        own = {product.x.name: x, product.scales.name: scales.astype(product.scales.dtype.numpy)}
        inputs = [(values | own)[tensor.name] for tensor in task.inputs]
        for kernel in kernels:
            [found] = interpret(task, kernel, inputs, interp.run)
            np.testing.assert_array_equal(found.reshape(8, columns), wanted[first : first + 8])


def test_what_a_block_comes_to_may_be_larger_than_any_number():
    """Once it is multiplied by its scale it is one."""
    [task] = tasks_of(few_bits_text(1, 64, 2, 32, then="y = Identity(t)"), {})
    product, inputs = block_product(task), example_inputs(task, 0)
    values = dict(zip((tensor.name for tensor in task.inputs), inputs, strict=True))
    values[product.x.name][...] = 1e37
    values[product.numbers.name][...] = 15
    values[product.scales.name][...] = 2.0**-10
    [found] = interpret(task, lower(Candidate(task, GPU, default_schedule(task, GPU))), inputs, interp.run)
    np.testing.assert_allclose(found.reshape(-1), np.full(64, 64 * 7 * 1e37 / 1024), rtol=1e-6)


def test_what_no_number_is_stays_so():
    """An infinite activation is one, or none where it meets a weight of 0."""
    [task] = tasks_of(few_bits_text(2, 64, 4, 32, then="y = Identity(t)"), {})
    product, inputs = block_product(task), example_inputs(task, 0)
    values = dict(zip((tensor.name for tensor in task.inputs), inputs, strict=True))
    values[product.x.name][1, 2, 5] = np.inf
    assert product.zeros == 8
    weights = values[product.numbers.name][:, 2, 5].astype(np.float32) - 8
    kernel = lower(Candidate(task, GPU, default_schedule(task, GPU)))
    [found] = interpret(task, kernel, inputs, interp.run)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found[1], np.inf * weights * values[product.scales.name][:, 2].astype(np.float32))
    assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("rows", [1, 8])
def test_words_of_weights_are_read_at_once(rows):
    """16 bytes by each access, once for all rows, and nothing is written out."""
    [task] = tasks_of("float16: " + few_bits_text(rows, 4096, 128, 32), {})
    schedule = default_schedule(task, GPU)
    assert schedule.sketch == NAME and schedule["rows"] == rows
    kernel = lower(Candidate(task, GPU, schedule))
    try:
        artifact, ptx = build(kernel, GPU), nvrtc.ptx(source(kernel, GPU).text, GPU.cpu)
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    assert all(usage.stack_bytes == usage.spill_store_bytes == 0 for usage in artifact.usage.values())
    accesses, words = schedule["unroll"] * schedule["vector"], 4
    assert ptx.count("ld.global.v4.u32") == accesses + schedule["unroll"] * words * rows
    assert "cvt.rn.f32" not in ptx, "numbers become floats without a conversion"


DENSE = "float16: x[{a}, 2048] w[2048, 1000] z[1000] | t = MatMul(x, w) y = Add(t, z) | y ; w z"


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_the_default_keeps_all_multiprocessors_reading(rows):
    [task] = tasks_of(DENSE, {"a": rows})
    schedule = default_schedule(task, GPU)
    assert schedule.sketch == NAME and (schedule["vector"], schedule["unroll"], schedule["rows"]) == (8, 4, rows)
    main, added = lower(Candidate(task, GPU, schedule)).body.body
    assert isinstance(main, For) and isinstance(added, For)
    assert main.extent >= 1.75 * GPU.threads and added.extent < main.extent


@pytest.mark.parametrize("text", ["columns", "depth"])
def test_what_is_read_serves_all_rows(text):
    """One wide access of the panel for each copy of the body, however many rows there are."""
    [task] = tasks_of(FOLDS[text], {"a": 4, "b": 1024, "c": 4096})
    kernel = lower(Candidate(task, GPU, default_schedule(task, GPU)))
    try:
        ptx = nvrtc.ptx(source(kernel, GPU).text, GPU.cpu)
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    copies, rows = 4, 4
    others = copies * rows if text == "depth" else 0
    assert copies <= ptx.count("ld.global.v4.u32") - others <= copies + rows
    assert "ld.local" not in ptx and "st.local" not in ptx


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x[9, 64] w[64, 72] | y = MatMul(x, w) | y ; w", id="many rows"),
        pytest.param("x[4, 31] w[31, 72] | y = MatMul(x, w) | y ; w", id="a short sum"),
        pytest.param("x[1, 16, 40, 40] w[16, 1, 7, 7] | y = Conv<group=16>(x, w) | y ; w", id="windows"),
        pytest.param("int8: x[4, 64] w[64, 72] | t = MatMulInteger(x, w) {steps} | y ; w", id="bytes"),
    ],
)
def test_what_it_is_not_for(text):
    assert not any(sketch(NAME).applies(task, GPU) for task in tasks_of(text, {}))


def test_rows_that_are_folded_and_no_more():
    """Nothing else has more than a thread for each."""
    [task] = tasks_of("x[64, 768] | y = ReduceMean<keepdims=0>(x, axes) | y ; axes", {})
    assert [space.sketch for space in spaces(task, GPU)] == [NAME]
