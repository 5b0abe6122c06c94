"""The loops of the sketches for rows and folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Ramp, const, evaluate
from tunewright.codegen.host import detect
from tunewright.codegen.ir import interp
from tunewright.codegen.verify import verify
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.cpu.loops.row_passes import across
from tunewright.search_space.cpu.split import folds
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.patterns import rows
from tunewright.search_space.patterns.fused_stage import FusedStage, fuse_stages
from tunewright.search_space.patterns.rows import RowGroup, match_row_plan, row_group
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, lower, spaces

TARGET = detect(2)
LANES = TARGET.lanes(4)


def task_of(node: str, shape: list[int], others: str = "", before: str = "") -> Task:
    text = (
        f'<ir_version: 10, opset_import: ["" : 20]> m (float{shape} x{others}) => (float y) {{ {before} y = {node} }}'
    )
    (call,) = [
        s
        for s in partition(rewrite(load(onnx.parser.parse_model(text).SerializeToString())))
        if isinstance(s, TaskCall)
    ]
    return call.task


def test_softmax_goes_along_a_row_three_times() -> None:
    plan = match_row_plan(task_of("Softmax(x)", [6, 40]), LANES)
    assert plan is not None
    assert [(s.level, s.is_fold) for s in plan.steps] == [(0, True), (1, False), (1, True), (2, False)]
    assert match_row_plan(task_of("Softmax<axis=0>(x)", [40, 6]), LANES) is None  # columns don't lie side by side
    assert match_row_plan(task_of("Relu(x)", [6, 40]), LANES) is None


def test_what_only_an_output_waits_for_waits_in_it_if_rows_are_whole_vectors() -> None:
    whole, odd = (match_row_plan(task_of("Softmax(x)", [6, columns]), LANES) for columns in (4 * LANES, 4 * LANES + 1))
    assert whole is not None and odd is not None
    powers, last = whole.steps[1].fused_stage, whole.steps[-1].fused_stage
    assert whole.output_host(powers.output) is last
    assert odd.output_host(odd.steps[1].fused_stage.output) is None
    assert (whole.live_bytes, odd.live_bytes) == (0, 4 * (4 * LANES + 1))
    assert replace(whole, may_use_output=False).live_bytes == 4 * 4 * LANES


def test_rows_side_by_side_read_nothing_else_by_row() -> None:
    before = "k = Constant<value_int=0>() z = Constant<value_float=0.0>() a = ArgMax<axis=1>(x) c = Equal(a, k)"
    task = task_of("Where(c, z, w)", [24, 40], ", float[24, 1] w", before)
    plan = match_row_plan(task, LANES)
    assert plan is not None and not plan.is_batchable
    [space] = [space for space in spaces(task, TARGET) if space.sketch == "rows"]
    for row in space.sample(8, np.random.default_rng(0)):
        verify(lower(Candidate(task, TARGET, space.schedule(row))))


def test_rows_that_a_tensor_names_are_not_asked_for_early() -> None:
    task = task_of("LayerNormalization(t, s)", [50, 40], ", int64[6] i, float[40] s", "t = Gather(x, i)")
    default = default_schedule(task, TARGET)
    assert default.sketch == "rows"
    values = dict(default.values) | {"rows": 2, "chunk_rows": 4, "ahead": 1}
    verify(lower(Candidate(task, TARGET, Schedule(default.sketch, default.version, tuple(values.items())))))


@pytest.mark.parametrize("vectors", [1, 2, 4, 8])
def test_vectors_are_folded_across_their_lanes(vectors: int) -> None:
    parts = [Load("x", (const(n), Ramp(const(0), 8)), DType.F32) for n in range(vectors)]
    x = np.random.default_rng(0).integers(0, 99, (vectors, 8)).astype(np.float32)
    sums = evaluate(across(parts, "add", 8), {}, lambda node, index: x[index[0], index[1]])
    assert np.array_equal(sums, np.repeat(x.sum(1), 8 // vectors))


@pytest.mark.parametrize("columns", [LANES + 3, 30 * LANES + 1])
@pytest.mark.parametrize(("rows", "together"), [(4, 1), (4, 2), (6, 4), (5, 4)])
def test_rows_pass_what_is_no_number_and_keep_to_themselves(columns: int, rows: int, together: int) -> None:
    task = task_of("Softmax(x)", [rows, columns])
    default = default_schedule(task, TARGET)
    values = dict(default.values) | {"rows": together, "chunk_rows": together}
    kernel = lower(Candidate(task, TARGET, Schedule(default.sketch, default.version, tuple(values.items()))))
    x = np.random.default_rng(0).normal(0, 3, (rows, columns)).astype(np.float32)
    x[1, 2], x[2, columns - 1] = np.nan, -np.inf
    y = np.zeros_like(x)
    interp.run(kernel, [x, y])
    assert np.isnan(y[1]).all()
    assert y[2, -1] == 0
    assert np.allclose(y[np.arange(rows) != 1].sum(1), 1, atol=1e-5)


def test_long_folds_are_split_and_others_left_alone() -> None:
    assert [splits for _, splits in folds(task_of("Softmax(x)", [1, 5000]), LANES)] == [True, False, True, False]
    assert not folds(task_of("Softmax(x)", [2, 5000]), LANES)  # rows are enough to share
    assert not folds(task_of("GlobalAveragePool(x)", [1, 64, 7, 7]), LANES)


def test_the_parts_of_a_long_concat_are_each_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"x{number}" for number in range(60)]
    task = task_of(f"Concat<axis=1>(x, {', '.join(names)})", [3, 4], "".join(f", float[3, 4] {name}" for name in names))
    looked: list[tuple[int, int]] = []

    def counted(task: Task, parts: Sequence[FusedStage], start: int, stop: int, most_bytes: float) -> RowGroup | None:
        looked.append((start, stop))
        return row_group(task, parts, start, stop, most_bytes)

    monkeypatch.setattr(rows, "row_group", counted)
    groups = rows.row_groups(task, fuse_stages(task))
    assert len(groups) == 61 and not any(group.rows for group in groups)
    assert looked == [(number, number + 1) for number in range(61)]


def test_what_is_written_in_parts_is_no_row_of_some_of_them() -> None:
    """The padding of a Concat has a piece for each part: none of them may keep the tensor to itself."""
    task = task_of(
        "MaxPool<kernel_shape = [2, 1], dilations = [2, 1], pads = [1, 0, 1, 0]>(t)",
        [2, 1, 1, 2],
        ", float[2,1,1,2] z",
        "t = Concat<axis = 1>(x, z)",
    )
    parts = fuse_stages(task)
    outputs = [fused_stage.output for fused_stage in parts]
    assert len(set(outputs)) < len(outputs)
    verify(lower(Candidate(task, TARGET, default_schedule(task, TARGET))))
