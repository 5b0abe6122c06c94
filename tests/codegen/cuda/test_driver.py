"""What the driver does by CuPy, on one that does nothing."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest

from tunewright.codegen.cuda import driver as module
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.device import Device
from tunewright.codegen.cuda.driver import CupyDriver, DeviceFault, Unloadable
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

    def load(self, code):
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
        runtime=SimpleNamespace(CUDARuntimeError=Failure),
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
