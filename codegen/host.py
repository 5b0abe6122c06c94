"""The machine that this process runs on: its Target, its limits, and its description for measurements."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .target import Target

SYSTEM = Path("/sys/devices/system/cpu")
"""Where Linux describes processors."""

CGROUPS = Path("/sys/fs/cgroup")
"""Where Linux keeps what groups of processes, such as containers, are limited to (version 2)."""

OWN_CGROUP = Path("/proc/self/cgroup")
"""Tells which of them this process is in."""

UNLIMITED = 1 << 62


class Caches(NamedTuple):
    """Sizes in bytes: level 1 data and level 2 of one core, level 3 shared (0: none)."""

    l1_bytes: int
    l2_bytes: int
    l3_bytes: int


DEFAULT_CACHES = Caches(32 << 10, 512 << 10, 8 << 20)
"""Assumed where the system doesn't say, as on macOS and in some sandboxes."""


def detect(threads: int | None = None) -> Target:
    """The CPU of this machine. `threads` defaults to the cores that this process may use."""
    import llvmlite.binding as llvm

    features = sorted(llvm.get_host_cpu_features().items())
    if not allow_matrix_registers():
        features = [(name, present and not name.startswith("amx-")) for name, present in features]
    vector_bits, vector_registers = _vectors({name for name, present in features if present})
    cores = available_cores()
    caches = host_caches()
    return Target(
        kind="cpu",
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=",".join(f"{'+' if present else '-'}{name}" for name, present in features),
        vector_bits=vector_bits,
        vector_registers=vector_registers,
        threads=threads or len(cores),
        l1_bytes=caches.l1_bytes,
        l2_bytes=caches.l2_bytes,
        l3_bytes=caches.l3_bytes,
    )


ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
"""A system call of Linux on x86-64, its request for a part of the processor's state, and matrix registers as such."""


@cache
def allow_matrix_registers() -> bool:
    """Ask the system to let this process use matrix registers; whether it does. It ends those that use them unasked.

    Linux saves 8 KiB more for each thread that uses them, and so has to be asked: see "Using XSTATE features in user
    space applications" in its documentation.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


def available_cores() -> list[int]:
    """Numbers of the cores that this process may run on, ascending; no more than its quota of time can keep busy."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return cores[: min([len(cores), *map(_quota_cores, group_texts("cpu.max"))])]


def _quota_cores(limit: str) -> int:
    """Cores that the time of a limit amounts to, rounded up, at least 1: "150000 100000" is 2, in microseconds."""
    match limit.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return max(-(-int(quota) // int(period)), 1)
    return UNLIMITED


NICENESS = 5
"""How far work in the background steps back behind others: where processors are few, it gets a quarter of one that runs
need."""


def available_memory_bytes() -> int:
    """Memory of this machine, or of the container that this process is in."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine_bytes, *(int(text) for text in group_texts("memory.max") if text.isdigit())])


def group_texts(name: str) -> Iterator[str]:
    """The content of a file in this process's group and in each around it: of limits the tightest one counts."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder = CGROUPS / own
    for group in (folder, *folder.parents):
        with suppress(OSError):  # the outermost group has no limits, and in a container those outside can't be seen
            yield (group / name).read_text().strip()
        if group == CGROUPS:
            return


def _vectors(features: set[str]) -> tuple[int, int]:
    """Width in bits and number of the vector registers."""
    match features:
        case _ if "avx512f" in features:
            return 512, 32
        case _ if "avx2" in features:
            return 256, 16
        case _ if "neon" in features:
            return 128, 32
        case _:
            return 128, 16


def host_caches() -> Caches:
    """Cache sizes of the cores that this process may use."""
    return read_caches(SYSTEM, available_cores()[0])


def read_caches(system: Path, core: int) -> Caches:
    """Cache sizes of one core from a tree like `SYSTEM`; `DEFAULT_CACHES` where there is no such tree."""
    sizes: dict[int, int] = {}
    for folder in sorted((system / f"cpu{core}" / "cache").glob("index[0-9]*")):
        try:
            if (folder / "type").read_text().strip() != "Instruction":
                sizes[int((folder / "level").read_text())] = _bytes((folder / "size").read_text())
        except (OSError, ValueError):  # a level that the kernel knows only in part
            continue
    if not sizes:
        return DEFAULT_CACHES
    return Caches(
        sizes.get(1) or DEFAULT_CACHES.l1_bytes,
        sizes.get(2) or DEFAULT_CACHES.l2_bytes,
        sizes.get(3, 0),
    )


def _bytes(text: str) -> int:
    """Bytes of a size in the kernel's spelling: "48K", "32M", "512"."""
    text = text.strip()
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    return int(text[:-1] if shift else text) << shift


def machine() -> dict[str, str]:
    """Where a measurement came from: processor, operating system, and versions of what shapes the code."""
    import llvmlite
    import llvmlite.binding as llvm
    import numpy as np

    return {
        "tunewright": _version(),
        "processor": _processor(Path("/proc/cpuinfo")) or llvm.get_host_cpu_name(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "numpy": np.__version__,
    }


def _version() -> str:
    """The version of this package."""
    from importlib.metadata import PackageNotFoundError, version  # takes longer than the rest of this module

    try:
        return version("tunewright")
    except PackageNotFoundError:  # runs from a checkout
        return "unknown"


def _processor(cpuinfo: Path) -> str:
    """The maker's name of the processor; empty where the system doesn't say (Linux on ARM doesn't)."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
