"""What a process keeps of a model from one size to the next: picks, kernels, packed weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tests.search_space.oracle import HOST, native
from tests.search_space.test_sketches import agree, tasks_of
from tunewright.codegen.ir.fill import fill
from tunewright.codegen.llvm import build
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds, lower, spaces
from tunewright.tuner.lookup.ladder import lookup_with_cost_model
from tunewright.tuner.lookup.near_picks import NearPicks
from tunewright.tuner.lookup.result import Pick
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session.across_sizes import AcrossSizes
from tunewright.tuner.session.executable import executable_of_results
from tunewright.tuner.session.kernel_families import KernelFamilies
from tunewright.tuner.session.packed_weights import PackedWeights
from tunewright.tuner.session.session import InferenceSession

DENSE = "x[{a}, 8] w[8, 16] z[16] | t = MatMul(x, w) u = Add(t, z) y = Relu(u) | y[{a}, 16] ; w z"


def dense(rows: int) -> Task:
    [task] = tasks_of(DENSE, {"a": rows})
    return task


def shared(*sizes: int) -> Schedule:
    """A schedule with tiles of four rows that is legal for all of so many rows."""
    tasks = [dense(rows) for rows in sizes]
    [space, *_] = spaces(tasks[0], HOST)
    schedules = (space.schedule(point) for point in space.points)
    return next(s for s in schedules if s["tile_i0"] == 4 and all(holds(task, HOST, s) for task in tasks))


def test_one_kernel_serves_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    families, texts, compile_text = KernelFamilies(), list[str](), build.compile_text

    def counted(text: str, *arguments: Any) -> bytes:
        texts.append(text)
        return compile_text(text, *arguments)

    monkeypatch.setattr(build, "compile_text", counted)
    sizes = 67, 167, 263, 359  # of the same remainders
    schedule, counts = shared(*sizes), []
    for rows in sizes:
        task = dense(rows)
        [artifact] = families.build({task.key: task}, {task.key: schedule}, HOST, None).values()
        arrays, kernel = example_inputs(task, 0), lower(Candidate(task, HOST, schedule))
        agree(task, native(task, kernel, arrays, artifact=artifact), reference(task, arrays))
        counts.append((len(texts), bool(artifact.numbers)))
    assert counts[0][1] is False and all(is_symbolic for _, is_symbolic in counts[1:])
    assert counts[1][0] == counts[2][0] == counts[3][0] > counts[0][0]


def test_other_weights_and_schedules_are_other_kernels() -> None:
    families, one, other = KernelFamilies(), dense(67), dense(71)
    [wide] = tasks_of(DENSE.replace("16", "32"), {"a": 71})
    schedules = {task.key: default_schedule(task, HOST) for task in (one, other, wide)}
    first = families.build({one.key: one}, schedules, HOST, None)
    second = families.build({other.key: other, wide.key: wide}, schedules, HOST, None)
    assert not first[one.key].numbers and second[other.key].numbers and not second[wide.key].numbers


def test_picks_are_taken_over_where_the_work_is_about_as_much() -> None:
    picks, one = NearPicks(), dense(60)
    pick = Pick(shared(60, 72), 1e-5)
    picks.add(one, HOST, pick)
    near = picks.find(dense(72), HOST)
    assert near is not None and near.pick is not None
    assert near.pick.schedule == pick.schedule and near.pick.time_s == pytest.approx(1.2e-5)
    assert picks.find(dense(600), HOST) is None and picks.find(dense(60), replace(HOST, threads=7)) is None
    assert picks.find(tasks_of(DENSE.replace("16", "32"), {"a": 60})[0], HOST) is None
    picks.add(dense(600), HOST, None)
    default = picks.find(dense(500), HOST)
    assert default is not None and default.pick is None


def test_weights_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[n, 512] x) => (float[n, 1024] y) { y = MatMul(x, w) }'
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    content, across, packed = model.SerializeToString(), AcrossSizes(), list[int]()

    def counted(*arguments: Any) -> None:
        packed.append(1)
        fill(*arguments)

    monkeypatch.setattr(compile_module, "fill", counted)
    for rows in (67, 71, 75):
        opened = open_model(content, {"n": rows})
        results = lookup_with_cost_model(None, [task for task, _ in opened.tasks.values()], HOST, across.picks)
        executable = executable_of_results(opened, HOST, results, None, across=across)
        x = np.random.default_rng(rows).standard_normal((rows, 512)).astype(np.float32)
        with InferenceSession.of_executable(executable) as session:
            np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weight, rtol=1e-4, atol=1e-4)
    assert len(packed) == 1


def test_weights_of_the_last_two_sizes_are_kept() -> None:
    weights, blocks = PackedWeights(), [np.zeros(3, np.uint8) for _ in range(3)]
    keys = [PackedWeights.key(np.arange(4.0) + n, (4,), None) for n in range(3)]
    for key, block in zip(keys, blocks, strict=True):
        weights.begin_size()
        weights.put(key, block)
    assert [weights.get(key) is block for key, block in zip(keys, blocks, strict=True)] == [False, True, True]
    assert keys[0] == PackedWeights.key(np.arange(8.0)[::2] / 2, (4,), None) != keys[1]
