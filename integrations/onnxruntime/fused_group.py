"""FusedGroup: nodes of a session of ONNX Runtime's that run on our kernels."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tunewright.tuner import InferenceSession
from tunewright.tuner.errors import message, refusals
from tunewright.tuner.session.ort_session import OrtSession

from .c_api import OrtApi
from .graph import OrtValueInfo
from .kernel_context import KernelContext, numpy_type
from .native import ComputeInfo, Plan, Slots
from .options import ProviderOptions

MOST_PLANS = 8
"""Sizes of a group that run without Python: each keeps memory for what lies between kernels."""

Shapes = tuple[tuple[int, ...], ...]
"""Those of all inputs."""

_log = logging.getLogger("tunewright.onnxruntime")


class FusedGroup:
    """Runs a group of nodes: a session of ours over the model that consists of them.

    `on_run` is called behind each run that goes through Python.
    Where ours refuses the group, or the sizes of a run, ONNX Runtime's own kernels run it, in a session of theirs.
    """

    def __init__(
        self,
        api: OrtApi,
        model: Path | bytes,
        inputs: Sequence[OrtValueInfo],
        outputs: Sequence[OrtValueInfo],
        options: ProviderOptions,
        slots: Slots,
        on_run: Callable[[], None] = lambda: None,
    ) -> None:
        self._api, self._options, self._slots, self._on_run = api, options, slots, on_run
        self.info: ComputeInfo | None = None  # to which plans are added
        self._plans: dict[Shapes, list[Plan]] = {}
        self._has_plans = True  # False: runs take Python
        self.renew()
        _groups.add(self)
        self._inputs = [(value.name, numpy_type(value)) for value in inputs]
        self._outputs = [value.name for value in outputs]
        self._plain: OrtSession | None = None
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
                lock=options.lock,
                precision=options.precision,
                background=options.background,
            )
        except refusals() as error:
            self._leave(error)

    def renew(self) -> None:
        """Have locks that nobody holds, as in the child of a fork."""
        self._planning, self._plain_lock = threading.Lock(), threading.Lock()

    def run(self, context: int) -> None:
        """Compute the outputs of one run. Raises what the kernels raise."""
        run = KernelContext(self._api, context)
        feeds = {name: run.input(number, kind) for number, (name, kind) in enumerate(self._inputs)}
        for number, result in enumerate(self._results(feeds)):
            run.output(number, result.shape, result.dtype)[...] = result
        try:
            self._plan(feeds)
        except (OSError, MemoryError) as error:  # the outputs are there all the same
            _log.warning("runs of a group go on through Python: %s", message(error))
            self._has_plans = False
        self._on_run()

    def _plan(self, feeds: Mapping[str, Any]) -> None:
        """Have later runs of these sizes go without Python, if their kernels are there."""
        sizes = tuple(array.shape for array in feeds.values())
        with self._planning:
            plans, session = self._plans.get(sizes, []), self._session
            is_full = len(plans) >= self._slots.most or (not plans and len(self._plans) >= MOST_PLANS)
            if not self._has_plans or session is None or self.info is None or is_full:
                return
            labels = [argument.name for argument in session.get_inputs()]
            is_whole = set(labels) == feeds.keys()  # else a weight that runs may give is among them
            model = session.kernels_for([feeds[label] for label in labels]) if is_whole else None
            if is_whole and model is None:
                return
            slot = self._slots.slot(len(plans))
            plan = None if model is None else self.info.add(model, slot, list(feeds), self._outputs)
            if plan is None:
                self._has_plans = False
                return
            self._plans[sizes] = [*plans, plan]
            if len(plans) + 1 == self._slots.most:
                self._plans[sizes][0].wait()  # which is tried last

    def _results(self, feeds: dict[str, Any]) -> Sequence[Any]:
        session = self._session
        if session is not None:
            try:
                return session.run(self._outputs, feeds)
            except refusals() as error:
                self._leave(error)
        plain = self._plain_session()
        results = plain.run(feeds)
        if results is None:
            raise ValueError("neither Tunewright nor ONNX Runtime can compute these nodes for these inputs")
        by_name = dict(zip((argument.name for argument in plain.arguments()[1]), results, strict=True))
        return [by_name[name] for name in self._outputs]

    def _plain_session(self) -> OrtSession:
        with self._plain_lock:
            if self._plain is None:
                self._plain = OrtSession(self.model, self._options.threads or 0)
            return self._plain

    def _leave(self, error: BaseException) -> None:
        """Leave the group to ONNX Runtime from now on."""
        _log.warning("a group of nodes is left to ONNX Runtime's own kernels: %s", message(error))
        self._session = None

    @property
    def session(self) -> InferenceSession | None:
        """Ours; None where ONNX Runtime runs the group."""
        return self._session

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until no kernels are being compiled, for ever where no time is given; whether that is so."""
        session = self._session
        try:
            return session is None or session.wait(timeout_s)
        except refusals() as error:
            if session is self._session:  # else it was closed
                self._leave(error)
            return True

    def close(self) -> None:
        """End what compiles, unload the code. Closing again is harmless, also when no other thread runs any more."""
        if self.info is not None:
            self.info.forget()
        session, self._session = self._session, None
        if session is not None:
            session.close()


_groups: WeakSet[FusedGroup] = WeakSet()


def _renew_groups() -> None:
    for group in list(_groups):
        group.renew()


os.register_at_fork(after_in_child=_renew_groups)
