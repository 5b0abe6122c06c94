"""How far our outputs are from ONNX Runtime's, and how much runs natively: `./dev bench agreement [FILE ...]`.

FILE is an ONNX model, its dynamic dimensions bound by `:NAME=NUMBER,...` behind it; `.gz` is unpacked. Without files,
the nine light models of the onnx package are compared. Exits with 1 if an error is above 1e-3.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tunewright.bench.light import LIGHT_MODELS, light_model
from tunewright.codegen.host import detect
from tunewright.tuner import cli
from tunewright.tuner.models.model import example_feeds, open_model
from tunewright.tuner.peers.runtimes import OnnxRuntime
from tunewright.tuner.session.agreement import WHOLE_TOLERANCE, worst_error
from tunewright.tuner.session.session import InferenceSession


def main() -> int:
    """Print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE")
    files = parser.parse_args().files
    worst = 0.0
    for label, data, dims in _files(files) if files else _light():
        error, line = compare(data, dims)
        worst = max(worst, error)
        print(f"{label:36} {line}", flush=True)
    return int(worst > WHOLE_TOLERANCE)


def compare(data: bytes, dims: dict[str, int]) -> tuple[float, str]:
    """The largest error relative to the largest output, infinite where outputs differ in kind, and a line on it."""
    model = open_model(data, dims)
    target = detect()
    feeds = example_feeds(model)
    with InferenceSession.of(model, target, {}) as session:
        ours = session.run(None, feeds)
        coverage = session.coverage()
    error, fault = worst_error(ours, OnnxRuntime(data, feeds, target.threads, dims).run())
    rest = ", ".join(f"{count} {op}" for op, count in sorted(coverage.fallback.items()))
    line = f"{coverage.share:7.1%} native, {len(model.tasks):3} tasks, error {fault or f'{error:.1e}'}  {rest}"
    return np.inf if error is None else error, line


def _light() -> Iterator[tuple[str, bytes, dict[str, int]]]:
    for name in LIGHT_MODELS:
        yield name, light_model(name).SerializeToString(), {}


def _files(arguments: list[str]) -> Iterator[tuple[str, bytes, dict[str, int]]]:
    for text in arguments:
        name, _, dims_text = text.partition(":")
        path = Path(name)
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        dims = dict(pair.split("=") for pair in dims_text.split(",") if pair)
        yield path.name, data, {dim: int(extent) for dim, extent in dims.items()}


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
