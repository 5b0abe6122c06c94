"""The limits of an NVIDIA GPU, on which schedules depend.

Figures of an architecture: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Figures of a
product: NVIDIA's data sheet of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .fields import check_names, check_ranges, quote

ARCH_PATTERN = re.compile("sm_([1-9][0-9]{1,2})([af]?)")

WARPGROUP_ARCH = "sm_90a"
"""The only architecture that has instructions of warpgroups (PTX ISA, wgmma.mma_async)."""

LEAST_CAPABILITY = 80
"""The least compute capability, without its point, that kernels are for: products on tensor cores are `mma.m16n8k16`,
copies `cp.async`, which no older one has (PTX ISA).
"""

WARP = 32
"""Threads that execute one instruction together."""

BLOCK_THREADS = 1024
"""Most threads of a block."""

SM_REGISTERS, THREAD_REGISTERS = 65536, 255
"""Registers of 32 bits: of a multiprocessor, and what one thread may have of them."""

WIDEST_BYTES = 16
"""Bytes of the widest memory access of a thread."""

EXCHANGED_ALIGN = 1024
"""Alignment of swizzled buffers in shared memory, in bytes: eight rows of its banks."""

STATIC_SMEM_BYTES = 48 << 10
"""Shared memory that a block gets without asking for more at its launch."""

ARITHMETIC: Mapping[int, tuple[int, int]] = {
    80: (64, 1024),
    86: (128, 512),
    89: (128, 512),
    90: (128, 2048),
    100: (128, 4096),
    120: (128, 512),
}
"""Multiply-adds of a multiprocessor a cycle, of float32 and of narrow floats, by the least compute capability that has
so many. Of float32: CUDA C++ Programming Guide, "Arithmetic Instructions"; of narrow floats: NVIDIA's data sheets.
"""

RANGES = {
    "sms": (1, 1024),
    "sm_threads": (WARP, 4096),
    "sm_blocks": (1, 64),
    "sm_smem_bytes": (STATIC_SMEM_BYTES, 1 << 20),
    "block_smem_bytes": (STATIC_SMEM_BYTES, 1 << 20),
    "l2_bytes": (1 << 16, 1 << 32),
    "clock_hz": (10**8, 10**10),
    "memory_bytes_s": (10**9, 10**14),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its numbers. Two alike are equal, whichever machines they are in."""

    arch: str  # the target of compilation, e.g. "sm_90a"; with a letter at the end for that architecture alone
    sms: int  # multiprocessors
    sm_threads: int  # most resident threads of a multiprocessor
    sm_blocks: int  # most resident blocks of it
    sm_smem_bytes: int  # shared memory of a multiprocessor
    block_smem_bytes: int  # the part that a block may ask for
    l2_bytes: int
    clock_hz: int  # the highest that it runs at by itself
    memory_bytes_s: int  # bandwidth of its memory, by the data sheet

    def __post_init__(self) -> None:
        """Raises ValueError for what no GPU is: targets also come from files and databases."""
        if not (isinstance(self.arch, str) and ARCH_PATTERN.fullmatch(self.arch)):
            raise ValueError(f"gpu: arch must be like sm_90a, not {quote(self.arch)}")
        if self.capability < LEAST_CAPABILITY:
            raise ValueError(f"gpu: arch must be sm_{LEAST_CAPABILITY} or later, not {self.arch}")
        check_ranges("gpu", self, RANGES)

    @property
    def capability(self) -> int:
        """The compute capability without its point: 80, 90, 120."""
        match = ARCH_PATTERN.fullmatch(self.arch)
        assert match is not None
        return int(match[1])

    @property
    def has_warpgroups(self) -> bool:
        """Whether it has products of warpgroups, of operands that the copy engine brings."""
        return self.arch == WARPGROUP_ARCH

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of float32 by a multiprocessor in a cycle."""
        return self._arithmetic[0]

    @property
    def narrow_multiply_adds(self) -> int:
        """Multiply-adds of float16 or bfloat16 by the tensor cores of a multiprocessor in a cycle."""
        return self._arithmetic[1]

    @property
    def byte_multiply_adds(self) -> int:
        """Multiply-adds of bytes by them in a cycle: twice as many (NVIDIA's data sheets)."""
        return 2 * self.narrow_multiply_adds

    @property
    def split_multiply_adds(self) -> int:
        """Multiply-adds of float32 by the tensor cores of a multiprocessor in a cycle, as three products of TF32.

        They do half as many of these as of narrow floats (NVIDIA's data sheets).
        """
        return self.narrow_multiply_adds // 6

    @property
    def _arithmetic(self) -> tuple[int, int]:
        return ARITHMETIC[max(capability for capability in ARITHMETIC if capability <= self.capability)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Gpu:
        """The inverse of `to_json`. Raises ValueError, in words for people, on any other data."""
        names = [field.name for field in fields(Gpu)]
        check_names(data, names, names)
        return Gpu(**data)

    def __str__(self) -> str:
        return f"{self.arch}:{self.sms}"


_KB, _MB, _MHZ, _GB = 1 << 10, 1 << 20, 10**6, 10**9

KNOWN: Mapping[str, Gpu] = {
    gpu.arch: gpu
    for gpu in (
        Gpu("sm_80", 108, 2048, 32, 164 * _KB, 163 * _KB, 40 * _MB, 1410 * _MHZ, 2039 * _GB),  # A100 SXM, 80 GB
        Gpu("sm_86", 72, 1536, 16, 100 * _KB, 99 * _KB, 6 * _MB, 1695 * _MHZ, 600 * _GB),  # A10
        Gpu("sm_89", 142, 1536, 24, 100 * _KB, 99 * _KB, 96 * _MB, 2520 * _MHZ, 864 * _GB),  # L40S
        Gpu("sm_90a", 132, 2048, 32, 228 * _KB, 227 * _KB, 50 * _MB, 1980 * _MHZ, 4800 * _GB),  # H200 SXM
        Gpu("sm_100a", 148, 2048, 32, 228 * _KB, 227 * _KB, 126 * _MB, 1965 * _MHZ, 8000 * _GB),  # B200
        Gpu("sm_120a", 170, 1536, 24, 100 * _KB, 99 * _KB, 96 * _MB, 2407 * _MHZ, 1792 * _GB),  # GeForce RTX 5090
    )
}
"""One GPU for each architecture, to compile for where there is no device."""
