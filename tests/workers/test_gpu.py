"""Kernels of a GPU as children check and time them, on a device that the interpreter stands in for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tunewright.codegen.cuda.device import NoDevice
from tunewright.codegen.cuda.driver import Clock, DeviceFault
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.workers.local import LocalPool
from tunewright.workers.measure import gpu, measure
from tunewright.workers.measure.check import Example
from tunewright.workers.measure.gpu import PATIENCE_S, GpuKernel, Patience
from tunewright.workers.pool import PoolError, Unfit
from tunewright.workers.sandbox.process import Child, RequestFailed
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


def loaded(task, fault="", clocks=(FAST,), sleep=pytest.fail):
    artifact = simulated.compiled(candidate(task, fault))
    assert read_artifact(artifact_json(artifact)) == artifact
    return GpuKernel(Example(task), artifact, simulated.Simulated(clocks), Patience(sleep))


def test_a_kernel_is_checked_and_timed(task):
    kernel = loaded(task)
    fault, error = kernel.check()
    assert fault is None and error is not None and error < 1e-5
    assert kernel.once_s == simulated.TIME_S
    assert kernel.cold.time(5, 3) == [pytest.approx(simulated.TIME_S)] * 5
    assert kernel.warm.time(5, 3) == [pytest.approx(simulated.WARM_S)] * 5
    assert kernel.recheck() is None
    versions = {"nvrtc": "13.5", "driver": "13.0"}
    assert kernel.provenance == {"gpu": "a simulated GPU", "clock": "1000 to 1000 MHz", **versions}


@pytest.mark.parametrize(
    ("fault", "words"),
    [("wrong", "error"), ("changed", "x: an input was changed"), ("beyond", "y: written out of bounds, past the end")],
)
def test_what_a_kernel_does_wrong(task, fault, words):
    kernel = loaded(task, fault)
    text = kernel.check()[0] or kernel.recheck()
    assert text is not None and words in text


def test_what_is_taken_at_a_lowered_clock_is_taken_again(task):
    pauses: list[float] = []
    kernel = loaded(task, clocks=[FAST, SLOWED, SLOWED, FAST, FAST], sleep=pauses.append)
    kernel.check()
    assert len(kernel.cold.time(3)) == 3
    assert kernel.provenance["clock"] == "1000 to 1000 MHz"
    assert pauses == [0.1, 0.2]


def test_a_device_that_tells_no_clock(task):
    kernel = loaded(task, clocks=[None])
    assert len(kernel.cold.time(3)) == 3
    assert kernel.provenance == {"gpu": "a simulated GPU"} | simulated.VERSIONS


def test_a_clock_that_stays_low_is_no_fault_of_the_kernel(task):
    pauses: list[float] = []
    kernel = loaded(task, clocks=[SLOWED], sleep=pauses.append)
    with pytest.raises(Unfit, match="keeps its clock low"):
        kernel.cold.time(1)
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] and max(pauses) == 1.0
    assert PATIENCE_S - 1 < sum(pauses) <= PATIENCE_S


def test_all_pauses_of_a_request_count_together():
    patience = Patience(sleep=lambda _: None)
    for _ in range(int(PATIENCE_S / 0.1) - 1):
        patience.pause(1, "it")
    with pytest.raises(Unfit):
        patience.pause(5, "it")
    patience.renew()
    patience.pause(5, "it")


@pytest.fixture(scope="module")
def pool(limits, tmp_path_factory) -> Iterator[LocalPool]:
    short = replace(limits, run_s=10.0)
    with LocalPool(TARGET, tmp_path_factory.mktemp("objects"), short, ["simulated_child"]) as local_pool:
        yield local_pool


@pytest.mark.slow
def test_a_pool_measures_for_a_gpu(pool, task):
    faults = {
        "ok": (Status.OK, ""),
        "wrong": (Status.WRONG_RESULT, "error"),
        "crash": (Status.CRASH, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        "hang": (Status.TIMEOUT, "stopped after 10 s"),
    }
    candidates = [candidate(task), *(candidate(task, fault) for fault in faults), candidate(task)]
    measurements = dict(pool.measure(candidates))
    for fault, (status, words) in faults.items():
        measurement = measurements[candidate(task, fault)]
        assert measurement.status is status and words in measurement.error, measurement
    last = measurements[candidate(task)]
    assert (
        last.status is Status.OK and last.provenance["gpu"] == "a simulated GPU" and last.provenance["nvrtc"] == "13.5"
    )
    first, second = pool.compare([candidate(task), candidate(task, "ok")])
    assert first.status is second.status is Status.OK, (first, second)
    assert first.median_s == second.median_s == pytest.approx(simulated.TIME_S)
    assert first.warm_s == second.warm_s == pytest.approx(simulated.WARM_S)
    assert first.provenance == second.provenance == last.provenance | {"clock": first.provenance["clock"]}
    [device] = pool.devices()
    assert device.target == TARGET


def test_a_hot_device_is_no_verdict_on_a_candidate(limits, tmp_path, task):
    with LocalPool(TARGET, tmp_path, limits, ["simulated_child"]) as pool:
        with pytest.raises(PoolError, match=r"in quarantine for \d+ s: a simulated GPU keeps its clock low") as error:
            list(pool.measure([candidate(task, "hot")]))
        assert error.value.retry_s
        [device] = pool.devices()
        assert device.quarantined_until is not None


def test_the_device_is_opened_before_anything_is_timed(limits, tmp_path, task, monkeypatch):
    """In the time that a reference has; a process that does not come back from it blames no candidate."""
    request, calls = Child.request, []

    def noting(child, name, timeout_s, **arguments):
        calls.append((name, timeout_s))
        if len(calls) > 4 and name == "open_gpu":
            raise RequestFailed(Status.TIMEOUT, "open_gpu: stopped")
        return request(child, name, timeout_s, **arguments)

    monkeypatch.setattr(Child, "request", noting)
    with LocalPool(TARGET, tmp_path, limits, ["simulated_child"]) as pool:
        [(_, measurement)] = pool.measure([candidate(task)])
        assert measurement.status is Status.OK
        timing = [call for call in calls if call[0] != "build"]
        assert timing == [("open_gpu", limits.reference_s), ("prepare", limits.reference_s), ("measure", limits.run_s)]
        with pytest.raises(PoolError, match=r"in quarantine for .*: open_gpu: stopped"):
            pool.compare([candidate(task), candidate(task, "ok")])


@pytest.mark.parametrize("error", [NoDevice("none"), NoCompiler("none"), DeviceFault("none")])
def test_a_device_that_can_not_be_opened_is_unfit(monkeypatch, error):
    def failing():
        raise error

    monkeypatch.setattr(measure, "gpu_driver", failing)
    with pytest.raises(Unfit, match="can't be opened: none"):
        measure.open_gpu()
