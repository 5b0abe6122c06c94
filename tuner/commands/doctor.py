"""`tunewright doctor`: what this machine offers, and what is in the way."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.codegen.build import CACHE_BYTES, BuildError
from tunewright.codegen.cuda.device import NoDevice, devices, driver_version
from tunewright.codegen.cuda.driver import NoClocks, management
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.host import available_cores, detect, machine
from tunewright.codegen.target import Target
from tunewright.costmodel.base import base
from tunewright.db.errors import StoreError
from tunewright.db.inspection import Inspection, Work, inspect
from tunewright.db.reading import open_reader
from tunewright.db.sql_store import SqlStore
from tunewright.workers.confine import confinement, landlock_version
from tunewright.workers.rates import measure, noise

from ..lookup.experience import is_proven, newest_snapshot
from ..peers import PEERS, how_to_install, is_installed, module_of
from ..running.image_store import room_bytes
from ..settings import Settings, settings
from ..text import counted, large, printable, short

PACKAGES = ("numpy", "onnx", "llvmlite", "sqlalchemy", "alembic", "typer", "rich", "platformdirs")
"""What nothing works without, and cost models apart, which come under two names."""

SERVICE = ("fastapi", "httptools", "jinja2", "limits", "prometheus-client", "structlog", "uvicorn", "uvloop")
"""What `tunewright serve` takes besides Ray."""

GPU = ("cupy-cuda13x", "nvidia-cuda-nvrtc")
"""What drives NVIDIA's GPUs, and what compiles for them."""

LEAST_FREE_BYTES = 1 << 30

OTHERS = 0o077
"""What a file's mode has where others than its owner may use it."""

CLOCK_S = 5.0
"""How far the clock of a database server and that of this machine may be apart without a word."""


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
        *_cost_models(db or current.db, detect().kind),
        _kept("object cache", current.objects, "*.o", lambda _taken, _free: CACHE_BYTES, "the first build makes it"),
        _kept("images", current.images, "*.image", room_bytes, "the first session of Python makes it"),
        *_disk(current.home),
        *_peers(),
        *_gpus(),
        *_service(current),
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
    yield Check(
        "processor",
        "ok",
        f"{facts['processor']}, {len(cores)} of {counted(os.cpu_count() or len(cores), 'processor')} to use",
    )
    yield Check("system", "ok", f"{facts['system']}, {platform.machine()}")
    yield Check("llvm", "ok", f"{facts['llvm']}, for {target.triple} {target.cpu}")
    yield Check("vectors", "ok", f"{target.vector_bits} bits, {target.vector_registers} registers")
    caches = (("L1", target.l1_bytes), ("L2", target.l2_bytes), ("L3", target.l3_bytes))
    yield Check("caches", "ok", ", ".join(f"{name} {size >> 10:,} KiB" for name, size in caches))
    yield Check("target", "ok", f"{target} ({short(target.key)})")
    try:
        found = measure(target, settings().objects)
    except OSError as error:
        mend = "TUNEWRIGHT_HOME must name a folder that you may make, and write to"
        yield Check("kernels", "fault", f"can't be kept: {printable(error)}", mend)
        return
    except (BuildError, RuntimeError) as error:
        yield Check(
            "kernels", "fault", f"can't be built and run: {printable(error)}", "tell the maintainers, with this list"
        )
        return
    rates = (
        f"{large(found.peak_flops_s, 'FLOP/s')}, reading beyond the L2 caches {large(found.bandwidth_bytes_s, 'B/s')}"
    )
    yield Check("kernels", "ok", f"built and run; measured on {counted(target.threads, 'thread')}: {rates}")
    yield _noise(target)


def _noise(target: Target) -> Check:
    """Whether times of this machine can be relied on at the moment."""
    if reason := noise(target, settings().objects).reason:
        found = f"too busy for times to be relied on just now: {reason}"
        mend = "end what else is at work on it, or give --threads fewer than there are processors"
        return Check("noise", "note", found, mend)
    return Check("noise", "ok", "quiet enough for times to be relied on")


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
        counts = ", ".join(counted(count, name.removesuffix("s")) for name, count in found.counts.items())
        yield Check("database", "ok", f"{found.name}: schema {found.revision}, {counts}")
    else:
        schema = f"its schema {found.revision} is an older one" if found.revision else "it is empty"
        mend = f"tunewright db upgrade --db {found.name}; any other command that opens it does the same"
        yield Check("database", "note", f"{found.name}: {schema}", mend)
    yield from _file(found)
    if found.work is not None:
        yield from _work(found.work, found.name)


def _file(found: Inspection) -> Iterator[Check]:
    """The library, the journal, damage, and who may read it."""
    journal = f", journal mode {found.journal_mode}" if found.journal_mode else ""
    partly = "" if found.is_checked else "; too large to look all through for damage here"
    if found.wal_is_safe:
        yield Check("database", "ok", f"{found.library}{journal}{partly}")
    else:
        slower = "could corrupt a database in WAL mode, so that is not used"
        yield Check("database", "note", f"{found.library}{journal}: it {slower}{partly}", "pip install pysqlite3")
    if found.damage:
        mend = "restore a backup into another file: tunewright restore FILE --db URL; or export what can be read"
        yield Check("database", "fault", f"DAMAGED: {found.damage}", mend)
    if found.file is not None and found.file.stat().st_mode & OTHERS:  # made by an earlier version, or copied
        mend = f"chmod go= {shlex.quote(str(found.file))}*"  # those beside it too
        yield Check("database", "note", f"others can read {found.file}", mend)


