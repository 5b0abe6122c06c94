"""Driver: kernels run and timed on a GPU of this machine. Read `Driver`, which does it through CuPy.

Times are the device's own, of one run at a time. For a cold second-level cache it is overwritten before each run. This
keeps the device busy until the run is queued, so that the time has nothing of this process in it. With the cache as it
is, the time includes what this process takes to queue the run, unless the run was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from ctypes import c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache, cached_property, partial
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ..expr.dtype import DType
from ..gpu import STATIC_SMEM_BYTES
from ..ir.tensor_map import TensorMap
from .build import GpuArtifact
from .device import Device, devices, driver_version
from .emit import Launch
from .launch_call import OVERLAPPING_CAPABILITY, LaunchCall, LaunchFailed, library

Bytes = NDArray[np.uint8]

MAX_DYNAMIC_SMEM = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""

FLUSHES = 2
"""Number of times that the second-level cache is overwritten before a cold run."""

QUEUED = 64
"""Runs that are queued before any of them is waited for."""

WORDS, ALIGN = 16, 8
"""Words of 64 bits of a map, and the multiple of them that it begins on while it is made (CUDA Driver API,
CUtensorMap).
"""

TYPES = {DType.U8: 0, DType.I8: 0, DType.I32: 3, DType.F16: 6, DType.F32: 7, DType.BF16: 9}
"""CUtensorMapDataType."""

NO_INTERLEAVE, SWIZZLE_128_BYTES, PROMOTE_128_BYTES, ZEROS_OUTSIDE = 0, 3, 2, 0
"""Values of CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion and CUtensorMapFloatOOBfill."""


class DeviceFault(Exception):
    """A kernel or the device broke the context of this process: nothing runs in it any more. One line for people."""


class Unloadable(RuntimeError):
    """Code that the device does not take. One line for people."""


class NoClocks(Exception):
    """The clocks of GPUs can't be read here. One line for people, with what to do."""


class Clock(NamedTuple):
    """The current clock of the multiprocessors.

    `is_slowed`: by heat, or because the machine can't deliver the power. The device's own power limit does not count:
    large devices reach it whenever they are busy, and waiting would not change that.
    """

    hz: int
    is_slowed: bool


