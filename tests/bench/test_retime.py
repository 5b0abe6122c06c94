"""Timing what is stale again beside tuning it, on a model of next to nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tunewright.bench import retime
from tunewright.bench.suite.network import model_of


def product() -> bytes:
    """A small matrix product."""
    return model_of(lambda net, x: net.add("MatMul", x, net.weight((64, 48), 64)), 8, 64)


@pytest.mark.slow
def test_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(retime, "MODELS", {"product": product})
    monkeypatch.setattr(retime, "FOLDER", tmp_path)
    monkeypatch.setattr(retime, "MOST_SHARE", 1e9)  # next to nothing is searched
    arguments = ["--trials", "6", "--minutes", "1", "--best", "2", "--threads", "1"]
    monkeypatch.setattr(
        sys, "argv", ["retime", "product", *arguments, "--results", str(tmp_path / "results" / "retime.json")]
    )
    assert retime.main() == 0
    found = json.loads((tmp_path / "results" / "retime.json").read_text())
    entry = found["cases"]["product"]["1"]
    assert entry["tasks"] == sum(entry["payoffs"].values()) == 1 and entry["trials"] == 6
    assert entry["share"] == pytest.approx(entry["comparing_s"] / entry["searching_s"])
    assert found["summary"]["largest_share"] == entry["share"]
    assert (entry["gain"], entry["best"]) == (found["summary"]["gain"], 2)
    assert "largest_share" in capsys.readouterr().out


def test_a_summary_of_nothing() -> None:
    assert retime.summary([]) == {"models": 0, "largest_share": None, "gain_before": None, "gain": None}
