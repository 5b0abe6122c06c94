"""Trials as they are listed, made up."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from onnx import TensorProto, helper

from tunewright.codegen.target import Target
from tunewright.db.trial import TrialLine
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.tuner.models.model import open_model


def convolution() -> Task:
    """3 x 3, which several sketches can write."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 28, 28])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 26, 26])]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [32, 16, 3, 3], [0.5] * (32 * 16 * 9))]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    [(task, _)] = open_model(model.SerializeToString()).tasks.values()
    return task


def points(task: Task, target: Target, count: int, seed: int = 0) -> list[Schedule]:
    """Up to so many schedules of each of its spaces."""
    rng = np.random.default_rng(seed)
    return [space.schedule(row) for space in spaces(task, target) for row in space.sample(count, rng)]


def line(schedule: Schedule, time_s: float | None = 1e-3, number: int = 1) -> TrialLine:
    """A trial that took so long; None: it failed."""
    return TrialLine(
        id=number,
        job_id=None,
        ordinal=None,
        schedule=schedule,
        status=Status.CRASH if time_s is None else Status.OK,
        median_s=time_s,
        low_s=time_s,
        high_s=time_s,
        samples=0 if time_s is None else 5,
        max_rel_err=None,
        error="",
        build_s=0.1,
        created_at=datetime(2026, 11, 20, tzinfo=UTC),
        is_imported=False,
        noise="",
        drift="",
    )
