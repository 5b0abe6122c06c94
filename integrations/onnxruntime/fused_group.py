"""FusedGroup: nodes of a session of ONNX Runtime's that run on our kernels."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunewright.tuner import InferenceSession
from tunewright.tuner.errors import message, refusals
from tunewright.tuner.session.evaluation import VendorSession

from .c_api import OrtApi
from .graph import OrtValueInfo
from .kernel_context import KernelContext, numpy_type
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
        self._inputs = [(value.name, numpy_type(value)) for value in inputs]
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
        run = KernelContext(self._api, context)
        feeds = {name: run.input(number, kind) for number, (name, kind) in enumerate(self._inputs)}
        for number, result in enumerate(self._results(feeds)):
            run.output(number, result.shape, result.dtype)[...] = result
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
