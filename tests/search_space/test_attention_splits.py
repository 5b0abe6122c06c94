"""Attention whose keys are shared by blocks: right whoever has which keys, and the default where there would be few."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import interp
from tunewright.codegen.ir.access import RaceError, UndefinedRead
from tunewright.codegen.ir.ir import Barrier, Block, Kernel
from tunewright.codegen.target import CUDA
from tunewright.codegen.verify import verify
from tunewright.costmodel.base import base
from tunewright.costmodel.xgb import XGBModel
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.cuda.attention_tiles import LEAST_KEYS
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, lower, sketch, spaces
from tunewright.tuner.lookup.predictor import pick_by
from tunewright.tuner.models.model import open_for

from .oracle import GPU, SMALL_GPU, interpret
from .test_gpu_patterns import model_of
from .test_sketches import agree, tasks_of
from .test_tensor_cores import lower_default, without

NAME = "attention_tiles"

NUMBERS = {"warps": 1, "block_places": 32, "stages": 2}


def task_of(heads, queries, keys, depth, columns=None, *, kind="float16", steps="p = Softmax(r)", mask=""):
    """Attention of matrices, with steps from the scores r to the weights p, and a mask of some shape for them."""
    inputs = f"q[{heads}, {queries}, {depth}] k[{heads}, {keys}, {depth}] v[{heads}, {keys}, {columns or depth}]"
    nodes = f"t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) {steps} y = MatMul(p, v)"
    tasks = tasks_of(f"{kind}: {inputs}{f' m{mask}' if mask else ''} | {nodes} | y", {})
    return next(task for task in tasks if sketch(NAME).applies(task, GPU))


MASKED = "s = Add(r, m) p = Softmax(s)"


def run(task, kernel, inputs):
    """What a kernel comes to, in numbers of float64."""
    verify(kernel)
    [result] = interpret(task, kernel, inputs, interp.run)
    return result.reshape(task.outputs[0].shape).astype(np.float64)


def test_a_schedule_from_before_keys_were_shared_is_one_without_sharing():
    task = task_of(8, 4, 600, 64)
    space, old = sketch(NAME).space(task, GPU), Schedule(NAME, 1, tuple(NUMBERS.items()))
    same = Schedule(NAME, 1, (*NUMBERS.items(), ("splits", 1)))
    assert (space.row(old) == space.row(same)).all()
    kernels = [lower(Candidate(task, GPU, schedule)) for schedule in (old, same)]
    assert str(kernels[0]) == str(kernels[1])
    with pytest.raises(Illegal, match="those of the space warps, block_places, stages, splits"):
        space.row(Schedule(NAME, 1, tuple(NUMBERS.items())[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("splits", [2, 4, 8, 16, 32])
@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((2, 1, 2049, 16), "float16"),
        ((3, 4, 2063, 24), "bfloat16"),
        ((2, 17, 2101, 8, 40), "float16"),
        ((1, 61, 2048, 16), "float16"),
    ],
)
def test_any_number_of_keys_and_queries(sizes, kind, splits):
    task = task_of(*sizes, kind=kind)
    numbers = {"block_places": 32, "stages": 3, "splits": splits}
    inputs = example_inputs(task, 0)
    agree(task, [run(task, lower_default(NAME, task, numbers), inputs)], reference(task, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_drawn_schedules_of_drawn_sizes(seed):
    rng = np.random.default_rng(seed)
    heads, queries, keys = (int(rng.integers(*ends)) for ends in ((2, 5), (1, 40), (128, 900)))
    depth, columns = (8 * int(rng.integers(1, 9)) for _ in range(2))
    mask = ("", f"[{queries}, {keys}]", f"[{heads}, 1, {keys}]")[int(rng.integers(3))]
    kind = ("float16", "bfloat16")[int(rng.integers(2))]
    scaled = "c = Constant<value_float=0.25>() f = CastLike(c, r) r2 = Mul(r, f) "
    steps = scaled + ("s = Add(r2, m) p = Softmax(s)" if mask else "p = Softmax(r2)")
    task = task_of(heads, queries, keys, depth, columns, kind=kind, steps=steps, mask=mask)
    target = (GPU, SMALL_GPU)[seed % 2]
    space = sketch(NAME).space(task, target)
    inputs = example_inputs(task, seed)
    for schedule in (space.default, *map(space.schedule, space.sample(3, rng))):
        agree(task, [run(task, lower(Candidate(task, target, schedule)), inputs)], reference(task, inputs))


def test_weights_far_apart():
    """Each part has a maximum of its own: those of some are nothing beside those of others."""
    task = task_of(2, 3, 517, 16, mask="[3, 517]", steps=MASKED)
    queries, keys, mask, values = example_inputs(task, 0)
    mask[:] = np.repeat(np.random.default_rng(0).choice([-3e4, -32, -2, 0], (3, 47)), 11, axis=1)
    inputs = [queries, keys, mask, values]
    for splits in (1, 2, 8):
        result = run(task, lower_default(NAME, task, NUMBERS | {"splits": splits}), inputs)
        agree(task, [result], reference(task, inputs))


def test_parts_that_a_mask_leaves_out():
    """They add nothing. Rows that have no key at all are what they are without sharing: no numbers."""
    task = task_of(2, 5, 519, 16, mask="[5, 519]", steps=MASKED)
    queries, keys, mask, values = example_inputs(task, 0)
    mask[0, :500] = mask[1, 33:] = mask[2, 32:480] = -np.inf
    mask[3] = -np.inf
    inputs = [queries, keys, mask, values]
    alone = run(task, lower_default(NAME, task, NUMBERS | {"splits": 1}), inputs)
    assert np.isnan(alone[:, 3]).all()
    with np.errstate(invalid="ignore"):
        [right] = reference(task, inputs)
    for splits in (2, 4, 8):
        shared = run(task, lower_default(NAME, task, NUMBERS | {"splits": splits}), inputs)
        assert np.isnan(shared[:, 3]).all()
        for result in (alone, shared):
            kept = [0, 1, 2, 4]
            assert np.isfinite(result[:, kept]).all()
            agree(task, [result[:, kept]], [right[:, kept]])


def test_rows_of_which_nothing_counts():
    """A mask of the least finite numbers leaves all keys alike: the mean of the values."""
    task = task_of(2, 1, 514, 16, kind="bfloat16", mask="[1, 514]", steps=MASKED)
    queries, keys, mask, values = example_inputs(task, 0)
    mask[:] = float(np.finfo(np.float32).min) * 0.99
    inputs = [queries, keys, mask, values]
    for splits in (1, 8):
        result = run(task, lower_default(NAME, task, NUMBERS | {"splits": splits}), inputs)
        np.testing.assert_allclose(result, values.astype(np.float64).mean(1, keepdims=True).reshape(2, -1), atol=1e-3)


@pytest.mark.parametrize(("key", "score"), [(7, np.inf), (7, np.nan), (400, np.inf), (518, np.nan)])
def test_what_is_no_number_stays_none(key, score):
    task = task_of(2, 2, 519, 16, mask="[2, 519]", steps=MASKED)
    queries, keys, mask, values = example_inputs(task, 0)
    mask[1, key] = score
    for splits in (1, 8):
        kernel = lower_default(NAME, task, NUMBERS | {"splits": splits})
        result = run(task, kernel, [queries, keys, mask, values])
        assert np.isnan(result[:, 1]).all() and np.isfinite(result[:, 0]).all()


@pytest.mark.parametrize(
    ("gone", "error"), [(Barrier, "reads|writes"), ("cp.async.wait.1", "before what comes to it was waited for")]
)
def test_what_is_left_out_is_found(gone, error):
    task = task_of(2, 20, 403, 16)
    kernel = lower_default(NAME, task, {"warps": 2, "block_places": 16, "stages": 3, "splits": 4})
    inputs, output = example_inputs(task, 0), np.zeros(task.outputs[0].shape, np.float16)
    interp.run(kernel, [*inputs, output])
    body = without(kernel.body, gone)
    assert isinstance(body, Block) and body != kernel.body
    spoilt = Kernel(kernel.params, kernel.scratch, body)
    with pytest.raises((RaceError, UndefinedRead), match=error):
        interp.run(spoilt, [*inputs, output])


def test_every_schedule_keeps_to_its_memory():
    task = task_of(3, 20, 331, 16, mask="[20, 331]", steps=MASKED)
    space = sketch(NAME).space(task, GPU)
    assert {int(n) for n in space.columns(space.points)["splits"]} == {1, 2, 4}
    for row in space.points:
        verify(lower(Candidate(task, GPU, space.schedule(row))))


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        ((8, 4, 2047, 128), (1, 2, 4, 8, 16)),
        ((8, 1, 32 * LEAST_KEYS, 64), (1, 2, 4, 8, 16, 32)),
        ((40, 4, 2048, 64), (1, 2, 4, 8)),  # more blocks are of no use
        ((600, 1, 2048, 64), (1, 2)),
        ((8, 4, 2 * LEAST_KEYS, 64), (1, 2)),
    ],
)
def test_shares_are_offered_where_keys_are_enough(sizes, splits):
    knobs = sketch(NAME).space(task_of(*sizes), GPU).knobs
    assert (knobs[-1].name, knobs[-1].choices) == ("splits", splits)


@pytest.mark.parametrize("sizes", [(8, 1, LEAST_KEYS, 64), (8, 65, 4096, 64), (8, 64, 63, 64)])
def test_other_schedules_stay_what_they_are(sizes):
    assert [knob.name for knob in sketch(NAME).space(task_of(*sizes), GPU).knobs] == ["warps", "block_places", "stages"]


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        ((8, 4, 2047, 128), 16),
        ((32, 1, 2047, 128), 4),
        ((2, 1, 700, 64), 8),
        ((120, 4, 2048, 64), 1),
        ((8, 4, 500, 64), 1),
    ],
)
def test_defaults_have_blocks_for_the_multiprocessors(sizes, splits):
    task = task_of(*sizes)
    schedule = sketch(NAME).space(task, GPU).default
    assert schedule["splits"] == splits
    first = default_schedule(task, GPU)
    assert (first == schedule) == (splits > 1 or sizes[1] == 1)
    assert len(lower(Candidate(task, GPU, schedule)).body.body) == 1 + (splits > 1)


def test_what_the_base_model_has_not_seen_is_no_pick():
    shipped = base(CUDA)
    assert shipped is not None
    shared, alone = task_of(64, 20, 2048, 128), task_of(64, 80, 2048, 128)
    for task, is_known in ((shared, False), (alone, True)):
        assert shipped.learned.knows(sketch(NAME).space(task, GPU)) == is_known
    assert default_schedule(shared, GPU)["splits"] == 2
    assert pick_by(XGBModel(shipped.learned), shared, GPU, ()) is None


GROUPS = """
    ke = Unsqueeze(k, one) kx = Expand(ke, cached) kc = Reshape(kx, rows) kr = Transpose<perm=[0, 2, 1]>(kc)
    ve = Unsqueeze(v, one) vx = Expand(ve, cached) vc = Reshape(vx, rows)
    s = MatMul(q, kr) b = Mul(s, scale) a = Softmax(b) y = MatMul(a, vc)
