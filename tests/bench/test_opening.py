"""How soon models answer."""

from __future__ import annotations

import pytest

from tunewright.bench import opening


@pytest.mark.slow
def test_a_model_is_opened_cold_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "ROUNDS", 1)
    entry = opening.measure("support_vectors", 1)
    assert entry["fault"] is None and entry["rel_err"] < 1e-4
    assert all(
        entry[name] > 0 for name in ("onnxruntime_s", "cold_s", "kept_s", "kept_open_s", "early_ms", "steady_ms")
    )
    assert entry["ready_s"] > entry["cold_s"]


def test_a_summary_tells_the_slowest() -> None:
    fast = {
        "onnxruntime_s": 0.1,
        "cold_s": 0.9,
        "kept_s": 0.1,
        "kept_open_s": 0.05,
        "ready_s": 2.0,
        "steady_ms": 1.0,
        "fault": None,
    }
    slow = {**fast, "cold_s": 1.5, "kept_s": 0.3, "early_ms": 3.0, "early_p99_ms": 6.0, "fault": "output 0: NaN"}
    told = opening.summary([fast, slow])
    assert (told["models"], told["in_time"], told["wrong"]) == (2, 1, 1)
    assert (told["slowest_cold_s"], told["slowest_kept_s"], told["most_slower_early"]) == (1.5, 0.3, 3.0)
    assert told["most_p99_of_median"] == 2.0 and opening.summary([fast])["most_slower_early"] is None
