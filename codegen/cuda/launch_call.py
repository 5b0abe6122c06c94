"""Launch calls: launches of loaded functions with their arguments, queued by NVIDIA's driver. Read `LaunchCall`.

Structures and numbers are those of cuda.h of CUDA 13: CUlaunchConfig, CUlaunchAttribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, addressof, byref, c_byte, c_int, c_uint, c_uint64, c_void_p, pointer
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device import DRIVER_LIBRARY
from .emit import Launch

OVERLAPPING = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: blocks may start while those of the launch before still run.

For functions that wait for its results before they touch memory, as ours do (`prelude.PRELUDE`). So a launch costs less
between others: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

OVERLAPPING_CAPABILITY = 90
"""The least compute capability, without its point, of devices that do so."""


class Attribute(Structure):
    """CUlaunchAttribute, of a value that is one integer."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int), ("rest", c_byte * 60))


class Config(Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3), ("block", c_uint * 3), ("smem_bytes", c_uint), ("stream", c_void_p),
        ("attributes", POINTER(Attribute)), ("attribute_count", c_uint),
    )  # fmt: skip


class LaunchFailed(RuntimeError):
    """The driver did not queue a launch. One line."""


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """A launch of a function with all of its arguments."""

    function: Any  # of CuPy, which keeps its module loaded
    config: Config
    pointers: Any  # to each argument
    arguments: Sequence[Any] = field(repr=False)  # what these point to

    @staticmethod
    def of(
        function: Any,
        launch: Launch,
        addresses: Sequence[int],
        maps: Sequence[NDArray[np.void]],
        stream: int,
        *,
        overlaps: bool,
    ) -> LaunchCall:
        """A launch on memory at addresses of the device, with tensor maps, for a stream.

        `overlaps`: see OVERLAPPING.
        """
        overlapping = pointer(Attribute(OVERLAPPING, 0, 1))
        config = Config(launch.grid, (launch.threads, 1, 1), launch.smem_bytes, stream, overlapping, int(overlaps))
        pointers = [c_uint64(address) for address in addresses]
        arguments = (*pointers, *maps)
        at = [*map(addressof, pointers), *(tensor_map.ctypes.data for tensor_map in maps)]
        return LaunchCall(function, config, (c_void_p * len(at))(*at), arguments)

    def queue(self) -> None:
        """Queue it. Raises LaunchFailed, OSError without a driver."""
        status = library().cuLaunchKernelEx(byref(self.config), c_void_p(self.function.ptr), self.pointers, None)
        if status:
            raise LaunchFailed(f"cuLaunchKernelEx: status {status} for {self.config.grid[:]} blocks")


@cache
def library() -> CDLL:
    """NVIDIA's driver. Raises OSError where there is none."""
    return CDLL(DRIVER_LIBRARY)
