"""A tuned model and its peers, measured in turn in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tunewright.codegen.host import machine
from tunewright.codegen.target import CUDA
from tunewright.graph.numerics import Precision
from tunewright.search_space.patterns.dot import match_dot
from tunewright.workers.lock import HostLock
from tunewright.workers.measure.call_latency import CallLatency, time_in_turns, wait_for_threads
from tunewright.workers.measure.noise import Noise, Watch
from tunewright.workers.measure.sampling import interval

from ..arguments import sizes_of
from ..lookup.source import DEFAULT_SOURCE, PreparedModel, ScheduleSource
from ..peers import runtimes as peers
from ..peers.cuda_runtimes import CUDA_PEERS, CudaOpener, CudaPeer, check_cuda_peers, cuda_fault
from ..peers.peak_memory import OURS, PeakMemory, peak_memory
from ..peers.runtimes import Peer
from ..session.agreement import worst_error
from ..session.caches import object_cache
from ..session.image_store import Coverage, fallback_share
from ..session.session import InferenceSession
from ..settings import settings
from ..targets import local_target
from . import model_io
from .device_times import DeviceTimes, interval_ms, time_on_device

if TYPE_CHECKING:
    from tunewright.codegen.cuda.driver import Driver

DEFAULT = "tunewright, default"

KERNELS = "kernels"
"""What our kernels take of a run, among what is timed in turn."""

REFERENCE = "onnxruntime"
"""The peer whose outputs are the reference."""

SUSPECT_ERROR = 0.01
"""An error that neither the order of sums nor a rounding the other way explains, as a rule. Kernels of the reference
may be off by more, see `may_saturate`."""


def compare(
    model: Path,
    against: Sequence[str],
    source: ScheduleSource = DEFAULT_SOURCE,
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    target: str = "auto",
    *,
    precision: Precision = Precision.AS_GIVEN,
    default: bool = False,
    memory: bool = True,
    watch: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Latencies of one run of the model, ours and the peers', and the difference of the outputs.

    On a GPU also what runs take there, without bringing inputs and outputs. With `default` also on default schedules,
    with `memory` also peak memory, of processors. Peers run the model as it is given, whatever our `precision`. `watch`
    gets each step as it begins.
    """
    driver = _open_driver(target, threads)
    (peers.check_peers if driver is None else check_cuda_peers)(against)
    prepared = source.prepare(model, dims or {}, threads, target, precision=precision)
    arrays, _ = model_io.feeds(prepared.model, ())
    open_peers, failures = _open(_openers(prepared, driver), against, model, prepared, arrays, watch)
    saturates = may_saturate(prepared)
    can_tell = driver is None and not saturates
    outputs = _compare_outputs(open_peers, partial(_plain_outputs, model, prepared, arrays) if can_tell else None)
    open_peers = {name: peer for name, peer in open_peers.items() if name not in outputs.unlike}
    failures |= outputs.unlike
    times = _time_in_turn(prepared, arrays, model, open_peers, outputs, driver, watch, default=default)
    light = [name for name in open_peers if name not in peers.ASKED_FOR]
    peaks = _memory(light, model, arrays, prepared, source, watch) if memory and driver is None else {}
    facts = machine()
    return {
        "model": prepared.model.label,
        "threads": prepared.target.threads if driver is None else None,
        "runtime_nodes": prepared.model.runtime_nodes,
        **_times_json(times, open_peers, default=default),
        **times.errors,
        "reference_saturates": saturates and outputs.reference == REFERENCE,
        "failures": failures,
        "tasks": model_io.shares(times.coverage),
        "runtime": times.coverage.runtime,
        "notes": [
            *times.notes,
            *prepared.notes,
            *(f"{name}: {peer.note}" for name, peer in _on_device(open_peers) if peer.note),
        ],
        "peak_mb": {name: peak.peak_bytes / 1e6 for name, peak in peaks.items()},
        "libraries_mb": {name: peak.libraries_bytes / 1e6 for name, peak in peaks.items()},
        "versions": {OURS: facts["tunewright"]} | {name: peer.version for name, peer in open_peers.items()},
        "machine": facts,
        "target": str(prepared.target),
    }


def _times_json(times: _Comparison, open_peers: Mapping[str, Peer], *, default: bool) -> dict[str, Any]:
    latencies, fallback = times.latencies, times.coverage.fallback
    ours_ms, kernels_ms = latencies[OURS].median_ms, 1e3 * times.kernels_s
    return {
        "tunewright_ms": ours_ms,
        "kernels_ms": kernels_ms,
        "default_ms": latencies[DEFAULT].median_ms if default else None,
        "peers": {name: latencies[name].median_ms for name in open_peers},
        "fallback": dict(fallback),
        "fallback_share": fallback_share(fallback, kernels_ms, ours_ms),
        "samples": len(latencies[OURS].samples_s),
        "least_ms": {name: latency.least_ms for name, latency in latencies.items()},
        "intervals_ms": {name: interval_ms(latency) for name, latency in latencies.items()},
        "device": None if times.device is None else times.device.to_json(),
        "noise": times.noise,
    }


