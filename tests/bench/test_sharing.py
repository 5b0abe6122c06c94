"""Models whose cores are shared."""

from __future__ import annotations

import pytest

from tunewright.bench import sharing


def test_a_model_is_measured_alone_beside_others_and_with_several_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "ROUNDS", 1)
    monkeypatch.setattr(sharing, "SAMPLE_S", 1e-3)
    monkeypatch.setattr(sharing, "CALLERS_S", 0.01)
    entry = sharing.measure("support_vectors", 2)
    for place in ("alone_ms", "beside_spinning_ms"):
        assert entry[place].keys() == {"ours", "onnxruntime", "onnxruntime_at_rest"}
        assert all(ms > 0 for ms in entry[place].values())
    assert entry["one_session_runs_s"] > 0 and entry["own_sessions_runs_s"] > 0


def test_a_summary_is_of_ratios() -> None:
    one = {
        "alone_ms": {"ours": 1.0, "onnxruntime": 2.0},
        "beside_spinning_ms": {"ours": 2.0, "onnxruntime": 2.0},
        "one_session_runs_s": 9.0,
        "own_sessions_runs_s": 10.0,
    }
    told = sharing.summary([one, {**one, "one_session_runs_s": 20.0}])
    assert told["slower_beside_spinning"] == {"ours": pytest.approx(2.0), "onnxruntime": pytest.approx(1.0)}
    assert told["least_share_of_own_sessions"] == 0.9
