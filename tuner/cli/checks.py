"""The checks of `tunewright doctor`: packages, machine, database, caches, devices and service."""

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

from tunewright.codegen.cuda.device import NoDevice, devices, driver_version
from tunewright.codegen.cuda.driver import NoClocks, management
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.host import available_cores, detect, machine
from tunewright.codegen.llvm.build import CACHE_BYTES, BuildError
from tunewright.codegen.target import Target
from tunewright.costmodel.base import base
from tunewright.db.errors import StoreError
from tunewright.db.inspection import Inspection, ServiceState, inspect
from tunewright.db.reader import open_reader
from tunewright.db.store import Store
from tunewright.workers.measure.rates import noise
from tunewright.workers.sandbox.confine import confinement, landlock_version

from ..lookup.experience import is_proven, newest_snapshot
from ..machine_rates import machine_rates
from ..peers.runtimes import PEERS, how_to_install, is_installed, module_of
from ..search.retiming_plan import stale_counts
from ..session.image_store import room_bytes
from ..settings import Environment, settings
from ..text import counted, large, mark_noise, printable, short

PACKAGES = ("numpy", "onnx", "llvmlite", "sqlalchemy", "alembic", "typer", "rich", "platformdirs")
"""Required packages, without the cost model's, which has two names."""

SERVICE = (
    "cryptography",
    "fastapi",
    "httptools",
    "jinja2",
    "limits",
    "prometheus-client",
    "structlog",
    "uvicorn",
    "uvloop",
)
"""Packages that `tunewright serve` needs besides Ray."""

GPU = ("cupy-cuda13x", "nvidia-cuda-nvrtc")
"""Packages that drive NVIDIA's GPUs and compile for them."""

LEAST_FREE_BYTES = 1 << 30

OTHERS = 0o077
"""Mode bits of a file that let others than its owner use it."""

CLOCK_S = 5.0
"""Difference of the clocks of database server and this machine up to which nothing is reported."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `state` is "ok", "note" (works, could be better) or "fault" (does not work)."""

    name: str
    state: str
    found: str
    mend: str = ""  # the command that mends it, or what to do