def _open_driver(target: str, threads: int | None) -> Driver | None:
    """The driver of the GPU that runs are on; None on a processor. Raises Refused where there is no GPU."""
    if target != CUDA:
        return None
    local_target(target, threads)
    from tunewright.codegen.cuda import driver  # where nothing runs on a GPU, CuPy may be missing

    return driver.driver()


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Times and outputs of us and the peers, run in turn."""

    latencies: Mapping[str, CallLatency]
    device: DeviceTimes | None  # on a GPU
    kernels_s: float  # of our run
    errors: Mapping[str, Any]
    coverage: Coverage
    notes: Sequence[str]  # on the vendor's runtime that ours is to run in
    noise: str  # why the times can't be relied on


def _time_in_turn(
    prepared: PreparedModel,
    arrays: Mapping[str, Any],
    model: Path,
    open_peers: Mapping[str, Peer],
    outputs: _PeerOutputs,
    driver: Driver | None,
    watch: Callable[[str], None],
    *,
    default: bool,
) -> _Comparison:
    """Run the model in a session of ours, on default schedules too where it says so, and in the peers."""
    watch(f"opening {OURS}")
    with ExitStack() as stack:
        tuned = stack.enter_context(model_io.session_of(prepared, model))
        sessions = {OURS: tuned}
        if default:
            untuned = InferenceSession.of(prepared.model, prepared.target, {}, object_cache())
            sessions[DEFAULT] = stack.enter_context(untuned)
        calls: dict[str, Callable[[], Any]] = {
            name: partial(session.run, None, arrays) for name, session in sessions.items()
        } | {name: peer.run for name, peer in open_peers.items()}
        errors = _errors(calls[OURS](), outputs)
        with suppress(OSError):  # nobody who can't write to the folder tunes with it
            stack.enter_context(HostLock(settings().objects).exclusive())
        watch(f"timing in turn: {', '.join(calls)}")
        disturbance_watch = Watch()  # by others than this process, in which all of them run
        samplers = {name: partial(session.kernels_s, arrays) for name, session in sessions.items()}
        latencies = time_in_turns(calls, others={KERNELS: samplers[OURS]} if driver is None else {})
        wait_for_threads()
        kernels, device = latencies.pop(KERNELS, None), None
        if driver is not None:
            device = time_on_device(driver, samplers | {name: peer.device_s for name, peer in _on_device(open_peers)})
            kernels = device.latencies[OURS]
        assert kernels is not None
        noise = _noise(disturbance_watch, prepared, latencies, device)
        return _Comparison(latencies, device, kernels.median_s, errors, tuned.coverage(), tuned.vendor_notes, noise)


def _noise(
    watch: Watch, prepared: PreparedModel, latencies: Mapping[str, CallLatency], device: DeviceTimes | None
) -> str:
    """Why times can't be relied on, see `Noise.reason`. Of this machine, a GPU's runs take one thread."""
    every = [*latencies.values(), *(device.latencies.values() if device is not None else ())]
    spread = max(interval(latency.samples_s).width for latency in every)
    noise = Noise.of(watch.disturbance(), prepared.target.threads if device is None else 1, spread)
    return ", ".join(filter(None, (noise.reason, "" if device is None else device.fault)))


@dataclass(frozen=True, slots=True)
class _PeerOutputs:
    """What peers answer beside the reference: REFERENCE, or the first of them."""

    reference: str | None  # None: there is no peer
    expected: Sequence[Any]  # its outputs
    errors: Mapping[str, float | None]  # of the others whose outputs can be compared
    unlike: Mapping[str, str]  # what is wrong with those of the others
    plain: Callable[[], Sequence[Any] | None] | None = None  # what the reference answers without its optimisations


def _compare_outputs(
    open_peers: Mapping[str, Peer], plain: Callable[[], Sequence[Any] | None] | None = None
) -> _PeerOutputs:
    reference = REFERENCE if REFERENCE in open_peers else next(iter(open_peers), None)
    expected = open_peers[reference].run() if reference else []
    errors: dict[str, float | None] = {}
    unlike: dict[str, str] = {}
    for name, peer in open_peers.items():
        if name == reference:
            continue
        error, fault = worst_error(peer.run(), expected)
        if fault is None:
            errors[name] = error
        else:
            unlike[name] = f"its outputs are not those of {reference}: {fault}"
    return _PeerOutputs(reference, expected, errors, unlike, plain if reference == REFERENCE else None)


def may_saturate(prepared: PreparedModel) -> bool:
    """Whether the model multiplies bytes on a processor without instructions for it, where the reference adds up two
    in 16 bits, which are too few unless weights are small: with its graph optimisations and without.
    """
    if not prepared.target.has_dots or prepared.target.has_quick_dots:
        return False
    tasks = [task for task, _ in prepared.model.tasks.values()]
    products = [(task, product) for task in tasks if (product := match_dot(task)) is not None]
    return any(not task.tensor(product.panel.tensor).small for task, product in products)


def _plain_outputs(model: Path, prepared: PreparedModel, arrays: Mapping[str, Any]) -> Sequence[Any] | None:
    """The outputs of the reference without its graph optimisations; None where it can't run the model so."""
    inputs, sizes = model_io.all_inputs(prepared.model, arrays), sizes_of(prepared.dims)
    try:
        return peers.OnnxRuntime(model, inputs, prepared.target.threads, sizes, is_optimised=False).run()
    except peers.PeerFailed:
        return None


