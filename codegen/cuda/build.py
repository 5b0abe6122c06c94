"""Kernel -> machine code of a GPU, on machines that have none. Read `build`."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ..build import PLACEHOLDER, ObjectCache
from ..ir import Buffer, Kernel, Packing
from ..target import Target
from ..verify import verify
from . import nvrtc
from .nvrtc import Cubin, Usage
from .source import Launch, Source, emit

BUILD_VERSION = 1
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
    made = source(kernel, target)
    _ir_log.debug("%s", kernel)
    _text_log.debug("%s", made.text)
    key = f"{BUILD_VERSION} nvrtc={nvrtc.version()} {' '.join(nvrtc.OPTIONS)} {target.cpu}\n{made.text}"
    kept = cache.get(key) if cache else None
    cubin = _unpacked(kept) if kept else nvrtc.compiled(made.text, target.cpu)
    if cache and kept is None:
        cache.put(key, _packed(cubin))
    return GpuArtifact(
        code=cubin.code,
        sha256=hashlib.sha256(cubin.code).hexdigest(),
        launches=made.launches,
        usage=cubin.usage,
        params=kernel.params,
        scratch=kernel.scratch,
        packings=dict(kernel.packings),
    )


def source(kernel: Kernel, target: Target) -> Source:
    """The CUDA C text that `build` compiles, and its launches. It takes no compiler. Raises as `emit`."""
    draft = emit(kernel, PLACEHOLDER)
    digest = hashlib.sha256(f"{BUILD_VERSION} {target.cpu}\n{draft.text}".encode()).hexdigest()
    symbol = f"k{digest[:24]}"
    launches = tuple(one._replace(symbol=one.symbol.replace(PLACEHOLDER, symbol)) for one in draft.launches)
    return Source(draft.text.replace(f" {PLACEHOLDER}_p", f" {symbol}_p"), launches)


def _packed(cubin: Cubin) -> bytes:
    usage = {symbol: list(one) for symbol, one in cubin.usage.items()}
    return json.dumps(usage).encode() + b"\n" + cubin.code


def _unpacked(content: bytes) -> Cubin:
    usage, _, code = content.partition(b"\n")
    return Cubin(code, {symbol: Usage(*one) for symbol, one in json.loads(usage).items()})
