"""What the driver does by CuPy, on one that does nothing."""

from __future__ import annotations

import gc
import sys
import weakref
from ctypes import POINTER, Array, c_uint64, cast, memmove
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from tunewright.codegen.cuda import driver as module
from tunewright.codegen.cuda import launch_call
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.device import Device
from tunewright.codegen.cuda.driver import Clock, DeviceFault, DeviceMemory, Driver, NoClocks, Unloadable, management
from tunewright.codegen.cuda.emit import Launch
from tunewright.codegen.cuda.launch_call import OVERLAPPING, Config
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.ir.ir import Buffer
from tunewright.codegen.ir.tensor_map import TensorMap


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
        return SimpleNamespace(ptr=symbol, module=self)


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
    return Driver()


ARTIFACT = GpuArtifact(b"", "", (Launch("k", (1, 1, 1), 32, 0),), {}, (), (), {})


@pytest.mark.slow
def test_what_is_recorded_keeps_its_code(driver, monkeypatch):
    """A graph of CUDA is worth nothing once its module is unloaded."""
    monkeypatch.setattr(Module, "get_function", lambda self, symbol: SimpleNamespace(ptr=1))
    monkeypatch.setattr(launch_call, "library", lambda: SimpleNamespace(cuLaunchKernelEx=lambda *given: 0))
    run = driver.program(ARTIFACT, [])
    kept = weakref.ref(run)
    launch = driver.capture(run)
    del run
    gc.collect()
    assert kept() is not None
    launch()
    assert driver._stream.told == ["enter", "begin", "end", "exit", "enter", "launch", "exit"]
    del launch
    gc.collect()
    assert kept() is None


def test_a_recording_that_fails_is_ended(driver):
    def run():
        raise Failure("an illegal memory access")

    with pytest.raises(DeviceFault, match="an illegal memory access"):
        driver.capture(run)
    assert driver._stream.told == ["enter", "begin", "end", "exit"]


