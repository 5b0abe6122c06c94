"""Children that can import the plugin `planted`, and a task to measure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Load, Var
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _importable_in_children() -> Iterator[None]:
    """Tests run with nothing installed, and the plugin lies here."""
    paths = [str(HERE.parents[1] / ".types"), str(HERE), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        yield


@pytest.fixture(scope="session")
def target() -> Target:
    return detect(1)


def product_task(rows: int = 24, depth: int = 32, columns: int = 40) -> Task:
    """A matrix product whose second factor is constant, so that it is packed."""
    x = Tensor("x", (rows, depth), DType.F32)
    w = Tensor("w", (depth, columns), DType.F32, constant=True)
    y = Tensor("y", (rows, columns), DType.F32)
    i, j, k = Var("i"), Var("j"), Var("k")
    body = Load("x", (i, k), DType.F32) * Load("w", (k, j), DType.F32)
    axes = (Axis("i", rows), Axis("j", columns))
    return Task("MatMul", (x, w), (y,), (), (Stage("y", axes, body, (Axis("k", depth),), "sum"),))


@pytest.fixture(scope="session")
def task() -> Task:
    return product_task()


class Make:
    """Candidates of one task."""

    def __init__(self, task: Task, target: Target) -> None:
        self.task = task
        self.target = target

    def default(self) -> Candidate:
        return Candidate(self.task, self.target, default_schedule(self.task, self.target))

    def planted(self, fault: str) -> Candidate:
        return Candidate(self.task, self.target, Schedule(f"planted.{fault}", 1, ()))


@pytest.fixture(scope="session")
def make(task: Task, target: Target) -> Make:
    return Make(task, target)


@pytest.fixture(scope="session")
def other_task() -> Task:
    return product_task(rows=7, depth=5, columns=3)


@pytest.fixture(scope="session")
def other_target(target: Target) -> Target:
    return replace(target, l1_bytes=target.l1_bytes * 2)