def check_machine(db: str | None) -> dict[str, Any]:
    """All checks. Nothing is made or changed: a database that is not there stays so, an old one keeps its schema."""
    current = settings()
    checks = [
        _python(),
        *_packages(),
        *_machine(),
        *_database(db or current.db),
        *_cost_models(db or current.db, detect().kind),
        _cache("object cache", current.objects, "*.o", lambda _taken, _free: CACHE_BYTES, "the first build makes it"),
        _cache("images", current.images, "*.image", room_bytes, "the first session makes it"),
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
        installed_version = _version(name)
        if installed_version:
            yield Check(name, "ok", installed_version)
        elif name == "tunewright":
            yield Check(name, "note", "runs from a checkout, not installed", "pip install .")
        else:
            yield Check(name, "fault", "not installed", f"pip install {name}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _multiplied(target: Target) -> str:
    """How a processor multiplies narrow numbers, in words."""
    quick = "four at a time" if target.has_quick_dots else "two at a time"
    of_bytes, of_bf16 = quick if target.has_dots else "as float32", "as such" if target.has_bf16 else "as float32"
    return f"bytes are multiplied {of_bytes}, bfloat16 {of_bf16}"


def _machine() -> Iterator[Check]:
    target, facts, cores = detect(), machine(), available_cores()
    yield Check(
        "processor",
        "ok",
        f"{facts['processor']}, {len(cores)} of {counted(os.cpu_count() or len(cores), 'processor')} to use",
    )
    yield Check("system", "ok", f"{facts['system']}, {platform.machine()}")
    yield Check("llvm", "ok", f"{facts['llvm']}, for {target.triple} {target.cpu}")
    vectors = f"{target.vector_bits} bits, {target.vector_registers} registers"
    yield Check("vectors", "ok", f"{vectors}; {_multiplied(target)}")
    caches = (("L1", target.l1_bytes), ("L2", target.l2_bytes), ("L3", target.l3_bytes))
    yield Check("caches", "ok", ", ".join(f"{name} {size >> 10:,} KiB" for name, size in caches))
    yield Check("target", "ok", f"{target} ({short(target.key)})")
    try:
        speeds = machine_rates(target)
    except OSError as error:
        mend = "TUNEWRIGHT_HOME must name a folder that you may make, and write to"
        yield Check("kernels", "fault", f"can't be kept: {printable(error)}", mend)
        return
    except (BuildError, RuntimeError) as error:
        yield Check(
            "kernels", "fault", f"can't be built and run: {printable(error)}", "tell the maintainers, with this list"
        )
        return
    peak = mark_noise(large(speeds.peak_flops_s, "FLOP/s"), speeds.noise)
    rates = f"{peak}, reading beyond the L2 caches {mark_noise(large(speeds.bandwidth_bytes_s, 'B/s'), speeds.noise)}"
    text = f"built and run; measured on {counted(target.threads, 'thread')}: {rates}"
    yield Check("kernels", "ok", f"{text} (~ {speeds.noise})" if speeds.noise else text)
    yield _noise(target)


def _noise(target: Target) -> Check:
    """Whether the machine is quiet enough for reliable times at the moment."""
    if reason := noise(target, settings().objects).reason:
        text = f"too busy for times to be relied on just now: {reason}"
        mend = "end what else is at work on it, or give --threads fewer than there are processors"
        return Check("noise", "note", text, mend)
    return Check("noise", "ok", "quiet enough for times to be relied on")


def _database(url: str) -> Iterator[Check]:
    try:
        inspection = inspect(url)
    except StoreError as error:
        yield Check("database", "fault", str(error), "--db URL or TUNEWRIGHT_DB names another one")
        return
    if inspection is None:
        yield Check("database", "ok", f"{url}: not there yet; the first command that needs it makes it")
        return
    if inspection.is_current:
        counts = ", ".join(counted(count, name.removesuffix("s")) for name, count in inspection.counts.items())
        yield Check("database", "ok", f"{inspection.name}: schema {inspection.revision}, {counts}")
    else:
        schema = f"its schema {inspection.revision} is an older one" if inspection.revision else "it is empty"
        mend = f"tunewright db upgrade --db {inspection.name}; any other command that writes to it does the same"
        yield Check("database", "note", f"{inspection.name}: {schema}", mend)
    yield from _file(inspection)
    if inspection.work is not None:
        yield from _work(inspection.work, inspection.name)
    with suppress(StoreError), open_reader(url) as store:  # what is wrong with it is told above
        yield from _stale(store, inspection.name)


def _stale(store: Store, url: str) -> Iterator[Check]:
    """A note where tasks were tuned by other versions."""
    if stale := sum(stale_counts(store).values()):
        text = f"{counted(stale, 'task was', 'tasks were')} tuned by other versions of compiler, driver or Tunewright"
        mend = f"tunewright retime --db {url} times the best again; tunewright db stale --db {url} says more"
        yield Check("stale", "note", text, mend)


def _file(inspection: Inspection) -> Iterator[Check]:
    """The database file: library, journal, damage, access rights."""
    journal = f", journal mode {inspection.journal_mode}" if inspection.journal_mode else ""
    partly = "" if inspection.is_checked else "; too large to look all through for damage here"
    if inspection.wal_is_safe:
        yield Check("database", "ok", f"{inspection.library}{journal}{partly}")
    else:
        slower = "could corrupt a database in WAL mode, so that is not used"
        yield Check("database", "note", f"{inspection.library}{journal}: it {slower}{partly}", "pip install pysqlite3")
    if inspection.damage:
        mend = "restore a backup into another file: tunewright restore FILE --db URL; or export what can be read"
        yield Check("database", "fault", f"DAMAGED: {inspection.damage}", mend)
    if inspection.file is not None and inspection.file.stat().st_mode & OTHERS:  # made by an earlier version, or copied
        mend = f"chmod go= {shlex.quote(str(inspection.file))}*"  # those beside it too
        yield Check("database", "note", f"others can read {inspection.file}", mend)


def _work(work: ServiceState, url: str) -> Iterator[Check]:
    """The queue and the fleet."""
    if abs(work.clock_ahead_s) > CLOCK_S:
        side = "ahead of" if work.clock_ahead_s > 0 else "behind"
        text = f"that of the database is {abs(work.clock_ahead_s):.0f} s {side} that of this machine"
        yield Check("clock", "note", f"{text}; jobs go by the former", "timedatectl set-ntp true, on both machines")
    if work.lost:
        text = counted(work.lost, "running job has lost its process", "running jobs have lost their processes")
        mend = f"tunewright work --db {url} takes them up; those of tune: the same tune command"
        yield Check("jobs", "note", text, mend)
    if work.queued and not work.tuners:
        mend = f"tunewright work --db {url}"
        yield Check(
            "jobs", "note", f"{counted(work.queued, 'job is', 'jobs are')} queued, and no tuner is at work", mend
        )
    elif work.tuners:
        yield Check("jobs", "ok", f"{work.queued} queued, {counted(work.tuners, 'tuner')} at work")
    for device in work.quarantined:
        until = f"{device.quarantined_until:%Y-%m-%d %H:%M} UTC" if device.quarantined_until else ""
        text = f"{device.name} is in quarantine until {until}: {device.reason}"
        mend = "see to the reason; it is tried again then, or when its tunewright work is started anew"
        yield Check("device", "note", text, mend)


def _cost_models(url: str, kind: str) -> Iterator[Check]:
    """The base model, and the newest that the trials of the database taught."""
    try:
        shipped = base(kind)
    except ValueError as error:
        yield Check("cost model", "fault", f"the base model can't be read: {printable(error)}", "install it anew")
        return
    if shipped is None:
        text = "none for the features of this version: what nobody measured runs on defaults, and searches start cold"
        yield Check("cost model", "note", text, "./dev bench base_model, in a checkout, makes one")
    else:
        card = shipped.card
        trials, tasks = (card["learned_from"][name] for name in ("trials", "tasks"))
        learned = f"{counted(trials, 'trial')} of {counted(tasks, 'task')}"
        text = f"base model {short(shipped.sha256)} of {card['made']}, from {learned}: {_figures(card['quality'])}"
        yield Check("cost model", "ok", text)
    with suppress(StoreError), open_reader(url) as store:  # what is wrong with the database is told where it is checked
        yield from _snapshot(store, kind)


def _snapshot(store: Store, kind: str) -> Iterator[Check]:
    """The newest snapshot of the database; nothing where it has too few trials for one."""
    newest = newest_snapshot(store, kind)
    if newest is None:
        if store.snapshots.list(kind, limit=1):
            text = "the snapshots in the database are of another version or base model; the next job makes one"
            yield Check("cost model", "ok", text)
        return
    of = f"snapshot {newest.id} of {newest.made_at:%Y-%m-%d %H:%M} UTC, from {counted(newest.trials, 'trial')}"
    by = "lookups pick by it too" if is_proven(newest) else "jobs use it, lookups pick by the base model alone"
    quality, base_quality = newest.metrics.get("held_out"), newest.metrics.get("below")
    beside = f" (what is below it: {_figures(base_quality)})" if base_quality else ""
    yield Check("cost model", "ok", f"{of}: {_figures(quality)}{beside}; {by}")


def _figures(quality: Mapping[str, Any] | None) -> str:
    """The quality of a model in words, see docs/costmodel.md."""
    if quality is None:
        return "there were too few tasks to judge it by"
    figures = {name: quality.get(name) for name in ("pairwise", "peak_1", "peak_5", "time_error")}
    text = ", ".join(f"{name} {'-' if value is None else format(value, '.3f')}" for name, value in figures.items())
    alone = ", which says nothing of others" if quality["tasks"] == 1 else ""
    return f"{text} on {counted(quality['tasks'], 'task')} held out{alone}"


def _cache(name: str, folder: Path, pattern: str, room: Callable[[int, int], int], hint: str) -> Check:
    """The files of a cache of limited size.

    `room` maps the bytes that they take and the bytes that are free to the bytes that they may take. `hint` says when
    their folder is created.
    """
    if not folder.exists():
        return Check(name, "ok", f"{folder}: not there yet; {hint}")
    owner = folder.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        return Check(name, "fault", f"{folder} belongs to another user ({owner})", f"rm -r {shlex.quote(str(folder))}")
    count, used_bytes = 0, 0
    for file in folder.glob(pattern):
        with suppress(OSError):  # another process has dropped it by now
            used_bytes += file.stat().st_size
            count += 1
    free_bytes = shutil.disk_usage(folder).free
    usage = f"{large(used_bytes, 'B')} of at most {large(room(used_bytes, free_bytes), 'B')}"
    return Check(name, "ok", f"{folder}: {counted(count, 'file')}, {usage}, {large(free_bytes, 'B')} free")


def _disk(home: Path) -> Iterator[Check]:
    """A note where the disk is nearly full."""
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
    """Compiler, driver and devices for code of NVIDIA's GPUs."""
    missing = [name for name in GPU if not _version(name)]
    if missing:
        text = f"no code for NVIDIA's GPUs: {', '.join(missing)} not installed"
        yield Check("nvrtc", "note", text, "pip install 'tunewright[cuda]'")
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
        text = f"not told, so that times are taken of a GPU that is hot, too: {printable(error)}"
        yield Check("gpu clocks", "note", text)


def _service(current: Environment) -> Iterator[Check]:
    ray = _version("ray")
    if ray:
        yield Check("ray", "ok", f"{ray}, for --pool ray")
        yield _ray_token(os.environ)
    else:
        yield Check("ray", "note", "not installed: no --pool ray", "pip install 'tunewright[ray]'")
    missing = [name for name in SERVICE if not _version(name)]
    if missing:
        text = f"no tunewright serve: {', '.join(missing)} not installed"
        yield Check("service", "note", text, "pip install 'tunewright[serve]'")
    else:
        yield Check("service", "ok", f"fastapi {_version('fastapi')}, uvicorn {_version('uvicorn')}")
    yield _local_key(current.local_key)
    yield _confinement()


def _ray_token(env: Mapping[str, str]) -> Check:
    """The token of Ray clusters: without one, whoever reaches a cluster can run anything there."""
    if env.get("RAY_AUTH_MODE", "token").lower() != "token":
        text = f"off, by RAY_AUTH_MODE={env['RAY_AUTH_MODE']}: whoever reaches a cluster can run anything on it"
        return Check("ray token", "note", text, "unset RAY_AUTH_MODE")
    if env.get("RAY_AUTH_TOKEN"):
        return Check("ray token", "ok", "from RAY_AUTH_TOKEN")
    path_setting = env.get("RAY_AUTH_TOKEN_PATH")
    path = Path(path_setting) if path_setting else Path.home() / ".ray" / "auth_token"
    if not path.is_file():
        if path_setting:
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
    """The confinement of child processes that handle untrusted input."""
    if sys.platform == "linux" and landlock_version():
        return Check("confinement", "ok", confinement())
    text = confinement() if sys.platform == "linux" else "limits only: this is no Linux"
    mend = "Linux 5.13 or later with landlock among lsm= of its command line; until then no uploads from strangers"
    return Check("confinement", "note", text, mend)
