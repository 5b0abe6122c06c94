"""Models at many sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunewright.bench import sizes
from tunewright.bench.suite.opened import OPEN_MODELS, SizeSteps


def test_sizes_are_drawn_once_each_and_small_ones_as_often_as_large_ones() -> None:
    drawn = sizes.draw({"a": SizeSteps(1, 1024), "b": SizeSteps(32, 320, 32)}, 64)
    assert len({tuple(one.values()) for one in drawn}) == len(drawn) == 64
    assert all(1 <= one["a"] <= 1024 and one["b"] in range(32, 321, 32) for one in drawn)
    assert 16 <= sum(one["a"] < 32 for one in drawn) <= 48
    assert len(sizes.draw({"a": SizeSteps(1, 3)}, 64)) == 3


@pytest.mark.parametrize("name", OPEN_MODELS)
def test_open_models_tell_their_dimensions(name: str) -> None:
    form = OPEN_MODELS[name]
    assert {dimension for axes in form.axes.values() for dimension in axes.values()} == form.dimensions.keys()


@pytest.mark.slow
def test_a_model_is_measured_at_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    entry = sizes.measure(OPEN_MODELS["ocr_detector"], 2, 1)
    assert (entry["threads"], entry["summary"]["sizes"], entry["summary"]["wrong"]) == (1, 2, 0)
    first, second = entry["sizes"]
    assert first["sizes"] != second["sizes"] and "static_ms" in first and "static_ms" not in second
    assert all(row["first_ms"] > 0 and row["ours_ms"] > 0 and row["onnxruntime_ms"] > 0 for row in (first, second))


def test_a_summary_says_what_is_worst() -> None:
    row = {"is_right": True, "first_ms": 5.0, "ours_ms": 2.0, "onnxruntime_ms": 4.0, "wait_s": 1.0}
    rows = [row, {**row, "is_right": False, "first_ms": 9.0, "onnxruntime_ms": 1.0, "static_ms": 1.0}]
    told = sizes.summary(rows)
    assert told["wrong"] == 1 and told["first_beyond_steady_ms"] == 7.0
    assert (told["gain"], told["least_gain"]) == (pytest.approx(1.0), 0.5)
    assert (told["of_static"], told["least_of_static"]) == (pytest.approx(0.5), 0.5)
    assert sizes.summary(rows[:1])["of_static"] is None
