"""Models whose cores are shared: `./dev bench sharing [NAME ...]`.

Each model runs on all processors, ours and ONNX Runtime's in turn: first alone, then beside a process that spins on one
processor. Then several threads run one session of ours at once, and as many sessions, one each. Nothing is tuned.
Results: bench/results/sharing.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import geometric_mean, median
from typing import Any

import onnxruntime

from tunewright.bench.entries import Entries, Entry, code_sha256
from tunewright.bench.files import RESULTS, stay_in_folder
from tunewright.bench.selection import select_names
from tunewright.bench.suite import MODELS
from tunewright.bench.turns import sample_in_turn, sampler
from tunewright.codegen.host import detect, machine
from tunewright.tuner import cli
from tunewright.tuner.models.model import example_feeds, open_model
from tunewright.tuner.session.session import InferenceSession

NAMES = ("mobilenet_v2", "resnet50", "minilm_int8", "vit_tiny", "bert_base_s128", "lstm_tagger")

ROUNDS, SAMPLE_S = 15, 0.1

CALLERS, CALLERS_S = 4, 1.0
"""Threads that call at once, and for how long in each round."""

SPIN = "while True: pass"

Runs = Mapping[str, Callable[[], object]]


def main() -> int:
    """Measure the selected models, then print the summary."""
    parser = argparse.ArgumentParser(prog="./dev bench sharing", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a part of {', '.join(NAMES)}; default: all")
    names = select_names(parser, NAMES, parser.parse_args().names)
    stay_in_folder()
    threads = detect().threads
    entries = Entries(RESULTS / "sharing.json", NAMES)
    for name in names:
        entry = measure(name, threads)
        entries.put(name, threads, entry | {"machine": machine(), "code_sha256": code_sha256()})
        print(name, json.dumps(entry), flush=True)
    figures = summary([entry for _, entry in entries.of(threads)])
    entries.write(figures)
    print(json.dumps(figures, indent=2))
    return 0


def measure(name: str, threads: int) -> Entry:
    """Milliseconds of a run alone and beside a process that spins, and runs a second of several callers."""
    content = MODELS[name]()
    feeds = example_feeds(open_model(content))
    peers = {"onnxruntime": _peer(content, threads, True), "onnxruntime_at_rest": _peer(content, threads, False)}
    with InferenceSession(content, threads=threads) as session:
        runs: dict[str, Callable[[], object]] = {"ours": partial(session.run, None, feeds)}
        runs |= {label: partial(peer.run, None, feeds) for label, peer in peers.items()}
        alone_ms = times_ms(runs)
        with _spinning():
            beside_ms = times_ms(runs)
        del peers, runs
        callers = _compare_callers(content, feeds, threads, session)
    return {"alone_ms": alone_ms, "beside_spinning_ms": beside_ms, **callers}


def _peer(content: bytes, threads: int, spins: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    options.add_session_config_entry("session.force_spinning_stop", "1")  # between runs, when it's not its turn
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def times_ms(runs: Runs) -> dict[str, float]:
    """Medians of samples in turn."""
    samples = sample_in_turn({label: sampler(run, SAMPLE_S) for label, run in runs.items()}, ROUNDS)
    return {label: 1e3 * median(samples_s) for label, samples_s in samples.items()}


@contextmanager
def _spinning() -> Iterator[None]:
    """While a process uses one processor."""
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _compare_callers(
    content: bytes, feeds: Mapping[str, Any], threads: int, session: InferenceSession
) -> dict[str, float]:
    """Runs a second by all callers together, of one session and of one each."""
    others = [InferenceSession(content, threads=threads) for _ in range(CALLERS)]
    rates: dict[str, list[float]] = {"one_session": [], "own_sessions": []}
    for _ in range(5):
        rates["one_session"].append(_rate([session] * CALLERS, feeds))
        rates["own_sessions"].append(_rate(others, feeds))
    for other in others:
        other.close()
    return {f"{label}_runs_s": median(found) for label, found in rates.items()}


def _rate(sessions: Sequence[InferenceSession], feeds: Mapping[str, Any]) -> float:
    def call(session: InferenceSession) -> int:
        runs = 0
        while time.perf_counter() < end:
            session.run(None, feeds)
            runs += 1
        return runs

    start = time.perf_counter()
    end = start + CALLERS_S
    with ThreadPoolExecutor(len(sessions)) as pool:
        runs = sum(pool.map(call, sessions))
    return runs / (time.perf_counter() - start)


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means of how much slower a busy processor makes runs, and the least share of throughput."""
    slower = {
        label: geometric_mean(one["beside_spinning_ms"][label] / one["alone_ms"][label] for one in entries)
        for label in entries[0]["alone_ms"]
    }
    shares = [one["one_session_runs_s"] / one["own_sessions_runs_s"] for one in entries]
    return {"slower_beside_spinning": slower, "least_share_of_own_sessions": min(shares)}


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
