"""Peers: other runtimes, to compare with. They run the same model on the same inputs with as many threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from .errors import Refused

INSTALL = "pip install 'tunewright[bench]'"
"""What brings the peers."""


class PeerFailed(Exception):
    """A peer can't read or run the model: what it said, on one line."""


class Peer(Protocol):
    """A runtime with a model loaded and compiled."""

    @property
    def version(self) -> str: ...

    def run(self) -> list[Any]:
        """The model's outputs, in its order, for the inputs given when it was opened. Raises PeerFailed."""
        ...


class OnnxRuntime:
    """ONNX Runtime on the CPU, with all its graph optimisations."""

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        import onnxruntime

        self.version: str = onnxruntime.__version__
        self._feeds = dict(feeds)
        self._errors = _exceptions("onnxruntime.capi.onnxruntime_pybind11_state")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        for name, extent in dims.items():
            options.add_free_dimension_override_by_name(name, extent)
        source = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except self._errors as error:
            raise PeerFailed(_one_line(error)) from error

    def run(self) -> list[Any]:
        try:
            return list(self._session.run(None, self._feeds))
        except self._errors as error:
            raise PeerFailed(_one_line(error)) from error


class OpenVino:
    """OpenVINO on the CPU, tuned for latency, computing in float32 as the others do."""

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        import openvino

        self.version: str = openvino.__version__.partition("-")[0]
        core = openvino.Core()
        # Without the precision hint it computes in bfloat16 where the processor can.
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        try:
            read = core.read_model(model if isinstance(model, bytes) else str(model))
            shapes = {
                port: openvino.PartialShape(list(a.shape)) for port, a in zip(read.inputs, feeds.values(), strict=True)
            }
            if shapes:
                read.reshape(shapes)
            self._request = core.compile_model(read, "CPU", options).create_infer_request()
        except RuntimeError as error:
            raise PeerFailed(_one_line(error)) from error
        self._feeds = list(feeds.values())

    def run(self) -> list[Any]:
        try:
            results = self._request.infer(self._feeds, share_inputs=True)
        except RuntimeError as error:
            raise PeerFailed(_one_line(error)) from error
        return list(results.values())


PEERS: Mapping[str, Callable[[Path | bytes, Mapping[str, Any], int, Mapping[str, int]], Peer]] = {
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
}
"""Every peer by the name of its module. `feeds` holds all inputs by label, in the model's order."""


def is_installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return find_spec(name) is not None


def check_peers(names: Sequence[str]) -> None:
    """Raises Refused where a peer is unknown or not installed, and says what to do."""
    for name in names:
        if name not in PEERS:
            raise Refused(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
        if not is_installed(name):
            raise Refused(f"{name} is not installed: {INSTALL}")


def _exceptions(module: str) -> tuple[type[Exception], ...]:
    """The exception types of a module; they have no base of their own."""
    values = vars(import_module(module)).values()
    return tuple(v for v in values if isinstance(v, type) and issubclass(v, Exception))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
