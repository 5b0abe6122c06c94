"""Schedules of GPUs, built for several of them: nothing is written out for want of registers."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tunewright.bench.gpus.builds import MOST_SPILLED_BYTES
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import build, source
from tunewright.codegen.gpu import BLOCK_THREADS, KNOWN, SM_REGISTERS, WARP
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.codegen.target import CUDA, Target
from tunewright.codegen.verify import verify
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import SKETCHES, default_schedule, lower, sketch, spaces

from .drawing import few_bits_text
from .test_sketches import MODELS, tasks_of

TASKS = {
    "shared_folds": ("half_dense", {"a": 4, "b": 1024, "c": 1000, "d": 1}),
    "specialized_tiles": ("half_even", {"a": 64, "b": 1, "c": 1, "d": 64}),
    "specialized_windows": ("half_windows", {"a": 14, "b": 28, "c": 96, "d": 2}),
    "unfolded_tiles": ("half_first", {"a": 57, "b": 61, "c": 64, "d": 2}),
    "warpgroup_tiles": ("half_even", {"a": 64, "b": 1, "c": 1, "d": 64}),
    "warp_tiles": ("half_even", {"a": 64, "b": 1, "c": 1, "d": 64}),
    "specialized_attention": ("half_attended", {"a": 196, "b": 64, "c": 196, "d": 12}),
    "attention_tiles": ("half_attended", {"a": 196, "b": 64, "c": 196, "d": 12}),
    "product_tiles": ("gemm", {"a": 197, "b": 192, "c": 160, "d": 1}),
    "row_blocks": ("softmax", {"a": 64, "b": 1, "c": 768, "d": 4}),
    "turned_tiles": ("transpose", {"a": 40, "b": 33, "c": 64, "d": 1}),
    "thread_windows": ("depthwise", {"a": 28, "b": 28, "c": 96, "d": 1}),
    "elements": ("gelu", {"a": 28, "b": 1, "c": 96, "d": 1}),
}
"""By sketch, what it is for."""

FIRST_ON_HOPPER = {
    "warp_tiles": "specialized_tiles",
    "warpgroup_tiles": "specialized_tiles",
    "attention_tiles": "specialized_attention",
}
"""Sketch -> the one whose default is the first choice on Hopper."""

HALF_WINDOWS = "float16: x[1, 64, 56, 56] w[64, 64, 3, 3] | y = Conv<pads=[1, 1, 1, 1]>(x, w) | y"

WINDOWS = HALF_WINDOWS.removeprefix("float16: ")

LARGE_GEMM = "x[1024, 1024] w[1024, 1024] | y = MatMul(x, w) | y"

TURNED_GEMM = "x[1000, 512] w[256, 1000] | y = Gemm<transA=1, transB=1>(x, w) | y"

TARGETS = {arch: Target.of_gpu(KNOWN[arch]) for arch in ("sm_80", "sm_90a")}


@pytest.fixture(scope="session", autouse=True)
def compiler() -> None:
    """There is one."""
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))


def test_there_is_a_task_for_every_sketch_of_gpus():
    gpu = TARGETS["sm_90a"]
    sizes = {"a": 7, "b": 5, "c": 16, "d": 3}, {"a": 8, "b": 5, "c": 33, "d": 8}, {"a": 8, "b": 64, "c": 8, "d": 8}
    drawn = [task for text in MODELS.values() for one in sizes for task in tasks_of(text, one)]
    assert TASKS.keys() == {one.name for one in SKETCHES if any(find_space(one, task, gpu) for task in drawn)}


def task_of(name):
    text, sizes = TASKS[name]
    gpu = TARGETS["sm_90a"]
    return next(task for task in tasks_of(MODELS[text], sizes) if sketch(name).applies(task, gpu))


@pytest.mark.parametrize("threads", [32, 96, 256])
@pytest.mark.parametrize("vector", [1, 2, 4])
def test_rows_that_no_round_covers_evenly(threads, vector):
    """All that is read is proven to be there, also where vectors end within a round."""
    task, target = task_of("row_blocks"), TARGETS["sm_90a"]
    space = sketch("row_blocks").space(task, target)
    numbers = {"warps": threads // 32, "vector": vector}
    rows = (dict(space.schedule(row).values) for row in space.points)
    for values in (point for point in rows if numbers.items() <= point.items()):
        verify(lower(Candidate(task, target, Schedule("row_blocks", space.version, tuple(values.items())))))


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", TASKS)
def test_default_and_random_schedules_compile(name, arch):
    task, target = task_of(name), TARGETS[arch]
    if not find_space(sketch(name), task, target):
        pytest.skip(f"it is not for {arch}")
    space = sketch(name).space(task, target)
    rows = space.sample(3, np.random.default_rng(0))
    assert name in {offer.sketch for offer in spaces(task, target)}
    first = default_schedule(task, target).sketch
    assert first == (FIRST_ON_HOPPER.get(name, name) if arch == "sm_90a" else name)
    most_bytes = MOST_SPILLED_BYTES if name == "specialized_attention" else 0  # of a mask all is read at once
    for schedule in (space.default, *map(space.schedule, rows)):
        builds_without_spills(task, target, schedule, most_bytes)


@pytest.mark.parametrize("text", [LARGE_GEMM, TURNED_GEMM, WINDOWS])
@pytest.mark.parametrize("arch", TARGETS)
def test_products_of_float32_on_tensor_cores_compile(text, arch):
    [task], target = tasks_of(text, {}), TARGETS[arch]
    space = sketch("warp_tiles").space(task, target)
    rows = space.sample(2, np.random.default_rng(0))
    builds_without_spills(task, target, space.default)
    for schedule in map(space.schedule, rows):
        builds_without_spills(task, target, schedule, MOST_SPILLED_BYTES)


@pytest.mark.parametrize("name", ["warp_tiles", "warpgroup_tiles", "specialized_tiles"])
@pytest.mark.parametrize("arch", TARGETS)
def test_products_of_bytes_compile(name, arch):
    sizes, target = {"a": 196, "b": 512, "c": 256, "d": 1}, TARGETS[arch]
    task = tasks_of(MODELS["bytes"], sizes)[0]
    if not find_space(sketch(name), task, target):
        pytest.skip(f"it is not for {arch}")
    space = sketch(name).space(task, target)
    for schedule in (space.default, *map(space.schedule, space.sample(3, np.random.default_rng(0)))):
        builds_without_spills(task, target, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["", "[{queries}, {keys}]"], ids=["plain", "masked"])
@pytest.mark.parametrize(
    "sizes", [(8, 4, 2047, 128), (32, 1, 2048, 128), (8, 20, 2048, 64), (4, 64, 4096, 128), (6, 5, 601, 80)]
)
@pytest.mark.parametrize("arch", TARGETS)
def test_attention_whose_keys_are_shared_compiles(arch, sizes, mask):
    heads, queries, keys, depth = sizes
    inputs = f"q[{heads}, {queries}, {depth}] k[{heads}, {keys}, {depth}] v[{heads}, {keys}, {depth}]"
    steps = "t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) s = Add(r, m) p = Softmax(s) y = MatMul(p, v)"
    if not mask:
        steps = steps.replace("s = Add(r, m)", "s = Identity(r)")
    text = f"float16: {inputs}{' m' + mask.format(queries=queries, keys=keys) if mask else ''} | {steps} | y"
    target = TARGETS[arch]
    task = next(task for task in tasks_of(text, {}) if sketch("attention_tiles").applies(task, target))
    space = sketch("attention_tiles").space(task, target)
    assert space.default["splits"] > 1 and default_schedule(task, target) == space.default
    builds_without_spills(task, target, space.default)
    for schedule in map(space.schedule, space.sample(2, np.random.default_rng(0))):
        builds_without_spills(task, target, schedule, MOST_SPILLED_BYTES)


@pytest.mark.parametrize(("rows", "extent", "bits"), [(1, 32, 4), (8, 16, 4), (4, 128, 8)])
@pytest.mark.parametrize("arch", TARGETS)
def test_products_of_few_bits_compile(rows, extent, bits, arch):
    text = few_bits_text(rows, 1024, 4096 // extent, extent, bits=bits, has_zeros=True)
    [task], target = tasks_of(f"float16: {text}", {}), TARGETS[arch]
    space = sketch("shared_folds").space(task, target)
    for schedule in (space.default, *map(space.schedule, space.sample(3, np.random.default_rng(0)))):
        builds_without_spills(task, target, schedule)


@pytest.mark.parametrize("text", ["half_dense", "bytes"])
def test_copies_of_whole_pieces_compile(text):
    task = tasks_of(MODELS[text], {"a": 196, "b": 512, "c": 256, "d": 1})[0]
    target = TARGETS["sm_90a"]
    space = sketch("warpgroup_tiles").space(task, target)
    values = dict(space.default.values) | {"bulk": 1}
    schedule = Schedule("warpgroup_tiles", space.version, tuple(values.items()))
    builds_without_spills(task, target, schedule)
    text = nvrtc.ptx(source(lower(Candidate(task, target, schedule)), target).text, target.cpu)
    for words in ("cp.async.bulk.shared::cluster.global", "mbarrier.try_wait.parity", "wgmma.mma_async"):
        assert words in text


def builds_without_spills(task, target, schedule, most_bytes=0):
    artifact = build(lower(Candidate(task, target, schedule)), target)
    for usage in artifact.usage.values():
        assert max(usage.spill_store_bytes, usage.spill_load_bytes) <= most_bytes, schedule
        assert usage.stack_bytes <= most_bytes, schedule
    for launch in artifact.launches:  # a multiprocessor holds a block; warps get registers in units of 256
        registers = -(-artifact.usage[launch.symbol].registers * WARP // 256) * 256
        assert registers * -(-launch.threads // WARP) <= SM_REGISTERS, schedule
        assert launch.smem_bytes <= target.gpu.block_smem_bytes and launch.threads <= BLOCK_THREADS, schedule


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("warp_tiles", HALF_WINDOWS, (64, 32, 64, 64, 32, 4, 1, 1, 0)),
        ("warp_tiles", HALF_WINDOWS, (32, 128, 64, 32, 128, 4, 1, 1, 0)),
        ("product_tiles", LARGE_GEMM, (256, 16, 32, 4, 16, 2, 1, 0)),
        ("product_tiles", LARGE_GEMM, (128, 128, 32, 8, 16, 2, 2, 0)),
    ],
)
def test_what_wrote_out_hundreds_of_bytes_is_no_schedule(name, text, values):
    """Addresses of what a thread brings take registers too."""
    [task] = tasks_of(text, {})
    space = sketch(name).space(task, TARGETS["sm_80"])
    names = [knob.name for knob in space.knobs]
    with pytest.raises(Illegal):
        space.row(Schedule(name, space.version, tuple(zip(names, values, strict=True))))


def test_what_was_built_is_not_built_again(tmp_path, monkeypatch):
    task, target = task_of("elements"), TARGETS["sm_90a"]
    kernel = lower(Candidate(task, target, default_schedule(task, target)))
    cache = ObjectCache(tmp_path)
    artifact = build(kernel, target, cache)
    monkeypatch.setattr(nvrtc, "compile_text", None)
    assert build(kernel, target, cache) == artifact
    assert artifact.code.startswith(b"\x7fELF")
    headers_at, entry_bytes, entries = struct.unpack_from("<32xQ14xHH", artifact.code)
    assert headers_at + entries * entry_bytes == len(artifact.code), "to its last byte"
    assert {launch.symbol for launch in artifact.launches} == artifact.usage.keys()
    assert target.kind == CUDA
