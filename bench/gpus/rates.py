"""Candidates of a product that are tried a second: by our search, and by the tuners of Triton, PyTorch and Helion."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tunewright.bench.entries import Entry
from tunewright.bench.rivals.gpu_tuners import TUNERS
from tunewright.bench.rivals.process import RequestTimeout, ServedProcess, ServedProcessError
from tunewright.codegen.target import Target
from tunewright.workers.local import LocalPool

from .search import search_task
from .workloads import KERNEL_WORKLOADS, heaviest_task

PRODUCTS: Mapping[str, tuple[int, int, int]] = {
    f"gemm float16 {extent}x{extent}x{extent}": (extent, extent, extent) for extent in (1024, 4096)
}
"""Rows, depth and columns by name."""

PACKAGES = sorted({package for _, packages in TUNERS.values() for package in packages})

PROGRAM = [sys.executable, "-P", "-m", "tunewright.bench.rivals.gpu_tuners"]

LIMIT_S, GRACE_S = 60.0, 30.0
"""Seconds of a search that can be limited, and what a tuner may take beyond to begin and to end."""

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HELION_CACHE_DIR")
"""Variables that name folders of caches."""


def tuner_versions() -> dict[str, str]:
    """The versions of the packages that tuners are of; "" where there is none."""
    versions = dict.fromkeys(PACKAGES, "")
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def measure_rates(name: str, target: Target, trials: int, program: Sequence[str] = PROGRAM) -> Entry:
    """Candidates a second of each tuner, each in fresh processes with empty caches, one after the other.

    Ours counts from the first moment of the search, starts of processes included; the others from the first run.
    `missing` has the tuners that failed, or took longer than they may, with why. Raises PoolError, ReferenceFailed.
    """
    task = heaviest_task(KERNEL_WORKLOADS[name].text)
    with TemporaryDirectory() as folder, LocalPool(target, Path(folder)) as pool:
        start_s = time.perf_counter()
        search = search_task(pool, task, target, trials)
        time_s = time.perf_counter() - start_s
    tuned: dict[str, Any] = {"ours": {"candidates": len(search.trials), "time_s": time_s, "best_s": search.best[1]}}
    missing: dict[str, str] = {}
    for tuner in TUNERS:
        try:
            tuned[tuner] = _tune(tuner, PRODUCTS[name], program)
        except (RequestTimeout, ServedProcessError) as error:
            missing[tuner] = str(error).splitlines()[-1]
    rates = {tuner: each["candidates"] / each["time_s"] for tuner, each in tuned.items()}
    return {"candidates_a_second": rates, "tuners": tuned, "missing": missing}


def _tune(tuner: str, extents: tuple[int, int, int], program: Sequence[str]) -> dict[str, Any]:
    """What a tuner answers. Raises RequestTimeout and ServedProcessError."""
    rows, depth, columns = extents
    with TemporaryDirectory() as folder:
        caches = {name: f"{folder}/{name.lower()}" for name in CACHES}
        cores, log = sorted(os.sched_getaffinity(0)), Path(folder) / "log"
        with ServedProcess(program, cores, log, caches) as process:
            answer: dict[str, Any] = process.request(
                "tune", LIMIT_S + GRACE_S, tuner=tuner, rows=rows, depth=depth, columns=columns, limit_s=LIMIT_S
            )
        return answer
