"""Causal attention: keys that no query of a tile sees are not read, and no bit of the result is another for it."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import build, source
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.ir.access import RaceError, UndefinedRead
from tunewright.codegen.ir.ir import Barrier, Block, Kernel
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.patterns.attention import Attention, match_attention
from tunewright.search_space.sketches import default_schedule, lower, point_of, sketch

from .causal_models import CausalSizes, causal_task
from .oracle import GPU, SMALL_GPU, interpret
from .test_sketches import agree, tasks_of
from .test_tensor_cores import compiler_report, lower_default, without

SKETCHES = ("attention_tiles", "specialized_attention")

SIZES = [
    CausalSizes(2, 2, 200, 0, 64),
    CausalSizes(2, 1, 150, 0, 32),
    CausalSizes(1, 1, 333, 0, 64),
    CausalSizes(2, 1, 70, 301, 64),
    CausalSizes(6, 2, 37, 0, 16),
    CausalSizes(6, 2, 7, 700, 16),  # a few queries whose keys blocks share
]


def run(task, kernel, inputs):
    verify(kernel)
    [result] = interpret(task, kernel, inputs, interp.run)
    return result.reshape(task.outputs[0].shape)


def both(task, schedule, target, inputs, monkeypatch):
    """The results of a schedule, and those of the same where all keys are read."""
    candidate = Candidate(task, target, schedule)
    kernel = lower(candidate)
    with monkeypatch.context() as patch:
        patch.setattr(Attention, "past", None)
        whole = lower(candidate)
    assert str(whole) != str(kernel)
    return run(task, kernel, inputs), run(task, whole, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", SKETCHES)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_no_bit_is_another(name, sizes, monkeypatch):
    task = causal_task(sizes, GPU, "bfloat16" if sizes.past else "float16")
    inputs = example_inputs(task, 0)
    target = SMALL_GPU if sizes.groups > 1 else GPU  # on which blocks stay for several tiles
    space = sketch(name).space(task, target)
    for schedule in (space.default, *map(space.schedule, space.sample(1, np.random.default_rng(0)))):
        result, whole = both(task, schedule, target, inputs, monkeypatch)
        np.testing.assert_array_equal(result.view(np.uint16), whole.view(np.uint16))
        agree(task, [result], reference(task, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_drawn_schedules_of_drawn_sizes(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    groups, each = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    queries, past = int(rng.integers(2, 200)), int(rng.integers(2) * rng.integers(1, 200))
    task = causal_task(CausalSizes(groups * each, groups, queries, past, 8 * int(rng.integers(1, 9))), GPU)
    inputs = example_inputs(task, seed)
    for name in SKETCHES:
        if sketch(name).applies(task, GPU):
            space = sketch(name).space(task, GPU)
            for schedule in map(space.schedule, space.sample(1, rng)):
                result, whole = both(task, schedule, GPU, inputs, monkeypatch)
                np.testing.assert_array_equal(result.view(np.uint16), whole.view(np.uint16))
                agree(task, [result], reference(task, inputs))


NUMBERS = {
    "attention_tiles": {"warps": 2, "block_places": 32, "stages": 3},
    "specialized_attention": {"warpgroups": 1, "block_places": 64, "stages": 2, "query_stages": 1, "alternating": 0},
}
"""Tiles of 32 and of 64 rows."""


@pytest.mark.parametrize("name", SKETCHES)
def test_what_nobody_sees_is_not_read(name):
    """Keys and values behind those of a tile may be anything."""
    task = causal_task(CausalSizes(2, 2, 192, 0, 64), GPU)
    kernel = lower_default(name, task, NUMBERS[name])
    inputs = example_inputs(task, 0)
    [right] = reference(task, inputs)
    for array in inputs[1:]:
        array[:, 64:] = np.nan
    result = run(task, kernel, inputs).astype(float)
    assert np.isnan(result[:, 64:]).all()
    np.testing.assert_allclose(result[:, :64], right[:, :64].astype(float), atol=2e-3 * np.abs(right).max())


@pytest.mark.parametrize("name", SKETCHES)
def test_tiles_of_several_heads(name):
    """A tile with the last query of one head and the first one of the next sees all keys."""
    task = causal_task(CausalSizes(3, 1, 40, 90, 16), GPU)
    inputs = example_inputs(task, 0)
    space = sketch(name).space(task, GPU)
    for schedule in map(space.schedule, space.sample(2, np.random.default_rng(1))):
        agree(task, [run(task, lower(Candidate(task, GPU, schedule)), inputs)], reference(task, inputs))


@pytest.mark.parametrize(
    ("name", "gone", "error"),
    [
        ("attention_tiles", Barrier, "reads|writes"),
        ("attention_tiles", "cp.async.wait.1", "before what comes to it was waited for"),
        ("specialized_attention", "mbarrier.wait", "."),
        ("specialized_attention", "mbarrier.arrive", "wait for what nobody brings"),
        ("specialized_attention", "wgmma.wait.1", "before what comes to it was waited for"),
    ],
)
def test_what_is_left_out_is_found(name, gone, error):
    task = causal_task(CausalSizes(2, 2, 300, 0, 64), GPU)
    kernel = lower_default(name, task, NUMBERS[name])
    inputs, output = example_inputs(task, 0), np.zeros(task.outputs[0].shape, np.float16)
    body = without(kernel.body, gone)
    assert isinstance(body, Block) and body != kernel.body
    with pytest.raises((RaceError, UndefinedRead), match=error):
        interp.run(Kernel(kernel.params, kernel.scratch, body), [*inputs, output])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "sizes",
    [CausalSizes(12, 12, 512, 0, 64), CausalSizes(32, 8, 1000, 1001, 128)],
    ids=lambda sizes: "x".join(map(str, sizes)),
)
def test_it_compiles(arch, sizes):
    """Nothing is written out for want of registers, and products go on while there is softmax to do."""
    target = Target.of_gpu(KNOWN[arch])
    task = causal_task(sizes, target)
    for name in SKETCHES:
        if not sketch(name).applies(task, target):
            continue
        space = sketch(name).space(task, target)
        for schedule in (space.default, *map(space.schedule, space.sample(1, np.random.default_rng(0)))):
            kernel = lower(Candidate(task, target, schedule))
            try:
                artifact = build(kernel, target)
            except nvrtc.NoCompiler as missing:
                pytest.skip(str(missing))
            assert all(usage.stack_bytes == usage.spill_store_bytes == 0 for usage in artifact.usage.values())
            assert arch != "sm_90a" or "serialized" not in compiler_report(source(kernel, target).text)


def test_it_is_known_where_no_mask_is():
    task = causal_task(CausalSizes(4, 2, 70, 30, 64), GPU)
    attention = match_attention(task)
    assert attention is not None and attention.past == 30
    assert default_schedule(task, GPU).sketch == "specialized_attention"
    for name in SKETCHES:
        candidate = Candidate(task, GPU, sketch(name).space(task, GPU).default)
        assert "Keys that come after all queries" in " ".join(sketch(name).describe(point_of(candidate)))
    inputs = "q[2, 70, 64] k[2, 70, 64] v[2, 70, 64] m[70, 70]"
    nodes = "t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) s = Add(r, m) p = Softmax(s) y = MatMul(p, v)"
    for constants in ("", "m"):
        tasks = tasks_of(f"float16: {inputs} | {nodes} | y ; {constants}", {})
        [masked] = [task for task in tasks if sketch("attention_tiles").applies(task, GPU)]
        attention = match_attention(masked)
        assert attention is not None and attention.past is None
