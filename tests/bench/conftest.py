"""Programs that tests of benchmarks start find the package."""

from __future__ import annotations

import pytest

from ..tuner.processes import python_path


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run with nothing installed."""
    monkeypatch.setenv("PYTHONPATH", python_path()["PYTHONPATH"])
