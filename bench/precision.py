"""Models in narrow floats beside float32: `./dev bench precision [NAME ...]`.

A model of a precision, or in float16: its time in turn with that of the same model in float32 as given, the size of its
constants as they are kept, and the largest error of an output. On what the base cost model picks, without a database.
Products of bfloat16 are faster where a processor multiplies such: `tunewright doctor` says so.
Results: precision.json in the folder of the processor in bench/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np

from tunewright.bench.entries import Entries, Entry, code_sha256
from tunewright.bench.files import results_of_processor, stay_in_folder
from tunewright.bench.selection import select_names
from tunewright.bench.suite.convolutional import resnet50
from tunewright.bench.suite.network import NetworkForm, model_of
from tunewright.bench.suite.sequential import bert_base_s128
from tunewright.bench.turns import sample_in_turn, sampler, summary
from tunewright.codegen.host import detect, machine
from tunewright.graph.numerics import Precision
from tunewright.tuner import cli
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.model import example_feeds
from tunewright.tuner.session.agreement import float_errors
from tunewright.tuner.session.caches import object_cache
from tunewright.tuner.session.executable import executable_of_results
from tunewright.tuner.session.session import InferenceSession

ROUNDS, SAMPLE_S = 21, 0.1

HALF = NetworkForm(dtype=np.float16)


@dataclass(frozen=True, slots=True)
class Case:
    """A model in float32, the same perhaps in another type, and the precision that this is opened with."""

    plain: Callable[[], bytes]
    other: Callable[[], bytes]
    precision: Precision = Precision.AS_GIVEN


def product(rows: int, depth: int, columns: int) -> bytes:
    """A matrix product by known weights."""
    return model_of(lambda net, x: net.add("MatMul", x, net.weight((depth, columns), depth)), rows, depth)


def _rounded(build: Callable[[], bytes]) -> Case:
    return Case(build, build, Precision.BF16)


CASES: Mapping[str, Case] = {
    **{f"product_{size}_bf16": _rounded(partial(product, size, size, size)) for size in (512, 1024, 2048)},
    "row_4096_bf16": _rounded(partial(product, 1, 4096, 4096)),
    "bert_base_s128_bf16": _rounded(bert_base_s128),
    "resnet50_bf16": _rounded(resnet50),
    "bert_base_s128_float16": Case(bert_base_s128, partial(bert_base_s128, HALF)),
    "resnet50_float16": Case(resnet50, partial(resnet50, HALF)),
}
"""By name."""


def main() -> int:
    """Measure the selected cases, then print the summary."""
    parser = argparse.ArgumentParser(prog="./dev bench precision", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a part of {', '.join(CASES)}; default: all")
    names = select_names(parser, tuple(CASES), parser.parse_args().names)
    stay_in_folder()
    threads = detect().threads
    entries = Entries(results_of_processor() / "precision.json", tuple(CASES))
    for name in names:
        entry = measure(CASES[name], threads)
        facts = {"machine": machine(), "multiplies_bf16": detect().has_bf16, "code_sha256": code_sha256()}
        entries.put(name, threads, entry | facts)
        print(name, json.dumps(entry), flush=True)
    figures = mean_factors(dict(entries.of(threads)))
    entries.write(figures)
    print(json.dumps(figures, indent=2))
    return 0


def measure(case: Case, threads: int) -> Entry:
    """Times in turn, sizes of constants, and the largest error of an output beside the model in float32."""
    models = [
        ScheduleSource().prepare(build(), {}, threads, "cpu", precision=precision)
        for build, precision in ((case.plain, Precision.AS_GIVEN), (case.other, case.precision))
    ]
    plain, other = (executable_of_results(one.model, one.target, one.results, object_cache()) for one in models)
    feeds = example_feeds(models[0].model)
    with InferenceSession.of_executable(plain) as first, InferenceSession.of_executable(other) as second:
        kinds = {port.name: port.type for port in second.get_inputs()}
        own = {name: x.astype(np.float16) if "float16" in kinds[name] else x for name, x in feeds.items()}
        runs = {"float32": partial(first.run, None, feeds), "other": partial(second.run, None, own)}
        outputs = [[np.asarray(array, np.float32) for array in run()] for run in runs.values()]
        samples = sample_in_turn({label: sampler(run, SAMPLE_S) for label, run in runs.items()}, ROUNDS)
    labels = [port.label for port in plain.image.outputs]
    errors = float_errors(labels, outputs[1], outputs[0]).values()
    return {
        **{label: summary(samples_s) for label, samples_s in samples.items()},
        "constants_bytes": {"float32": plain.image.constants_bytes, "other": other.image.constants_bytes},
        "largest_error": max((error for error in errors if error is not None), default=None),
    }


def mean_factors(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """How many times as fast as float32, and what part of its constants are kept: each, and the geometric means."""
    speedups = {name: entry["float32"]["median_s"] / entry["other"]["median_s"] for name, entry in entries.items()}
    parts = {name: _part(entry["constants_bytes"]) for name, entry in entries.items()}
    figures = (("speedup", speedups), ("constants", parts))
    return {label: {"mean": _mean(list(values.values())), **values} for label, values in figures}


def _part(sizes: Mapping[str, int]) -> float:
    return sizes["other"] / sizes["float32"]


def _mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
