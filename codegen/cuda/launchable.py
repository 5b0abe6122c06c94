"""Launchable: a kernel of a GPU for other programs: code, launches and arguments. Light to import."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

from ..argument import Argument, arguments, check_sizes
from ..ir.ir import Kernel
from ..target import Target
from .emit import Launch


@dataclass(frozen=True, slots=True)
class Launchable:
    """Launches to be made in order, on one stream: each with pointers to all arguments, in their order, on multiples of
    256 bytes, then its tensor maps, each made by cuTensorMapEncodeTiled with a swizzle of 128 bytes and zeros outside,
    and passed by value.

    Where a launch has more than 48 KB of shared memory, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of its function
    must be set to that first. Machine code is loaded by any driver of the same major version of CUDA or a later one
    (CUDA Compatibility, "Minor Version Compatibility"), PTX by those alone that are as new as the NVRTC that wrote it.
    """

    arch: str
    cubin: bytes = field(repr=False)  # for this architecture
    ptx: str = field(repr=False)  # for it alone too, where its arch ends in a letter; else also for later ones
    launches: tuple[Launch, ...]
    arguments: tuple[Argument, ...]

    @staticmethod
    def of(kernel: Kernel, target: Target, inputs: int) -> Launchable:
        """A kernel, the first so many of whose params are inputs. Raises as `build`; ValueError if it is too large."""
        from . import nvrtc  # clients that are handed one out do without, and without LLVM
        from .build import build, source

        artifact = build(kernel, target)
        text = nvrtc.ptx(source(kernel, target).text, target.cpu)
        check_sizes(machine_code=len(artifact.code), PTX=len(text))
        own = arguments(artifact.params, artifact.scratch, inputs, artifact.packings)
        return Launchable(target.cpu, artifact.code, text, artifact.launches, own)

    @property
    def sha256(self) -> str:
        """SHA-256 of the machine code."""
        return hashlib.sha256(self.cubin).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        return {
            "arch": self.arch,
            "sha256": self.sha256,
            "cubin": base64.b64encode(self.cubin).decode(),
            "ptx": self.ptx,
            "launches": [launch.to_json() for launch in self.launches],
            "arguments": [argument.to_json() for argument in self.arguments],
        }

    @staticmethod
    def from_json(data: Any) -> Launchable:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        return Launchable(
            arch=str(data["arch"]),
            cubin=base64.b64decode(data["cubin"], validate=True),
            ptx=str(data["ptx"]),
            launches=tuple(map(Launch.from_json, data["launches"])),
            arguments=tuple(map(Argument.from_json, data["arguments"])),
        )
