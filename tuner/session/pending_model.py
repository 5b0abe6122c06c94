"""PendingModel: a model of one size whose kernels are compiled in the background. Light to import."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import finalize

from .compilation import Compilation, Compiled
from .node_arg import Port
from .ports import Ports
from .session_model import ReadyModel, SessionModel
from .stand_in import StandIn


class PendingModel(SessionModel):
    """Runs a model in ONNX Runtime, its stand-in, until its kernels are compiled; without one it waits for them.

    `finish` makes what runs from then on: of what was compiled, and the stand-in.
    """

    def __init__(
        self,
        compilation: Compilation,
        stand_in: StandIn | None,
        finish: Callable[[Compiled, StandIn | None], ReadyModel],
    ) -> None:
        self.compilation, self._stand_in, self._finish = compilation, stand_in, finish
        self._ports = None if stand_in is None else Ports(stand_in.inputs, stand_in.outputs)
        self._finished: ReadyModel | None = None
        self._turn, self._is_closed = threading.Lock(), False
        self._end = finalize(self, compilation.close)  # at the end of the process too

    @property
    def inputs(self) -> Sequence[Port] | None:
        return None if self._stand_in is None else self._stand_in.inputs

    @property
    def outputs(self) -> Sequence[Port] | None:
        return None if self._stand_in is None or self._stand_in.has_open_outputs else self._stand_in.outputs

    @property
    def ready(self) -> bool:
        return self.compilation.is_over and not self.compilation.has_failed

    def wait(self, timeout_s: float | None = None) -> ReadyModel | None:
        compiled = self.compilation.result(timeout_s)
        if compiled is None:
            return None
        with self._turn:  # of several threads one finishes it
            self.check_open()
            if self._finished is None:
                self._finished = self._finish(compiled, self._stand_in)
                self._end.detach()
            return self._finished

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any] | None:
        """The outputs by ONNX Runtime; None where it can't tell them, and once the kernels can."""
        stand_in, ports = self._stand_in, self._ports
        if stand_in is None or ports is None or self.compilation.is_over:
            return None
        if not isinstance(input_feed, Mapping) or len(input_feed) != len(stand_in.inputs):
            return None
        self.check_open()
        arrays, numbers = ports.arrays(input_feed), ports.numbers(input_feed, output_names)
        results = stand_in.run(arrays)
        return None if results is None else [results[number] for number in numbers]

    def close(self) -> None:
        with self._turn:
            self._is_closed = True
            if self._finished is None:
                self.compilation.close()
            else:
                self._finished.close()
