"""Models with open dimensions at many sizes, beside ONNX Runtime: `./dev bench sizes [NAME ...]`.

Each model of `suite.opened` is opened once, then run at sizes that are drawn evenly by their logarithms, in random
order: the first run at a size, and, once its kernels are there, runs in turn with ONNX Runtime's. Now and then a
session that is bound to the size runs in turn too. Nothing is tuned. Results: bench/results/sizes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime

from tunewright.bench.files import RESULTS, write_whole
from tunewright.bench.suite.opened import OPEN_MODELS, OpenForm, SizeSteps
from tunewright.bench.turns import sample_in_turn, sampler
from tunewright.codegen.host import detect, machine
from tunewright.tuner.session.session import InferenceSession

ROUNDS, SAMPLE_S = 7, 0.01

STATIC_EVERY = 8
"""Each so-manieth size is run by a session that is bound to it as well."""

TOLERANCE = 1e-4
"""Of the largest element of an output."""

DTYPES = {"tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(float)": np.float32}

Sizes = Mapping[str, int]
Feed = Mapping[str, Any]


def main() -> int:
    """Measure the selected models. 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(
        prog="./dev bench sizes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*OPEN_MODELS, []], metavar="NAME", help=", ".join(OPEN_MODELS))
    parser.add_argument("--sizes", type=int, default=64, help="sizes of each model (64)")
    parser.add_argument("--threads", type=int, default=detect().threads)
    parser.add_argument("--results", type=Path, default=RESULTS / "sizes.json", metavar="FILE")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {"models": {}}
    results["machine"] = machine()
    is_right = True
    for name in arguments.names or OPEN_MODELS:
        with TemporaryDirectory(prefix="tunewright-sizes-") as folder:  # where nothing is kept yet
            os.environ["TUNEWRIGHT_HOME"] = folder
            entry = measure(OPEN_MODELS[name], arguments.sizes, arguments.threads)
        results["models"][name] = entry
        print(f"{name:16} {json.dumps(entry['summary'])}", flush=True)
        is_right &= entry["summary"]["wrong"] == 0
        write_whole(arguments.results, json.dumps(results, indent=1).encode())
    return int(not is_right)


def measure(form: OpenForm, count: int, threads: int) -> dict[str, Any]:
    """All sizes of one model, and what they come to."""
    content, rows = form.model(), []
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that spin steal our cores
    peer = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    with InferenceSession(content, threads=threads) as session:
        for number, sizes in enumerate(draw(form.dimensions, count)):
            open_static = partial(InferenceSession, content, threads=threads, dims=sizes)
            rows.append(_measure_size(session, peer, sizes, None if number % STATIC_EVERY else open_static))
    return {"threads": threads, "summary": summary(rows), "sizes": rows}


def draw(dimensions: Mapping[str, SizeSteps], count: int) -> list[dict[str, int]]:
    """Different sizes, drawn evenly by logarithms, in the order that they were drawn; fewer where there are no more."""
    rng = np.random.default_rng(0)
    drawn: dict[tuple[int, ...], None] = {}
    for _ in range(100 * count):
        drawn[tuple(_draw_one(dimension, rng) for dimension in dimensions.values())] = None
        if len(drawn) == count:
            break
    return [dict(zip(dimensions, sizes, strict=True)) for sizes in drawn]


def _draw_one(dimension: SizeSteps, rng: np.random.Generator) -> int:
    low, high = np.log(dimension.least), np.log(dimension.most + dimension.step)
    number = int(np.exp(rng.uniform(low, high))) // dimension.step * dimension.step
    return min(max(number, dimension.least), dimension.most)


def _measure_size(
    session: InferenceSession, peer: Any, sizes: Sizes, open_static: Callable[[], InferenceSession] | None
) -> dict[str, Any]:
    feed = draw_feed(peer, sizes)
    start = time.perf_counter()
    first = session.run(None, feed)
    first_s = time.perf_counter() - start
    expected = peer.run(None, feed)
    session.run(None, feed)  # it comes again: it gets kernels
    start = time.perf_counter()
    session.wait()
    waited_s = time.perf_counter() - start
    is_right = all(map(_is_near, (*first, *session.run(None, feed)), (*expected, *expected)))
    runs: dict[str, Callable[[], Any]] = {
        "ours": lambda: session.run(None, feed),
        "onnxruntime": lambda: peer.run(None, feed),
    }
    static = open_static() if open_static else None
    if static is not None:
        runs["static"] = lambda: static.run(None, feed)
    samples = sample_in_turn({label: sampler(run, SAMPLE_S) for label, run in runs.items()}, ROUNDS)
    if static is not None:
        static.close()
    times_ms = {f"{label}_ms": 1e3 * median(samples_s) for label, samples_s in samples.items()}
    return {"sizes": sizes, "is_right": is_right, "first_ms": 1e3 * first_s, "wait_s": waited_s, **times_ms}


def draw_feed(peer: Any, sizes: Sizes) -> Feed:
    """Random values of all inputs at these sizes; whole numbers are 0 or 1."""
    rng, feed = np.random.default_rng(0), dict[str, Any]()
    for port in peer.get_inputs():
        shape = [sizes[extent] if isinstance(extent, str) else extent for extent in port.shape]
        dtype = DTYPES[port.type]
        is_float = dtype is np.float32
        feed[port.name] = (rng.standard_normal(shape) if is_float else rng.integers(0, 2, shape)).astype(dtype)
    return feed


def _is_near(ours: Any, theirs: Any) -> bool:
    scale = float(np.abs(theirs).max(initial=0.0)) or 1.0
    return ours.shape == theirs.shape and float(np.abs(ours - theirs).max(initial=0.0)) <= TOLERANCE * scale


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Wrong answers; how much longer a first run takes; speed in units of ONNX Runtime's and of bound sessions'."""
    gains = [row["onnxruntime_ms"] / row["ours_ms"] for row in rows]
    static = [row["static_ms"] / row["ours_ms"] for row in rows if "static_ms" in row]
    return {
        "sizes": len(rows),
        "wrong": sum(not row["is_right"] for row in rows),
        "first_beyond_steady_ms": max(row["first_ms"] - row["ours_ms"] for row in rows),
        "compiled_after_s": median(row["wait_s"] for row in rows),
        "gain": geometric_mean(gains),
        "least_gain": min(gains),
        "of_static": geometric_mean(static) if static else None,
        "least_of_static": min(static, default=None),
    }


if __name__ == "__main__":
    sys.exit(main())
