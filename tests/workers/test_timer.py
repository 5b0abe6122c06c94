"""A timer whose child is killed from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.workers.device import timer as timer_module
from tunewright.workers.device.builder import Build, Builder, Setup
from tunewright.workers.device.comparison import MAX_DEATHS, MAX_PROCESSES, MIN_PROCESSES
from tunewright.workers.device.timer import Timer
from tunewright.workers.measure.race import LONG_RUN_S
from tunewright.workers.measure.sampling import MIN_SAMPLES, MIN_SAMPLES_OF_LONG_RUNS
from tunewright.workers.pool import Limits, ReferenceFailed
from tunewright.workers.sandbox.process import Child, ChildStartError

from ..waiting import gone


@pytest.fixture
def builder(limits: Limits, tmp_path: Path) -> Iterator[Builder]:
    builder = Builder(Setup(tmp_path, limits, ("planted",)))
    yield builder
    builder.close()


@pytest.fixture
def timer(target: Target, limits: Limits, tmp_path: Path) -> Iterator[Timer]:
    timer = Timer(target, Setup(tmp_path, limits))
    yield timer
    timer.close()


def built(builder: Builder, candidate: Candidate) -> Build:
    outcome = builder.build(candidate)
    assert isinstance(outcome, Build)
    return outcome


def test_a_child_killed_after_it_prepared_costs_nothing(
    make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, kills = timer.prepare, [timer.kill]

    def prepared(task: Task) -> None:
        prepare(task)
        if kills:
            kills.pop()()

    monkeypatch.setattr(timer, "prepare", prepared)
    assert timer.measure(make.task, built(builder, make.default())).status is Status.OK
    assert not kills


@pytest.mark.parametrize(("run_s", "fewest"), [(LONG_RUN_S / 2, MIN_SAMPLES), (LONG_RUN_S, MIN_SAMPLES_OF_LONG_RUNS)])
def test_what_took_the_samples_that_a_race_takes_at_least_is_not_timed_again(run_s: float, fewest: int) -> None:
    enough, few = (Measurement(Status.OK, (run_s,) * count, run_s, run_s, run_s) for count in (fewest, fewest - 1))
    assert timer_module._is_final(enough, best_s=run_s)
    assert not timer_module._is_final(few, best_s=run_s)
    assert timer_module._is_final(few, best_s=run_s / 9), "it is clearly slower"


@pytest.mark.parametrize("call", ["prepare", "load", "sample"])
def test_a_comparison_whose_child_is_killed_is_made_once_more(
    make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Between two requests, which is nobody's fault: each candidate has its figures in the end."""
    builds = [built(builder, make.default()), built(builder, make.planted("ok"))]
    request = Child.request
    prepared: list[int] = []
    killed: list[int] = []

    def killing(child: Child, name: str, timeout_s: float, **arguments: Any) -> Any:
        reply = request(child, name, timeout_s, **arguments)
        assert child.pid is not None
        if name == "prepare":
            prepared.append(child.pid)
        if name == call and not killed:
            killed.append(child.pid)
            os.killpg(child.pid, signal.SIGKILL)
            assert gone(child.pid)
        return reply

    monkeypatch.setattr(Child, "request", killing)
    assert all(make.sound(measurement) for measurement in timer.compare(make.task, builds))
    assert MIN_PROCESSES < len(prepared) <= 1 + MAX_PROCESSES and prepared[:1] == killed


