"""Models inside ONNX Runtime with our execution provider: `./dev bench provider [NAME ...] [--again]`.

Every model of `suite`, in turn in ONNX Runtime alone, in ONNX Runtime with the provider, and in a session of ours, on
one thread and on all. Nothing is tuned. Told are the times of a run, how far results are apart, how many groups of
nodes are ours, and how long opening took: the first time with the provider, and once kernels are kept. Results:
bench/results/provider.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from typing import Any

import onnxruntime

import tunewright.integrations.onnxruntime as provider
from tunewright.bench.entries import Entries, Entry, code_sha256
from tunewright.bench.files import RESULTS, model_file, stay_in_folder
from tunewright.bench.selection import select_names
from tunewright.bench.suite import MODELS
from tunewright.bench.turns import sample_in_turn, sampler
from tunewright.codegen.host import detect, machine
from tunewright.integrations.onnxruntime.registration import groups
from tunewright.tuner import cli
from tunewright.tuner.models.model import example_feeds, open_model
from tunewright.tuner.session.agreement import worst_error
from tunewright.tuner.session.image_store import SETTLED_NS
from tunewright.tuner.session.session import InferenceSession

ROUNDS, SAMPLE_S = 15, 0.05

ALONE, WITH_PROVIDER, OURS = "onnxruntime", "provider", "session"


def main() -> int:
    """Measure the selected models that are missing, then print the summary."""
    parser = argparse.ArgumentParser(prog="./dev bench provider", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    arguments = parser.parse_args()
    names = select_names(parser, MODELS, arguments.names)
    stay_in_folder()
    entries = Entries(RESULTS / "provider.json", tuple(MODELS))
    settings = {"machine": machine() | {"onnxruntime": onnxruntime.__version__}, "code_sha256": code_sha256()}
    counts = (detect().threads, 1)
    for name in names:
        for threads in counts:
            if arguments.again or not entries.has(name, threads, settings):
                entry = measure(name, threads)
                entries.put(name, threads, entry | settings)
                print(name, threads, json.dumps(entry), flush=True)
    figures = {str(threads): summary([entry for _, entry in entries.of(threads)]) for threads in counts}
    entries.write(figures)
    print(json.dumps(figures, indent=2))
    return 0


def measure(name: str, threads: int) -> Entry:
    """Figures of one model."""
    with TemporaryDirectory(prefix="tunewright-provider-") as folder:
        content = MODELS[name]()
        model = model_file(Path(folder), name, lambda: content)
        feeds = example_feeds(open_model(content))
        time.sleep(SETTLED_NS / 1e9)  # nothing is kept of a file that changed a moment ago
        peer, alone_s = _time_of(partial(_alone, model, threads))
        first, first_s = _time_of(partial(_with_provider, model, threads))
        provider.wait()
        del first
        inside, kept_s = _time_of(partial(_with_provider, model, threads))
        provider.wait()
        with InferenceSession(model, threads=threads) as own:
            runs = {
                ALONE: partial(peer.run, None, feeds),
                WITH_PROVIDER: partial(inside.run, None, feeds),
                OURS: partial(own.run, None, feeds),
            }
            error, fault = worst_error(inside.run(None, feeds), peer.run(None, feeds))
            return {
                "times_ms": times_ms(runs),
                "rel_err": error,
                "fault": fault,
                "groups": len(groups()),
                "open_s": {"onnxruntime": alone_s, "first": first_s, "kept": kept_s},
            }


def _time_of(make: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def _alone(model: Path, threads: int) -> Any:
    """A session that spins within runs, as it does by default, and rests when it's not its turn."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _with_provider(model: Path, threads: int) -> Any:
    options = provider.session_options(threads)
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options)


def times_ms(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Medians of samples in turn."""
    samples = sample_in_turn({label: sampler(run, SAMPLE_S) for label, run in runs.items()}, ROUNDS)
    return {label: 1e3 * median(samples_s) for label, samples_s in samples.items()}


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How much faster runs are than ONNX Runtime's alone, and their speed beside that of a session of ours."""
    over = [entry["times_ms"][ALONE] / entry["times_ms"][WITH_PROVIDER] for entry in entries]
    of_ours = [entry["times_ms"][OURS] / entry["times_ms"][WITH_PROVIDER] for entry in entries]
    if not entries:
        return {}
    return {
        "models": len(entries),
        "over_onnxruntime": {"geometric_mean": geometric_mean(over), "least": min(over)},
        "of_our_session": {"geometric_mean": geometric_mean(of_ours), "least": min(of_ours)},
        "worst_rel_err": max(entry["rel_err"] or 0.0 for entry in entries),
        "wrong": sum(entry["fault"] is not None for entry in entries),
    }


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
