"""Models of PyTorch by its compilers and ours."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tunewright.bench import torch_backend  # noqa: E402
from tunewright.bench.suite.pytorch import MODELS  # noqa: E402


def linear() -> tuple[Any, dict[str, Any]]:
    return torch.nn.Linear(8, 4).eval(), {"input": torch.randn(3, 8)}


def test_sides_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setitem(MODELS, "linear", linear)
    compile_model = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda model, backend: compile_model(model, backend=fail if backend == "inductor" else backend),
    )
    entry = torch_backend.measure("linear", 0.0, rounds=2, sample_s=1e-3)
    assert "no compiler" in entry["missing"]["inductor"]
    assert entry["errors"]["tunewright"] < 1e-4 and entry["eager_ms"] > 0 and entry["tunewright_ms"] > 0
    assert entry["by_pytorch"] == {} and entry["graphs"] == 1


def test_the_summary_is_of_the_sides_that_ran() -> None:
    fast = {"eager_ms": 4.0, "inductor_ms": 2.0, "tunewright_ms": 1.0, "by_pytorch": {}}
    slow = {"eager_ms": 1.0, "tunewright_ms": 1.0, "by_pytorch": {"aten.sort.default": 1}}
    told = torch_backend.totals([fast, slow])
    assert told["over_eager"] == {"geometric_mean": pytest.approx(2.0), "least": 1.0}
    assert told["over_inductor"] == {"geometric_mean": pytest.approx(2.0), "least": 2.0}
    assert (told["models"], told["whole"]) == (2, 1)
