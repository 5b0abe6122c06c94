"""Ray's processes may be killed under a service at any moment. `./dev bench killing` does that for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunewright.bench.killing import kill_in_turn


@pytest.mark.slow
@pytest.mark.ray
def test_a_service_survives_the_processes_of_its_cluster(tmp_path: Path) -> None:
    """Jobs are given back and end, devices come back, and the service tells that they were gone."""
    report = kill_in_turn(tmp_path, ["raylet", "keeper", "gcs"], rounds=1)
    assert not report.faults, "\n".join(report.faults)
    assert [loss.role for loss in report.losses] == ["raylet", "keeper", "gcs"]
    assert report.jobs >= 2