class Driver:
    """The queue of a GPU of this machine: it runs kernels one after the other, in the order in which they are queued.

    Threads may share it: a thread that queues work in several calls holds `turn`, as each method does. Failures are
    MemoryError, DeviceFault or Unloadable; without a device NoDevice or NoCompiler.
    """

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
    def _flush_buffer(self) -> Any:
        """Memory whose writes evict the second-level cache."""
        return self._cupy.empty(FLUSHES * self.device.gpu.l2_bytes, self._cupy.uint8)

    @cached_property
    def _sensors(self) -> Sensors | None:
        try:
            return Sensors(self._cupy.cuda.runtime.deviceGetPCIBusId(self.device.number))
        except NoClocks:
            return None

    @property
    def turn(self) -> AbstractContextManager[object]:
        return self._turn

    @property
    def name(self) -> str:
        """The name of the device, for people."""
        return self.device.name

    @property
    def release(self) -> str:
        """The release of NVIDIA's driver, e.g. "580.159.04"; "" where the management library does not tell."""
        return driver_release()

    @property
    def cuda_version(self) -> str:
        """The newest CUDA that it takes, e.g. "13.0"."""
        return driver_version()

    @property
    def stream_pointer(self) -> int:
        """The CUDA stream, on which others can queue work in turn with this driver."""
        pointer: int = self._stream.ptr
        return pointer

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """A context in which this thread alone queues work, on the stream of this driver."""
        with self._turn, _faults(self._cupy), self._stream:
            yield

    def wait(self) -> None:
        """Wait until all queued work is done."""
        self._stream.synchronize()

    def memory(self, size_bytes: int) -> DeviceMemory:
        """Fresh memory, on a multiple of 256 bytes."""
        with self.queueing():
            return DeviceMemory(self, self._cupy.empty(max(size_bytes, 1), self._cupy.uint8))

    def input_memory(self, artifact: GpuArtifact, number: int, array: NDArray[Any]) -> DeviceMemory:
        """Fresh memory with an input of an artifact, arranged as the kernel takes it."""
        buffer = artifact.params[number]
        packing = artifact.packings.get(buffer.name)
        memory = self.memory(buffer.size_bytes)
        memory.write(array if packing is None else packing.arrange(array))
        return memory

    def program(self, artifact: GpuArtifact, operands: Sequence[DeviceMemory]) -> Callable[[], None]:
        """A function for `time` and `capture` that queues all launches of an artifact, on params, then scratch."""
        code = self._code(artifact)
        arrays = tuple(memory.array for memory in operands)
        buffers = (*artifact.params, *artifact.scratch)
        addresses = {buffer.name: array.data.ptr for buffer, array in zip(buffers, arrays, strict=True)}
        calls = []
        overlaps = self.device.gpu.capability >= OVERLAPPING_CAPABILITY
        for function, launch in zip(code.functions, artifact.launches, strict=True):
            maps = [encode(view, addresses[view.tensor]) for view in launch.maps]
            calls.append(
                LaunchCall.of(function, launch, list(addresses.values()), maps, self.stream_pointer, overlaps=overlaps)
            )
        return _LaunchQueue(code, arrays, calls)

    def _code(self, artifact: GpuArtifact) -> _Code:
        """The loaded code, shared with other programs of the artifact while any of them lives."""
        key = artifact.sha256, artifact.launches
        with self._turn:
            code = self._codes.get(key)
            if code is None:
                code = self._codes[key] = _Code(self._functions(artifact))
        return code

    def _functions(self, artifact: GpuArtifact) -> tuple[Any, ...]:
        """The functions of an artifact's launches, each with its module. Raises Unloadable."""
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

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """A function that queues all work of `run` at once, as a CUDA graph. It keeps memory and code alive."""
        with self.queueing():
            self._stream.begin_capture()
            try:
                run()
            except BaseException:
                with suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                    self._stream.end_capture()
                raise
            graph = self._stream.end_capture()

        return partial(self._launch, graph, run)

    def _launch(self, graph: Any, _: Callable[[], None]) -> None:
        """Queue a CUDA graph. The second argument is the run that was captured: it keeps code and memory alive."""
        with self.queueing():
            graph.launch()

    def time(self, run: Callable[[], None], count: int, *, is_cold: bool = True) -> list[float]:
        """Seconds of each of `count` runs on the device, from a cold second-level cache or the present one."""
        cuda = self._cupy.cuda
        times_s: list[float] = []
        with self.queueing():
            while len(times_s) < count:
                pairs = [(cuda.Event(), cuda.Event()) for _ in range(min(count - len(times_s), QUEUED))]
                for begin, end in pairs:
                    if is_cold:
                        self._flush_buffer.fill(0)
                    begin.record()
                    run()
                    end.record()
                pairs[-1][1].synchronize()
                times_s += [cuda.get_elapsed_time(begin, end) / 1e3 for begin, end in pairs]
        return times_s

    def clock(self) -> Clock | None:
        """The clock; None where it is unknown: on many virtual GPUs, or where `management` raises NoClocks."""
        with self._turn, _faults(self._cupy):
            return self._sensors.clock() if self._sensors is not None else None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _LaunchQueue:
    """Queues launches in order, and keeps their code and memory."""

    code: _Code
    arrays: tuple[Any, ...]
    calls: Sequence[LaunchCall]

    def __call__(self) -> None:
        for call in self.calls:
            call.queue()


_driver_lock = RLock()


def driver() -> Driver:
    """The driver of the first GPU of this machine, one for the process. Raises as `Driver`."""
    with _driver_lock:
        return _open_driver()


@cache
def _open_driver() -> Driver:
    return Driver()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Code:
    """Functions of the device, each with the module that it is in."""

    functions: tuple[Any, ...]


