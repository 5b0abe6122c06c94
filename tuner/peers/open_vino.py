"""OpenVINO as a peer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .peer import PeerFailed, import_silent, one_line


class OpenVino:
    """OpenVINO on the CPU, tuned for latency, computing in float32 as the others do."""

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        openvino = import_silent("openvino")
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
            raise PeerFailed(one_line(error)) from error
        self._feeds = list(feeds.values())

    def run(self) -> list[Any]:
        try:
            results = self._request.infer(self._feeds, share_inputs=True)
        except RuntimeError as error:
            raise PeerFailed(one_line(error)) from error
        return list(results.values())
