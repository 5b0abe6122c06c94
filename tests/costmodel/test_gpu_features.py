"""Features of points on GPUs, beside those that all targets have."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest

from tunewright.bench.gpus.workloads import BUILD_WORKLOADS, heaviest_task, product_text
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import CUDA, Target
from tunewright.costmodel.features import NAMES, features, names_of, version_of
from tunewright.costmodel.gpu_features import GPU_NAMES, KNOBS
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import SKETCHES, sketch, spaces
from tunewright.search_space.space import KNOB_MEANINGS

GPU = Target.of_gpu(KNOWN["sm_90a"])


def test_those_of_processors_are_as_they_were():
    assert names_of("cpu") == NAMES
    assert version_of("cpu") == "bd29f354d515", "base models of processors learned from this version"
    assert names_of(CUDA) == (*NAMES, *GPU_NAMES) and len(set(names_of(CUDA))) == len(names_of(CUDA))
    assert version_of(CUDA) != version_of("cpu")


@pytest.mark.parametrize("name", BUILD_WORKLOADS)
def test_every_sketch_has_the_same_finite_columns(name):
    workload = BUILD_WORKLOADS[name]
    task = heaviest_task(workload.text)
    for arch in workload.archs:
        target = Target.of_gpu(KNOWN[arch])
        space = sketch(workload.sketch).space(task, target)
        rows = space.sample(40, np.random.default_rng(0))
        values = features(task, target, space, rows).values
        assert values.shape == (len(rows), len(names_of(CUDA))) and np.isfinite(values).all()
        alone = np.concatenate([features(task, target, space, row[None]).values for row in rows])
        np.testing.assert_array_equal(values, alone)
        assert space.block is not None
        block = space.block(space.columns(rows))
        assert all(32 <= threads <= 1024 for threads in block.threads) and (block.registers > 0).all()


def test_every_sketch_has_a_workload_and_every_knob_a_column():
    tested = {workload.sketch for workload in BUILD_WORKLOADS.values()}
    of_gpus = {each.name for each in SKETCHES if getattr(each, "kind", "") == CUDA}
    assert of_gpus - tested <= {"specialized_windows"}
    for workload in BUILD_WORKLOADS.values():
        for space in spaces(heaviest_task(workload.text), GPU):
            assert {knob.name for knob in space.knobs} <= {*KNOBS, *KNOB_MEANINGS}


def test_no_points():
    task = heaviest_task(product_text("float16", 1024, 1024, 1024))
    space = spaces(task, GPU)[0]
    assert features(task, GPU, space, space.sample(0, np.random.default_rng(0))).values.shape == (
        0,
        len(names_of(CUDA)),
    )


def test_a_sketch_that_says_nothing_of_blocks_has_none():
    task = heaviest_task(product_text("float16", 1024, 1024, 1024))
    space = replace(spaces(task, GPU)[0], block=None)
    matrix = features(task, GPU, space, space.row(space.default)[None])
    assert all(matrix.column(name)[0] == -1.0 for name in GPU_NAMES)


def test_worked_by_hand():
    """1024 x 1500 results of 2048 products, in 8 x 12 tiles of 128 x 128, each shared by two blocks.

    The operand along the lanes, the right one, is the first.
    """
    task = heaviest_task(product_text("float16", 1024, 2048, 1500))
    space = sketch("warp_tiles").space(task, GPU)
    values = {
        "block_rows": 128, "block_columns": 128, "block_depth": 32, "warp_rows": 64, "warp_columns": 32, "stages": 4,
        "group": 1, "splits": 2, "tail": 0,
    }  # fmt: skip
    matrix = features(task, GPU, space, space.row(Schedule("warp_tiles", space.version, tuple(values.items())))[None])

    def column(name):
        return pytest.approx(float(matrix.column(name)[0]), rel=1e-5)

    gpu, threads, smem_bytes = KNOWN["sm_90a"], 8 * 32, 2 * 4 * 32 * (128 + 128)
    assert log2(threads) == column("block_log_threads")
    assert log2(1 + smem_bytes) == column("block_log_smem")
    registers = float(matrix.column("block_thread_registers")[0])
    assert 64 + 24 + 40 <= registers <= 255  # sums, fragments, all else
    resident = min(65536 // (threads * int(registers)), gpu.sm_smem_bytes // smem_bytes)
    assert resident == column("block_resident")
    assert resident * threads / gpu.sm_threads == column("block_occupancy")
    assert column("block_tensor_cores") == 1.0
    blocks = 8 * 12 * 2
    assert log2(blocks) == column("wave_log_blocks")
    assert log2(blocks / gpu.sms) == column("wave_log_waves")
    assert ceil(blocks / gpu.sms) * gpu.sms / blocks - 1 == column("wave_waste")
    assert column("wave_padding") == 12 * 128 / 1500 - 1
    assert log2(2048 / 32 / 2) == column("wave_log_rounds")
    assert (column("gpu_operand_bytes"), column("gpu_lengthwise_a"), column("gpu_lengthwise_b")) == (
        2.0,
        0.0,
        1.0,
    )
    assert (log2(5), log2(3), -1.0) == (column("gpu_knob_stages"), column("gpu_knob_splits"), column("gpu_knob_lines"))
    busy_s = 2 * gpu.sms * 128 * 128 * 1024 / gpu.narrow_multiply_adds / gpu.sms / gpu.clock_hz
    assert log2(busy_s + 1e-9) == column("gpu_log_compute_s")
