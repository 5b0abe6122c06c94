"""Collection of trials on a GPU, which the interpreter stands in for."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import pytest

from tunewright.bench import gpu_trials
from tunewright.bench.gpus import collection, tasks, trial_device
from tunewright.bench.gpus.plan import JUDGED_SCHEDULES, PlannedTask, plan, read_plan, write_plan
from tunewright.bench.gpus.trial_device import TrialDevice, serve
from tunewright.bench.gpus.workloads import KERNEL_WORKLOADS, heaviest_task, product_text, softmax_text
from tunewright.bench.training import fit
from tunewright.bench.training.choice import choose_schedules
from tunewright.bench.training.tasks import loops
from tunewright.bench.training.trial_files import read_entries
from tunewright.codegen.cuda.device import NoDevice
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.llvm.build import BuildError
from tunewright.codegen.target import CUDA, Target
from tunewright.costmodel import base as base_module
from tunewright.costmodel.model import AnalyticModel
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.tuner.errors import Refused

from ..workers import simulated

TARGET = Target.of_gpu(KNOWN["sm_80"])

PRODUCT = heaviest_task(product_text("float16", 16, 32, 16))
ROWS = heaviest_task(softmax_text("float", 24, 40))


class Simulated(simulated.Simulated):
    """A driver whose queue is no device's."""

    @contextmanager
    def queueing(self) -> Iterator[None]:
        yield


def serve_simulated(pipe: Any) -> None:
    serve(pipe, Simulated(), np)


def build_simulated(candidate: Candidate) -> Any:
    if candidate.schedule.sketch == "refused":
        return "BuildError: no"
    return simulated.compiled(candidate)


