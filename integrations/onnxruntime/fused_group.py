"""FusedGroup: nodes of a session of ONNX Runtime's that run on our kernels."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.evaluation.onnx_form import DTYPES
from tunewright.tuner import InferenceSession
from tunewright.tuner.errors import message, refusals
from tunewright.tuner.session.evaluation import VendorSession

from .c_api import OrtApi
from .graph import OrtValueInfo
from .native import ComputeInfo, Slots
from .options import Options

MOST_PLANS = 8
"""Sizes of a group that run without Python: each keeps memory for what lies between kernels."""

_log = logging.getLogger("tunewright.onnxruntime")


class FusedGroup:
    """Runs a group of nodes: a session of ours over the model that consists of them.

    Where ours refuses the group, or the sizes of a run, ONNX Runtime's own kernels run it, in a session of theirs.
    """

    def __init__(
        self,
        api: OrtApi,
        model: Path | bytes,
        inputs: Sequence[OrtValueInfo],
        outputs: Sequence[OrtValueInfo],
        options: Options,
        slots: Slots,
    ) -> None:
        self._api, self._options, self._slots = api, options, slots
        self.info: ComputeInfo | None = None  # to which plans are added
        self._plans = Counter[tuple[tuple[int, ...], ...]]()  # how many there are, by the shapes of inputs
        self._planning = threading.Lock()
        self._inputs = [(value.name, value.shape, _numpy_type(value)) for value in inputs]
        self._outputs = [value.name for value in outputs]
        self._plain: VendorSession | None = None
        self._plain_lock = threading.Lock()
        self.model = model
        self._session: InferenceSession | None = None
        if not options.runs:
            return
        try:
            self._session = InferenceSession(
                model,
                threads=options.threads,
                db=options.db,
                server=options.server,
                background=options.background,
            )
        except refusals() as error:
            self._leave(error)

    def run(self, context: int) -> None:
        """Compute the outputs of one run. Raises what the kernels raise."""
        feeds = {
            name: self._array(self._api.word("KernelContext_GetInput", context, number) or 0, kind)
            for number, (name, _, kind) in enumerate(self._inputs)
        }
        for number, result in enumerate(self._results(feeds)):
            self._put(context, number, result)
        self._plan(list(feeds.values()))

    def _plan(self, arrays: Sequence[Any]) -> None:
        """Have later runs of these sizes go without Python, if their kernels are there."""
        sizes = tuple(array.shape for array in arrays)
        with self._planning:
            count = self._plans[sizes]
            if self._session is None or self.info is None or count >= self._slots.most:
                return
            model = self._session.kernels_for(arrays) if self._plans.total() < MOST_PLANS * self._slots.most else None
            if model is None:
                return
            slot = self._slots.slot(count)
            is_added = self.info.add(model, slot, waits=count + 1 == self._slots.most)
            self._plans[sizes] = count + 1 if is_added else self._slots.most

    def _results(self, feeds: dict[str, Any]) -> Sequence[Any]:
        session = self._session
        if session is not None:
            try:
                return session.run(self._outputs, feeds)
            except refusals() as error:
                self._leave(error)
        results = self._plain_session().run(feeds)
        if results is None:
            raise ValueError("neither Tunewright nor ONNX Runtime can compute these nodes for these inputs")
        return results

    def _plain_session(self) -> VendorSession:
        with self._plain_lock:
            if self._plain is None:
                self._plain = VendorSession(self.model, self._options.threads or 0)
            return self._plain

    def _leave(self, error: BaseException) -> None:
        """Leave the group to ONNX Runtime from now on."""
        _log.warning("a group of nodes is left to ONNX Runtime's own kernels: %s", message(error))
        self._session = None

    def _array(self, value: int, kind: np.dtype[Any]) -> Any:
        """An input where it lies."""
        info = self._api.word("GetTensorTypeAndShape", value)
        assert info is not None
        shape = self._api.shape(info)
        self._api.plain("ReleaseTensorTypeAndShapeInfo", info)
        address = self._api.word("GetTensorMutableData", value)
        return _array_at(address or 0, shape, kind)

    def _put(self, context: int, number: int, result: Any) -> None:
        """Copy a result to where ONNX Runtime wants it."""
        shape = (ctypes.c_int64 * result.ndim)(*result.shape)
        value = self._api.word("KernelContext_GetOutput", context, number, shape, result.ndim)
        address = self._api.word("GetTensorMutableData", value)
        if address and result.nbytes:
            source = np.ascontiguousarray(result)
            ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until no kernels are being compiled, for ever where no time is given; whether that is so."""
        session = self._session
        try:
            return session is None or session.wait(timeout_s)
        except refusals() as error:
            self._leave(error)
            return True

    def close(self) -> None:
        """End what compiles, unload the code. Closing again is harmless, also when no other thread runs any more."""
        if self.info is not None:
            self.info.forget()
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _numpy_type(value: OrtValueInfo) -> np.dtype[Any]:
    kind = None if value.element is None else DType.of(DTYPES[value.element])
    assert kind is not None  # others are not ours
    return np.dtype(kind.numpy)


def _array_at(address: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
    size_bytes = prod(shape) * kind.itemsize
    if not size_bytes:
        return np.empty(shape, kind)
    memory = (ctypes.c_uint8 * size_bytes).from_address(address)
    return np.frombuffer(memoryview(memory), kind).reshape(shape)
