"""How soon a model answers after it is opened: `./dev bench opening [NAME ...] [--again]`.

Every model of `suite` is opened by processes of its own, in turn: by ONNX Runtime, by a session with nothing kept that
compiles in the background, and by one that finds all kept. Times are from before the runtime is imported to the first
answer. The first session runs on until its kernels are there. Results: bench/results/opening.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tunewright.bench.entries import Entries, Entry, code_sha256
from tunewright.bench.files import RESULTS, model_file
from tunewright.bench.selection import select_names
from tunewright.bench.suite import MODELS
from tunewright.codegen.host import detect, machine
from tunewright.tuner import cli
from tunewright.tuner.models.model import example_feeds, open_model
from tunewright.tuner.session.agreement import worst_error
from tunewright.tuner.session.image_store import SETTLED_NS

ROUNDS = 3


def main() -> int:
    """Measure the selected models that are missing, then print the summary."""
    parser = argparse.ArgumentParser(prog="./dev bench opening", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    arguments = parser.parse_args()
    names = select_names(parser, MODELS, arguments.names)
    threads = detect().threads
    entries = Entries(RESULTS / "opening.json", tuple(MODELS))
    settings = {"machine": machine(), "code_sha256": code_sha256()}
    for name in names:
        if arguments.again or not entries.has(name, threads, settings):
            entry = measure(name, threads)
            entries.put(name, threads, entry | settings)
            print(name, json.dumps(entry), flush=True)
    figures = summary([entry for _, entry in entries.of(threads)]) | {"import_s": import_s()}
    entries.write(figures)
    print(json.dumps(figures, indent=2))
    return 0


def measure(name: str, threads: int) -> Entry:
    """Times of one model, medians of all rounds; how it speeds up after the first answer is of the first round."""
    rounds: list[dict[str, dict[str, Any]]] = []
    with TemporaryDirectory(prefix="tunewright-opening-") as text:
        folder = Path(text)
        content = MODELS[name]()
        model = model_file(folder, name, lambda: content)
        feeds = folder / "feeds.npz"
        np.savez(feeds, **example_feeds(open_model(content)))
        time.sleep(SETTLED_NS / 1e9)  # nothing is kept of a file that changed a moment ago
        begin = partial(_open, model=model, feeds=feeds, threads=threads)
        for number in range(ROUNDS):
            fresh, goes_on = folder / f"home{number}", number == 0
            rounds.append(
                {
                    "onnxruntime": begin("onnxruntime", folder, folder / "onnxruntime.npz"),
                    "cold": begin("ours", fresh, folder / "cold.npz", goes_on=goes_on),
                    "kept": begin("ours", folder / "home0", folder / "kept.npz"),
                }
            )
        theirs = _outputs(folder / "onnxruntime.npz", "first")
        errors = [worst_error(_outputs(folder / f"{label}.npz", "first"), theirs) for label in ("cold", "kept")]
    times = {f"{label}_s": median(one[label]["first_s"] for one in rounds) for label in rounds[0]}
    times["kept_open_s"] = median(one["kept"]["open_s"] for one in rounds)
    later = {key: value for key, value in rounds[0]["cold"].items() if key not in ("open_s", "first_s")}
    worst = max((error for error, _ in errors if error is not None), default=None)
    return {**times, **later, "rel_err": worst, "fault": next((fault for _, fault in errors if fault), None)}


def _open(
    which: str, home: Path, outputs: Path, *, model: Path, feeds: Path, threads: int, goes_on: bool = False
) -> dict[str, Any]:
    """What one process tells, which keeps what it compiles in `home`."""
    command = [sys.executable, "-P", "-m", "tunewright.bench.opening_child", which]
    command += [str(model), str(feeds), str(outputs), str(threads), str(int(goes_on))]
    told = subprocess.run(command, env=_environment(home), check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "TUNEWRIGHT_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}


def _outputs(path: Path, when: str) -> list[Any]:
    with np.load(path) as file:
        return [file[name] for name in file.files if name.startswith(when)]


def import_s() -> float:
    """What the first import of our front door takes, the start of Python left out."""
    code = "import time; start = time.perf_counter(); import tunewright.tuner; print(time.perf_counter() - start)"
    command = [sys.executable, "-P", "-c", code]
    with TemporaryDirectory() as home:
        runs = [subprocess.check_output(command, env=_environment(Path(home))) for _ in range(5)]
    return median(map(float, runs))


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many models answer when they should, and the slowest of each kind."""
    early = [one for one in entries if "early_ms" in one]
    return {
        "models": len(entries),
        "in_time": sum(one["cold_s"] <= max(1.0, 2 * one["onnxruntime_s"]) for one in entries),
        "slowest_cold_s": max(one["cold_s"] for one in entries),
        "slowest_kept_s": max(one["kept_s"] for one in entries),
        "slowest_kept_open_s": max(one["kept_open_s"] for one in entries),
        "slowest_ready_s": max(one["ready_s"] for one in entries),
        "most_slower_early": max((one["early_ms"] / one["steady_ms"] for one in early), default=None),
        "most_p99_of_median": max((one["early_p99_ms"] / one["early_ms"] for one in early), default=None),
        "wrong": sum(one["fault"] is not None for one in entries),
    }


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
