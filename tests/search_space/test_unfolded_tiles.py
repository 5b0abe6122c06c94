"""Unfolded tiles, of what windows read as a matrix: what they are for, come to, and how rows are laid out."""

from __future__ import annotations

import pytest

from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.ir.ir import For, LoopKind
from tunewright.codegen.target import Target
from tunewright.search_space.cuda.tiles.block_tile import match_tensor_product
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.patterns import unfolding
from tunewright.search_space.patterns.unfolding import unfold
from tunewright.search_space.sketches import default_schedule, lower, sketch, spaces

from .oracle import GPU
from .test_sketches import gpu_schedules_agree, tasks_of

NAME = "unfolded_tiles"

FIRST = (
    "float16: x[{d}, 3, {a}, {b}] w[{c}, 3, 7, 7] z[{c}] | t = Conv<pads=[3, 3, 3, 3], strides=[2, 2]>(x, w, z)"
    " y = Relu(t) | y ; w z"
)

CONVOLUTIONS = {
    "first": (FIRST, {"a": 23, "b": 19, "c": 64, "d": 2}),
    "one image": (FIRST, {"a": 31, "b": 17, "c": 72, "d": 1}),
    "channels last": (
        "float16: x[2, {a}, {b}, 5] w[{c}, 5, 3, 3] | t = Transpose<perm=[0, 3, 1, 2]>(x) y = Conv(t, w) | y ; w",
        {"a": 13, "b": 11, "c": 24},
    ),
    "no padding": ("float16: x[1, 7, 13, 17] w[40, 7, 2, 3] | y = Conv<strides=[1, 2]>(x, w) | y ; w", {}),
    "dilated": (
        "float16: x[1, 3, 17, 19] w[16, 3, 5, 3] | y = Conv<pads=[2, 2, 2, 2], dilations=[2, 3]>(x, w) | y ; w",
        {},
    ),
    "one dimension": ("float16: x[2, 5, 61] w[32, 5, 7] | y = Conv<pads=[3, 3], strides=[3]>(x, w) | y ; w", {}),
    "residual": (
        "float16: x[1, 8, 13, 11] w[24, 8, 3, 3] r[1, 24, 6, 5] | t = Conv<strides=[2, 2]>(x, w) y = Add(t, r) | y ; w",
        {},
    ),
    "many channels": (
        "float16: x[1, 64, 13, 11] w[64, 64, 3, 3] | y = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w) | y ; w",
        {},
    ),
}


def task_of(text, sizes, target=GPU):
    return next(task for task in tasks_of(text, sizes) if sketch(NAME).applies(task, target))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_right(name):
    gpu_schedules_agree(task_of(*CONVOLUTIONS[name]), NAME, 1)


@pytest.mark.parametrize("images", [1, 16])
def test_it_is_the_first_choice_where_channels_are_few(images):
    task = task_of(FIRST, {"a": 224, "b": 224, "c": 64, "d": images})
    assert default_schedule(task, GPU).sketch == NAME
    assert [space.sketch for space in spaces(task_of(*CONVOLUTIONS["many channels"]), GPU)][-1] == NAME


def test_rows_are_laid_out_by_blocks_at_one_place():
    """Nothing but what windows read is written beside the result, 16 bytes by each thread."""
    task = task_of(FIRST, {"a": 224, "b": 224, "c": 64, "d": 1})
    kernel = lower(Candidate(task, GPU, default_schedule(task, GPU)))
    assert [(buffer.name, buffer.shape) for buffer in kernel.scratch] == [("patches", (112, 112, 152))]
    rows, product = kernel.body.body
    assert isinstance(rows, For) and isinstance(product, For)
    assert (rows.kind, rows.extent) == (LoopKind.BLOCK, 112 * 112 // 128 * 152 // 8)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x[1, 3, 16, 16] w[16, 3, 3, 3] | y = Conv(x, w) | y ; w", id="float32"),
        pytest.param("float16: x[64, 64] w[64, 64] | y = MatMul(x, w) | y ; w", id="no windows"),
        pytest.param("float16: x[1, 6, 16, 16] w[16, 3, 3, 3] | y = Conv<group=2>(x, w) | y ; w", id="groups"),
        pytest.param("float16: x[1, 3, 16, 16] w[17, 3, 3, 3] | y = Conv(x, w) | y ; w", id="weights in uneven rows"),
        pytest.param(
            "float16: x[1, 16, 16, 64] w[64, 64, 3, 3] | t = Transpose<perm=[0, 3, 1, 2]>(x)"
            " u = Conv<pads=[1, 1, 1, 1]>(t, w) y = Transpose<perm=[0, 2, 3, 1]>(u) | y ; w",
            id="patches that can be fetched",
        ),
    ],
)
def test_what_it_is_not_for(text):
    assert not any(sketch(NAME).applies(task, GPU) for task in tasks_of(text, {}))


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_it_is_for_one_architecture(arch):
    task = task_of(*CONVOLUTIONS["first"])
    assert not sketch(NAME).applies(task, Target.of_gpu(KNOWN[arch]))


def test_memory_for_rows_is_limited(monkeypatch):
    task = task_of(*CONVOLUTIONS["first"])
    product = match_tensor_product(task)
    assert product is not None and unfold(task, product) is not None
    unfold.cache_clear()
    monkeypatch.setattr(unfolding, "MOST_BYTES", 2 * 12 * 10 * 152 * 2 - 1)
    assert unfold(task, product) is None
    unfold.cache_clear()
