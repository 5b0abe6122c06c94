"""Which files of the project a cold open passes through: `./dev bench passes [--list] [--first]`.

What a reader follows: a model of four nodes is opened with an empty data folder, in a process that opened another model
before (with --first in one that has not), and every function of the project that is called counts for its file. --list
names the files in the order in which they are entered, with their calls and the functions called most.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import numpy as np
import onnx

from tunewright.bench.files import ROOT
from tunewright.tuner import InferenceSession

FOLDERS = ("codegen", "graph", "search_space", "costmodel", "workers", "db", "tuner", "api")

MOST_FUNCTIONS = 4
"""Functions of a file that --list names."""


class PassedFiles:
    """Calls of functions by file, in the order in which the files are entered."""

    def __init__(self) -> None:
        self.calls: dict[str, Counter[str]] = {}

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, as `sys.setprofile` asks; the bodies of modules and classes are none."""
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_NEWLOCALS or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        file = _file_of_project(code.co_filename)
        if file:
            self.calls.setdefault(file, Counter())[code.co_qualname] += 1


def main() -> int:
    """Open the model, and print how many files that passed. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev bench passes", description=__doc__, allow_abbrev=False)
    parser.add_argument("--list", action="store_true", help="name the files")
    parser.add_argument("--first", action="store_true", help="in a process that has not opened a model before")
    arguments = parser.parse_args()
    if not arguments.first:
        _open(_model(24, 40, 8), PassedFiles())
    passed = PassedFiles()
    _open(_model(64, 48, 16), passed)
    functions = [count for counts in passed.calls.values() for count in counts.values()]
    print(f"{len(passed.calls)} files, {len(functions)} functions, {sum(functions):,} calls")
    if arguments.list:
        for file, counts in passed.calls.items():
            most = ", ".join(name for name, _ in counts.most_common(MOST_FUNCTIONS))
            print(f"{file}: {counts.total():,} calls; {most}")
    return 0


def _open(model: bytes, passed: PassedFiles) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUNEWRIGHT_HOME"] = home
        os.environ.pop("TUNEWRIGHT_DB", None)
        threading.setprofile(passed.note)
        sys.setprofile(passed.note)
        try:
            session = InferenceSession(model)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        session.close()


def _file_of_project(name: str) -> str:
    """The file below the checkout, by its path there; empty for all others."""
    path = Path(os.path.realpath(name))
    if not path.is_relative_to(ROOT):
        return ""
    file = path.relative_to(ROOT)
    return str(file) if file.parts[0] in FOLDERS else ""


def _model(inputs: int, hidden: int, outputs: int) -> bytes:
    """Gemm, Relu, Gemm, Softmax over four rows."""
    rng = np.random.default_rng(0)
    shapes = {"v": (inputs, hidden), "a": (hidden,), "w": (hidden, outputs), "b": (outputs,)}
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> mlp (float[4, {inputs}] x) => (float[4, {outputs}] y) '
        "{ h = Gemm(x, v, a)\nr = Relu(h)\nl = Gemm(r, w, b)\ny = Softmax<axis=-1>(l) }"
    )
    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    sys.exit(main())
