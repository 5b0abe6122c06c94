"""ONNX Runtime as a peer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .peer import PeerFailed, exceptions, import_silent, one_line


class OnnxRuntime:
    """ONNX Runtime on the CPU, with all its graph optimisations."""

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        onnxruntime = import_silent("onnxruntime")
        self.version: str = onnxruntime.__version__
        self._feeds = dict(feeds)
        self._errors = exceptions("onnxruntime.capi.onnxruntime_pybind11_state")
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
            raise PeerFailed(one_line(error)) from error

    def run(self) -> list[Any]:
        try:
            return list(self._session.run(None, self._feeds))
        except self._errors as error:
            raise PeerFailed(one_line(error)) from error
