"""`tunewright bench`: the tuned model and its peers, measured in turn in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.codegen.host import machine
from tunewright.graph.onnx_form import dtype_name
from tunewright.workers.check import difference
from tunewright.workers.latency import Latency, rest, side_by_side
from tunewright.workers.lock import HostLock
from tunewright.workers.sampling import interval

from .. import peers
from ..lookup.place import DEFAULT_PLACE, Place, Prepared
from ..peers.peak_memory import OURS, PeakMemory, peak_memory
from ..running.coverage import Coverage, fallback_share
from ..running.session import InferenceSession, object_cache
from ..settings import settings
from ..text import counted, duration, printable, ratio, slow_share, times
from . import subject
from .tables import is_wide, new_table, print_table

DEFAULT = "tunewright, default"

REFERENCE = "onnxruntime"
"""Whose outputs ours are compared with."""


def bench(
    model: Path,
    against: Sequence[str],
    place: Place = DEFAULT_PLACE,
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    *,
    default: bool = False,
    memory: bool = True,
    watch: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Latencies of one run of the model, ours and the peers', and how far our outputs are from theirs.

    And what the kernels take of ours; with `default` ours on default schedules; with `memory` what the runtimes take of
    the machine's. `watch` is told each step as it begins.
    """
    peers.check_peers(against)
    prepared = place.prepare(model, dims or {}, threads)
    dims = prepared.dims
    arrays, _ = subject.feeds(prepared.model, ())
    opened, failures = _open(against, model, arrays, prepared.target.threads, dims, watch)
    measured = _side_by_side(prepared, arrays, opened, watch, default=default)
    latencies = measured.latencies
    light = [name for name in opened if name not in peers.ASKED_FOR]
    if memory:
        watch(f"measuring peak memory: {', '.join([OURS, *light])}")
    taken = _memory(light, model, arrays, prepared, place) if memory else {}
    here = machine()
    ours_ms, kernels_ms, fallback = latencies[OURS].median_ms, 1e3 * measured.kernels_s, measured.coverage.fallback
    return {
        "model": prepared.model.label,
        "threads": prepared.target.threads,
        "tunewright_ms": ours_ms,
        "kernels_ms": kernels_ms,
        "default_ms": latencies[DEFAULT].median_ms if default else None,
        "peers": {name: latencies[name].median_ms for name in opened},
        **measured.errors,
        "failures": failures,
        "tasks": subject.shares(measured.coverage),
        "notes": list(prepared.notes),
        "fallback": dict(fallback),
        "fallback_share": fallback_share(fallback, kernels_ms, ours_ms),
        "samples": len(latencies[OURS].samples_s),
        "least_ms": {name: latency.least_ms for name, latency in latencies.items()},
        "intervals_ms": {name: _interval_ms(latency) for name, latency in latencies.items()},
        "peak_mb": {name: peak.peak_bytes / 1e6 for name, peak in taken.items()},
        "libraries_mb": {name: peak.libraries_bytes / 1e6 for name, peak in taken.items()},
        "versions": {OURS: here["tunewright"]} | {name: peer.version for name, peer in opened.items()},
        "machine": here,
        "target": str(prepared.target),
    }


@dataclass(frozen=True, slots=True)
class _Measured:
    """What comes of running us and the peers beside each other."""

    latencies: Mapping[str, Latency]
    kernels_s: float  # what ours take of a run
    errors: Mapping[str, Any]
    coverage: Coverage


def _side_by_side(
    prepared: Prepared,
    arrays: Mapping[str, Any],
    opened: Mapping[str, peers.Peer],
    watch: Callable[[str], None],
    *,
    default: bool,
) -> _Measured:
    """Run the model in a session of ours, on default schedules too where it says so, and in the peers."""
    watch(f"opening {OURS}")
    with ExitStack() as stack:
        tuned = stack.enter_context(subject.session_of(prepared))
        calls: dict[str, Callable[[], Any]] = {OURS: lambda: tuned.run(None, arrays)}
        if default:
            untuned = stack.enter_context(InferenceSession.of(prepared.model, prepared.target, {}, object_cache()))
            calls[DEFAULT] = lambda: untuned.run(None, arrays)
        calls |= {name: peer.run for name, peer in opened.items()}
        errors = _errors(calls[OURS](), opened)
        with suppress(OSError):  # nobody who can't write to the folder tunes with it
            stack.enter_context(HostLock(settings().objects).timing())
        watch(f"timing in turn: {', '.join(calls)}")
        latencies = side_by_side(calls)
        rest()
        return _Measured(latencies, tuned.kernels_s(arrays), errors, tuned.coverage())


def _errors(outputs: Sequence[Any], opened: Mapping[str, peers.Peer]) -> dict[str, Any]:
    """How far our outputs, and those of the other peers, are from the reference's, if that is among them."""
    if REFERENCE not in opened:
        return {"max_rel_err": None, "mismatch": None, "peer_rel_err": {}, "reference": None}
    right = opened[REFERENCE].run()
    max_rel_err, mismatch = worst_error(outputs, right)
    others = {name: peer for name, peer in opened.items() if name != REFERENCE}
    return {
        "max_rel_err": max_rel_err,
        "mismatch": mismatch,
        "peer_rel_err": {name: worst_error(peer.run(), right)[0] for name, peer in others.items()},
        "reference": REFERENCE,
    }


