"""Driver: kernels run and timed on a GPU of this machine. Read `Driver`, then `CupyDriver`, which does it through CuPy.

Times are the device's own, of one run at a time. From a cold second-level cache: before each the cache is filled with
something else, which keeps the device busy until the run has been queued, so that no time of this process is in it. As
it comes: what this process takes to queue a run is in it, unless that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from threading import RLock
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from .build import GpuArtifact
from .device import Device, devices
from .gpu import STATIC_SMEM_BYTES
from .source import Launch

Bytes = NDArray[np.uint8]

MAX_DYNAMIC_SMEM = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""

FLUSHES = 2
"""How many times the second-level cache is written over before a run."""

QUEUED = 64
"""Runs that are queued before any of them is waited for."""


class DeviceFault(Exception):
    """A kernel or the device broke the context of this process: nothing runs in it any more. One line for people."""


class Unloadable(RuntimeError):
    """Code that the device does not take. One line for people."""


class NoClocks(Exception):
    """Nothing here tells how fast GPUs run. One line for people, with what to do."""


class Clock(NamedTuple):
    """How fast the multiprocessors run at the moment.

    Slowed: by heat, or since the machine has not the power. Not by the device's own limit of power, at which large ones
    are whenever they are busy: waiting would not change that.
    """

    hz: int
    is_slowed: bool


class Memory(Protocol):
    """Memory of the device, as bytes."""

    def write(self, data: Bytes) -> None: ...

    def read(self) -> Bytes: ...

    def part(self, begin: int, size_bytes: int) -> Memory:
        """Some of it, in its place."""

    def copy(self, source: Memory) -> None:
        """Queue that as much memory of the device is copied to here."""


class Driver(Protocol):
    """What runs kernels, one after the other, in the order in which they are queued.

    Threads may share it: who queues what belongs together holds `turn`, and so does each method. All that fails but for
    want of memory (MemoryError) is a DeviceFault, or Unloadable.
    """

    @property
    def turn(self) -> AbstractContextManager[object]: ...

    @property
    def name(self) -> str:
        """Of the device, for people."""

    def memory(self, size_bytes: int) -> Memory:
        """Fresh memory, on a multiple of 256 bytes."""

    def program(self, artifact: GpuArtifact, operands: Sequence[Memory]) -> Callable[[], None]:
        """What queues all launches of an artifact, on its params and then its scratch. For `time` and `recorded`."""

    def recorded(self, run: Callable[[], None]) -> Callable[[], None]:
        """What queues all that a run does at once, as often as it is called. It keeps what the run needs."""

    def time(self, run: Callable[[], None], count: int, *, is_cold: bool = True) -> list[float]:
        """Seconds that each of so many runs takes on the device, from a cold second-level cache or as it comes."""

    def clock(self) -> Clock | None:
        """See `Clock`. None where it is not told: by many virtual GPUs, or where `management` raises NoClocks."""


class CupyDriver:
    """A `Driver` of a GPU of this machine. Raises NoDevice, NoCompiler."""

    def __init__(self, number: int = 0) -> None:
        self.device: Device = devices()[number]
        import cupy

        self._cupy = cupy
        self._codes: WeakValueDictionary[tuple[str, tuple[Launch, ...]], _Code] = WeakValueDictionary()
        self._turn = RLock()
        with _faults(cupy):
            cupy.cuda.Device(number).use()
            self._stream = cupy.cuda.Stream()

    @cached_property
    def _flushed(self) -> Any:
        """What the second-level cache is filled with."""
        return self._cupy.empty(FLUSHES * self.device.gpu.l2_bytes, self._cupy.uint8)

    @cached_property
    def _sensors(self) -> _Sensors | None:
        try:
            return _Sensors(self._cupy.cuda.runtime.deviceGetPCIBusId(self.device.number))
        except NoClocks:
            return None

    @property
    def turn(self) -> AbstractContextManager[object]:
        return self._turn

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def stream_pointer(self) -> int:
        """Of CUDA: others who queue there run in turn with what is queued here."""
        pointer: int = self._stream.ptr
        return pointer

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """All that is done meanwhile is queued on the one stream of this driver, by this thread alone."""
        with self._turn, _faults(self._cupy), self._stream:
            yield

    def wait(self) -> None:
        """Until all is done that was queued."""
        self._stream.synchronize()

    def memory(self, size_bytes: int) -> Memory:
        with self.queueing():
            return _CupyMemory(self, self._cupy.empty(max(size_bytes, 1), self._cupy.uint8))

    def program(self, artifact: GpuArtifact, operands: Sequence[Memory]) -> Callable[[], None]:
        code = self._code(artifact)
        arrays = tuple(memory.array for memory in operands if isinstance(memory, _CupyMemory))

        def run() -> None:
            for function, launch in zip(code.functions, artifact.launches, strict=True):
                function(launch.grid, (launch.threads, 1, 1), arrays, shared_mem=launch.smem_bytes)

        return run

    def _code(self, artifact: GpuArtifact) -> _Code:
        """What is loaded of it, which is kept as long as somebody has it: others are likely to run it as well."""
        key = artifact.sha256, artifact.launches
        with self._turn:
            code = self._codes.get(key)
            if code is None:
                code = self._codes[key] = _Code(self._functions(artifact))
        return code

    def _functions(self, artifact: GpuArtifact) -> tuple[Any, ...]:
        """Those of its launches, each with its module. Raises Unloadable."""
        driver, module = self._cupy.cuda.driver, self._cupy.cuda.function.Module()
        functions = []
        try:
            module.load(artifact.code)
            for launch in artifact.launches:
                functions.append(module.get_function(launch.symbol))
                if launch.smem_bytes > STATIC_SMEM_BYTES:
                    driver.funcSetAttribute(functions[-1].ptr, MAX_DYNAMIC_SMEM, launch.smem_bytes)
        except driver.CUDADriverError as error:
            raise Unloadable(_line(error)) from error
        return tuple(functions)

    def recorded(self, run: Callable[[], None]) -> Callable[[], None]:
        with self.queueing():
            self._stream.begin_capture()
            try:
                run()
            except BaseException:
                with suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                    self._stream.end_capture()
                raise
            graph = self._stream.end_capture()

        return _Recorded(self, graph, run)

    def time(self, run: Callable[[], None], count: int, *, is_cold: bool = True) -> list[float]:
        cuda = self._cupy.cuda
        times_s: list[float] = []
        with self.queueing():
            while len(times_s) < count:
                pairs = [(cuda.Event(), cuda.Event()) for _ in range(min(count - len(times_s), QUEUED))]
                for begin, end in pairs:
                    if is_cold:
                        self._flushed.fill(0)
                    begin.record()
                    run()
                    end.record()
                pairs[-1][1].synchronize()
                times_s += [cuda.get_elapsed_time(begin, end) / 1e3 for begin, end in pairs]
        return times_s

    def clock(self) -> Clock | None:
        with self._turn, _faults(self._cupy):
            return self._sensors.clock() if self._sensors is not None else None


_opening = RLock()


def driver() -> Driver:
    """That of the first GPU of this machine, for this process. Raises as `CupyDriver`."""
    with _opening:
        return _opened()


@cache
def _opened() -> Driver:
    return CupyDriver()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Code:
    """Functions of the device, each with the module that it is in."""

    functions: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A graph, with the code and memory that it goes by: CUDA keeps neither for it."""

    driver: CupyDriver
    graph: Any
    run: Callable[[], None]

    def __call__(self) -> None:
        with self.driver.queueing():
            self.graph.launch()


