"""Runs kernels on this machine, with memory that may not be touched beside each buffer."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tunewright.codegen.host import detect
from tunewright.codegen.ir.ir import Buffer, Kernel
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.library import Library
from tunewright.codegen.target import Target

GUARD = b"\xa5"
NO_ACCESS = 0


@pytest.fixture(scope="session")
def host() -> Target:
    return detect()


def narrower(host: Target) -> list[Target]:
    """The host, and older processors whose code it runs as well."""
    if not host.triple.startswith("x86_64"):
        return [host]
    older = [("x86-64-v3", 256), ("x86-64-v2", 128)]
    return [host, *(replace(host, cpu=c, features="", vector_bits=b, vector_registers=16) for c, b in older)]


class Guarded:
    """An array that ends where a forbidden page starts, with known bytes before it.

    Its alignment is thus that of an element: the emitter doesn't count on more.
    """

    def __init__(self, buffer: Buffer, content: np.ndarray | None) -> None:
        pages = -(-(buffer.size_bytes + 64) // mmap.PAGESIZE)
        self.memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        self.start = pages * mmap.PAGESIZE - buffer.size_bytes
        self.memory[: self.start] = GUARD * self.start
        array = np.frombuffer(self.memory, buffer.dtype.numpy, int(np.prod(buffer.shape)), self.start)
        self.array = array.reshape(buffer.shape)
        if content is not None:
            assert content.dtype == buffer.dtype.numpy, buffer.name
            self.array[...] = content
        origin = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.address = origin + self.start
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(origin + pages * mmap.PAGESIZE)
        assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), NO_ACCESS) == 0

    def check(self) -> None:
        assert self.memory[: self.start] == GUARD * self.start


Execute = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def execute(host: Target) -> Execute:
    """`execute(kernel, x=array, ...)`: all phases on this machine; the arrays of the parameters afterwards, by name.

    Parameters not given start as zeros. `shared={"y": "x"}` lets y be the same memory as x. The code is for the host,
    and for older processors too where the host can stand for them: the results must be the same, or
    close if not `exact`.
    """

    def run(
        kernel: Kernel, *, shared: dict[str, str] | None = None, exact: bool = True, **arrays: np.ndarray
    ) -> dict[str, np.ndarray]:
        first, *others = [once(kernel, target, shared or {}, arrays) for target in narrower(host)]
        for other in others:
            for name, array in other.items():
                np.testing.assert_allclose(array, first[name], rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)
        return first

    def once(
        kernel: Kernel, target: Target, shared: dict[str, str], arrays: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        artifact = build(kernel, target)
        memory = {b.name: Guarded(b, arrays.get(b.name)) for b in (*kernel.params, *kernel.scratch)}
        for name, other in shared.items():
            memory[name] = memory[other]
        addresses = (ctypes.c_void_p * len(memory))(*[m.address for m in memory.values()])
        library = Library([(artifact.objects, [phase.symbol for phase in artifact.phases])])
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        for phase in artifact.phases:
            function = kind(library.addresses[0][phase.symbol])
            half = phase.iterations // 2  # two threads' shares, the later one first; one may be empty
            function(addresses, half, phase.iterations)
            if phase.iterations > 1:
                function(addresses, 0, half)
                function(addresses, half, half)
        library.close()
        for m in memory.values():
            m.check()
        return {b.name: memory[b.name].array.copy() for b in kernel.params}

    return run
