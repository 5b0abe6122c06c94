from dataclasses import replace

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.costmodel import roofline
from tunewright.costmodel.loops import Loops
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.sketches import spaces

from ..search_space.oracle import WIDE
from ..search_space.test_block_matmul import task_of as block_matmul_of

X = Load("x", (Var("i"),), DType.F32)


def estimates(task, target, space, **values):
    columns = {knob.name: np.array([knob.choices[0]]) for knob in space.knobs}
    points = max(len(np.atleast_1d(v)) for v in values.values())
    columns = {name: np.repeat(column, points) for name, column in columns.items()}
    columns |= {name: np.atleast_1d(v) for name, v in values.items()}
    return roofline.estimate_s(Loops(task, target, space.tiling(columns), "o"))[0]


def test_operations():
    assert roofline.operations(X * X, "sum") == 1  # fused
    assert roofline.operations(X + X, "sum") == 2
    assert roofline.operations(op("max", X + 1.0, 0.0), "") == 2
    assert roofline.operations(X, "max") == 1
    assert roofline.operations(op("select", op("lt", X, 0.0), 0.0, X), "") == 0
    assert roofline.operations(op("exp", X), "") > 8


def test_limit_of_what_computes(conv, target):
    task = conv(size=28, channels=256, filters=256)
    peak = 2 * 2 * 16 * roofline.PROCESSOR.clock_hz * target.threads  # two fused operations of 16 lanes a cycle
    assert roofline.floor_s(task, target) == pytest.approx(task.stages[0].flops / peak, rel=0.01)


def test_limit_of_what_moves_data(target):
    def copy(extent):
        tensors = [Tensor(name, (extent,), DType.F32) for name in ("x", "y")]
        return Task("Relu", (tensors[0],), (tensors[1],), (), (Stage("y", (Axis("i", extent),), op("max", X, 0.0)),))

    small, large = copy(1 << 12), copy(1 << 26)
    slow_s = roofline.floor_s(large, target) / large.traffic_bytes
    assert slow_s == pytest.approx(1 / (2 * roofline.PROCESSOR.memory_bytes_s))
    assert roofline.floor_s(small, target) / small.traffic_bytes < slow_s
    assert roofline.floor_s(copy(1), target) > 0


def test_no_estimate_is_below_the_limit(conv, space_of, target):
    for task in (conv(), conv(size=7, channels=128, filters=128), conv(window=1), conv(size=13, stride=2)):
        space = space_of(task)
        columns = space.columns(space.points)
        estimates_s = roofline.estimate_s(Loops(task, target, space.tiling(columns), "o"))[0]
        assert np.isfinite(estimates_s).all()
        # The stages after the main one are no part of the estimate, and next to nothing here.
        assert (estimates_s >= 0.95 * roofline.floor_s(task, target)).all()


def test_a_register_tile_pays_until_it_spills(conv, space_of, target):
    task = conv()
    single, good, spilled = estimates(task, target, space_of(task), tile=[1, 14, 14], vectors=[1, 2, 4], rows=[7, 7, 7])
    assert good < 0.5 * single
    assert good < spilled


def test_a_tile_that_does_not_divide_costs_its_tail(conv, space_of, target):
    task = conv()
    exact, ragged = estimates(task, target, space_of(task), tile=[14, 13], vectors=[2, 2], rows=[7, 7])
    assert exact < ragged


def test_idle_threads_cost(conv, space_of, target):
    task = conv()
    space = space_of(task)
    even, idle = estimates(task, target, space, tile=[14, 14], vectors=[2, 4], rows=[14, 28])  # 4 chunks, and 1
    assert even < idle
    alone = replace(target, threads=1)
    assert (
        estimates(task, target, space, tile=[14], vectors=[2], rows=[14])[0]
        < (estimates(task, alone, space, tile=[14], vectors=[2], rows=[14])[0])
    )


def test_a_scattered_operand_costs(conv, space_of, target):
    task = conv()
    total, rectified = task.stages
    x, w = total.body.args
    other = replace(total, body=x * Load("t1", w.index[::-1], DType.F32))  # filters first: neighbours are far apart
    weights = replace(task.inputs[1], shape=task.inputs[1].shape[::-1])
    flipped = replace(task, inputs=(task.inputs[0], weights, task.inputs[2]), stages=(other, rectified))
    good = estimates(task, target, space_of(task), tile=[14], vectors=[2])[0]
    assert 1.3 * good < estimates(flipped, target, space_of(flipped), tile=[14], vectors=[2])[0]