def test_code_that_is_not_taken(driver, monkeypatch):
    monkeypatch.setattr(Module, "fails", True)
    with pytest.raises(Unloadable, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        driver.program(ARTIFACT, [])


BOXES = TensorMap("x", DType.F16, (40, 64), (64, 1), (64, 64))
RESULTS = replace(BOXES, tensor="parts")

WITH_MAPS = GpuArtifact(
    b"",
    "",
    (Launch("k_p0", (4, 1, 1), 384, 0, (BOXES, RESULTS)), Launch("k_p1", (1, 1, 1), 128, 0)),
    {},
    (Buffer("x", (40, 64), DType.F16), Buffer("y", (40, 64), DType.F16)),
    (Buffer("parts", (40, 64), DType.F16),),
    {},
)


@pytest.fixture
def operands(driver):
    """Memory at 256, 512 and 768."""
    return [DeviceMemory(driver, SimpleNamespace(data=SimpleNamespace(ptr=256 * n))) for n in (1, 2, 3)]


def test_maps_are_passed_behind_pointers(driver, operands, monkeypatch):
    """Of scratch too. They are made once, not in each run."""
    made = []

    def encode(tensor_map, address):
        made.append((tensor_map, address))
        return np.full(16, address, np.uint64).view(np.dtype((np.void, 128))).reshape(())

    def take(config, function, arguments, _):
        launched = cast(config, POINTER(Config)).contents
        *pointers, last = (cast(at, POINTER(c_uint64))[0] for at in arguments)
        calls.append((function.value, launched.grid[:], launched.block[:], [*pointers, last]))
        assert (launched.attributes[0].id, launched.attributes[0].value, launched.stream) == (OVERLAPPING, 1, 1)
        return 0

    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(module, "encode", encode)
    monkeypatch.setattr(launch_call, "library", lambda: SimpleNamespace(cuLaunchKernelEx=take))
    monkeypatch.setattr(Module, "get_function", lambda self, symbol: SimpleNamespace(ptr=int(symbol[-1])))
    run = driver.program(WITH_MAPS, operands)
    run()
    run()
    first = (None, [4, 1, 1], [384, 1, 1], [256, 512, 768, 256, 768])  # ctypes has no pointer 0
    second = (1, [1, 1, 1], [128, 1, 1], [256, 512, 768])
    assert calls == [first, second] * 2
    assert made == [(BOXES, 256), (RESULTS, 768)]


@pytest.mark.parametrize(("arch", "count"), [("sm_80", 0), ("sm_90a", 1)])
def test_launches_overlap_where_functions_wait(driver, monkeypatch, arch, count):
    told = []

    def take(config, *given):
        told.append(cast(config, POINTER(Config)).contents.attribute_count)
        return 0

    monkeypatch.setattr(driver, "device", Device(0, "none", KNOWN[arch]))
    monkeypatch.setattr(Module, "get_function", lambda self, symbol: SimpleNamespace(ptr=1))
    monkeypatch.setattr(launch_call, "library", lambda: SimpleNamespace(cuLaunchKernelEx=take))
    driver.program(ARTIFACT, [])()
    assert told == [count]


def test_a_launch_that_the_driver_refuses(driver, monkeypatch):
    library = SimpleNamespace(cuLaunchKernelEx=lambda *given: 719)
    monkeypatch.setattr(launch_call, "library", lambda: library)
    monkeypatch.setattr(Module, "get_function", lambda self, symbol: SimpleNamespace(ptr=1))
    with pytest.raises(DeviceFault, match=r"cuLaunchKernelEx: status 719 for \[1, 1, 1\] blocks"), driver.queueing():
        driver.program(ARTIFACT, [])()


def test_a_map_that_the_driver_refuses(driver, operands, monkeypatch):
    monkeypatch.setattr(module, "library", lambda: SimpleNamespace(cuTensorMapEncodeTiled=lambda *given: 1))
    with pytest.raises(Unloadable, match=r"cuTensorMapEncodeTiled: status 1 for x as \[40, 64\]"):
        driver.program(WITH_MAPS, operands)


BFLOAT16, SWIZZLE_128B, PROMOTION_L2_128B = 9, 3, 2
"""Of CU_TENSOR_MAP."""


def test_what_the_driver_is_told_of_a_map(monkeypatch):
    """The innermost dimension first, strides in bytes, and room on a multiple of 64 bytes."""
    calls = []

    def take(room, *given):
        assert room.value % 64 == 0
        memmove(room.value, np.arange(16, dtype=np.uint64).tobytes(), 128)
        calls.append([list(one) if isinstance(one, Array) else getattr(one, "value", one) for one in given])
        return 0

    monkeypatch.setattr(module, "library", lambda: SimpleNamespace(cuTensorMapEncodeTiled=take))
    one = TensorMap("x", DType.BF16, (3, 40, 72), (2880, 72, 1), (1, 64, 64))
    found = module.encode(one, 4096)
    assert (found.shape, found.nbytes) == ((), 128)
    assert np.frombuffer(found.tobytes(), np.uint64).tolist() == list(range(16))
    dimensions = [72, 40, 3], [144, 5760], [64, 64, 1], [1, 1, 1]
    assert calls == [[BFLOAT16, 3, 4096, *dimensions, 0, SWIZZLE_128B, PROMOTION_L2_128B, 0]]


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
        answering("nvmlSystemGetDriverVersion", "580.159.04")
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


def test_the_release_of_the_driver(driver, sensors):
    sensors()
    assert driver.release == "580.159.04"
    sensors(nvmlSystemGetDriverVersion=UNKNOWN)
    assert driver.release == ""
    sensors(nvmlInit=NO_LIBRARY)
    assert driver.release == ""


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


@pytest.mark.slow
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

    monkeypatch.setattr(module, "Driver", make)
    module._open_driver.cache_clear()
    assert module.driver() is module.driver()
    assert len(made) == 1
    module._open_driver.cache_clear()
