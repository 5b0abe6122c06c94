"""Shared folds, of which each result is by many threads: what they are for, come to, and cost."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.ir.ir import For
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import default_schedule, lower, sketch, spaces

from .oracle import GPU, SMALL_GPU, interpret
from .test_sketches import agree, tasks_of

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
    rng, inputs = np.random.default_rng(0), example_inputs(task, 0)
    expected = reference(task, inputs)
    for target in (GPU, SMALL_GPU):
        space = sketch(NAME).space(task, target)
        for schedule in (space.default, *map(space.schedule, space.sample(3, rng))):
            kernel = lower(Candidate(task, target, schedule))
            verify(kernel)
            agree(task, interpret(task, kernel, inputs, interp.run), expected)


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