def test_the_loops_of_points_say_what_those_of_each_do(conv, space_of, target):
    task = conv()
    space = space_of(task)
    rows = space.sample(20, np.random.default_rng(0))

    def moved_bytes(rows):
        return roofline.map_loops(task, target, space, rows, lambda loops: loops.traffic_bytes(target.l1_bytes))

    together = moved_bytes(rows)
    assert together.tolist() == [moved_bytes(row[None])[0] for row in rows]
    assert (together >= task.traffic_bytes / 2).all()
    assert moved_bytes(rows[:0]).shape == (0,)


def test_rates_are_of_all_threads_and_fall_outwards(target):
    rates = roofline.rates_bytes_s(target)
    assert rates["l1"] > rates["l2"] > rates["l3"]
    more = roofline.rates_bytes_s(replace(target, threads=64))
    assert more["l1"] == 32 * rates["l1"]
    assert more["l3"] == roofline.PROCESSOR.memory_bytes_s * roofline.PROCESSOR.memory_cores
    assert roofline.last_bytes(target) == target.l3_bytes
    assert roofline.last_bytes(replace(target, l3_bytes=0)) == target.l2_bytes


GPU = Target.of_gpu(KNOWN["sm_90a"])


def test_a_gpu_multiplies_on_tensor_cores_what_they_are_faster_at():
    gpu = KNOWN["sm_90a"]
    cycles = gpu.sms * gpu.clock_hz
    for dtype, each in ((DType.F32, gpu.split_multiply_adds), (DType.F16, gpu.narrow_multiply_adds)):
        task = product(dtype, 4096)
        assert roofline.floor_s(task, GPU) == pytest.approx(4096**3 / (each * cycles))
    assert roofline.peak_flops_s(GPU) == pytest.approx(2 * gpu.multiply_adds * cycles)
    assert roofline.rates_bytes_s(GPU)["l3"] == pytest.approx(gpu.memory_bytes_s)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_no_schedule_of_a_gpu_is_below_its_floor(dtype):
    task = product(dtype, 1024)
    for space in spaces(task, GPU):
        rows = space.sample(200, np.random.default_rng(0))
        estimates_s = roofline.estimate_space_s(task, GPU, space, rows)
        assert np.isfinite(estimates_s).all() and (estimates_s >= 0.9 * roofline.floor_s(task, GPU)).all()
        assert estimates_s.max() > 2 * estimates_s.min()


def product(dtype: DType, size: int) -> Task:
    x, w, y = (Tensor(name, (size, size), dtype) for name in "xwy")
    i, j, k = map(Var, "ijk")
    whole = Tensor("t", (size, size), DType.F32)
    left, right = (op("cast", Load(*operand, dtype), dtype=DType.F32) for operand in (("x", (i, k)), ("w", (k, j))))
    axes = Axis("i", size), Axis("j", size)
    total = Stage("t", axes, left * right, (Axis("k", size),), "sum")
    cast_stage = Stage("y", axes, op("cast", Load("t", (i, j), DType.F32), dtype=dtype))
    return Task("MatMul", (x, w), (y,), (whole,), (total, cast_stage))


def test_pairs_of_bfloat16_are_multiplied_where_one_float_is():
    task = product(DType.BF16, 256)
    plain, pairs = WIDE, replace(WIDE, features="+avx512bf16")
    assert [roofline.peak_factor(task, target) for target in (plain, pairs)] == [1, 2]
    assert roofline.floor_s(task, plain) == pytest.approx(2 * roofline.floor_s(task, pairs), rel=0.1)


@pytest.mark.parametrize(("is_rounded", "factor"), [(False, 1), (True, 4)])
def test_limit_of_weights_of_four_bits(is_rounded, factor):
    """They may be unpacked once for many rows, two are in a byte, and rounded activations are bytes."""
    target = replace(WIDE, features="+avx512vnni")
    task = block_matmul_of("16", 256, 8, 32, then="y = Neg (t)", is_rounded=is_rounded)
    points = 16 * 256 * 8 * 32
    assert task.flops == 2 * points
    assert task.traffic_bytes < 16 * 256 * 4 + 256 * 256 // 2 + 256 * 8 * 5 + 16 * 256 * 4 + 16 * 8 * 4 + 1
    assert roofline.peak_factor(task, target) == factor
    machine = roofline.machine_of(target)
    computed_s = points / 16 / (machine.pipes * factor) / machine.clock_hz / target.threads
    assert roofline.floor_s(task, target) == pytest.approx(computed_s, rel=0.05)
