"""The rule that default tiles and chunks of products come from."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor, canonical
from tunewright.search_space.cpu.contraction import ContractionSketch
from tunewright.search_space.cpu.loops.blocking import Shape, tile_cycles
from tunewright.search_space.patterns.product import match_product
from tunewright.search_space.schedule import Schedule


def target(vector_bits: int, vector_registers: int, l1_bytes: int, threads: int) -> Target:
    return Target(
        "cpu", "x86_64-unknown-linux-gnu", "x", "", vector_bits, vector_registers, threads, l1_bytes, 1 << 20, 1 << 25
    )


TARGETS = {
    "avx512": target(512, 32, 48 << 10, 2),
    "avx2": target(256, 16, 32 << 10, 4),
    "neon": target(128, 32, 64 << 10, 8),
}

SHAPES = [(384, 512, 512), (64, 768, 2304), (197, 192, 768), (196, 1024, 256), (49, 512, 2048), (3136, 64, 256)]


def gemm(rows: int, depth: int, columns: int) -> Task:
    m, n, k = Var("m"), Var("n"), Var("k")
    tensors = [
        Tensor("x", (rows, depth), DType.F32),
        Tensor("w", (depth, columns), DType.F32, constant=True),
        Tensor("y", (rows, columns), DType.F32),
    ]
    body = Load("x", (m, k), DType.F32) * Load("w", (k, n), DType.F32)
    stage = Stage("y", (Axis("m", rows), Axis("n", columns)), body, (Axis("k", depth),), "sum")
    return canonical("MatMul", tensors[:2], tensors[2:], [], [stage])


def default(task: Task, target: Target) -> tuple[int, int, int]:
    """Vectors and rows of the default's tile, and its chunks."""
    space = ContractionSketch().space(task, target)
    columns = space.columns(space.row(space.default)[None])
    rows = prod(value for name, value in space.default.values if name.startswith("tile"))
    return space.default["vectors"], rows, int(space.tiling(columns).chunks[0])


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_default_keeps_all_units_of_all_threads_busy(machine: str, shape: tuple[int, int, int]) -> None:
    task, target = gemm(*shape), TARGETS[machine]
    vectors, rows, chunks = default(task, target)
    assert vectors * rows >= 8  # two units, four cycles from one multiply-add to the next
    assert chunks >= target.threads
    product = match_product(task)
    assert product is not None
    ideal = prod(shape) / target.lanes(4) / 2
    assert tile_cycles(Shape.of(product, task), target, vectors, (rows,)) < 1.2 * ideal


def test_wide_vectors_take_tiles_that_load_less() -> None:
    """A load of a whole line takes as long as two multiply-adds: so tiles are squarer."""
    assert default(gemm(512, 512, 512), TARGETS["avx512"])[:2] == (3, 9)
    assert default(gemm(3136, 256, 64), TARGETS["avx512"])[:2] == (4, 6)  # all columns at once
    assert default(gemm(512, 512, 512), TARGETS["avx2"])[:2] == (2, 6)


@pytest.mark.parametrize("machine", TARGETS)
def test_packed_weights_may_be_asked_for_ahead(machine: str) -> None:
    """By default where a vector is a whole line of the cache."""
    sketch, task, target = ContractionSketch(), gemm(64, 96, 80), TARGETS[machine]
    default = sketch.space(task, target).default
    assert default["ahead"] == (machine == "avx512")
    for ahead in (0, 1):
        values = dict(default.values) | {"ahead": ahead}
        kernel = sketch.lower(task, Schedule(default.sketch, default.version, tuple(values.items())), target)
        assert ("prefetch" in str(kernel)) == bool(ahead)


def test_what_is_read_in_place_is_not_asked_for_ahead() -> None:
    task = gemm(64, 96, 80)
    computed = replace(task, inputs=tuple(replace(tensor, constant=False) for tensor in task.inputs))
    space = ContractionSketch().space(computed, TARGETS["avx512"])
    assert space.default["ahead"] == 0
    assert [knob.choices for knob in space.knobs if knob.name == "ahead"] == [(0,)]


def test_rows_a_page_apart_do_not_crowd_the_first_cache() -> None:
    target = TARGETS["avx512"]
    apart, beside = (default(gemm(128, depth, 768), target)[1] for depth in (3072, 3088))
    assert apart < target.l1_bytes // 4096 <= beside


def test_a_matrix_times_a_vector_is_shared_by_columns() -> None:
    target = TARGETS["avx512"]
    vectors, rows, chunks = default(gemm(1, 4096, 4096), target)
    assert rows == 1
    assert vectors >= 4
    assert chunks >= target.threads


def channels_first(pixels: int, depth: int, columns: int) -> Task:
    """A convolution of one pixel: maps of pixels in and out, each contiguous."""
    m, n, k = Var("m"), Var("n"), Var("k")
    tensors = [
        Tensor("x", (depth, pixels), DType.F32),
        Tensor("w", (depth, columns), DType.F32, constant=True),
        Tensor("y", (columns, pixels), DType.F32),
    ]
    body = Load("x", (k, m), DType.F32) * Load("w", (k, n), DType.F32)
    stages = [
        Stage("t", (Axis("m", pixels), Axis("n", columns)), body, (Axis("k", depth),), "sum"),
        Stage("y", (Axis("m", pixels), Axis("n", columns)), Load("t", (m, n), DType.F32), index=(n, m)),
    ]
    return canonical("Conv", tensors[:2], tensors[2:], [Tensor("t", (pixels, columns), DType.F32)], stages)


@pytest.mark.parametrize(("pixels", "depth", "flips"), [(3136, 64, True), (49, 2048, False)])
def test_a_long_map_lies_along_the_lanes_and_a_short_one_is_turned_in_registers(
    pixels: int, depth: int, flips: bool
) -> None:
    task, target = channels_first(pixels, depth, 256), TARGETS["avx512"]
    assert ContractionSketch(flipped=True).space(task, target).first_choice == flips
    for flipped in (False, True):
        sketch = ContractionSketch(flipped=flipped)
        kernel = sketch.lower(task, sketch.space(task, target).default, target)
        assert len(kernel.body.body) == 1  # nothing is brought into another order beforehand or afterwards
        name = kernel.params[-1].name
        stores = [line.split("] = ")[0] for line in str(kernel).splitlines() if line.strip().startswith(f"{name}[")]
        assert stores
        assert all(f":+{target.lanes(4)}" in store.split(", ")[-1] for store in stores)
