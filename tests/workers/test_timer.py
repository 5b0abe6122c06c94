"""A timer whose child is killed from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Status
from tunewright.workers.builder import Builder, Built
from tunewright.workers.pool import Limits
from tunewright.workers.timer import Timer


def test_a_child_killed_after_it_prepared_costs_nothing(
    make, target: Target, limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = make.default()
    builder, timer = Builder(tmp_path, limits), Timer(target.threads, tmp_path, limits)
    prepare, kills = timer.prepare, [timer.kill]

    def prepared(task) -> None:
        prepare(task)
        if kills:
            kills.pop()()

    monkeypatch.setattr(timer, "prepare", prepared)
    try:
        built = builder.build(candidate)
        assert isinstance(built, Built)
        assert timer.measure(candidate.task, built).status is Status.OK
        assert not kills
    finally:
        builder.close()
        timer.close()