def _work(work: Work, url: str) -> Iterator[Check]:
    """The queue and the fleet."""
    if abs(work.clock_ahead_s) > CLOCK_S:
        side = "ahead of" if work.clock_ahead_s > 0 else "behind"
        found = f"that of the database is {abs(work.clock_ahead_s):.0f} s {side} that of this machine"
        yield Check("clock", "note", f"{found}; jobs go by the former", "timedatectl set-ntp true, on both machines")
    if work.lost:
        found = counted(work.lost, "running job has lost its process", "running jobs have lost their processes")
        mend = f"tunewright work --db {url} takes them up; those of tune: the same tune command"
        yield Check("jobs", "note", found, mend)
    if work.queued and not work.tuners:
        mend = f"tunewright work --db {url}"
        yield Check(
            "jobs", "note", f"{counted(work.queued, 'job is', 'jobs are')} queued, and no tuner is at work", mend
        )
    elif work.tuners:
        yield Check("jobs", "ok", f"{work.queued} queued, {counted(work.tuners, 'tuner')} at work")
    for device in work.quarantined:
        until = f"{device.quarantined_until:%Y-%m-%d %H:%M} UTC" if device.quarantined_until else ""
        found = f"{device.name} is in quarantine until {until}: {device.reason}"
        mend = "see to the reason; it is tried again then, or when its tunewright work is started anew"
        yield Check("device", "note", found, mend)


def _cost_models(url: str, kind: str) -> Iterator[Check]:
    """The base model, and the newest that the trials of the database taught."""
    try:
        shipped = base(kind)
    except ValueError as error:
        yield Check("cost model", "fault", f"the base model can't be read: {printable(error)}", "install it anew")
        return
    if shipped is None:
        found = "none for the features of this version: what nobody measured runs on defaults, and searches start cold"
        yield Check("cost model", "note", found, "./dev bench base_model, in a checkout, makes one")
    else:
        card = shipped.card
        trials, tasks = (card["learned_from"][name] for name in ("trials", "tasks"))
        learned = f"{counted(trials, 'trial')} of {counted(tasks, 'task')}"
        found = f"base model {short(shipped.sha256)} of {card['made']}, from {learned}: {_figures(card['quality'])}"
        yield Check("cost model", "ok", found)
    with suppress(StoreError), open_reader(url) as store:  # what is wrong with the database is told where it is checked
        yield from _snapshot(store, kind)


def _snapshot(store: SqlStore, kind: str) -> Iterator[Check]:
    """What the database adds to the base model; nothing where it has too few trials to teach anything."""
    newest = newest_snapshot(store, kind)
    if newest is None:
        if store.costs.list(kind, limit=1):
            found = "the snapshots in the database are of another version or base model; the next job makes one"
            yield Check("cost model", "ok", found)
        return
    of = f"snapshot {newest.id} of {newest.made_at:%Y-%m-%d %H:%M} UTC, from {counted(newest.trials, 'trial')}"
    by = "lookups pick by it too" if is_proven(newest) else "jobs use it, lookups pick by the base model alone"
    own, below = newest.metrics.get("held_out"), newest.metrics.get("below")
    beside = f" (what is below it: {_figures(below)})" if below else ""
    yield Check("cost model", "ok", f"{of}: {_figures(own)}{beside}; {by}")


def _figures(quality: Mapping[str, Any] | None) -> str:
    """How well a model did, see docs/costmodel.md."""
    if quality is None:
        return "there were too few tasks to judge it by"
    told = {name: quality.get(name) for name in ("pairwise", "peak_1", "peak_5", "time_error")}
    said = ", ".join(f"{name} {'-' if value is None else format(value, '.3f')}" for name, value in told.items())
    return f"{said} on {counted(quality['tasks'], 'task')} held out"


def _kept(name: str, folder: Path, pattern: str, room: Callable[[int, int], int], made: str) -> Check:
    """Files that only save time, of which there is a limited amount.

    `room` is how many bytes they may take where they take as many as its first argument says, and as many as its
    second are free. `made`: when their folder is.
    """
    if not folder.exists():
        return Check(name, "ok", f"{folder}: not there yet; {made}")
    owner = folder.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        return Check(name, "fault", f"{folder} belongs to another user ({owner})", f"rm -r {shlex.quote(str(folder))}")
    count, taken_bytes = 0, 0
    for file in folder.glob(pattern):
        with suppress(OSError):  # another process has dropped it by now
            taken_bytes += file.stat().st_size
            count += 1
    free_bytes = shutil.disk_usage(folder).free
    taken = f"{large(taken_bytes, 'B')} of at most {large(room(taken_bytes, free_bytes), 'B')}"
    return Check(name, "ok", f"{folder}: {counted(count, 'file')}, {taken}, {large(free_bytes, 'B')} free")


