"""What the driver does by CuPy, on one that does nothing."""

from __future__ import annotations

import gc
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tunewright.codegen.cuda import driver as module
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.device import Device
from tunewright.codegen.cuda.driver import Clock, CupyDriver, DeviceFault, NoClocks, Unloadable, management
from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.cuda.source import Launch


class Failure(Exception):
    pass


class Stream:
    def __init__(self):
        self.told = []
        self.ptr = 1

    def __enter__(self):
        self.told.append("enter")

    def __exit__(self, *error):
        self.told.append("exit")

    def begin_capture(self):
        self.told.append("begin")

    def end_capture(self):
        self.told.append("end")
        return SimpleNamespace(launch=lambda: self.told.append("launch"))


class Module:
    fails = False
    loaded: ClassVar[list[bytes]] = []

    def load(self, code):
        self.loaded.append(code)
        if self.fails:
            raise Failure("CUDA_ERROR_NO_BINARY_FOR_GPU")

    def get_function(self, symbol):
        return lambda *call, **options: None


@pytest.fixture
def driver(monkeypatch):
    """One without a device."""
    cuda = SimpleNamespace(
        Device=lambda number: SimpleNamespace(use=lambda: None),
        Stream=Stream,
        runtime=SimpleNamespace(CUDARuntimeError=Failure, deviceGetPCIBusId=lambda number: "0000:01:00.0"),
        driver=SimpleNamespace(CUDADriverError=Failure),
        function=SimpleNamespace(Module=Module),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(module, "devices", lambda: [Device(0, "none", KNOWN["sm_90a"])])
    return CupyDriver()


ARTIFACT = GpuArtifact(b"", "", (Launch("k", (1, 1, 1), 32, 0),), {}, (), (), {})


def test_what_is_recorded_keeps_its_code(driver):
    """A graph of CUDA is worth nothing once its module is unloaded."""
    run = driver.program(ARTIFACT, [])
    kept = weakref.ref(run)
    recorded = driver.recorded(run)
    del run
    gc.collect()
    assert kept() is not None
    recorded()
    assert driver._stream.told == ["enter", "begin", "end", "exit", "enter", "launch", "exit"]
    del recorded
    gc.collect()
    assert kept() is None


def test_a_recording_that_fails_is_ended(driver):
    def run():
        raise Failure("an illegal memory access")

    with pytest.raises(DeviceFault, match="an illegal memory access"):
        driver.recorded(run)
    assert driver._stream.told == ["enter", "begin", "end", "exit"]


def test_code_that_is_not_taken(driver, monkeypatch):
    monkeypatch.setattr(Module, "fails", True)
    with pytest.raises(Unloadable, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        driver.program(ARTIFACT, [])


@pytest.fixture
def sensors(monkeypatch):
    """NVIDIA's management library: `sensors(reasons, call=error)`, where calls raise errors of its own."""
    pynvml = pytest.importorskip("pynvml")

    def made(reasons=0, **errors):
        def answering(name, value):
            def answer(*_):
                if name in errors:
                    raise pynvml.NVMLError(errors[name])
                return value

            monkeypatch.setattr(pynvml, name, answer)

        answering("nvmlInit", None)
        answering("nvmlDeviceGetHandleByPciBusId", "it")
        answering("nvmlDeviceGetClockInfo", 1410)
        answering("nvmlDeviceGetCurrentClocksEventReasons", reasons)
        return pynvml

    return made


def test_heat_is_told_and_the_own_limit_of_power_is_not(driver, sensors):
    nvml = sensors()
    assert driver.clock() == Clock(1_410_000_000, is_slowed=False)
    sensors(nvml.nvmlClocksEventReasonSwPowerCap)
    assert driver.clock() == Clock(1_410_000_000, is_slowed=False)
    sensors(nvml.nvmlClocksEventReasonSwThermalSlowdown)
    assert driver.clock() == Clock(1_410_000_000, is_slowed=True)


NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, NO_LIBRARY, LOST, UNKNOWN = 3, 4, 6, 12, 15, 999
"""Of NVML_ERROR."""


@pytest.mark.parametrize(
    "errors",
    [
        {"nvmlDeviceGetClockInfo": NOT_SUPPORTED},
        {"nvmlDeviceGetCurrentClocksEventReasons": NO_PERMISSION},
        {"nvmlDeviceGetHandleByPciBusId": NOT_FOUND},
        {"nvmlInit": NO_LIBRARY},
    ],
)
def test_a_clock_that_is_not_told(driver, sensors, errors):
    sensors(**errors)
    assert driver.clock() is None


@pytest.mark.parametrize(
    "errors",
    [
        {"nvmlDeviceGetClockInfo": LOST},
        {"nvmlDeviceGetCurrentClocksEventReasons": UNKNOWN},
        {"nvmlDeviceGetHandleByPciBusId": LOST},
    ],
)
def test_a_device_that_is_lost(driver, sensors, errors):
    sensors(**errors)
    with pytest.raises(DeviceFault):
        driver.clock()


def test_what_tells_no_clocks_says_what_to_do(sensors, monkeypatch):
    sensors(nvmlInit=NO_LIBRARY)
    with pytest.raises(NoClocks, match=r"libnvidia-ml.so.1.*capability utility"):
        management()
    sensors(nvmlInit=UNKNOWN)
    with pytest.raises(NoClocks, match="nvidia-smi"):
        management()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoClocks, match="nvidia-ml-py"):
        management()


def test_code_is_loaded_once_for_all_that_run_it(driver, monkeypatch):
    monkeypatch.setattr(Module, "loaded", [])
    other = replace(ARTIFACT, code=b"other", sha256="other")
    wider = replace(ARTIFACT, launches=(Launch("k", (2, 1, 1), 32, 0),))
    runs = [driver.program(artifact, []) for artifact in (ARTIFACT, other, ARTIFACT, ARTIFACT)]
    assert Module.loaded == [b"", b"other"]
    runs.append(driver.program(wider, []))
    assert len(Module.loaded) == 3, "the same code, launched in another way"
    runs.clear()
    gc.collect()
    driver.program(ARTIFACT, [])
    assert len(Module.loaded) == 4, "nobody had it any more"


def test_there_is_one_for_all(monkeypatch):
    made = []

    def make():
        made.append(object())
        return made[-1]

    monkeypatch.setattr(module, "CupyDriver", make)
    module._opened.cache_clear()
    assert module.driver() is module.driver()
    assert len(made) == 1
    module._opened.cache_clear()