@pytest.fixture(autouse=True)
def simulated_gpu(monkeypatch):
    """Processes are forks, and threads where they build: what is replaced here is so in them."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    monkeypatch.setattr(trial_device, "versions", lambda: simulated.VERSIONS)
    monkeypatch.setattr(sketches, "SKETCHES", simulated.WITH_SIMULATED)
    monkeypatch.setattr(collection, "_builders", lambda: ThreadPool(1))
    monkeypatch.setattr(collection, "build_candidate", build_simulated)


def faulty(fault: str) -> Schedule:
    return Schedule(f"simulated.{fault}", 1, ())


@pytest.mark.slow
def test_every_trial_is_a_line_whatever_its_kernel_does(tmp_path, monkeypatch):
    good = choose_schedules(PRODUCT, TARGET, 4)
    bad = [faulty("wrong"), faulty("crash"), faulty("hang"), Schedule("refused", 1, ())]
    planned_tasks = [
        PlannedTask(PRODUCT, (good[0], *bad, *good[1:])),
        PlannedTask(ROWS, (choose_schedules(ROWS, TARGET, 1)[0],)),
    ]
    path = tmp_path / "collected.jsonl"
    with TrialDevice(serve_simulated, limit_s=4.0) as device:  # long enough on a busy machine
        assert collection.collect(planned_tasks, TARGET, device, path, 600.0) == len(good) + len(bad) + 1
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["status"] for line in lines] == [
        "ok", "wrong_result", "crash", "timeout", "build_error", *["ok"] * len(good),
    ]  # fmt: skip
    assert all(line["median_s"] == simulated.TIME_S for line in lines if line["status"] == "ok")
    assert lines[0]["provenance"] == {"gpu": "a simulated GPU", **simulated.VERSIONS, "clock": "1000 MHz"}
    monkeypatch.setattr(gpu_trials, "MEASURED", tmp_path)
    path.write_text(path.read_text() + '{"cut')
    [kept_path] = gpu_trials.keep(path)
    assert kept_path == tmp_path / "a_simulated_gpu.xz"
    entries = read_entries(tmp_path)
    assert [entry.record.measurement.status for entry in entries] == [Status(line["status"]) for line in lines]
    left = list(gpu_trials.select_untried([*planned_tasks, PlannedTask(ROWS, (faulty("ok"),))], lines, TARGET))
    assert [len(each.schedules) for each in left] == [0, 0, 1]
    assert {entry.task.key for entry in entries} == {PRODUCT.key, ROWS.key} and entries[0].target == TARGET


def test_a_machine_without_a_device_is_no_crash_of_a_kernel():
    candidate = Candidate(PRODUCT, TARGET, choose_schedules(PRODUCT, TARGET, 1)[0])
    with TrialDevice(lambda pipe: pipe.close()) as device, pytest.raises(NoDevice, match="no process has the device"):
        device.measure(PRODUCT, build_simulated(candidate))


def test_it_ends_when_the_time_is_over(tmp_path):
    path = tmp_path / "collected.jsonl"
    with TrialDevice(serve_simulated) as device:
        assert (
            collection.collect(
                [PlannedTask(PRODUCT, tuple(choose_schedules(PRODUCT, TARGET, 4)))], TARGET, device, path, -1.0
            )
            == 0
        )
    assert not path.read_text()


def test_a_schedule_of_another_target_is_passed_over(monkeypatch):
    monkeypatch.undo()
    assert collection.build_candidate(Candidate(ROWS, TARGET, choose_schedules(PRODUCT, TARGET, 1)[0])) is None

    def refuse(*_: object) -> None:
        raise BuildError("no such instruction")

    monkeypatch.setattr(collection, "build", refuse)
    schedule = choose_schedules(ROWS, TARGET, 1)[0]
    assert collection.build_candidate(Candidate(ROWS, TARGET, schedule)) == "BuildError: no such instruction"


@pytest.mark.parametrize(
    ("output", "expected", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -3.0], [1.0, -4.0], 0.25),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan, 1.0], [2.0, 1.0], np.inf),
        ([2.0, 1.0], [np.nan, 1.0], np.inf),
    ],
)
def test_outputs_are_compared_by_their_largest_magnitude(output, expected, error):
    assert trial_device._difference(np.array(output), np.array(expected), np) == error


def test_brain_floats_are_compared_as_floats():
    import ml_dtypes

    values = np.array([1.5, -3.0, np.inf], ml_dtypes.bfloat16)
    dtype = heaviest_task(softmax_text("bfloat16", 64, 64)).outputs[0].dtype
    assert trial_device._values(values.view(np.uint8), dtype, np).tolist() == [1.5, -3.0, np.inf]


def test_a_plan_is_read_as_it_was_written(tmp_path):
    planned_tasks = list(plan({task.key: task for task in (PRODUCT, ROWS)}, TARGET))
    assert write_plan(tmp_path / "plan.xz", iter(planned_tasks)) == sum(len(each.schedules) for each in planned_tasks)
    assert read_plan(tmp_path / "plan.xz") == planned_tasks


def test_what_is_benched_is_judged_by():
    task = heaviest_task(KERNEL_WORKLOADS["softmax float32 4096x1024"].text)
    assert loops(task) in tasks.reserved_loops()
    [planned] = plan({task.key: task}, TARGET)
    assert len(planned.schedules) > JUDGED_SCHEDULES // 2


@pytest.mark.parametrize("family", tasks.FAMILIES)
def test_random_tasks_have_schedules(family):
    rng = np.random.default_rng(3)
    for _ in range(2):
        assert choose_schedules(heaviest_task(tasks.FAMILIES[family](rng)), TARGET, 1)


def test_tasks_are_in_an_order_that_stays(monkeypatch):
    monkeypatch.setattr(tasks, "MODELS", {})
    some = tasks.training_tasks(TARGET, 5)
    assert list(some) == list(tasks.training_tasks(TARGET, 5)) and list(some) != sorted(some)
    assert all(task.flops <= tasks.MOST_FLOPS for task in some.values())
    assert replace(next(iter(some.values()))).key in some


@pytest.mark.slow
def test_from_what_was_collected_to_a_model_and_its_card(tmp_path, monkeypatch, capsys):
    """Trials as if the estimate were right: the way is the one that trials of a device go."""
    rng, lines = np.random.default_rng(0), []
    some_tasks = [heaviest_task(softmax_text("float", *rng.integers(16, 2048, 2).tolist())) for _ in range(30)]
    for task in some_tasks:
        for space in spaces(task, TARGET):
            rows = space.sample(9, rng)
            for row, score in zip(rows, AnalyticModel().score(task, TARGET, space, rows), strict=True):
                time_s = float(np.exp2(-score))
                measurement = Measurement(
                    Status.OK, (time_s,), time_s, 0.99 * time_s, 1.01 * time_s, 0.0, provenance={"gpu": "Made Up"}
                )
                lines.append(collection._line(Candidate(task, TARGET, space.schedule(row)), measurement))
    (tmp_path / "collected.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for module in (gpu_trials, fit):
        monkeypatch.setattr(module, "MEASURED", tmp_path)
    monkeypatch.setattr(gpu_trials, "PACKAGE", tmp_path / "base_model")
    for step in ("keep", "fit"):
        monkeypatch.setattr(sys, "argv", ["gpu_trials", step, "--collected", str(tmp_path / "collected.jsonl")])
        assert gpu_trials.main() == 0
    monkeypatch.setattr(base_module, "files", lambda package: tmp_path)
    shipped = base_module.base.__wrapped__(CUDA)
    assert shipped is not None and shipped.learned.kind == CUDA
    assert shipped.learned.sketches == frozenset({"row_blocks 1"})
    assert shipped.card["machine"] == {"gpu": "Made Up"} and shipped.card["targets"] == [str(TARGET)]
    assert shipped.card["quality"]["pairwise"] > 0.6
    with pytest.raises(Refused, match="cpu"):
        fit.Sets.read("cpu", ())
