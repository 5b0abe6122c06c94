"""What the base model learns from: tasks, schedules of them, and the parts that are held out."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.bench.base_model import example
from tunewright.bench.searching.workloads import WORKLOADS
from tunewright.bench.suite import MODELS
from tunewright.bench.training import fitting, kept, tasks
from tunewright.bench.training.collecting import chosen, collect
from tunewright.bench.training.fitting import Sets, write
from tunewright.bench.training.kept import MEASURED, TOLD, entries, keep, told
from tunewright.bench.training.tasks import FAMILIES, loops, reserved
from tunewright.codegen.target import Target
from tunewright.costmodel.examples import grouped
from tunewright.costmodel.judging import is_held_out
from tunewright.costmodel.labels import Lesson, TaskOnTarget, task_of
from tunewright.costmodel.learned import Learned
from tunewright.costmodel.model import AnalyticModel, Trials
from tunewright.db.sql_store import open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.sketches import holds, spaces
from tunewright.tuner.errors import Refused
from tunewright.tuner.models.model import open_model

TARGET = Target("cpu", "x86_64-unknown-linux-gnu", "made-up", "", 512, 32, 2, 32 << 10, 1 << 20, 16 << 20)


def some_tasks(count: int) -> list[Task]:
    """Of products and rows, which take little time to make."""
    rng = np.random.default_rng(0)
    found: dict[str, Task] = {}
    while len(found) < count:
        for family in ("gemm", "rows", "elementwise"):
            found |= {key: task for key, (task, _) in open_model(FAMILIES[family](rng)).tasks.items()}
    return list(found.values())[:count]


class Estimating:
    """A pool that answers with the analytic estimate, and notes how many were compared."""

    def __init__(self) -> None:
        self.compared: list[int] = []

    def measure(
        self, candidates: list[Candidate], best_s: float | None = None
    ) -> Iterator[tuple[Candidate, Measurement]]:
        for one in candidates:
            [space] = [s for s in spaces(one.task, one.target) if s.sketch == one.schedule.sketch]
            [score] = AnalyticModel().score(one.task, one.target, space, space.row(one.schedule)[None])
            time_s = float(np.exp2(-score))
            yield one, Measurement(Status.OK, (time_s,), time_s, 0.99 * time_s, 1.01 * time_s, 0.0)

    def compare(self, candidates: list[Candidate]) -> list[Measurement]:
        self.compared.append(len(candidates))
        return [measurement for _, measurement in self.measure(candidates)]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_schedules_are_measured_once(side_by_side: bool) -> None:
    [task] = some_tasks(1)
    pool: Any = Estimating()
    with open_store("sqlite://") as store:
        counts = [collect(store, pool, task, TARGET, count, side_by_side=side_by_side) for count in (12, 12, 24)]
        found = [record.schedule for record in store.records(task.key, TARGET.key)]
    few, many = (len(chosen(task, TARGET, count)) for count in (12, 24))
    assert set(found) == {*chosen(task, TARGET, 12), *chosen(task, TARGET, 24)}
    assert counts == ([few, 0, many] if side_by_side else [few, 0, len(found) - few])
    assert pool.compared == ([few, many] if side_by_side else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_random_models_have_tasks_that_can_be_tuned(family: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(3):
        for task, _ in open_model(FAMILIES[family](rng)).tasks.values():
            assert spaces(task, TARGET)


def test_tasks_are_those_of_networks_and_as_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MODELS", {"squeezenet": MODELS["squeezenet"]})
    own = set(tasks.training_tasks(0))
    found = tasks.training_tasks(5)
    assert own and own < found.keys() and len(found) == len(own) + 5
    assert list(tasks.training_tasks(5)) == list(found)
    assert all(task.flops <= tasks.MOST_FLOPS for task in found.values())


def test_schedules_are_legal_distinct_and_begin_with_the_defaults() -> None:
    [task] = some_tasks(1)
    offered = spaces(task, TARGET)
    found = chosen(task, TARGET, 30)
    assert found[: len(offered)] == [space.default for space in offered]
    assert len(set(found)) == len(found) and 10 < len(found) <= 30
    assert all(holds(task, TARGET, schedule) for schedule in found)
    assert chosen(task, TARGET, 30) == found


def test_no_model_learns_of_the_workloads() -> None:
    out = reserved()
    for workload in WORKLOADS.values():
        assert any(loops(task) in out for task, _ in open_model(workload.build()).tasks.values())
    conv = WORKLOADS["conv 3x3 64-64 at 56x56"]
    [(task, _)] = open_model(conv.build()).tasks.values()
    assert loops(task) == ((56, 56, 64), (3, 3, 64), "sum")


def test_no_workload_transposes_what_the_rival_has_in_order() -> None:
    for name, workload in WORKLOADS.items():
        [(task, _)] = open_model(workload.build()).tasks.values()
        assert "Transpose" not in task.op, name


def test_from_measured_schedules_to_a_model_and_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MEMBERS", 2)
    several = some_tasks(24)
    with open_store("sqlite://") as store:
        for least, most in ((151, inf), (0, 0)):
            added = [collect(store, Estimating(), task, TARGET, 12) for task in several]  # type: ignore[arg-type]
            assert least <= sum(added) <= most
        trials = list(grouped(store.examples("cpu")))
    first = next(task for task in several if not is_held_out(task.key))
    told = [replace(each, target=replace(TARGET, cpu="older")) for each in trials]
    sets = Sets.of(trials, told, {loops(first)})
    learned, held_out = ({each.task.key for each in part} for part in (sets.measured, sets.held_out))
    assert first.key in held_out and not learned & held_out
    assert {each.task.key for each in sets.told} == learned
    assert {key for key in held_out if not is_held_out(key)} == {
        task.key for task in several if loops(task) == loops(first) and not is_held_out(task.key)
    }
    taught: set[TaskOnTarget] = set()
    lesson = Lesson.of

    def told_of(sets: Sequence[Trials]) -> Lesson:
        taught.update(map(task_of, sets))
        return lesson(sets)

    monkeypatch.setattr(Lesson, "of", told_of)
    card = write(tmp_path, "cpu", sets, {"processor": "one, two"})
    assert taught == {task_of(each) for each in (*sets.measured, *sets.told)}
    assert Learned.read((tmp_path / "cpu.xz").read_bytes(), card["sha256"]).layers[0].members == 2
    assert card["learned_from"]["tasks"] == len(learned)
    assert card["quality"]["pairwise"] > 0.6
    assert card["quality_by_processor"] == {TARGET.cpu: card["quality"]}
    assert card["objectives"].keys() == {"analytic", *fitting.OBJECTIVES}
    assert card["machine"] == {"processor": "one, two"}
    assert card["targets"] == [str(TARGET)] and card["told"]["targets"] == ["cpu:older:2x512"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu.json", "cpu.xz"]


def named(trials: Trials) -> tuple[str, str]:
    return trials.task.key, trials.space.sketch


def test_what_is_kept_is_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "made-up.xz"
    with open_store("sqlite://") as store, open_store("sqlite://") as another:
        for task in some_tasks(3):
            collect(store, Estimating(), task, TARGET, 12)  # type: ignore[arg-type]
        failed = Measurement(Status.CRASH, error="it is gone")
        store.record(Record(task.key, TARGET.key, spaces(task, TARGET)[0].default, failed))
        count = keep(path, store.export())
        assert count == another.import_(kept.lines(path)).added > 30
        before, after = (list(grouped(one.examples("cpu"))) for one in (store, another))
    for found in (after, list(grouped(map(example, entries(tmp_path))))):
        for one, other in zip(sorted(found, key=named), sorted(before, key=named), strict=True):
            assert (one.task, one.target, one.space.knobs) == (other.task, other.target, other.space.knobs)
            order, wanted = (np.argsort(each.space.codes(each.rows)) for each in (one, other))
            np.testing.assert_array_equal(one.rows[order], other.rows[wanted])
            np.testing.assert_allclose(one.times_s[order], other.times_s[wanted], rtol=1e-3)
            assert one.spans_s is not None and other.spans_s is not None
            np.testing.assert_allclose(one.spans_s[order], other.spans_s[wanted], rtol=1e-3)


@pytest.mark.parametrize(
    "content", [b"no", lzma.compress(b"{}\n"), lzma.compress(b"{}\n")[:-9], lzma.compress(b"\xff")]
)
def test_what_is_no_kept_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.xz").write_bytes(content)
    with pytest.raises(Refused, match=r"broken\.xz"):
        entries(tmp_path)


def test_nothing_is_told_of_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MEASURED", tmp_path)
    assert told()
    for path in TOLD.glob("*.xz"):
        (tmp_path / path.name).touch()
    assert not told()


def test_what_base_models_learn_from_can_be_read() -> None:
    measured, expected = entries(MEASURED), told()
    assert len(measured) > 10_000
    assert len(expected) > 10_000
    some = [*measured[:: len(measured) // 500], *expected[:: len(expected) // 500]]
    assert sum(len(each.rows) for each in grouped(map(example, some))) > 900
