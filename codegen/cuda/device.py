"""The GPUs of this machine and their properties. Read `devices`."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from ..gpu import LEAST_CAPABILITY, Gpu
from .nvrtc import require_cupy

CLOCK_KHZ, MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS = 13, 36, 37
"""Attributes of a device that its properties lack since CUDA 13: cudaDevAttrClockRate and the like."""

OWN_CODE = 90
"""From this compute capability on, an architecture has instructions that no other has: it is called with an a."""

DRIVER, DRIVER_LIBRARY = "NVIDIA's driver, release 580 or later", "libcuda.so.1"


class NoDevice(Exception):
    """There is no GPU that could be used. The text says what to do."""


class Device(NamedTuple):
    """A GPU of this machine."""

    number: int  # by which CUDA knows it
    name: str  # of the product
    gpu: Gpu


def devices() -> list[Device]:
    """All GPUs, in CUDA's order. Raises NoDevice where there is none that is known, or no driver; NoCompiler without
    CuPy.
    """
    if not has_driver():  # CuPy takes long to import, to say the same
        raise NoDevice(f"there is no {DRIVER_LIBRARY}: a GPU needs {DRIVER}")
    runtime = _runtime()
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise NoDevice(f"{' '.join(str(error).split())[:200]}: install {DRIVER}") from error
    if not count:
        raise NoDevice("CUDA knows of no GPU here; CUDA_VISIBLE_DEVICES may hide them")
    try:
        return [_device(runtime, number) for number in range(count)]
    except (runtime.CUDARuntimeError, ValueError) as error:
        raise NoDevice(f"what a GPU says of itself is of no use: {' '.join(str(error).split())[:200]}") from error


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed, of whatever release."""
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True


def driver_version() -> str:
    """The newest CUDA that the driver takes, e.g. "13.0"; "" without a driver. Raises NoCompiler without CuPy."""
    number = _runtime().driverGetVersion()
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


@cache
def _runtime() -> Any:
    with require_cupy():
        from cupy.cuda import runtime
    return runtime


def _device(runtime: Any, number: int) -> Device:
    """Raises NoDevice where it is too old."""
    properties = runtime.getDeviceProperties(number)
    name = bytes(properties["name"]).decode(errors="replace")
    capability = 10 * properties["major"] + properties["minor"]
    if capability < LEAST_CAPABILITY:
        raise NoDevice(
            f"{name} has compute capability {capability / 10}, and a GPU needs compute capability "
            f"{LEAST_CAPABILITY / 10} or later; CUDA_VISIBLE_DEVICES hides those that are older"
        )
    clock_khz, memory_khz, bus_bits = (
        runtime.deviceGetAttribute(attribute, number) for attribute in (CLOCK_KHZ, MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS)
    )
    gpu = Gpu(
        arch=f"sm_{capability}{'a' if capability >= OWN_CODE else ''}",
        sms=properties["multiProcessorCount"],
        sm_threads=properties["maxThreadsPerMultiProcessor"],
        sm_blocks=properties["maxBlocksPerMultiProcessor"],
        sm_smem_bytes=properties["sharedMemPerMultiprocessor"],
        block_smem_bytes=properties["sharedMemPerBlockOptin"],
        l2_bytes=properties["l2CacheSize"],
        clock_hz=1000 * clock_khz,
        memory_bytes_s=2 * 1000 * memory_khz * bus_bits // 8,  # it moves two words a cycle
    )
    return Device(number, name, gpu)
