"""A tuned model and its peers, measured in turn in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.codegen.host import machine
from tunewright.graph.evaluation.onnx_form import dtype_name
from tunewright.workers.lock import HostLock
from tunewright.workers.measure.check import difference
from tunewright.workers.measure.noise import Noise, Watch
from tunewright.workers.measure.sampling import CallLatency, interval, time_in_turns, wait_for_threads

from ..arguments import sizes_of
from ..lookup.source import DEFAULT_SOURCE, PreparedModel, ScheduleSource
from ..peers import runtimes as peers
from ..peers.peak_memory import OURS, PeakMemory, peak_memory
from ..session.caches import object_cache
from ..session.image_store import Coverage, fallback_share
from ..session.maps import as_rows
from ..session.session import InferenceSession
from ..settings import settings
from ..text import counted, duration, mark_noise, printable, ratio, slow_share, times
from . import model_io
from .tables import figures, is_wide, new_table, print_legends, print_table

DEFAULT = "tunewright, default"

REFERENCE = "onnxruntime"
"""The peer whose outputs are the reference."""


def compare(
    model: Path,
    against: Sequence[str],
    source: ScheduleSource = DEFAULT_SOURCE,
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    *,
    default: bool = False,
    memory: bool = True,
    watch: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Latencies of one run of the model, ours and the peers', and the difference of the outputs.

    With `default` also on default schedules, with `memory` also peak memory. `watch` gets each step as it begins.
    """
    peers.check_peers(against)
    prepared = source.prepare(model, dims or {}, threads)
    arrays, _ = model_io.feeds(prepared.model, ())
    open_peers, failures = _open(against, model, prepared, arrays, watch)
    times = _time_in_turn(prepared, arrays, open_peers, watch, default=default)
    latencies = times.latencies
    light = [name for name in open_peers if name not in peers.ASKED_FOR]
    peaks = _memory(light, model, arrays, prepared, source, watch) if memory else {}
    facts = machine()
    ours_ms, kernels_ms, fallback = latencies[OURS].median_ms, 1e3 * times.kernels_s, times.coverage.fallback
    return {
        "model": prepared.model.label,
        "threads": prepared.target.threads,
        "tunewright_ms": ours_ms,
        "kernels_ms": kernels_ms,
        "default_ms": latencies[DEFAULT].median_ms if default else None,
        "peers": {name: latencies[name].median_ms for name in open_peers},
        **times.errors,
        "failures": failures,
        "tasks": model_io.shares(times.coverage),
        "notes": list(prepared.notes),
        "fallback": dict(fallback),
        "fallback_share": fallback_share(fallback, kernels_ms, ours_ms),
        "samples": len(latencies[OURS].samples_s),
        "least_ms": {name: latency.least_ms for name, latency in latencies.items()},
        "intervals_ms": {name: _interval_ms(latency) for name, latency in latencies.items()},
        "peak_mb": {name: peak.peak_bytes / 1e6 for name, peak in peaks.items()},
        "noise": times.noise.reason,
        "libraries_mb": {name: peak.libraries_bytes / 1e6 for name, peak in peaks.items()},
        "versions": {OURS: facts["tunewright"]} | {name: peer.version for name, peer in open_peers.items()},
        "machine": facts,
        "target": str(prepared.target),
    }


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Times and outputs of us and the peers, run in turn."""

    latencies: Mapping[str, CallLatency]
    kernels_s: float  # of our run
    errors: Mapping[str, Any]
    coverage: Coverage
    noise: Noise  # how far the times can be relied on


def _time_in_turn(
    prepared: PreparedModel,
    arrays: Mapping[str, Any],
    open_peers: Mapping[str, peers.Peer],
    watch: Callable[[str], None],
    *,
    default: bool,
) -> _Comparison:
    """Run the model in a session of ours, on default schedules too where it says so, and in the peers."""
    watch(f"opening {OURS}")
    with ExitStack() as stack:
        tuned = stack.enter_context(model_io.session_of(prepared))
        calls: dict[str, Callable[[], Any]] = {OURS: lambda: tuned.run(None, arrays)}
        if default:
            untuned = stack.enter_context(InferenceSession.of(prepared.model, prepared.target, {}, object_cache()))
            calls[DEFAULT] = lambda: untuned.run(None, arrays)
        calls |= {name: peer.run for name, peer in open_peers.items()}
        errors = _errors(calls[OURS](), open_peers)
        with suppress(OSError):  # nobody who can't write to the folder tunes with it
            stack.enter_context(HostLock(settings().objects).exclusive())
        watch(f"timing in turn: {', '.join(calls)}")
        disturbance_watch = Watch()  # by others than this process, in which all of them run
        latencies = time_in_turns(calls)
        wait_for_threads()
        kernels_s = tuned.kernels_s(arrays)
        spread = max(interval(latency.samples_s).width for latency in latencies.values())
        noise = Noise.of(disturbance_watch.disturbance(), prepared.target.threads, spread)
        return _Comparison(latencies, kernels_s, errors, tuned.coverage(), noise)


def _errors(outputs: Sequence[Any], open_peers: Mapping[str, peers.Peer]) -> dict[str, Any]:
    """Errors of our outputs and those of the other peers, relative to the reference, if that is among them."""
    if REFERENCE not in open_peers:
        return {"max_rel_err": None, "mismatch": None, "peer_rel_err": {}, "reference": None}
    expected = open_peers[REFERENCE].run()
    max_rel_err, mismatch = worst_error(outputs, expected)
    others = {name: peer for name, peer in open_peers.items() if name != REFERENCE}
    return {
        "max_rel_err": max_rel_err,
        "mismatch": mismatch,
        "peer_rel_err": {name: worst_error(peer.run(), expected)[0] for name, peer in others.items()},
        "reference": REFERENCE,
    }


def _memory(
    names: Sequence[str],
    model: Path,
    arrays: Mapping[str, Any],
    prepared: PreparedModel,
    source: ScheduleSource,
    watch: Callable[[str], None],
) -> dict[str, PeakMemory]:
    """Peak memory of runtimes, if measurable: ours in a second session, which starts from the image of the first."""
    watch(f"measuring peak memory: {', '.join([OURS, *names])}")
    threads = prepared.target.threads
    options = {"dims": sizes_of(prepared.dims)}
    lock = str(source.lock) if source.lock else None
    our_options = {"dims": dict(prepared.dims), "db": source.db, "server": source.server, "lock": lock}
    peak_memory(OURS, model, arrays, threads, our_options)
    peaks = {OURS: peak_memory(OURS, model, arrays, threads, our_options)}
    inputs = model_io.all_inputs(prepared.model, arrays)
    peaks |= {name: peak_memory(name, model, inputs, threads, options) for name in names}
    return {name: peak for name, peak in peaks.items() if peak is not None}


def installed_peers(console: Console) -> list[str]:
    """The installed peers that are measured by default; prints which are missing."""
    candidates = [name for name in peers.PEERS if name not in peers.ASKED_FOR]
    names = [name for name in candidates if peers.is_installed(name)]
    missing = [name for name in candidates if name not in names]
    if missing:
        how = peers.how_to_install(missing[0])
        console.print(f"not installed, so not measured: {', '.join(missing)} ({how})", soft_wrap=True)
    return names


def _open(
    names: Sequence[str],
    model: Path,
    prepared: PreparedModel,
    arrays: Mapping[str, Any],
    watch: Callable[[str], None],
) -> tuple[dict[str, peers.Peer], dict[str, str]]:
    """The peers that can run the model, and the errors of the others."""
    open_peers: dict[str, peers.Peer] = {}
    failures: dict[str, str] = {}
    inputs, sizes = model_io.all_inputs(prepared.model, arrays), sizes_of(prepared.dims)
    for name in names:
        watch(f"opening {name}")
        try:
            peer = peers.PEERS[name](model, inputs, prepared.target.threads, sizes)
            peer.run()
            open_peers[name] = peer
        except peers.PeerFailed as error:
            failures[name] = str(error)
    return open_peers, failures


def worst_error(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float | None, str | None]:
    """The largest error of any output, relative to the largest magnitude in it.

    None where outputs can't be compared (another type or shape, or NaN at other places), and then what is wrong.
    """
    worst = 0.0
    for number, (mine, right) in enumerate(zip(map(as_rows, ours), map(as_rows, theirs), strict=True)):
        kind, right_kind = dtype_name(mine), dtype_name(right)
        if mine.shape != right.shape or kind != right_kind:
            return None, f"output {number} is {kind}{list(mine.shape)}, not {right_kind}{list(right.shape)}"
        if kind == "string":
            if mine.tolist() != right.tolist():
                return None, f"output {number} has other strings"
            continue
        fault, error = difference(mine, right, math.inf)
        if not math.isfinite(error):
            return None, f"output {number}: {fault}"
        worst = max(worst, error)
    return worst, None


def _interval_ms(latency: CallLatency) -> list[float]:
    interval_s = interval(latency.samples_s)
    return [1e3 * interval_s.low_s, 1e3 * interval_s.high_s]


def render(console: Console, data: Mapping[str, Any]) -> None:
    """A line a runtime, the fastest first."""
    noise = data["noise"]
    rows = {OURS: data["tunewright_ms"], **data["peers"]}
    if data["default_ms"] is not None:
        rows[DEFAULT] = data["default_ms"]
    extra = ("least", "version") if is_wide(console) else ()
    table = new_table(console, ("runtime",), ("time", "95% interval", "time / ours", *extra))
    for name, value in sorted(rows.items(), key=lambda row: row[1]):
        low, high = data["intervals_ms"][name]
        cells = [
            mark_noise(_time_text(value), noise),
            f"{_time_text(low)} to {_time_text(high)}",
            mark_noise(times(ratio(value, data["tunewright_ms"])), noise),
            mark_noise(_time_text(data["least_ms"][name]), noise),
            data["versions"].get(name, ""),
        ]
        table.add_row(name, *cells[: len(table.columns) - 1])
    print_table(console, table)
    print_legends(console, figures(table), [noise])
    if not extra:
        console.print("versions: " + ", ".join(f"{name} {version}" for name, version in data["versions"].items()))
    for name, failure in data["failures"].items():
        console.print(f"{name} can't run this model: {printable(failure)}")
    console.print(
        f"{printable(data['model'])}, {counted(data['threads'], 'thread')} on {data['machine']['processor']}, "
        f"medians of {counted(data['samples'], 'sample')} each, taken in turns"
    )
    console.print(f"of tunewright's time, kernels take {mark_noise(duration(data['kernels_ms']), noise)}")
    if data["fallback"]:
        console.print(slow_share(data["fallback"], data["fallback_share"], noise))
    if data["peak_mb"]:
        peaks = ", ".join(f"{name} {peak_mb:.0f} MB" for name, peak_mb in data["peak_mb"].items())
        console.print(f"peak memory of a process that loads the model and runs it: {peaks}")
    if data["mismatch"]:
        console.print(f"the outputs are not those of {data['reference']}: {printable(data['mismatch'])}")
    elif data["reference"]:
        console.print(f"largest error against {data['reference']}: {data['max_rel_err']:.2g} of an output's magnitude")
    tasks = data["tasks"]
    untuned = tasks["transferred"] + tasks["default"] - tasks["kept"]
    if untuned:
        total = tasks["tuned"] + tasks["kept"] + untuned
        console.print(
            f"{untuned} of {counted(total, 'task is', 'tasks are')} not tuned for {data['target']}: tunewright tune"
        )


def _time_text(value_ms: float) -> str:
    return duration(value_ms, 4)  # intervals are often narrower than a percent