def test_deaths_after_different_candidates_are_nobodys_fault(
    make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are one candidate's fault, but once before any, and once after each."""
    builds = [built(builder, make.default()), built(builder, make.planted("ok"))]
    request = Child.request
    deadly = [["prepare"], ["prepare", "load"], ["prepare", "load", "load"]]
    assert len(deadly) == MAX_DEATHS
    calls: dict[int, list[str]] = {}

    def dying(child: Child, name: str, timeout_s: float, **arguments: Any) -> Any:
        reply = request(child, name, timeout_s, **arguments)
        assert child.pid is not None
        calls.setdefault(child.pid, []).append(name)
        if deadly and calls[child.pid] == deadly[0]:
            deadly.pop(0)
            os.killpg(child.pid, signal.SIGKILL)
            assert gone(child.pid)
        return reply

    monkeypatch.setattr(Child, "request", dying)
    assert all(make.sound(measurement) for measurement in timer.compare(make.task, builds))
    assert not deadly


def test_a_comparison_whose_child_never_comes_to_a_candidate_ends(
    make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = [built(builder, make.default())]
    request = Child.request
    killed: list[int] = []

    def dying(child: Child, name: str, timeout_s: float, **arguments: Any) -> Any:
        reply = request(child, name, timeout_s, **arguments)
        assert child.pid is not None
        killed.append(child.pid)
        os.killpg(child.pid, signal.SIGKILL)
        assert gone(child.pid)
        return reply

    monkeypatch.setattr(Child, "request", dying)
    with pytest.raises(ReferenceFailed, match="died 3 times"):
        timer.compare(make.task, builds)
    assert len(killed) == MAX_DEATHS


def test_a_comparison_ends_where_a_candidate_kills_its_child_later(
    make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it has answered, each time: it is to blame in the end, and the others have their figures."""
    builds = [built(builder, make.default()), built(builder, make.planted("ok"))]
    request = Child.request
    loads: list[int] = []

    def dying(child: Child, name: str, timeout_s: float, **arguments: Any) -> Any:
        reply = request(child, name, timeout_s, **arguments)
        if name == "load":
            assert child.pid is not None and len(loads) < 10
            loads.append(child.pid)
            if loads.count(child.pid) == 2:  # that of the second candidate
                os.killpg(child.pid, signal.SIGKILL)
                assert gone(child.pid)
        return reply

    monkeypatch.setattr(Child, "request", dying)
    sound, dead = timer.compare(make.task, builds)
    assert make.sound(sound) and dead.status is Status.CRASH and "died" in dead.error
    assert len(loads) == 2 * MAX_DEATHS + MIN_PROCESSES, "the one that is left is timed as often as any other"


@pytest.mark.parametrize("failure", [ReferenceFailed("t", "no memory"), ChildStartError("no memory")])
def test_a_comparison_has_enough_of_the_fewest_children(
    failure: Exception, make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a later one can't start, or can't compute the reference, what is known stays."""
    builds = [built(builder, make.default()), built(builder, make.planted("ok"))]
    prepare = Timer._prepare
    prepared: list[Child] = []

    def failing(timer: Timer, child: Child, task: Task) -> None:
        if len(prepared) == MIN_PROCESSES:
            raise failure
        prepared.append(child)
        prepare(timer, child, task)

    monkeypatch.setattr(Timer, "_prepare", failing)
    monkeypatch.setattr("tunewright.workers.device.comparison._fastest", set)
    assert all(make.sound(measurement) for measurement in timer.compare(make.task, builds))
    prepared.pop()
    with pytest.raises(type(failure), match="no memory"):
        timer.compare(make.task, builds)


def test_a_new_child_is_handed_the_fastest_one(
    make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (built(builder, candidate) for candidate in (make.default(), make.planted("twin")))
    request = Child.request
    calls: list[str] = []

    def noting(child: Child, name: str, timeout_s: float, **arguments: Any) -> Any:
        calls.append(name)
        if name == "recall":
            assert [entry["artifact"] for entry in arguments["known"]] == [first.artifact]
        return request(child, name, timeout_s, **arguments)

    monkeypatch.setattr(Child, "request", noting)
    assert timer.measure(make.task, first).status is Status.OK
    assert calls == ["prepare", "measure"]
    timer.close()
    assert timer.measure(make.task, second).status is Status.OK
    assert calls[2:] == ["prepare", "recall", "measure"]


def test_a_new_child_is_handed_the_standard_too(
    make, builder: Builder, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (
        built(builder, candidate) for candidate in (make.default(), make.planted("twin"), make.planted("slow"))
    )
    request = Child.request
    handed: list[list[Any]] = []

    def noting(child: Child, name: str, timeout_s: float, **arguments: Any) -> Any:
        if name == "recall":
            handed.append([entry["artifact"] for entry in arguments["known"]])
        reply = request(child, name, timeout_s, **arguments)
        if name == "measure" and arguments["artifact"] == second.artifact:
            reply |= {"is_fastest": True, "has_anchor": True}  # by a lucky moment
        return reply

    monkeypatch.setattr(Child, "request", noting)
    for build in (first, second):
        assert timer.measure(make.task, build).status is Status.OK
    timer.close()
    assert timer.measure(make.task, third).status is Status.OK
    assert handed == [[first.artifact, second.artifact]]
