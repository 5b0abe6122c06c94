"""Specialized attention, which one warp has fetched and others multiply: what it is for, comes to, and needs."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import default_schedule, lower, sketch

from .oracle import GPU, SMALL_GPU, interpret
from .test_sketches import agree, tasks_of
from .test_tensor_cores import compiler_report, lower_default, spoilt_is_found

NAME = "specialized_attention"

NUMBERS = {"warpgroups": 1, "block_places": 64, "stages": 2, "alternating": 0}


def task_of(heads, queries, depth, keys, columns=None, *, kind="float16", mask=False):
    """Attention of matrices, with a scale, and a mask if that is wanted."""
    inputs = f"q[{heads}, {queries}, {depth}] k[{heads}, {keys}, {depth}] v[{heads}, {keys}, {columns or depth}]"
    steps = "t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) "
    steps += "s = Add(r, m) p = Softmax(s)" if mask else "p = Softmax(r)"
    text = f"{kind}: {inputs}{f' m[{queries}, {keys}]' if mask else ''} | {steps} y = MatMul(p, v) | y"
    return next(task for task in tasks_of(text, {}) if sketch(NAME).applies(task, GPU))


def right(task, kernel):
    """A kernel passes `verify` and comes to what the oracle does."""
    verify(kernel)
    inputs = example_inputs(task, 0)
    agree(task, interpret(task, kernel, inputs, interp.run), reference(task, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [
        ((2, 256, 64, 256), {}),
        ((3, 211, 64, 331), {"block_places": 128, "stages": 3}),
        ((1, 307, 128, 269), {"warpgroups": 2}),
        ((1, 300, 80, 509), {"warpgroups": 2, "alternating": 1}),
        ((2, 389, 72, 397, 112), {"warpgroups": 3, "alternating": 1, "stages": 3}),
        ((1, 270, 64, 100), {"warpgroups": 2, "block_places": 192}),
    ],
)
def test_odd_and_prime_sizes(sizes, numbers, kind):
    task = task_of(*sizes, kind=kind)
    right(task, lower_default(NAME, task, NUMBERS | numbers))


@pytest.mark.parametrize("numbers", [{}, {"warpgroups": 2, "block_places": 128, "alternating": 1}])
def test_a_mask_between_the_products(numbers):
    task = task_of(2, 250, 64, 270, mask=True)
    right(task, lower_default(NAME, task, NUMBERS | numbers))


@pytest.mark.parametrize("query_stages", [1, 2])
def test_tiles_in_turn(query_stages):
    """A block has several: queries of the next one come when those of the last one have been read."""
    task = task_of(3, 217, 64, 235)
    right(task, lower_default(NAME, task, NUMBERS | {"query_stages": query_stages}, SMALL_GPU))


def test_rows_of_which_nothing_counts():
    """A mask of the least finite numbers leaves all keys alike: the mean of the values, and no NaN."""
    task = task_of(1, 70, 64, 130, kind="bfloat16", mask=True)
    kernel = lower_default(NAME, task, NUMBERS)
    inputs = list(example_inputs(task, 0))
    place = next(n for n, tensor in enumerate(task.inputs) if tensor.shape == (70, 130))
    inputs[place] = np.full_like(inputs[place], float(np.finfo(np.float32).min) * 0.99)
    agree(task, interpret(task, kernel, inputs, interp.run), reference(task, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_drawn_schedules_of_drawn_sizes(seed):
    rng = np.random.default_rng(seed)
    heads, queries, keys = 1 + int(rng.integers(3)), int(rng.integers(200, 400)), int(rng.integers(200, 400))
    task = task_of(heads, queries, 8 * int(rng.integers(6, 17)), keys, mask=bool(rng.integers(2)))
    target = (GPU, SMALL_GPU)[seed % 2]
    space = sketch(NAME).space(task, target)
    for schedule in (space.default, *map(space.schedule, space.sample(2, rng))):
        right(task, lower(Candidate(task, target, schedule)))


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("mbarrier.wait", "."),
        ("mbarrier.arrive", "wait for what nobody brings"),
        ("wgmma.wait.1", "before what comes to it was waited for"),
        ("wgmma.fence", "was not shown to it"),
        ("barrier.arrive", "wait for what nobody brings"),
    ],
)
def test_a_step_that_is_missing(gone, message):
    task = task_of(1, 256, 64, 256)
    numbers = NUMBERS | {"warpgroups": 2, "alternating": 1}
    spoilt_is_found(task, NAME, numbers, gone, message)


def test_it_is_the_first_choice_on_hopper_alone():
    task = task_of(12, 512, 64, 512)
    assert default_schedule(task, GPU).sketch == NAME
    assert not sketch(NAME).applies(task, Target.of_gpu(KNOWN["sm_100a"]))


def test_the_code_fetches_and_multiplies():
    task = task_of(4, 512, 128, 512)
    kernel = lower(Candidate(task, GPU, sketch(NAME).space(task, GPU).default))
    try:
        text = nvrtc.ptx(source(kernel, GPU).text, GPU.cpu)
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    for words in ("cp.async.bulk.tensor.3d", "setmaxnreg.inc", "wgmma.mma_async", "ex2.approx", "barrier.cta.sync"):
        assert words in text
    assert "serialized" not in compiler_report(source(kernel, GPU).text)