"""

ALONE = "kr = Transpose<perm=[0, 2, 1]>(k) s = MatMul(q, kr) b = Mul(s, scale) a = Softmax(b) y = MatMul(a, v)"


@pytest.mark.parametrize(
    ("heads", "nodes", "keys"), [(6, GROUPS, 601), (2, ALONE, 601), (2, ALONE, 2048)], ids=["groups", "alone", "even"]
)
def test_decoders_with_a_long_cache_are_one_task(heads, nodes, keys):
    """By two launches; nobody has to measure anything."""
    inputs = f"float16[{heads}, 1, 64] q, float16[2, {keys}, 64] k, float16[2, {keys}, 64] v"
    shapes = {"cached": (2, 3, keys, 64), "rows": (6, keys, 64)}
    model = open_for(GPU, model_of(inputs, nodes, shapes))
    assert not model.chains
    [task] = [task for task, _ in model.tasks.values()]
    space = spaces(task, GPU)[0]
    assert space.sketch == NAME and space.default["splits"] >= 8
    arrays = example_inputs(task, 0)
    agree(task, [run(task, lower(Candidate(task, GPU, space.default)), arrays)], reference(task, arrays))


@pytest.mark.parametrize(("heads", "is_open"), [(99, False), (98, True)])
def test_few_queries_of_many_heads_are_one_task_too(heads, is_open):
    """With a short cache, if three of four multiprocessors have a block."""
    inputs = f"float16[{heads}, 2, 64] q, float16[{heads}, 90, 64] k, float16[{heads}, 90, 64] v"
    model = open_for(GPU, model_of(inputs, ALONE))
    assert bool(model.chains) == is_open


def test_where_many_queries_fill_a_gpu_nothing_is_shared():
    task = task_of(8, 512, 2048, 64)
    schedule = Schedule(NAME, 1, (("warps", 4), ("block_places", 64), ("stages", 2)))
    assert sketch(NAME).space(task, GPU).default == schedule