def _memory(
    names: Sequence[str], model: Path, arrays: Mapping[str, Any], prepared: Prepared, place: Place
) -> dict[str, PeakMemory]:
    """What runtimes take, those that can be measured: ours as in any session but the first, which keeps an image."""
    threads = prepared.target.threads
    options = {"dims": dict(prepared.dims)}
    ours = {**options, "db": place.db, "server": place.server, "lock": str(place.lock) if place.lock else None}
    peak_memory(OURS, model, arrays, threads, ours)
    found = {OURS: peak_memory(OURS, model, arrays, threads, ours)}
    found |= {name: peak_memory(name, model, arrays, threads, options) for name in names}
    return {name: peak for name, peak in found.items() if peak is not None}


def installed(console: Console) -> list[str]:
    """The peers that can be measured here, but those that must be asked for; says which can't."""
    wanted = [name for name in peers.PEERS if name not in peers.ASKED_FOR]
    found = [name for name in wanted if peers.is_installed(name)]
    missing = [name for name in wanted if name not in found]
    if missing:
        how = peers.how_to_install(missing[0])
        console.print(f"not installed, so not measured: {', '.join(missing)} ({how})", soft_wrap=True)
    return found


def _open(
    names: Sequence[str],
    model: Path,
    arrays: Mapping[str, Any],
    threads: int,
    dims: Mapping[str, int],
    watch: Callable[[str], None],
) -> tuple[dict[str, peers.Peer], dict[str, str]]:
    """The peers that can run the model, and what the others said."""
    opened: dict[str, peers.Peer] = {}
    failures: dict[str, str] = {}
    for name in names:
        watch(f"opening {name}")
        try:
            peer = peers.PEERS[name](model, arrays, threads, dims)
            peer.run()
            opened[name] = peer
        except peers.PeerFailed as error:
            failures[name] = str(error)
    return opened, failures


def worst_error(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float | None, str | None]:
    """The largest error of any output, relative to the largest magnitude in it.

    None where outputs can't be compared (another type or shape, or NaN at other places), and then what is wrong.
    """
    worst = 0.0
    for number, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
        kind, right_kind = dtype_name(mine), dtype_name(right)
        if mine.shape != right.shape or kind != right_kind:
            return None, f"output {number} is {kind}{list(mine.shape)}, not {right_kind}{list(right.shape)}"
        fault, error = difference(mine, right, math.inf)
        if not math.isfinite(error):
            return None, f"output {number}: {fault}"
        worst = max(worst, error)
    return worst, None


def _interval_ms(latency: Latency) -> list[float]:
    found = interval(latency.samples_s)
    return [1e3 * found.low_s, 1e3 * found.high_s]


def render(console: Console, data: Mapping[str, Any]) -> None:
    """A line a runtime, the fastest first."""
    rows = {OURS: data["tunewright_ms"], **data["peers"]}
    if data["default_ms"] is not None:
        rows[DEFAULT] = data["default_ms"]
    extra = ("least", "version") if is_wide(console) else ()
    table = new_table(console, ("runtime",), ("time", "95% interval", "time / ours", *extra))
    for name, value in sorted(rows.items(), key=lambda row: row[1]):
        low, high = data["intervals_ms"][name]
        cells = [
            _exact(value),
            f"{_exact(low)} to {_exact(high)}",
            times(ratio(value, data["tunewright_ms"])),
            _exact(data["least_ms"][name]),
            data["versions"].get(name, ""),
        ]
        table.add_row(name, *cells[: len(table.columns) - 1])
    print_table(console, table)
    if not extra:
        console.print("versions: " + ", ".join(f"{name} {version}" for name, version in data["versions"].items()))
    for name, said in data["failures"].items():
        console.print(f"{name} can't run this model: {printable(said)}")
    console.print(
        f"{printable(data['model'])}, {counted(data['threads'], 'thread')} on {data['machine']['processor']}, "
        f"medians of {counted(data['samples'], 'sample')} each, taken in turns"
    )
    console.print(f"of tunewright's time, kernels take {duration(data['kernels_ms'])}")
    if data["fallback"]:
        console.print(slow_share(data["fallback"], data["fallback_share"]))
    if data["peak_mb"]:
        taken = ", ".join(f"{name} {peak_mb:.0f} MB" for name, peak_mb in data["peak_mb"].items())
        console.print(f"peak memory of a process that loads the model and runs it: {taken}")
    if data["mismatch"]:
        console.print(f"the outputs are not those of {data['reference']}: {printable(data['mismatch'])}")
    elif data["reference"]:
        console.print(f"largest error against {data['reference']}: {data['max_rel_err']:.2g} of an output's magnitude")
    tasks = data["tasks"]
    untuned = tasks["transferred"] + tasks["default"]
    if untuned:
        total = tasks["tuned"] + untuned
        console.print(
            f"{untuned} of {counted(total, 'task is', 'tasks are')} not tuned for {data['target']}: tunewright tune"
        )


def _exact(value_ms: float) -> str:
    return duration(value_ms, 4)  # intervals are often narrower than a percent
