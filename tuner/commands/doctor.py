"""`tunewright doctor`: what this machine offers, and what is in the way."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console

from tunewright.codegen.build import CACHE_BYTES, BuildError
from tunewright.codegen.host import available_cores, detect, machine
from tunewright.db.inspection import inspect
from tunewright.db.errors import StoreError

from .. import limits
from ..peers import INSTALL, PEERS, is_installed
from ..settings import Settings, settings
from ..text import large, printable

PACKAGES = ("numpy", "onnx", "llvmlite", "sqlalchemy", "alembic", "typer", "rich", "platformdirs")
"""What nothing works without, and cost models apart, which come under two names."""

LEAST_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `state` is "ok", "note" (works, could be better) or "fault" (does not work)."""

    name: str
    state: str
    found: str
    mend: str = ""  # the command that mends it, or what to do


def doctor(db: str | None) -> dict[str, Any]:
    """All checks. Nothing is made or changed: a database that is not there stays so, an old one keeps its schema."""
    current = settings()
    checks = [
        _python(),
        *_packages(),
        *_machine(),
        *_database(db or current.db),
        _objects(current),
        *_optional(),
    ]
    return {"ok": all(check.state != "fault" for check in checks), "checks": [asdict(check) for check in checks]}


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check(
        "python", "ok" if ok else "fault", platform.python_version(), "" if ok else "install Python 3.11 or later"
    )


def _packages() -> Iterator[Check]:
    names = [*PACKAGES, "xgboost" if _version("xgboost") else "xgboost-cpu"]
    for name in ["tunewright", *names]:
        found = _version(name)
        if found:
            yield Check(name, "ok", found)
        elif name == "tunewright":
            yield Check(name, "note", "runs from a checkout, not installed", "pip install .")
        else:
            yield Check(name, "fault", "not installed", f"pip install {name}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _machine() -> Iterator[Check]:
    target, facts, cores = detect(), machine(), available_cores()
    yield Check("processor", "ok", f"{facts['processor']}, {len(cores)} of {os.cpu_count()} processors to use")
    yield Check("system", "ok", f"{facts['system']}, {platform.machine()}")
    yield Check("llvm", "ok", f"{facts['llvm']}, for {target.triple} {target.cpu}")
    yield Check("vectors", "ok", f"{target.vector_bits} bits, {target.vector_registers} registers")
    caches = (("L1", target.l1_bytes), ("L2", target.l2_bytes), ("L3", target.l3_bytes))
    yield Check("caches", "ok", ", ".join(f"{name} {size >> 10:,} KiB" for name, size in caches))
    yield Check("target", "ok", f"{target} ({target.key[:12]})")
    try:
        found = limits.measure(target)
    except (BuildError, OSError, RuntimeError) as error:
        yield Check(
            "kernels", "fault", f"can't be built and run: {printable(error)}", "tell the maintainers, with this list"
        )
        return
    rates = (
        f"{large(found.peak_flops_s, 'FLOP/s')}, reading beyond the L2 caches {large(found.bandwidth_bytes_s, 'B/s')}"
    )
    yield Check("kernels", "ok", f"built and run; measured on {target.threads} threads: {rates}")


def _database(url: str) -> Iterator[Check]:
    try:
        found = inspect(url)
    except StoreError as error:
        yield Check("database", "fault", str(error), "--db URL or TUNEWRIGHT_DB names another one")
        return
    if found is None:
        yield Check("database", "ok", f"{url}: not there yet; the first command that needs it makes it")
        return
    if found.is_current:
        counts = ", ".join(f"{count} {name}" for name, count in found.counts.items())
        yield Check("database", "ok", f"{found.name}: schema {found.revision}, {counts}")
    else:
        schema = f"its schema {found.revision} is an older one" if found.revision else "it is empty"
        mend = f"tunewright db upgrade --db {found.name}; any other command that opens it does the same"
        yield Check("database", "note", f"{found.name}: {schema}", mend)
    journal = f", journal mode {found.journal_mode}" if found.journal_mode else ""
    if found.wal_is_safe:
        yield Check("database", "ok", f"{found.library}{journal}")
    else:
        slower = "could corrupt a database in WAL mode, so that is not used"
        yield Check("database", "note", f"{found.library}{journal}: it {slower}", "pip install pysqlite3")
    if found.damage:
        yield Check(
            "database", "fault", f"DAMAGED: {found.damage}", "tunewright export what can be read, import it anew"
        )


def _objects(current: Settings) -> Check:
    folder = current.objects
    if not folder.exists():
        return Check("object cache", "ok", f"{folder}: not there yet; the first build makes it")
    owner = folder.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        return Check("object cache", "fault", f"{folder} belongs to another user ({owner})", f"rm -r {folder}")
    files = list(folder.glob("*.o"))
    free_bytes = shutil.disk_usage(folder).free
    size = large(sum(file.stat().st_size for file in files), "B")
    found = f"{folder}: {len(files)} objects, {size} of {large(CACHE_BYTES, 'B')}, {large(free_bytes, 'B')} free"
    if free_bytes < LEAST_FREE_BYTES:
        return Check("object cache", "note", found, "free some space, or set TUNEWRIGHT_HOME to a larger disk")
    return Check("object cache", "ok", found)


def _optional() -> Iterator[Check]:
    for name in PEERS:
        if is_installed(name):
            yield Check(name, "ok", f"{_version(name)}, a peer for tunewright bench")
        else:
            yield Check(name, "note", "not installed: tunewright bench can't compare with it", INSTALL)
    ray = _version("ray")
    if ray:
        yield Check("ray", "ok", f"{ray}, for tunewright tune --pool ray")
    else:
        yield Check("ray", "note", "not installed: no --pool ray", "pip install 'tunewright[ray]'")


def render(console: Console, data: dict[str, Any]) -> None:
    """A line a check, and the command that mends it."""
    marks = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}
    for check in data["checks"]:
        console.print(f"{marks[check['state']]} {check['name']}: {printable(check['found'])}", soft_wrap=True)
        if check["mend"]:
            console.print(f"        to mend it: {printable(check['mend'])}", soft_wrap=True)
    console.print("everything that is needed works" if data["ok"] else "something that is needed does not work")
