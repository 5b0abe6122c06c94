"""What is said of a pipeline beside the full one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunewright.bench import pipeline
from tunewright.bench.pipeline import FULL, OURS, PIPELINES, compare_with_full, summary
from tunewright.codegen.host import detect


def test_a_choice_is_judged_by_the_full_pipeline() -> None:
    figures = compare_with_full([1.0, 2.0, 4.0], [2.0, 1.0, 4.0], 5.0)
    assert (figures["speed_mean"], figures["speed_least"], figures["speed_of_best"]) == (1.0, 0.5, 1.0)
    assert (figures["choice_beside_best"], figures["is_same_choice"]) == (2.0, False)
    assert compare_with_full([1.0, 1.005], [2.0, 1.0], 5.0)["is_same_choice"]


def test_each_pipeline_is_compared_on_the_same_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(pipeline, "SCHEDULES", 2)
    monkeypatch.setattr(pipeline, "ROUNDS", 2)
    entry = pipeline.compare_pipelines("gelu 128x3072", detect(1))
    assert {name: len(times_us) for name, times_us in entry["times_us"].items()} == dict.fromkeys(PIPELINES, 2)
    figures = summary([entry, entry])
    assert figures["ours"] == OURS
    assert figures[FULL]["speed_mean"] == 1.0
    assert figures[OURS]["operators"] == 2
