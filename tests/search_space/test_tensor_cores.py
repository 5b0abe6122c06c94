"""Tiles for tensor cores: how they lie in shared memory, what their code is made of, and attention by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.dtype import DType
from tunewright.codegen.interp import BoundsError, RaceError
from tunewright.codegen.ir import Alloc, Barrier, Block, Do, For, If, Kernel, Stmt, Swizzle
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.grids import shared_tile
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, lower, sketch

from .oracle import GPU
from .test_sketches import MODELS, tasks_of


@pytest.mark.parametrize("columns", [16, 32, 64, 128, 256])
def test_rows_that_are_read_together_lie_in_different_banks(columns):
    swizzle = shared_tile._swizzle(columns, DType.F16)
    row, chunk = np.meshgrid(np.arange(64), np.arange(columns // 8), indexing="ij")
    place = swizzle.place(row * columns + chunk * 8)
    assert sorted(place.reshape(-1)) == list(range(0, 64 * columns, 8))  # each its own
    groups = place.reshape(8, 8, -1) * 2 // 16 % 8
    assert all(len(set(groups[n, :, c])) == 8 for n in range(8) for c in range(columns // 8))


@pytest.fixture(scope="module")
def task():
    return tasks_of(MODELS["half_even"], {"a": 4, "b": 1, "c": 1, "d": 8})[0]


def test_the_code_copies_while_it_multiplies(task):
    schedule = default_schedule(task, GPU)
    try:
        text = nvrtc.ptx(source(lower(Candidate(task, GPU, schedule)), GPU).text, GPU.cpu)
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    for words in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4", "cp.async.cg.shared.global"):
        assert words in text
    assert "ld.local" not in text and "st.local" not in text


def without(stmt: Stmt, gone: type | str) -> Stmt:
    """A statement without barriers, or without the instructions of a name."""
    match stmt:
        case Block(body):
            kept = (part for part in body if not (isinstance(part, Barrier) and gone is Barrier))
            kept = (part for part in kept if not (isinstance(part, Do) and part.name == gone))
            return Block(tuple(without(part, gone) for part in kept))
        case For(body=body) | Alloc(body=body):
            return replace(stmt, body=without(body, gone))
        case If(then=then):
            return replace(stmt, then=without(then, gone))
    return stmt


@pytest.fixture(scope="module")
def attended():
    sizes = {"a": 20, "b": 16, "c": 70, "d": 1}
    return next(t for t in tasks_of(MODELS["half_attended"], sizes) if sketch("attention_tiles").applies(t, GPU))


THREE_STAGES = {
    "warp_tiles": {"stages": 3, "block_depth": 16},
    "warpgroup_tiles": {"stages": 4},
    "attention_tiles": {"warps": 2, "block_places": 16, "stages": 3},
}


@pytest.mark.parametrize("gone", [Barrier, "cp.async.wait.1"])
@pytest.mark.parametrize("name", THREE_STAGES)
def test_what_is_left_out_is_found(task, attended, long_task, name, gone):
    task = {"warp_tiles": task, "warpgroup_tiles": long_task, "attention_tiles": attended}[name]
    spoilt_is_found(task, name, THREE_STAGES[name], gone)


def spoilt_is_found(task, name, numbers, gone):
    """A schedule is right, and no more so without some of it, which is noticed."""
    values = dict(sketch(name).space(task, GPU).default.values) | numbers
    kernel = lower(Candidate(task, GPU, Schedule(name, 1, tuple(values.items()))))
    inputs = example_inputs(task, 0)
    [right] = reference(task, inputs)
    found = np.zeros_like(right)
    interp.run(kernel, [*inputs, found])
    np.testing.assert_allclose(found.astype(float), right.astype(float), atol=2e-3 * np.abs(right).max())
    body = without(kernel.body, gone)
    assert isinstance(body, Block)
    spoilt = Kernel(kernel.params, kernel.scratch, body)
    with pytest.raises(RaceError):
        interp.run(spoilt, [*inputs, found])


@pytest.fixture(scope="module")
def long_task():
    """Of four rounds and more."""
    return tasks_of(MODELS["half_even"], {"a": 40, "b": 1, "c": 1, "d": 40})[0]


@pytest.mark.parametrize("gone", ["fence.proxy.async", "wgmma.fence", "wgmma.commit", "wgmma.wait.1", "wgmma.wait.0"])
def test_what_products_that_go_on_need_is_missed(long_task, gone):
    spoilt_is_found(long_task, "warpgroup_tiles", {"stages": 3}, gone)


def test_a_matrix_that_lies_otherwise_is_found(long_task, monkeypatch):
    monkeypatch.setattr(shared_tile, "_swizzle", lambda columns, dtype: Swizzle(2, 3, 3))
    kernel = lower(Candidate(long_task, GPU, sketch("warpgroup_tiles").space(long_task, GPU).default))
    inputs = example_inputs(long_task, 0)
    with pytest.raises(BoundsError, match="is not where the matrix has it"):
        interp.run(kernel, [*inputs, np.zeros_like(reference(long_task, inputs)[0])])


@pytest.mark.parametrize("name", ["half_even", "half_turned"])
def test_products_go_on_while_warps_do(name):
    """The compiler says where it has them done one after the other."""
    [task] = tasks_of(MODELS[name], {"a": 40, "b": 1, "c": 1, "d": 40})
    for values in sketch("warpgroup_tiles").space(task, GPU).sample(2, np.random.default_rng(3)):
        schedule = sketch("warpgroup_tiles").space(task, GPU).schedule(values)
        try:
            program = nvrtc._Program(source(lower(Candidate(task, GPU, schedule)), GPU).text, GPU.cpu)
        except nvrtc.NoCompiler as error:
            pytest.skip(str(error))
        assert "serialized" not in program.log, schedule


def test_places_that_a_mask_leaves_out_weigh_nothing(attended):
    """Also where all places of the first rounds are left out, and nothing else is known of a row yet."""
    queries, keys, mask, values = example_inputs(attended, 0)
    mask[:7, :40] = -np.inf
    mask[7:, 50:] = -np.inf
    inputs = [queries, keys, mask, values]
    [right] = reference(attended, inputs)
    assert np.isfinite(right).all()
    numbers = ("warps", 2), ("block_places", 16), ("stages", 2)
    kernel = lower(Candidate(attended, GPU, Schedule("attention_tiles", 1, numbers)))
    found = np.zeros_like(right)
    interp.run(kernel, [*inputs, found])
    np.testing.assert_allclose(found.astype(float), right.astype(float), atol=2e-3 * np.abs(right).max())


@pytest.mark.parametrize(
    "other",
    [
        "p = Softmax<axis = 1>(s)",  # of columns
        "p = LogSoftmax(s)",
        "e = Softmax(s) p = Mul(e, s)",  # the scores are needed again
    ],
)
def test_what_is_no_attention(other):
    sizes = {"a": 20, "b": 16, "c": 20, "d": 1}
    found = tasks_of(MODELS["half_attended"].replace("p = Softmax(s)", other), sizes)
    assert not any(sketch("attention_tiles").applies(task, GPU) for task in found)
