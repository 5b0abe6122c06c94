"""Launchable: a kernel of a GPU for other programs: code, launches and arguments. Light to import."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..ir.ir import Buffer, Kernel, Packing
from ..target import Target
from .emit import Launch

MOST_CODE_BYTES = 2 << 20
"""Most bytes of machine code, and of PTX."""


class Role(StrEnum):
    """The use of an argument's memory."""

    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"  # passed between launches; undefined before and after them


@dataclass(frozen=True, slots=True)
class Argument:
    """Memory of the device that every launch is given a pointer to: dense, row-major, on a multiple of 256 bytes.

    A constant may have to be packed first, for all launches: `shape` is what it has then.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    packing: Packing | None = None

    @staticmethod
    def of(buffer: Buffer, role: Role, packing: Packing | None = None) -> Argument:
        return Argument(buffer.name, role, buffer.dtype.value, buffer.shape, buffer.size_bytes, packing)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        data = {name: getattr(self, name) for name in ("name", "role", "dtype", "size_bytes")}
        return data | {"shape": list(self.shape), "packing": self.packing and self.packing.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Argument:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        packing_data = data.get("packing")
        packing = None if packing_data is None else Packing.from_json(packing_data)
        shape, size_bytes = tuple(map(int, data["shape"])), int(data["size_bytes"])
        return Argument(str(data["name"]), Role(data["role"]), str(data["dtype"]), shape, size_bytes, packing)


@dataclass(frozen=True, slots=True)
class Launchable:
    """Launches to be made in order, on one stream: each with pointers to all arguments, in their order, then its tensor
    maps, each made by cuTensorMapEncodeTiled with a swizzle of 128 bytes and zeros outside, and passed by value.

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
        for what, size_bytes in (("machine code", len(artifact.code)), ("PTX", len(text))):
            if size_bytes > MOST_CODE_BYTES:
                raise ValueError(f"{size_bytes:,} bytes of {what}: {MOST_CODE_BYTES:,} are the most")
        params = artifact.params
        groups = (Role.INPUT, params[:inputs]), (Role.OUTPUT, params[inputs:]), (Role.SCRATCH, artifact.scratch)
        arguments = tuple(
            Argument.of(buffer, role, artifact.packings.get(buffer.name))
            for role, buffers in groups
            for buffer in buffers
        )
        return Launchable(target.cpu, artifact.code, text, artifact.launches, arguments)

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
