"""Picks on disk: the same as those that are made anew, and only where the same model would make them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunewright.costmodel.base import base
from tunewright.db.store import Store
from tunewright.search_space.sketches import default_schedule, holds
from tunewright.tuner.lookup import experience, ladder, predictor
from tunewright.tuner.lookup.experience import learn
from tunewright.tuner.lookup.pick_file import MOST_PICKS, PickFile
from tunewright.tuner.lookup.predictor import FixedPredictor
from tunewright.tuner.lookup.result import Match, Pick

from .test_lookup import FAR, NEAR, TARGET, TASK, product
from .test_lookup_predictor import add_trials

TASKS = (TASK, NEAR, FAR, product(7, 5, 3))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(experience, "base", base)
    return tmp_path


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that were scored."""
    keys: list[str] = []
    pick_by = predictor.pick_by

    def count(model: Any, task: Any, *rest: Any) -> Pick | None:
        keys.append(task.key)
        return pick_by(model, task, *rest)

    monkeypatch.setattr(predictor, "pick_by", count)
    return keys


def test_no_task_is_scored_twice(home: Path, scored: list[str]) -> None:
    first = ladder.lookup_with_cost_model(None, TASKS, TARGET)
    assert scored == [task.key for task in TASKS]
    assert {result.match for result in first.values()} >= {Match.PREDICTED}
    again = ladder.lookup_with_cost_model(None, (*TASKS, product(8, 8, 8)), TARGET)
    assert scored[len(TASKS) :] == [product(8, 8, 8).key]
    assert all(again[key] == result for key, result in first.items())
    fresh = FixedPredictor(None)
    for task in TASKS:
        pick = fresh.pick(task, TARGET, set())
        schedule = default_schedule(task, TARGET) if pick is None else pick.schedule
        assert again[task.key].schedule == schedule and holds(task, TARGET, schedule)


def test_another_target_or_model_picks_anew(monkeypatch: pytest.MonkeyPatch, scored: list[str]) -> None:
    ladder.lookup_with_cost_model(None, [TASK], TARGET)
    ladder.lookup_with_cost_model(None, [TASK], replace(TARGET, threads=TARGET.threads + 1))
    assert len(scored) == 2
    shipped = base("cpu")
    assert shipped is not None
    monkeypatch.setattr(experience, "base", lambda kind: replace(shipped, sha256="another"))
    ladder.lookup_with_cost_model(None, [TASK], TARGET)
    assert len(scored) == 3


def test_a_snapshot_is_another_model(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add_target(TARGET)
    add_trials(store, 60)
    snapshot = learn(store, "cpu")
    shipped = base("cpu")
    assert snapshot is not None and shipped is not None
    monkeypatch.setattr(experience, "is_proven", lambda _: True)
    assert experience.proven_experience(store, "cpu").sha256s == [shipped.sha256, snapshot.sha256]
    assert experience.proven_experience(None, "cpu").sha256s == [shipped.sha256]


def test_where_a_schedule_fails_picks_are_made_anew(home: Path, scored: list[str]) -> None:
    one = FixedPredictor(None, home / "picks")
    picks = {task: one.pick(task, TARGET, set()) for task in TASKS}
    task, pick = next((task, pick) for task, pick in picks.items() if pick is not None)
    scored.clear()
    for _ in range(2):
        other = one.pick(task, TARGET, {pick.schedule.key})
        assert other is None or other.schedule != pick.schedule
    assert one.pick(task, TARGET, set()) == pick
    assert len(scored) == 2


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"key": 1}', b'{"key": [{}, 1.0]}', b"\xff"])
def test_a_file_that_can_not_be_read_counts_as_empty(home: Path, content: bytes) -> None:
    first = ladder.lookup_with_cost_model(None, [TASK], TARGET)
    [path] = (home / "picks").iterdir()
    whole = path.read_bytes()
    path.write_bytes(content)
    assert ladder.lookup_with_cost_model(None, [TASK], TARGET) == first
    assert path.read_bytes() == whole


def test_a_folder_that_can_not_be_used_is_no_error(home: Path) -> None:
    (home / "picks").write_text("a file", encoding="utf-8")
    assert ladder.lookup_with_cost_model(None, [TASK], TARGET) == ladder.lookup_with_cost_model(None, [TASK], TARGET)


def test_what_others_write_meanwhile_stays(home: Path) -> None:
    pick = Pick(default_schedule(TASK, TARGET), 1e-3)
    one, other = (PickFile(home / "picks", ["key"]) for _ in range(2))
    one["a"], other["b"] = pick, None
    one.save()
    other.save()
    both = PickFile(home / "picks", ["key"])
    assert both["a"] == pick and both["b"] is None and "c" not in both


def test_the_last_ones_stay(home: Path) -> None:
    file = PickFile(home / "picks", ["key"])
    for number in range(MOST_PICKS + 10):
        file[str(number)] = None
    file.save()
    again = PickFile(home / "picks", ["key"])
    assert "9" not in again and "10" in again and str(MOST_PICKS + 9) in again
