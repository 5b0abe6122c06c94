"""What the base model learns from: tasks, schedules of them, and the parts that are held out."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.bench.search_parts.workloads import WORKLOADS
from tunewright.bench.suite import MODELS
from tunewright.bench.training import fit, tasks, trial_files
from tunewright.bench.training.choice import choose_schedules
from tunewright.bench.training.collection import collect
from tunewright.bench.training.fit import Sets, write
from tunewright.bench.training.tasks import FAMILIES, loops, reserved_loops
from tunewright.bench.training.trial_files import (
    EXPECTED,
    MEASURED,
    example,
    read_entries,
    read_expected,
    read_lines,
    write_trials,
)
from tunewright.codegen.target import Target
from tunewright.costmodel.labels import TrainingData
from tunewright.costmodel.layered_model import LayeredModel
from tunewright.costmodel.model import AnalyticModel, TaskOnTarget, Trials, group_trials
from tunewright.costmodel.validation import is_held_out
from tunewright.db.exchange import parse
from tunewright.db.store import open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.sketches import holds, spaces
from tunewright.tuner.errors import Refused
from tunewright.tuner.models.model import open_model

TARGET = Target("cpu", "x86_64-unknown-linux-gnu", "made-up", "", 512, 32, 2, 32 << 10, 1 << 20, 16 << 20)


def some_tasks(count: int) -> list[Task]:
    """Of products and rows, which take little time to make."""
    rng = np.random.default_rng(0)
    tasks_by_key: dict[str, Task] = {}
    while len(tasks_by_key) < count:
        for family in ("gemm", "rows", "elementwise"):
            tasks_by_key |= {key: task for key, (task, _) in open_model(FAMILIES[family](rng)).tasks.items()}
    return list(tasks_by_key.values())[:count]


class Estimating:
    """A pool that answers with the analytic estimate, and notes how many were compared."""

    def __init__(self) -> None:
        self.compared: list[int] = []

    def measure(
        self, candidates: list[Candidate], best_s: float | None = None
    ) -> Iterator[tuple[Candidate, Measurement]]:
        for candidate in candidates:
            [space] = [s for s in spaces(candidate.task, candidate.target) if s.sketch == candidate.schedule.sketch]
            [score] = AnalyticModel().score(
                candidate.task, candidate.target, space, space.row(candidate.schedule)[None]
            )
            time_s = float(np.exp2(-score))
            yield candidate, Measurement(Status.OK, (time_s,), time_s, 0.99 * time_s, 1.01 * time_s, 0.0)

    def compare(self, candidates: list[Candidate]) -> list[Measurement]:
        self.compared.append(len(candidates))
        return [measurement for _, measurement in self.measure(candidates)]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_schedules_are_measured_once(side_by_side: bool) -> None:
    [task] = some_tasks(1)
    pool: Any = Estimating()
    with open_store("sqlite://") as store:
        counts = [collect(store, pool, task, TARGET, count, side_by_side=side_by_side) for count in (12, 12, 24)]
        schedules = [record.schedule for record in store.records(task.key, TARGET.key)]
    few, many = (len(choose_schedules(task, TARGET, count)) for count in (12, 24))
    assert set(schedules) == {*choose_schedules(task, TARGET, 12), *choose_schedules(task, TARGET, 24)}
    assert counts == ([few, 0, many] if side_by_side else [few, 0, len(schedules) - few])
    assert pool.compared == ([few, many] if side_by_side else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_random_models_have_tasks_that_can_be_tuned(family: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(3):
        for task, _ in open_model(FAMILIES[family](rng)).tasks.values():
            assert spaces(task, TARGET)


def test_tasks_are_those_of_networks_and_as_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MODELS", {"squeezenet": MODELS["squeezenet"]})
    network_keys = set(tasks.training_tasks(0))
    all_tasks = tasks.training_tasks(5)
    assert network_keys and network_keys < all_tasks.keys() and len(all_tasks) == len(network_keys) + 5
    assert list(tasks.training_tasks(5)) == list(all_tasks)
    assert all(task.flops <= tasks.MOST_FLOPS for task in all_tasks.values())


def test_schedules_are_legal_distinct_and_begin_with_the_defaults() -> None:
    [task] = some_tasks(1)
    task_spaces = spaces(task, TARGET)
    schedules = choose_schedules(task, TARGET, 30)
    assert schedules[: len(task_spaces)] == [space.default for space in task_spaces]
    assert len(set(schedules)) == len(schedules) and 10 < len(schedules) <= 30
    assert all(holds(task, TARGET, schedule) for schedule in schedules)
    assert choose_schedules(task, TARGET, 30) == schedules


def test_no_model_learns_of_the_workloads() -> None:
    out = reserved_loops()
    for workload in WORKLOADS.values():
        assert any(loops(task) in out for task, _ in open_model(workload.build()).tasks.values())
    conv = WORKLOADS["conv 3x3 64-64 at 56x56"]
    [(task, _)] = open_model(conv.build()).tasks.values()
    assert loops(task) == ((56, 56, 64), (3, 3, 64), "sum")


def test_no_workload_transposes_what_the_rival_has_in_order() -> None:
    for name, workload in WORKLOADS.items():
        [(task, _)] = open_model(workload.build()).tasks.values()
        assert "Transpose" not in task.op, name


@pytest.mark.slow
def test_from_measured_schedules_to_a_model_and_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MEMBERS", 2)
    tasks = some_tasks(24)
    with open_store("sqlite://") as store:
        for least, most in ((151, inf), (0, 0)):
            added = [collect(store, Estimating(), task, TARGET, 12) for task in tasks]  # type: ignore[arg-type]
            assert least <= sum(added) <= most
        trials = list(group_trials(store.examples("cpu")))
    first = next(task for task in tasks if not is_held_out(task.key))
    expected = [replace(task_trials, target=replace(TARGET, cpu="older")) for task_trials in trials]
    sets = Sets.of(trials, expected, {loops(first)})
    learned_keys, held_out = ({task_trials.task.key for task_trials in part} for part in (sets.measured, sets.held_out))
    assert first.key in held_out and not learned_keys & held_out
    assert {task_trials.task.key for task_trials in sets.expected} == learned_keys
    assert {key for key in held_out if not is_held_out(key)} == {
        task.key for task in tasks if loops(task) == loops(first) and not is_held_out(task.key)
    }
    fitted_tasks: set[TaskOnTarget] = set()
    lesson = TrainingData.of

    def told_of(sets: Sequence[Trials]) -> TrainingData:
        fitted_tasks.update(task_trials.key for task_trials in sets)
        return lesson(sets)

    monkeypatch.setattr(TrainingData, "of", told_of)
    card = write(tmp_path, "cpu", sets, {"processor": "one, two"})
    assert fitted_tasks == {task_trials.key for task_trials in (*sets.measured, *sets.expected)}
    assert LayeredModel.read((tmp_path / "cpu.xz").read_bytes(), card["sha256"]).layers[0].members == 2
    assert card["learned_from"]["tasks"] == len(learned_keys)
    assert card["quality"]["pairwise"] > 0.6
    assert card["quality_by_processor"] == {TARGET.cpu: card["quality"]}
    assert card["objectives"].keys() == {"analytic", *fit.OBJECTIVES}
    assert card["machine"] == {"processor": "one, two"}
    assert card["targets"] == [str(TARGET)] and card["told"]["targets"] == ["cpu:older:2x512"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu.json", "cpu.xz"]


def sort_key(trials: Trials) -> tuple[str, str]:
    return trials.task.key, trials.space.sketch


def test_what_is_kept_is_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "made-up.xz"
    with open_store("sqlite://") as store, open_store("sqlite://") as another:
        for task in some_tasks(3):
            collect(store, Estimating(), task, TARGET, 12)  # type: ignore[arg-type]
        failed = Measurement(Status.CRASH, error="it is gone")
        store.record(Record(task.key, TARGET.key, spaces(task, TARGET)[0].default, failed))
        count = write_trials(path, store.export())
        assert count == another.import_(trial_files.read_lines(path)).added > 30
        before, after = (list(group_trials(first.examples("cpu"))) for first in (store, another))
    for trials in (after, list(group_trials(map(example, read_entries(tmp_path))))):
        for first, other in zip(sorted(trials, key=sort_key), sorted(before, key=sort_key), strict=True):
            assert (first.task, first.target, first.space.knobs) == (other.task, other.target, other.space.knobs)
            order, other_order = (
                np.argsort(task_trials.space.codes(task_trials.rows)) for task_trials in (first, other)
            )
            np.testing.assert_array_equal(first.rows[order], other.rows[other_order])
            np.testing.assert_allclose(first.times_s[order], other.times_s[other_order], rtol=1e-3)
            assert first.spans_s is not None and other.spans_s is not None
            np.testing.assert_allclose(first.spans_s[order], other.spans_s[other_order], rtol=1e-3)


@pytest.mark.parametrize(
    "content", [b"no", lzma.compress(b"{}\n"), lzma.compress(b"{}\n")[:-9], lzma.compress(b"\xff")]
)
def test_what_is_no_kept_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.xz").write_bytes(content)
    with pytest.raises(Refused, match=r"broken\.xz"):
        read_entries(tmp_path)


def test_nothing_is_told_of_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, measured = tmp_path / "expected", tmp_path / "measured"
    expected.mkdir()
    measured.mkdir()
    path = next(EXPECTED.glob("*.xz"))
    with lzma.open(expected / path.name, "wt", encoding="utf-8") as file:
        file.writelines(islice(read_lines(path), 3))
    monkeypatch.setattr(trial_files, "EXPECTED", expected)
    monkeypatch.setattr(trial_files, "MEASURED", measured)
    assert len(read_expected()) == 3
    (measured / path.name).touch()
    assert not read_expected()


@pytest.mark.slow
def test_what_base_models_learn_from_can_be_read() -> None:
    for folder in (MEASURED, EXPECTED):
        lines = [line for path in folder.glob("*.xz") for line in read_lines(path)]
        assert len(lines) > 10_000
        sample = map(parse, lines[:: len(lines) // 500])  # parsing all takes a minute
        assert sum(len(task_trials.rows) for task_trials in group_trials(map(example, sample))) > 450