def _disk(home: Path) -> Iterator[Check]:
    """Of a disk with little room."""
    if home.exists() and (free_bytes := shutil.disk_usage(home).free) < LEAST_FREE_BYTES:
        mend = "free some space, or set TUNEWRIGHT_HOME to a larger disk"
        yield Check("disk", "note", f"{home}: {large(free_bytes, 'B')} free", mend)


def _peers() -> Iterator[Check]:
    for name in dict.fromkeys(map(module_of, PEERS)):
        if is_installed(name):
            yield Check(name, "ok", f"{_version(name)}, a peer for tunewright bench")
        else:
            yield Check(name, "note", "not installed: tunewright bench can't compare with it", how_to_install(name))


def _gpus() -> Iterator[Check]:
    """What code for NVIDIA's GPUs takes, on this machine and for others."""
    missing = [name for name in GPU if not _version(name)]
    if missing:
        found = f"no code for NVIDIA's GPUs: {', '.join(missing)} not installed"
        yield Check("nvrtc", "note", found, "pip install 'tunewright[cuda]'")
        return
    yield Check("nvrtc", "ok", f"{_version(GPU[1])}, CuPy {_version(GPU[0])}: compiles for NVIDIA's GPUs")
    try:
        for device in devices():
            about = f"{device.name}, {device.gpu.arch}, {counted(device.gpu.sms, 'multiprocessor')}"
            yield Check("gpu", "ok", f"{about}; the driver takes CUDA {driver_version()}")
    except (NoDevice, NoCompiler) as error:
        yield Check("gpu", "note", f"none that could be used; processors need none. {printable(error)}")
        return
    try:
        management()
    except NoClocks as error:
        found = f"not told, so that times are taken of a GPU that is hot, too: {printable(error)}"
        yield Check("gpu clocks", "note", found)


def _service(current: Settings) -> Iterator[Check]:
    ray = _version("ray")
    if ray:
        yield Check("ray", "ok", f"{ray}, for --pool ray")
        yield _ray_token(os.environ)
    else:
        yield Check("ray", "note", "not installed: no --pool ray", "pip install 'tunewright[ray]'")
    missing = [name for name in SERVICE if not _version(name)]
    if missing:
        found = f"no tunewright serve: {', '.join(missing)} not installed"
        yield Check("service", "note", found, "pip install 'tunewright[serve]'")
    else:
        yield Check("service", "ok", f"fastapi {_version('fastapi')}, uvicorn {_version('uvicorn')}")
    yield _local_key(current.local_key)
    yield _confinement()


def _ray_token(env: Mapping[str, str]) -> Check:
    """How clusters tell who may use them: whoever can talk to Ray can run anything there."""
    if env.get("RAY_AUTH_MODE", "token").lower() != "token":
        found = f"off, by RAY_AUTH_MODE={env['RAY_AUTH_MODE']}: whoever reaches a cluster can run anything on it"
        return Check("ray token", "note", found, "unset RAY_AUTH_MODE")
    if env.get("RAY_AUTH_TOKEN"):
        return Check("ray token", "ok", "from RAY_AUTH_TOKEN")
    named = env.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    if not path.is_file():
        if named:
            return Check("ray token", "note", f"RAY_AUTH_TOKEN_PATH names {path}, which is not there", "unset it")
        return Check("ray token", "ok", "none set: a cluster that is started here gets one of its own")
    if path.stat().st_mode & OTHERS:
        return Check("ray token", "note", f"others can read {path}", f"chmod 600 {shlex.quote(str(path))}")
    return Check("ray token", "ok", f"from {path}")


def _local_key(path: Path) -> Check:
    if not path.exists():
        return Check("local key", "ok", f"{path}: not there yet; tunewright serve makes it")
    status = path.lstat()
    is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    if is_own and not status.st_mode & OTHERS and not path.is_symlink():
        return Check("local key", "ok", f"{path}: only you can read it")
    key_id = path.read_text(errors="replace")[3:15] if os.access(path, os.R_OK) else "ID"
    mend = f"tunewright key revoke {shlex.quote(key_id)}; rm {shlex.quote(str(path))}; tunewright serve makes another"
    return Check("local key", "note", f"{path}: others can read it or put it there", mend)


def _confinement() -> Check:
    """What keeps in the children that read what strangers send."""
    if sys.platform == "linux" and landlock_version():
        return Check("confinement", "ok", confinement())
    found = confinement() if sys.platform == "linux" else "limits only: this is no Linux"
    mend = "Linux 5.13 or later with landlock among lsm= of its command line; until then no uploads from strangers"
    return Check("confinement", "note", found, mend)


def render(console: Console, data: dict[str, Any]) -> None:
    """A line a check, and the command that mends it."""
    marks = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}
    for check in data["checks"]:
        console.print(f"{marks[check['state']]} {check['name']}: {printable(check['found'])}", soft_wrap=True)
        if check["mend"]:
            console.print(f"        to mend it: {printable(check['mend'])}", soft_wrap=True)
    console.print("everything that is needed works" if data["ok"] else "something that is needed does not work")