def bytes_of(array: NDArray[Any]) -> Bytes:
    """The bytes of an array, row by row: a view of it where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class DeviceMemory:
    """Memory of the device, as bytes."""

    def __init__(self, driver: Driver, array: Any) -> None:
        self._driver = driver
        self.array = array

    def part(self, begin: int, size_bytes: int) -> DeviceMemory:
        """A view of a part."""
        return DeviceMemory(self._driver, self.array[begin : begin + size_bytes])

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of the same size here, row by row."""
        data = bytes_of(array)
        with self._driver.queueing():
            self.array.set(data)
            self._driver.wait()  # from then on the data may change

    def read(self) -> Bytes:
        with self._driver.queueing():
            data: Bytes = self.array.get()
            return data

    def copy(self, source: DeviceMemory) -> None:
        """Queue a copy of device memory of the same size to here."""
        with self._driver.queueing():
            self.array[...] = source.array


def encode(tensor_map: TensorMap, address: int) -> NDArray[np.void]:
    """The map of a tensor that lies at an address of the device, for its copy engine: a scalar of 128 bytes.

    Raises Unloadable where the driver refuses it, OSError without a driver.
    """
    room = np.zeros(WORDS + ALIGN, np.uint64)
    words = room[-(room.ctypes.data // room.itemsize) % ALIGN :][:WORDS]
    rank, each = len(tensor_map.box), tensor_map.dtype.size_bytes
    dims = (c_uint64 * rank)(*reversed(tensor_map.extents))
    pitches = (c_uint64 * (rank - 1))(*(stride * each for stride in reversed(tensor_map.strides[:-1])))
    spans = (extent * step for extent, step in zip(tensor_map.box, tensor_map.all_steps, strict=True))
    box, steps = (c_uint32 * rank)(*reversed(tuple(spans))), (c_uint32 * rank)(*reversed(tensor_map.all_steps))
    status = library().cuTensorMapEncodeTiled(
        c_void_p(words.ctypes.data), TYPES[tensor_map.dtype], rank, c_void_p(address), dims, pitches, box, steps,
        NO_INTERLEAVE, SWIZZLE_128_BYTES, PROMOTE_128_BYTES, ZEROS_OUTSIDE,
    )  # fmt: skip
    if status:
        raise Unloadable(f"cuTensorMapEncodeTiled: status {status} for {tensor_map}")
    return np.frombuffer(words.tobytes(), np.dtype((np.void, WORDS * 8))).reshape(())


def management() -> Any:
    """NVIDIA's management library, initialised. Raises NoClocks."""
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


def driver_release() -> str:
    """The release of NVIDIA's driver, see `Driver.release`."""
    try:
        nvml = management()
    except NoClocks:
        return ""
    try:
        return str(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return ""


class Sensors:
    """Sensors of a device, through NVIDIA's management library. Raises NoClocks, DeviceFault."""

    def __init__(self, bus_id: str) -> None:
        self._nvml = pynvml = management()
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        except pynvml.NVMLError_GpuIsLost as error:
            raise DeviceFault(_line(error)) from error
        except pynvml.NVMLError as error:
            raise NoClocks(f"NVIDIA's management library does not know {bus_id}: {_line(error)}") from error
        self._slow_reasons = (
            pynvml.nvmlClocksEventReasonHwSlowdown
            | pynvml.nvmlClocksEventReasonHwThermalSlowdown
            | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
            | pynvml.nvmlClocksEventReasonSwThermalSlowdown
        )

    def clock(self) -> Clock | None:
        """The clock; None where it is unknown."""
        nvml = self._nvml
        try:
            mhz = nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            return None
        except nvml.NVMLError as error:
            raise DeviceFault(_line(error)) from error
        return Clock(1_000_000 * mhz, bool(reasons & self._slow_reasons))

    def temperature_c(self) -> float | None:
        """How hot it is; None where that is unknown."""
        try:
            return float(self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU))
        except self._nvml.NVMLError:
            return None


def open_sensors(number: int = 0) -> Sensors | None:
    """The sensors of a device; None where there are none. The device itself is not used.

    Raises DeviceFault, NoDevice or NoCompiler.
    """
    device = devices()[number]
    import cupy

    try:
        with _faults(cupy):
            return Sensors(cupy.cuda.runtime.deviceGetPCIBusId(device.number))
    except NoClocks:
        return None


@contextmanager
def _faults(cupy: Any) -> Iterator[None]:
    """A context that turns CUDA's errors into DeviceFault."""
    try:
        yield
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError, LaunchFailed) as error:
        raise DeviceFault(_line(error)) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