class _CupyMemory:
    def __init__(self, driver: CupyDriver, array: Any) -> None:
        self._driver = driver
        self.array = array

    def part(self, begin: int, size_bytes: int) -> Memory:
        return _CupyMemory(self._driver, self.array[begin : begin + size_bytes])

    def write(self, data: Bytes) -> None:
        with self._driver.queueing():
            self.array.set(data)
            self._driver.wait()  # from then on the data may change

    def read(self) -> Bytes:
        with self._driver.queueing():
            found: Bytes = self.array.get()
            return found

    def copy(self, source: Memory) -> None:
        assert isinstance(source, _CupyMemory)
        with self._driver.queueing():
            self.array[...] = source.array


def management() -> Any:
    """NVIDIA's management library, at work. Raises NoClocks."""
    try:
        import pynvml
    except ImportError as error:
        raise NoClocks("nvidia-ml-py is not installed: pip install 'tunewright[cuda]'") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as error:
        capability = "a container needs the driver's capability utility (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        raise NoClocks(f"there is no libnvidia-ml.so.1, which comes with NVIDIA's driver; {capability}") from error
    except pynvml.NVMLError as error:
        raise NoClocks(f"NVIDIA's management library: {_line(error)}; see whether nvidia-smi works") from error
    return pynvml


class _Sensors:
    """What NVIDIA's management library tells of a device. Raises NoClocks, DeviceFault."""

    def __init__(self, bus_id: str) -> None:
        self._nvml = pynvml = management()
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        except pynvml.NVMLError_GpuIsLost as error:
            raise DeviceFault(_line(error)) from error
        except pynvml.NVMLError as error:
            raise NoClocks(f"NVIDIA's management library does not know {bus_id}: {_line(error)}") from error
        self._slowing = (
            pynvml.nvmlClocksEventReasonHwSlowdown
            | pynvml.nvmlClocksEventReasonHwThermalSlowdown
            | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
            | pynvml.nvmlClocksEventReasonSwThermalSlowdown
        )

    def clock(self) -> Clock | None:
        """None where it is not told."""
        nvml = self._nvml
        try:
            mhz = nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            return None
        except nvml.NVMLError as error:
            raise DeviceFault(_line(error)) from error
        return Clock(1_000_000 * mhz, bool(reasons & self._slowing))


@contextmanager
def _faults(cupy: Any) -> Iterator[None]:
    """What CUDA says is wrong, as a DeviceFault."""
    try:
        yield
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise DeviceFault(_line(error)) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
