"""CompiledGroup: a node that stands for a model which `compile_model` made a library of."""

from __future__ import annotations

import ctypes
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.graph.onnx_import.op_schema import CONTEXT_DOMAIN, CONTEXT_OP
from tunewright.tuner.errors import Refused
from tunewright.tuner.session.ort_session import OrtSession

from .c_api import OrtApi
from .graph import OrtNode, OrtValueInfo
from .kernel_context import KernelContext, numpy_type
from .options import NAME

PREFIX = "model"
"""Of the functions of the libraries of such nodes."""

_log = logging.getLogger("tunewright.onnxruntime")


def is_compiled(node: OrtNode) -> bool:
    """Whether a node stands for a model that we compiled."""
    if node.op != CONTEXT_OP or node.domain != CONTEXT_DOMAIN:
        return False
    return any(item.name == "source" and item.s == NAME.encode() for item in node.proto().attribute)


class CompiledGroup:
    """Runs the library of such a node, or where the processor lacks something the model that it was made of.

    Raises Refused where the library is not there, or is not the one that was made with the node.
    """

    def __init__(
        self,
        api: OrtApi,
        node: OrtNode,
        folder: Path,
        inputs: Sequence[OrtValueInfo],
        outputs: Sequence[OrtValueInfo],
        threads: int,
    ) -> None:
        self._api, self._threads = api, threads
        attributes = {item.name: item.s.decode(errors="replace") for item in node.proto().attribute}
        notes = json.loads(attributes.get("notes") or "{}")
        path = _beside(folder, attributes.get("ep_cache_context", ""))
        self.model = _beside(folder, notes.get("model", ""))
        self._inputs = [(value.name, numpy_type(value)) for value in inputs]
        self._outputs = [(value.name, value.shape, numpy_type(value)) for value in outputs]
        self._closing = threading.Lock()
        self._plain: OrtSession | None = None
        self._instance: int | None = None
        self._library = _load(path, notes.get("size_bytes"), notes.get("library"))
        missing = self._library.model_missing()
        if missing is None:
            self._instance = self._library.model_open(threads)
        if self._instance is None:
            lack = "memory or threads" if missing is None else missing.decode()
            _log.warning("%s: no %s here; ONNX Runtime runs the model that it was made of", path.name, lack)
            self._plain = OrtSession(self.model, threads)

    def run(self, context: int) -> None:
        """Compute the outputs of one run."""
        run = KernelContext(self._api, context)
        inputs = [run.input(number, kind) for number, (_, kind) in enumerate(self._inputs)]
        outputs = [run.output(number, shape, kind) for number, (_, shape, kind) in enumerate(self._outputs)]
        if self._instance is not None:
            self._library.model_run(self._instance, _addresses(inputs), _addresses(outputs))
            return
        assert self._plain is not None
        results = self._plain.run({name: array for (name, _), array in zip(self._inputs, inputs, strict=True)})
        if results is None:
            raise ValueError("ONNX Runtime can't compute the model for these inputs")
        for room, result in zip(outputs, results, strict=True):
            room[...] = result

    def wait(self, timeout_s: float | None) -> bool:
        """Nothing is compiled here."""
        return True

    def close(self) -> None:
        """End the instance. Closing again is harmless."""
        with self._closing:
            instance, self._instance = self._instance, None
        if instance is not None:
            self._library.model_close(instance)


def _beside(folder: Path, name: str) -> Path:
    """A file in the folder of the model. Raises Refused for any other, as the name comes out of the model."""
    if not name or Path(name).name != name:
        raise Refused(f"the model names {name[:100]!r} as a file beside it, which is no plain file name")
    return folder.resolve() / name


def _load(path: Path, size_bytes: int | None, description: str | None) -> ctypes.CDLL:
    """The library. Raises Refused where it has another size, or describes itself in other words than these."""
    again = "compile the model again"
    try:
        if path.stat().st_size != size_bytes:
            raise Refused(f"{path.name} is not what was made with the model, or not all of it; {again}")
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Refused(f"{path.name} can't be loaded; {again}: {error}") from error
    library.model_describe.restype = ctypes.c_char_p
    if library.model_describe().decode() != description:
        raise Refused(f"{path.name} is the library of another model; {again}")
    library.model_missing.restype = ctypes.c_char_p
    library.model_open.restype = ctypes.c_void_p
    library.model_open.argtypes = [ctypes.c_int]
    library.model_run.restype = library.model_close.restype = None
    library.model_run.argtypes = [ctypes.c_void_p] * 3
    library.model_close.argtypes = [ctypes.c_void_p]
    return library


def _addresses(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