def _errors(ours: Sequence[Any], peers: _PeerOutputs) -> dict[str, Any]:
    """Errors of our outputs and those of the other peers, relative to the reference's.

    Where ours are suspect, a third party tells who is off: errors of both relative to the plain reference.
    """
    max_rel_err, mismatch = worst_error(ours, peers.expected) if peers.reference else (None, None)
    is_suspect = max_rel_err is not None and max_rel_err > SUSPECT_ERROR
    plain = peers.plain() if is_suspect and peers.plain else None
    both = {} if plain is None else {OURS: ours, REFERENCE: peers.expected}
    return {
        "max_rel_err": max_rel_err,
        "mismatch": mismatch,
        "peer_rel_err": dict(peers.errors),
        "plain_rel_err": {name: worst_error(outputs, plain or ())[0] for name, outputs in both.items()},
        "reference": peers.reference,
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
    our_options["precision"] = prepared.model.precision
    peak_memory(OURS, model, arrays, threads, our_options)
    peaks = {OURS: peak_memory(OURS, model, arrays, threads, our_options)}
    inputs = model_io.all_inputs(prepared.model, arrays)
    peaks |= {name: peak_memory(name, model, inputs, threads, options) for name in names}
    return {name: peak for name, peak in peaks.items() if peak is not None}


def default_peers(console: Console, target: str) -> list[str]:
    """The peers that are measured where none is named, as far as they can be had; prints which can't."""
    if target == CUDA:
        faults = {name: cuda_fault(name) for name in CUDA_PEERS}
        if missing := dict.fromkeys(filter(None, faults.values())):
            console.print(f"not measured: {'; '.join(missing)}", soft_wrap=True)
        return [name for name, fault in faults.items() if not fault]
    candidates = [name for name in peers.PEERS if name not in peers.ASKED_FOR]
    names = [name for name in candidates if peers.is_installed(name)]
    lacking = [name for name in candidates if name not in names]
    if lacking:
        how = peers.how_to_install(lacking[0])
        console.print(f"not installed, so not measured: {', '.join(lacking)} ({how})", soft_wrap=True)
    return names


Opener = Callable[[Path, Mapping[str, Any], Mapping[str, int]], Peer]
"""Loads a model for the device: its path, all inputs by label, open dimensions by name. Raises PeerFailed."""


def _openers(prepared: PreparedModel, driver: Driver | None) -> Mapping[str, Opener]:
    """The peers on the target, by name."""

    def on_processor(opener: peers.Opener) -> Opener:
        return lambda model, inputs, sizes: opener(model, inputs, prepared.target.threads, sizes)

    def on_device(opener: CudaOpener, driver: Driver) -> Opener:
        def open_peer(model: Path, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> CudaPeer:
            peer = opener(model, inputs, sizes, driver)
            peer.device_s()
            return peer

        return open_peer

    if driver is None:
        return {name: on_processor(opener) for name, opener in peers.PEERS.items()}
    return {name: on_device(opener, driver) for name, opener in CUDA_PEERS.items()}


def _on_device(open_peers: Mapping[str, Peer]) -> list[tuple[str, CudaPeer]]:
    """The peers on a GPU."""
    return [(name, peer) for name, peer in open_peers.items() if isinstance(peer, CudaPeer)]


def _open(
    openers: Mapping[str, Opener],
    names: Sequence[str],
    model: Path,
    prepared: PreparedModel,
    arrays: Mapping[str, Any],
    watch: Callable[[str], None],
) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that can run the model, and the errors of the others."""
    open_peers: dict[str, Peer] = {}
    failures: dict[str, str] = {}
    inputs, sizes = model_io.all_inputs(prepared.model, arrays), sizes_of(prepared.dims)
    for name in names:
        watch(f"opening {name}")
        try:
            peer = openers[name](model, inputs, sizes)
            peer.run()
            open_peers[name] = peer
        except peers.PeerFailed as error:
            failures[name] = str(error)
    return open_peers, failures
