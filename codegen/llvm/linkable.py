"""Linkable: a kernel of a processor for other programs: code, functions and arguments. Light to import."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..argument import Argument, arguments, check_sizes
from ..artifact import Phase, objects_sha256
from ..ir.ir import Kernel
from ..target import Target


@dataclass(frozen=True, slots=True)
class Linkable:
    """Functions to be called in order, `void symbol(const void *const *buffers, int64_t begin, int64_t end)`.

    `buffers` are pointers to all arguments, in their order, each on a multiple of 64 bytes. Threads share
    0 .. iterations - 1 of a function, each begin .. end - 1 of it, and all have returned before the next one is
    called; one of a single iteration is called once. The objects are relocatable, and are linked to each other and to
    libm. Where `features` has amx-tile, the process must have asked Linux for its registers (ARCH_REQ_XCOMP_PERM).
    """

    triple: str
    cpu: str
    features: str  # beyond the processor's, as LLVM writes them
    objects: tuple[bytes, ...] = field(repr=False)
    llvm: str = field(repr=False)  # the same before LLVM's own passes
    functions: tuple[Phase, ...]
    arguments: tuple[Argument, ...]

    @staticmethod
    def of(kernel: Kernel, target: Target, inputs: int) -> Linkable:
        """A kernel, the first so many of whose params are inputs. Raises as `build`; ValueError if it is too large."""
        from .build import build, source  # clients that are handed one out do without LLVM

        artifact, text = build(kernel, target), source(kernel, target)
        check_sizes(machine_code=sum(map(len, artifact.objects)), LLVM_IR=len(text))
        own = arguments(artifact.params, artifact.scratch, inputs, artifact.packings)
        return Linkable(target.triple, target.cpu, target.features, artifact.objects, text, artifact.phases, own)

    @property
    def sha256(self) -> str:
        """SHA-256 of the objects, one behind the other."""
        return objects_sha256(self.objects)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        return {
            "triple": self.triple,
            "cpu": self.cpu,
            "features": self.features,
            "sha256": self.sha256,
            "objects": [base64.b64encode(code).decode() for code in self.objects],
            "llvm": self.llvm,
            "functions": [{"symbol": phase.symbol, "iterations": phase.iterations} for phase in self.functions],
            "arguments": [argument.to_json() for argument in self.arguments],
        }

    @staticmethod
    def from_json(data: Any) -> Linkable:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        objects: Sequence[str] = data["objects"]
        return Linkable(
            triple=str(data["triple"]),
            cpu=str(data["cpu"]),
            features=str(data["features"]),
            objects=tuple(base64.b64decode(code, validate=True) for code in objects),
            llvm=str(data["llvm"]),
            functions=tuple(Phase(str(item["symbol"]), int(item["iterations"])) for item in data["functions"]),
            arguments=tuple(map(Argument.from_json, data["arguments"])),
        )
