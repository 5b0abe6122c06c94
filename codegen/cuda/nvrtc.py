"""NVRTC: CUDA C into the machine code of a GPU, on machines that have none, through CuPy.

`nvidia-cuda-nvrtc` brings the compiler, `cupy-cuda13x` what calls it; both are of the extra `cuda`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from ..llvm.build import BuildError

OPTIONS = ("--std=c++17", "--ptxas-options=-v")

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")


class NoCompiler(Exception):
    """CuPy or NVRTC is not installed. The text says what to do."""


class Usage(NamedTuple):
    """The resources of a kernel on the device, as the assembler reports."""

    registers: int  # of a thread
    stack_bytes: int  # of a thread: arrays that are not in registers
    spill_store_bytes: int  # of a thread: spilled registers
    spill_load_bytes: int
    smem_bytes: int  # static shared memory of a block


class Cubin(NamedTuple):
    """Machine code, and what each of its kernels needs."""

    code: bytes
    usage: Mapping[str, Usage]


def compile_text(text: str, arch: str) -> Cubin:
    """CUDA C as machine code for an architecture, e.g. "sm_90a". Raises BuildError, one line; NoCompiler."""
    program = _Compilation(text, arch)
    return Cubin(program.code, _usage(program.log))


def ptx(text: str, arch: str) -> str:
    """CUDA C as PTX for an architecture: that of a driver that has to finish it. Raises as `compile_text`."""
    return _Compilation(text, arch.replace("sm_", "compute_")).ptx


def version() -> str:
    """The version of NVRTC, e.g. "13.5". Raises NoCompiler."""
    return ".".join(map(str, _nvrtc().getVersion()))


class _Compilation:
    """The compilation of a text: log, and machine code or PTX."""

    def __init__(self, text: str, arch: str) -> None:
        nvrtc = _nvrtc()
        program = nvrtc.createProgram(text, "kernel.cu", (), ())
        try:
            nvrtc.compileProgram(program, (f"--gpu-architecture={arch}", *OPTIONS))
            self.log: str = nvrtc.getProgramLog(program)
            is_code = arch.startswith("sm_")
            self.code: bytes = _complete(nvrtc.getCUBIN(program)) if is_code else b""
            self.ptx: str = "" if is_code else nvrtc.getPTX(program).decode()
        except nvrtc.NVRTCError as error:
            lines = nvrtc.getProgramLog(program).splitlines()
            wrong = next((" ".join(line.split()) for line in lines if "error" in line), error)
            raise BuildError(f"NVRTC, for {arch}: {wrong}") from error
        finally:
            nvrtc.destroyProgram(program)


@contextmanager
def require_cupy() -> Iterator[None]:
    """A context that imports CuPy. Raises NoCompiler where it is not installed, or its libraries."""
    try:
        yield
    except (ImportError, RuntimeError, OSError) as error:
        raise NoCompiler(f"{' '.join(str(error).split())[:200]}: pip install 'tunewright[cuda]'") from error


@cache
def _nvrtc() -> Any:
    with require_cupy():
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    return nvrtc


def _complete(code: bytes) -> bytes:
    """Machine code as NVRTC made it: CuPy takes its last byte, a 0, for the end of a text. Drivers do without it, tools
    that read ELF don't.
    """
    headers_at, entry_bytes, entries = struct.unpack_from("<32xQ14xHH", code)
    return code.ljust(headers_at + entry_bytes * entries, b"\0")


def _usage(log: str) -> Mapping[str, Usage]:
    """The usage of each kernel, from the assembler's log."""
    usages: dict[str, Usage] = {}
    name, stack = "", (0, 0, 0)
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, stack = entry[1], (0, 0, 0)
        elif bytes_each := _STACK.search(line):
            stack = (int(bytes_each[1]), int(bytes_each[2]), int(bytes_each[3]))
        elif registers := _USED.search(line):
            smem = _SMEM.search(line)
            usages[name] = Usage(int(registers[1]), *stack, int(smem[1]) if smem else 0)
    return usages
