"""Kernels of a GPU as children check and time them, on a device that the interpreter stands in for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tunewright.codegen.cuda.driver import Clock, DeviceFault
from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.workers import gpu
from tunewright.workers.check import Example
from tunewright.workers.gpu import GpuLoaded
from tunewright.workers.local import LocalPool
from tunewright.workers.wire import artifact_json, read_artifact

from . import simulated

TARGET = Target.of_gpu(KNOWN["sm_90a"])

FAST, SLOWED = Clock(10**9, is_slowed=False), Clock(10**8, is_slowed=True)


@pytest.fixture(autouse=True)
def simulated_here(monkeypatch):
    """What is simulated in children is so in this process."""
    monkeypatch.setattr(gpu, "versions", lambda: simulated.VERSIONS)
    monkeypatch.setattr(sketches, "SKETCHES", simulated.WITH_SIMULATED)


def candidate(task, fault=""):
    schedule = Schedule(f"simulated.{fault}", 1, ()) if fault else default_schedule(task, TARGET)
    return Candidate(task, TARGET, schedule)


def loaded(task, fault="", clocks=(FAST,)):
    artifact = simulated.compiled(candidate(task, fault))
    assert read_artifact(artifact_json(artifact)) == artifact
    return GpuLoaded(Example(task), artifact, simulated.Simulated(clocks))


def test_a_kernel_is_checked_and_timed(task):
    one = loaded(task)
    fault, error = one.check()
    assert fault is None and error is not None and error < 1e-5
    assert one.once_s == simulated.TIME_S
    assert one.cold.time(5, 3) == [pytest.approx(simulated.TIME_S)] * 5
    assert one.recheck() is None
    versions = {"nvrtc": "13.5", "driver": "13.0"}
    assert one.provenance == {"gpu": "a simulated GPU", "clock": "1000 to 1000 MHz", **versions}


@pytest.mark.parametrize(
    ("fault", "words"),
    [("wrong", "error"), ("changed", "x: an input was changed"), ("beyond", "y: written out of bounds, past the end")],
)
def test_what_a_kernel_does_wrong(task, fault, words):
    one = loaded(task, fault)
    found = one.check()[0] or one.recheck()
    assert found is not None and words in found


def test_what_is_taken_at_a_lowered_clock_is_taken_again(task):
    one = loaded(task, clocks=[FAST, SLOWED, SLOWED, FAST, FAST])
    one.check()
    assert len(one.cold.time(3)) == 3
    assert one.provenance["clock"] == "1000 to 1000 MHz"


def test_a_clock_that_stays_low_is_a_fault_of_the_device(task, monkeypatch):
    one = loaded(task, clocks=[SLOWED])
    with pytest.raises(DeviceFault, match="keeps its clock low"):
        raise_through(one, monkeypatch)


def raise_through(one, monkeypatch):
    """As in a child, but that the fault is raised instead of ending the process."""
    said: list[str] = []

    def abort():
        raise DeviceFault(said[0])

    monkeypatch.setattr(os, "write", lambda _, words: said.append(words.decode()))
    monkeypatch.setattr(os, "abort", abort)
    one.cold.time(1)


@pytest.fixture(scope="module")
def pool(limits, tmp_path_factory) -> Iterator[LocalPool]:
    short = replace(limits, run_s=10.0)
    with LocalPool(TARGET, tmp_path_factory.mktemp("objects"), short, ["simulated_child"]) as one:
        yield one


def test_a_pool_measures_for_a_gpu(pool, task):
    faults = {
        "ok": (Status.OK, ""),
        "wrong": (Status.WRONG_RESULT, "error"),
        "crash": (Status.CRASH, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        "hang": (Status.TIMEOUT, "stopped after 10 s"),
    }
    candidates = [candidate(task), *(candidate(task, fault) for fault in faults), candidate(task)]
    found = dict(pool.measure(candidates))
    for fault, (status, words) in faults.items():
        measured = found[candidate(task, fault)]
        assert measured.status is status and words in measured.error, measured
    last = found[candidate(task)]
    assert (
        last.status is Status.OK and last.provenance["gpu"] == "a simulated GPU" and last.provenance["nvrtc"] == "13.5"
    )
    first, second = pool.compare([candidate(task), candidate(task, "ok")])
    assert first.status is second.status is Status.OK, (first, second)
    assert first.median_s == second.median_s == pytest.approx(simulated.TIME_S)
    [device] = pool.devices()
    assert device.target == TARGET
