"""OrtSession: a model in ONNX Runtime. Light to import."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ..foreign import exceptions, import_silent


@cache
def is_installed() -> bool:
    """Whether ONNX Runtime is there."""
    return find_spec("onnxruntime") is not None


def ort_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises where it refuses a model, or fails on it."""
    import_silent("onnxruntime")
    return exceptions("onnxruntime.capi.onnxruntime_pybind11_state")


class OrtSession:
    """A model in ONNX Runtime, whose threads rest between runs. Raises `ort_errors` where it is refused.

    `sizes` are those of dimensions that it leaves open.
    """

    def __init__(self, model: Path | bytes, threads: int, sizes: Mapping[str, int] | None = None) -> None:
        self._model, self._threads, self._sizes = model, threads, dict(sizes or {})
        self._errors = ort_errors()
        self._session: Any = self._open()
        _sessions.add(self)

    def leave_behind(self) -> None:
        """In the child of a fork: open it anew when it is run. The parent's is not freed here, where its threads are
        not: that would wait for them for ever.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
        self._session = None

    def _opened(self) -> Any:
        if self._session is None:
            self._session = self._open()
        return self._session

    def _open(self) -> Any:
        onnxruntime = import_silent("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # our kernels need the cores
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # activations are no bytes
        options.log_severity_level = 4
        for name, size in self._sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        model = self._model if isinstance(self._model, bytes) else str(self._model)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    @property
    def version(self) -> str:
        """The version of ONNX Runtime."""
        return str(import_silent("onnxruntime").__version__)

    def arguments(self) -> tuple[list[Any], list[Any]]:
        """The inputs and the outputs: each with `name`, `type` and `shape`."""
        session = self._opened()
        return session.get_inputs(), session.get_outputs()

    def run(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """The outputs for values of the inputs, by name; None where it fails on these."""
        session = self._opened()
        try:
            return list(session.run(None, dict(feeds)))
        except self._errors:
            return None


_sessions: WeakSet[OrtSession] = WeakSet()


def _leave_sessions_behind() -> None:
    for session in list(_sessions):
        session.leave_behind()


os.register_at_fork(after_in_child=_leave_sessions_behind)
