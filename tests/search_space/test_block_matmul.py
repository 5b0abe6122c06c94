"""Products with weights of four and eight bits: right for any schedule, and where they apply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.ir import Graph, Node
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import point_of, sketch, spaces

from .drawing import few_bits_text
from .oracle import DOTS, HOST, interpret, native
from .test_sketches import tasks_of

SKETCH = sketch("block_matmul")

PLAIN = replace(HOST, cpu="generic", features="")
"""A processor without instructions for bytes."""


def graph_of(
    rows: str,
    columns: int,
    blocks: int,
    size: int,
    *,
    most: int = 15,
    then: str = "y = Relu (t)",
    kind: str = "float y",
    is_rounded: bool = False,
    zero: int | None = None,
    has_narrow_scales: bool = False,
) -> Graph:
    """A product with weights in blocks, as MatMulNBits is imported. `is_rounded`: activations are rounded.

    `zero`: all zero points are this one. `has_narrow_scales`: bfloat16 has all scales.
    """
    depth = blocks * size
    text = (
        f'<ir_version: 10, opset_import: ["" : 21]> m (float[{rows},{depth}] x) => ({kind}) {{'
        f" d = DequantizeLinear <axis=0> (q, s, z) h = Reshape (d, g) k = Transpose <perm=[1,0]> (h)"
        f" t = MatMul (x, k) {then} }}"
    )
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(columns)
    count = columns * blocks
    known = {
        "q": rng.integers(0, most, (count, size), np.uint8, endpoint=True),
        "s": rng.uniform(0.5, 2, count).astype(np.float32),
        "z": rng.integers(0, 15, count, np.uint8) if zero is None else np.full(count, zero, np.uint8),
        "g": np.array([columns, depth]),
    }
    known["q"].flat[0] = most
    if has_narrow_scales:
        known["s"] = known["s"].astype(ml_dtypes.bfloat16).astype(np.float32)
    for name, value in known.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    graph = load(model.SerializeToString())
    return with_rounding(graph, size) if is_rounded else graph


def with_rounding(graph: Graph, size: int) -> Graph:
    """The graph with what its product reads rounded, as `accuracy_level` 4 does."""
    nodes, types = [], dict(graph.types)
    for node in graph.nodes:
        if node.op == "MatMul":
            x, weight = node.inputs
            nodes.append(Node("RoundBlocks", (x,), ("v99",), {"size": size}, version=node.version))
            node, types["v99"] = replace(node, inputs=("v99", weight)), types[x]
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)


def task_of(*arguments: Any, **options: Any) -> Task:
    calls = partition(
        rewrite(graph_of(*arguments, **options), numerics=Numerics(dots=options.get("is_rounded", False)))
    )
    [task] = [call.task for call in calls if isinstance(call, TaskCall) and "BlockMatMul" in call.task.op]
    return task


def schedules_agree(task: Task, count: int, target: Target = HOST, built_for: tuple[Target, ...] = (HOST,)) -> None:
    """The default and so many random schedules of a target agree with the oracle, in the interpreter and natively."""
    space, arrays = SKETCH.space(task, target), example_inputs(task, 1)
    expected: Any = reference(task, arrays)[0]
    for row in [space.row(space.default), *space.sample(count, np.random.default_rng(2))]:
        kernel = SKETCH.lower(task, space.schedule(row), target)
        verify(kernel)
        for [result] in (interpret(task, kernel, arrays), *(native(task, kernel, arrays, one) for one in built_for)):
            largest = float(np.abs(expected).max())
            np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize(
    ("rows", "columns", "blocks", "size"),
    [("1", 33, 3, 32), ("1", 64, 2, 16), ("5", 47, 5, 16), ("2,3", 100, 2, 128), ("16", 16, 3, 6)],
)
@pytest.mark.parametrize("most", [15, 255])
def test_any_schedule_agrees_with_the_oracle(rows: str, columns: int, blocks: int, size: int, most: int) -> None:
    schedules_agree(task_of(rows, columns, blocks, size, most=most, then="y = Add (t, t)"), 4)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns", "most"), [("17", 48, 15), ("67", 16, 255), ("2,65", 33, 15)])
def test_many_rows_are_computed_in_chunks(rows: str, columns: int, most: int) -> None:
    schedules_agree(task_of(rows, columns, 3, 32, most=most, is_rounded=True), 6)


@pytest.mark.parametrize("rows", [1, 3, 6, 7, 15, 16, 17, 67, 121, 512])
def test_chunks_are_as_the_tiling_says(rows: int) -> None:
    """Few rows are one chunk, so that weights are unpacked once; of many there are some."""
    task = task_of(str(rows), 96, 3, 32, is_rounded=True)
    space = SKETCH.space(task, DOTS)
    for row in [space.row(space.default), *space.sample(12, np.random.default_rng(rows))]:
        schedule = space.schedule(row)
        point = point_of(Candidate(task, DOTS, schedule))
        values = dict(schedule.values)
        tiles = -(-96 // (values["vectors"] * DOTS.lanes(4)))
        chunks = point.chunks[point.main] // tiles
        assert point.chunks[point.main] == int(point.tiling.chunks[0])
        assert chunks == 1 if values.get("chunk_rows", rows) >= rows else chunks >= rows // values["chunk_rows"]


@pytest.mark.slow
@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("zero", [0, 8])
def test_what_is_read_of_scales_and_zero_points(zero: int, is_rounded: bool) -> None:
    """One zero point is part of the code, but for 0, and scales that bfloat16 has are read as such."""
    task = task_of("2", 130, 128, 16, zero=zero, has_narrow_scales=True, is_rounded=is_rounded)
    shapes = {(tensor.dtype, tensor.shape) for tensor in task.inputs if tensor.constant}
    zeros = set() if zero else {(DType.U8, (130, 128))}
    assert shapes == {(DType.U8, (130, 128, 16)), (DType.BF16, (130, 128))} | zeros
    schedules_agree(task, 3)


@pytest.mark.slow
@pytest.mark.parametrize("target", [HOST, DOTS, PLAIN], ids=["host", "dots", "plain"])
@pytest.mark.parametrize(
    ("rows", "columns", "blocks", "size", "most"),
    [
        ("1", 33, 3, 32, 15),
        ("1", 64, 2, 16, 255),
        ("5", 47, 5, 16, 15),
        ("4", 100, 2, 128, 15),
        ("16", 16, 3, 8, 255),
    ],
)
def test_rounded_activations(rows: str, columns: int, blocks: int, size: int, most: int, target: Target) -> None:
    """The products within a block are exact, by any instruction; their sums are scaled as the definition says."""
    task = task_of(rows, columns, blocks, size, most=most, then="y = Add (t, t)", is_rounded=True)
    assert [tensor.dtype for tensor in task.inputs][:2] == [DType.I8, DType.F32]
    schedules_agree(task, 3, target, built_for=(HOST, PLAIN))


@pytest.mark.parametrize("blocks", [4, 6])
def test_activations_that_lie_otherwise_are_for_other_sketches(blocks: int) -> None:
    """Also where there are as many rows as blocks."""
    [task] = tasks_of("widened: " + few_bits_text(4, 32, blocks, 16, order=(1, 0, 2)), {})
    assert task.op == "Transpose+BlockMatMul+Relu" and not SKETCH.applies(task, HOST)


@pytest.mark.parametrize("rows", range(1, 12))
def test_rows_are_tiled_within_bounds(rows: int) -> None:
    task = task_of(str(rows), 16, 2, 4)
    space = SKETCH.space(task, HOST)
    for row in space.points:
        verify(SKETCH.lower(task, space.schedule(row), HOST))


@pytest.mark.parametrize(("most", "halves"), [(15, 2), (255, 1)])
def test_numbers_of_four_bits_share_bytes(most: int, halves: int) -> None:
    task = task_of("1", 64, 4, 32, most=most)
    [space] = spaces(task, HOST)
    kernel = SKETCH.lower(task, space.default, HOST)
    [numbers] = [buffer for buffer in kernel.params if buffer.name == task.inputs[1].name]
    assert numbers.size_bytes == 64 * 4 * 32 // halves


def test_a_sketch_of_floats_is_not_for_it() -> None:
    assert not find_space(sketch("contraction"), task_of("1", 64, 4, 32), HOST)
