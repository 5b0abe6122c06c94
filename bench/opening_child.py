"""The process that opens a model for `opening`, ours or ONNX Runtime's, and prints its times as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

LONGEST_S = 60.0
"""How long kernels are waited for."""

STEADY_S, LEAST_RUNS = 1.0, 20


def main() -> None:
    """Open a model, run it once and, if asked to, on until its kernels are there; keep the first and last outputs."""
    which, model, feeds, outputs, threads, goes_on = sys.argv[1:]
    with np.load(feeds) as file:
        arrays = {name: file[name] for name in file.files}
    start = time.perf_counter()
    session = OPENERS[which](model, int(threads))
    opened = time.perf_counter()
    results = {"first": session.run(None, arrays)}
    answered = time.perf_counter()
    times: dict[str, Any] = {"open_s": opened - start, "first_s": answered - start}
    if int(goes_on):
        times |= _go_on(session, lambda: session.run(None, arrays), start)
        results["last"] = session.run(None, arrays)
    if outputs:
        np.savez(outputs, **{f"{when}{n}": array for when, found in results.items() for n, array in enumerate(found)})
    print(json.dumps(times))


def _go_on(session: Any, run: Callable[[], object], start: float) -> dict[str, Any]:
    """Runs until the kernels are there, and then for a while."""
    early: list[float] = []
    while not getattr(session, "ready", True) and time.perf_counter() - start < LONGEST_S:
        early.append(_time(run))
    ready_s = time.perf_counter() - start
    steady = [_time(run)]
    while sum(steady) < STEADY_S or len(steady) < LEAST_RUNS:
        steady.append(_time(run))
    told: dict[str, Any] = {"ready_s": ready_s, "steady_ms": 1e3 * median(steady)}
    if early:
        told |= {"early_ms": 1e3 * median(early), "early_p99_ms": 1e3 * float(np.quantile(early, 0.99))}
    return told


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _open_ours(model: str, threads: int) -> Any:
    from tunewright.tuner.session.session import InferenceSession

    return InferenceSession(Path(model), threads=threads, background=True)


def _open_onnxruntime(model: str, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


OPENERS: dict[str, Callable[[str, int], Any]] = {"ours": _open_ours, "onnxruntime": _open_onnxruntime}


if __name__ == "__main__":
    main()
