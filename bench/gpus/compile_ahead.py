"""Models compiled by torch.compile ahead of time: in a process that can be ended, whose caches the next process has.

PyTorch keeps what it compiled and which kernels were the fastest, so that what follows here takes seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.bench.rivals.process import RequestTimeout, ServedProcess, ServedProcessError
from tunewright.bench.rivals.serving import Tell, serve
from tunewright.codegen.cuda.driver import Driver
from tunewright.tuner.peers.cuda_runtimes import TorchCompiledCuda
from tunewright.tuner.peers.runtimes import PeerFailed

LIMIT_S = 300.0
"""Seconds that torch.compile may take for a model."""

PROGRAM = [sys.executable, "-P", "-m", "tunewright.bench.gpus.compile_ahead"]


def compile_ahead(data: bytes, feeds: Mapping[str, NDArray[Any]], program: Sequence[str] = PROGRAM) -> None:
    """Have a model compiled. Raises PeerFailed where that fails, or takes longer than LIMIT_S."""
    with TemporaryDirectory() as folder:
        model, inputs = Path(folder) / "model.onnx", Path(folder) / "inputs.npz"
        model.write_bytes(data)
        np.savez(inputs, **feeds)  # type: ignore[arg-type]
        cores = sorted(os.sched_getaffinity(0))
        try:
            with ServedProcess(program, cores, Path(folder) / "log") as process:
                process.request("compile_model", LIMIT_S, model=str(model), inputs=str(inputs))
        except RequestTimeout:
            raise PeerFailed(f"not compiled after {LIMIT_S:g} s") from None
        except ServedProcessError as error:
            raise PeerFailed(str(error).splitlines()[-1]) from error


def compile_model(tell: Tell, model: str, inputs: str) -> None:
    """Compile a model for some inputs, in the process that is ended."""
    with np.load(inputs) as arrays:
        feeds = dict(arrays)
    TorchCompiledCuda(Path(model), feeds, {}, Driver())


if __name__ == "__main__":
    serve({"compile_model": compile_model})
