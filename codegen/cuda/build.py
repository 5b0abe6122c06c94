"""Kernel -> machine code of a GPU, on machines that have none. Read `build`."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.ir import Buffer, Kernel, Packing
from ..llvm.build import PLACEHOLDER, ObjectCache
from ..target import Target
from ..verify import verify
from . import nvrtc
from .emit import CudaSource, Launch, emit
from .nvrtc import Cubin, Usage

BUILD_VERSION = 2
"""Raised when the same text would be built into other code."""

_ir_log, _text_log = (logging.getLogger(f"tunewright.{name}") for name in ("ir", "llvm"))


@dataclass(frozen=True, slots=True)
class GpuArtifact:
    """A kernel that was built for a GPU: what a driver loads, and how it is launched."""

    code: bytes  # a cubin
    sha256: str
    launches: tuple[Launch, ...]
    usage: Mapping[str, Usage]  # by symbol
    params: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    packings: Mapping[str, Packing]


def build(kernel: Kernel, target: Target, cache: ObjectCache | None = None) -> GpuArtifact:
    """Compile a kernel for a GPU, or take its code from the cache.

    Symbols come from the content, so that the same kernel always gives the same code. Raises BuildError if NVRTC
    refuses, NoCompiler if there is none; VerifyError, and as `emit`, on a bug in what made the kernel.
    """
    verify(kernel)
    cuda_source = source(kernel, target)
    _ir_log.debug("%s", kernel)
    _text_log.debug("%s", cuda_source.text)
    key = f"{BUILD_VERSION} nvrtc={nvrtc.version()} {' '.join(nvrtc.OPTIONS)} {target.cpu}\n{cuda_source.text}"
    content = cache.get(key) if cache else None
    cubin = _unpack(content) if content else nvrtc.compile_text(cuda_source.text, target.cpu)
    if cache and content is None:
        cache.put(key, _pack(cubin))
    return GpuArtifact(
        code=cubin.code,
        sha256=hashlib.sha256(cubin.code).hexdigest(),
        launches=cuda_source.launches,
        usage=cubin.usage,
        params=kernel.params,
        scratch=kernel.scratch,
        packings=dict(kernel.packings),
    )


def source(kernel: Kernel, target: Target) -> CudaSource:
    """The CUDA C text that `build` compiles, and its launches. It takes no compiler. Raises as `emit`."""
    draft = emit(kernel, PLACEHOLDER)
    digest = hashlib.sha256(f"{BUILD_VERSION} {target.cpu}\n{draft.text}".encode()).hexdigest()
    symbol = f"k{digest[:24]}"
    launches = tuple(launch._replace(symbol=launch.symbol.replace(PLACEHOLDER, symbol)) for launch in draft.launches)
    return CudaSource(draft.text.replace(f" {PLACEHOLDER}_p", f" {symbol}_p"), launches)


def _pack(cubin: Cubin) -> bytes:
    usage = {symbol: list(figures) for symbol, figures in cubin.usage.items()}
    return json.dumps(usage).encode() + b"\n" + cubin.code


def _unpack(content: bytes) -> Cubin:
    usage, _, code = content.partition(b"\n")
    return Cubin(code, {symbol: Usage(*figures) for symbol, figures in json.loads(usage).items()})
